//! The devices that the program's own CUDA_VISIBLE_DEVICES shows it, in that order. A worker has all devices of the slice,
//! in the slice's order, and a program's number for a device is not the worker's.

use divvy_abi::CUdevice;

/// A device's UUID.
pub type Uuid = [u8; 16];

/// The devices of the worker that the program has, by its variable as it is now.
pub fn of_program(devices: &[CUdevice], uuids: &[Uuid]) -> Vec<CUdevice> {
    let visible = std::env::var_os("CUDA_VISIBLE_DEVICES");
    // Bytes that are no text are part of no device's name.
    let visible = visible.as_ref().map(|value| value.to_string_lossy());
    let places = chosen(visible.as_deref(), uuids);
    places
        .into_iter()
        .filter_map(|place| devices.get(place).copied())
        .collect()
}

/// As CUDA does: the words name devices by number or by UUID, and the first that names none ends the list.
fn chosen(visible: Option<&str>, uuids: &[Uuid]) -> Vec<usize> {
    let Some(visible) = visible else {
        return (0..uuids.len()).collect();
    };
    let mut found = Vec::new();
    for word in visible.split(',').map(str::trim) {
        let of_uuid = || {
            let mut matching = (0..uuids.len()).filter(|at| names(word, &uuids[*at]));
            let only = matching.next();
            only.filter(|_| matching.next().is_none())
        };
        let place = word.parse::<usize>().ok().or_else(of_uuid);
        match place.filter(|place| *place < uuids.len()) {
            // A device that is named twice makes all disappear.
            Some(place) if found.contains(&place) => return Vec::new(),
            Some(place) => found.push(place),
            None => break,
        }
    }
    found
}

/// Whether a word is a UUID of a device, or the beginning of one.
fn names(word: &str, uuid: &Uuid) -> bool {
    let mut text = String::from("GPU-");
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    let instance = text.replacen("GPU", "MIG", 1);
    let long = word.len() > 4;
    long && (text.starts_with(word) || instance.starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_choose_devices_and_their_order() {
        let uuids = [[0x11; 16], [0x22; 16], [0x2f; 16]];
        let of = |words: &str| chosen(Some(words), &uuids);
        assert_eq!(chosen(None, &uuids), [0, 1, 2]);
        assert_eq!(of("2,0"), [2, 0]);
        assert_eq!(of("GPU-22222222-2222-2222-2222-222222222222,0"), [1, 0]);
        assert_eq!(of("GPU-11,GPU-2f"), [0, 2]);
        assert_eq!(of("MIG-11111111-1111-1111-1111-111111111111"), [0]);
        assert!(of("GPU-2").is_empty(), "of two");
        assert_eq!(of("1,7,0"), [1], "the first that is none ends the list");
        assert!(of("1,1").is_empty());
        assert!(of("").is_empty());
        assert!(of("-1").is_empty());
        assert_eq!(of("0,\u{fffd},1"), [0], "what is no text names none");
    }
}
