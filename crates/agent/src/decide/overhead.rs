//! What a slice's processes hold beyond its ledger: the driver's own overhead, or a process that does not account for all
//! it has.

use divvy_model::Bytes;

/// What may be held beyond the ledger and the contexts before it is called overuse: what drivers round and cache.
const TOLERANCE: Bytes = Bytes(32 << 20);

/// What one look at a slice found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audited {
    /// What its processes hold beyond its ledger, at the last look.
    last: Bytes,
    /// The same at this look and the one before, whichever is less: what came and went in between is not counted.
    pub overhead: Bytes,
    /// Whether that is more than any driver takes for itself.
    pub overuse: bool,
}

impl Audited {
    /// The next look. What is given back while the auditor looks is in the device's figure and in the first of the ledger's.
    ///
    /// A look that a tenant asked for lowers the overhead and raises nothing: two of them may be so near to each other that
    /// they see the same moment.
    #[must_use]
    pub fn next(self, seen: Seen, why: Why) -> Self {
        let [before, after] = seen.accounted;
        let beyond = Bytes(seen.measured.0.saturating_sub(before.max(after).0));
        let (last, overhead) = match why {
            Why::Time => (beyond, beyond.min(self.last)),
            Why::Asked => (self.last, beyond.min(self.overhead)),
        };
        Self {
            last,
            overhead,
            overuse: overhead.0 > seen.contexts.0.saturating_add(TOLERANCE.0),
        }
    }
}

/// What one look at a slice on a device saw.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// By the device.
    pub measured: Bytes,
    /// In the ledger, just before and just after.
    pub accounted: [Bytes; 2],
    /// What its contexts come to.
    pub contexts: Bytes,
}

/// Why the auditor looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was time, or a list is shown.
    Time,
    /// A tenant is about to be refused.
    Asked,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_beyond_the_ledger_is_overhead_and_much_of_it_overuse() {
        let mib = |n: u64| Bytes(n << 20);
        let look = |before: Audited, measured, accounted, contexts| {
            let seen = Seen {
                measured,
                accounted,
                contexts,
            };
            before.next(seen, Why::Time)
        };
        let first = look(Audited::default(), mib(500), [mib(100); 2], mib(0));
        assert_eq!(
            (first.overhead, first.overuse),
            (mib(0), false),
            "it may be gone at once"
        );
        let second = look(first, mib(500), [mib(490); 2], mib(0));
        assert_eq!((second.overhead, second.overuse), (mib(10), false));
        let third = look(second, mib(900), [mib(490); 2], mib(0));
        assert_eq!(third.overhead, mib(10), "the lesser of two looks");
        let fourth = look(third, mib(900), [mib(490); 2], mib(0));
        assert_eq!((fourth.overhead, fourth.overuse), (mib(410), true));
        let context = look(third, mib(900), [mib(490); 2], mib(400));
        assert!(!context.overuse, "a context's cost is no overuse");
        assert_eq!(look(fourth, mib(1), [mib(490); 2], mib(0)).overhead, mib(0));
        let freeing = look(first, mib(500), [mib(500), mib(100)], mib(0));
        assert_eq!(freeing.overhead, mib(0), "given back while it was looked at");

        let asked = |before: Audited, measured| {
            let seen = Seen {
                measured,
                accounted: [mib(490); 2],
                contexts: mib(0),
            };
            before.next(seen, Why::Asked)
        };
        let lower = asked(fourth, mib(495));
        assert_eq!(
            (lower.overhead, lower.overuse),
            (mib(5), false),
            "what is gone is gone at once"
        );
        let again = asked(asked(lower, mib(900)), mib(900));
        assert_eq!(again.overhead, mib(5), "asking twice raises nothing");
        assert_eq!(
            look(again, mib(900), [mib(490); 2], mib(0)).overhead,
            mib(410),
            "time does"
        );
    }
}
