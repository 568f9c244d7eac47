//! The memory of a slice's processes beyond its ledger. It is the driver's own overhead, or a process does not account
//! for all that it has.

use divvy_model::Bytes;

/// The allowance beyond the ledger and the contexts before it counts as overuse: drivers round up and keep caches.
const TOLERANCE: Bytes = Bytes(32 << 20);

/// The result of one look at a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audited {
    /// Bytes that its processes hold beyond its ledger, at the last look.
    last: Bytes,
    /// The lesser of this look's figure and the one before: memory that came and went in between is not counted.
    pub overhead: Bytes,
    /// Whether that is more than any driver takes for itself.
    pub overuse: bool,
}

impl Audited {
    /// Adds the next look. Memory freed during the audit is in the device's figure and in the first of the ledger's
    /// two.
    ///
    /// A look that a tenant asked for may lower the overhead and never raises it: two such looks may be so close
    /// together that they see the same moment.
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

/// The figures of one look at a slice on a device.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The figure by the device.
    pub measured: Bytes,
    /// The figures in the ledger, just before and just after.
    pub accounted: [Bytes; 2],
    /// The total of its contexts.
    pub contexts: Bytes,
}

/// The reason for an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was due by the clock, or a list is shown.
    Time,
    /// The agent is about to refuse a tenant.
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
