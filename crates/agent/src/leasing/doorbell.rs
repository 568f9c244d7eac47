//! A thread for each account, which sleeps on its doorbell: what it hears it deals with itself, without another thread's
//! being woken. docs/adr/0025 has what the alternatives cost.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use divvy_ledger::Effort;

use super::Leasing;
use super::listener::ListenerHandle;
use super::pidfd_watcher::PidfdWatcher;
use crate::system::allowance::Allowance;

/// How long a thread sleeps where nothing happens. A tenant that wants it sooner rings.
const LONG: Duration = Duration::from_secs(3600);

/// How long it lets others have the ledger before it goes on with the dead that one look was too short for.
const SOON: Duration = Duration::from_millis(10);

/// A thread's stack. Nothing on it is large.
const STACK: usize = 256 << 10;

/// Watches new processes. Those over the rate limit are found by the periodic look.
fn watch_newcomers(listener: &Arc<ListenerHandle>, watcher: &PidfdWatcher, watches: &mut Pace) {
    for pid in listener.newcomers() {
        if watches.may_go_on(Instant::now()) {
            watcher.watch(listener, pid, listener.uid);
        }
    }
}

/// Starts the thread.
///
/// # Errors
/// The system's reason.
pub(super) fn listen(listener: &Arc<ListenerHandle>, leasing: Weak<Leasing>) -> std::io::Result<()> {
    let listener = listener.clone();
    let thread = thread::Builder::new()
        .name(format!("doorbell-{}", listener.number))
        .stack_size(STACK);
    let watcher = leasing.upgrade().and_then(|leasing| leasing.watcher.clone());
    let serve = move || {
        serve(&listener, &leasing, watcher.as_deref());
        // Only this thread has them watched.
        watcher.iter().for_each(|watcher| watcher.forget(&listener));
    };
    thread.spawn(serve).map(drop)
}

fn serve(listener: &Arc<ListenerHandle>, leasing: &Weak<Leasing>, watcher: Option<&PidfdWatcher>) {
    super::hurry();
    let ledger = listener.ledger();
    let mut pace = Pace::of(AT_ONCE, ONE);
    let mut watches = Pace::of(WATCHES_AT_ONCE, WATCH);
    let mut allowance = Allowance::default();
    let mut looks = 0;
    loop {
        // Taken before the look: what is rung from here on is heard.
        let rung = ledger.rung();
        if listener.ended.load(Relaxed) {
            return;
        }
        let mut rest = false;
        if listener.reaps.swap(false, Relaxed) {
            rest = match allowance.is_left(Instant::now()) {
                // What is wrong with the ledger the lists will say.
                true => allowance
                    .charge(|| ledger.reap_within(&mut Effort::of_a_look()))
                    .is_ok_and(|reaped| reaped.unfinished),
                // Dear ones are looked at now and then.
                false => true,
            };
            listener.reaps.fetch_or(rest, Relaxed);
        }
        let Some(leasing) = leasing.upgrade() else {
            return;
        };
        let asked = ledger.looks_asked();
        if std::mem::replace(&mut looks, asked) != asked {
            leasing.wanted.add(&listener.device);
        }
        let crowd = leasing.look(listener.number);
        drop(leasing);
        if let Some(watcher) = watcher {
            watch_newcomers(listener, watcher, &mut watches);
        }
        pace.take(crowd);
        let _rung = ledger.wait_bell(rung, if rest { SOON } else { LONG });
    }
}

/// How often something is done for a slice: some times at once, and at a pace for ever.
#[derive(Debug)]
struct Pace {
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

impl Pace {
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
            let mut pace = Pace::of(AT_ONCE, ONE);
            pace.since = begin;
            let (mut clock, mut looks) = (begin, 0);
            while clock < begin + Duration::from_secs(1) {
                looks += 1;
                clock += Duration::from_micros(5);
                clock += pace.pause_after(crowd, clock).unwrap_or_default();
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
        let mut pace = Pace::of(AT_ONCE, ONE);
        pace.since = begin;
        let mut clock = begin;
        let mut looks = 0;
        while clock < begin + Duration::from_secs(1) {
            looks += 1;
            clock += Duration::from_micros(5);
            if !pace.may_go_on(clock) {
                clock += PAUSE;
            }
        }
        assert!((5_000..=10_100).contains(&looks), "{looks}");
        clock += Duration::from_secs(1);
        assert!((1..AT_ONCE).all(|_| pace.may_go_on(clock)), "forgiven");
    }
}
