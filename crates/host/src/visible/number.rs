//! Numbers as C reads them: `strtol` with base 0, and the narrowing to `int` that ROCr does after it.

/// What `strtol(text, &end, 0)` makes of `text`, and what is left at `end`. Out of range it is the nearest `long`.
pub fn strtol(text: &str) -> (i64, &str) {
    let rest = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let (negative, rest) = match rest.as_bytes().first() {
        Some(b'-') => (true, &rest[1..]),
        Some(b'+') => (false, &rest[1..]),
        _ => (false, rest),
    };
    let hex = matches!(rest.as_bytes(), [b'0', b'x' | b'X', digit, ..] if digit.is_ascii_hexdigit());
    let (base, digits) = match rest.as_bytes() {
        _ if hex => (16, &rest[2..]),
        [b'0', ..] => (8, rest),
        _ => (10, rest),
    };
    let length = digits.chars().take_while(|digit| digit.is_digit(base)).count();
    if length == 0 {
        // No number at all: the end is the beginning.
        return (0, text);
    }
    let magnitude = digits[..length].chars().fold(0_i128, |sum, digit| {
        let digit = i128::from(digit.to_digit(base).unwrap_or(0));
        (sum * i128::from(base) + digit).min(1 << 100)
    });
    let value = if negative { -magnitude } else { magnitude };
    let clamped = value.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    #[expect(
        clippy::cast_possible_truncation,
        reason = "clamped to the range of i64 above"
    )]
    let value = clamped as i64;
    (value, &digits[length..])
}

/// A `long` stored in an `int`: the low 32 bits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "that is what the assignment in C does"
)]
pub fn as_int(long: i64) -> i32 {
    long as i32
}

/// A decimal number written the one way `std::to_string` writes it, from 0 to the largest `int`.
pub fn canonical(text: &str) -> Option<usize> {
    let number: i32 = text.parse().ok()?;
    (number >= 0 && number.to_string() == text).then(|| usize::try_from(number).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_glibc_reads_them() {
        for (text, expected) in [
            ("10", (10, "")),
            ("010", (8, "")),
            ("0x1F", (31, "")),
            ("0X1f", (31, "")),
            ("0x", (0, "x")),
            ("0xg", (0, "xg")),
            ("08", (0, "8")),
            ("+1", (1, "")),
            ("-1", (-1, "")),
            ("+-1", (0, "+-1")),
            ("", (0, "")),
            ("-", (0, "-")),
            ("1 2", (1, " 2")),
            (" 3", (3, "")),
            ("2é", (2, "é")),
            ("99999999999999999999", (i64::MAX, "")),
            ("-99999999999999999999", (i64::MIN, "")),
        ] {
            assert_eq!(strtol(text), expected, "{text}");
        }
        assert_eq!(as_int(4_294_967_296), 0);
        assert_eq!(as_int(i64::MAX), -1);
        assert_eq!(as_int(i64::MIN), 0);
    }

    #[test]
    fn canonical_decimals_only() {
        assert_eq!(canonical("0"), Some(0));
        assert_eq!(canonical("12"), Some(12));
        for text in ["", "00", "+1", "-1", " 1", "1 ", "0x1", "4294967296", "-0"] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }
}
