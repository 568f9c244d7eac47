//! What an invited client's slices have together at most.

use std::fmt;
use std::str::FromStr;

use divvy_model::Bytes;

/// The most that all slices of one client have together. A member that is not there bounds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Memory of devices, over all devices.
    pub memory: Option<Bytes>,
    /// Shares of compute, added over all devices: one whole device is 100%.
    pub compute: Option<Shares>,
}

/// Shares of devices added over all of them, in parts of 10 000 of one: `250%` is two devices and a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shares(pub u32);

/// This text is no sum of shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoShares;

impl fmt::Display for NoShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shares of all devices together look like `50%` or `250%`: one whole device is 100%")
    }
}

impl std::error::Error for NoShares {}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, rest) => write!(f, "{whole}.{rest:02}%"),
        }
    }
}

impl FromStr for Shares {
    type Err = NoShares;

    fn from_str(text: &str) -> Result<Self, NoShares> {
        let number = text.trim().strip_suffix('%').ok_or(NoShares)?;
        let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(rest) || rest.len() > 2 {
            return Err(NoShares);
        }
        let hundredths: u32 = format!("{rest:0<2}").parse().map_err(|_| NoShares)?;
        let parts = whole
            .parse::<u32>()
            .ok()
            .and_then(|whole| whole.checked_mul(100)?.checked_add(hundredths));
        parts.filter(|parts| *parts != 0).map(Self).ok_or(NoShares)
    }
}

/// This text is no allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAllowance;

impl fmt::Display for NoAllowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these are no amounts of an invitation")
    }
}

impl std::error::Error for NoAllowance {}

impl fmt::Display for Allowance {
    /// A line for each member: `memory BYTES`, `compute PERCENT%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    fn shares_are_added_over_devices() {
        for (text, parts) in [
            ("30%", 3000),
            ("100%", 10_000),
            ("250%", 25_000),
            ("0.5%", 50),
            ("400.25%", 40_025),
        ] {
            assert_eq!(text.parse(), Ok(Shares(parts)), "{text}");
        }
        for parts in [1, 50, 3000, 25_000, 40_025, u32::MAX] {
            assert_eq!(Shares(parts).to_string().parse(), Ok(Shares(parts)));
        }
        for wrong in [
            "",
            "%",
            "0%",
            "0.00%",
            "50",
            "-5%",
            "+5%",
            "1.234%",
            "5.%",
            ".5%",
            "99999999999%",
            "1e3%",
        ] {
            assert_eq!(wrong.parse::<Shares>(), Err(NoShares), "{wrong}");
        }
    }

    #[test]
    fn an_allowance_is_read_as_it_was_written_and_nothing_else_is() {
        let compute = "212.5%".parse().unwrap();
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
