//! Kubernetes' quantities: whole numbers with a suffix, as `8448Mi`, `30` or `1500M`.

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

/// The number in thousandths, rounded up; none for what is no quantity or is negative.
#[must_use]
pub fn thousandths(text: &str) -> Option<u128> {
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
    Some(digits.checked_mul(factor)?.div_ceil(scale))
}

/// The number, rounded up to a whole one; none for what is no quantity, is negative, or is larger than 2^64.
#[must_use]
pub fn whole(text: &str) -> Option<u64> {
    thousandths(text)?.div_ceil(1000).try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousandths_keep_what_whole_numbers_round_up() {
        for (text, number) in [("100m", 100), ("1", 1000), ("0.5", 500), ("1.5k", 1_500_000)] {
            assert_eq!(thousandths(text), Some(number), "{text}");
        }
        assert_eq!(
            (whole("100m"), whole("8448Mi"), whole("-1")),
            (Some(1), Some(8448 << 20), None)
        );
        assert_eq!(
            (thousandths("1e99"), thousandths("Gi"), thousandths("")),
            (None, None, None)
        );
    }
}
