//! What owners owe for tenants of theirs that have gone. A new tenant has full tokens and the device's virtual time: an owner whose
//! tenants follow each other would have those again and again. So a tenant leaves what it owed to its owner, with its part of the
//! device, and the owner's next tenant there takes that over. Credit is left to none.
//!
//! Part and debt go together. A tenant with half the part takes half of the debt, so a small one that is made for the purpose frees
//! no large one behind it. What is left fades at the part's rate: for so long the owner leaves that part unused.

use std::collections::HashMap;

use crate::terms::Share;
use crate::{Nanos, SECOND};

/// The most that is taken over, in device time: a launch of a minute, however long it really was.
const MOST: Nanos = 20 * SECOND;
/// Owners and devices that are remembered. Where there are more, those that owe least are forgotten.
const REMEMBERED: usize = 4096;

/// Device time that is owed, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owed {
    /// To a cap's bucket or a server's budget: what is missing to a fresh one.
    pub cap: Nanos,
    /// To others, by virtual time.
    pub others: Nanos,
}

impl Owed {
    fn is_nothing(self) -> bool {
        self.most() == 0
    }

    fn most(self) -> Nanos {
        self.cap.max(self.others)
    }

    fn each(self, of: impl Fn(Nanos) -> Nanos) -> Self {
        Self {
            cap: of(self.cap),
            others: of(self.others),
        }
    }

    /// `parts` of `whole` of it.
    pub fn part(self, parts: u32, whole: u32) -> Self {
        self.each(|time| (u128::from(time) * u128::from(parts) / u128::from(whole.max(1))) as Nanos)
    }
}

/// What gone tenants of one owner left on one device.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// Their parts of the device, per 10 000.
    parts: u32,
    owed: Owed,
    at: Nanos,
}

impl Left {
    /// As it is at `now`.
    fn faded(self, now: Nanos) -> Self {
        let passed = now.saturating_sub(self.at);
        let whole = u128::from(Share::WHOLE.parts());
        let paid = u128::from(passed) * u128::from(self.parts) / whole;
        let paid = Nanos::try_from(paid).unwrap_or(Nanos::MAX);
        Self {
            owed: self.owed.each(|time| time.saturating_sub(paid)),
            at: self.at.max(now),
            ..self
        }
    }
}

/// What owners owe, by owner and device.
#[derive(Debug, Default)]
pub(crate) struct Debts(HashMap<(u64, usize), Left>);

impl Debts {
    /// A tenant with so many parts of a device goes, or has so many less, and owed that.
    pub fn leave(&mut self, of: (u64, usize), parts: u32, owed: Owed, now: Nanos) {
        let before = self.0.remove(&of).map(|left| left.faded(now));
        let (had, owes) = before.map_or((0, Owed::default()), |left| (left.parts, left.owed));
        let owed = Owed {
            cap: owes.cap.saturating_add(owed.cap).min(MOST),
            others: owes.others.saturating_add(owed.others).min(MOST),
        };
        if owed.is_nothing() {
            return;
        }
        if self.0.len() >= REMEMBERED {
            let least = self.0.iter().min_by_key(|(_, left)| left.faded(now).owed.most());
            if let Some(of) = least.map(|(of, _)| *of) {
                self.0.remove(&of);
            }
        }
        let parts = had
            .saturating_add(parts)
            .clamp(1, u32::from(Share::WHOLE.parts()));
        self.0.insert(of, Left { parts, owed, at: now });
    }

    /// What a new tenant takes over that has so many parts, or has so many more now.
    pub fn take(&mut self, of: (u64, usize), parts: u32, now: Nanos) -> Owed {
        let Some(left) = self.0.remove(&of).map(|left| left.faded(now)) else {
            return Owed::default();
        };
        let taken = left.owed.part(parts.min(left.parts), left.parts);
        let rest = left.parts.saturating_sub(parts);
        if rest > 0 && !left.owed.is_nothing() {
            let owed = left.owed.part(rest, left.parts);
            let rest = Left {
                parts: rest,
                owed,
                ..left
            };
            self.0.insert(of, rest);
        }
        taken
    }
}
