//! A slice whose lease is long over, with launches in flight by its own word. That is so of an honest launch of unknown
//! length, and of a tenant that lies in its ledger while it passes the gate. No driver tells one from the other.
//!
//! The hardware gives such a launch one process's turns. So the use of one process, the one that used most, is excused,
//! and no more. Once that is four seconds of the device beyond the share, the slice is stopped for a moment. A launch that is in
//! flight goes on meanwhile, and its slice is let be, until it has had twice as much. Where the device stands still, all launches
//! had ended: if the slice uses it again without having given its lease back, its word was untrue, and nothing is excused.

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// The use beyond the share that is excused before the slice's word is tested: launches up to that length keep their shares.
const BELIEVED: u64 = 4 * SECOND;
/// For how long a slice is stopped at most to see whether launches are in flight.
const TEST: u64 = SECOND;
/// The same where the driver tells of the last second.
const TEST_OF_RATES: u64 = 4 * SECOND;
/// A later test takes this part of what was excused before it, and at most so long: launches that are queued ahead for a short test
/// end in a longer one.
const TEST_PART: u64 = 8;
const LONGEST_TEST: u64 = 10 * SECOND;
/// A device that stands still for so long while the slice is stopped has no launch of it in flight.
const STILL: u64 = 250 * MILLISECOND;
const STILL_OF_RATES: u64 = 1500 * MILLISECOND;
/// One part in so many of the time is no use: figures of different moments.
pub(super) const NOTHING: u64 = 10;

/// What a look found of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Now {
    /// When, in nanoseconds.
    pub at: u64,
    /// The time since the last look.
    pub time: u64,
    /// Its use since then.
    pub used: u64,
    /// That of the process that used most.
    pub most_by_one: u64,
    /// How long since then its lease had expired and was not released.
    pub outlasted: u64,
    /// Its share of the time.
    pub share: u64,
    /// Use beyond the share takes from others, or is forbidden.
    pub counts: bool,
    /// The driver's figures are of the last second.
    pub is_sampled: bool,
    /// How late the driver's figures are.
    pub late: u64,
    /// A process that was stopped ran again, and not by the agent's word.
    pub ran: bool,
}

/// How the test of a slice's word stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// There is none.
    No,
    /// Its processes are to stand still.
    Goes,
    /// They are to go on.
    Over,
}

/// What earlier looks found since a lease expired.
#[derive(Clone, Debug, Default)]
pub(super) struct Outlasting {
    /// Its lease had expired at the last look.
    is_now: bool,
    /// What was excused beyond the share.
    excused: u64,
    /// Its word is not tested again before so much is.
    tested_at: u64,
    /// When the test that goes on began.
    since: Option<u64>,
    /// For how long the device has stood still in this test.
    still: u64,
    /// The device stood still: no launch was in flight.
    stood_still: bool,
}

impl Outlasting {
    /// Whether its word was found to be untrue, if it uses the device again.
    pub fn is_untrue(&self) -> bool {
        self.is_now && self.stood_still
    }

    /// Whether it says now that launches of an expired lease are in flight.
    pub fn is_claimed(&self) -> bool {
        self.is_now
    }

    /// What of the use is excused.
    pub fn excuse(&mut self, now: &Now) -> u64 {
        if now.outlasted == 0 {
            // It has given its lease back. A test that goes on ends by itself.
            *self = Self {
                since: self.since,
                ..Self::default()
            };
            return 0;
        }
        self.is_now = true;
        if self.stood_still {
            return 0;
        }
        // Before the first test all of it: it is no more than the time for which the slice pays.
        let by_them = if self.tested_at == 0 {
            now.used
        } else {
            now.most_by_one
        };
        let excused = by_them.min(now.outlasted);
        if now.counts {
            self.excused = self.excused.saturating_add(excused).saturating_sub(now.share);
        }
        excused
    }

    /// For how long its launches have to go on at least while it is stopped, before its word counts as true.
    pub fn tests_for(&self) -> u64 {
        (self.tested_at / TEST_PART).min(LONGEST_TEST)
    }

    /// Tests its word, where that is due. The slice is stopped as this says.
    pub fn test(&mut self, now: &Now) -> Test {
        let Some(since) = self.since else {
            let is_due = self.excused >= BELIEVED.max(self.tested_at.saturating_mul(2));
            if !is_due || self.stood_still {
                return Test::No;
            }
            self.tested_at = self.excused;
            self.since = Some(now.at);
            self.still = 0;
            return Test::Goes;
        };
        if now.ran {
            // It shows nothing of launches in flight.
            self.stood_still = self.is_now;
            self.since = None;
            return Test::Over;
        }
        let (still, longest) = match now.is_sampled {
            true => (STILL_OF_RATES, TEST_OF_RATES),
            false => (STILL, TEST),
        };
        let longest = longest.max(self.tests_for());
        self.still = match now.used <= now.time / NOTHING {
            true => self.still.saturating_add(now.time),
            false => 0,
        };
        self.stood_still = self.is_now && self.still >= still.saturating_add(now.late);
        let is_over = now.at.saturating_sub(since) >= longest.saturating_add(now.late.saturating_mul(2));
        if self.stood_still || is_over || !self.is_now {
            self.since = None;
            return Test::Over;
        }
        Test::Goes
    }

    /// What was excused on a word that was untrue: it is owed.
    pub fn take_back(&mut self) -> u64 {
        match self.is_untrue() {
            true => std::mem::take(&mut self.excused),
            false => 0,
        }
    }

    /// It was stopped, and used the device all the same: its launches are in flight.
    pub fn is_true(&mut self) {
        self.stood_still = false;
        self.tested_at = self.excused.max(self.tested_at).max(BELIEVED);
        self.excused = self.tested_at;
    }
}
