//! The terms of a grant besides its memory limit: what holds when memory is short, and what is said of compute.

use core::fmt;
use core::time::Duration;

/// Accounts that one slice can have: one for each of its devices.
pub const MAX_ACCOUNTS: u32 = 64;
/// The longest that an allocation may wait for room. Whoever asks for longer waits this long.
pub const MAX_ON_OOM_WAIT: Duration = Duration::from_hours(24);
/// All of a device's compute, in the parts that shares are counted in.
pub const WHOLE_COMPUTE: u32 = 10_000;

/// What becomes of a use of the device that the limiter cannot limit.
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

/// Whether a slice may run beyond its share while nobody else wants the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cap {
    /// It may.
    #[default]
    Soft,
    /// Never.
    Hard,
}

/// Who goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Throughput counts.
    #[default]
    BestEffort,
    /// The time until its work starts counts.
    LatencyCritical,
}

/// What a slice may use of its device's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputeTerms {
    /// Its share, in parts of [`WHOLE_COMPUTE`]; 0 where none was set.
    pub share: u32,
    /// Whether the share is also a bound.
    pub cap: Cap,
    /// Who goes first.
    pub class: Class,
}

/// Everything that the agent may change in a grant but the memory limit and the overhead, which change often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// What becomes of a use that cannot be limited.
    pub policy: Policy,
    /// How long an allocation waits for room before it is refused. Zero: not at all. At most [`MAX_ON_OOM_WAIT`].
    pub on_oom_wait: Duration,
    /// What a context takes of this device's memory, in bytes; 0 where it is not known.
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

    /// Whatever is not known is strict.
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
