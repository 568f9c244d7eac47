//! Loads and stores. Addresses are resolved to host addresses lane by lane, checked against the ranges that the space
//! grants, and only then touched.

use super::ctx::{CHUNK, CHUNKS, Ctx, Lane, SITES, Stop};
use super::survey::{extent, halves32, pattern32, pattern64};
use crate::error::Access;
use crate::inst::{Flow, Inst, vectorised};
use std::ops::Range;

/// State space of an access: the low bits of `Inst::aux`.
pub(crate) const GLOBAL: u32 = 0;
pub(crate) const GENERIC: u32 = 1;
pub(crate) const SHARED: u32 = 2;
pub(crate) const LOCAL: u32 = 3;
/// The launch's parameter bytes, at host addresses.
pub(crate) const PARAM: u32 = 4;
pub(crate) const SPACE: u32 = 7;
/// The address register is 32 bits wide.
pub(crate) const NARROW: u32 = 8;
/// The offset counts from the current function's local variables.
pub(crate) const FRAME: u32 = 16;
/// Of [`element_address`]: the index is a signed number of 32 bits.
pub(crate) const SIGNED: u32 = 64;
/// Volatile or with memory semantics: a kernel that does many of these and nothing else is waiting for another thread.
pub(crate) const POLL: u32 = 32;
/// Vector elements: the bits of `aux` from here, four of them.
pub(crate) const COUNT_SHIFT: u32 = 8;
/// Where the instruction's last range is remembered: the bits of `aux` from here.
pub(crate) const SITE_SHIFT: u32 = 16;
/// Ranges that a worker remembers besides, for all instructions.
const KNOWN: usize = 32;

/// Polls without a step forward after which a warp lets others run.
const MAX_POLLS: u32 = 24;

/// A type in memory that a register of type R takes.
pub(crate) trait Memory {
    /// In memory.
    type M: Copy + Default + 'static;
    /// In a register.
    type R: Lane;
    fn load(m: Self::M) -> Self::R;
    fn store(r: Self::R) -> Self::M;
}

macro_rules! memory {
    ($($name:ident: $m:ty, $r:ty, $load:expr;)*) => {
        $(pub(crate) struct $name;
        impl Memory for $name {
            type M = $m;
            type R = $r;
            #[inline(always)]
            fn load(m: $m) -> $r { let f: fn($m) -> $r = $load; f(m) }
            #[inline(always)]
            fn store(r: $r) -> $m { r as $m }
        })*
    };
}
memory! {
    M8: u8, u32, u32::from;
    M8S: i8, u32, |m| i32::from(m) as u32;
    M16: u16, u32, u32::from;
    M16S: i16, u32, |m| i32::from(m) as u32;
    M32: u32, u32, |m| m;
    M64: u64, u64, |m| m;
    M8To64: u8, u64, u64::from;
    M8STo64: i8, u64, |m| i64::from(m) as u64;
    M16To64: u16, u64, u64::from;
    M16STo64: i16, u64, |m| i64::from(m) as u64;
    M32To64: u32, u64, u64::from;
    M32STo64: i32, u64, |m| i64::from(m) as u64;
}

/// How the lanes' addresses lie.
enum Shape {
    /// One after the other from the first.
    Run(u64),
    /// All the same.
    Same(u64),
    Spread,
}

/// The sum of a 32-bit address register and the instruction's offset: 32 bits wide too, so it wraps.
#[inline(always)]
fn narrow_sum(a: u32, i: &Inst) -> u64 {
    u64::from(a.wrapping_add(i.imm as u32))
}

/// Host addresses of all lanes' accesses of `width` bytes at `i.a + i.imm`, checked for the active ones.
#[inline(always)]
fn addresses<const FAST: bool>(c: &mut Ctx, i: &Inst, width: u64, access: Access) -> Result<[u64; 32], Stop> {
    let space = i.aux & SPACE;
    let window = match space {
        SHARED => c.shared as u64,
        LOCAL => (c.local as u64).wrapping_add(if i.aux & FRAME != 0 { c.local_base } else { 0 }),
        _ => 0,
    };
    let mut at = [0u64; 32];
    if i.aux & NARROW != 0 {
        let a = c.lanes::<u32>(i.a);
        for n in 0..32 {
            at[n] = narrow_sum(a[n], i).wrapping_add(window);
        }
    } else {
        let a = c.lanes::<u64>(i.a);
        let offset = i.imm.wrapping_add(window);
        for n in 0..32 {
            at[n] = a[n].wrapping_add(offset);
        }
    }
    if space == LOCAL {
        // Addresses beyond a lane's local memory would fall into its neighbour's.
        let start = c.local as u64;
        for n in c.active() {
            let inside = at[n].wrapping_sub(start);
            if inside.saturating_add(width) > c.local_stride {
                return Err(Stop::Illegal {
                    address: inside,
                    access,
                });
            }
        }
        for (n, address) in at.iter_mut().enumerate() {
            *address = address.wrapping_add(n as u64 * c.local_stride);
        }
    }
    let (mut low, mut high, mut bits) = (i64::MAX, i64::MIN, 0u64);
    if c.full() {
        let all = extent::<FAST>(&at);
        (low, high, bits) = (all.low, all.high, all.bits);
    } else {
        for n in c.active() {
            low = low.min(at[n] as i64);
            high = high.max(at[n] as i64);
            bits |= at[n];
        }
    }
    if bits & (width - 1) != 0 {
        let lane = c.active().find(|n| at[*n] & (width - 1) != 0).unwrap_or(0);
        return Err(Stop::Misaligned {
            address: at[lane],
            access,
        });
    }
    let range = match space {
        SHARED => {
            let base = c.shared as u64;
            let range = base..base + c.shared_bytes;
            if !inside(&range, low, high, width) {
                let lane = c
                    .active()
                    .find(|n| !inside(&range, at[*n] as i64, at[*n] as i64, width));
                return Err(Stop::Illegal {
                    address: at[lane.unwrap_or(0)].wrapping_sub(base),
                    access,
                });
            }
            return Ok(at);
        }
        LOCAL => return Ok(at),
        GLOBAL => &c.ranges[0][site(i)],
        _ => &c.ranges[1][site(i)],
    };
    if !inside(range, low, high, width) {
        check_each(c, i, &at, [low, high], width, access)?;
    }
    Ok(at)
}

/// Where an instruction's last range is remembered.
#[inline(always)]
fn site(i: &Inst) -> usize {
    (i.aux >> SITE_SHIFT) as usize & (SITES - 1)
}

/// Elements of a vector access.
#[inline(always)]
fn count(i: &Inst) -> u32 {
    i.aux >> COUNT_SHIFT & 15
}

/// Whether accesses of `width` bytes at `low ..= high` lie in `range`. Device addresses are below 2^63.
#[inline(always)]
fn inside(range: &Range<u64>, low: i64, high: i64, width: u64) -> bool {
    low >= range.start as i64
        && high <= (range.end as i64).wrapping_sub(width as i64)
        && range.end > range.start
}

/// The slow way, where the instruction's last range is not the one: asks what is known, then the address space, lane
/// by lane where the lanes' addresses are not in one range.
#[cold]
#[inline(never)]
fn check_each(
    c: &mut Ctx,
    i: &Inst,
    at: &[u64; 32],
    [low, high]: [i64; 2],
    width: u64,
    access: Access,
) -> Result<(), Stop> {
    let table = usize::from(i.aux & SPACE != GLOBAL);
    for lane in c.active() {
        resolve(c, i, at[lane], width, access)?;
        if inside(&c.ranges[table][site(i)], low, high, width) {
            return Ok(());
        }
    }
    Ok(())
}

/// Makes the range that holds `address` the instruction's last one; false where there is none.
#[cold]
#[inline(never)]
fn remember(c: &mut Ctx, i: &Inst, address: u64) -> bool {
    let space = i.aux & SPACE;
    let Some((range, of_device)) = find(c, space, address) else {
        return false;
    };
    if of_device {
        // Memory that a launch was shown stays valid until its end: what is known need not be asked for again.
        if !c.known.iter().any(|known| known.start == range.start) {
            if c.known.len() == KNOWN {
                c.known.remove(0);
            }
            c.known.push(range.clone());
        }
    } else {
        c.knows_windows = true;
        // Compiled code may not go on to the next warp with them.
        c.following.end = u32::MAX;
    }
    c.ranges[usize::from(space != GLOBAL)][site(i)] = range;
    true
}

/// Checks one address of a global, generic or parameter access.
pub(crate) fn resolve(c: &mut Ctx, i: &Inst, address: u64, width: u64, access: Access) -> Result<(), Stop> {
    let space = i.aux & SPACE;
    let site = site(i);
    let table = usize::from(space != GLOBAL);
    let signed = address as i64;
    if inside(&c.ranges[table][site], signed, signed, width) {
        return Ok(());
    }
    if remember(c, i, address) && inside(&c.ranges[table][site], signed, signed, width) {
        return Ok(());
    }
    Err(Stop::Illegal { address, access })
}

/// The range that holds `address` in `space`, and whether it is device memory: the same for every block.
fn find(c: &Ctx, space: u32, address: u64) -> Option<(Range<u64>, bool)> {
    let holds = |start: u64, bytes: u64| {
        (address >= start && address - start < bytes).then(|| (start..start + bytes, false))
    };
    let launch = c.launch();
    let params = || holds(launch.params.as_ptr() as u64, launch.params.len() as u64);
    let workspace = || {
        let bytes = if launch.cooperative {
            size_of_val(&*launch.workspace)
        } else {
            0
        };
        holds(launch.workspace.as_ptr() as u64, bytes as u64)
    };
    let device = || {
        let known = c.known.iter().find(|range| range.contains(&address)).cloned();
        let range = known.or_else(|| launch.memory.range(address))?;
        Some((range, true))
    };
    match space {
        PARAM => params(),
        GENERIC => holds(c.shared as u64, c.shared_bytes)
            .or_else(|| holds(c.local as u64, c.local_stride * 32))
            .or_else(params)
            .or_else(workspace)
            .or_else(device),
        _ => workspace().or_else(device),
    }
}

/// Checked bytes at a generic or global address, for `vprintf` and assertions.
pub(crate) fn byte(c: &Ctx, address: u64) -> Option<u8> {
    let (range, _) = find(c, GENERIC, address)?;
    if !range.contains(&address) {
        return None;
    }
    // SAFETY: the address space (or the engine, for shared and local memory) says that the byte is readable for the
    // length of the launch. Device memory may change under us: a byte cannot tear.
    Some(unsafe { (address as *const u8).read_volatile() })
}

impl Ctx {
    /// Reads a checked address.
    #[inline(always)]
    pub(super) fn peek<M: Copy>(&self, address: u64) -> M {
        // SAFETY: `addresses` found it aligned and inside a range that is readable for the length of the launch (or
        // inside the block's shared or local memory). Other threads may write device memory meanwhile, as on a GPU:
        // the value is then one or the other, because an aligned access of at most 8 bytes does not tear.
        unsafe { (address as *const M).read_volatile() }
    }

    /// Writes a checked address.
    #[inline(always)]
    pub(super) fn poke<M: Copy>(&mut self, address: u64, value: M) {
        // SAFETY: as in `peek`.
        unsafe { (address as *mut M).write_volatile(value) }
    }

    /// Reads a checked address in shared memory, which no other thread touches meanwhile.
    #[inline(always)]
    fn peek_plain<M: Copy>(&self, address: u64) -> M {
        // SAFETY: as in `peek`.
        unsafe { (address as *const M).read() }
    }

    /// Reads 32 consecutive checked elements.
    #[inline(always)]
    fn peek_all<M: Copy>(&self, address: u64) -> [M; 32] {
        // SAFETY: as in `peek`, for each element; alignment is the element's.
        unsafe { (address as *const [M; 32]).read() }
    }

    #[inline(always)]
    fn poke_chunk<M: Copy>(&mut self, address: u64, value: [M; CHUNK]) {
        // SAFETY: as in `peek_all`.
        unsafe { (address as *mut [M; CHUNK]).write(value) }
    }
}

pub(crate) fn failed(c: &mut Ctx, stop: Stop) -> Flow {
    c.fault = Some(stop);
    Flow::Fault
}

/// Counts a poll; true when others should run.
pub(crate) fn polled(c: &mut Ctx) -> bool {
    c.polls += 1;
    c.polls >= MAX_POLLS
}

/// Full warps whose addresses are consecutive, or all the same, in a range that is known already: most accesses.
#[inline(always)]
fn quick<const FAST: bool>(c: &mut Ctx, i: &Inst, width: u64) -> Shape {
    let space = i.aux & SPACE;
    if !c.full() || space == LOCAL {
        return Shape::Spread;
    }
    let (first, pattern) = if i.aux & NARROW != 0 {
        let a = c.lanes_ref::<u32>(i.a);
        (narrow_sum(a[0], i), pattern32::<FAST>(a, width as u32))
    } else {
        let a = c.lanes_ref::<u64>(i.a);
        (a[0].wrapping_add(i.imm), pattern64::<FAST>(a, width))
    };
    let extent = if pattern.run {
        32 * width
    } else if pattern.same {
        width
    } else {
        return Shape::Spread;
    };
    let (at, start, end) = if space == SHARED {
        let base = c.shared as u64;
        (first.wrapping_add(base), base, base + c.shared_bytes)
    } else {
        let range = &c.ranges[usize::from(space != GLOBAL)][site(i)];
        (first, range.start, range.end)
    };
    // An address below the start wraps to far beyond the end.
    let fits = |start: u64, end: u64| {
        let room = (end - start).checked_sub(extent);
        room.is_some_and(|room| at.wrapping_sub(start) <= room)
    };
    if at & (width - 1) != 0 {
        return Shape::Spread;
    }
    if !fits(start, end) {
        if space == SHARED || !remember(c, i, at) {
            return Shape::Spread;
        }
        let range = &c.ranges[usize::from(space != GLOBAL)][site(i)];
        if !fits(range.start, range.end) {
            return Shape::Spread;
        }
    }
    if pattern.run {
        Shape::Run(at)
    } else {
        Shape::Same(at)
    }
}

/// A full warp's load from shared memory in which each half warp is a run or one address. False if it is not that.
#[inline(always)]
fn load_halves<T: Memory, const FAST: bool>(c: &mut Ctx, i: &Inst, element: u64) -> bool {
    if !c.full() || i.aux & (SPACE | NARROW) != SHARED | NARROW {
        return false;
    }
    let a = c.lanes_ref::<u32>(i.a);
    let firsts = [a[0], a[16]].map(|first| narrow_sum(first, i));
    let patterns = halves32::<FAST>(a, element as u32);
    for (first, pattern) in firsts.into_iter().zip(patterns) {
        let extent = if pattern.run { 16 * element } else { element };
        let fits = c
            .shared_bytes
            .checked_sub(extent)
            .is_some_and(|room| first <= room);
        if !(pattern.run || pattern.same) || !fits || first & (element - 1) != 0 {
            return false;
        }
    }
    for (half, (first, pattern)) in firsts.into_iter().zip(patterns).enumerate() {
        let at = c.shared as u64 + first;
        for k in 0..2 {
            let mut part = [T::R::default(); CHUNK];
            if pattern.run {
                for (n, lane) in part.iter_mut().enumerate() {
                    *lane = T::load(c.peek_plain::<T::M>(at + (k * CHUNK + n) as u64 * element));
                }
            } else {
                part = [T::load(c.peek::<T::M>(at)); CHUNK];
            }
            c.put_all(i.d, 2 * half + k, part);
        }
    }
    true
}

#[inline(always)]
fn run_load<T: Memory, const FAST: bool>(c: &mut Ctx, i: &Inst) -> Flow {
    let count = u64::from(count(i));
    let element = size_of::<T::M>() as u64;
    let fields = [i.d, i.b, i.c, i.e];
    match quick::<FAST>(c, i, element * count) {
        Shape::Run(first) if count == 1 => {
            let values = c.peek_all::<T::M>(first);
            for k in 0..CHUNKS {
                let mut part = [T::R::default(); CHUNK];
                for n in 0..CHUNK {
                    part[n] = T::load(values[k * CHUNK + n]);
                }
                c.put_all(i.d, k, part);
            }
        }
        Shape::Same(at) => {
            for n in 0..count {
                let value = T::load(c.peek::<T::M>(at + n * element));
                for k in 0..CHUNKS {
                    c.put_all(fields[n as usize], k, [value; CHUNK]);
                }
            }
        }
        Shape::Run(first) => {
            for lane in 0..32 {
                for n in 0..count {
                    let at = first + (lane as u64 * count + n) * element;
                    let value = T::load(c.peek::<T::M>(at));
                    c.put_lane(fields[n as usize], lane, value);
                }
            }
        }
        Shape::Spread if count == 1 && FAST && load_halves::<T, FAST>(c, i, element) => {}
        Shape::Spread => {
            let at = match addresses::<FAST>(c, i, element * count, Access::Read) {
                Ok(at) => at,
                Err(stop) => return failed(c, stop),
            };
            for (n, d) in fields.into_iter().take(count as usize).enumerate() {
                if c.full() {
                    for (lane, at) in at.iter().enumerate() {
                        let value = T::load(c.peek::<T::M>(at + n as u64 * element));
                        c.put_lane(d, lane, value);
                    }
                } else {
                    for lane in c.active() {
                        let value = T::load(c.peek::<T::M>(at[lane] + n as u64 * element));
                        c.put_lane(d, lane, value);
                    }
                }
            }
        }
    }
    if i.aux & POLL != 0 && polled(c) {
        return Flow::Yield;
    }
    Flow::Next
}

#[inline(always)]
fn run_store<T: Memory, const FAST: bool>(c: &mut Ctx, i: &Inst) -> Flow {
    let count = u64::from(count(i));
    let element = size_of::<T::M>() as u64;
    let fields = [i.d, i.b, i.c, i.e];
    c.polls = 0;
    match quick::<FAST>(c, i, element * count) {
        Shape::Run(first) if count == 1 => {
            for k in 0..CHUNKS {
                let values = c.chunk::<T::R>(i.d, k);
                let part: [T::M; CHUNK] = std::array::from_fn(|n| T::store(values[n]));
                c.poke_chunk(first + (k * CHUNK) as u64 * element, part);
            }
        }
        _ => {
            let at = match addresses::<FAST>(c, i, element * count, Access::Write) {
                Ok(at) => at,
                Err(stop) => return failed(c, stop),
            };
            for (n, d) in fields.into_iter().take(count as usize).enumerate() {
                for lane in c.active() {
                    let value = T::store(c.lane::<T::R>(d, lane));
                    c.poke(at[lane] + n as u64 * element, value);
                }
            }
        }
    }
    Flow::Next
}

vectorised!(load, run_load, Memory, by_set);
vectorised!(store, run_store, Memory, by_set);

/// Host address for one lane of an access that needs no fast path: atomics.
pub(crate) fn lane_addresses(c: &mut Ctx, i: &Inst, width: u64) -> Result<[u64; 32], Stop> {
    addresses::<false>(c, i, width, Access::Atomic)
}

/// One lane's address in `a`, with an offset that may not be the instruction's: as the program has it.
pub(super) fn lane_address(c: &Ctx, i: &Inst, lane: usize, offset: i64) -> u64 {
    if i.aux & NARROW != 0 {
        u64::from(c.lane::<u32>(i.a, lane).wrapping_add(offset as u32))
    } else {
        c.lane::<u64>(i.a, lane).wrapping_add(offset as u64)
    }
}

/// The host address of `width` bytes, a power of two, at an address in shared, global or generic memory.
pub(super) fn reach(c: &mut Ctx, i: &Inst, address: u64, width: u64, access: Access) -> Result<u64, Stop> {
    if address & (width - 1) != 0 {
        return Err(Stop::Misaligned { address, access });
    }
    if i.aux & SPACE == SHARED {
        return shared_address(c, address, width, access);
    }
    resolve(c, i, address, width, access)?;
    Ok(address)
}

/// The host address of `width` bytes, a power of two, at an address in the block's shared memory.
pub(super) fn shared_address(c: &Ctx, address: u64, width: u64, access: Access) -> Result<u64, Stop> {
    if address & (width - 1) != 0 {
        return Err(Stop::Misaligned { address, access });
    }
    let fits = c
        .shared_bytes
        .checked_sub(width)
        .is_some_and(|room| address <= room);
    if fits {
        Ok(c.shared as u64 + address)
    } else {
        Err(Stop::Illegal { address, access })
    }
}

/// Accesses in the parameter area of calls. A variable has `imm >> 32` bytes, and lane n's bytes of it begin `n` times
/// that after the slot `a`. The low half of `imm` is the offset in the variable.
fn run_param<T: Memory, const STORE: bool>(c: &mut Ctx, i: &Inst) -> Flow {
    let element = size_of::<T::M>();
    let count = count(i) as usize;
    let (stride, offset) = ((i.imm >> 32) as usize, i.imm as u32 as usize);
    for (n, d) in [i.d, i.b, i.c, i.e].into_iter().take(count).enumerate() {
        for lane in c.active() {
            let at = i.a as usize + lane * stride + offset + n * element;
            if STORE {
                let value = T::store(c.lane::<T::R>(d, lane));
                // SAFETY: the decoder checked that the access lies inside the variable, which lies inside the area.
                unsafe { c.regs.add(at).cast::<T::M>().write_unaligned(value) };
            } else {
                // SAFETY: as above.
                let value = unsafe { c.regs.add(at).cast::<T::M>().read_unaligned() };
                c.put_lane(d, lane, T::load(value));
            }
        }
    }
    Flow::Next
}

pub(crate) fn param_load<T: Memory>() -> crate::inst::Exec {
    run_param::<T, false>
}

pub(crate) fn param_store<T: Memory>() -> crate::inst::Exec {
    run_param::<T, true>
}

/// `cvta` from a window to generic (`aux` = space), or back (`imm` = 1).
#[inline(never)]
pub(crate) fn convert_address(c: &mut Ctx, i: &Inst) -> Flow {
    let space = i.aux & SPACE;
    for lane in c.active() {
        let base = match space {
            SHARED => c.shared as u64,
            LOCAL => c.local as u64 + lane as u64 * c.local_stride,
            _ => 0,
        };
        let a = if i.aux & NARROW != 0 {
            u64::from(c.lane::<u32>(i.a, lane))
        } else {
            c.lane::<u64>(i.a, lane)
        };
        let d = if i.imm == 0 {
            a.wrapping_add(base)
        } else {
            a.wrapping_sub(base)
        };
        c.put_lane(i.d, lane, d);
    }
    Flow::Next
}

/// `isspacep`.
pub(crate) fn in_space(c: &mut Ctx, i: &Inst) -> Flow {
    let mut bits = 0;
    for lane in c.active() {
        let a = c.lane::<u64>(i.a, lane);
        let shared = a.wrapping_sub(c.shared as u64) < c.shared_bytes;
        let local = a.wrapping_sub(c.local as u64) < c.local_stride * 32;
        let params = &c.launch().params;
        let param = a.wrapping_sub(params.as_ptr() as u64) < params.len() as u64;
        let yes = match i.aux & SPACE {
            SHARED => shared,
            LOCAL => local,
            PARAM => param,
            _ => !shared && !local && !param,
        };
        bits |= u32::from(yes) << lane;
    }
    c.put_pred(i.d, bits);
    Flow::Next
}

/// The array's address `b` and the index `a` times the element's `imm` bytes.
pub(crate) fn element_address(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let index = if i.aux & NARROW == 0 {
            c.lane::<u64>(i.a, lane)
        } else if i.aux & SIGNED != 0 {
            i64::from(c.lane::<i32>(i.a, lane)) as u64
        } else {
            u64::from(c.lane::<u32>(i.a, lane))
        };
        let array = c.lane::<u64>(i.b, lane);
        c.put_lane(i.d, lane, array.wrapping_add(index.wrapping_mul(i.imm)));
    }
    Flow::Next
}

/// An address in a window, cut to 32 bits.
pub(crate) fn narrow_address(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let address = c.lane::<u64>(i.a, lane);
        c.put_lane(i.d, lane, address as u32);
    }
    Flow::Next
}

/// The address of a local variable of the current function.
pub(crate) fn local_address(c: &mut Ctx, i: &Inst) -> Flow {
    let address = c.local_base + i.imm;
    for lane in c.active() {
        if i.aux & NARROW != 0 {
            c.put_lane(i.d, lane, address as u32);
        } else {
            c.put_lane(i.d, lane, address);
        }
    }
    Flow::Next
}
