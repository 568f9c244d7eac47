//! Who has the engine when: the time line of a device, as a pure function of what the processes asked for.
//!
//! Every process has a short row of *jobs* (kernels) with the device time each is ready at and the engine time it needs.
//! [`Schedule::advance`] deals the engine out, from where the last call stopped up to now: one process at a time, in turn, a
//! slice each while several want it. Nobody needs to be awake for its turn: a job has its time on the line whoever
//! computes it, and whenever. That is why a busy machine loses no engine time.
//!
//! A job whose kernel is still being executed is *open*: it needs at least `extent`. The line does not go past what is known
//! of the job at its head, but never lags more than [`PATIENCE`]: then an open job is charged as if it ran. One whose
//! process shows no sign of life for that long (it is stopped) does not keep its turn.

/// Jobs of a process that can be on the line at once.
pub const JOBS: usize = 8;
/// The longest that the line lags behind the clock, and that an open job stays without a sign of life, in nanoseconds.
pub const PATIENCE: u64 = 30_000_000;
/// Bound on the steps of one call: what is left, the next call does.
const STEPS: usize = 20_000;

/// What is known of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// Nothing here.
    #[default]
    Free,
    /// Its kernel is being executed: it needs `extent` or more.
    Open,
    /// Open, and its kernel waits for something from outside: it runs for as long as it is let.
    Polling,
    /// It needs `extent`.
    Closed,
    /// It ended at `end`.
    Done,
}

/// A kernel's demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Job {
    /// Its place among the process's jobs; they begin in this order.
    pub number: u64,
    /// What is known of it.
    pub state: State,
    /// Device time from which it could run.
    pub ready: u64,
    /// Engine time it needs, in nanoseconds.
    pub extent: u64,
    /// Engine time it had.
    pub consumed: u64,
    /// Device time at which it ended.
    pub end: u64,
    /// Real time of the last sign of life of its process, while it is open.
    pub touched: u64,
}

/// A process that uses the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which of the page's places.
    pub index: usize,
    /// Engine time it had, in nanoseconds.
    pub busy: u64,
    /// Its jobs, in no order.
    pub jobs: [Job; JOBS],
}

/// The two clocks: the device's, and the one of the machine, which differ where the device's leaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Device clock, in nanoseconds.
    pub device: u64,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub real: u64,
}

/// The line of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Dealt out up to here, in device time.
    pub cursor: u64,
    /// Index of the place that has the engine, or had it last.
    pub owner: usize,
    /// When its slice ends.
    pub slice_end: u64,
    /// A slice, in nanoseconds.
    pub slice: u64,
    /// Processes, by index.
    pub places: Vec<Place>,
}

/// What a job wants at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    /// Nothing yet; from this time on.
    From(u64),
    /// The engine, for at most this long.
    For(u64),
    /// Nobody knows yet how long.
    Unknown,
    /// Its process shows no sign of life.
    Nothing,
}

impl Job {
    /// Whether it is on the line and has not ended.
    pub fn waits(&self) -> bool {
        matches!(self.state, State::Open | State::Polling | State::Closed)
    }

    /// Engine time that it is known to need still.
    pub fn rest(&self) -> u64 {
        self.extent.saturating_sub(self.consumed)
    }

    fn want(&self, at: u64, real: u64, late: u64) -> Want {
        if self.ready > at {
            return Want::From(self.ready);
        }
        let alive = real.saturating_sub(self.touched) < PATIENCE;
        match self.state {
            State::Closed => Want::For(self.rest()),
            State::Polling if alive => Want::For(u64::MAX),
            State::Open if self.rest() > 0 => Want::For(self.rest()),
            State::Open if !alive => Want::Nothing,
            State::Open if late > at => Want::For(late - at),
            State::Open => Want::Unknown,
            State::Free | State::Done | State::Polling => Want::Nothing,
        }
    }
}

impl Place {
    /// The job that is next, and what it wants. One that waits for the outside lets others of its process pass: they may
    /// be what it waits for.
    fn head(&self, at: u64, real: u64, late: u64) -> Option<(usize, Want)> {
        let mut first: Option<(usize, Want)> = None;
        let mut order: [usize; JOBS] = std::array::from_fn(|n| n);
        order.sort_unstable_by_key(|&n| self.jobs[n].number);
        for n in order {
            let job = &self.jobs[n];
            if !job.waits() {
                continue;
            }
            let want = job.want(at, real, late);
            if job.state != State::Polling {
                return match (want, first) {
                    (Want::From(_) | Want::Nothing, Some(polling)) => Some(polling),
                    _ => Some((n, want)),
                };
            }
            if matches!(want, Want::For(_)) {
                first.get_or_insert((n, want));
            }
        }
        first
    }
}

impl Schedule {
    /// Deals the engine out up to now; false if it is not known yet whom it is.
    pub fn advance(&mut self, now: Now) -> bool {
        let late = now.device.saturating_sub(PATIENCE);
        for _ in 0..STEPS {
            if self.cursor >= now.device {
                return true;
            }
            if !self.step(now.device, now.real, late) {
                return false;
            }
        }
        true
    }

    /// When the first job of a place to end will end, if nobody asks for more; or the latest time that is certain to come
    /// first, as an error.
    pub fn predict(&self, place: usize, now: Now) -> Result<u64, u64> {
        let mut future = self.clone();
        for _ in 0..STEPS {
            let Some(own) = future.places.iter().find(|own| own.index == place) else {
                break;
            };
            let ended = own.jobs.iter().filter(|job| job.state == State::Done);
            if let Some(end) = ended.map(|job| job.end).min() {
                return Ok(end);
            }
            if !own.jobs.iter().any(Job::waits) || !future.step(u64::MAX, now.real, 0) {
                break;
            }
        }
        Err(future.cursor)
    }

    /// Gives one stretch of the line to somebody, at most up to `until`.
    fn step(&mut self, until: u64, real: u64, late: u64) -> bool {
        let at = self.cursor;
        let Some((place, job, want)) = self.choose(at, real, late) else {
            let next = self
                .places
                .iter()
                .filter_map(|place| match place.head(at, real, late) {
                    Some((_, Want::From(ready))) => Some(ready),
                    _ => None,
                });
            let Some(next) = next.min() else {
                // Nobody wants it. The future has no end then.
                self.cursor = if until == u64::MAX { at } else { until };
                return until != u64::MAX;
            };
            self.cursor = next.min(until);
            return true;
        };
        let index = self.places[place].index;
        if self.owner != index || at >= self.slice_end {
            self.owner = index;
            self.slice_end = at.saturating_add(self.slice);
        }
        let Want::For(most) = want else { return false };
        let run = most.min(self.slice_end - at).min(until - at);
        let place = &mut self.places[place];
        let job = &mut place.jobs[job];
        job.consumed = job.consumed.saturating_add(run);
        place.busy = place.busy.saturating_add(run);
        self.cursor = at.saturating_add(run);
        if job.state == State::Closed && job.rest() == 0 {
            job.state = State::Done;
            job.end = self.cursor;
        } else if run == 0 {
            return false;
        }
        true
    }

    /// Whose turn it is: the owner's until its slice ends, then whoever comes next.
    fn choose(&self, at: u64, real: u64, late: u64) -> Option<(usize, usize, Want)> {
        let wanted = |place: usize| {
            let (job, want) = self.places[place].head(at, real, late)?;
            matches!(want, Want::For(_) | Want::Unknown).then_some((place, job, want))
        };
        let after = self.places.partition_point(|place| place.index <= self.owner);
        if at < self.slice_end
            && let Some(owner) = after
                .checked_sub(1)
                .filter(|&n| self.places[n].index == self.owner)
            && let Some(turn) = wanted(owner)
        {
            return Some(turn);
        }
        (after..self.places.len()).chain(0..after).find_map(wanted)
    }
}
