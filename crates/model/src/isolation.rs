//! The isolation ladder: how strongly a tenant is kept inside its slice.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An isolation level, weakest first. The order of the variants is the order of strength.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Only the devices shown to the program are chosen.
    Env,
    /// The limiter runs inside the program.
    #[default]
    Cooperative,
    /// The tenant has no device; limits stand outside its process.
    Enforced,
    /// The device itself is partitioned (MIG, AMD partitions).
    Hardware,
    /// The device is passed through to a virtual machine.
    Vm,
}

impl Isolation {
    /// Every level, weakest first.
    pub const LADDER: [Self; 5] = [
        Self::Env,
        Self::Cooperative,
        Self::Enforced,
        Self::Hardware,
        Self::Vm,
    ];

    /// The word used on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Env => "env",
            Self::Cooperative => "cooperative",
            Self::Enforced => "enforced",
            Self::Hardware => "hardware",
            Self::Vm => "vm",
        }
    }

    /// What this level does *not* protect against. Every screen that offers a level shows it.
    #[must_use]
    pub fn not_protected(self) -> &'static str {
        match self {
            Self::Env => "a program that ignores the variables, or uses more than its share",
            Self::Cooperative => "a program that sets out to bypass its limits: they live in its own process",
            Self::Enforced => "faults and side channels of the shared device itself",
            Self::Hardware => "contention for PCIe and host memory; side channels across partitions",
            Self::Vm => "nothing inside the guest: the guest owns the device",
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Isolation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::LADDER
            .into_iter()
            .find(|level| level.name() == text)
            .ok_or_else(|| {
                format!("`{text}` is no isolation; choose env, cooperative, enforced, hardware or vm")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_is_ordered_and_round_trips() {
        assert!(Isolation::LADDER.is_sorted());
        for level in Isolation::LADDER {
            assert_eq!(level.name().parse(), Ok(level));
        }
        assert!("Enforced ".parse::<Isolation>().is_err());
    }
}
