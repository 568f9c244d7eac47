//! The agent's work by the clock, each kind on a thread of its own. Requests cannot delay it, and a page server or
//! driver that delays one kind delays no other.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::{Builder, sleep};
use std::time::Duration;

use tokio::sync::watch;

use crate::daemon::Daemon;
use crate::leasing::hurry;

/// How often dead processes are searched for. A limiter that runs short searches by itself, so this is for the lists.
const TICK: Duration = Duration::from_millis(100);
/// How often the processes of slices are checked for ways past the limiter. Each look reads all of /proc. An extra look
/// comes at once where a device has a new process that no ledger has.
const ROUND: Duration = Duration::from_secs(2);
/// The pause before an unsure result is checked again: longer than a process takes for an execve(2).
const AGAIN: Duration = Duration::from_millis(250);
/// How often the agent asks again for pages that a page server did not give back.
const RECALL: Duration = Duration::from_secs(1);
/// How often slices are looked at whose time may be over. Times are whole seconds.
const EXPIRY: Duration = Duration::from_secs(1);

/// Starts the threads; they end soon after the daemon does. `alive` is told after each tick whether anything lives.
///
/// # Errors
/// The system's reason why a thread cannot be had.
pub(super) fn start(daemon: &Arc<Daemon>, alive: watch::Sender<bool>) -> io::Result<()> {
    repeat("ticks", daemon, move |daemon| {
        alive.send_replace(daemon.tick());
        TICK
    })?;
    repeat("page-servers", daemon, |daemon| {
        daemon.page_servers.keep_all_up();
        TICK
    })?;
    let mut look = 0_u64;
    repeat("holder", daemon, move |daemon| {
        daemon.holder.replace();
        look += 1;
        if look.is_multiple_of(10) {
            daemon.holder.keep_up();
        }
        TICK
    })?;
    repeat("recalls", daemon, |daemon| {
        if daemon.adoption.misses_pages() {
            daemon.adoption.recall_missing();
        }
        if daemon.modes.is_untidy() {
            daemon.modes.tidy();
        }
        RECALL
    })?;
    repeat("expiry", daemon, |daemon| {
        daemon.expiries.look();
        EXPIRY
    })?;
    let mut hurries = false;
    repeat("supervisor", daemon, move |daemon| {
        // A slice past its limit goes on until the next look: programs that compute must not delay that.
        if !std::mem::replace(&mut hurries, true) {
            hurry();
        }
        daemon.supervisor.look()
    })?;
    let mut round = 0_u64;
    repeat("rounds", daemon, move |daemon| {
        daemon.compute_audit.meter();
        round += 1;
        if round.is_multiple_of(2) {
            daemon.compute_audit.audit();
        }
        ROUND / 2
    })?;
    let mut pause = ROUND;
    repeat("bypasses", daemon, move |daemon| {
        let is_news = daemon.unmanaged.wait(pause);
        pause = if daemon.bypasses.look() { AGAIN } else { ROUND };
        // A limit on the rate, however many requests come.
        if is_news { AGAIN } else { Duration::ZERO }
    })
}

/// Does something again and again on a thread of this name, each time after the pause that the last call returned.
fn repeat(
    name: &'static str,
    daemon: &Arc<Daemon>,
    mut work: impl FnMut(&Daemon) -> Duration + Send + 'static,
) -> io::Result<()> {
    let daemon: Weak<Daemon> = Arc::downgrade(daemon);
    let serve = move || {
        let mut pause = TICK;
        loop {
            sleep(pause);
            let Some(daemon) = daemon.upgrade() else {
                return;
            };
            // A panic in one call must not end the agent for all.
            match catch_unwind(AssertUnwindSafe(|| work(&daemon))) {
                Ok(next) => pause = next,
                Err(_) => tracing::error!(thread = name, "it failed, and goes on"),
            }
        }
    };
    Builder::new().name(name.into()).spawn(serve).map(drop)
}
