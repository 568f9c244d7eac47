//! Stands between a program and the sender of signals to `divvy run`: signals pass on, the exit status comes back.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use divvy_model::{Code, Fault};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use rustix::process::{Pid, getpid, kill_process, set_child_subreaper};

/// Signals that a user, a shell or a service manager sends to end, reload or poke a program.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// `si_code` of a signal that the kernel sent by itself (asm-generic/siginfo.h), as for Ctrl-C on a terminal.
const SI_KERNEL: i32 = 0x80;

/// This thread's signals, blocked until they are read. Threads started later inherit the mask, and so do programs,
/// until they [`let_go`].
#[derive(Debug)]
pub struct Watch {
    signals: SignalFd,
}

impl Watch {
    /// Blocks the signals from now on. Call it before any thread is started. A descendant that loses its parents
    /// becomes a child of this process, so that the agent still finds it inside the slice (docs/adr/0012).
    ///
    /// # Errors
    /// [`Code::Internal`].
    pub fn begin() -> Result<Self, Fault> {
        // Refused by kernels older than 3.4 only: then such a process is init's child, as ever.
        let _adopts = set_child_subreaper(Some(getpid()));
        let cannot = |error: nix::Error| Fault::new(Code::Internal, "cannot watch signals").because(&error);
        let set = held_back();
        set.thread_block().map_err(cannot)?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC).map_err(cannot)?;
        Ok(Self { signals })
    }

    /// Waits for the program, and passes on the signals that were meant for it. `others` are children that may end
    /// meanwhile and only have to be reaped. So do descendants of the program that lost their parents.
    ///
    /// # Errors
    /// [`Code::Internal`].
    pub fn wait(&self, program: &mut Child, others: &mut [Child]) -> Result<ExitStatus, Fault> {
        let cannot =
            |error: std::io::Error| Fault::new(Code::Internal, "cannot wait for the program").because(&error);
        loop {
            if let Some(status) = program.try_wait().map_err(cannot)? {
                return Ok(status);
            }
            reap(program.id(), others);
            match self.signals.read_signal() {
                Ok(Some(info)) => pass_on(info.ssi_signo, info.ssi_code, program),
                Ok(None) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(cannot(error.into())),
            }
        }
    }
}

/// Reaps every ended child except the program, whose status is for the caller.
fn reap(program: u32, others: &mut [Child]) {
    for other in &mut *others {
        let _reaped = other.try_wait();
    }
    let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    // The child is looked at before it is reaped, because it may be the program.
    while let Ok(status) = waitid(Id::All, ended | WaitPidFlag::WNOWAIT)
        && let Some(pid) = status.pid().filter(|pid| pid.as_raw().unsigned_abs() != program)
    {
        let _reaped = waitid(Id::Pid(pid), ended);
    }
}

/// Blocks the signal for a file at its size limit. A write then returns an error that can be reported, and the signal
/// does not end this process silently. Programs get it back with [`let_go`].
pub fn hold_back_file_size() {
    let mut set = SigSet::empty();
    set.add(Signal::SIGXFSZ);
    // Where it cannot be blocked, it ends this process as it would any other.
    let _held = set.thread_block();
}

fn held_back() -> SigSet {
    let mut set = SigSet::from_iter(PASSED_ON);
    set.add(Signal::SIGCHLD);
    set
}

/// Undoes `Watch::begin` in a process that was started under it. Signals sent meanwhile arrive now.
///
/// # Errors
/// [`Code::Internal`].
pub fn let_go() -> Result<(), Fault> {
    let mut set = held_back();
    set.add(Signal::SIGXFSZ);
    set.thread_unblock()
        .map_err(|error| Fault::new(Code::Internal, "cannot let signals through").because(&error))
}

/// The terminal sends its signals to the whole foreground group, so the program has them already. A signal that a
/// process sends to this process alone is meant for the program.
fn pass_on(number: u32, code: i32, program: &Child) {
    if code == SI_KERNEL || number == Signal::SIGCHLD as u32 {
        return;
    }
    let signal = i32::try_from(number)
        .ok()
        .and_then(rustix::process::Signal::from_named_raw);
    let pid = i32::try_from(program.id()).ok().and_then(Pid::from_raw);
    if let (Some(signal), Some(pid)) = (signal, pid) {
        // The program was not yet waited for, so the number still means this child; it may be dead, which is no error
        // here.
        let _dead = kill_process(pid, signal);
    }
}

/// The status as a shell gives it: the program's own, or 128 and the signal's number.
#[must_use]
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 125,
    };
    u8::try_from(code & 0xff).unwrap_or(125)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_told_as_a_shell_tells_it() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(exit_code(ExitStatus::from_raw(15 | 0x80)), 143);
    }
}
