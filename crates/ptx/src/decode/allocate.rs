//! Registers to slots. Compilers emit single-assignment code with thousands of virtual registers. A warp's registers
//! should fit a core's cache, so registers that are never live together share a slot.
//!
//! Divergence does no harm: a slot is 32 lanes, every write is masked, and each lane by itself follows one path.

use super::{B, C, D, Decoder, Draft, E, V};
use crate::types::Ty;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Words of liveness bit sets beyond which every register just gets its own slot.
const MAX_WORDS: usize = 2 << 20;
/// Passes over the blocks, likewise. Reducible flow needs as many as loops are deep.
const MAX_PASSES: usize = 200;

#[derive(Clone, Copy, Debug)]
pub(super) enum Where {
    Narrow(u32),
    Wide(u32),
    Pred(u32),
    /// Never named by an instruction.
    Nowhere,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub from: u32,
    pub to: u32,
    pub written_once: bool,
}

pub(super) struct Places {
    pub of: Vec<Where>,
    /// First and last instruction of each register's life, and whether one instruction alone writes it, unguarded.
    pub lives: Vec<Option<Life>>,
    pub narrow_slots: u32,
    pub wide_slots: u32,
    pub pred_slots: u32,
}

/// Calls `read` and `write` with the registers an instruction names.
fn visit(draft: &Draft, mut read: impl FnMut(u32), mut write: impl FnMut(u32)) {
    for (v, flag) in [
        (draft.d, D),
        (draft.a, 0),
        (draft.b, B),
        (draft.c, C),
        (draft.e, E),
        (draft.f, 0),
    ] {
        let V::Reg(r) = v else { continue };
        if draft.writes & flag == 0 {
            read(r);
        } else {
            write(r);
        }
    }
    for r in &draft.reads_more {
        read(*r);
    }
    for r in &draft.writes_more {
        write(*r);
    }
    if let Some((r, _)) = draft.guard {
        read(r);
    }
}

/// Where lanes whose guard fails keep the old value, so that it must stay.
fn keeps_old(draft: &Draft) -> bool {
    draft.guard.is_some() && !draft.own_guard
}

struct Block {
    from: usize,
    to: usize,
    next: Vec<usize>,
}

fn blocks(drafts: &[Draft]) -> Vec<Block> {
    let mut leader = vec![false; drafts.len() + 1];
    leader[0] = true;
    for (n, draft) in drafts.iter().enumerate() {
        for target in &draft.targets {
            leader[*target as usize] = true;
        }
        if draft.ends || !draft.targets.is_empty() {
            leader[n + 1] = true;
        }
    }
    let starts: Vec<usize> = (0..drafts.len()).filter(|n| leader[*n]).collect();
    let block_of = |at: usize| starts.partition_point(|s| *s <= at) - 1;
    starts
        .iter()
        .enumerate()
        .map(|(n, from)| {
            let to = starts.get(n + 1).copied().unwrap_or(drafts.len());
            let last = &drafts[to - 1];
            let mut next: Vec<usize> = last.targets.iter().map(|t| block_of(*t as usize)).collect();
            if !last.ends && to < drafts.len() {
                next.push(n + 1);
            }
            Block {
                from: *from,
                to,
                next,
            }
        })
        .collect()
}

/// First and last instruction at which each register must hold its value, or `None` if liveness is too costly to know.
fn intervals(drafts: &[Draft], registers: usize) -> Option<Vec<Option<(u32, u32)>>> {
    let blocks = blocks(drafts);
    // Registers that live across blocks get a dense number; most do not.
    let mut dense = vec![u32::MAX; registers];
    let mut exposed = 0u32;
    let mut written_in = vec![usize::MAX; registers];
    for (n, block) in blocks.iter().enumerate() {
        for draft in &drafts[block.from..block.to] {
            let mut expose = |r: u32, written_in: &[usize]| {
                if written_in[r as usize] != n && dense[r as usize] == u32::MAX {
                    dense[r as usize] = exposed;
                    exposed += 1;
                }
            };
            visit(draft, |r| expose(r, &written_in), |_| {});
            if keeps_old(draft) {
                visit(draft, |_| {}, |r| expose(r, &written_in));
            } else {
                visit(draft, |_| {}, |r| written_in[r as usize] = n);
            }
        }
    }
    let words = (exposed as usize).div_ceil(64);
    if words.checked_mul(blocks.len() * 4)? > MAX_WORDS {
        return None;
    }
    let mut reads = vec![0u64; words * blocks.len()];
    let mut kills = reads.clone();
    for (n, block) in blocks.iter().enumerate() {
        let base = n * words;
        for draft in &drafts[block.from..block.to] {
            let keeps = keeps_old(draft);
            let mut note = |r: u32, kills: &[u64]| {
                let d = dense[r as usize];
                if d != u32::MAX && kills[base + d as usize / 64] >> (d % 64) & 1 == 0 {
                    reads[base + d as usize / 64] |= 1 << (d % 64);
                }
            };
            visit(draft, |r| note(r, &kills), |_| {});
            if keeps {
                visit(draft, |_| {}, |r| note(r, &kills));
            } else {
                visit(
                    draft,
                    |_| {},
                    |r| {
                        let d = dense[r as usize];
                        if d != u32::MAX {
                            kills[base + d as usize / 64] |= 1 << (d % 64);
                        }
                    },
                );
            }
        }
    }
    let mut live_in = reads.clone();
    let mut live_out = vec![0u64; words * blocks.len()];
    let mut settled = false;
    for _ in 0..MAX_PASSES {
        let mut changed = false;
        for (n, block) in blocks.iter().enumerate().rev() {
            for w in 0..words {
                let out = block.next.iter().fold(0, |m, s| m | live_in[s * words + w]);
                let at = n * words + w;
                live_out[at] = out;
                let into = reads[at] | out & !kills[at];
                changed |= into != live_in[at];
                live_in[at] = into;
            }
        }
        if !changed {
            settled = true;
            break;
        }
    }
    if !settled {
        return None;
    }
    let mut intervals: Vec<Option<(u32, u32)>> = vec![None; registers];
    let mut touch = |r: usize, at: u32| {
        let (low, high) = intervals[r].unwrap_or((at, at));
        intervals[r] = Some((low.min(at), high.max(at)));
    };
    for (n, draft) in drafts.iter().enumerate() {
        visit(draft, |r| touch(r as usize, n as u32), |_| {});
        visit(draft, |_| {}, |r| touch(r as usize, n as u32));
    }
    for (r, d) in dense.iter().enumerate().filter(|(_, d)| **d != u32::MAX) {
        let (word, bit) = (*d as usize / 64, d % 64);
        for (n, block) in blocks.iter().enumerate() {
            if live_in[n * words + word] >> bit & 1 != 0 {
                touch(r, block.from as u32);
            }
            if live_out[n * words + word] >> bit & 1 != 0 {
                touch(r, block.to as u32 - 1);
            }
        }
    }
    Some(intervals)
}

/// Linear scan over one class of registers.
struct Scan {
    active: BinaryHeap<Reverse<(u32, u32)>>,
    free: BinaryHeap<Reverse<u32>>,
    slots: u32,
}

impl Scan {
    fn new() -> Scan {
        Scan {
            active: BinaryHeap::new(),
            free: BinaryHeap::new(),
            slots: 0,
        }
    }

    fn place(&mut self, (low, high): (u32, u32)) -> u32 {
        while let Some(Reverse((end, slot))) = self.active.peek().copied() {
            if end >= low {
                break;
            }
            self.active.pop();
            self.free.push(Reverse(slot));
        }
        let slot = match self.free.pop() {
            Some(Reverse(slot)) => slot,
            None => {
                self.slots += 1;
                self.slots - 1
            }
        };
        self.active.push(Reverse((high, slot)));
        slot
    }
}

pub(super) fn allocate(decoder: &Decoder<'_, '_>) -> Places {
    let registers = &decoder.body.registers;
    let mut used = vec![false; registers.len()];
    for draft in &decoder.drafts {
        visit(draft, |r| used[r as usize] = true, |_| {});
        visit(draft, |_| {}, |r| used[r as usize] = true);
    }
    let mut intervals = intervals(&decoder.drafts, registers.len())
        .unwrap_or_else(|| used.iter().map(|u| u.then_some((0, u32::MAX))).collect());
    // What callers write and read lives from the first instruction to the last.
    for formal in decoder.function.params.iter().chain(&decoder.function.returns) {
        if let Some(r) = formal.register {
            intervals[r as usize] = Some((0, u32::MAX));
        }
    }
    let mut order: Vec<u32> = (0..registers.len() as u32)
        .filter(|r| intervals[*r as usize].is_some())
        .collect();
    order.sort_by_key(|r| intervals[*r as usize]);
    let (mut narrow, mut wide, mut pred) = (Scan::new(), Scan::new(), Scan::new());
    let mut of = vec![Where::Nowhere; registers.len()];
    for r in order {
        let Some(interval) = intervals[r as usize] else {
            continue;
        };
        of[r as usize] = match registers[r as usize].ty {
            Ty::Pred => Where::Pred(pred.place(interval)),
            ty if ty.bytes() > 4 => Where::Wide(wide.place(interval)),
            _ => Where::Narrow(narrow.place(interval)),
        };
    }
    let mut writes = vec![0u32; registers.len()];
    for draft in &decoder.drafts {
        let count = if keeps_old(draft) { 2 } else { 1 };
        visit(draft, |_| {}, |r| writes[r as usize] += count);
    }
    let formals = decoder.function.params.iter().chain(&decoder.function.returns);
    for r in formals.filter_map(|formal| formal.register) {
        writes[r as usize] += 2;
    }
    let life = |(r, interval): (usize, &Option<(u32, u32)>)| {
        interval.map(|(from, to)| Life {
            from,
            to,
            written_once: writes[r] == 1,
        })
    };
    Places {
        of,
        lives: intervals.iter().enumerate().map(life).collect(),
        narrow_slots: narrow.slots,
        wide_slots: wide.slots,
        pred_slots: pred.slots,
    }
}
