//! The time of a supervised slice on one device: when it is frozen because its processes took time past the gate, and
//! when that is paid back.
//!
//! Two balances are kept. `uncharged` is the driver's figure of use less what the slice was charged for its leases. An
//! honest slice's is never far above zero, because a lease is charged in full. `beyond` is the use less the slice's
//! share of the time. A slice is guilty when both are above a bound on two looks in a row: it passes the gate, and it has
//! more than its share by that. From then on its debt is counted, without any tolerance.

use std::collections::HashMap;

use super::ProcessId;
use super::lateness::Lateness;
use super::outlasting::{NOTHING, Now, Outlasting, Test};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// The use past the gate that proves nothing: kernels that outlast their leases, and figures of different moments.
pub(crate) const TOLERANCE: u64 = 150 * MILLISECOND;
/// The same where the driver samples its figures.
const TOLERANCE_OF_RATES: u64 = 1500 * MILLISECOND;
/// The part of the time that is forgiven, in parts of 10,000: rounding by drivers.
const FORGIVEN_OF_TOTAL: u64 = 200;
const FORGIVEN_OF_RATE: u64 = 2500;
/// The same for as long as it goes on: a quarter that is forgiven for ever would be a tenant's to take. Of samples that err to both
/// sides little is left in the long run. So a small part is forgiven, a part of the charge, and a burst.
const FORGIVEN_LONG: u64 = 500;
const FORGIVEN_OF_CHARGE: u64 = 1000;
const TOLERANCE_LONG: u64 = 6 * SECOND;
/// What a driver samples it tells of the last second, so a charge comes so much before its use.
const OF_LAST: u64 = SECOND;
/// A slice that passed the gate is kept to this part of its share, in parts of 10,000, so that its share holds from the
/// burst on.
const KEPT_TO: u64 = 9000;
/// The credit at which a frozen slice runs again.
const CREDIT: u64 = 30 * MILLISECOND;
/// No more is ever owed: each debt ends.
const MOST_OWED: u64 = 20 * SECOND;
/// The charge that may be saved up for later use, beside the driver's delay.
const SLACK: u64 = 250 * MILLISECOND;
/// A slice that took no more than its share for so long is taken for an honest one again.
const PROBATION: u64 = 10 * SECOND;
/// For how long work goes on that was launched while the gate was open.
const IN_FLIGHT: u64 = 5 * SECOND;
/// The same behind a start of the agent's, for launches under leases of the agent before.
const TAKEN_OVER: u64 = 1500 * MILLISECOND;
/// For how long a process's total is remembered that the driver does not tell.
const LEFT_OUT: u64 = 10 * SECOND;
/// The charge beyond the share that is counted against one that passes the gate: no lease is waited for any longer.
const MOST_AHEAD: u64 = 8 * SECOND;
/// A slice that uses so much while it is frozen does not stand still: its freeze is of no use.
const FREEZE_FAILS: u64 = SECOND;
/// While launches of an expired lease may be in flight, a freeze fails by what other processes use than the one that uses
/// most. They may have so many times as much.
const LONGER_IN_FLIGHT: u64 = 20;

/// The driver's figure of a process's use of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Used {
    /// Nanoseconds in all.
    Total(u64),
    /// Its part of the time of late, in parts of 10,000.
    Rate(u32),
}

/// The figures of one look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look<'a> {
    /// When, in nanoseconds.
    pub at: u64,
    /// Its processes on the device. Each is vouched for at this look.
    pub used: &'a [(ProcessId, Used)],
    /// What its processes used since the last look that have ended, as far as it is in no figure of theirs, in
    /// nanoseconds.
    pub dead: u64,
    /// What the slice was charged for leases of the device so far, in nanoseconds.
    pub charged: u64,
    /// How long its leases had expired so far, with work of them in flight by its own word, in nanoseconds.
    pub outlasted: u64,
    /// A process of it that was stopped ran again, and not by the agent's word.
    pub ran: bool,
    /// Its share of the device, in parts of 10,000.
    pub share: u32,
    /// Whether use beyond the share takes from others, or is forbidden: a hard cap, or others want the device.
    pub counts: bool,
    /// Its gate is open: nothing is charged, and nothing is owed.
    pub is_open: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Nothing,
    /// The slice owes time, in nanoseconds: its processes are to be stopped, or stay stopped.
    Freeze(u64),
    /// Its processes are to stand still for a moment, to see whether launches are in flight. It owes nothing.
    Test,
    /// Its debt is paid: its processes are to go on.
    Thaw,
    /// It is stopped and uses the device on and on.
    Fails,
}

#[derive(Clone, Debug)]
struct Before {
    at: u64,
    charged: u64,
    outlasted: u64,
    /// The total of each process, and when the driver told it last.
    totals: HashMap<ProcessId, (u64, u64)>,
    /// When its totals last moved.
    moved_at: u64,
}

/// What happened since the last look.
#[derive(Clone, Copy, Debug)]
struct Since {
    time: u64,
    used: u64,
    /// The use of the process that used most.
    most_by_one: u64,
    charged: u64,
    outlasted: u64,
}

/// What earlier looks at the slice on the device saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Time {
    before: Option<Before>,
    uncharged: i64,
    /// The same where the driver samples its figures, with little forgiven: what goes on for long.
    lingers: i64,
    beyond: u64,
    /// What it was charged beyond its share, of late: one that passes the gate has that already.
    ahead: u64,
    outlasting: Outlasting,
    /// The driver's figures are samples.
    is_sampled: bool,
    /// The longest time for which the slice was charged and the driver's figures stood still.
    delay: Lateness,
    /// Behind the last look the driver told something new of some process on the device: it is not late.
    is_told: bool,
    /// The most by which its figures grew beyond the time since the last look: they told of the time before.
    late: Lateness,
    /// On the last look both balances were above their bounds.
    suspected: bool,
    /// What it owes; below zero it has credit. None while it is taken for honest.
    debt: Option<i64>,
    owed_at: u64,
    /// What it used while it was frozen this time.
    used_frozen: u64,
    /// The same by launches that may be in flight.
    went_on: u64,
    frozen: bool,
    /// Until then, use may be of launches that were made while the gate was open.
    in_flight_until: u64,
}

impl Time {
    /// Of a slice that an earlier agent made: what its programs launched under that one's leases may still run.
    pub fn of_adopted(at: u64) -> Self {
        Self {
            in_flight_until: at.saturating_add(TAKEN_OVER),
            ..Self::default()
        }
    }

    /// Whether it is to be stopped now.
    #[cfg(test)]
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Whether it owes time, or owed some a moment ago.
    pub fn pays(&self) -> bool {
        self.debt.is_some()
    }

    /// Whether it is suspected or guilty: looks come faster.
    pub fn is_watched(&self) -> bool {
        self.suspected || self.debt.is_some() || self.frozen || self.outlasting.is_untrue()
    }

    /// Whether it said that launches were in flight, and none were while it was stopped.
    pub fn is_untrue(&self) -> bool {
        self.outlasting.is_untrue()
    }

    /// The driver tells something new at the look that comes, of whichever slice's process. A slice that leaves its lease unused would
    /// else look like one whose figures are late, and have the charge for it later.
    pub fn note_told(&mut self) {
        self.is_told = true;
    }

    /// Takes the figures of a look.
    pub fn look(&mut self, look: &Look<'_>) -> Step {
        if look.is_open {
            let was_frozen = self.frozen;
            *self = Self {
                in_flight_until: look.at.saturating_add(IN_FLIGHT),
                ..Self::default()
            };
            return if was_frozen { Step::Thaw } else { Step::Nothing };
        }
        let rates = look.used.iter().any(|(_, used)| matches!(used, Used::Rate(_)));
        // A driver that samples tells nothing of a process that used nothing: that shows no delay.
        if rates && !std::mem::replace(&mut self.is_sampled, true) {
            (self.delay, self.late) = (Lateness::default(), Lateness::default());
        }
        let Some(since) = self.since_last(look) else {
            return Step::Nothing;
        };
        let Since { time, used, .. } = since;
        let share = |of: u64| part(time, u64::from(look.share.clamp(100, 10_000)) * of / 10_000);
        let now = Now {
            at: look.at,
            time,
            used,
            most_by_one: since.most_by_one,
            outlasted: since.outlasted,
            share: share(10_000),
            counts: look.counts,
            is_sampled: self.is_sampled,
            late: self.late_by(look.at),
            ran: look.ran,
        };
        let charged = since.charged.saturating_add(self.outlasting.excuse(&now));
        if look.at < self.in_flight_until {
            if used <= charged.saturating_add(time / NOTHING) {
                self.in_flight_until = 0;
            }
            return Step::Nothing;
        }
        if self.debt.is_some() {
            let may_have = self.may_have(charged, share(KEPT_TO));
            return self.pay(look, &since, may_have);
        }
        self.note_charge(charged, share(10_000), look.counts);
        match self.outlasting.test(&now) {
            Test::No => {}
            Test::Goes => {
                self.frozen = true;
                return Step::Test;
            }
            Test::Over => {
                self.frozen = false;
                return Step::Thaw;
            }
        }
        let (tolerance, forgiven) = match rates {
            true => (TOLERANCE_OF_RATES, part(time, FORGIVEN_OF_RATE)),
            false => (TOLERANCE, part(time, FORGIVEN_OF_TOTAL)),
        };
        let saved = SLACK.saturating_add(self.delay.at(look.at));
        let add = |balance: i64, forgiven: u64, saved: u64| {
            let balance = balance.saturating_add(signed(used));
            let balance = balance.saturating_sub(signed(charged.saturating_add(forgiven)));
            balance.clamp(-signed(saved), signed(MOST_OWED))
        };
        self.uncharged = add(self.uncharged, forgiven, saved);
        if self.is_sampled {
            let forgiven = part(time, FORGIVEN_LONG).saturating_add(part(charged, FORGIVEN_OF_CHARGE));
            self.lingers = add(self.lingers, forgiven, saved.saturating_add(OF_LAST));
        }
        let beyond = self.beyond.saturating_add(used).saturating_sub(share(10_000));
        self.beyond = if look.counts { beyond.min(MOST_OWED) } else { 0 };
        let is_uncharged = self.uncharged > signed(tolerance) || self.lingers > signed(TOLERANCE_LONG);
        let suspected = is_uncharged && self.beyond > tolerance;
        let guilty = suspected && self.suspected;
        self.suspected = suspected;
        if !guilty {
            return Step::Nothing;
        }
        let owed = signed(self.beyond).min(self.uncharged.max(self.lingers));
        let owed = owed.saturating_add(signed(self.outlasting.take_back()));
        self.debt = Some(owed.min(signed(MOST_OWED)));
        self.owed_at = look.at;
        self.freeze();
        Step::Freeze(self.beyond)
    }

    /// How late the driver's figures are of late, at most.
    fn late_by(&self, at: u64) -> u64 {
        self.delay.at(at).max(self.late.at(at))
    }

    fn freeze(&mut self) {
        self.frozen = true;
        self.used_frozen = 0;
        self.went_on = 0;
    }

    /// Counts the charge beyond the share. Nothing is taken from others where none wants the device.
    fn note_charge(&mut self, charged: u64, share: u64, counts: bool) {
        let ahead = self.ahead.saturating_add(charged).saturating_sub(share);
        self.ahead = if counts { ahead.min(MOST_AHEAD) } else { 0 };
    }

    /// The time that one which passes the gate may have had since the last look: its share, as far as it had not been charged
    /// for that before. A tenant that reports much work in flight is charged for seconds at a time.
    fn may_have(&mut self, charged: u64, share: u64) -> u64 {
        let rest = share.saturating_sub(charged);
        let had = rest.min(self.ahead);
        self.ahead = self.ahead - had + charged.saturating_sub(share);
        self.ahead = self.ahead.min(MOST_AHEAD);
        charged.saturating_add(rest - had)
    }

    /// What happened since the last look; none at the first.
    fn since_last(&mut self, look: &Look<'_>) -> Option<Since> {
        let before = self.before.take();
        // A driver that leaves a process out for a moment tells of it again.
        let mut totals = before
            .as_ref()
            .map_or_else(HashMap::new, |before| before.totals.clone());
        totals.retain(|_, (_, told_at)| look.at.saturating_sub(*told_at) < LEFT_OUT);
        let time = before
            .as_ref()
            .map_or(0, |before| look.at.saturating_sub(before.at));
        let (mut used, mut rate, mut most_by_one) = (0_u64, 0_u64, 0_u64);
        for (id, figure) in look.used {
            match figure {
                Used::Total(total) => {
                    let first = totals.get(id).map(|(first, _)| *first);
                    let by_it = match first {
                        Some(first) => total.saturating_sub(first),
                        // A process that was not there before has started since, or was not known to be the slice's:
                        // what it used earlier was charged earlier.
                        None => (*total).min(time),
                    };
                    used = used.saturating_add(by_it);
                    most_by_one = most_by_one.max(by_it);
                    // A figure that goes back and comes again is counted once.
                    let most = first.map_or(*total, |first| first.max(*total));
                    totals.insert(*id, (most, look.at));
                }
                Used::Rate(parts) => {
                    let by_it = part(time, u64::from(*parts));
                    rate = rate.saturating_add(by_it);
                    most_by_one = most_by_one.max(by_it);
                }
            }
        }
        let moved = used > 0 || before.is_none();
        let is_silent = !std::mem::replace(&mut self.is_told, false) && !moved;
        let moved_at = match &before {
            Some(before) if !moved => before.moved_at,
            _ => look.at,
        };
        let Some(before) = before else {
            self.before = Some(Before {
                at: look.at,
                charged: look.charged,
                outlasted: look.outlasted,
                totals,
                moved_at,
            });
            return None;
        };
        let outlasted = look.outlasted.saturating_sub(before.outlasted);
        let charged = look.charged.saturating_sub(before.charged);
        // A driver that tells late tells of all the time since it last told, and of no more.
        let told_of = look.at.saturating_sub(before.moved_at);
        if charged > 0 && is_silent && !self.is_sampled && !self.frozen {
            self.delay.note(told_of, look.at);
        }
        self.late.note(used.saturating_sub(time), look.at);
        let used = used
            .min(told_of)
            .saturating_add(rate.min(time))
            .saturating_add(look.dead);
        self.before = Some(Before {
            at: look.at,
            charged: look.charged,
            outlasted: look.outlasted,
            totals,
            moved_at,
        });
        Some(Since {
            time,
            used,
            most_by_one: most_by_one.min(told_of),
            charged,
            outlasted,
        })
    }

    /// The debt goes on: what is used adds to it, what the slice may have pays it back.
    fn pay(&mut self, look: &Look<'_>, since: &Since, may_have: u64) -> Step {
        let Since { time, used, .. } = *since;
        // Where no other wants the device, nothing is taken from them.
        let paid = if look.counts { may_have } else { time.max(may_have) };
        let debt = self.debt.unwrap_or(0).saturating_add(signed(used));
        let debt = debt.saturating_sub(signed(paid));
        let debt = debt.clamp(-signed(CREDIT), signed(MOST_OWED));
        self.debt = Some(debt);
        if used > 0 && debt > 0 {
            self.owed_at = look.at;
        }
        if !self.frozen {
            if debt > 0 {
                self.freeze();
                return Step::Freeze(debt.unsigned_abs());
            }
            if look.at.saturating_sub(self.owed_at) > PROBATION {
                self.absolve();
            }
            return Step::Nothing;
        }
        if debt <= -signed(CREDIT) {
            self.frozen = false;
            // It stood still and could take none: only from now on does it show that it takes no more.
            self.owed_at = look.at;
            return Step::Thaw;
        }
        // The first look sees what was in flight, and late figures are of the time before.
        let went_on = used.saturating_sub(time / NOTHING);
        // A launch in flight is not stopped with its process. Only what is stopped, and stays so, may have one.
        let in_flight = self.outlasting.is_claimed() && !look.ran;
        if in_flight {
            self.went_on = self.went_on.saturating_add(went_on);
            let by_others = used.saturating_sub(since.most_by_one).min(went_on);
            self.used_frozen = self.used_frozen.saturating_add(by_others / LONGER_IN_FLIGHT);
        } else {
            self.used_frozen = self.used_frozen.saturating_add(went_on);
        }
        let fails_at = FREEZE_FAILS.saturating_add(self.late_by(look.at));
        if self.used_frozen >= fails_at {
            return Step::Fails;
        }
        let by_one = self.used_frozen.saturating_mul(LONGER_IN_FLIGHT) < self.went_on / NOTHING;
        let is_long = self.went_on >= fails_at.max(self.outlasting.tests_for());
        if in_flight && is_long && by_one {
            // It told the truth.
            self.outlasting.is_true();
            self.absolve();
            return Step::Thaw;
        }
        Step::Freeze(debt.max(0).unsigned_abs())
    }

    /// It is taken for an honest one again.
    fn absolve(&mut self) {
        *self = Self {
            before: self.before.take(),
            ahead: self.ahead,
            outlasting: std::mem::take(&mut self.outlasting),
            is_sampled: self.is_sampled,
            delay: self.delay,
            late: self.late,
            ..Self::default()
        };
    }
}

fn part(time: u64, parts: u64) -> u64 {
    (u128::from(time) * u128::from(parts) / 10_000) as u64
}

fn signed(time: u64) -> i64 {
    i64::try_from(time).unwrap_or(i64::MAX)
}
