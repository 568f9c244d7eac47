//! What a part of the kit found out: one line of JSON each, written down as soon as it is known.

use serde::{Deserialize, Serialize};

/// Why a part ended before its end, in a sentence.
pub type Failure = String;

/// What a finding says of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The promise does not hold on this machine.
    Fails,
    /// It could not be tried here; the text says why.
    Skipped,
    /// The promise holds on this machine.
    Holds,
    /// A fact of this machine, which nothing was promised of.
    Fact,
}

impl Verdict {
    /// The word on the page.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Fails => "FAILS",
            Self::Skipped => "skipped",
            Self::Holds => "holds",
            Self::Fact => "fact",
        }
    }
}

/// What a figure is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// One figure by another.
    Ratio,
    /// Parts of a hundred.
    Percent,
    /// How many.
    Count,
}

/// A figure with what it is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Which, the same in every run: `memory.path.pool`.
    pub check: String,
    /// What it says of a promise.
    pub verdict: Verdict,
    /// In a sentence.
    pub says: String,
    /// The figure, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<Figure>,
    /// Many figures or names, where a sentence cannot hold them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
    /// Whether the check goes on: a later finding of it stands in the place of this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_interim: bool,
}

impl Finding {
    /// A finding without a figure.
    pub fn new(check: impl Into<String>, verdict: Verdict, says: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict,
            says: says.into(),
            figure: None,
            details: None,
            is_interim: false,
        }
    }

    /// A fact.
    pub fn fact(check: impl Into<String>, says: impl Into<String>) -> Self {
        Self::new(check, Verdict::Fact, says)
    }

    /// What could not be tried.
    pub fn skipped(check: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(check, Verdict::Skipped, why)
    }

    /// Whether a promise holds.
    pub fn promise(check: impl Into<String>, holds: bool, says: impl Into<String>) -> Self {
        let verdict = if holds { Verdict::Holds } else { Verdict::Fails };
        Self::new(check, verdict, says)
    }

    /// With a figure.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure to read: 53 bits are enough")]
    pub fn bytes(self, bytes: u64) -> Self {
        self.figure(bytes as f64, Unit::Bytes)
    }

    /// With a figure.
    #[must_use]
    pub fn figure(mut self, value: f64, unit: Unit) -> Self {
        self.figure = Some(Figure { value, unit });
        self
    }

    /// As what is known so far: kept where the part is cut off before the check's end.
    #[must_use]
    pub fn so_far(mut self) -> Self {
        self.is_interim = true;
        self
    }

    /// With what a sentence cannot hold.
    #[must_use]
    pub fn details(mut self, details: serde_json::Value) -> Self {
        self.details = Some(details);
        self
    }
}
