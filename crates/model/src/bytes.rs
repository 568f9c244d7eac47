//! Memory: a number of bytes, and the ways people write one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Whether it is nothing.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

/// Why a quantity was not understood. Each message is a sentence for the user; `hint` says what to type instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Digits with no unit: 4 what?
    #[error("`{0}` has no unit")]
    NoUnit(String),
    /// An unknown unit.
    #[error("`{text}` has an unknown unit `{unit}`")]
    UnknownUnit {
        /// What was typed.
        text: String,
        /// The part after the number.
        unit: String,
    },
    /// Not a number at all.
    #[error("`{0}` is not a size")]
    NotANumber(String),
    /// Not a percentage, where only a share of a device's time makes sense.
    #[error("`{0}` is not a share")]
    NotAShare(String),
    /// Zero, negative, or a share of nothing.
    #[error("`{0}` is zero: a slice needs some of the device")]
    Zero(String),
    /// A bare number where only a percentage makes sense.
    #[error("`{0}` has no unit")]
    NoPercent(String),
    /// Larger than 2^64 - 1 bytes, or a share above 100 %.
    #[error("`{0}` is too large")]
    TooLarge(String),
    /// More decimals than any size has a use for.
    #[error("`{0}` has more than six decimals")]
    TooFine(String),
}

impl QuantityError {
    /// What to type instead.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoUnit(text) => {
                // A number of bytes is often too large with another unit.
                let units = ["GiB", "MiB", "B"].map(|unit| format!("{text}{unit}"));
                let sizes = units.into_iter().filter(|size| size.parse::<Bytes>().is_ok());
                let sizes: String = sizes.take(2).map(|size| format!("`{size}`, ")).collect();
                match sizes.is_empty() {
                    true => Self::TooLarge(text.clone()).hint(),
                    false => format!("write {sizes}or a share of the device such as `25%`"),
                }
            }
            Self::NoPercent(text) => match part_of_one(text) {
                Some(percent) => {
                    format!("write `{percent}%` for {text} of the device, or `{text}%` if that is meant")
                }
                None if share(text, text).is_ok() => format!("write `{text}%`: shares are percentages"),
                None => "shares are percentages, at most `100%`".into(),
            },
            Self::TooLarge(_) => "a share is at most `100%`, a size at most `16383PiB`".into(),
            Self::TooFine(_) => {
                "write fewer decimals or a smaller unit: `1.5GiB` and `1536MiB` are the same".into()
            }
            Self::NotAShare(_) => "shares look like `30%` or `12.5%`".into(),
            Self::Zero(text) if text.trim().ends_with('%') => "a share is above zero, such as `30%`".into(),
            Self::UnknownUnit { .. } | Self::NotANumber(_) | Self::Zero(_) => {
                "sizes look like `4GiB`, `4Gi`, `4096MiB`, `4GB` or `4G` (decimal), or `50%` (of the device)"
                    .into()
            }
        }
    }
}

/// `30` of `0.3`: the percentage, if a number may be meant as a part of one.
fn part_of_one(text: &str) -> Option<String> {
    let (millionths, unit) = split(text).ok()?;
    let is_part = text.contains('.') && unit.is_empty() && (1..=1_000_000).contains(&millionths);
    // A percentage has two decimals at most.
    (is_part && millionths % 100 == 0).then(|| (millionths as f64 / 10_000.0).to_string())
}

/// Units by the text people type, in any case: binary ones have an `i` (IEC 80000-13), decimal ones have none (SI). The
/// `B` may be left out, as in Kubernetes.
const UNITS: [(&str, u64); 11] = [
    ("B", 1),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("K", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
];

/// The bytes of a unit.
fn scale(unit: &str) -> Option<u64> {
    let last = unit.len().checked_sub(1).filter(|last| *last > 0);
    let bare = match last.map(|last| unit.split_at_checked(last)) {
        Some(Some((bare, "b" | "B"))) if !bare.eq_ignore_ascii_case("b") => bare,
        _ => unit,
    };
    UNITS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(bare))
        .map(|(_, scale)| *scale)
}

/// Splits `4.5GiB` into millionths (4_500_000) and `GiB`. Six decimals are enough for any unit we know.
fn split(text: &str) -> Result<(u128, &str), QuantityError> {
    let not_a_number = || QuantityError::NotANumber(text.into());
    let trimmed = text.trim();
    let end = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return Err(not_a_number());
    }
    if whole.len() > 20 {
        return Err(QuantityError::TooLarge(text.into()));
    }
    if fraction.len() > 6 {
        return Err(QuantityError::TooFine(text.into()));
    }
    let whole: u128 = whole.parse().map_err(|_| not_a_number())?;
    let fraction: u128 = format!("{fraction:0<6}").parse().map_err(|_| not_a_number())?;
    Ok((whole * 1_000_000 + fraction, unit.trim_start()))
}

/// ```
/// use divvy_model::Bytes;
///
/// assert_eq!("1.5GiB".parse(), Ok(Bytes(3 << 29)));
/// assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
/// // A number without a unit may mean anything.
/// assert!("4".parse::<Bytes>().is_err());
/// ```
impl FromStr for Bytes {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (millionths, unit) = split(text)?;
        if unit.is_empty() && millionths == 0 {
            return Err(QuantityError::Zero(text.trim().into()));
        }
        if unit.is_empty() {
            return Err(QuantityError::NoUnit(text.trim().into()));
        }
        let Some(scale) = scale(unit) else {
            return Err(QuantityError::UnknownUnit {
                text: text.into(),
                unit: unit.into(),
            });
        };
        let bytes = millionths * u128::from(scale) / 1_000_000;
        match u64::try_from(bytes) {
            Ok(0) => Err(QuantityError::Zero(text.into())),
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => Err(QuantityError::TooLarge(text.into())),
        }
    }
}

impl fmt::Display for Bytes {
    /// The largest binary unit that leaves at least 1, with one decimal where it is not whole: `4 GiB`, `1.5 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [(&str, u32); 5] = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (unit, shift) in STEPS {
            let scale = 1_u64 << shift;
            if self.0 >= scale {
                let text = if self.0.is_multiple_of(scale) {
                    format!("{} {unit}", self.0 / scale)
                } else {
                    let tenths = u128::from(self.0) * 10 / u128::from(scale);
                    format!("{}.{} {unit}", tenths / 10, tenths % 10)
                };
                return f.pad(&text);
            }
        }
        f.pad(&format!("{} B", self.0))
    }
}

/// How much memory a slice asks for: an amount, or a share of whatever device it lands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryAmount {
    /// So many bytes.
    Bytes(Bytes),
    /// Parts per 10 000 of the device's memory.
    Share(u16),
}

impl MemoryAmount {
    /// The amount on a device of `total` bytes.
    #[must_use]
    pub fn on_device_of(self, total: Bytes) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(parts) => {
                // 2^64 * 10^4 fits u128, and the quotient is at most `total`.
                let bytes = u128::from(total.0) * u128::from(parts) / 10_000;
                Bytes(u64::try_from(bytes).unwrap_or(total.0))
            }
        }
    }
}

impl FromStr for MemoryAmount {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().strip_suffix('%') {
            Some(number) => share(text, number).map(Self::Share),
            None => text.parse().map(Self::Bytes),
        }
    }
}

impl fmt::Display for MemoryAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Share(parts) => crate::Compute(*parts).fmt(f),
        }
    }
}

/// Parts per 10 000 from the number before a `%`: above 0, at most 100 %.
pub(crate) fn share(text: &str, number: &str) -> Result<u16, QuantityError> {
    let (millionths, rest) = split(number)?;
    if !rest.is_empty() {
        return Err(QuantityError::NotANumber(text.into()));
    }
    match u16::try_from(millionths / 10_000) {
        Ok(0) => Err(QuantityError::Zero(text.into())),
        Ok(parts) if parts <= 10_000 => Ok(parts),
        _ => Err(QuantityError::TooLarge(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("4GiB", 4 << 30),
            ("4Gi", 4 << 30),
            ("4096MiB", 4 << 30),
            ("4GB", 4_000_000_000),
            ("1.5 GiB", 3 << 29),
            ("512B", 512),
            ("0.5KiB", 512),
            // docker, Slurm and Kubernetes each write one of these.
            ("4G", 4_000_000_000),
            ("4g", 4_000_000_000),
            ("4gb", 4_000_000_000),
            ("4gib", 4 << 30),
            ("4096m", 4_096_000_000),
            ("2P", 2_000_000_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn a_bare_number_is_refused_with_a_hint() {
        let error = "4096".parse::<MemoryAmount>().expect_err("no unit");
        assert_eq!(error, QuantityError::NoUnit("4096".into()));
        assert!(error.hint().contains("4096MiB"));
    }

    #[test]
    fn a_part_of_one_is_asked_back() {
        let hint = |text: &str| text.parse::<crate::Compute>().expect_err("no unit").hint();
        assert_eq!(
            hint("0.3"),
            "write `30%` for 0.3 of the device, or `0.3%` if that is meant"
        );
        assert_eq!(
            hint("0.125"),
            "write `12.5%` for 0.125 of the device, or `0.125%` if that is meant"
        );
        assert_eq!(hint("30"), "write `30%`: shares are percentages");
        assert_eq!(hint("1.5"), "write `1.5%`: shares are percentages");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "GiB",
            "-1GiB",
            "1.2.3GiB",
            "1.",
            "4 parsecs",
            "4bb",
            "4ib",
            "4i",
            "4g\u{fc}",
            "0GiB",
            "0%",
            "0.001%",
            "101%",
            "%",
            "5%%",
        ] {
            assert!(text.parse::<MemoryAmount>().is_err(), "{text}");
        }
        assert!(matches!(
            "99999999PiB".parse::<Bytes>(),
            Err(QuantityError::TooLarge(_))
        ));
        assert!(matches!(
            "999999999999999999999GiB".parse::<Bytes>(),
            Err(QuantityError::TooLarge(_))
        ));
    }

    /// Each size and share that a hint quotes can be typed as it stands there.
    #[test]
    fn hints_quote_what_can_be_typed() {
        let mut quoted = 0;
        for text in [
            "4096",
            "18446744073709551615",
            "99999999999999999999",
            "99999999PiB",
            "16384PiB",
            "101%",
            "0.12345678GiB",
            "0.3",
            "0%",
            "0GiB",
            "4 parsecs",
            "x",
        ] {
            let errors = [
                text.parse::<MemoryAmount>().err(),
                text.parse::<crate::Compute>().err(),
            ];
            for hint in errors.into_iter().flatten().map(|error| error.hint()) {
                // Every second part stands between quotes.
                for word in hint.split('`').skip(1).step_by(2) {
                    assert!(word.parse::<MemoryAmount>().is_ok(), "`{text}`: {hint}");
                    quoted += 1;
                }
            }
        }
        assert!(quoted > 20, "{quoted}");
        let fine = "0.12345678GiB".parse::<Bytes>();
        assert_eq!(fine, Err(QuantityError::TooFine("0.12345678GiB".into())));
    }

    #[test]
    fn shares_are_of_the_device() {
        let half: MemoryAmount = "50%".parse().expect("a share");
        assert_eq!(half.on_device_of(Bytes(80 << 30)), Bytes(40 << 30));
        assert_eq!(
            "100%"
                .parse::<MemoryAmount>()
                .expect("whole")
                .on_device_of(Bytes(u64::MAX)),
            Bytes(u64::MAX)
        );
    }

    #[test]
    fn shown_in_the_largest_unit() {
        for (bytes, text) in [
            (4 << 30, "4 GiB"),
            (3 << 29, "1.5 GiB"),
            (511, "511 B"),
            (0, "0 B"),
            (1 << 20, "1 MiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
