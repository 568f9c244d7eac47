//! The terms of a grant besides its memory limit: what happens when memory is short, and how compute is shared.

use core::fmt;
use core::time::Duration;

/// Accounts that one slice can have: one for each of its devices.
pub const MAX_ACCOUNTS: u32 = 64;
/// The longest time that an allocation may wait for memory. Longer settings are cut to it.
pub const MAX_ON_OOM_WAIT: Duration = Duration::from_hours(24);
/// All of a device's compute, in the parts that shares are counted in.
pub const WHOLE_COMPUTE: u32 = 10_000;

/// What happens to a use of the device that the limiter cannot limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// It is refused.
    #[default]
    Strict,
    /// It goes on, and is counted by kind: see [`crate::Bypass`].
    BestEffort,
}

impl fmt::Display for Policy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Strict => "strict",
            Self::BestEffort => "best-effort",
        })
    }
}

/// Whether a slice may run beyond its share while no other slice wants the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cap {
    /// It may.
    #[default]
    Soft,
    /// Never.
    Hard,
}

/// Which goal has priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Throughput.
    #[default]
    BestEffort,
    /// The time until its work starts.
    LatencyCritical,
}

/// A slice's part of its device's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputeTerms {
    /// Its share, in parts of [`WHOLE_COMPUTE`]; 0 where none was set.
    pub share: u32,
    /// Whether the share is also an upper bound.
    pub cap: Cap,
    /// Which goal has priority.
    pub class: Class,
}

/// Everything else that the agent may change in a grant. The memory limit and the overhead are not here, since they
/// change often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// What happens to a use that cannot be limited.
    pub policy: Policy,
    /// How long an allocation waits for memory before it is refused. Zero: not at all. At most [`MAX_ON_OOM_WAIT`].
    pub on_oom_wait: Duration,
    /// The cost of a context in this device's memory, in bytes; 0 if it is not known.
    pub context_bytes: u64,
    /// Bytes that the slice may allocate beyond its memory limit, in managed memory that the host backs. Zero: none.
    pub spill_limit_bytes: u64,
    /// Its share of the device's time.
    pub compute: ComputeTerms,
}

impl Policy {
    pub(crate) fn code(self) -> u32 {
        self as u32
    }

    /// An unknown value counts as strict.
    pub(crate) fn of_code(code: u32) -> Self {
        if code == Self::BestEffort as u32 {
            Self::BestEffort
        } else {
            Self::Strict
        }
    }
}

impl Cap {
    pub(crate) fn code(self) -> u32 {
        self as u32
    }

    pub(crate) fn of_code(code: u32) -> Self {
        if code == Self::Hard as u32 {
            Self::Hard
        } else {
            Self::Soft
        }
    }
}

impl Class {
    pub(crate) fn code(self) -> u32 {
        self as u32
    }

    pub(crate) fn of_code(code: u32) -> Self {
        if code == Self::LatencyCritical as u32 {
            Self::LatencyCritical
        } else {
            Self::BestEffort
        }
    }
}
