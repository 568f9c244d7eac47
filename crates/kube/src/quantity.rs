//! Kubernetes' quantities: whole numbers with a suffix, as `8448Mi`, `30` or `1500M`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The number, rounded up to a whole one; none for what is no quantity, is negative, or is larger than 2^64.
#[must_use]
pub fn whole(quantity: &Quantity) -> Option<u64> {
    divvy_placement::quantity::whole(&quantity.0)
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
