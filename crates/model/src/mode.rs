//! The ways in which slices share a device. A device is shared in one way at a time.

use serde::{Deserialize, Serialize};

use crate::terms::is_default;
use crate::words;

/// How the slices of a device share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In turn, by leases that the agent hands out: shares of any size.
    #[default]
    Lease,
    /// In turn, as the hardware does by itself: so many equal parts.
    Timeslice,
    /// At the same time, under NVIDIA's MPS.
    Mps,
    /// Each on a MIG instance of its own.
    Mig,
}

impl Mode {
    /// What it does, in a line.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::Lease => {
                "one slice at a time, for some milliseconds, by virtual time: shares of any size, hard or soft"
            }
            Self::Timeslice => "the hardware's own turns, all equal, among a set number of slices",
            Self::Mps => "kernels of several slices at the same time, each on a part of the multiprocessors",
            Self::Mig => "each slice on a partition of the hardware of its own",
        }
    }

    /// When to take it.
    #[must_use]
    pub fn take_when(self) -> &'static str {
        match self {
            Self::Lease => {
                "shares are to mean what they say, or a user waits for answers; programs that fill the device"
            }
            Self::Timeslice => "equal parts are enough, or a program does its own launches past any library",
            Self::Mps => "many small kernels of one user's programs leave the device half empty",
            Self::Mig => "tenants do not trust one another, or must not feel one another; the device has MIG",
        }
    }

    /// What it does *not* protect against. Every screen that offers a mode shows it.
    #[must_use]
    pub fn not_protected(self) -> &'static str {
        match self {
            Self::Lease => {
                "a program that sets out to bypass the gate, unless it is supervised or enforced; a kernel that never ends takes turns \
                 with the others"
            }
            Self::Timeslice => {
                "unequal requests: parts are equal, and each neighbour adds its whole turn to every wait"
            }
            Self::Mps => {
                "a fault of one program, which ends the others of the same server; contention for caches and memory bandwidth"
            }
            Self::Mig => {
                "contention for PCIe and host memory; no other program can use what an instance leaves idle"
            }
        }
    }
}

words! { Mode, "way of sharing": Lease "lease", Timeslice "timeslice", Mps "mps", Mig "mig" }

/// How long a process keeps a GPU that several share in turn, where there are no leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeSlice {
    /// As the driver likes.
    Default,
    /// About 1 ms.
    Short,
    /// About 2 ms.
    Medium,
    /// About 30 ms.
    Long,
}

impl TimeSlice {
    /// The driver's number for it.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Default => 0,
            Self::Short => 1,
            Self::Medium => 2,
            Self::Long => 3,
        }
    }
}

// In the order of the driver's numbers for them.
words! { TimeSlice, "time slice": Default "default", Short "short", Medium "medium", Long "long" }

/// A way of sharing a device with what belongs to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeTerms {
    /// How its device is shared.
    #[serde(default, rename = "share_mode", skip_serializing_if = "is_default")]
    pub mode: Mode,
    /// Of a device shared by the hardware's turns: into how many parts; by default as the agent is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Of such a device: how long a turn is; by default the driver decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_slice: Option<TimeSlice>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_both_ways() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
            let stored = serde_json::to_value(mode).expect("written");
            assert_eq!(stored, mode.name());
        }
        for (number, length) in (0..).zip(TimeSlice::ALL) {
            assert_eq!((length.name().parse(), length.code()), (Ok(length), number));
        }
        assert!("MPS".parse::<Mode>().is_err() && "never".parse::<TimeSlice>().is_err());
    }
}
