//! A process that is waited for or counted on, pinned so that its number cannot come to mean another.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use divvy_privileged::request::Owner;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::system::privilege;
use crate::system::procs::{Life, Stat, is_gone};

/// The functions that ask the system about processes. Tests replace them by errors.
#[derive(Debug)]
struct System {
    pin: fn(u32) -> Result<OwnedFd, Errno>,
    stat: fn(u32) -> io::Result<Stat>,
}

static SYSTEM: System = System { pin, stat: Stat::of };

fn pin(pid: u32) -> Result<OwnedFd, Errno> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pidfd_open(raw.ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

/// A process that is known by a descriptor, so that its number cannot come to mean another. Where no descriptor was
/// free it is known by its number and start time, and pinned as soon as that is possible.
#[derive(Debug)]
pub struct Watched {
    pid: u32,
    /// When it began, as far as that is known.
    since: Option<u64>,
    pidfd: OnceLock<OwnedFd>,
    system: &'static System,
}

impl Watched {
    /// Watches a process that is known to live now (it holds a connection to us).
    #[must_use]
    pub fn new(pid: u32) -> Self {
        Self::new_by(pid, &SYSTEM)
    }

    fn new_by(pid: u32, system: &'static System) -> Self {
        let pidfd = OnceLock::new();
        if let Ok(pinned) = (system.pin)(pid) {
            let _first = pidfd.set(pinned);
        }
        Self {
            pid,
            since: (system.stat)(pid).ok().map(|stat| stat.start_ticks),
            pidfd,
            system,
        }
    }

    /// Watches the process of this number, unless it is known that the one that began at `since` is gone.
    #[must_use]
    pub fn again(pid: u32, since: u64) -> Option<Self> {
        Self::again_by(pid, since, &SYSTEM)
    }

    fn again_by(pid: u32, since: u64, system: &'static System) -> Option<Self> {
        let watched = Self {
            pid,
            since: Some(since),
            pidfd: OnceLock::new(),
            system,
        };
        watched.is_alive().then_some(watched)
    }

    /// Watches the process that has this number now, if one lives.
    #[must_use]
    pub fn now(pid: u32) -> Option<Self> {
        Self::again(pid, crate::system::procs::start_ticks(pid)?)
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal to a process of this user; one that has ended is no error.
    pub fn signal(&self, signal: Signal) {
        if let Some(pidfd) = self.pinned() {
            let _ended = pidfd_send_signal(pidfd, signal);
        }
    }

    /// Sends a signal to a process of user `uid`, or to one of a container where that is allowed. Returns whether it
    /// was sent.
    pub fn signal_as(&self, in_container: bool, uid: u32, signal: Signal) -> bool {
        let Some(pidfd) = self.pinned() else {
            return false;
        };
        // A descriptor does not reserve the number, so the start time goes along.
        let as_one_of = |owner| {
            let since = self.since;
            since.is_some_and(|since| privilege::signal(self.pid, since, owner, signal).is_ok())
        };
        // Root might signal each process. The kernel judges for the user, as it does where there is a helper.
        if !in_container && uid != 0 && privilege::is_root_itself() {
            return as_one_of(Owner::User(uid));
        }
        match pidfd_send_signal(pidfd, signal) {
            Ok(()) => true,
            // The helper may signal it, and checks its user again.
            Err(Errno::PERM) => (in_container && as_one_of(Owner::Container)) || as_one_of(Owner::User(uid)),
            Err(_) => false,
        }
    }

    /// Lets a process go on that this agent has stopped, though it has become another user's since. A helper does that for
    /// what it has stopped itself. Returns whether the signal was sent. Only for what the agent's own list has as stopped.
    pub fn go_on(&self, in_container: bool, uid: u32) -> bool {
        self.signal_as(in_container, uid, Signal::CONT)
            || self
                .pinned()
                .is_some_and(|pidfd| pidfd_send_signal(pidfd, Signal::CONT).is_ok())
    }

    /// Whether it may still live: an unknown state does not count as an end.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.life() != Life::Gone
    }

    /// Whether it lives.
    #[must_use]
    pub fn life(&self) -> Life {
        if let Some(pidfd) = self.pinned() {
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            return match poll(&mut fds, Some(&now)) {
                Ok(0) => Life::Alive,
                // Readable means ended.
                Ok(_) => Life::Gone,
                Err(_) => Life::Unknown,
            };
        }
        match (self.system.stat)(self.pid) {
            Ok(stat) if self.since.is_some_and(|since| since != stat.start_ticks) => Life::Gone,
            Ok(stat) if stat.has_ended() => Life::Gone,
            Ok(_) => Life::Alive,
            // A /proc that hides other users' processes says the same of those, so the number itself has to be free.
            Err(error) if is_gone(&error) && (self.system.pin)(self.pid).err() == Some(Errno::SRCH) => {
                Life::Gone
            }
            Err(_) => Life::Unknown,
        }
    }

    /// Its descriptor; opened now where there was none before.
    fn pinned(&self) -> Option<&OwnedFd> {
        if let Some(pidfd) = self.pidfd.get() {
            return Some(pidfd);
        }
        let since = self.since?;
        let pinned = (self.system.pin)(self.pid).ok()?;
        // The process is looked at after it is pinned, so the number cannot have passed to another since.
        let stat = (self.system.stat)(self.pid).ok()?;
        (stat.start_ticks == since).then(|| self.pidfd.get_or_init(|| pinned))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    static OUT_OF_DESCRIPTORS: AtomicBool = AtomicBool::new(true);

    static EXHAUSTED: System = System {
        pin: |pid| match OUT_OF_DESCRIPTORS.load(Relaxed) {
            true => Err(Errno::MFILE),
            false => pin(pid),
        },
        stat: |pid| match OUT_OF_DESCRIPTORS.load(Relaxed) {
            true => Err(io::Error::from_raw_os_error(Errno::MFILE.raw_os_error())),
            false => Stat::of(pid),
        },
    };

    #[test]
    fn an_agent_without_descriptors_takes_none_for_dead_and_pins_them_later() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("a process");
        let since = Stat::of(child.id()).expect("it lives").start_ticks;
        let watched = Watched::again_by(child.id(), since, &EXHAUSTED).expect("not known to be gone");
        let new = Watched::new_by(child.id(), &EXHAUSTED);
        assert_eq!((watched.life(), new.life()), (Life::Unknown, Life::Unknown));
        assert!(watched.is_alive() && new.is_alive());

        OUT_OF_DESCRIPTORS.store(false, Relaxed);
        assert_eq!(watched.life(), Life::Alive);
        assert!(watched.pidfd.get().is_some(), "pinned as soon as it could be");
        // From now on by the descriptor alone.
        OUT_OF_DESCRIPTORS.store(true, Relaxed);
        assert_eq!(watched.life(), Life::Alive);
        child.kill().expect("killed");
        while watched.life() != Life::Gone {
            std::thread::yield_now();
        }
        child.wait().expect("reaped");
        OUT_OF_DESCRIPTORS.store(false, Relaxed);
        assert_eq!(new.life(), Life::Gone);
        assert!(Watched::again_by(child.id(), since, &EXHAUSTED).is_none());
    }

    #[test]
    fn root_alone_signals_as_the_slices_user_and_lets_what_it_stopped_go_on() {
        use std::os::unix::process::CommandExt;
        const USER: u32 = 54_321;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let sleep = |user: u32| {
            let mut sleep = std::process::Command::new("sleep");
            sleep.arg("60").uid(user).gid(user).spawn().expect("a process")
        };
        let (mut roots, mut users) = (sleep(0), sleep(USER));
        let pinned = Watched::now(roots.id()).expect("it lives");
        assert!(!pinned.signal_as(false, USER, Signal::TERM), "it is root's");
        pinned.signal(Signal::STOP);
        let is_stopped = || Stat::of(roots.id()).expect("it lives").state == 'T';
        while !is_stopped() {
            std::thread::yield_now();
        }
        // It was the user's when it was stopped.
        assert!(pinned.go_on(false, USER));
        while is_stopped() {
            std::thread::yield_now();
        }
        let its = Watched::now(users.id()).expect("it lives");
        assert!(!its.signal_as(false, USER + 1, Signal::TERM), "another user's");
        assert!(its.signal_as(false, USER, Signal::TERM));
        users.wait().expect("ended");
        roots.kill().expect("ours");
        roots.wait().expect("reaped");
    }

    #[test]
    fn a_number_in_anothers_hands_is_not_the_process() {
        let own = std::process::id();
        let since = Stat::of(own).expect("we live").start_ticks;
        assert!(Watched::again(own, since).is_some());
        assert!(Watched::again(own, since + 1).is_none());
        assert!(Watched::again(0, since).is_none(), "no process has it");
        // A /proc that shows nothing of a process whose number is in use.
        static HIDING: System = System {
            pin,
            stat: |_| Err(io::ErrorKind::NotFound.into()),
        };
        let hidden = Watched::again_by(own, since, &HIDING).expect("not known to be gone");
        assert_eq!(hidden.life(), Life::Unknown);
    }
}
