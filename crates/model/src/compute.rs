//! Compute: a share of a device's time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::QuantityError;

/// Parts per 10 000 of a device's time: 3000 is 30 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Compute(pub u16);

impl Compute {
    /// The whole device.
    pub const WHOLE: Self = Self(10_000);
}

impl FromStr for Compute {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().strip_suffix('%') {
            Some(number) => crate::bytes::share(text, number)
                .map(Self)
                .map_err(|error| match error {
                    QuantityError::NotANumber(text) => QuantityError::NotAShare(text),
                    error => error,
                }),
            None if text.trim().bytes().all(|b| b.is_ascii_digit() || b == b'.')
                && !text.trim().is_empty() =>
            {
                Err(QuantityError::NoPercent(text.trim().into()))
            }
            None => Err(QuantityError::NotAShare(text.into())),
        }
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 100, self.0 % 100);
        let text = match rest {
            0 => format!("{whole}%"),
            _ if rest % 10 == 0 => format!("{whole}.{}%", rest / 10),
            _ => format!("{whole}.{rest:02}%"),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_both_ways() {
        for (text, parts) in [("30%", 3000), ("100%", 10_000), ("0.5%", 50), ("12.34%", 1234)] {
            let share: Compute = text.parse().expect(text);
            assert_eq!(share, Compute(parts));
            assert_eq!(share.to_string(), text);
        }
    }

    #[test]
    fn a_bare_number_is_refused() {
        assert_eq!(
            "30".parse::<Compute>(),
            Err(QuantityError::NoPercent("30".into()))
        );
    }

    #[test]
    fn a_wrong_share_is_told_of_as_a_share() {
        for text in ["x%", "abc", "0%"] {
            let refused = text.parse::<Compute>().expect_err(text);
            assert!(
                refused.hint().contains("share") && !refused.hint().contains("GiB"),
                "{refused}"
            );
        }
    }
}
