//! Structures that say where memory lies: the number of a device in them is the program's, and in messages the worker's.

use std::any::TypeId;
use std::mem::offset_of;

use divvy_abi::*;

use super::start;

/// Where a structure holds a [`CUmemLocation`]; nothing where it holds none.
fn offset<T: 'static>() -> Option<usize> {
    let of = TypeId::of::<T>();
    if of == TypeId::of::<CUmemLocation>() {
        Some(0)
    } else if of == TypeId::of::<CUmemAccessDesc>() {
        Some(offset_of!(CUmemAccessDesc, location))
    } else if of == TypeId::of::<CUmemAllocationProp>() {
        Some(offset_of!(CUmemAllocationProp, location))
    } else if of == TypeId::of::<CUmemPoolProps>() {
        Some(offset_of!(CUmemPoolProps, location))
    } else {
        None
    }
}

/// Changes the number of the device in the bytes of a structure of type `T`.
fn renumber<T: 'static>(bytes: &mut [u8], how: fn(CUdevice) -> CUdevice) {
    let Some(at) = offset::<T>() else { return };
    let id = at + offset_of!(CUmemLocation, anonymous1);
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..at + 4).and_then(|word| word.first_chunk().copied());
        word.map(i32::from_le_bytes)
    };
    let sort = word(bytes, at).map(i32::cast_unsigned);
    if sort != Some(CU_MEM_LOCATION_TYPE_DEVICE.0) {
        return;
    }
    if let Some(device) = word(bytes, id) {
        bytes[id..id + 4].copy_from_slice(&how(device).to_le_bytes());
    }
}

/// The worker's number in the place of the program's.
pub fn to_worker<T: 'static>(bytes: &mut [u8]) {
    renumber::<T>(bytes, start::to_worker);
}

/// The program's number in the place of the worker's.
pub fn from_worker<T: 'static>(bytes: &mut [u8]) {
    renumber::<T>(bytes, start::from_worker);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_renumbered_where_a_structure_names_one() {
        let mut description = [0_u8; size_of::<CUmemAccessDesc>()];
        let at = offset_of!(CUmemAccessDesc, location);
        description[at] = 1;
        description[at + 4] = 3;
        renumber::<CUmemAccessDesc>(&mut description, |device| device + 10);
        assert_eq!(description[at + 4], 13);
        // The host's memory: the number is of no device.
        description[at] = 2;
        renumber::<CUmemAccessDesc>(&mut description, |device| device + 10);
        assert_eq!(description[at + 4], 13);
        description[at] = 1;
        renumber::<[u8; 12]>(&mut description, |device| device + 10);
        assert_eq!(description[at + 4], 13, "no such structure");
    }
}
