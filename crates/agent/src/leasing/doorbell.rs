//! A thread for each account, which sleeps on the account's doorbell. It handles what it hears itself, without a
//! wake-up of another thread. docs/adr/0025 has the costs of the alternatives.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use divvy_ledger::Effort;

use super::Leasing;
use super::listener::ListenerHandle;
use super::pidfd_watcher::PidfdWatcher;
use crate::system::allowance::Allowance;

/// The time that a thread sleeps where nothing happens. A tenant that needs it sooner rings.
const LONG: Duration = Duration::from_secs(3600);

/// The pause in which others have the ledger, after a look that was too short for all dead processes.
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
        // Only this thread has the account's processes watched.
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
        // This is taken before the look, so that a ring from here on is not lost.
        let rings = ledger.rings();
        if listener.ended.load(Relaxed) {
            return;
        }
        let mut rest = false;
        if listener.reaps.swap(false, Relaxed) {
            rest = match allowance.is_left(Instant::now()) {
                // The lists report the ledger's fault.
                true => allowance
                    .charge(|| ledger.reap_within(&mut Effort::of_a_look()))
                    .is_ok_and(|reaped| reaped.unfinished),
                // Expensive ledgers are looked at once in a while.
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
        let _rings = ledger.wait_doorbell(rings, if rest { SOON } else { LONG });
    }
}

/// A rate limit for a slice: a burst at once, and a steady pace after it.
#[derive(Debug)]
struct Pace {
    left: u32,
    since: Instant,
    at_once: u32,
    one: Duration,
}

/// A slice is looked at ten thousand times a second. A tenant that rings more is served later, and delays no other
/// tenant.
const AT_ONCE: u32 = 64;
const ONE: Duration = Duration::from_micros(100);
const PAUSE: Duration = Duration::from_millis(1);
/// A look at so many processes counts as one more look.
const CROWD: u32 = 32;

/// A hundred of its new processes a second are watched.
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

    /// Counts a look at so many processes, and sleeps if there were too many.
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
