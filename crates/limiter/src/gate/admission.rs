//! May this launch go now? It is a pure function, and the programs in the arbiter's simulation follow the same one.

/// The work in flight, as the gate believes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flight {
    /// Nanoseconds of work that was launched and is not known to be over.
    pub all_ns: u64,
    /// Of these, the part that should end first,
    pub head_ns: u64,
    /// and for how long it has run.
    pub ran_ns: u64,
}

impl Flight {
    /// When the work in flight should be over, from now.
    pub fn remaining_ns(self) -> u64 {
        self.all_ns
            .saturating_sub(self.head_ns.min(self.all_ns).min(self.ran_ns))
    }
}

/// The limits of a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub until_ns: u64,
    pub in_flight_ns: u64,
}

/// Work that is launched in one go, in nanoseconds: a quarter of the bound, within these limits.
const GO_NS: (u64, u64) = (25_000, 200_000);

impl Bounds {
    /// Credit for work on the fast path. With many short kernels, the gate waits until there is this much: waking a
    /// thread for each of them costs more than they do.
    pub fn go_ns(self) -> u64 {
        (self.in_flight_ns / 4).clamp(GO_NS.0, GO_NS.1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The launch goes, and as much more work may follow on the fast path.
    Now { more_ns: u64 },
    /// It may go in so many nanoseconds, if a completion comes by then as it should.
    In(u64),
    /// It may go after a completion, which is late: time alone changes nothing.
    Late,
    /// It may not go in this lease.
    Over,
}

/// By this part of the bound, and at most so many nanoseconds, work may outlast the lease if kernels are short. If ends
/// are predicted a little late, the device would otherwise be idle before the lease's end, and until the next process's
/// first kernel arrives. The excess is charged.
const SPILL: u64 = 8;
const SPILL_NS: u64 = 250_000;

/// The next launch may go this part of the bound before the work in flight ends, or the device would be idle until it
/// arrives.
const FEED: u64 = 64;
/// On a machine whose threads wake late it may go earlier by that delay, but by no more than this part.
const FED_AHEAD: u64 = 8;

/// A launch this long, in nanoseconds, is not queued ahead: if the estimate of what runs were a tenth too short, a
/// latency-critical slice would wait for both. The device idles for the launch's way, which is little beside it.
pub(super) const LONG_NS: u64 = 32_000_000;

impl Admission {
    pub fn is_later(self) -> bool {
        matches!(self, Self::In(_) | Self::Late)
    }
}

/// Whether work of so many nanoseconds is a long launch.
pub(super) fn is_long(ns: u64) -> bool {
    ns >= LONG_NS
}

/// A launch that does not fit the bound gives way to those of other streams that do, for so many times the bound.
const WAITS: u64 = 2;

/// Whether a launch that is the first of its stream has waited long enough for other streams, which always have work
/// that fits the bound. It goes beside what they have in flight, and never beside another launch that does not fit.
pub(super) fn has_waited(flight: Flight, bounds: Bounds, estimate_ns: u64, waited_ns: u64) -> bool {
    let bound_ns = bounds.in_flight_ns.saturating_add(bounds.in_flight_ns / FEED);
    estimate_ns > bound_ns
        && flight.all_ns <= bound_ns
        && waited_ns > bounds.in_flight_ns.saturating_mul(WAITS)
}

/// Whether a launch of `estimate_ns` may go at `now`, if a sleeping thread wakes `late_ns` late.
pub(super) fn admit(flight: Flight, bounds: Bounds, estimate_ns: u64, now: u64, late_ns: u64) -> Admission {
    if now >= bounds.until_ns {
        return Admission::Over;
    }
    let spill = match (bounds.in_flight_ns / SPILL).min(SPILL_NS) {
        spill if estimate_ns <= spill => spill,
        _ => 0,
    };
    let left = (bounds.until_ns - now).saturating_add(spill);
    let remaining = flight.remaining_ns();
    if flight.all_ns > 0 && remaining >= left {
        return Admission::Over;
    }
    let wanted = remaining.saturating_add(estimate_ns);
    // A launch slightly longer than estimated is not held back: two kernels of half the bound count as two kernels.
    if wanted > bounds.in_flight_ns.saturating_add(bounds.in_flight_ns / FEED) && flight.all_ns > 0 {
        let alone = estimate_ns >= LONG_NS;
        let feed = match alone {
            true => 0,
            false => late_ns.clamp(bounds.in_flight_ns / FEED, bounds.in_flight_ns / FED_AHEAD),
        };
        if remaining > feed || alone {
            if flight.ran_ns >= flight.head_ns.min(flight.all_ns) {
                return Admission::Late;
            }
            // Two kernels of nearly half the bound would leave the device idle in turns if the second waited for the
            // first's end.
            let fits = (wanted - bounds.in_flight_ns).max(bounds.go_ns());
            return Admission::In(fits.min(remaining - feed).max(1));
        }
    }
    // The next work has to start within the lease and to fit in full, or nearly.
    let more_ns = bounds
        .in_flight_ns
        .saturating_sub(wanted)
        .min(left.saturating_sub(wanted));
    Admission::Now { more_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(flight: Flight, bounds: Bounds, estimate_ns: u64, now: u64) -> Admission {
        super::admit(flight, bounds, estimate_ns, now, 0)
    }

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;

    fn flight(all: u64, head: u64, ran: u64) -> Flight {
        Flight {
            all_ns: all,
            head_ns: head,
            ran_ns: ran,
        }
    }

    const LEASE: Bounds = Bounds {
        until_ns: 5 * MS,
        in_flight_ns: MS,
    };

    #[test]
    fn one_kernel_of_any_length_goes_while_the_lease_lasts() {
        let empty = Flight::default();
        assert_eq!(admit(empty, LEASE, 20 * MS, 0), Admission::Now { more_ns: 0 });
        assert!(matches!(
            admit(empty, LEASE, 20 * MS, 5 * MS - 1),
            Admission::Now { .. }
        ));
        assert_eq!(admit(empty, LEASE, US, 5 * MS), Admission::Over);
    }

    #[test]
    fn what_is_in_flight_and_the_launch_fit_the_bound() {
        assert_eq!(
            admit(flight(500 * US, 100 * US, 0), LEASE, 400 * US, 0),
            Admission::Now { more_ns: 100 * US }
        );
        assert_eq!(
            admit(flight(500 * US, 500 * US, 0), LEASE, 750 * US, 0),
            Admission::In(250 * US)
        );
        // Time that has run no longer counts as ahead, but at most the time of the first work in flight.
        assert!(matches!(
            admit(flight(500 * US, 500 * US, 100 * US), LEASE, 600 * US, 0),
            Admission::Now { .. }
        ));
        // Late work is waited for, without polling for ever.
        assert_eq!(
            admit(flight(600 * US, 50 * US, MS), LEASE, 501 * US, 0),
            Admission::Late
        );
        // And one launch goes if the device would run idle.
        assert!(matches!(
            admit(flight(20 * MS, 20 * MS, 20 * MS - 15 * US), LEASE, 20 * MS, 0),
            Admission::Now { more_ns: 0 }
        ));
    }

    #[test]
    fn what_is_in_flight_ends_before_the_lease_does() {
        let long = flight(20 * MS, 20 * MS, 0);
        let lease = Bounds {
            until_ns: 5 * MS,
            in_flight_ns: u64::MAX,
        };
        let within = Bounds {
            in_flight_ns: 20 * MS,
            ..lease
        };
        assert_eq!(admit(long, within, 3 * MS, 0), Admission::Over);
        assert_eq!(
            admit(flight(MS, MS, 0), within, 3 * MS, 0),
            Admission::Now { more_ns: MS }
        );
        assert_eq!(
            admit(flight(MS, MS, 0), lease, 10 * MS, 0),
            Admission::Now { more_ns: 0 },
            "it starts within the lease"
        );
    }

    #[test]
    fn short_kernels_may_outlast_the_lease_a_little() {
        let short = 50 * US;
        let full = flight(5 * MS, short, 0);
        let lease = Bounds {
            until_ns: 5 * MS,
            in_flight_ns: 8 * MS,
        };
        assert_eq!(admit(full, lease, short, 0), Admission::Now { more_ns: 200 * US });
        assert_eq!(
            admit(flight(5250 * US, short, 0), lease, short, 0),
            Admission::Over
        );
        assert_eq!(
            admit(full, lease, 2 * MS, 0),
            Admission::Over,
            "not so one long one"
        );
        assert_eq!(admit(Flight::default(), lease, short, 5 * MS), Admission::Over);
    }

    #[test]
    fn two_kernels_a_little_over_half_the_bound_never_run_dry() {
        let bounds = Bounds {
            until_ns: 100 * MS,
            in_flight_ns: 2 * MS,
        };
        let one = 1040 * US;
        // The first has just begun: the second follows as soon as both fit, not only when the first ends.
        assert_eq!(
            admit(flight(one, one, 0), bounds, one, 0),
            Admission::In(200 * US)
        );
        assert!(matches!(
            admit(flight(one, one, 80 * US), bounds, one, 0),
            Admission::Now { .. }
        ));
        // Two kernels that were estimated at half the bound and are slightly longer are not held back either.
        assert!(matches!(
            admit(flight(1001 * US, 1001 * US, 0), bounds, 1001 * US, 0),
            Admission::Now { .. }
        ));
        // A launch that never fits follows as early as this machine needs.
        let late = |ran| super::admit(flight(20 * MS, 20 * MS, ran), bounds, 20 * MS, 0, 180 * US);
        assert_eq!(late(0), Admission::In(20 * MS - 180 * US));
        assert!(matches!(late(20 * MS - 180 * US), Admission::Now { .. }));
    }

    #[test]
    fn short_kernels_go_on_in_bunches() {
        let bounds = Bounds {
            until_ns: 100 * MS,
            in_flight_ns: 2 * MS,
        };
        let full = flight(2 * MS, 50 * US, 0);
        assert_eq!(admit(full, bounds, 50 * US, 0), Admission::In(200 * US));
        assert_eq!(
            admit(flight(1800 * US, 50 * US, 0), bounds, 50 * US, 0),
            Admission::Now { more_ns: 150 * US }
        );
    }

    #[test]
    fn a_long_launch_is_not_queued_behind_what_runs() {
        let bounds = Bounds {
            until_ns: 1000 * MS,
            in_flight_ns: 2 * MS,
        };
        let one = 80 * MS;
        let behind = |ran| admit(flight(one, one, ran), bounds, one, 0);
        assert_eq!(behind(0), Admission::In(one));
        assert_eq!(behind(one - 10 * US), Admission::In(10 * US));
        assert_eq!(behind(one), Admission::Late, "it waits for the end itself");
        assert_eq!(
            admit(Flight::default(), bounds, one, 0),
            Admission::Now { more_ns: 0 }
        );
    }

    #[test]
    fn no_bound_and_no_end() {
        let free = Bounds {
            until_ns: u64::MAX,
            in_flight_ns: u64::MAX,
        };
        for all in [0, MS, u64::MAX / 2] {
            assert!(matches!(
                admit(flight(all, US, 0), free, MS, 7),
                Admission::Now { .. }
            ));
        }
    }
}
