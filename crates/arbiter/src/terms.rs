//! What a tenant was promised, and how the whole machine is set.

use crate::Nanos;

/// A share of a device's time in parts per 10 000, from 1 to 10 000. 3000 is 30 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u16);

impl Share {
    /// The whole device.
    pub const WHOLE: Self = Self(10_000);

    /// `None` for 0 and for more than the whole device: a tenant with 0 % could never run, which no user means.
    pub fn new(parts: u16) -> Option<Self> {
        (1..=Self::WHOLE.0).contains(&parts).then_some(Self(parts))
    }

    /// Parts per 10 000.
    pub fn parts(self) -> u16 {
        self.0
    }

    /// This share of a duration, rounded down.
    pub fn of(self, duration: Nanos) -> Nanos {
        (u128::from(duration) * u128::from(self.0) / u128::from(Self::WHOLE.0)) as Nanos
    }

    /// In how long this share of the device makes `time`, rounded up.
    pub(crate) fn accrues(self, time: Nanos) -> Nanos {
        let long = (u128::from(time) * u128::from(Self::WHOLE.0)).div_ceil(u128::from(self.0));
        Nanos::try_from(long).unwrap_or(Nanos::MAX)
    }
}

/// What a tenant's part of the device is reckoned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Promised: this much of the device whenever it is wanted.
    Share(Share),
    /// Nothing is promised: what the promised shares leave is divided by these weights (at least 1).
    Weight(u16),
}

/// Whether time that no other tenant wants may be used beyond the share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// Work-conserving: yes.
    Soft,
    /// No: tokens are required, and accrue at the share.
    Hard,
}

/// How soon a tenant runs once it wants to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// In its turn by virtual time.
    BestEffort,
    /// Before every best-effort tenant while it has budget: its share of this period (a constant-bandwidth server).
    /// A long period lets longer bursts through at once, and lets best-effort tenants wait longer.
    Latency {
        /// Nanoseconds, at least 1 ms; [`Class::LATENCY`] has the default.
        period: Nanos,
    },
}

impl Class {
    /// Latency-critical, with a period of one second.
    pub const LATENCY: Self = Self::Latency {
        period: 1_000_000_000,
    };
}

/// A tenant's terms on each of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Its part of the device.
    pub part: Part,
    /// Whether it may use more.
    pub cap: Cap,
    /// How soon it runs.
    pub class: Class,
}

impl Terms {
    /// Best effort, work-conserving.
    pub fn soft(share: Share) -> Self {
        Self {
            part: Part::Share(share),
            cap: Cap::Soft,
            class: Class::BestEffort,
        }
    }

    /// Best effort, never more than the share.
    pub fn hard(share: Share) -> Self {
        Self {
            cap: Cap::Hard,
            ..Self::soft(share)
        }
    }

    /// Best effort without a promise.
    pub fn weight(weight: u16) -> Self {
        Self {
            part: Part::Weight(weight.max(1)),
            cap: Cap::Soft,
            class: Class::BestEffort,
        }
    }

    /// Latency-critical, work-conserving.
    pub fn latency(share: Share) -> Self {
        Self {
            class: Class::LATENCY,
            ..Self::soft(share)
        }
    }

    /// The promised share, if there is one.
    pub fn share(&self) -> Option<Share> {
        match self.part {
            Part::Share(share) => Some(share),
            Part::Weight(_) => None,
        }
    }

    pub(crate) fn is_latency(&self) -> bool {
        matches!(self.class, Class::Latency { .. })
    }

    /// Hard caps and the latency class are promises that cannot be kept beside an oversold device.
    pub(crate) fn is_strict(&self) -> bool {
        self.cap == Cap::Hard || self.is_latency()
    }
}
