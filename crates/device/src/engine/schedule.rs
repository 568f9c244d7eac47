//! Which process has the engine when: the timeline of a device, as a pure function of what the processes asked for.
//!
//! Every process has a short row of *jobs* (kernels), each with the device time it is ready at and the engine time it
//! needs.
//! [`Schedule::advance`] deals the engine out, from where the last call stopped up to now. One process at a time has
//! the engine, in turn, for a slice each while several want it. No process needs to be awake for its turn: a job has
//! its time on the timeline, no matter which process computes it and when. That is why a busy machine loses no engine
//! time.
//!
//! A job whose kernel is still being executed is *open*: it needs at least `extent`. The timeline does not go past what
//! is known of the job at its head, but never lags more than [`MAX_LAG`]. After that an open job is charged as if it
//! ran. A process without a sign of life for that long is stopped, and its job does not keep its turn.

/// Default slice: about what the driver's is, in nanoseconds.
pub const DEFAULT_SLICE: u64 = 2_000_000;
/// What the driver calls short.
pub const SHORT_SLICE: u64 = 1_000_000;
/// What the driver calls long.
pub const LONG_SLICE: u64 = 30_000_000;
/// Jobs of a process that can be on the timeline at once.
pub const JOBS: usize = 8;
/// The longest that the timeline lags behind the clock, in nanoseconds. An open job without a sign of life stays as
/// long.
pub const MAX_LAG: u64 = 30_000_000;
/// The whole device, as widths and shares count it.
pub const WHOLE: u32 = 10_000;
/// A job that runs as fast as it can.
const FULL_RATE: u64 = 1_000_000;
/// Bound on the steps of one call; the next call does the rest.
const STEPS: usize = 20_000;

/// What is known of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// Nothing here.
    #[default]
    Free,
    /// Its kernel is being executed: it needs `extent` or more.
    Open,
    /// Open, and its kernel waits for something from outside: it runs until that comes.
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
    /// Multiprocessors that it can keep busy, of [`WHOLE`].
    pub width: u32,
}

/// A process that uses the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which of the page's places.
    pub index: usize,
    /// Engine time it had, in nanoseconds.
    pub busy: u64,
    /// The MPS server it is a client of; 0: none.
    pub server: u64,
    /// Multiprocessors that it may use there, of [`WHOLE`].
    pub share: u32,
    /// The static partition that these are, which its clients share; 0: none.
    pub partition: u64,
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

/// The timeline of a device.
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
    /// Time that passed though a process wanted it, because the process whose turn it was is stopped.
    pub idle_wanted: u64,
    /// Processes, by index.
    pub places: Vec<Place>,
}

/// The owner of a turn: one process, or the clients of one MPS server, with the jobs at their heads.
type Turn = Vec<(usize, usize, Want)>;

/// What a job wants at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    /// Nothing yet: it wants the engine from this time on.
    From(u64),
    /// The engine, for at most this long.
    For(u64),
    /// The engine, for a time that is not known yet.
    Unknown,
    /// Its process shows no sign of life.
    Nothing,
}

impl Job {
    /// Whether it is on the timeline and has not ended.
    pub fn waits(&self) -> bool {
        matches!(self.state, State::Open | State::Polling | State::Closed)
    }

    /// Engine time that it still needs, as far as is known.
    pub fn rest(&self) -> u64 {
        self.extent.saturating_sub(self.consumed)
    }

    fn want(&self, at: u64, real: u64, late: u64) -> Want {
        if self.ready > at {
            return Want::From(self.ready);
        }
        let alive = real.saturating_sub(self.touched) < MAX_LAG;
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
    /// The job that is next, and what it wants. A job that waits for the outside lets others of its process pass: they
    /// may be what it waits for.
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
    /// Deals the engine out up to now. False if it is not known yet which process has it.
    pub fn advance(&mut self, now: Now) -> bool {
        let late = now.device.saturating_sub(MAX_LAG);
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

    /// When the first job of a place to end will end, if no process asks for more. Otherwise, as an error, the latest
    /// time that is certain to come first.
    ///
    /// # Errors
    /// The latest time in nanoseconds of the device's clock that is certain to come before that end.
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

    /// Gives one stretch of the timeline to a process, at most up to `until`.
    fn step(&mut self, until: u64, real: u64, late: u64) -> bool {
        let at = self.cursor;
        let turn = self.choose(at, real, late);
        let Some(&(first, ..)) = turn.first() else {
            return self.idle(until, real, late);
        };
        let index = self.places[first].index;
        if self.owner != index || at >= self.slice_end {
            self.owner = index;
            self.slice_end = at.saturating_add(self.slice);
        }
        if turn.iter().any(|(_, _, want)| *want == Want::Unknown) {
            return false;
        }
        let rates = self.rates(&turn);
        let needs = turn
            .iter()
            .zip(&rates)
            .map(|(&(_, _, want), &(rate, _))| match want {
                Want::For(most) => scale(most, FULL_RATE, rate),
                Want::From(_) | Want::Unknown | Want::Nothing => u64::MAX,
            });
        let run = needs.min().unwrap_or(0).min(self.slice_end - at).min(until - at);
        self.cursor = at.saturating_add(run);
        let mut ended = false;
        for (&(place, job, _), (rate, part)) in turn.iter().zip(rates) {
            let place = &mut self.places[place];
            let job = &mut place.jobs[job];
            let had = scale(run, rate, FULL_RATE);
            place.busy = place.busy.saturating_add(scale(run, part, FULL_RATE));
            job.consumed = job.consumed.saturating_add(had);
            if job.state == State::Closed && job.rest() == 0 {
                job.consumed = job.extent;
                job.state = State::Done;
                job.end = self.cursor;
                ended = true;
            }
        }
        run > 0 || ended
    }

    /// No process can have the engine: time passes until one can.
    fn idle(&mut self, until: u64, real: u64, late: u64) -> bool {
        let at = self.cursor;
        let heads = || self.places.iter().filter_map(|place| place.head(at, real, late));
        let next = heads().filter_map(|(_, want)| match want {
            Want::From(ready) => Some(ready),
            _ => None,
        });
        let next = next.min().unwrap_or(u64::MAX).min(until);
        if next == u64::MAX {
            // No process wants it, and the future has no end.
            return false;
        }
        if heads().any(|(_, want)| want == Want::Nothing) {
            self.idle_wanted = self.idle_wanted.saturating_add(next - at);
        }
        self.cursor = next;
        true
    }

    /// How fast each job of a turn runs, and which part of the engine its process has meanwhile, of [`FULL_RATE`].
    fn rates(&self, turn: &Turn) -> Vec<(u64, u64)> {
        let alone = |&(place, ..): &(usize, usize, Want)| self.places[place].server == 0;
        if turn.iter().any(alone) {
            return turn.iter().map(|_| (FULL_RATE, FULL_RATE)).collect();
        }
        let used = |&(place, job, _): &(usize, usize, Want)| {
            let place = &self.places[place];
            let width = u64::from(place.jobs[job].width.clamp(1, WHOLE));
            (width, width.min(u64::from(place.share.clamp(1, WHOLE))))
        };
        // The clients of a partition share its multiprocessors.
        let within = |one: &(usize, usize, Want)| {
            let place = &self.places[one.0];
            let mine = used(one).1;
            if place.partition == 0 {
                return mine;
            }
            let beside = turn
                .iter()
                .filter(|other| self.places[other.0].partition == place.partition);
            let all: u64 = beside.map(|other| used(other).1).sum();
            mine * u64::from(place.share.clamp(1, WHOLE)).min(all) / all
        };
        let all: u64 = turn.iter().map(within).sum();
        let crowd = all.max(u64::from(WHOLE));
        turn.iter()
            .map(|one| {
                let (width, used) = (used(one).0, within(one));
                let part = used * FULL_RATE / crowd;
                // The part it uses of what it could use, and less where all together want more than there is.
                let rate = used * FULL_RATE / width * u64::from(WHOLE) / crowd;
                (rate.max(1), part)
            })
            .collect()
    }

    /// The owner of the next turn: the present one until its slice ends, then the process that comes next. Clients of a
    /// server come together.
    fn choose(&self, at: u64, real: u64, late: u64) -> Turn {
        let wanted = |place: usize| {
            let (job, want) = self.places[place].head(at, real, late)?;
            matches!(want, Want::For(_) | Want::Unknown).then_some((place, job, want))
        };
        let together = |place: usize| -> Turn {
            match self.places[place].server {
                0 => wanted(place).into_iter().collect(),
                server => (0..self.places.len())
                    .filter(|&other| self.places[other].server == server)
                    .filter_map(wanted)
                    .collect(),
            }
        };
        let leads = |place: &usize| {
            let server = self.places[*place].server;
            server == 0 || self.places.iter().position(|other| other.server == server) == Some(*place)
        };
        let owner = self.places.iter().position(|place| place.index == self.owner);
        if at < self.slice_end
            && let Some(owner) = owner
        {
            let turn = together(owner);
            if !turn.is_empty() {
                return turn;
            }
        }
        // After a server's clients comes the process that follows the first of them.
        let last = owner.map_or(self.owner, |owner| match self.places[owner].server {
            0 => self.owner,
            server => self
                .places
                .iter()
                .find(|place| place.server == server)
                .map_or(self.owner, |first| first.index),
        });
        let after = self.places.partition_point(|place| place.index <= last);
        (after..self.places.len())
            .chain(0..after)
            .filter(leads)
            .map(together)
            .find(|turn| !turn.is_empty())
            .unwrap_or_default()
    }
}

/// `value * by / of`, rounded up.
fn scale(value: u64, by: u64, of: u64) -> u64 {
    if by == of {
        return value;
    }
    let product = u128::from(value) * u128::from(by);
    u64::try_from(product.div_ceil(u128::from(of.max(1)))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn schedule(places: Vec<Place>) -> Schedule {
        Schedule {
            cursor: 0,
            owner: 9,
            slice_end: 0,
            slice: 2 * MS,
            idle_wanted: 0,
            places,
        }
    }

    fn place(index: usize, lengths: &[u64]) -> Place {
        let mut jobs = [Job::default(); JOBS];
        for (number, &extent) in lengths.iter().enumerate() {
            jobs[number] = Job {
                number: number as u64,
                state: State::Closed,
                extent,
                width: WHOLE,
                ..Job::default()
            };
        }
        Place {
            index,
            busy: 0,
            server: 0,
            share: WHOLE,
            partition: 0,
            jobs,
        }
    }

    fn at(ns: u64) -> Now {
        Now { device: ns, real: ns }
    }

    fn ends(schedule: &Schedule, place: usize) -> Vec<u64> {
        let jobs = schedule.places[place].jobs.iter();
        jobs.filter(|job| job.state == State::Done)
            .map(|job| job.end)
            .collect()
    }

    #[test]
    fn turns_are_slices_and_long_kernels_are_interrupted() {
        let mut line = schedule(vec![place(3, &[5 * MS]), place(7, &[MS, MS, MS])]);
        assert!(line.advance(at(100 * MS)));
        // 3: 0-2, 7: 2-4, 3: 4-6, 7: 6-7, 3: 7-8.
        assert_eq!(ends(&line, 1), [3 * MS, 4 * MS, 7 * MS]);
        assert_eq!(ends(&line, 0), [8 * MS]);
        assert_eq!((line.places[0].busy, line.places[1].busy), (5 * MS, 3 * MS));
        assert_eq!((line.cursor, line.idle_wanted), (100 * MS, 0));
    }

    #[test]
    fn the_line_waits_for_what_is_not_known_but_not_for_ever() {
        let mut line = schedule(vec![place(0, &[MS]), place(1, &[MS])]);
        line.places[0].jobs[0].state = State::Open;
        line.places[0].jobs[0].extent = MS / 2;
        assert!(!line.advance(at(10 * MS)));
        assert_eq!(line.cursor, MS / 2, "so far it is known");
        assert_eq!(line.predict(1, at(10 * MS)), Err(MS / 2));
        // Its process is awake, but late: it is charged as if it ran.
        line.places[0].jobs[0].touched = 40 * MS;
        assert!(!line.advance(at(MAX_LAG + 10 * MS)));
        assert_eq!(ends(&line, 1), [3 * MS]);
        assert_eq!(line.places[0].busy, 9 * MS);
        // Stopped: the others have the engine alone.
        line.places[1] = place(1, &[20 * MS]);
        assert!(line.advance(at(80 * MS)));
        assert_eq!(ends(&line, 1), [30 * MS]);
        assert_eq!(
            line.idle_wanted,
            50 * MS,
            "what the stopped one would have done is not known"
        );
    }

    #[test]
    fn one_that_waits_for_the_outside_lets_its_own_pass() {
        let mut line = schedule(vec![place(0, &[0, MS])]);
        line.places[0].jobs[0].state = State::Polling;
        assert!(line.advance(at(5 * MS)));
        assert_eq!(ends(&line, 0), [MS]);
        assert_eq!(line.places[0].busy, 5 * MS);
    }

    #[test]
    fn clients_of_a_server_run_together() {
        let mut line = schedule(vec![
            place(0, &[4 * MS]),
            place(1, &[4 * MS]),
            place(2, &[4 * MS]),
        ]);
        for client in &mut line.places[..2] {
            client.server = 9;
            client.share = WHOLE / 4;
        }
        line.places[1].jobs[0].width = WHOLE / 4;
        assert!(line.advance(at(100 * MS)));
        // The server's turns are 0-2, 4-6 and from 8 on. A narrow kernel is as fast as ever, a wide one four times
        // slower.
        assert_eq!(ends(&line, 2), [8 * MS]);
        assert_eq!(ends(&line, 1), [6 * MS]);
        assert_eq!(ends(&line, 0), [(16 + 4) * MS]);
        assert_eq!(line.places[1].busy, MS);
    }

    #[test]
    fn clients_of_a_partition_have_what_it_has_and_others_their_own() {
        let mut line = schedule((0..4).map(|n| place(n, &[4 * MS])).collect());
        for client in &mut line.places {
            client.server = 1;
            // Two of a quarter each in the first partition, one in the second, one in none that uses little.
            (client.partition, client.share) = [(7, 2500), (7, 2500), (8, 5000), (0, 2500)][client.index];
        }
        line.places[3].jobs[0].width = 1000;
        assert!(line.advance(at(100 * MS)));
        assert_eq!(ends(&line, 3), [4 * MS], "there is room for it");
        assert_eq!(ends(&line, 2), [8 * MS]);
        assert_eq!(ends(&line, 0), [32 * MS]);
        assert_eq!(ends(&line, 1), [32 * MS]);
        assert_eq!(line.places[0].busy + line.places[1].busy, 8 * MS);
    }

    #[test]
    fn a_crowded_server_divides_the_processor() {
        let mut line = schedule((0..4).map(|n| place(n, &[MS])).collect());
        for client in &mut line.places {
            client.server = 1;
        }
        assert!(line.advance(at(100 * MS)));
        for n in 0..4 {
            assert_eq!(ends(&line, n), [4 * MS]);
        }
    }

    fn any_job() -> impl Strategy<Value = Job> {
        let time = prop_oneof![0..10 * MS, any::<u64>()];
        let state = prop_oneof![
            Just(State::Free),
            Just(State::Open),
            Just(State::Polling),
            Just(State::Closed),
            Just(State::Done)
        ];
        (
            time.clone(),
            state,
            time.clone(),
            time.clone(),
            time.clone(),
            time,
            any::<u32>(),
        )
            .prop_map(|(number, state, ready, extent, consumed, touched, width)| Job {
                number,
                state,
                ready,
                extent,
                consumed,
                end: 0,
                touched,
                width,
            })
    }

    fn any_line() -> impl Strategy<Value = Schedule> {
        let place = (
            any::<u64>(),
            0..3u64,
            any::<u32>(),
            prop::array::uniform8(any_job()),
        );
        let places = prop::collection::vec(place, 0..5);
        (0..20 * MS, 0..9usize, any::<u64>(), 1..10 * MS, places).prop_map(
            |(cursor, owner, end, slice, places)| {
                let places = places.into_iter().enumerate();
                Schedule {
                    cursor,
                    owner,
                    slice_end: end.min(cursor + slice),
                    slice,
                    idle_wanted: 0,
                    places: places
                        .map(|(index, (busy, server, share, jobs))| Place {
                            index: index * 2,
                            busy,
                            server,
                            share,
                            partition: server / 2,
                            jobs,
                        })
                        .collect(),
                }
            },
        )
    }

    proptest! {
        /// Whatever the page says: it ends, and never goes past now.
        #[test]
        fn rubbish_is_dealt_with(mut line in any_line(), now in 0..100 * MS) {
            line.advance(at(now));
            prop_assert!(line.cursor <= now.max(20 * MS));
            for place in 0..5 {
                let _ = line.predict(place, at(now));
            }
        }

        /// However often and whenever a process looks, the timeline is the same.
        #[test]
        fn looking_changes_nothing(
            lengths in prop::collection::vec(prop::collection::vec(1..7 * MS, 1..8), 1..5),
            looks in prop::collection::vec(0..40 * MS, 0..30),
        ) {
            let places = || lengths.iter().enumerate().map(|(n, l)| place(n, l)).collect();
            let (mut once, mut often) = (schedule(places()), schedule(places()));
            let mut looks = looks.clone();
            looks.sort_unstable();
            for look in looks {
                often.advance(at(look));
            }
            once.advance(at(1000 * MS));
            often.advance(at(1000 * MS));
            prop_assert_eq!(&once.places, &often.places);
            // Work is conserved, and no process waited while the engine was idle.
            let sum: u64 = lengths.iter().flatten().sum();
            let last = once.places.iter().flat_map(|place| place.jobs).map(|job| job.end).max();
            prop_assert_eq!(last, Some(sum));
        }

        /// Two processes that always want the engine get the same time, to a slice.
        #[test]
        fn shares_are_equal(a in 1..9 * MS, b in 1..9 * MS, until in 1..60 * MS) {
            let mut line = schedule(vec![place(0, &[a; 8]), place(1, &[b; 8])]);
            let until = until.min(8 * a).min(8 * b);
            line.advance(at(until));
            prop_assert!(line.places[0].busy.abs_diff(line.places[1].busy) <= 2 * MS);
            prop_assert_eq!(line.places[0].busy + line.places[1].busy, until);
        }
    }
}
