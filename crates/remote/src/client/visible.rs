//! The devices that the program's own CUDA_VISIBLE_DEVICES shows it, in that order. A worker has all devices of the slice,
//! in the slice's order, and a program's number for a device is not the worker's.
#![allow(non_snake_case)]

use std::sync::OnceLock;

use divvy_abi::*;

use super::thread;
use crate::wire::by_hand::DEVICES;

type Uuid = [u8; 16];

/// The worker's numbers of the program's devices.
fn shown() -> Result<&'static [CUdevice], CUresult> {
    static SHOWN: OnceLock<Vec<CUdevice>> = OnceLock::new();
    if let Some(shown) = SHOWN.get() {
        return Ok(shown);
    }
    let mut uuids: Vec<Uuid> = Vec::new();
    let code = thread::call(
        DEVICES,
        Symbol::cuDeviceGetCount,
        |_| {},
        |m, good| {
            while good && !m.rest().is_empty() {
                uuids.extend(m.bytes(size_of::<Uuid>())?.first_chunk::<16>());
            }
            Ok(())
        },
    );
    if code != CUDA_SUCCESS {
        return Err(code);
    }
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    Ok(SHOWN.get_or_init(|| chosen(visible.as_deref(), &uuids)))
}

/// As CUDA does: the words name devices by number or by UUID, and the first that names none ends the list.
fn chosen(visible: Option<&str>, uuids: &[Uuid]) -> Vec<CUdevice> {
    let Some(visible) = visible else {
        return (0..uuids.len() as CUdevice).collect();
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
            Some(place) if found.contains(&(place as CUdevice)) => return Vec::new(),
            Some(place) => found.push(place as CUdevice),
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

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuDeviceGetCount(count: *mut i32) -> CUresult {
    if count.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    match shown() {
        Ok(shown) => {
            // SAFETY: the program vouches for its pointer, which is not null.
            unsafe { count.write(shown.len() as i32) };
            CUDA_SUCCESS
        }
        Err(code) => code,
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuDeviceGet(device: *mut CUdevice, ordinal: i32) -> CUresult {
    if device.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let found = shown().map(|shown| usize::try_from(ordinal).ok().and_then(|at| shown.get(at)));
    match found {
        Ok(Some(found)) => {
            // SAFETY: the program vouches for its pointer, which is not null.
            unsafe { device.write(*found) };
            CUDA_SUCCESS
        }
        Ok(None) => CUDA_ERROR_INVALID_DEVICE,
        Err(code) => code,
    }
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
        assert_eq!(of("GPU-2"), [], "of two");
        assert_eq!(of("1,7,0"), [1], "the first that is none ends the list");
        assert_eq!(of("1,1"), []);
        assert_eq!(of(""), []);
        assert_eq!(of("-1"), []);
    }
}
