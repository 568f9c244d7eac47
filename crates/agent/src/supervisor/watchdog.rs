//! The watchdog: a small process that lets the stopped processes go on where the agent is killed. The agent holds the
//! other end of its standard input, which the kernel closes with the agent, however that ends.

use std::io::Read;
use std::process::{Child, Stdio};

use divvy_model::{Code, Fault};
use nix::sys::signal::{SigSet, Signal};

use super::stopped::release_left;
use crate::start::rundir::{KeepCommand, RunDir};

/// Its id in the place of a slice's, for the command that keeps one.
pub(crate) const WATCHDOG: &str = "watchdog";

/// The agent's hold on it.
#[derive(Debug)]
pub(super) struct Watchdog {
    command: KeepCommand,
    /// Its standard input is held open in here.
    child: Option<Child>,
    is_told: bool,
}

impl Watchdog {
    /// None is started yet.
    pub fn new(command: KeepCommand) -> Self {
        Self {
            command,
            child: None,
            is_told: false,
        }
    }

    /// Makes sure that one lives. Where none can be started, what is stopped waits for the next agent, as it is written
    /// down.
    pub fn keep_up(&mut self, run: &RunDir) {
        let lives = |child: &mut Child| child.try_wait().is_ok_and(|status| status.is_none());
        if self.child.as_mut().is_some_and(lives) {
            return;
        }
        let started = (self.command)(run, WATCHDOG)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .spawn();
        match started {
            Ok(child) => self.child = Some(child),
            Err(error) if !std::mem::replace(&mut self.is_told, true) => tracing::warn!(
                %error,
                "the watchdog cannot be started: were this agent killed, frozen slices would wait for the next one"
            ),
            Err(_) => {}
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Its input ends, so it does.
            drop(child.stdin.take());
            let _reaped = child.wait();
        }
    }
}

/// Waits until the agent has ended, and lets go on what that had stopped. It is the work of a process of its own.
///
/// # Errors
/// [`Code::Internal`] where it cannot hold back signals, or read.
pub(crate) fn watch(run: &RunDir) -> Result<(), Fault> {
    let cannot = |error: &dyn std::error::Error| {
        Fault::new(Code::Internal, "cannot watch over what the agent stops").because(error)
    };
    // A service manager that stops what an ended agent left sends these: the work is done first.
    let held_back = SigSet::from_iter([Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM]);
    held_back.thread_block().map_err(|error| cannot(&error))?;
    // This fails only for a leader of a group, which needs no new session to be safe from the terminal's signals.
    let _session = rustix::process::setsid();
    let mut nothing = Vec::new();
    std::io::stdin()
        .read_to_end(&mut nothing)
        .map_err(|error| cannot(&error))?;
    release_left(run);
    Ok(())
}
