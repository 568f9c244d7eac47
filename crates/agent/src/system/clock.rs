//! Wall-clock time as the API writes it: RFC 3339, UTC, in microseconds, so that times of one host sort as text.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Now, as `2026-08-01T12:00:00.000123Z`.
#[must_use]
pub fn now() -> String {
    format(since_epoch())
}

/// That many seconds after the beginning of 1970, in the same form.
#[must_use]
pub fn of_unix_seconds(seconds: u64) -> String {
    format(Duration::from_secs(seconds))
}

/// How long ago `text` was; None when it is not such a time.
#[must_use]
pub fn age(text: &str) -> Option<Duration> {
    let then = parse_seconds(text)?;
    Some(Duration::from_secs(since_epoch().as_secs().saturating_sub(then)))
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Days to a civil date in the proleptic Gregorian calendar, by 400-year eras that begin on 1 March of year 0: leap
/// days then fall at an era's and a year's end, and every step is a division.
fn format(since_epoch: Duration) -> String {
    let (seconds, microseconds) = (since_epoch.as_secs(), since_epoch.subsec_micros());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468; // from 0000-03-01 to 1970-01-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{microseconds:06}Z")
}

/// Whole seconds since the epoch; a fraction is cut off.
fn parse_seconds(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z')?;
    let text = match text.split_once('.') {
        Some((seconds, fraction)) if fraction.bytes().all(|digit| digit.is_ascii_digit()) => seconds,
        Some(_) => return None,
        None => text,
    };
    let (date, time) = text.split_once('T')?;
    let numbers = |text: &str, separator: char| -> Option<[u64; 3]> {
        let parts: Vec<u64> = text
            .split(separator)
            .map(|part| part.parse().ok())
            .collect::<Option<_>>()?;
        parts.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = year - u64::from(month <= 2);
    let march_month = (month + 9) % 12;
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    let day_of_era = year % 400 * 365 + year % 400 / 4 - year % 400 / 100 + day_of_year;
    let days = (year / 400 * 146_097 + day_of_era).checked_sub(719_468)?;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000007Z"),
            (951_827_696, "2000-02-29T12:34:56.000007Z"),
            (1_000_000_000, "2001-09-09T01:46:40.000007Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000007Z"),
        ] {
            assert_eq!(format(Duration::new(seconds, 7_000)), text);
            assert_eq!(parse_seconds(text), Some(seconds));
        }
        assert_eq!(parse_seconds("1970-01-01T00:01:00Z"), Some(60));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2026-13-01T00:00:00Z",
            "2026-01-01",
            "yesterday",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.x1Z",
        ] {
            assert_eq!(parse_seconds(text), None, "{text}");
        }
        assert!(age(&now()).expect("a time").as_secs() < 60);
    }
}
