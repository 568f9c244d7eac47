//! Launches that are watched: what a kernel does to memory and at barriers is told to a [`Watch`] before it happens.
//!
//! A module that was parsed for it has [`watched`] in place of the functions of such instructions, and their own beside
//! (docs/adr/0070). Other modules have not, so nothing asks whether a launch is watched while instructions run.

use super::async_copy::{self, NARROW_TARGET, SIZE_SHIFT};
use super::control::NONE;
use super::ctx::{Bits, Ctx};
use super::matrix::gathered;
use super::matrix_memory::{count, unit};
use super::memory::{COUNT_SHIFT, FRAME, GENERIC, LOCAL, NARROW, PARAM, SHARED, SPACE, lane_address};
use crate::code::WatchedInst;
use crate::error::Access;
use crate::inst::{Exec, Flow, Inst};

/// How an access is ordered against others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Volatile, relaxed or stronger: such accesses of several threads may meet.
    pub strong: bool,
    /// What the writer released before is seen after it.
    pub acquire: bool,
    /// What the thread did before is seen with it.
    pub release: bool,
    /// It swaps if what is there is as expected.
    pub compares: bool,
}

impl Order {
    /// An atomic operation that says nothing of others.
    pub(crate) const RELAXED: Order = Order {
        strong: true,
        acquire: false,
        release: false,
        compares: false,
    };
    /// An ordinary access.
    const WEAK: Order = Order {
        strong: false,
        acquire: false,
        release: false,
        compares: false,
    };
}

/// What a watched launch is told of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Nothing,
    /// A load of elements of so many bytes; how many is in `aux`.
    Load {
        element: u8,
        order: Order,
    },
    /// A store from registers of 32 bits or of 64.
    Store {
        element: u8,
        wide: bool,
        order: Order,
    },
    /// An atomic operation; `reads` where its result depends on what was there.
    Atomic {
        element: u8,
        reads: bool,
        order: Order,
    },
    /// `cp.async`.
    Copy,
    /// `ldmatrix`, `stmatrix`.
    Rows {
        store: bool,
    },
    /// `wmma.load`, `wmma.store`.
    Matrix {
        store: bool,
    },
    /// `bar`, `barrier`; `aligned` where a warp comes to it as one.
    Barrier {
        aligned: bool,
    },
    WarpBarrier,
    /// A fence for the device, or for the block alone.
    Fence {
        device: bool,
    },
    /// An mbarrier: threads wait for its phase, or arrive.
    Object {
        waits: bool,
    },
}

/// A warp at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarpAt {
    /// The block's number in the grid.
    pub block: u64,
    /// The warp's number in the block.
    pub warp: u32,
    /// The lanes that execute the instruction.
    pub lanes: u32,
    /// The instruction's number in the module.
    pub instruction: u32,
    /// Names what the block runs in. One block is there at a time, and the next one comes when it has ended.
    pub slot: u64,
}

/// Which memory is touched, and what an address counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Device memory, by its address.
    Global,
    /// The block's shared memory, from its begin.
    Shared,
    /// The thread's local memory, from its begin.
    Local,
    /// Memory of the system's own, by its address.
    System,
}

/// An access of a warp that is about to happen.
pub struct Touch<'a> {
    /// Which memory.
    pub window: Window,
    /// What is done.
    pub access: Access,
    /// The lanes that do it.
    pub lanes: u32,
    /// Bytes of the window; 0 for [`Window::Global`] and [`Window::System`].
    pub window_bytes: u64,
    /// Each lane's first byte.
    pub addresses: &'a [u64; 32],
    /// Bytes of a lane, one after the other.
    pub bytes: u64,
    /// The least alignment, in bytes.
    pub align: u64,
    /// How it is ordered.
    pub order: Order,
    /// It depends on what was there before.
    pub reads: bool,
    /// What each lane writes, mixed into a word; equal where the bytes are. None for reads and atomic operations.
    pub values: Option<&'a [u64; 32]>,
    /// Whether a lane's store leaves the bytes as they are. To be asked only where the address is one of memory.
    pub unchanged: &'a dyn Fn(usize) -> bool,
}

/// What is told of a launch while it runs. Calls come from the engine's threads.
pub trait Watch: Sync {
    /// A warp has executed an instruction, in a module of [`crate::Module::parse_counted`]. The lanes are those that
    /// came to it, whether or not a guard held for them.
    fn issue(&self, _at: &WarpAt) {}
    /// A warp is about to touch memory. The engine refuses afterwards what is not there.
    fn touch(&self, at: &WarpAt, touch: &Touch<'_>);
    /// Lanes have executed a fence; `device`: for all blocks, not for their own alone.
    fn fence(&self, at: &WarpAt, device: bool);
    /// Lanes have come to barrier `id` of their block, which awaits `count` threads (0: all of them).
    fn arrive(&self, at: &WarpAt, id: u32, count: u32, waits: bool, aligned: bool);
    /// The block in `slot` passes barrier `id`.
    fn open(&self, slot: u64, id: u32);
    /// Every block has come to the grid's barrier.
    fn open_grid(&self);
    /// Lanes of a warp have met.
    fn meet(&self, at: &WarpAt);
    /// A lane arrived at an mbarrier (`releases`), or has waited for it. The offset is in shared memory.
    fn object(&self, at: &WarpAt, offset: u64, releases: bool);
}

/// What a watched module has in the place of an instruction's function.
pub(crate) fn in_front_of(exec: Exec, seen: Seen) -> Exec {
    match seen {
        Seen::Nothing => exec,
        _ => watched,
    }
}

/// What is known of an instruction beside it, and where the warp is. None in a module that is not for watching.
fn known(c: &Ctx, i: &Inst) -> Option<(WatchedInst, WarpAt)> {
    let launch = c.launch();
    let code = launch.code();
    let at = (std::ptr::from_ref(i) as usize).wrapping_sub(code.insts.as_ptr() as usize) / size_of::<Inst>();
    let inst = *code.watched.as_ref()?.insts.get(at)?;
    let [x, y, _] = launch.grid.map(u64::from);
    let [bx, by, bz] = c.ctaid.map(u64::from);
    let warp = WarpAt {
        block: bx + x * (by + y * bz),
        warp: c.warp,
        lanes: c.mask(),
        instruction: at as u32,
        slot: c.shared as u64,
    };
    Some((inst, warp))
}

/// Counts the instruction once it is done.
pub(crate) fn counted(c: &mut Ctx, i: &Inst) -> Flow {
    let Some((inst, warp)) = known(c, i) else {
        return super::control::unsupported(c, i);
    };
    let watch = c.launch().watch;
    // SAFETY: as in `watched`.
    let flow = unsafe { (inst.outer)(c, i) };
    // One that waits for other lanes is executed again.
    if let Some(watch) = watch.filter(|_| flow != Flow::Gather) {
        watch.issue(&warp);
    }
    flow
}

fn watched(c: &mut Ctx, i: &Inst) -> Flow {
    let Some((inst, warp)) = known(c, i) else {
        return super::control::unsupported(c, i);
    };
    let watch = c.launch().watch;
    if let Some(watch) = watch {
        before(c, i, inst.seen, &warp, watch);
    }
    // SAFETY: the function is the instruction's own, picked for this machine and decoded for the same function.
    let flow = unsafe { (inst.exec)(c, i) };
    if let Some(watch) = watch {
        after(c, i, inst.seen, flow, &warp, watch);
    }
    flow
}

fn before(c: &mut Ctx, i: &Inst, seen: Seen, warp: &WarpAt, watch: &dyn Watch) {
    let per_lane = u64::from(i.aux >> COUNT_SHIFT & 15);
    match seen {
        Seen::Load { element, order } => {
            let bytes = u64::from(element) * per_lane;
            let addresses = addresses(c, i);
            tell(
                c,
                i,
                warp,
                watch,
                &addresses,
                [bytes, bytes],
                Access::Read,
                order,
                true,
                None,
            );
        }
        Seen::Store { element, wide, order } => {
            let bytes = u64::from(element) * per_lane;
            let addresses = addresses(c, i);
            let words = stored(c, i, u64::from(element), wide, per_lane as usize);
            tell(
                c,
                i,
                warp,
                watch,
                &addresses,
                [bytes, bytes],
                Access::Write,
                order,
                false,
                Some(&words),
            );
        }
        Seen::Atomic {
            element,
            reads,
            order,
        } => {
            let bytes = u64::from(element);
            let addresses = addresses(c, i);
            tell(
                c,
                i,
                warp,
                watch,
                &addresses,
                [bytes, bytes],
                Access::Atomic,
                order,
                reads,
                None,
            );
        }
        Seen::Copy => copy(c, i, warp, watch),
        Seen::Rows { store } if gathered(c) => rows(c, i, warp, watch, store),
        Seen::Matrix { store } if gathered(c) => matrix(c, i, warp, watch, store),
        _ => {}
    }
}

fn after(c: &mut Ctx, i: &Inst, seen: Seen, flow: Flow, warp: &WarpAt, watch: &dyn Watch) {
    match seen {
        Seen::Barrier { aligned } if flow == Flow::Barrier => {
            let call = c.barrier;
            watch.arrive(warp, call.id, call.count, !call.arrive_only, aligned);
        }
        Seen::WarpBarrier => watch.meet(warp),
        Seen::Fence { device } => watch.fence(warp, device),
        Seen::Object { waits } if flow != Flow::Fault => {
            let ended = if waits { c.pred(i.d) } else { u32::MAX };
            for lane in Bits(warp.lanes & ended) {
                let address = lane_address(c, i, lane, i.imm as i64);
                let offset = match i.aux & SPACE {
                    SHARED => address,
                    _ => address.wrapping_sub(c.shared as u64),
                };
                watch.object(
                    &WarpAt {
                        lanes: 1 << lane,
                        ..*warp
                    },
                    offset,
                    !waits,
                );
            }
        }
        _ => {}
    }
}

/// The addresses as the program has them; those of a function's variables count from the thread's local memory.
fn addresses(c: &Ctx, i: &Inst) -> [u64; 32] {
    let frame = if i.aux & (SPACE | FRAME) == LOCAL | FRAME {
        c.local_base
    } else {
        0
    };
    std::array::from_fn(|lane| lane_address(c, i, lane, i.imm as i64).wrapping_add(frame))
}

/// What the lanes store: each element's bits.
fn stored(c: &Ctx, i: &Inst, element: u64, wide: bool, count: usize) -> [[u64; 4]; 32] {
    let cut = |word: u64| {
        if element >= 8 {
            word
        } else {
            word & ((1 << (8 * element)) - 1)
        }
    };
    let slots = [i.d, i.b, i.c, i.e];
    std::array::from_fn(|lane| {
        std::array::from_fn(|n| match (n < count, wide) {
            (false, _) => 0,
            (true, true) => cut(c.lane::<u64>(slots[n], lane)),
            (true, false) => cut(u64::from(c.lane::<u32>(slots[n], lane))),
        })
    })
}

/// Tells of an access, by the memory that each lane means. `sizes`: bytes of a lane, and the alignment.
#[expect(clippy::too_many_arguments, reason = "one access has so many properties")]
fn tell(
    c: &Ctx,
    i: &Inst,
    warp: &WarpAt,
    watch: &dyn Watch,
    addresses: &[u64; 32],
    [bytes, align]: [u64; 2],
    access: Access,
    order: Order,
    reads: bool,
    words: Option<&[[u64; 4]; 32]>,
) {
    let mut found = *addresses;
    let mut lanes = [
        (Window::Global, 0u32),
        (Window::Shared, 0),
        (Window::Local, 0),
        (Window::System, 0),
    ];
    for lane in Bits(warp.lanes) {
        let Some((window, address)) = window(c, i, addresses[lane]) else {
            continue;
        };
        found[lane] = address;
        if let Some(entry) = lanes.iter_mut().find(|(known, _)| *known == window) {
            entry.1 |= 1 << lane;
        }
    }
    let values: Option<[u64; 32]> = words.map(|words| {
        std::array::from_fn(|lane| {
            let mix = |sum: u64, word: &u64| sum.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ word;
            words[lane].iter().fold(0, mix)
        })
    });
    for (window, lanes) in lanes.into_iter().filter(|(_, lanes)| *lanes != 0) {
        let unchanged =
            |lane: usize| words.is_some_and(|words| holds(c, window, found[lane], lane, bytes, &words[lane]));
        watch.touch(
            warp,
            &Touch {
                window,
                access,
                lanes,
                window_bytes: match window {
                    Window::Shared => c.shared_bytes,
                    Window::Local => c.local_stride,
                    Window::Global | Window::System => 0,
                },
                addresses: &found,
                bytes,
                align,
                order,
                reads,
                values: values.as_ref(),
                unchanged: &unchanged,
            },
        );
    }
}

/// Which memory an address of the instruction means, and where in it. None for a launch's parameters.
fn window(c: &Ctx, i: &Inst, address: u64) -> Option<(Window, u64)> {
    let launch = c.launch();
    let workspace = address.wrapping_sub(launch.workspace.as_ptr() as u64);
    let is_workspace = launch.cooperative && workspace < size_of_val(&*launch.workspace) as u64;
    match i.aux & SPACE {
        SHARED => Some((Window::Shared, address)),
        LOCAL => Some((Window::Local, address)),
        PARAM => None,
        GENERIC => {
            let shared = address.wrapping_sub(c.shared as u64);
            let local = address.wrapping_sub(c.local as u64);
            let params = address.wrapping_sub(launch.params.as_ptr() as u64);
            if shared < c.shared_bytes {
                Some((Window::Shared, shared))
            } else if local < c.local_stride * 32 {
                Some((Window::Local, local % c.local_stride.max(1)))
            } else if params < launch.params.len() as u64 {
                None
            } else if is_workspace {
                Some((Window::System, address))
            } else {
                Some((Window::Global, address))
            }
        }
        _ if is_workspace => Some((Window::System, address)),
        _ => Some((Window::Global, address)),
    }
}

/// Whether memory that is there holds these elements already.
fn holds(c: &Ctx, window: Window, address: u64, lane: usize, bytes: u64, words: &[u64; 4]) -> bool {
    let base = match window {
        Window::Shared if address.saturating_add(bytes) <= c.shared_bytes => c.shared as u64,
        Window::Local if address.saturating_add(bytes) <= c.local_stride => {
            c.local as u64 + lane as u64 * c.local_stride
        }
        Window::Global => 0,
        _ => return false,
    };
    let element = match bytes {
        1 | 2 | 4 | 8 => bytes,
        // Of a vector: two elements of 8 bytes, or the rest of smaller ones.
        _ if words[2..] == [0, 0] && bytes == 16 => 8,
        _ => return false,
    };
    (0..bytes / element).all(|n| {
        let at = base + address + n * element;
        let held = match element {
            1 => u64::from(c.peek::<u8>(at)),
            2 => u64::from(c.peek::<u16>(at)),
            4 => u64::from(c.peek::<u32>(at)),
            _ => c.peek::<u64>(at),
        };
        held == words[n as usize]
    })
}

/// `cp.async`: a read of device memory and a write to shared memory.
fn copy(c: &Ctx, i: &Inst, warp: &WarpAt, watch: &dyn Watch) {
    let size = 1u64 << (i.aux >> SIZE_SHIFT & 15);
    let mut from = [0; 32];
    let mut to = [0; 32];
    let mut reading = 0u32;
    for lane in Bits(warp.lanes) {
        to[lane] = async_copy::address(c, i.a, i.aux & NARROW_TARGET != 0, i.imm as i32, lane);
        from[lane] = async_copy::address(c, i.b, i.aux & NARROW != 0, (i.imm >> 32) as i32, lane);
        let ignored = i.e != NONE && c.pred_signed(i.e) >> lane & 1 != 0;
        // A copy of fewer bytes than its size is looked at where it reads none or all.
        let whole = i.c == NONE || u64::from(c.lane::<u32>(i.c, lane)) >= size;
        reading |= u32::from(whole && !ignored) << lane;
    }
    let reader = WarpAt {
        lanes: reading,
        ..*warp
    };
    if reading != 0 {
        tell(
            c,
            i,
            &reader,
            watch,
            &from,
            [size, size],
            Access::Read,
            Order::WEAK,
            true,
            None,
        );
    }
    let target = Inst { aux: SHARED, ..*i };
    tell(
        c,
        &target,
        warp,
        watch,
        &to,
        [size, size],
        Access::Write,
        Order::WEAK,
        false,
        None,
    );
}

/// `ldmatrix`, `stmatrix`: eight lanes name the rows of a matrix.
fn rows(c: &Ctx, i: &Inst, warp: &WarpAt, watch: &dyn Watch, store: bool) {
    let addresses: [u64; 32] = std::array::from_fn(|lane| lane_address(c, i, lane, i.imm as i64));
    let named = 8 * count(i);
    let lanes = if named >= 32 { u32::MAX } else { (1 << named) - 1 };
    let warp = WarpAt { lanes, ..*warp };
    let access = if store { Access::Write } else { Access::Read };
    tell(
        c,
        i,
        &warp,
        watch,
        &addresses,
        [16, 16],
        access,
        Order::WEAK,
        !store,
        None,
    );
}

/// `wmma.load`, `wmma.store`: element by element.
fn matrix(c: &Ctx, i: &Inst, warp: &WarpAt, watch: &dyn Watch, store: bool) {
    let transfer = c.launch().code().transfers[i.imm as usize];
    let (elements, bytes) = unit(&transfer.fragment);
    let (start, stride) = transfer.origin(c, i);
    let access = if store { Access::Write } else { Access::Read };
    for register in 0..transfer.fragment.registers {
        for element in 0..elements {
            let addresses: [u64; 32] = std::array::from_fn(|lane| {
                let place = transfer.fragment.place(lane as u32, register, element);
                start.wrapping_add(transfer.bytes(stride, place))
            });
            tell(
                c,
                i,
                warp,
                watch,
                &addresses,
                [bytes, bytes],
                access,
                Order::WEAK,
                !store,
                None,
            );
        }
    }
}
