//! How a slice shares its device, in words.

use divvy_model::{Cap, Mode, SliceRecord};

/// A slice's part of its device, in a word or two: `30% hard`, `1/4 timeslice`, `30% mps`, `mig`.
pub fn part(slice: &SliceRecord) -> String {
    let mut terms = slice.terms.compute;
    let words = match (slice.terms.sharing.mode, slice.terms.sharing.replicas) {
        (Mode::Lease, _) => return terms.to_string(),
        (Mode::Timeslice, Some(replicas)) => format!("1/{replicas}"),
        (Mode::Mps, _) => {
            if terms.cap == Cap::Hard && slice.mps_partition.is_none() {
                terms.cap = Cap::Soft;
            }
            match terms.is_default() {
                true => String::new(),
                false => terms.to_string(),
            }
        }
        (Mode::Timeslice, None) | (Mode::Mig, _) => String::new(),
    };
    format!("{words} {}", slice.terms.sharing.mode).trim().to_owned()
}

/// What a mode is said to be in a line of its own; nothing for the usual one.
pub fn in_words(slice: &SliceRecord) -> Option<String> {
    if slice.terms.sharing.mode == Mode::Lease {
        return None;
    }
    let turns = slice
        .terms
        .sharing
        .time_slice
        .map_or_else(String::new, |length| format!(", {} turns", length.name()));
    Some(format!(
        "{}{turns}: not protected against {}",
        part(slice),
        slice.terms.sharing.mode.not_protected()
    ))
}
