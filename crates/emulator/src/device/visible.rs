//! `CUDA_VISIBLE_DEVICES`, by the rules of the CUDA programming guide.
//!
//! The list is read left to right and ends at the first entry that names no device; what came before stays
//! visible. A device named twice hides everything. Set but empty hides everything.

use super::identity::Uuid;

/// Indices of the visible devices, in the order the program will see them. `setting` is None when unset.
pub fn visible(setting: Option<&str>, devices: &[Uuid]) -> Vec<usize> {
    let Some(setting) = setting else {
        return (0..devices.len()).collect();
    };
    let mut chosen: Vec<usize> = Vec::new();
    for entry in setting.split(',') {
        let Some(index) = resolve(entry.trim(), devices) else {
            break;
        };
        if chosen.contains(&index) {
            return Vec::new();
        }
        chosen.push(index);
    }
    chosen
}

fn resolve(entry: &str, devices: &[Uuid]) -> Option<usize> {
    if let Ok(index) = entry.parse::<usize>() {
        return (index < devices.len()).then_some(index);
    }
    if !entry.starts_with("GPU-") {
        return None;
    }
    let entry = entry.to_ascii_lowercase();
    let mut matches = (0..devices.len()).filter(|&index| {
        devices[index]
            .to_string()
            .to_ascii_lowercase()
            .starts_with(&entry)
    });
    let first = matches.next()?;
    // A prefix that two devices share names neither.
    matches.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::profile::PROFILES;

    fn three() -> Vec<Uuid> {
        (0..3)
            .map(|index| Uuid::derive(std::path::Path::new("/run/divvy"), &PROFILES[0], index))
            .collect()
    }

    #[test]
    fn indices_reorder_and_stop_at_the_first_bad_one() {
        let devices = three();
        assert_eq!(visible(None, &devices), [0, 1, 2]);
        assert_eq!(visible(Some("2, 0"), &devices), [2, 0]);
        assert_eq!(visible(Some("1,-1,0"), &devices), [1]);
        assert_eq!(visible(Some("0,7,1"), &devices), [0]);
        assert_eq!(visible(Some(""), &devices), [0usize; 0]);
        assert_eq!(visible(Some("NoDevFiles"), &devices), [0usize; 0]);
        assert_eq!(visible(Some("0,1,0"), &devices), [0usize; 0]);
    }

    #[test]
    fn uuids_and_unique_prefixes() {
        let devices = three();
        let whole = devices[2].to_string();
        assert_eq!(visible(Some(&whole), &devices), [2]);
        assert_eq!(visible(Some(&whole[..12]), &devices), [2]);
        assert_eq!(visible(Some(&whole.to_uppercase()), &devices), [2]);
        assert_eq!(
            visible(Some("GPU-"), &devices),
            [0usize; 0],
            "a prefix of all names none"
        );
        assert_eq!(
            visible(Some(&whole[4..]), &devices),
            [0usize; 0],
            "the prefix GPU- is required"
        );
    }
}
