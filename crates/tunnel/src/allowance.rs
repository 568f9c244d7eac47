//! What an invited client's slices have together at most.

use std::str::FromStr;

use divvy_model::{Bytes, Compute};

/// The most that all slices of one client have together. A member that is not there bounds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Memory of devices, over all devices.
    pub memory: Option<Bytes>,
    /// Shares of compute, added over all devices: one whole device is 100%.
    pub compute: Option<Compute>,
}

/// This text is no allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAllowance;

impl std::fmt::Display for NoAllowance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("these are no amounts of an invitation")
    }
}

impl std::error::Error for NoAllowance {}

impl std::fmt::Display for Allowance {
    /// A line for each member: `memory BYTES`, `compute PERCENT%`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(Bytes(memory)) = self.memory {
            writeln!(f, "memory {memory}")?;
        }
        if let Some(compute) = self.compute {
            writeln!(f, "compute {compute}")?;
        }
        Ok(())
    }
}

impl FromStr for Allowance {
    type Err = NoAllowance;

    /// A word that is not understood could be a bound, so it is an error.
    fn from_str(text: &str) -> Result<Self, NoAllowance> {
        let mut allowance = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("memory", bytes)) if allowance.memory.is_none() => {
                    allowance.memory = Some(Bytes(bytes.parse().map_err(|_| NoAllowance)?));
                }
                Some(("compute", share)) if allowance.compute.is_none() => {
                    allowance.compute = Some(share.parse().map_err(|_| NoAllowance)?);
                }
                _ => return Err(NoAllowance),
            }
        }
        Ok(allowance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_read_as_it_was_written_and_nothing_else_is() {
        let compute = "12.5%".parse().unwrap();
        for allowance in [
            Allowance::default(),
            Allowance {
                memory: Some(Bytes(3 << 30)),
                compute: Some(compute),
            },
            Allowance {
                memory: None,
                compute: Some(compute),
            },
        ] {
            assert_eq!(allowance.to_string().parse(), Ok(allowance));
        }
        for wrong in [
            "memory",
            "memory -1",
            "memory 1\nmemory 2",
            "compute 5",
            "devices 2",
            " ",
        ] {
            assert_eq!(wrong.parse::<Allowance>(), Err(NoAllowance), "{wrong}");
        }
    }
}
