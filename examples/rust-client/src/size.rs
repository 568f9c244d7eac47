//! A size on the command line: a whole number and a unit, `512MiB` or `2GB`.

use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy)]
pub struct Size(u64);

impl Size {
    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: u64 = number
            .parse()
            .map_err(|_| format!("{text} does not begin with a number"))?;
        let factor: u64 = match unit {
            "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            _ => return Err(format!("{text} needs a unit: B, KiB, MiB, GiB, KB, MB or GB")),
        };
        number
            .checked_mul(factor)
            .map(Size)
            .ok_or_else(|| format!("{text} is too large"))
    }
}
