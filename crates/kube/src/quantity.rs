//! Kubernetes' quantities: whole numbers with a suffix, as `8448Mi`, `30` or `1500M`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Suffixes and their factors, in thousandths.
const SUFFIXES: [(&str, u128); 14] = [
    ("Ki", 1000 << 10),
    ("Mi", 1000 << 20),
    ("Gi", 1000 << 30),
    ("Ti", 1000 << 40),
    ("Pi", 1000 << 50),
    ("Ei", 1000 << 60),
    ("m", 1),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
    ("", 1000),
];

/// The number, rounded up to a whole one; none for what is no quantity, is negative, or is larger than 2^64.
#[must_use]
pub fn whole(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.as_str();
    // No number needs a longer text.
    if text.len() > 64 {
        return None;
    }
    let (number, factor) = match text.split_once(['e', 'E']) {
        // `1e3`; `1E` and `1Ei` have suffixes.
        Some((number, exponent))
            if exponent.starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c)) =>
        {
            let exponent = exponent.strip_prefix('+').unwrap_or(exponent);
            let plain = exponent.bytes().all(|byte| byte.is_ascii_digit());
            let power: u32 = exponent.parse().ok().filter(|power| plain && *power <= 19)?;
            (number, 1000 * 10_u128.pow(power))
        }
        _ => {
            let found = SUFFIXES
                .iter()
                .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
            found?
        }
    };
    let (before, after) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if before.len() + after.len() == 0 || !digits(before) || !digits(after) {
        return None;
    }
    let (before, after) = (before.trim_start_matches('0'), after.trim_end_matches('0'));
    if before.len() > 20 || after.len() > 9 {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(after.len()).ok()?);
    let digits: u128 = match format!("{before}{after}") {
        none if none.is_empty() => 0,
        some => some.parse().ok()?,
    };
    let thousandths = digits.checked_mul(factor)?.div_ceil(scale);
    thousandths.div_ceil(1000).try_into().ok()
}

/// Bytes as the API server writes them: with the largest binary suffix that leaves a whole number.
#[must_use]
pub fn bytes(number: u64) -> Quantity {
    const LETTERS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut power = 0;
    while number != 0 && power < 6 && number.is_multiple_of(1 << (10 * (power + 1))) {
        power += 1;
    }
    Quantity(format!("{}{}", number >> (10 * power), LETTERS[power]))
}

/// A plain number.
#[must_use]
pub fn count(number: u64) -> Quantity {
    Quantity(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        for (text, number) in [
            ("0", 0),
            ("30", 30),
            ("4Gi", 4 << 30),
            ("8448Mi", 8448 << 20),
            ("1.5Gi", 3 << 29),
            ("100m", 1),
            ("2000m", 2),
            ("1500M", 1_500_000_000),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1E", 1_000_000_000_000_000_000),
            (".5k", 500),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(whole(&Quantity(text.into())), Some(number), "{text}");
        }
        let long = "9".repeat(100);
        for text in [
            "",
            "Gi",
            "-1",
            "1.2.3",
            "4GiB",
            "1 Gi",
            "0x10",
            "1e99",
            "1e-3",
            "18446744073709551616",
            ".",
            "NaN",
            &long,
        ] {
            assert_eq!(whole(&Quantity(text.into())), None, "{text}");
        }
    }

    #[test]
    fn bytes_go_both_ways() {
        for (number, text) in [
            (0, "0"),
            (1, "1"),
            (1 << 10, "1Ki"),
            (256 << 20, "256Mi"),
            (1 << 60, "1Ei"),
            (1536, "1536"),
        ] {
            assert_eq!(bytes(number).0, text);
            assert_eq!(whole(&bytes(number)), Some(number));
        }
    }
}
