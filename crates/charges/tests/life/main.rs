//! Random sequences of what two processes of a slice do with device memory, over a simulated device. The ledger is
//! never below what the device holds nor above the limit. It equals that once each process has looked, and is 0 at the
//! end.

mod device;

use std::cell::RefCell;
use std::rc::Rc;

use device::{Device, Fake, LIMIT, Memory, PAGE, POOL, Process};
use divvy_abi::{CUDA_SUCCESS, CUdeviceptr};
use divvy_charges::environment::{Accounts as _, Stream};
use divvy_charges::{Charges, Key};
use divvy_ledger::{Backing, Ledger, Slot, SlotOwner};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Managed(u64),
    FromPool(u64),
    Free(usize),
    FreeIn(usize, usize),
    Advance(usize),
    /// The other process opens one of this process's allocations.
    Share(usize),
    Close(usize),
    Create(u64),
    Map(usize),
    Unmap(usize),
    Release(usize),
    Synchronize,
}

fn step() -> impl Strategy<Value = Step> {
    let small = prop::sample::select(vec![512, 4096, 300 << 10, 1 << 20, PAGE - 512]);
    let large = prop::sample::select(vec![PAGE, PAGE + 512, 3 * PAGE, 20 * PAGE]);
    let any = || 0..64_usize;
    prop_oneof![
        8 => small.clone().prop_map(Step::Allocate),
        4 => large.clone().prop_map(Step::Allocate),
        1 => small.prop_map(Step::Managed),
        3 => large.prop_map(Step::FromPool),
        6 => any().prop_map(Step::Free),
        6 => (any(), 0..2_usize).prop_map(|(which, stream)| Step::FreeIn(which, stream)),
        3 => (0..2_usize).prop_map(Step::Advance),
        6 => any().prop_map(Step::Share),
        4 => any().prop_map(Step::Close),
        2 => (1..4_u64).prop_map(|pages| Step::Create(pages * PAGE)),
        2 => any().prop_map(Step::Map),
        2 => any().prop_map(Step::Unmap),
        2 => any().prop_map(Step::Release),
        1 => Just(Step::Synchronize),
    ]
}

/// The state of one process.
struct Side {
    process: &'static Process,
    charges: Charges<Fake>,
    pointers: Vec<CUdeviceptr>,
    managed: Vec<(CUdeviceptr, u64)>,
    /// Pointers that it has opened, with the device's pages behind them.
    opened: Vec<(CUdeviceptr, Vec<u64>)>,
    /// Bytes, whether the program still has the handle, and addresses of the physical memory.
    physical: Vec<(u64, u64, bool, Vec<u64>)>,
    /// For addresses and handles that the device does not hand out.
    next: u64,
}

struct Slice {
    ledger: Ledger,
    device: Rc<RefCell<Device>>,
    sides: [Side; 2],
}

impl Slice {
    fn new() -> Self {
        let ledger = Ledger::create().expect("a ledger");
        let device = Rc::new(RefCell::new(Device::default()));
        let side = |number: u64| {
            let fd = ledger.share().expect("/proc");
            let slot = Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a slot");
            // It is leaked, since a process's own state lives for ever as well.
            let process: &'static Process = Box::leak(Box::new(Process {
                device: Rc::clone(&device),
                memory: RefCell::new(Memory::default()),
                slot,
            }));
            Side {
                charges: Charges::new(Fake(process)),
                process,
                pointers: Vec::new(),
                managed: Vec::new(),
                opened: Vec::new(),
                physical: Vec::new(),
                next: (number + 1) << 50,
            }
        };
        let sides = [side(0), side(1)];
        Self {
            ledger,
            device,
            sides,
        }
    }

    fn take(&mut self, who: usize, step: &Step) {
        match step {
            Step::Share(which) => self.share(who, *which),
            step => self.sides[who].take(step, &self.device),
        }
        // Their threads would do the same when they are called.
        self.sides.iter().for_each(|side| side.charges.follow_residuals());
        let (used, held) = (self.ledger.total_used(), self.must_hold());
        assert!(
            used >= held && used <= LIMIT,
            "{used} charged of {held} after {step:?}"
        );
    }

    fn must_hold(&self) -> u64 {
        let managed = self.sides.iter().flat_map(|side| &side.managed);
        self.device.borrow().held_bytes() + managed.map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// The other process opens an allocation of `who`, as often as it likes.
    fn share(&mut self, who: usize, which: usize) {
        let [first, second] = &mut self.sides;
        let (owner, importer) = if who == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let Some(pointer) = pick(&owner.pointers, which) else {
            return;
        };
        let found = owner.process.memory.borrow().live[&pointer].clone();
        if found.pages.is_empty() {
            return;
        }
        // A driver returns the same handle each time.
        let key = Key::of(&[who as u64, found.number].map(u64::to_ne_bytes).concat());
        owner.charges.exported(pointer, key);
        importer.next += PAGE;
        let at = importer.next;
        let account = importer.process_account();
        let device = &self.device;
        let call = || {
            device.borrow_mut().hold(&found.pages);
            CUDA_SUCCESS
        };
        let result =
            importer
                .charges
                .open(account, (key, 1), call, || at, |_| unreachable!("it is paid for"));
        assert!(result.is_success());
        importer.opened.push((at, found.pages));
    }

    fn settle(&self) {
        for _ in 0..3 {
            for side in &self.sides {
                (0..2).for_each(|stream| side.process.advance(stream));
                side.charges.pool_changed(POOL);
                side.charges.follow();
            }
        }
        assert_eq!(self.ledger.total_used(), self.must_hold(), "once all have looked");
    }
}

fn pick<T: Clone>(from: &[T], which: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[which % from.len()].clone())
}

fn take_one<T>(from: &mut Vec<T>, which: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(which % from.len()))
}

impl Side {
    fn process_account(&self) -> device::Share {
        self.charges.env().account(0).expect("an account")
    }

    fn take(&mut self, step: &Step, device: &RefCell<Device>) {
        let process = self.process;
        let account = self.process_account();
        let at = std::cell::Cell::new(0);
        let stream = |handle| Stream {
            handle,
            per_thread: false,
        };
        match *step {
            Step::Allocate(bytes) => {
                let call = || {
                    at.set(process.allocate(bytes));
                    CUDA_SUCCESS
                };
                if self
                    .charges
                    .allocate(account, bytes, call, || at.get())
                    .is_success()
                {
                    self.pointers.push(at.get());
                }
            }
            Step::Managed(bytes) => {
                self.next += PAGE;
                let call = || CUDA_SUCCESS;
                let pointer = self.next;
                let result = self.charges.allocate_managed(account, bytes, call, || pointer);
                if result.is_success() {
                    let charged = if bytes > PAGE / 2 { PAGE } else { bytes };
                    self.managed.push((pointer, charged));
                }
            }
            Step::FromPool(bytes) => {
                let call = || {
                    at.set(process.allocate_from_pool(bytes));
                    CUDA_SUCCESS
                };
                let from = (POOL, stream(0));
                let result = self
                    .charges
                    .allocate_from_pool(account, from, bytes, call, || at.get());
                if result.is_success() {
                    self.pointers.push(at.get());
                }
            }
            Step::Free(which) if which % 8 == 0 && !self.managed.is_empty() => {
                let (pointer, _) = self.managed.swap_remove(0);
                assert!(self.charges.free(pointer, || CUDA_SUCCESS).is_success());
            }
            Step::Free(which) => {
                if let Some(pointer) = take_one(&mut self.pointers, which) {
                    let result = self.charges.free(pointer, || process.free(pointer));
                    assert!(result.is_success());
                    // A second free is refused, and returns nothing.
                    assert!(!self.charges.free(pointer, || process.free(pointer)).is_success());
                }
            }
            Step::FreeIn(which, number) => {
                if let Some(pointer) = take_one(&mut self.pointers, which) {
                    let call = || process.free_later(pointer, number);
                    assert!(self.charges.free_in(stream(number), pointer, call).is_success());
                }
            }
            Step::Advance(stream) => process.advance(stream),
            Step::Share(_) => {}
            Step::Close(which) => {
                if let Some((pointer, pages)) = take_one(&mut self.opened, which) {
                    let close = || {
                        device.borrow_mut().let_go(&pages);
                        CUDA_SUCCESS
                    };
                    assert!(self.charges.close(pointer, close).is_success());
                }
            }
            Step::Create(bytes) => {
                self.next += 1;
                let handle = self.next;
                let call = || {
                    device.borrow_mut().other_bytes += bytes;
                    CUDA_SUCCESS
                };
                let result = self.charges.create_physical(account, bytes, call, || handle);
                if result.is_success() {
                    self.physical.push((handle, bytes, true, Vec::new()));
                }
            }
            Step::Map(which) => {
                self.next += PAGE << 8;
                let address = self.next;
                let count = self.physical.len();
                if let Some((handle, bytes, true, mapped)) = self.physical.get_mut(which % count.max(1)) {
                    mapped.push(address);
                    let range = (address, 0, *bytes);
                    let result = self.charges.map_physical(*handle, range, || CUDA_SUCCESS);
                    assert!(result.is_success());
                }
            }
            Step::Unmap(which) => {
                let count = self.physical.len();
                if let Some((_, bytes, _, mapped)) = self.physical.get_mut(which % count.max(1))
                    && let Some(address) = mapped.pop()
                {
                    let result = self.charges.unmap_physical(address, *bytes, || CUDA_SUCCESS);
                    assert!(result.is_success());
                }
                self.end_physical(device);
            }
            Step::Release(which) => {
                let count = self.physical.len();
                if let Some((handle, _, has, _)) = self.physical.get_mut(which % count.max(1))
                    && core::mem::take(has)
                {
                    assert!(
                        self.charges
                            .release_physical(*handle, || CUDA_SUCCESS)
                            .is_success()
                    );
                }
                self.end_physical(device);
            }
            Step::Synchronize => {
                (0..2).for_each(|stream| process.advance(stream));
                self.charges.follow();
            }
        }
    }

    fn end_physical(&mut self, device: &RefCell<Device>) {
        self.physical.retain(|(_, bytes, has, mapped)| {
            let lives = *has || !mapped.is_empty();
            if !lives {
                device.borrow_mut().other_bytes -= bytes;
            }
            lives
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_is_what_the_device_holds(steps in prop::collection::vec((0..2_usize, step()), 1..120)) {
        let mut slice = Slice::new();
        for (at, (who, step)) in steps.iter().enumerate() {
            slice.take(*who, step);
            if at % 40 == 39 {
                slice.settle();
            }
        }
        slice.settle();
        for who in [0, 1] {
            while !slice.sides[who].managed.is_empty() {
                slice.take(who, &Step::Free(0));
            }
            for which in 0..128 {
                let last = [Step::Free, Step::Close, Step::Release, Step::Unmap];
                last.into_iter().for_each(|step| slice.take(who, &step(which)));
            }
            slice.settle();
            let pool = &slice.sides[who].charges;
            assert!(pool.destroy_pool(POOL, || {
                let mut memory = slice.sides[who].process.memory.borrow_mut();
                slice.device.borrow_mut().other_bytes -= memory.destroy_pool();
                CUDA_SUCCESS
            }).is_success());
        }
        slice.settle();
        prop_assert_eq!(slice.ledger.total_used(), 0);
        prop_assert_eq!(slice.device.borrow().held_bytes(), 0);
    }
}
