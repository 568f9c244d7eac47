//! Which of the warp's registers are in vector registers. Each of them has its home in the function's register area.

/// The first vector register that holds a value. Those before it are for an instruction's code, and for writing home.
const FIRST: u8 = 7;

/// How a register's lanes lie, where that is known when it is compiled: each lane's value is the lane before's plus so
/// much. Nothing: all lanes are alike.
pub(super) type Step = i64;

/// A register of the warp that is held: its home, and the vector registers that have its lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub slot: u32,
    pub wide: bool,
    /// Two of 32-bit lanes, or four of 64-bit ones. Where all lanes are alike it may be one vector register, named
    /// several times.
    pub regs: [u8; 4],
    /// One vector register: of a value with a step that is not zero, only the first lane is right.
    pub one: bool,
    pub step: Option<Step>,
    /// Its home does not have the value yet.
    pub dirty: bool,
    /// When it was used last.
    pub stamp: u32,
    /// Another number for each value.
    pub serial: u32,
}

impl Held {
    /// The vector registers that it takes.
    pub fn parts(&self) -> &[u8] {
        &self.regs[..if self.one { 1 } else { self.all() }]
    }

    /// Those of all lanes.
    pub fn all(&self) -> usize {
        if self.wide { 4 } else { 2 }
    }

    /// Only the first lane is there.
    pub fn thin(&self) -> bool {
        self.one && self.step != Some(0)
    }
}

/// What is held now.
#[derive(Clone)]
pub(super) struct Cache {
    pub held: Vec<Held>,
    free: Vec<u8>,
    stamp: u32,
    serial: u32,
}

impl Cache {
    pub fn new() -> Cache {
        Cache {
            held: Vec::new(),
            free: (FIRST..32).rev().collect(),
            stamp: 0,
            serial: 0,
        }
    }

    /// The next instruction begins: what the one before used may be given up.
    pub fn tick(&mut self) {
        self.stamp += 1;
    }

    /// The register at `slot`, if it is held.
    pub fn find(&mut self, slot: u32, wide: bool) -> Option<Held> {
        let stamp = self.stamp;
        let held = (self.held.iter_mut()).find(|h| h.slot == slot && h.wide == wide)?;
        held.stamp = stamp;
        Some(*held)
    }

    /// So many vector registers; what is given up for that and has no copy at home goes to `spill`.
    pub fn take(&mut self, parts: usize, mut spill: impl FnMut(&Held)) -> [u8; 4] {
        while self.free.len() < parts {
            let oldest = (0..self.held.len())
                .filter(|n| self.held[*n].stamp < self.stamp)
                .min_by_key(|n| self.held[*n].stamp)
                .expect("an instruction names fewer registers than there are");
            let gone = self.held.swap_remove(oldest);
            if gone.dirty {
                spill(&gone);
            }
            self.free.extend_from_slice(gone.parts());
        }
        let mut regs = [0; 4];
        for part in &mut regs[..parts] {
            *part = self.free.pop().unwrap_or(FIRST);
        }
        regs
    }

    /// From now on `regs` are the register at `slot`.
    pub fn put(&mut self, slot: u32, wide: bool, regs: [u8; 4], dirty: bool) {
        self.insert(slot, wide, regs, false, None, dirty);
    }

    /// From now on one vector register is the register at `slot`, whose lanes lie as `step` says.
    pub fn put_one(&mut self, slot: u32, wide: bool, reg: u8, step: Step, dirty: bool) {
        self.insert(slot, wide, [reg; 4], true, Some(step), dirty);
    }

    /// The register at `slot` has all its lanes now, in `regs`.
    pub fn widen(&mut self, slot: u32, regs: [u8; 4]) {
        if let Some(held) = self.held.iter_mut().find(|h| h.slot == slot) {
            let old = held.regs[0];
            (held.regs, held.one) = (regs, false);
            self.free.push(old);
        }
    }

    fn insert(&mut self, slot: u32, wide: bool, regs: [u8; 4], one: bool, step: Option<Step>, dirty: bool) {
        if let Some(n) = (0..self.held.len()).find(|n| self.held[*n].slot == slot) {
            let old = self.held.swap_remove(n);
            self.free.extend_from_slice(old.parts());
        }
        self.held.push(Held {
            slot,
            wide,
            regs,
            one,
            step,
            dirty,
            stamp: self.stamp,
            serial: self.serial,
        });
        self.serial += 1;
    }

    /// Gives up what `dead` says.
    pub fn drop_where(&mut self, dead: impl Fn(&Held) -> bool) {
        for n in (0..self.held.len()).rev() {
            if dead(&self.held[n]) {
                let gone = self.held.swap_remove(n);
                self.free.extend_from_slice(gone.parts());
            }
        }
    }

    /// Holds nothing any more.
    pub fn clear(&mut self) {
        *self = Cache {
            stamp: self.stamp,
            serial: self.serial,
            ..Cache::new()
        };
    }
}
