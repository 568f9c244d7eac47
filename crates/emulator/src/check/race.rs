//! The last accesses to a word, and whether they happened before another: vector clocks, a component for each warp.
//!
//! A warp's clock goes on where it meets others: at a barrier, a `bar.warp.sync`, a fence, a release. A warp knows of
//! others what it was told at a barrier of the block, or by a word that one of them released and it has acquired. Of
//! warps of other blocks a whole block knows the same.

use std::collections::HashMap;

/// A thread's last access of one sort to a word of 4 bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Bit 63: there is one; then the block's number from bit 16, the thread's from bit 6; bit 5: a compare-and-swap; bit
    /// 4: strong; 4 bytes' bits.
    packed: u64,
    /// The warp's clock then.
    clock: u32,
    pub instruction: u32,
}

impl Mark {
    fn new(access: Access, clock: u32) -> Mark {
        let Access {
            who,
            instruction,
            bytes,
            strong,
            compares,
            ..
        } = access;
        let flags = u64::from(compares) << 5 | u64::from(strong) << 4 | u64::from(bytes & 15);
        Mark {
            packed: 1 << 63
                | (who.block & 0x7fff_ffff_ffff) << 16
                | u64::from(who.thread & 1023) << 6
                | flags,
            clock,
            instruction,
        }
    }

    pub fn who(self) -> Option<Who> {
        (self.packed >> 63 != 0).then_some(Who {
            block: self.packed >> 16 & 0x7fff_ffff_ffff,
            thread: (self.packed >> 6) as u32 & 1023,
        })
    }

    fn strong(self) -> bool {
        self.packed >> 4 & 1 != 0
    }

    fn compares(self) -> bool {
        self.packed >> 5 & 1 != 0
    }

    fn bytes(self) -> u8 {
        self.packed as u8 & 15
    }
}

/// A thread of the grid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    /// The block's number.
    pub block: u64,
    /// The thread's number in the block.
    pub thread: u32,
}

/// What is known of a word.
#[derive(Clone, Copy, Default)]
pub struct Cell {
    /// Marks of another era, or of another launch, are over.
    pub era: u32,
    /// The launch that they are of.
    launch: u32,
    pub write: Mark,
    /// The last threads that read it, of two warps.
    pub reads: [Mark; 2],
    /// An access of a launch before, and whether it wrote.
    earlier: Mark,
    earlier_launch: u32,
    earlier_writes: bool,
}

/// When an access happens.
#[derive(Clone, Copy)]
pub struct Now<'a> {
    pub era: u32,
    pub launch: u32,
    /// Whether nothing orders another launch and this one.
    pub is_beside: &'a dyn Fn(u32) -> bool,
}

/// An earlier access that races.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raced {
    pub mark: Mark,
    pub writes: bool,
    /// The launch that it is of, where it is another one.
    pub launch: Option<u32>,
}

/// The clocks that something knows of a block's warps.
type Clocks = Vec<u32>;

fn join(into: &mut Clocks, from: &[u32]) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (mine, other) in into.iter_mut().zip(from) {
        *mine = (*mine).max(*other);
    }
}

/// A warp's clock, and what it knows.
#[derive(Clone)]
struct Warp {
    own: u32,
    /// What it did before this was seen by all its lanes.
    met: u32,
    knows: Clocks,
    /// What it knew at its last fence.
    fenced: Option<Clocks>,
}

/// The clocks of a block that runs.
pub struct BlockClocks {
    warps: Vec<Warp>,
    /// What it knows of other blocks.
    foreign: HashMap<u64, Clocks>,
}

/// What a word that threads synchronise by has been told.
#[derive(Default)]
pub struct Released(HashMap<u64, Clocks>);

impl BlockClocks {
    pub fn new(warps: usize) -> BlockClocks {
        let warp = Warp {
            own: 1,
            met: 1,
            knows: vec![0; warps],
            fenced: None,
        };
        BlockClocks {
            warps: vec![warp; warps],
            foreign: HashMap::new(),
        }
    }

    pub fn warps(&self) -> u32 {
        self.warps.len() as u32
    }

    pub fn clock(&self, warp: u32) -> u32 {
        self.warps.get(warp as usize).map_or(0, |warp| warp.own)
    }

    /// Whether an earlier access by another thread happened before what this warp of block `block` does now.
    pub fn is_after(&self, block: u64, warp: u32, mark: Mark) -> bool {
        let (Some(who), Some(me)) = (mark.who(), self.warps.get(warp as usize)) else {
            return true;
        };
        let other = who.thread / 32;
        if who.block != block {
            let known = self
                .foreign
                .get(&who.block)
                .and_then(|clocks| clocks.get(other as usize));
            return known.is_some_and(|known| *known >= mark.clock);
        }
        if other == warp {
            mark.clock < me.met
        } else {
            me.knows
                .get(other as usize)
                .is_some_and(|known| *known >= mark.clock)
        }
    }

    /// All that a warp has done and knows.
    fn all(&self, warp: u32) -> Clocks {
        let Some(me) = self.warps.get(warp as usize) else {
            return Vec::new();
        };
        let mut all = me.knows.clone();
        if let Some(own) = all.get_mut(warp as usize) {
            *own = me.own;
        }
        all
    }

    /// These warps pass a barrier: `(warp, waits)`.
    pub fn barrier(&mut self, warps: &[(u32, bool)]) {
        let mut all = Clocks::new();
        for (warp, _) in warps {
            join(&mut all, &self.all(*warp));
        }
        for (warp, waits) in warps {
            if let Some(warp) = self.warps.get_mut(*warp as usize) {
                if *waits {
                    join(&mut warp.knows, &all);
                }
                warp.own += 1;
                warp.met = warp.own;
            }
        }
    }

    /// Lanes of a warp have met.
    pub fn meet(&mut self, warp: u32) {
        if let Some(warp) = self.warps.get_mut(warp as usize) {
            warp.own += 1;
            warp.met = warp.own;
        }
    }

    pub fn fence(&mut self, warp: u32) {
        let all = self.all(warp);
        if let Some(warp) = self.warps.get_mut(warp as usize) {
            warp.fenced = Some(all);
            warp.own += 1;
        }
    }

    /// The warp writes a word that others may wait for; `now`: the write itself releases, without a fence before it.
    pub fn release(&mut self, block: u64, warp: u32, now: bool, word: &mut Released) {
        if now {
            self.fence(warp);
        }
        let Some(fenced) = self.warps.get(warp as usize).and_then(|warp| warp.fenced.clone()) else {
            return;
        };
        join(word.0.entry(block).or_default(), &fenced);
        for (other, clocks) in &self.foreign {
            join(word.0.entry(*other).or_default(), clocks);
        }
    }

    /// The warp has read a word that others have written.
    pub fn acquire(&mut self, block: u64, warp: u32, word: &Released) {
        for (other, clocks) in &word.0 {
            if *other != block {
                join(self.foreign.entry(*other).or_default(), clocks);
            } else if let Some(warp) = self.warps.get_mut(warp as usize) {
                join(&mut warp.knows, clocks);
            }
        }
    }

    /// Whether a release would tell anything.
    pub fn has_fenced(&self, warp: u32) -> bool {
        self.warps
            .get(warp as usize)
            .is_some_and(|warp| warp.fenced.is_some())
    }
}

/// An access to a word.
#[derive(Clone, Copy)]
pub struct Access {
    pub who: Who,
    pub instruction: u32,
    /// Bits of the word's four bytes.
    pub bytes: u8,
    pub strong: bool,
    /// A compare-and-swap.
    pub compares: bool,
    pub writes: bool,
}

impl Cell {
    /// The earlier access that this one races with. Notes this one.
    pub fn touch(&mut self, now: &Now<'_>, clocks: &BlockClocks, access: Access) -> Option<Raced> {
        if self.era != now.era {
            self.begin(now);
        }
        let beside = self.beside(now, access);
        let warp = access.who.thread / 32;
        let races = |mark: Mark| {
            mark.who().is_some_and(|who| who != access.who)
                && mark.bytes() & access.bytes != 0
                && !(mark.strong() && access.strong)
                && !clocks.is_after(access.who.block, warp, mark)
        };
        // A thread that compares and swaps reads the word first, and reads again where it has changed: no race.
        let looked = self.write.compares() && !access.writes;
        let raced = |writes: bool| {
            move |mark: Mark| Raced {
                mark,
                writes,
                launch: None,
            }
        };
        let mut found = (races(self.write) && !looked)
            .then_some(self.write)
            .map(raced(true));
        if access.writes && !access.compares {
            let read = self.reads.into_iter().find(|read| races(*read));
            found = found.or(read.map(raced(false)));
        }
        let mark = Mark::new(access, clocks.clock(warp));
        if access.writes {
            self.write = mark;
        } else {
            let of_warp = |who: Who| (who.block, who.thread / 32);
            if self.reads[0].who().map(of_warp) != Some(of_warp(access.who)) {
                self.reads[1] = self.reads[0];
            }
            self.reads[0] = mark;
        }
        found.or(beside)
    }

    /// Another launch, or another era of this one, begins here. What a launch did that may run at the same time is kept: a
    /// write counts for more than a read.
    fn begin(&mut self, now: &Now<'_>) {
        let mut fresh = Cell {
            era: now.era,
            launch: now.launch,
            ..Cell::default()
        };
        let is_of_another = self.launch != 0 && self.launch != now.launch;
        if is_of_another && (now.is_beside)(self.launch) {
            fresh.earlier_writes = self.write.who().is_some();
            fresh.earlier_launch = self.launch;
            fresh.earlier = match fresh.earlier_writes {
                true => self.write,
                false => self.reads[0],
            };
        } else if self.earlier_launch != now.launch {
            fresh.earlier = self.earlier;
            fresh.earlier_launch = self.earlier_launch;
            fresh.earlier_writes = self.earlier_writes;
        }
        *self = fresh;
    }

    /// The access of another launch that this one races with.
    fn beside(&self, now: &Now<'_>, access: Access) -> Option<Raced> {
        let mark = self.earlier;
        let races = mark.who().is_some()
            && (access.writes || self.earlier_writes)
            && mark.bytes() & access.bytes != 0
            && !(mark.strong() && access.strong)
            && (now.is_beside)(self.earlier_launch);
        races.then_some(Raced {
            mark,
            writes: self.earlier_writes,
            launch: Some(self.earlier_launch),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(thread: u32, writes: bool) -> Access {
        Access {
            who: Who { block: 7, thread },
            instruction: thread,
            bytes: 15,
            strong: false,
            compares: false,
            writes,
        }
    }

    /// An access of launch 1, which runs alone.
    fn now(era: u32) -> Now<'static> {
        Now {
            era,
            launch: 1,
            is_beside: &|_| false,
        }
    }

    #[test]
    fn launches_that_nothing_orders_race() {
        let (clocks, mut cell) = (BlockClocks::new(1), Cell::default());
        let launch = |era: u32, is_beside: &'static dyn Fn(u32) -> bool| Now {
            era,
            launch: era,
            is_beside,
        };
        let (alone, beside) = (&|_| false, &|other| other == 1);
        assert_eq!(cell.touch(&launch(1, alone), &clocks, access(0, false)), None);
        assert_eq!(
            cell.touch(&launch(2, beside), &clocks, access(0, false)),
            None,
            "two reads"
        );
        let raced = cell.touch(&launch(2, beside), &clocks, access(0, true));
        assert_eq!(
            raced.map(|raced| (raced.launch, raced.writes)),
            Some((Some(1), false)),
            "the read is remembered behind one of the second launch"
        );
        let mut cell = Cell::default();
        assert_eq!(cell.touch(&launch(1, alone), &clocks, access(0, true)), None);
        assert_eq!(
            cell.touch(&launch(2, alone), &clocks, access(0, true)),
            None,
            "in order"
        );
    }

    #[test]
    fn a_mark_holds_what_was_put_in() {
        let who = Who {
            block: (1 << 46) + 5,
            thread: 1023,
        };
        let touched = Access {
            who,
            bytes: 0b1010,
            strong: true,
            ..access(0, true)
        };
        let mark = Mark::new(touched, 9);
        assert_eq!(
            (mark.who(), mark.bytes(), mark.strong()),
            (Some(who), 0b1010, true)
        );
        assert!(
            !mark.compares()
                && Mark::new(
                    Access {
                        compares: true,
                        ..touched
                    },
                    9
                )
                .compares()
        );
        assert_eq!(Mark::default().who(), None);
    }

    #[test]
    fn a_barrier_orders_and_its_absence_does_not() {
        let (mut clocks, mut cell) = (BlockClocks::new(2), Cell::default());
        assert_eq!(cell.touch(&now(1), &clocks, access(0, true)), None);
        assert_eq!(
            cell.touch(&now(1), &clocks, access(32, false))
                .map(|raced| raced.mark.instruction),
            Some(0)
        );
        assert!(
            cell.touch(&now(1), &clocks, access(1, false)).is_some(),
            "lanes of a warp race as well"
        );
        clocks.barrier(&[(0, true), (1, true)]);
        assert_eq!(cell.touch(&now(1), &clocks, access(32, true)), None);
        clocks.barrier(&[(0, true), (1, false)]);
        assert_eq!(
            cell.touch(&now(1), &clocks, access(0, true)),
            None,
            "1 arrived, 0 waited"
        );
        clocks.barrier(&[(0, false), (1, false)]);
        assert!(
            cell.touch(&now(1), &clocks, access(32, true)).is_some(),
            "neither waited"
        );
        assert_eq!(
            cell.touch(&now(2), &clocks, access(64, true)),
            None,
            "another era"
        );
    }

    #[test]
    fn a_fence_and_a_word_order_blocks() {
        let (mut mine, mut other) = (BlockClocks::new(1), BlockClocks::new(1));
        let mut word = Released::default();
        let of = |block: u64, writes: bool| Access {
            who: Who { block, thread: 0 },
            ..access(0, writes)
        };
        let (mut released, mut late) = (Cell::default(), Cell::default());
        released.touch(&now(1), &mine, of(0, true));
        mine.fence(0);
        late.touch(&now(1), &mine, of(0, true));
        mine.release(0, 0, false, &mut word);
        other.acquire(1, 0, &word);
        assert_eq!(released.touch(&now(1), &other, of(1, false)), None);
        assert!(
            late.touch(&now(1), &other, of(1, false)).is_some(),
            "it was written behind the fence"
        );
    }
}
