//! The time of a device that processes used and took with them: they ended before a look saw the figure, or lived
//! between two looks. A driver that counts it tells the sum for all that have ended, and names none of them.
//!
//! What a slice's charge exceeds its seen use by explains some of that sum, where processes of it ended: an honest slice of
//! short programs is charged for all of them. The rest was used past the gate. It is shared out in proportion to what each slice was *seen* to use
//! past the gate of late, at most three times that. So a slice that was never seen past the gate pays nothing. While there
//! is a rest, or while a slice is past the gate and something is unseen, looks come so fast that little is.

use std::collections::HashMap;

const MILLISECOND: u64 = 1_000_000;
/// The time after which the balances are forgotten, in nanoseconds.
const REMEMBERED: u64 = 2000 * MILLISECOND;
/// Seen use beyond the charge that proves nothing: work in flight, and figures of different moments.
const TOLERANCE: i64 = (100 * MILLISECOND).cast_signed();
/// An unexplained use from which on looks come fast.
const NOTABLE: i64 = (50 * MILLISECOND).cast_signed();
/// No more than this many times what was seen of a slice is billed as unseen.
const TIMES_SEEN: i64 = 3;

/// One living process on the device.
#[derive(Clone, Debug)]
pub(crate) struct Living {
    /// Its number.
    pub pid: u32,
    /// Its use of the device in all, in nanoseconds.
    pub used: u64,
    /// Its slice, by id; none for a process that is in no slice.
    pub slice: Option<String>,
}

/// A slice's charge for leases of the device.
#[derive(Clone, Debug)]
pub(crate) struct Charged {
    /// The slice, by id.
    pub slice: String,
    /// Its charge in all, in nanoseconds.
    pub charged: u64,
    /// How long its leases had expired with work of them in flight, by its own word, in all. That explains what one process of
    /// it used. 0 if its word is untrue.
    pub outlasted: u64,
    /// Its gate is open: nothing is charged.
    pub is_open: bool,
}

/// What a look tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The use that is billed to each slice since the last look, in nanoseconds.
    pub bills: HashMap<String, u64>,
    /// Some use is unexplained: the next look is to come soon.
    pub hunts: bool,
}

/// One slice's balances, of late.
#[derive(Clone, Copy, Debug, Default)]
struct Balance {
    /// Its seen use less its charge.
    beyond: i64,
    /// What was billed to it as unseen.
    billed: i64,
    /// Its charge in all at the last look.
    charged: Option<u64>,
    /// Its `outlasted` at the last look.
    outlasted: u64,
    /// When a process of it was last found to have ended.
    died_at: Option<u64>,
}

/// What earlier looks at a device saw.
#[derive(Debug, Default)]
pub(crate) struct Dead {
    /// When the last look was, and the use of all that had ended by then.
    before: Option<(u64, u64)>,
    /// The use and the slice of each process that lived then.
    living: HashMap<u32, (u64, Option<String>)>,
    /// Those that are in no slice have one balance together.
    balances: HashMap<Option<String>, Balance>,
    /// The use that no look saw and no charge explains.
    unexplained: i64,
    /// The use that no look saw, of late.
    unseen: i64,
}

impl Dead {
    /// Takes the figures of a look at `at`, in nanoseconds. `dead` is the use of all processes that have ended.
    pub fn look(&mut self, at: u64, dead: u64, living: &[Living], charges: &[Charged]) -> Finding {
        let before = std::mem::take(&mut self.living);
        let mut taken = before.clone();
        // By slice: its use, and that of the process that used most.
        let mut seen: HashMap<Option<String>, (u64, u64)> = HashMap::new();
        for process in living {
            let known = match before.get(&process.pid) {
                // The number is another's now: the one that had it before has ended.
                Some((used, slice)) if *used <= process.used && *slice == process.slice => {
                    taken.remove(&process.pid);
                    *used
                }
                _ => 0,
            };
            let used = process.used - known;
            let (of_slice, most) = seen.entry(process.slice.clone()).or_default();
            *of_slice = of_slice.saturating_add(used);
            *most = used.max(*most);
            self.living
                .insert(process.pid, (process.used, process.slice.clone()));
        }
        let Some((looked_at, dead_before)) = self.before.replace((at, dead)) else {
            self.note_charges(charges);
            return Finding::default();
        };
        let time = at.saturating_sub(looked_at);
        if time > REMEMBERED || charges.iter().any(|charge| charge.is_open) {
            // What happened while there were no looks is unknown, and what is not charged explains nothing.
            self.balances.clear();
            (self.unexplained, self.unseen) = (0, 0);
            self.note_charges(charges);
            return Finding::default();
        }
        self.forget(time, charges);
        for (_, slice) in taken.values() {
            self.balances.entry(slice.clone()).or_default().died_at = Some(at);
        }
        let taken = taken
            .values()
            .fold(0_u64, |sum, (used, _)| sum.saturating_add(*used));
        let unseen = signed(dead.saturating_sub(dead_before).min(taken.saturating_add(time)));
        let was_unexplained = self.unexplained;
        // A look may find the figure of one that ends on both sides: the next look takes that back.
        let most = signed(REMEMBERED);
        self.unexplained = (was_unexplained + unseen - signed(taken)).clamp(-most, most);
        self.unseen = (self.unseen + unseen - signed(taken)).clamp(-most, most);
        for (slice, (used, _)) in &seen {
            let balance = self.balances.entry(slice.clone()).or_default();
            balance.beyond += signed((*used).min(time.saturating_mul(2)));
        }
        for charge in charges {
            let balance = self.balances.entry(Some(charge.slice.clone())).or_default();
            let known = balance.charged.replace(charge.charged).unwrap_or(charge.charged);
            balance.beyond -= signed(charge.charged.saturating_sub(known));
            let outlasted = charge.outlasted.saturating_sub(balance.outlasted);
            balance.outlasted = charge.outlasted;
            let by_one = seen.get(&Some(charge.slice.clone())).map_or(0, |(_, most)| *most);
            balance.beyond -= signed(by_one.min(outlasted));
            balance.beyond = balance.beyond.clamp(-most, most);
            // Its charge explains what was not seen of it. Where none of its processes ended, its leases lasted longer than
            // its work: others used the device meanwhile.
            let has_dead = balance
                .died_at
                .is_some_and(|died| at.saturating_sub(died) < REMEMBERED);
            let explained = match has_dead {
                true => self.unexplained.min(-balance.beyond).max(0),
                false => 0,
            };
            self.unexplained -= explained;
            balance.beyond += explained;
        }
        let bills = self.share_out(self.unexplained.min(was_unexplained).max(0));
        Finding {
            bills,
            hunts: self.unexplained > NOTABLE
                || self.balances.values().any(|balance| balance.billed > NOTABLE),
        }
    }

    /// Bills the unexplained use to those that were seen past the gate, in proportion to that.
    fn share_out(&mut self, unexplained: i64) -> HashMap<String, u64> {
        let beyond = |balance: &Balance| (balance.beyond - TOLERANCE).max(0);
        let total: i64 = self.balances.values().map(beyond).sum();
        let mut bills = HashMap::new();
        if total == 0 || unexplained == 0 {
            return bills;
        }
        for (slice, balance) in &mut self.balances {
            let part = i128::from(unexplained) * i128::from(beyond(balance)) / i128::from(total);
            let part = i64::try_from(part).unwrap_or(i64::MAX);
            let part = part.min((beyond(balance) * TIMES_SEEN - balance.billed).max(0));
            balance.billed += part;
            self.unexplained -= part;
            if let Some(slice) = slice.as_ref().filter(|_| part > 0) {
                bills.insert(slice.clone(), part.unsigned_abs());
            }
        }
        bills
    }

    fn note_charges(&mut self, charges: &[Charged]) {
        for charge in charges {
            let balance = self.balances.entry(Some(charge.slice.clone())).or_default();
            balance.charged = Some(charge.charged);
            balance.outlasted = charge.outlasted;
        }
    }

    /// The balances fade with time.
    fn forget(&mut self, time: u64, charges: &[Charged]) {
        let left = REMEMBERED.saturating_sub(time);
        let fade = |balance: &mut i64| {
            *balance = (i128::from(*balance) * i128::from(left) / i128::from(REMEMBERED)) as i64;
        };
        fade(&mut self.unexplained);
        fade(&mut self.unseen);
        for balance in self.balances.values_mut() {
            fade(&mut balance.beyond);
            fade(&mut balance.billed);
        }
        let is_charged = |slice: &str| charges.iter().any(|charge| charge.slice == slice);
        self.balances.retain(|slice, balance| {
            balance.beyond != 0 || balance.billed != 0 || slice.as_deref().is_some_and(is_charged)
        });
    }
}

fn signed(time: u64) -> i64 {
    i64::try_from(time).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = MILLISECOND;

    /// One slice's programs.
    struct Programs {
        id: &'static str,
        /// Its part of the device, in percent.
        part: u64,
        /// Its charge, in percent of its use.
        charged: u64,
        /// How long each lives, in milliseconds.
        life: u64,
    }

    fn programs(id: &'static str, part: u64, charged: u64, life: u64) -> Programs {
        Programs {
            id,
            part,
            charged,
            life,
        }
    }

    /// Slices that start one process after the other on a device, for ten seconds. Looks come as they are asked for.
    /// Returns what was billed to each, and the looks.
    fn play(all: &[Programs]) -> (HashMap<String, u64>, u64) {
        let mut state = Dead::default();
        let mut billed: HashMap<String, u64> = HashMap::new();
        let (mut next, mut looks) = (0, 0);
        for at in 0..10_000_u64 {
            if at < next {
                continue;
            }
            looks += 1;
            let living: Vec<Living> = all
                .iter()
                .enumerate()
                .map(|(number, one)| Living {
                    pid: (at / one.life % 1000) as u32 * 10 + number as u32 + 1,
                    used: at % one.life * MS * one.part / 100,
                    slice: Some(one.id.into()).filter(|id| id != "outside"),
                })
                .collect();
            let charges: Vec<Charged> = all
                .iter()
                .map(|one| Charged {
                    slice: one.id.into(),
                    charged: at * MS * one.part / 100 * one.charged / 100,
                    outlasted: 0,
                    is_open: false,
                })
                .filter(|charge| charge.slice != "outside")
                .collect();
            let dead = all
                .iter()
                .map(|one| at / one.life * one.life * MS * one.part / 100);
            let found = state.look(at * MS, dead.sum(), &living, &charges);
            for (slice, bill) in found.bills {
                *billed.entry(slice).or_default() += bill;
            }
            next = at + if found.hunts { 20 } else { 250 };
        }
        (billed, looks)
    }

    #[test]
    fn the_slice_that_was_seen_past_the_gate_pays_for_its_dead() {
        let (billed, looks) = play(&[programs("thief", 60, 0, 90), programs("honest", 30, 100, 70)]);
        assert!(billed["thief"] > 300 * MS, "{billed:?}");
        assert!(!billed.contains_key("honest"), "{billed:?}");
        assert!(looks > 200, "looks come fast: {looks}");
    }

    /// Its leases last while the thief uses the device, so its charge is far more than its use.
    #[test]
    fn a_charge_for_time_that_was_stolen_explains_nothing() {
        let (billed, looks) = play(&[
            programs("thief", 75, 0, 90),
            programs("honest", 25, 400, 1_000_000),
        ]);
        assert!(billed["thief"] > 300 * MS, "{billed:?}");
        assert!(
            !billed.contains_key("honest") && looks > 200,
            "{billed:?} {looks}"
        );
    }

    #[test]
    fn honest_slices_of_short_programs_pay_nothing_and_are_looked_at_seldom() {
        let (billed, looks) = play(&[programs("one", 50, 100, 90), programs("two", 30, 100, 70)]);
        assert!(billed.is_empty(), "{billed:?}");
        assert!(looks < 60, "{looks}");
    }

    #[test]
    fn a_slice_does_not_pay_for_what_a_program_outside_of_all_used() {
        let (billed, _) = play(&[programs("outside", 70, 0, 90), programs("honest", 30, 100, 70)]);
        assert!(billed.is_empty(), "{billed:?}");
    }

    #[test]
    fn an_open_gate_bills_nothing() {
        let mut state = Dead::default();
        for n in 0..100 {
            let at = n * 250 * MS;
            let living = [Living {
                pid: n as u32,
                used: 100 * MS,
                slice: Some("lone".into()),
            }];
            let charges = [Charged {
                slice: "lone".into(),
                charged: 0,
                outlasted: 0,
                is_open: true,
            }];
            assert_eq!(state.look(at, at, &living, &charges), Finding::default());
        }
    }

    #[test]
    fn what_a_look_finds_on_both_sides_is_not_billed() {
        let mut state = Dead::default();
        let living = |used| {
            [Living {
                pid: 1,
                used,
                slice: Some("a".into()),
            }]
        };
        let mut billed = 0;
        for n in 1..40_u64 {
            let at = n * 100 * MS;
            // Passes the gate with a tenth of the device; nothing of it is unseen.
            let found = state.look(at, 0, &living(at / 10), &[]);
            billed += found.bills.values().sum::<u64>();
        }
        let at = 4000 * MS;
        billed += state
            .look(at, at / 10, &living(at / 10), &[])
            .bills
            .values()
            .sum::<u64>();
        billed += state
            .look(at + 100 * MS, at / 10, &[], &[])
            .bills
            .values()
            .sum::<u64>();
        assert_eq!(billed, 0);
    }
}
