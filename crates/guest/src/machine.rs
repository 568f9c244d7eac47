//! QEMU as a child that does not outlive the process which serves it: without the relay, its memory would be of no slice.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_parent_process_death_signal,
};

/// A machine's process. It is killed when this is dropped.
#[derive(Debug)]
pub struct Machine(Child);

impl Machine {
    /// Starts it. The kernel kills it when the calling thread ends, in whatever way. So call it from a thread that lives as
    /// long as the process, as its first one.
    ///
    /// # Errors
    /// The system's reason.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let own = getpid();
        // SAFETY: the closure makes two system calls, which take no lock and allocate nothing.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have ended before the kernel was told.
                match getppid() == Some(own) {
                    true => Ok(()),
                    false => Err(Errno::SRCH.into()),
                }
            });
        }
        command.spawn().map(Self)
    }

    /// A descriptor that is readable once the process has ended.
    ///
    /// # Errors
    /// The system's reason.
    pub fn ended(&self) -> Result<OwnedFd, Errno> {
        let number = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        pidfd_open(number.ok_or(Errno::SRCH)?, PidfdFlags::empty())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The system's reason.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        self.0.wait()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Of a process that was waited for already, both do nothing.
        let _killed = self.0.kill();
        let _status = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_machine_ends_with_the_thread_that_started_it() {
        let start = || Machine::start(Command::new("sleep").arg("60")).expect("it starts");
        let machine = std::thread::spawn(start).join().expect("no panic");
        assert_eq!(machine.wait().expect("it ended").signal(), Some(9));
    }
}
