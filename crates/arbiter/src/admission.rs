//! Which shares fit on one device beside those already there.

use crate::terms::{Part, Share, Terms};

/// The promises made on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promises {
    /// Sum of the promised shares, parts per 10 000.
    shares: u32,
    /// How many of the tenants have a hard cap or are latency-critical.
    strict: u32,
    /// Sum of the weights of those without a promise.
    weights: u32,
}

/// A share that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} of the device's time asked for, {} free", percent(u32::from(self.asked)), percent(self.free))]
pub struct Overcommitted {
    /// Asked for, parts per 10 000.
    pub asked: u16,
    /// What could be promised, parts per 10 000.
    pub free: u32,
}

fn percent(parts: u32) -> String {
    format!("{}.{:02} %", parts / 100, parts % 100)
}

impl Promises {
    /// The promises made to these tenants.
    pub fn of<'a>(tenants: impl IntoIterator<Item = &'a Terms>) -> Self {
        let mut promises = Self::default();
        tenants.into_iter().for_each(|terms| promises.add(terms));
        promises
    }

    /// Parts per 10 000 that are promised to no tenant.
    pub fn free(&self) -> u32 {
        u32::from(Share::WHOLE.parts()).saturating_sub(self.shares)
    }

    /// Whether these terms can be promised too. While all caps are soft and no tenant is latency-critical, shares may
    /// sum above 100 %: they are weights then, and say so. With a hard cap or a latency-critical tenant among them (or
    /// asking) they may not, because its share would be promised and not kept.
    ///
    /// # Errors
    /// What was asked for and what is free.
    pub fn admit(&self, terms: &Terms) -> Result<(), Overcommitted> {
        let Some(share) = terms.share() else {
            return Ok(());
        };
        let asked = share.parts();
        let fits = u32::from(asked) <= self.free();
        if fits || (self.strict == 0 && !terms.is_strict()) {
            Ok(())
        } else {
            Err(Overcommitted {
                asked,
                free: self.free(),
            })
        }
    }

    pub(crate) fn add(&mut self, terms: &Terms) {
        match terms.part {
            Part::Share(share) => self.shares += u32::from(share.parts()),
            Part::Weight(weight) => self.weights += u32::from(weight),
        }
        self.strict += u32::from(terms.is_strict());
    }

    pub(crate) fn remove(&mut self, terms: &Terms) {
        match terms.part {
            Part::Share(share) => self.shares -= u32::from(share.parts()),
            Part::Weight(weight) => self.weights -= u32::from(weight),
        }
        self.strict -= u32::from(terms.is_strict());
    }

    pub(crate) fn weights(&self) -> u32 {
        self.weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(parts: u16) -> Share {
        Share::new(parts).expect("a share")
    }

    #[test]
    fn nothing_and_more_than_everything_are_no_shares() {
        assert_eq!(Share::new(0), None);
        assert_eq!(Share::new(10_001), None);
        assert_eq!(Share::new(10_000), Some(Share::WHOLE));
    }

    #[test]
    fn hard_caps_above_the_whole_are_refused_with_what_is_free() {
        let promises = Promises::of(&[Terms::hard(share(6000)), Terms::soft(share(1000))]);
        let refused = promises.admit(&Terms::hard(share(4000)));
        assert_eq!(
            refused,
            Err(Overcommitted {
                asked: 4000,
                free: 3000
            })
        );
        assert_eq!(
            refused.expect_err("refused").to_string(),
            "40.00 % of the device's time asked for, 30.00 % free"
        );
        assert_eq!(promises.admit(&Terms::hard(share(3000))), Ok(()));
        // A soft share would take from the hard one's promise just as well.
        assert!(promises.admit(&Terms::soft(share(3001))).is_err());
    }

    #[test]
    fn soft_shares_alone_may_be_oversold_and_nothing_strict_joins_them() {
        let promises = Promises::of(&[Terms::soft(share(8000)), Terms::soft(share(8000))]);
        assert_eq!(promises.admit(&Terms::soft(share(8000))), Ok(()));
        assert_eq!(
            promises.admit(&Terms::latency(share(1))),
            Err(Overcommitted { asked: 1, free: 0 })
        );
    }

    #[test]
    fn a_weight_is_always_admitted() {
        let promises = Promises::of(&[Terms::hard(Share::WHOLE)]);
        assert_eq!(promises.admit(&Terms::weight(1)), Ok(()));
    }

    #[test]
    fn what_leaves_is_free_again() {
        let (a, b) = (Terms::hard(share(6000)), Terms::weight(3));
        let mut promises = Promises::of(&[a, b]);
        promises.remove(&a);
        promises.remove(&b);
        assert_eq!(promises, Promises::default());
    }
}
