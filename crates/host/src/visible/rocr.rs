//! `ROCR_VISIBLE_DEVICES`, as ROCr's `RvdFilter` reads it.
//!
//! Set but empty: no GPUs. Entries are trimmed and made upper case; one that begins with `G` is a UUID or a unique
//! prefix of one, of 5 to 20 characters, any other is a number for `strtol` with base 0. An entry that names no device,
//! or one that was named before, ends the list. Only as many entries are read as there are GPUs; an empty one among
//! them makes ROCr throw.

use super::Filtered;
use super::number::{as_int, strtol};

pub const VARIABLE: &str = "ROCR_VISIBLE_DEVICES";

/// Filters GPUs with these unique ids (0 where a GPU has none), in the order of KFD's nodes.
pub fn filter(value: Option<&str>, unique_ids: &[u64]) -> Filtered {
    let count = unique_ids.len();
    let Some(value) = value else {
        return Filtered::all(count, format!("{VARIABLE} is not set: all {count} devices"));
    };
    if value.is_empty() {
        return Filtered::none(format!("{VARIABLE} is set and empty: no devices"));
    }
    let mut result = Filtered::default();
    result.steps.push(format!("{VARIABLE}={value}"));
    let mut entries: Vec<&str> = value.split(',').collect();
    // `getline` finds nothing behind the last comma.
    if entries.last() == Some(&"") {
        entries.pop();
    }
    let read = entries.len().min(count);
    for (at, raw) in entries[..read].iter().enumerate() {
        let entry = raw.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
        let upper = entry.to_ascii_uppercase();
        let lost = entries.len() - at - 1;
        if upper.is_empty() {
            result.chosen.clear();
            result.steps.push(
                "an empty entry: ROCr throws an exception, and the program ends or sees no devices".into(),
            );
            result.warnings.push(format!(
                "{VARIABLE}: an empty entry makes ROCr throw an exception"
            ));
            return result;
        }
        let named = if upper.starts_with('G') {
            by_uuid(&upper, unique_ids)
        } else {
            by_number(&upper, count)
        };
        match named {
            Err(why) => {
                result.stop(VARIABLE, entry, &why, lost);
                return result;
            }
            Ok((place, _)) if result.chosen.contains(&place) => {
                let why = format!("device {place} was named before");
                result.stop(VARIABLE, entry, &why, lost);
                return result;
            }
            Ok((place, surprise)) => {
                result.take(entry, place, "");
                if let Some(surprise) = surprise {
                    result.steps.push(format!("`{entry}`: {surprise}"));
                    result
                        .warnings
                        .push(format!("{VARIABLE}: `{entry}` {surprise}: write {place}"));
                }
            }
        }
    }
    if entries.len() > read {
        let rest = entries.len() - read;
        result.steps.push(format!(
            "{rest} more entries: not read, as there are {count} devices"
        ));
        result.warnings.push(format!(
            "{VARIABLE}: only the first {count} of {} entries are read, one for each device there is",
            entries.len()
        ));
    }
    result
}

fn by_uuid(upper: &str, unique_ids: &[u64]) -> Result<(usize, Option<String>), String> {
    if !(5..=20).contains(&upper.len()) {
        return Err(match upper.len() {
            36.. => "a UUID of more than 20 characters: write GPU- and 16 hexadecimal digits".into(),
            length => format!("a UUID of {length} characters, where 5 to 20 are read"),
        });
    }
    let fits: Vec<usize> = (0..unique_ids.len())
        // A GPU whose id is 0 answers to no UUID.
        .filter(|place| unique_ids[*place] != 0)
        .filter(|place| format!("GPU-{:016X}", unique_ids[*place]).starts_with(upper))
        .collect();
    match fits.as_slice() {
        [place] => Ok((*place, None)),
        [] => Err("no device has such a UUID".into()),
        many => Err(format!("{} devices have such a UUID", many.len())),
    }
}

fn by_number(upper: &str, count: usize) -> Result<(usize, Option<String>), String> {
    let (long, rest) = strtol(upper);
    if !rest.is_empty() {
        return Err("no number".into());
    }
    let number = as_int(long);
    let place = match usize::try_from(number) {
        Ok(place) if place < count => place,
        Ok(place) => return Err(format!("there is no device {place}")),
        Err(_) => return Err(format!("{number} is negative")),
    };
    let digits = upper.trim_start_matches(['+', '-']);
    let surprise = if i64::from(number) != long {
        Some(format!("overflows an int to {place}"))
    } else if digits.starts_with("0X") {
        Some(format!("is hexadecimal for {place}"))
    } else if digits.len() > 1 && digits.starts_with('0') {
        Some(format!("is octal for {place}"))
    } else {
        None
    };
    Ok((place, surprise))
}
