//! A kernel that is checked: what the engine tells of it, and what is wrong with that.

use super::bits::Written;
use super::findings::Kind;
use super::identity::Identity;
use super::memory::Memory;
use super::race::{Access as Touched, Cell, Now, Who};
use super::state::{Running, State};
use super::{Checker, an_allocation, owner_of, where_is};
use divvy_ptx::{Access, Fault, Launch, Program, Touch, WarpAt, Watch, Window};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Launches beyond which what others did is forgotten.
const MOST_LAUNCHES: usize = 4096;

/// A launch that is checked.
pub struct Launched<'a> {
    pub checker: &'a Checker,
    pub identity: Arc<Identity>,
    /// Launches that were over or running when this one began, and whether this one comes behind them.
    known: HashMap<u32, bool>,
    state: Mutex<State>,
    /// Something was found that explains a fault.
    pub found: AtomicBool,
}

impl<'a> Launched<'a> {
    /// A launch of a kernel with this geometry, which has this number.
    pub fn new(checker: &'a Checker, program: &Program, launch: &Launch<'_>, number: u32) -> Launched<'a> {
        let submitted = checker.strands.begin(number);
        let runs_alone = checker.running.fetch_add(1, Ordering::AcqRel) == 0;
        let identity = Arc::new(Identity::new(program, launch, submitted));
        let mut launches = checker.launches();
        let is_behind = |other: &Identity| {
            let (stream, number) = (other.submitted.stream(), other.submitted.number);
            number == 0 || identity.submitted.is_after(stream, number)
        };
        let mut known: HashMap<u32, bool> = launches
            .iter()
            .map(|(number, other)| (*number, is_behind(other)))
            .collect();
        // Where this one comes behind all others, or their order is not known, what they did is over.
        let is_over = known.values().all(|is_behind| *is_behind) || checker.strands.is_unknown();
        if runs_alone && (is_over || number == 0 || known.len() > MOST_LAUNCHES) {
            checker.memory().forget_cells();
            launches.clear();
            known.clear();
        }
        if number != 0 {
            launches.insert(number, Arc::clone(&identity));
        }
        drop(launches);
        let state = State {
            era: checker.next_era(),
            ..State::default()
        };
        Launched {
            checker,
            identity,
            known,
            state: Mutex::new(state),
            found: AtomicBool::new(false),
        }
    }

    /// The launch is over.
    pub fn ended(self, fault: Option<&Fault>) {
        if self.checker.memory().is_out_of_cells() {
            self.checker.findings.unchecked(BEYOND);
        }
        self.checker.running.fetch_sub(1, Ordering::AcqRel);
        if let Some(fault) = fault {
            self.fault(fault);
        }
        self.checker.findings.flush();
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn warps(&self) -> usize {
        self.identity.threads().div_ceil(32) as usize
    }

    /// Whether nothing orders another launch and this one. One that began later runs beside it.
    fn is_beside(&self, other: u32) -> bool {
        other != self.identity.submitted.number
            && !self.checker.strands.is_unknown()
            && !self.known.get(&other).copied().unwrap_or(false)
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
                let now = Now {
                    era,
                    launch: self.identity.submitted.number,
                    is_beside: &|other| self.is_beside(other),
                };
                let Some(raced) = cell.touch(&now, &running.clocks, access) else {
                    continue;
                };
                // A store of what is there already changes nothing for others.
                if writes && twin.is_none() && touch.access == Access::Write && (touch.unchanged)(lane) {
                    cell.write = before;
                    continue;
                }
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
                self.race(at, lane, &what, writes, raced);
                break;
            }
        }
    }
}

/// What a report without a finding would otherwise hide.
const BEYOND: &str = "a kernel touched more than 32 MiB: races in the rest of its memory were not looked for";

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
        self.arrived(at, id, count, waits, aligned);
    }

    fn open(&self, slot: u64, id: u32) {
        self.opened(slot, id);
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
