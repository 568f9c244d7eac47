//! The isolation ladder: how strongly a tenant is kept inside its slice.

use serde::{Deserialize, Serialize};

use crate::words;

/// An isolation level, weakest first. The order of the variants is the order of strength.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Only the devices shown to the program are chosen.
    Env,
    /// The limiter runs inside the program.
    #[default]
    Cooperative,
    /// The limiter runs inside the program, and the agent acts on what the device's driver says of the processes.
    Supervised,
    /// The tenant has no device; limits stand outside its process.
    Enforced,
    /// The device itself is partitioned (MIG, AMD partitions).
    Hardware,
    /// The device is passed through to a virtual machine.
    Vm,
}

impl Isolation {
    /// What this level does *not* protect against. Every screen that offers a level shows it.
    #[must_use]
    pub fn not_protected(self) -> &'static str {
        match self {
            Self::Env => "a program that ignores the variables, or uses more than its share",
            Self::Cooperative => "a program that sets out to bypass its limits: they live in its own process",
            Self::Supervised => {
                "a burst of a second at most; memory that a process leaves to one of another slice; faults and side channels of \
                 the shared device itself"
            }
            Self::Enforced => "faults and side channels of the shared device itself, and root on the host",
            Self::Hardware => "contention for PCIe and host memory; side channels across partitions",
            Self::Vm => "nothing inside the guest: the guest owns the device",
        }
    }
}

words! {
    Isolation, "isolation level":
    Env "env", Cooperative "cooperative", Supervised "supervised", Enforced "enforced", Hardware "hardware", Vm "vm"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_is_ordered_and_round_trips() {
        assert!(Isolation::ALL.is_sorted());
        for level in Isolation::ALL {
            assert_eq!(level.name().parse(), Ok(level));
        }
        assert!("Enforced ".parse::<Isolation>().is_err());
    }
}
