//! The terms of a slice: what it is promised of a device's time, how the device is shared, and how strictly its limits hold.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Compute, Isolation, ModeTerms, words};

/// What to do where a limit cannot be enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Fail with a clear error.
    #[default]
    Strict,
    /// Go on, and count each bypass.
    BestEffort,
}

/// What the agent does to a process of a supervised slice that takes more than the slice has, the strictest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOveruse {
    /// It ends the process that holds memory beyond the limit, and freezes a slice that took time beyond its share.
    #[default]
    End,
    /// It freezes the slice, for memory as well. It ends only processes that use the device though they are frozen.
    Freeze,
    /// It only reports.
    Report,
}

words! { OnOveruse, "way to act": End "end", Freeze "freeze", Report "report" }

words! { Policy, "policy": Strict "strict", BestEffort "best-effort" }

/// Whether a slice may run beyond its share while no other wants the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cap {
    /// It may: the device is not idle while a slice wants it.
    #[default]
    Soft,
    /// Never.
    Hard,
}

/// Who goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Each in its turn: throughput counts.
    #[default]
    BestEffort,
    /// Before all best effort, within its share: the time until its work starts counts.
    Latency,
}

words! { Cap, "cap": Soft "soft", Hard "hard" }

words! { Class, "class": Latency "latency", BestEffort "best-effort" }

/// A slice's part of what the promised shares leave, against the others without a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Weight(pub u16);

impl Weight {
    /// The largest.
    pub const MAX: Self = Self(10_000);
}

impl Default for Weight {
    /// In the middle of the scale, so that some may have less.
    fn default() -> Self {
        Self(100)
    }
}

impl FromStr for Weight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(weight @ 1..=10_000) => Ok(Self(weight)),
            _ => Err(format!(
                "`{text}` is no weight; choose a whole number from 1 to {}",
                Self::MAX.0
            )),
        }
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// All that is said of a slice's compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeTerms {
    /// Its share of compute, where one was asked for: of its devices, or of the slice that it is inside of.
    #[serde(default, rename = "compute", skip_serializing_if = "Option::is_none")]
    pub share: Option<Compute>,
    /// Without a share: its weight among those that have none; 100 by default.
    #[serde(default, rename = "compute_weight", skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// Whether the share is a bound too.
    #[serde(default, rename = "compute_cap", skip_serializing_if = "is_default")]
    pub cap: Cap,
    /// Which slice goes first.
    #[serde(default, rename = "compute_class", skip_serializing_if = "is_default")]
    pub class: Class,
}

/// The terms that a request asks for and that a slice's record holds: one record on both sides of the agent's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceTerms {
    /// What it is promised of its devices' time.
    #[serde(flatten)]
    pub compute: ComputeTerms,
    /// How its devices are shared.
    #[serde(flatten)]
    pub sharing: ModeTerms,
    /// The isolation level.
    #[serde(default)]
    pub isolation: Isolation,
    /// What the agent does to a process that takes more than the slice has, where the slice is supervised.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_overuse: OnOveruse,
    /// What happens where a limit cannot be enforced.
    #[serde(default)]
    pub policy: Policy,
    /// How long an allocation that does not fit waits for space before it is refused, in nanoseconds; 0: not at all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_oom_wait_ns: u64,
    /// Whether it is a whole device for one tenant alone, without a limiter.
    #[serde(default, skip_serializing_if = "is_default")]
    pub whole: bool,
    /// How long it lives, in seconds; 0: without an end. Then its programs are ended, and a lasting slice is deleted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ttl_s: u64,
    /// For a lasting slice: how long it stays while nothing runs in it, in seconds; 0: until it is deleted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub idle_ttl_s: u64,
}

/// Whether a field of a record need not be written.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl ComputeTerms {
    /// Whether nothing was asked for.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for ComputeTerms {
    /// `30%`, `30% hard`, `20% latency`, `weight 50`, or `-` where nothing was said.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = match (self.share, self.weight) {
            (Some(share), _) => share.to_string(),
            (None, Some(weight)) => format!("weight {weight}"),
            (None, None) => "-".into(),
        };
        if self.cap == Cap::Hard {
            text.push_str(" hard");
        }
        if self.class == Class::Latency {
            text.push_str(" latency");
        }
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_both_ways() {
        for cap in [Cap::Soft, Cap::Hard] {
            assert_eq!(cap.name().parse(), Ok(cap));
        }
        for class in [Class::BestEffort, Class::Latency] {
            assert_eq!(class.name().parse(), Ok(class));
        }
        assert!("Hard".parse::<Cap>().is_err() && "fast".parse::<Class>().is_err());
        assert_eq!("250".parse(), Ok(Weight(250)));
        for text in ["0", "10001", "-1", "1.5", "", "99999999"] {
            assert!(text.parse::<Weight>().is_err(), "{text}");
        }
    }

    #[test]
    fn terms_in_a_word_or_two() {
        let share = Some(Compute(3000));
        let mut terms = ComputeTerms::default();
        assert_eq!((terms.to_string(), terms.is_default()), ("-".into(), true));
        terms.weight = Some(Weight(50));
        assert_eq!(terms.to_string(), "weight 50");
        terms = ComputeTerms {
            share,
            cap: Cap::Hard,
            class: Class::Latency,
            weight: None,
        };
        assert_eq!(format!("{terms:>18}"), "  30% hard latency");
    }
}
