//! The thread that acts by the clock: ends of leases, the arbiter's timers, heartbeats and samples.

use std::num::NonZeroU64;
use std::sync::{PoisonError, Weak};
use std::thread;
use std::time::Duration;

use divvy_arbiter::Nanos;

use super::figures::INTERVAL;
use super::{Leasing, monotonic};

const STACK: usize = 256 << 10;

/// Without a slice there is nothing to do by the clock.
const LONG: Duration = Duration::from_secs(3600);

/// The longest time, in nanoseconds, by which a gate is closed before its lease's end: late enough for the renewal that
/// comes before.
const EARLIEST: Nanos = 100_000;

/// Starts the thread. It ends with [`Leasing::stop`].
///
/// # Errors
/// The system's reason.
pub(super) fn start(leasing: Weak<Leasing>) -> std::io::Result<()> {
    let thread = thread::Builder::new().name("leases".into()).stack_size(STACK);
    thread.spawn(move || serve(&leasing)).map(drop)
}

fn serve(leasing: &Weak<Leasing>) {
    // A lease's end that is noticed 50 µs late is 1 % of it. Where the system refuses real-time priority, that happens.
    let _slack = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    super::hurry();
    let mut beat_at = 0;
    while let Some(leasing) = leasing.upgrade()
        && leasing.keep_time(&mut beat_at)
    {}
}

impl Leasing {
    /// Does what is due, and sleeps until something is. Returns whether it should be called again.
    fn keep_time(&self, beat_at: &mut Nanos) -> bool {
        let now = monotonic();
        let beats = now >= *beat_at;
        if beats {
            *beat_at = now.saturating_add(INTERVAL);
        }
        let leases = self.with(|state, now| {
            state.tick(now);
            if beats {
                state.beat();
                // For events without a doorbell: a process that was reaped, a report that came before the doorbell's
                // thread.
                state.look_at_all(now);
                state.note_thrash(now);
                state.take_samples(now);
            }
            !state.leaseholders.is_empty()
        });
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        if locked.ended {
            return false;
        }
        let wake_at = locked.state.deadline().unwrap_or(Nanos::MAX);
        let wake_at = if leases { wake_at.min(*beat_at) } else { wake_at };
        locked.alarm_at = wake_at;
        let sleep = match wake_at {
            Nanos::MAX => LONG,
            at => Duration::from_nanos(at.saturating_sub(monotonic())).min(LONG),
        };
        if !sleep.is_zero() {
            // A spurious wake-up is harmless.
            let woken = self.earlier.wait_timeout(locked, sleep);
            let (mut locked, why) = woken.unwrap_or_else(PoisonError::into_inner);
            locked.alarm_at = 0;
            if why.timed_out() {
                // The process whose gate closes sleeps as well, and wakes up as late as this thread.
                let late = monotonic().saturating_sub(wake_at).min(EARLIEST);
                locked.state.early = (locked.state.early * 7 + 2 * late).div_ceil(8).min(EARLIEST);
            }
        }
        true
    }
}
