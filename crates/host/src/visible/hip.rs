//! `HIP_VISIBLE_DEVICES` (or else `CUDA_VISIBLE_DEVICES`) and `GPU_DEVICE_ORDINAL`, as clr reads them.
//!
//! The list indexes what ROCr has left. Set but empty is as if not set. An entry that holds `GPU-` is looked for
//! within the devices' UUIDs, and the first that holds it wins; any other must be a number exactly as it would be
//! printed. An entry that names no device ends the list; a device named twice is seen once.

use super::Filtered;
use super::number::canonical;

/// Filters devices with these unique ids, which ROCr shows in this order.
pub fn filter(variable: &str, value: Option<&str>, unique_ids: &[u64]) -> Filtered {
    let count = unique_ids.len();
    let value = match value {
        Some(value) if !value.is_empty() => value,
        Some(_) => {
            let mut result = Filtered::all(
                count,
                format!("{variable} is set and empty, which filters nothing: all {count} devices"),
            );
            result.warnings.push(format!(
                "{variable} is set and empty: that hides nothing; write -1 to hide every device"
            ));
            return result;
        }
        None => return Filtered::all(count, format!("{variable} is not set: all {count} devices")),
    };
    let mut result = Filtered::default();
    result.steps.push(format!("{variable}={value}"));
    let mut entries: Vec<&str> = value.split(',').collect();
    if entries.last() == Some(&"") {
        entries.pop();
    }
    for (at, entry) in entries.iter().enumerate() {
        let place = if entry.contains("GPU-") {
            unique_ids.iter().position(|id| uuid(*id).contains(entry))
        } else {
            canonical(entry).filter(|place| *place < count)
        };
        let Some(place) = place else {
            result.stop(variable, entry, &refusal(entry, count), entries.len() - at - 1);
            return result;
        };
        if result.chosen.contains(&place) {
            result
                .steps
                .push(format!("`{entry}`: device {place} again, skipped"));
            result.warnings.push(format!(
                "{variable}: `{entry}` names device {place} a second time, and is skipped"
            ));
            continue;
        }
        let holders = unique_ids.iter().filter(|id| uuid(**id).contains(entry)).count();
        if entry.contains("GPU-") && holders > 1 {
            result.warnings.push(format!(
                "{variable}: `{entry}` is in the UUIDs of {holders} devices; the first of them is taken"
            ));
        }
        result.take(entry, place, "");
    }
    result
}

/// The UUID that ROCr tells of a device.
fn uuid(unique_id: u64) -> String {
    if unique_id == 0 {
        "GPU-XX".into()
    } else {
        format!("GPU-{unique_id:016x}")
    }
}

fn refusal(entry: &str, count: usize) -> String {
    if entry.contains("GPU-") {
        return "in no device's UUID, which is lower case here".into();
    }
    if canonical(entry).is_some() {
        return format!("there are {count} devices at this point");
    }
    if entry.is_empty() {
        return "empty".into();
    }
    if entry.trim() != entry {
        return "spaces are not trimmed".into();
    }
    if entry.starts_with('-') && canonical(&entry[1..]).is_some() {
        return "negative".into();
    }
    if entry.bytes().all(|byte| byte.is_ascii_digit() || byte == b'+') {
        return "not written as a plain decimal number".into();
    }
    "no number".into()
}
