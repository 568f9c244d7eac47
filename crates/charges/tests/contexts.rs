//! What contexts, their heaps and graphs are charged, step by step: one process and a simulated device.

#[path = "life/device.rs"]
#[allow(dead_code, reason = "the sequences of two processes use more of it")]
mod device;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use device::{Device, Fake, LIMIT, Memory, PAGE, Process, Share};
use divvy_abi::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUcontext, CUlimit, CUresult,
};
use divvy_charges::environment::Accounts as _;
use divvy_charges::{Charges, HeapSize, Need, Needs};
use divvy_ledger::{Backing, Ledger, Slot, SlotOwner};

const CONTEXT: u64 = 3 * PAGE;
const STACK: CUlimit = CUlimit(0);
const HEAP: CUlimit = CUlimit(2);

struct Bench {
    ledger: Ledger,
    process: &'static Process,
    charges: Charges<Fake>,
}

fn handle(number: usize) -> CUcontext {
    number as CUcontext
}

fn fails() -> CUresult {
    CUDA_ERROR_INVALID_VALUE
}

impl Bench {
    fn new() -> Self {
        let ledger = Ledger::create().expect("a ledger");
        let fd = ledger.share().expect("/proc");
        let slot = Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a slot");
        let mut memory = Memory::default();
        memory.context_bytes = CONTEXT - 1;
        // It is leaked, since a process's own state lives for ever as well.
        let process: &'static Process = Box::leak(Box::new(Process {
            device: Rc::new(RefCell::new(Device::default())),
            memory: RefCell::new(memory),
            slot,
        }));
        Self {
            ledger,
            process,
            charges: Charges::new(Fake(process)),
        }
    }

    fn account(&self) -> Share {
        self.charges.env().account(0).expect("an account")
    }

    fn used(&self) -> u64 {
        self.ledger.total_used()
    }

    fn create(&self, number: usize) -> CUresult {
        self.charges
            .create_context(self.account(), || CUDA_SUCCESS, || handle(number))
    }

    fn allocate(&self, bytes: u64) {
        let at = Cell::new(0);
        let call = || {
            at.set(self.process.allocate(bytes));
            CUDA_SUCCESS
        };
        let result = self.charges.allocate(self.account(), bytes, call, || at.get());
        assert!(result.is_success());
    }

    fn set_heap(&self, which: CUlimit, wanted: u64, after: u64) -> CUresult {
        let size = HeapSize {
            context: handle(1),
            which,
            before: 8 * PAGE,
            wanted: wanted * PAGE,
        };
        self.charges
            .set_heap(self.account(), size, || CUDA_SUCCESS, || after * PAGE)
    }

    /// Launches, and returns what is charged during the call. The driver then has `reserved` bytes for graphs.
    fn launch(&self, exec: usize, stream: usize, reserved: u64) -> u64 {
        let during = Cell::new(0);
        let call = || {
            during.set(self.used());
            self.reserves(reserved);
            CUDA_SUCCESS
        };
        assert!(self.charges.launch_graph(exec, stream, call).is_success());
        during.get()
    }

    fn reserves(&self, bytes: u64) {
        self.process.memory.borrow_mut().graphs = Some(bytes);
    }

    fn instantiate(&self, exec: usize, (inside, outside): (u64, u64), frees: bool) {
        let result =
            self.charges
                .instantiate_graph(needs(inside, outside), (false, frees), || CUDA_SUCCESS, || exec);
        assert!(result.is_success());
    }
}

fn needs(inside: u64, outside: u64) -> Needs {
    BTreeMap::from([(0, Need { inside, outside })])
}

#[test]
fn a_context_costs_its_bytes_until_its_last_use_ends() {
    let bench = Bench::new();
    let charges = &bench.charges;
    assert!(bench.create(1).is_success());
    assert_eq!((bench.used(), charges.contexts_of(0)), (CONTEXT, vec![1]));
    assert!(charges.contexts_of(1).is_empty() && !charges.are_contexts_several());
    assert_eq!(charges.primaries(), []);
    let refused = charges.create_context(bench.account(), fails, || unreachable!("it failed"));
    assert_eq!((refused, bench.used()), (CUDA_ERROR_INVALID_VALUE, CONTEXT));
    assert!(bench.create(2).is_success());
    assert!(charges.are_contexts_several());
    assert_eq!((bench.used(), charges.contexts_of(0)), (2 * CONTEXT, vec![1, 2]));

    charges.context_attached(handle(2));
    charges.context_attached(handle(2));
    let detach = || charges.detach_context(handle(2), || CUDA_SUCCESS);
    assert_eq!(charges.detach_context(handle(2), fails), (fails(), false));
    assert_eq!([detach(), detach()], [(CUDA_SUCCESS, false); 2]);
    assert_eq!(bench.used(), 2 * CONTEXT);
    assert_eq!(detach(), (CUDA_SUCCESS, true));
    assert_eq!((bench.used(), charges.contexts_of(0)), (CONTEXT, vec![1]));

    assert_eq!(charges.destroy_context(handle(1), fails), (fails(), false));
    assert_eq!(bench.used(), CONTEXT);
    assert_eq!(
        charges.destroy_context(handle(1), || CUDA_SUCCESS),
        (CUDA_SUCCESS, true)
    );
    assert_eq!(bench.used(), 0);
    assert!(
        charges.destroy_context(handle(1), || CUDA_SUCCESS).1,
        "an unknown one"
    );
    assert_eq!(bench.used(), 0);
}

#[test]
fn a_context_that_does_not_fit_is_not_made() {
    let bench = Bench::new();
    bench.process.memory.borrow_mut().context_bytes = LIMIT - PAGE;
    assert!(bench.create(1).is_success());
    let call = || unreachable!("it does not fit");
    let refused = bench.charges.create_context(bench.account(), call, || handle(2));
    assert_eq!((refused, bench.used()), (CUDA_ERROR_OUT_OF_MEMORY, LIMIT - PAGE));
    let refused = bench.charges.retain_primary(0, bench.account(), call, || None);
    assert_eq!((refused, bench.used()), (CUDA_ERROR_OUT_OF_MEMORY, LIMIT - PAGE));
}

#[test]
fn a_primary_context_is_charged_once_however_often_it_is_retained() {
    let bench = Bench::new();
    let charges = &bench.charges;
    let retain = |device, result: CUresult, known: Option<usize>| {
        charges.retain_primary(device, bench.account(), || result, || known.map(handle))
    };
    assert_eq!((retain(0, fails(), None), bench.used()), (fails(), 0));
    assert_eq!(charges.primary(0), None);
    assert!(retain(0, CUDA_SUCCESS, None).is_success());
    assert_eq!((bench.used(), charges.primary(0)), (CONTEXT, Some(handle(0))));
    assert!(charges.contexts_of(0).is_empty(), "its handle is not known yet");
    assert!(retain(0, CUDA_SUCCESS, Some(7)).is_success());
    assert!(retain(0, CUDA_SUCCESS, None).is_success());
    assert_eq!((bench.used(), charges.primary(0)), (CONTEXT, Some(handle(7))));
    assert!(retain(1, CUDA_SUCCESS, Some(8)).is_success());
    assert_eq!((bench.used(), charges.primaries()), (2 * CONTEXT, vec![0, 1]));

    let detached = charges.detach_context(handle(7), || CUDA_SUCCESS);
    assert_eq!((detached, bench.used()), ((CUDA_SUCCESS, false), 2 * CONTEXT));
    assert_eq!(charges.primary_ended(0), Some(handle(7)));
    assert_eq!((charges.primary_ended(0), bench.used()), (None, CONTEXT));
    assert_eq!((charges.primary(0), charges.primaries()), (None, vec![1]));
}

#[test]
fn a_heap_is_charged_for_its_growth_beyond_its_first_size() {
    let bench = Bench::new();
    assert!(bench.create(1).is_success());
    let beyond = || (bench.used() - CONTEXT) / PAGE;
    assert!(bench.set_heap(HEAP, 20, 20).is_success());
    assert_eq!(beyond(), 12);
    assert!(bench.set_heap(HEAP, 10, 11).is_success());
    assert_eq!(beyond(), 3, "the driver rounded up");
    assert!(bench.set_heap(HEAP, 12, 14).is_success());
    assert_eq!(beyond(), 6);
    assert!(bench.set_heap(HEAP, 4, 4).is_success());
    assert_eq!(beyond(), 0);
    assert!(bench.set_heap(HEAP, 10, 10).is_success());
    assert!(bench.set_heap(STACK, 13, 13).is_success());
    assert_eq!(beyond(), 2 + 5);
    let refused = bench.set_heap(STACK, 1000, 1000);
    assert_eq!((refused, beyond()), (CUDA_ERROR_OUT_OF_MEMORY, 7));
    let size = HeapSize {
        context: handle(1),
        which: HEAP,
        before: 8 * PAGE,
        wanted: 30 * PAGE,
    };
    let refused = bench.charges.set_heap(bench.account(), size, fails, || 10 * PAGE);
    assert_eq!((refused, beyond()), (fails(), 7));
    // What the driver takes beyond that, and does not fit, is its own overhead.
    assert!(bench.set_heap(STACK, 14, 14 + 1000).is_success());
    assert_eq!(beyond(), 2 + 6);
    let unknown = HeapSize {
        context: handle(9),
        ..size
    };
    let result = bench
        .charges
        .set_heap(bench.account(), unknown, || CUDA_SUCCESS, || 30 * PAGE);
    assert_eq!((result, beyond()), (CUDA_SUCCESS, 8));
    bench.charges.destroy_context(handle(1), || CUDA_SUCCESS);
    assert_eq!(bench.used(), 0);
}

#[test]
fn allocations_end_with_their_context_and_stay_where_it_stays() {
    let bench = Bench::new();
    assert!(bench.create(1).is_success() && bench.create(2).is_success());
    bench.allocate(2 * PAGE);
    bench.allocate(512);
    assert_eq!(bench.used(), 2 * CONTEXT + 3 * PAGE);
    bench.charges.destroy_context(handle(1), fails);
    assert_eq!(bench.used(), 2 * CONTEXT + 3 * PAGE);
    bench.charges.destroy_context(handle(2), || CUDA_SUCCESS);
    assert_eq!(bench.used(), CONTEXT + 3 * PAGE, "they lie in the other one");
    bench.charges.destroy_context(handle(1), || CUDA_SUCCESS);
    assert_eq!(bench.used(), 0);
}

#[test]
fn memory_that_the_driver_no_longer_knows_is_given_back_when_a_primary_context_ends() {
    let bench = Bench::new();
    bench.allocate(2 * PAGE);
    bench.allocate(3 * PAGE);
    let first = *bench.process.memory.borrow().live.keys().next().expect("one");
    assert!(bench.process.free(first).is_success());
    assert_eq!(bench.used(), 5 * PAGE);
    bench.charges.device_reset(0);
    assert_eq!(bench.used(), 3 * PAGE);
    let second = *bench.process.memory.borrow().live.keys().next().expect("one");
    assert!(bench.process.free(second).is_success());
    assert_eq!(bench.charges.primary_ended(0), None);
    assert_eq!(bench.used(), 0);
}

#[test]
fn a_graph_has_room_for_its_nodes_before_it_is_launched_and_pays_what_the_driver_keeps() {
    let bench = Bench::new();
    assert!(!bench.charges.any_graphs());
    bench.reserves(0);
    bench.instantiate(1, (4 * PAGE, 2 * PAGE), false);
    assert!(bench.charges.any_graphs());
    assert_eq!(bench.used(), 0, "it was not uploaded");
    assert_eq!(bench.launch(1, 5, 6 * PAGE), 6 * PAGE);
    assert_eq!(bench.used(), 6 * PAGE);
    // In the same stream it still has its memory inside; what outlives a launch is new each time.
    assert_eq!(bench.launch(1, 5, 8 * PAGE), 8 * PAGE);
    assert_eq!(bench.launch(1, 6, 7 * PAGE), (8 + 6) * PAGE, "another stream");
    assert_eq!(bench.used(), 7 * PAGE);
    let trimmed = bench.charges.trim_graphs(|| {
        bench.reserves(3 * PAGE);
        CUDA_SUCCESS
    });
    assert!(trimmed.is_success());
    assert_eq!(bench.used(), 3 * PAGE);
    assert_eq!(bench.launch(1, 6, 9 * PAGE), 9 * PAGE, "a trim may have taken it");
    assert_eq!(bench.launch(1, 6, 9 * PAGE), 11 * PAGE);
    assert!(bench.charges.launch_graph(1, 6, fails) == fails());
    assert_eq!(bench.used(), 9 * PAGE);
    assert_eq!(
        bench.launch(1, 6, 9 * PAGE),
        15 * PAGE,
        "nothing is known after a failure"
    );
    bench.charges.graph_ends(1);
    assert!(bench.charges.any_graphs(), "they still have memory");
    assert_eq!(bench.launch(1, 6, 1), 9 * PAGE, "an unknown graph needs nothing");
    let trimmed = bench.charges.trim_graphs(|| {
        bench.reserves(0);
        CUDA_SUCCESS
    });
    assert!(trimmed.is_success());
    assert_eq!((bench.used(), bench.charges.any_graphs()), (0, false));
}

#[test]
fn a_graph_that_frees_on_launch_needs_nothing_new_in_its_stream() {
    let bench = Bench::new();
    bench.instantiate(1, (4 * PAGE, 2 * PAGE), true);
    assert_eq!(bench.launch(1, 5, 6 * PAGE), 6 * PAGE);
    assert_eq!(bench.launch(1, 5, 6 * PAGE), 6 * PAGE);
    assert_eq!(bench.launch(1, 4, 6 * PAGE), 12 * PAGE);
}

#[test]
fn a_graph_that_does_not_fit_is_not_launched() {
    let bench = Bench::new();
    bench.reserves(0);
    bench.instantiate(1, (LIMIT, 0), false);
    bench.allocate(512);
    let result = bench
        .charges
        .launch_graph(1, 1, || unreachable!("it does not fit"));
    assert_eq!((result, bench.used()), (CUDA_ERROR_OUT_OF_MEMORY, PAGE));
    let upload = || unreachable!("it does not fit");
    let exec = || unreachable!("it was not made");
    let result = bench
        .charges
        .instantiate_graph(needs(0, LIMIT), (true, false), upload, exec);
    assert_eq!((result, bench.used()), (CUDA_ERROR_OUT_OF_MEMORY, PAGE));
    let during = Cell::new(0);
    let upload = || {
        during.set(bench.used());
        bench.reserves(PAGE);
        CUDA_SUCCESS
    };
    let result = bench
        .charges
        .instantiate_graph(needs(PAGE, PAGE), (true, false), upload, || 2);
    assert!(result.is_success());
    assert_eq!((during.get(), bench.used()), (3 * PAGE, 2 * PAGE));
}

#[test]
fn graphs_give_unused_memory_back_where_an_allocation_needs_it() {
    let bench = Bench::new();
    bench.instantiate(1, (PAGE, 0), false);
    bench.launch(1, 1, 40 * PAGE);
    assert_eq!(bench.used(), 40 * PAGE);
    bench.reserves(0);
    bench.allocate(60 * PAGE);
    assert_eq!(bench.used(), 60 * PAGE);
}
