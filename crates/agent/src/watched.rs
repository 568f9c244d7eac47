//! A process that somebody waits for or counts on, pinned so that its number cannot come to mean another.

use std::os::fd::OwnedFd;

use divvy_privileged::request::Owner;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::{privilege, procs};

/// A process that is known by a descriptor, so that its number cannot come to mean another.
#[derive(Debug)]
pub struct Watched {
    pid: u32,
    pidfd: Option<OwnedFd>,
}

impl Watched {
    /// Watches a process that is known to live now (it holds a connection to us).
    #[must_use]
    pub fn new(pid: u32) -> Self {
        let pidfd = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { pid, pidfd }
    }

    /// Watches the process of this number if it is the one that began at `start_ticks`, and lives.
    #[must_use]
    pub fn again(pid: u32, start_ticks: u64) -> Option<Self> {
        let watched = Self::new(pid);
        // Looked at after it is pinned: the number cannot have passed to another since.
        let same = procs::start_ticks(pid) == Some(start_ticks);
        (same && watched.is_alive()).then_some(watched)
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends it a signal; one that has ended is no error.
    pub fn signal(&self, signal: Signal) {
        if let Some(pidfd) = &self.pidfd
            && pidfd_send_signal(pidfd, signal) == Err(Errno::PERM)
        {
            // Whose it is nobody says here: it is of a container, or not ours to end. Pinned, so the number is its own.
            let _ended = privilege::signal(self.pid, Owner::Container, signal);
        }
    }

    /// Whether it still lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let Some(pidfd) = &self.pidfd else {
            return procs::is_alive(self.pid);
        };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // Readable means ended. A poll that fails proves nothing, and nobody is declared dead for it.
        !matches!(poll(&mut fds, Some(&now)), Ok(1..))
    }
}
