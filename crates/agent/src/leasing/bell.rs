//! A thread for each account, which sleeps on its bell: what it hears it deals with itself, without another thread's
//! being woken. docs/adr/0025 has what the alternatives cost.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use divvy_ledger::attach::Pages;
use divvy_ledger::{Effort, Ledger};

use super::Leasing;
use super::undertaker::{MOST, Undertaker};
use crate::system::allowance::Allowance;

/// How long a thread sleeps where nothing happens. Whoever wants it sooner rings.
const LONG: Duration = Duration::from_secs(3600);

/// How long it lets others have the ledger before it goes on with the dead that one look was too short for.
const SOON: Duration = Duration::from_millis(10);

/// A thread's stack. Nothing on it is large.
const STACK: usize = 256 << 10;

/// What the others have of a bell's thread.
#[derive(Debug)]
pub(super) struct Rope {
    /// The arbiter's number of the slice.
    pub number: u64,
    pages: Arc<Vec<Pages>>,
    place: usize,
    /// The account's device, by UUID.
    device: String,
    /// Whose the slice is.
    uid: u32,
    ended: AtomicBool,
    reaps: AtomicBool,
    newcomers: Mutex<Vec<u32>>,
}

impl Rope {
    pub fn new(number: u64, uid: u32, pages: Arc<Vec<Pages>>, place: usize, device: String) -> Self {
        Self {
            number,
            pages,
            place,
            device,
            uid,
            newcomers: Mutex::default(),
            ended: AtomicBool::new(false),
            reaps: AtomicBool::new(false),
        }
    }

    fn ledger(&self) -> &Ledger {
        &self.pages[self.place].ledger
    }

    /// Has the thread look for the dead, and then at the living. A reaper may have to wait for another that a hostile
    /// process keeps from its turn, so nobody does it for two slices.
    pub fn reap(&self) {
        self.reaps.store(true, Relaxed);
        self.ledger().ring();
    }

    /// Has the thread watch processes that came. The caller may hold the desk, so nothing is asked of the system here but
    /// a wake-up, for the caller may be another thread.
    pub fn came(&self, pids: &[u32]) {
        if pids.is_empty() {
            return;
        }
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST.saturating_sub(newcomers.len());
        if room > 0 {
            newcomers.extend(pids.iter().take(room));
            drop(newcomers);
            self.ledger().ring();
        }
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.ended.store(true, Relaxed);
        self.ledger().ring();
    }
}

impl Rope {
    /// Has those watched who came. Whom there is no patience for the clock looks for.
    fn watch_newcomers(self: &Arc<Self>, undertaker: &Undertaker, watches: &mut Patience) {
        let newcomers = std::mem::take(&mut *self.newcomers.lock().unwrap_or_else(PoisonError::into_inner));
        for pid in newcomers {
            if watches.may_go_on(Instant::now()) {
                undertaker.watch(self, pid, self.uid);
            }
        }
    }
}

/// Starts the thread.
///
/// # Errors
/// The system's reason.
pub(super) fn listen(rope: &Arc<Rope>, leasing: Weak<Leasing>) -> std::io::Result<()> {
    let rope = rope.clone();
    let thread = thread::Builder::new()
        .name(format!("bell-{}", rope.number))
        .stack_size(STACK);
    let undertaker = leasing.upgrade().and_then(|leasing| leasing.undertaker.clone());
    let serve = move || {
        serve(&rope, &leasing, undertaker.as_deref());
        // Nobody but this thread has them watched.
        undertaker.iter().for_each(|undertaker| undertaker.forget(&rope));
    };
    thread.spawn(serve).map(drop)
}

fn serve(rope: &Arc<Rope>, leasing: &Weak<Leasing>, undertaker: Option<&Undertaker>) {
    super::hurry();
    let ledger = rope.ledger();
    let mut patience = Patience::of(AT_ONCE, ONE);
    let mut watches = Patience::of(WATCHES_AT_ONCE, WATCH);
    let mut allowance = Allowance::default();
    let mut looks = 0;
    loop {
        // Taken before the look: what is rung from here on is heard.
        let rung = ledger.rung();
        if rope.ended.load(Relaxed) {
            return;
        }
        let mut rest = false;
        if rope.reaps.swap(false, Relaxed) {
            rest = match allowance.is_left(Instant::now()) {
                // What is wrong with the ledger the lists will say.
                true => allowance
                    .charge(|| ledger.reap_within(&mut Effort::of_a_look()))
                    .is_ok_and(|reaped| reaped.unfinished),
                // Dear ones are looked at now and then.
                false => true,
            };
            rope.reaps.fetch_or(rest, Relaxed);
        }
        let Some(leasing) = leasing.upgrade() else {
            return;
        };
        let asked = ledger.looks_asked();
        if std::mem::replace(&mut looks, asked) != asked {
            leasing.wanted.add(&rope.device);
        }
        let crowd = leasing.look(rope.number);
        drop(leasing);
        if let Some(undertaker) = undertaker {
            rope.watch_newcomers(undertaker, &mut watches);
        }
        patience.take(crowd);
        let _rung = ledger.wait_bell(rung, if rest { SOON } else { LONG });
    }
}

/// How often something is done for a slice: some times at once, and at a pace for ever.
#[derive(Debug)]
struct Patience {
    left: u32,
    since: Instant,
    at_once: u32,
    one: Duration,
}

/// A slice is looked at ten thousand times a second. Whoever rings more is heard later, and nobody else is.
const AT_ONCE: u32 = 64;
const ONE: Duration = Duration::from_micros(100);
const PAUSE: Duration = Duration::from_millis(1);
/// A look at so many processes counts as one more.
const CROWD: u32 = 32;

/// Its new processes are watched a hundred a second.
const WATCHES_AT_ONCE: u32 = 64;
const WATCH: Duration = Duration::from_millis(10);

impl Patience {
    fn of(at_once: u32, one: Duration) -> Self {
        Self {
            left: at_once,
            since: Instant::now(),
            at_once,
            one,
        }
    }

    /// Counts a look at so many processes, and sleeps where there were too many.
    fn take(&mut self, crowd: u32) {
        if let Some(pause) = self.pause_after(crowd, Instant::now()) {
            thread::sleep(pause);
        }
    }

    fn pause_after(&mut self, crowd: u32, now: Instant) -> Option<Duration> {
        let looks = 1 + crowd / CROWD;
        let over = (0..looks).filter(|_| !self.may_go_on(now)).count();
        let over = u32::try_from(over).ok().filter(|over| *over > 0)?;
        Some(PAUSE.max(self.one * over))
    }

    fn may_go_on(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.since).as_micros() / self.one.as_micros();
        if let Ok(earned @ 1..) = u32::try_from(earned.min(u128::from(self.at_once))) {
            self.left = self.left.saturating_add(earned).min(self.at_once);
            self.since = now;
        }
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_looked_at_less_often() {
        let begin = Instant::now();
        let looks_at = |crowd: u32| {
            let mut patience = Patience::of(AT_ONCE, ONE);
            patience.since = begin;
            let (mut clock, mut looks) = (begin, 0);
            while clock < begin + Duration::from_secs(1) {
                looks += 1;
                clock += Duration::from_micros(5);
                clock += patience.pause_after(crowd, clock).unwrap_or_default();
            }
            looks
        };
        let (few, thousands) = (looks_at(8), looks_at(2000));
        assert!((5_000..=10_100).contains(&few), "{few}");
        assert!((50..=400).contains(&thousands), "{thousands}");
    }

    #[test]
    fn who_rings_without_end_is_heard_ten_thousand_times_a_second() {
        let begin = Instant::now();
        let mut patience = Patience::of(AT_ONCE, ONE);
        patience.since = begin;
        let mut clock = begin;
        let mut looks = 0;
        while clock < begin + Duration::from_secs(1) {
            looks += 1;
            clock += Duration::from_micros(5);
            if !patience.may_go_on(clock) {
                clock += PAUSE;
            }
        }
        assert!((5_000..=10_100).contains(&looks), "{looks}");
        clock += Duration::from_secs(1);
        assert!((1..AT_ONCE).all(|_| patience.may_go_on(clock)), "forgiven");
    }
}
