//! A kernel that is checked: what the engine tells of it, and what is wrong with that.

use super::bits::Written;
use super::findings::{Finding, Kind, Owner, Site};
use super::memory::Memory;
use super::race::{Access as Touched, BlockClocks, Cell, Mark, Released, Who};
use super::{Checker, an_allocation, owner_of, where_is};
use divvy_ptx::{Access, Fault, Module, Touch, WarpAt, Watch, Window};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A launch that is checked.
pub struct Launched<'a> {
    checker: &'a Checker,
    module: &'a Module,
    kernel: &'a str,
    grid: [u32; 3],
    block: [u32; 3],
    state: Mutex<State>,
    /// Something was found that explains a fault.
    found: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Accesses before the grid's last barrier, or of other launches, are of other eras.
    era: u32,
    /// The blocks that run, by what they run in.
    blocks: HashMap<u64, Running>,
    /// Words that threads synchronise by: in shared memory, by the block's slot, and in device memory (slot 0).
    words: HashMap<(u64, u64), Released>,
}

/// A block that runs.
struct Running {
    block: u64,
    clocks: BlockClocks,
    shared: Written,
    cells: Vec<Cell>,
    /// Which bytes of its local memory each thread has written.
    local: HashMap<u32, Written>,
    /// By barrier: the lanes that came to it.
    arrived: HashMap<u32, Vec<Arrival>>,
}

#[derive(Clone, Copy)]
struct Arrival {
    at: WarpAt,
    /// Threads that the barrier awaits; 0 is every one of the block that has not ended.
    count: u32,
    waits: bool,
    aligned: bool,
    /// Lanes of the warp that touched memory meanwhile.
    went_on: u32,
}

impl Running {
    fn new(block: u64, warps: usize) -> Running {
        Running {
            block,
            clocks: BlockClocks::new(warps),
            shared: Written::default(),
            cells: Vec::new(),
            local: HashMap::new(),
            arrived: HashMap::new(),
        }
    }
}

impl State {
    /// The block at an instruction. What was in its slot before has ended.
    fn running(&mut self, at: &WarpAt, warps: usize) -> &mut Running {
        let running = self
            .blocks
            .entry(at.slot)
            .or_insert_with(|| Running::new(at.block, warps));
        if running.block != at.block {
            *running = Running::new(at.block, warps);
            self.words.retain(|(slot, _), _| *slot != at.slot);
        }
        running
    }
}

impl<'a> Launched<'a> {
    /// A launch of a kernel with this geometry.
    pub fn new(
        checker: &'a Checker,
        module: &'a Module,
        kernel: &'a str,
        grid: [u32; 3],
        block: [u32; 3],
    ) -> Launched<'a> {
        if checker.running.fetch_add(1, Ordering::AcqRel) == 0 {
            checker.memory().forget_cells();
        }
        let state = State {
            era: checker.next_era(),
            ..State::default()
        };
        Launched {
            checker,
            module,
            kernel,
            grid,
            block,
            state: Mutex::new(state),
            found: AtomicBool::new(false),
        }
    }

    /// The launch is over.
    pub fn ended(self, fault: Option<&Fault>) {
        if self.checker.memory().is_out_of_cells() {
            log_once();
        }
        self.checker.running.fetch_sub(1, Ordering::AcqRel);
        if let Some(fault) = fault {
            self.fault(fault);
        }
        self.checker.findings.flush();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    fn warps(&self) -> usize {
        self.threads().div_ceil(32) as usize
    }

    /// A thread at an instruction.
    fn site(&self, who: Who, instruction: u32) -> Site {
        let along = |n: u64, [x, y, _]: [u32; 3]| {
            let (x, y) = (u64::from(x.max(1)), u64::from(y.max(1)));
            [(n % x) as u32, (n / x % y) as u32, (n / x / y) as u32]
        };
        let place = self.module.place(instruction);
        Site {
            block: along(who.block, self.grid),
            thread: along(u64::from(who.thread), self.block),
            source: place
                .as_ref()
                .and_then(|place| place.source.as_ref())
                .map(|(file, line)| format!("{file}:{line}")),
            ptx_line: place.as_ref().map_or(0, |place| place.line),
            instruction: place.map_or_else(String::new, |place| place.text),
        }
    }

    /// Notes what lanes do wrong at one instruction; the first of them is named.
    fn report(&self, kind: Kind, at: &WarpAt, lanes: u32, message: impl FnOnce() -> (String, Option<Owner>)) {
        let who = Who {
            block: at.block,
            thread: at.warp * 32 + lanes.trailing_zeros(),
        };
        let finding = || {
            let (message, allocation) = message();
            Finding {
                kind,
                message,
                kernel: Some(self.kernel.to_owned()),
                site: Some(self.site(who, at.instruction)),
                other: None,
                allocation,
            }
        };
        let key = (Some(self.kernel), at.instruction, 0, None);
        self.checker
            .findings
            .add(finding, kind, key, u64::from(lanes.count_ones()));
    }

    fn race(&self, at: &WarpAt, lane: usize, what: String, is_write: bool, mark: Mark, other_writes: bool) {
        let who = Who {
            block: at.block,
            thread: at.warp * 32 + lane as u32,
        };
        let Some(other) = mark.who() else { return };
        let finding = || {
            let doing = |writes: bool| if writes { "write" } else { "read" };
            let between = match (who.block == other.block, who.thread / 32 == other.thread / 32) {
                (true, true) => "two threads of a warp, with no __syncwarp between",
                (true, false) => "two threads of a block, with no barrier between",
                (false, _) => "threads of two blocks, with nothing that orders them",
            };
            Finding {
                kind: Kind::Race,
                message: format!(
                    "{} of {what} races with a {} by another thread: {between}",
                    doing(is_write),
                    doing(other_writes)
                ),
                kernel: Some(self.kernel.to_owned()),
                site: Some(self.site(who, at.instruction)),
                other: Some(self.site(other, mark.instruction)),
                allocation: None,
            }
        };
        let key = (Some(self.kernel), at.instruction, mark.instruction + 1, None);
        self.checker.findings.add(finding, Kind::Race, key, 1);
    }

    /// What the engine ended the launch for, unless that was found already.
    fn fault(&self, fault: &Fault) {
        let (kind, line, what) = match fault {
            Fault::Deadlock { line, .. } => (
                Kind::Barrier,
                *line,
                "every thread of the block waits, and none can wake another".to_owned(),
            ),
            Fault::Trap { line, .. } => (Kind::Fault, *line, "the kernel executed a trap".to_owned()),
            Fault::Assert { line, .. } => (Kind::Fault, *line, "an assertion failed".to_owned()),
            Fault::IllegalAddress {
                line,
                access,
                address,
                ..
            } if !self.found.load(Ordering::Relaxed) => (
                Kind::OutOfBounds,
                *line,
                format!("{access} at {address:#x}, where nothing is"),
            ),
            Fault::MisalignedAddress {
                line,
                access,
                address,
                ..
            } if !self.found.load(Ordering::Relaxed) => (
                Kind::Misaligned,
                *line,
                format!("misaligned {access} at {address:#x}"),
            ),
            _ => return,
        };
        // Where a thread waits at a barrier, that one is named.
        let waiting = self.state().blocks.values().find_map(|running| {
            let mut arrivals = running.arrived.values().flatten();
            arrivals.find(|arrival| arrival.waits).map(|arrival| arrival.at)
        });
        if let Some(at) = waiting.filter(|_| kind == Kind::Barrier) {
            let message = || (format!("the barrier is never complete: {what}"), None);
            return self.report(kind, &at, at.lanes, message);
        }
        let finding = || {
            let place = self.module.place_at_line(line);
            Finding {
                kind,
                message: what,
                kernel: Some(self.kernel.to_owned()),
                site: Some(Site {
                    source: place
                        .as_ref()
                        .and_then(|place| place.source.as_ref())
                        .map(|(file, line)| format!("{file}:{line}")),
                    ptx_line: line,
                    instruction: place.map_or_else(String::new, |place| place.text),
                    ..Site::default()
                }),
                other: None,
                allocation: None,
            }
        };
        self.checker
            .findings
            .add(finding, kind, (Some(self.kernel), line, 0, Some(1)), 1);
    }

    /// Lanes of an access whose address is misaligned or outside, which are noted. The others are left.
    fn bounds(&self, at: &WarpAt, touch: &Touch<'_>, memory: &mut Memory) -> u32 {
        let misaligned = lanes_where(touch.lanes, |lane| touch.addresses[lane] & (touch.align - 1) != 0);
        if misaligned != 0 {
            let address = touch.addresses[misaligned.trailing_zeros() as usize];
            self.report(Kind::Misaligned, at, misaligned, || {
                let message = format!(
                    "{} of {} bytes at {}, which is not a multiple of {}",
                    touch.access,
                    touch.bytes,
                    place(touch.window, address),
                    touch.align
                );
                (message, None)
            });
        }
        let lanes = touch.lanes & !misaligned;
        let outside = match touch.window {
            Window::System => return 0,
            Window::Shared | Window::Local => lanes_where(lanes, |lane| {
                touch.addresses[lane].saturating_add(touch.bytes) > touch.window_bytes
            }),
            Window::Global => lanes_where(lanes, |lane| {
                let address = touch.addresses[lane];
                memory
                    .find(address)
                    .is_none_or(|found| address + touch.bytes > found.base + found.bytes)
            }),
        };
        if outside != 0 {
            self.outside(at, touch, outside, memory);
        }
        if outside | misaligned != 0 {
            self.found.store(true, Ordering::Relaxed);
        }
        lanes & !outside
    }

    fn outside(&self, at: &WarpAt, touch: &Touch<'_>, lanes: u32, memory: &mut Memory) {
        let address = touch.addresses[lanes.trailing_zeros() as usize];
        let begin = format!(
            "{} of {} bytes at {}",
            touch.access,
            touch.bytes,
            place(touch.window, address)
        );
        let past = |bytes: u64, of: &str| match address.checked_sub(bytes) {
            Some(by) => format!("{begin}: {by} bytes past the end of {of}"),
            None => format!(
                "{begin}: {} bytes past the end of {of}",
                address + touch.bytes - bytes
            ),
        };
        let (kind, message, owner) = match touch.window {
            Window::Shared => {
                let of = format!("the block's {} bytes of shared memory", touch.window_bytes);
                (Kind::OutOfBounds, past(touch.window_bytes, &of), None)
            }
            Window::Local => {
                let of = format!("the thread's {} bytes of local memory", touch.window_bytes);
                (Kind::OutOfBounds, past(touch.window_bytes, &of), None)
            }
            _ => match memory.find(address) {
                Some(found) => {
                    let owner = found.owner();
                    let by = address + touch.bytes - (found.base + found.bytes);
                    let message = format!(
                        "{begin}: its last {by} bytes are past the end of {}",
                        an_allocation(&owner)
                    );
                    (Kind::OutOfBounds, message, Some(owner))
                }
                None => {
                    let outside = memory.outside(address);
                    let kind = match outside {
                        super::Outside::Freed(_) => Kind::UseAfterFree,
                        _ => Kind::OutOfBounds,
                    };
                    (kind, format!("{begin}{}", where_is(&outside)), owner_of(&outside))
                }
            },
        };
        self.report(kind, at, lanes, || (message, owner));
    }

    /// Reads of bytes that nothing has written, and what is written now.
    fn written(
        &self,
        at: &WarpAt,
        touch: &Touch<'_>,
        lanes: u32,
        running: &mut Running,
        memory: &mut Memory,
    ) {
        let mut unwritten = 0u32;
        let mut first = None;
        for lane in each(lanes) {
            let (address, bytes) = (touch.addresses[lane], touch.bytes);
            let range = address..address + bytes;
            let missing = match touch.window {
                Window::Shared => &mut running.shared,
                Window::Local => running
                    .local
                    .entry(at.warp * 32 + lane as u32)
                    .or_insert_with(|| Written::nothing_of(touch.window_bytes)),
                _ => {
                    let Some(found) = memory.find(address) else {
                        continue;
                    };
                    if touch.reads && found.first_unwritten(address, bytes).is_some() {
                        unwritten |= 1 << lane;
                        first.get_or_insert_with(|| found.owner());
                    }
                    if touch.access != Access::Read {
                        found.write(address, bytes);
                    }
                    continue;
                }
            };
            if touch.reads && missing.first_unwritten(range.clone()).is_some() {
                unwritten |= 1 << lane;
            }
            if touch.access != Access::Read {
                missing.set(range);
            }
        }
        if unwritten != 0 {
            let address = touch.addresses[unwritten.trailing_zeros() as usize];
            self.report(Kind::Uninitialized, at, unwritten, || {
                let of = match (&first, touch.window) {
                    (Some(owner), _) => format!(
                        ", {} bytes into {}",
                        address - owner.address,
                        an_allocation(owner)
                    ),
                    (None, Window::Shared) => " of the block's shared memory".into(),
                    (None, _) => " of the thread's local memory".into(),
                };
                let message = format!(
                    "{} of {} bytes at {}{of}, which nothing has written",
                    touch.access,
                    touch.bytes,
                    place(touch.window, address)
                );
                (message, first)
            });
        }
    }

    /// Accesses that race with earlier ones.
    fn races(
        &self,
        at: &WarpAt,
        touch: &Touch<'_>,
        lanes: u32,
        era: u32,
        running: &mut Running,
        memory: &mut Memory,
    ) {
        let writes = touch.access != Access::Read;
        let strong = touch.order.strong || touch.access == Access::Atomic;
        for lane in each(lanes) {
            let address = touch.addresses[lane];
            // Lanes of one store that write the same to the same place do no harm.
            let twin = touch.values.filter(|_| writes).and_then(|values| {
                let twin =
                    each(lanes & ((1 << lane) - 1)).find(|other| touch.addresses[*other] == address)?;
                Some(values[twin] == values[lane])
            });
            if twin == Some(true) {
                continue;
            }
            let end = address + touch.bytes;
            for word in address / 4..end.div_ceil(4) {
                let low = address.saturating_sub(4 * word).min(4);
                let high = (end - 4 * word).min(4);
                let bytes = ((1u32 << high) - (1 << low)) as u8;
                let cell = match touch.window {
                    Window::Shared => {
                        let cells = &mut running.cells;
                        if cells.is_empty() {
                            *cells = vec![Cell::default(); touch.window_bytes.div_ceil(4) as usize];
                        }
                        cells.get_mut(word as usize)
                    }
                    _ => memory.cell((4 * word).max(address)),
                };
                let Some(cell) = cell else { continue };
                let access = Touched {
                    who: Who {
                        block: at.block,
                        thread: at.warp * 32 + lane as u32,
                    },
                    instruction: at.instruction,
                    bytes,
                    strong,
                    compares: touch.order.compares,
                    writes,
                };
                let before = cell.write;
                let Some(mark) = cell.touch(era, &running.clocks, access) else {
                    continue;
                };
                // A store of what is there already changes nothing for others.
                if writes && twin.is_none() && touch.access == Access::Write && (touch.unchanged)(lane) {
                    cell.write = before;
                    continue;
                }
                let other_writes = mark == before;
                let what = match touch.window {
                    Window::Shared => format!("{} bytes at {}", touch.bytes, place(touch.window, address)),
                    _ => {
                        let owner = memory.find(address).map(|found| found.owner());
                        let of = owner.map_or_else(String::new, |owner| {
                            format!(
                                ", {} bytes into {}",
                                address - owner.address,
                                an_allocation(&owner)
                            )
                        });
                        format!("{} bytes at {}{of}", touch.bytes, place(touch.window, address))
                    }
                };
                self.race(at, lane, what, writes, mark, other_writes);
                break;
            }
        }
    }
}

fn log_once() {
    divvy_device::log::once(
        "check-cells",
        "check: a kernel touched more than 32 MiB: races in the rest of its memory are not looked for",
    );
}

fn each(lanes: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| lanes >> lane & 1 != 0)
}

fn lanes_where(lanes: u32, is_so: impl FnMut(usize) -> bool) -> u32 {
    let mut is_so = is_so;
    each(lanes)
        .filter(|lane| is_so(*lane))
        .fold(0, |found, lane| found | 1 << lane)
}

/// An address as people read it.
fn place(window: Window, address: u64) -> String {
    match window {
        Window::Shared => format!("shared+{address}"),
        Window::Local => format!("local+{address}"),
        Window::Global | Window::System => format!("{address:#x}"),
    }
}

impl Watch for Launched<'_> {
    fn touch(&self, at: &WarpAt, touch: &Touch<'_>) {
        let lanes = {
            let mut memory = self.checker.memory();
            self.bounds(at, touch, &mut memory)
        };
        let mut state = self.state();
        let era = state.era;
        let warps = self.warps();
        let running = state.running(at, warps);
        for arrival in running.arrived.values_mut().flatten() {
            if arrival.at.warp == at.warp && arrival.waits {
                arrival.went_on |= at.lanes;
            }
        }
        if lanes != 0 {
            let mut memory = self.checker.memory();
            if touch.window == Window::Shared && running.shared.is_empty() {
                running.shared = Written::nothing_of(touch.window_bytes);
            }
            self.written(at, touch, lanes, running, &mut memory);
            if touch.window != Window::Local {
                self.races(at, touch, lanes, era, running, &mut memory);
            }
        }
        // Words that threads wait for order what they did before.
        let strong = touch.order.strong || touch.access == Access::Atomic;
        if !strong || touch.window == Window::Local {
            return;
        }
        let state = &mut *state;
        let Some(running) = state.blocks.get_mut(&at.slot) else {
            return;
        };
        let slot = if touch.window == Window::Shared {
            at.slot
        } else {
            0
        };
        let releases =
            touch.access != Access::Read && (touch.order.release || running.clocks.has_fenced(at.warp));
        for lane in each(touch.lanes) {
            let key = (slot, touch.addresses[lane]);
            if touch.access != Access::Write
                && let Some(word) = state.words.get(&key)
            {
                running.clocks.acquire(at.block, at.warp, word);
            }
            if releases {
                let word = state.words.entry(key).or_default();
                running
                    .clocks
                    .release(at.block, at.warp, touch.order.release, word);
            }
        }
    }

    fn fence(&self, at: &WarpAt, _device: bool) {
        let warps = self.warps();
        self.state().running(at, warps).clocks.fence(at.warp);
    }

    fn arrive(&self, at: &WarpAt, id: u32, count: u32, waits: bool, aligned: bool) {
        let threads = self.threads();
        if !count.is_multiple_of(32) || count > threads.next_multiple_of(32) {
            self.report(Kind::Barrier, at, at.lanes, || {
                let message = match count % 32 {
                    0 => format!("barrier {id} awaits {count} threads, and the block has {threads}"),
                    _ => format!(
                        "barrier {id} awaits {count} threads, which is not a multiple of the warp's 32"
                    ),
                };
                (message, None)
            });
        }
        let warps = self.warps();
        let mut state = self.state();
        let arrival = Arrival {
            at: *at,
            count,
            waits,
            aligned,
            went_on: 0,
        };
        state
            .running(at, warps)
            .arrived
            .entry(id)
            .or_default()
            .push(arrival);
    }

    fn open(&self, slot: u64, id: u32) {
        let mut state = self.state();
        let Some(running) = state.blocks.get_mut(&slot) else {
            return;
        };
        let arrivals = running.arrived.remove(&id).unwrap_or_default();
        let mut warps: Vec<(u32, bool)> = Vec::new();
        for arrival in &arrivals {
            match warps.iter_mut().find(|(warp, _)| *warp == arrival.at.warp) {
                Some((_, waits)) => *waits |= arrival.waits,
                None => warps.push((arrival.at.warp, arrival.waits)),
            }
        }
        let came: Vec<u32> = warps.iter().map(|(warp, _)| *warp).collect();
        // Where every thread is awaited, those that did not come have ended: what they did is over.
        if arrivals.iter().all(|arrival| arrival.count == 0) {
            let all = 0..running.clocks.warps();
            warps.extend(all.filter(|warp| !came.contains(warp)).map(|warp| (warp, false)));
        }
        running.clocks.barrier(&warps);
        drop(state);
        for warp in came {
            self.divergence(
                id,
                warp,
                arrivals.iter().filter(|arrival| arrival.at.warp == warp),
            );
        }
    }

    fn open_grid(&self) {
        self.state().era = self.checker.next_era();
    }

    fn meet(&self, at: &WarpAt) {
        let warps = self.warps();
        self.state().running(at, warps).clocks.meet(at.warp);
    }

    fn object(&self, at: &WarpAt, offset: u64, releases: bool) {
        let warps = self.warps();
        let mut state = self.state();
        state.running(at, warps);
        let state = &mut *state;
        let Some(running) = state.blocks.get_mut(&at.slot) else {
            return;
        };
        let word = state.words.entry((at.slot, offset)).or_default();
        if releases {
            running.clocks.release(at.block, at.warp, true, word);
        } else {
            running.clocks.acquire(at.block, at.warp, word);
        }
    }
}

impl Launched<'_> {
    /// A warp passes a barrier that not all of its threads came to, or not together.
    fn divergence<'b>(&self, id: u32, warp: u32, arrivals: impl Iterator<Item = &'b Arrival>) {
        let arrivals: Vec<&Arrival> = arrivals.filter(|arrival| arrival.aligned).collect();
        let Some(first) = arrivals.first() else { return };
        let threads = self.threads() - warp * 32;
        let all = if threads >= 32 {
            u32::MAX
        } else {
            (1 << threads) - 1
        };
        let came = arrivals.iter().fold(0, |lanes, arrival| lanes | arrival.at.lanes);
        let went_on = arrivals.iter().fold(0, |lanes, arrival| lanes | arrival.went_on) & !came;
        let elsewhere = arrivals
            .iter()
            .find(|arrival| arrival.at.instruction != first.at.instruction);
        let (count, of) = (first.at.lanes.count_ones(), all.count_ones());
        if let Some(other) = elsewhere {
            self.report(Kind::Barrier, &first.at, first.at.lanes, || {
                let place = self.site(
                    Who {
                        block: other.at.block,
                        thread: warp * 32 + other.at.lanes.trailing_zeros(),
                    },
                    other.at.instruction,
                );
                let line = place.source.unwrap_or_else(|| format!("PTX line {}", place.ptx_line));
                let message = format!(
                    "barrier {id} is reached by {count} of the warp's {of} threads, while others of the warp are at \
                     the barrier at {line}"
                );
                (message, None)
            });
        } else if went_on != 0 {
            self.report(Kind::Barrier, &first.at, came, || {
                let message = format!(
                    "barrier {id} is reached by {} of the warp's {of} threads, and {} others went on without it",
                    came.count_ones(),
                    went_on.count_ones()
                );
                (message, None)
            });
        }
    }
}
