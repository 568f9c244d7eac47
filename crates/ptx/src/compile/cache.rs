//! Which of the warp's registers are in vector registers. Each of them has its home in the function's register area.

/// The first vector register that holds a value. Those before it are for an instruction's code, and for writing home.
const FIRST: u8 = 6;

/// A register of the warp that is held: its home, and two vector registers of 32-bit lanes or four of 64-bit ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub slot: u32,
    pub wide: bool,
    pub regs: [u8; 4],
    /// Its home does not have the value yet.
    pub dirty: bool,
    /// When it was used last.
    stamp: u32,
}

impl Held {
    pub fn parts(&self) -> &[u8] {
        &self.regs[..if self.wide { 4 } else { 2 }]
    }
}

/// What is held now.
#[derive(Clone)]
pub(super) struct Cache {
    pub held: Vec<Held>,
    free: Vec<u8>,
    stamp: u32,
}

impl Cache {
    pub fn new() -> Cache {
        Cache {
            held: Vec::new(),
            free: (FIRST..32).rev().collect(),
            stamp: 0,
        }
    }

    /// The next instruction begins: what the one before used may be given up.
    pub fn tick(&mut self) {
        self.stamp += 1;
    }

    /// The register at `slot`, if it is held.
    pub fn find(&mut self, slot: u32, wide: bool) -> Option<[u8; 4]> {
        let stamp = self.stamp;
        let held = (self.held.iter_mut()).find(|h| h.slot == slot && h.wide == wide)?;
        held.stamp = stamp;
        Some(held.regs)
    }

    /// Vector registers for one more; what is given up for that and has no copy at home goes to `spill`.
    pub fn take(&mut self, wide: bool, mut spill: impl FnMut(&Held)) -> [u8; 4] {
        let parts = if wide { 4 } else { 2 };
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
        if let Some(n) = (0..self.held.len()).find(|n| self.held[*n].slot == slot) {
            let old = self.held.swap_remove(n);
            self.free.extend_from_slice(old.parts());
        }
        self.held.push(Held {
            slot,
            wide,
            regs,
            dirty,
            stamp: self.stamp,
        });
    }

    /// Holds nothing any more.
    pub fn clear(&mut self) {
        *self = Cache {
            stamp: self.stamp,
            ..Cache::new()
        };
    }
}
