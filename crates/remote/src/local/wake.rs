//! How the two sides of a channel wake each other, and how long they wait.

use core::sync::atomic::AtomicU32;
use core::time::Duration;

use divvy_ring::Limits;
use divvy_ring::doorbell::{Doorbell, Futex, Naps};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub enum Wake {
    /// Both are processes of one kernel.
    Kernel(Futex),
    /// One of them is in a virtual machine: no wake of a kernel's reaches the other.
    Naps(Naps),
}

impl Wake {
    /// For a region that lies in a part of a file, as that of a virtual machine, or in a file of its own.
    pub fn of(is_part: bool) -> Self {
        match is_part {
            true => Self::Naps(Naps::default()),
            false => Self::Kernel(Futex),
        }
    }

    /// How long a side waits. A machine may be suspended for days, a program stopped in the middle of a message, and a worker
    /// takes no more launches while a long kernel runs: only the socket says that the other side is gone.
    pub fn limits(&self) -> Limits {
        let limits = Limits {
            stall: Duration::from_secs(30 * 24 * 3600),
            ..Limits::default()
        };
        match self {
            Self::Kernel(_) => limits,
            Self::Naps(_) => Limits {
                look: Duration::from_secs(1),
                ..limits
            },
        }
    }
}

impl Doorbell<AtomicU32> for Wake {
    fn wait(&self, signal: &AtomicU32, seen: u32, limit: Duration) {
        match self {
            Self::Kernel(futex) => futex.wait(signal, seen, limit),
            Self::Naps(naps) => naps.wait(signal, seen, limit),
        }
    }

    fn wait_on(&self, signal: &AtomicU32, seen: u32, limit: Duration, waited: Duration) {
        match self {
            Self::Kernel(futex) => futex.wait_on(signal, seen, limit, waited),
            Self::Naps(naps) => naps.wait_on(signal, seen, limit, waited),
        }
    }

    fn ring(&self, signal: &AtomicU32) {
        match self {
            Self::Kernel(futex) => futex.ring(signal),
            Self::Naps(naps) => naps.ring(signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that Ctrl-Z stops in the middle of a message, and one whose launches fill the ring behind a long kernel, go on.
    #[test]
    fn no_side_gives_up_one_that_lives() {
        for is_part in [false, true] {
            let limits = Wake::of(is_part).limits();
            assert!(limits.stall > Duration::from_secs(24 * 3600));
            assert_eq!(limits.reply, None);
            assert!(limits.look <= Duration::from_secs(1), "its end is seen soon");
        }
    }
}
