//! What is known of a function's registers when it is compiled: how long each is needed, which are constants of the
//! launch, and which lie evenly over the lanes.

use super::cache::Step;
use super::lanes::{self, Constants, Even, Lanes};
use crate::code::{Code, Const, ConstSlot, FunctionCode, Life, Special};
use crate::inst::Inst;
use std::collections::HashMap;

/// Of one function at a time.
pub(super) struct Facts<'a> {
    functions: Vec<&'a FunctionCode>,
    /// The function that `pc` was last in, in `functions`.
    at: usize,
    lives: HashMap<u32, Vec<Life>>,
    consts: HashMap<u32, ConstSlot>,
    /// Every lane is active.
    full: bool,
    /// Lanes are neighbours in a row of the block.
    rows: bool,
    /// Registers written once that are sums and multiples of a launch's constants, by their slot and their first
    /// instruction. Nothing that depends on whether a number of 32 bits overflows is here.
    steps: HashMap<(u32, u32), Step>,
    /// Of warps whose lanes have always gone the same way: how registers lie where something jumps to, and here.
    lanes: Option<Lanes>,
    now: Even,
}

impl<'a> Facts<'a> {
    pub fn new(code: &'a Code, [full, rows, whole]: [bool; 3]) -> Facts<'a> {
        let mut functions: Vec<&FunctionCode> = code.functions.iter().filter(|f| f.end > f.entry).collect();
        functions.sort_by_key(|f| f.entry);
        let mut facts = Facts {
            functions,
            at: usize::MAX,
            lives: HashMap::new(),
            consts: HashMap::new(),
            full,
            rows,
            steps: HashMap::new(),
            lanes: None,
            now: Even::new(),
        };
        if whole {
            let mut lanes = Lanes::none();
            for function in facts.functions.clone() {
                facts.enter(function.entry);
                facts.with_constants(|constants| lanes.add(code, function, constants));
            }
            facts.lanes = Some(lanes);
        }
        facts.enter(0);
        facts
    }

    fn with_constants(&self, then: impl FnOnce(&Constants<'_>)) {
        then(&Constants {
            step: &|slot| self.constant(slot),
            number: &|slot| self.number(slot),
        });
    }

    /// Code for this instruction is made; what follows comes next, unless something is jumped to.
    pub fn pass(&mut self, inst: &Inst) {
        if self.lanes.is_some() {
            let mut now = std::mem::take(&mut self.now);
            self.with_constants(|constants| lanes::pass(&mut now, inst, constants));
            self.now = now;
        }
    }

    /// Nothing comes to `pc` from above.
    pub fn begin(&mut self, pc: u32) {
        self.now.clear();
        self.enter(pc);
    }

    /// Code for `pc` comes next; code goes through a module from its beginning to its end.
    pub fn enter(&mut self, pc: u32) {
        if let Some(even) = self.lanes.as_ref().and_then(|lanes| lanes.at(pc)) {
            self.now.clone_from(even);
        }
        let next = self
            .functions
            .partition_point(|f| f.entry <= pc)
            .saturating_sub(1);
        if next == self.at {
            return;
        }
        self.at = next;
        self.lives.clear();
        self.consts.clear();
        let Some(function) = self.functions.get(next) else {
            return;
        };
        for life in &function.lives {
            self.lives.entry(life.slot).or_default().push(*life);
        }
        // Lives in one slot never overlap.
        for lives in self.lives.values_mut() {
            lives.sort_unstable_by_key(|life| life.from);
        }
        self.consts = function.consts.iter().map(|c| (c.slot, *c)).collect();
    }

    fn life(&self, slot: u32, pc: u32) -> Option<&Life> {
        let lives = self.lives.get(&slot)?;
        let last = lives[..lives.partition_point(|l| l.from <= pc)].last()?;
        (pc <= last.to).then_some(last)
    }

    /// Whether what `slot` holds before `pc` is needed there or later. A slot that is no register's is.
    pub fn needed(&self, slot: u32, pc: u32) -> bool {
        match self.lives.get(&slot) {
            Some(lives) => {
                let before = &lives[..lives.partition_point(|l| l.from < pc)];
                before.last().is_some_and(|l| pc <= l.to)
            }
            None => true,
        }
    }

    /// Whether an instruction's result in `slot` is read by nothing.
    pub fn unread(&self, slot: u32, pc: u32) -> bool {
        self.life(slot, pc).is_some_and(|l| l.to == pc)
    }

    /// The number that a slot always has.
    pub fn number(&self, slot: u32) -> Option<u64> {
        match self.consts.get(&slot)?.value {
            Const::Bits(bits) => Some(bits),
            _ => None,
        }
    }

    /// Whether the slot has a constant of the launch or the block.
    pub fn is_constant(&self, slot: u32) -> bool {
        self.consts.contains_key(&slot)
    }

    /// How a constant lies.
    fn constant(&self, slot: u32) -> Option<Step> {
        match self.consts.get(&slot)?.value {
            value if value.uniform() => Some(0),
            Const::Special(Special::LaneId) if self.full => Some(1),
            Const::Special(Special::Tid(0)) if self.rows => Some(1),
            Const::Special(Special::Tid(_)) if self.rows => Some(0),
            Const::Special(Special::WarpId) => Some(0),
            _ => None,
        }
    }

    /// How the register at `slot` lies before `pc`, whichever lanes wrote it when.
    pub fn step(&self, slot: u32, pc: u32) -> Option<Step> {
        if self.consts.contains_key(&slot) {
            return self.constant(slot);
        }
        if self.lanes.is_some() {
            return self.now.get(&slot).copied();
        }
        let life = self.life(slot, pc.checked_sub(1)?)?;
        self.steps.get(&(slot, life.from)).copied()
    }

    /// The instruction `pc` gives the register at `slot` this step each time.
    pub fn note(&mut self, slot: u32, pc: u32, step: Step) {
        // Of lanes that are not active the home may have something else.
        if !self.full {
            return;
        }
        let Some(life) = self.life(slot, pc) else { return };
        if life.written_once && life.from == pc {
            self.steps.insert((slot, pc), step);
        }
    }
}
