//! Managed memory: one address for host and device, and the hints about where it should be.
//!
//! The bytes are in host memory and both sides use them as they are. So hints are remembered for programs that ask for
//! them, and change nothing. Managed memory is not charged to the device: on hardware too it may exceed the device.

use super::args::{InMut, Out};
use super::capture::unsafe_call;
use super::current;
use super::stream_name::StreamName;
use crate::Result;
use crate::driver::{Driver, driver};
use crate::memory::allocation::{Allocation, Backing, Kind};
use divvy_abi::*;
use divvy_device::memory::charge::PAGE;
use divvy_device::memory::mapping::Mapping;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a program advised about an allocation, by buffer id.
static ADVICE: Mutex<Option<HashMap<u64, Advice>>> = Mutex::new(None);

#[derive(Default)]
struct Advice {
    read_mostly: bool,
    preferred: Option<i32>,
    accessed_by: BTreeSet<i32>,
    last_prefetch: Option<i32>,
}

/// CU_DEVICE_CPU: the host as a location.
const HOST: i32 = CU_DEVICE_CPU;
/// CU_DEVICE_INVALID: no location.
const NOWHERE: i32 = CU_DEVICE_INVALID;

entry! {
    fn cuMemAllocManaged(pointer: Out<CUdeviceptr>, bytes: usize, flags: u32) {
        pointer.required()?;
        let context = current::usable()?;
        unsafe_call()?;
        if bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL.0 && flags != CU_MEM_ATTACH_HOST.0) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let size = bytes.checked_next_multiple_of(4096).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let mapping = Mapping::new(size, PAGE as usize, false).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        let address = mapping.address();
        let (device, backing) = (context.device.ordinal, Backing::Host(mapping));
        let allocation = Allocation::new(address, bytes as u64, Kind::Managed, context.handle, device, backing);
        driver()?.addresses.live.insert(Arc::new(allocation)).map_err(|_| CUDA_ERROR_UNKNOWN)?;
        pointer.set(address)
    }

    fn cuMemAdvise(pointer: u64, bytes: usize, advice: CUmem_advise, device: CUdevice) {
        advise(pointer, bytes, advice, device)
    }

    fn cuMemAdvise_v2(pointer: u64, bytes: usize, advice: CUmem_advise, location: CUmemLocation) {
        let place = if needs_place(advice) { place(&location)? } else { NOWHERE };
        advise(pointer, bytes, advice, place)
    }

    fn cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz(pointer: u64, bytes: usize, device: CUdevice ; stream) {
        prefetch(pointer, bytes, device, stream)
    }

    fn cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz(
        pointer: u64, bytes: usize, location: CUmemLocation, flags: u32 ; stream
    ) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        prefetch(pointer, bytes, place(&location)?, stream)
    }

    fn cuMemRangeGetAttribute(
        data: Out<c_void>,
        size: usize,
        attribute: CUmem_range_attribute,
        pointer: u64,
        bytes: usize,
    ) {
        range_attribute(&data, size, attribute, pointer, bytes)
    }

    fn cuMemRangeGetAttributes(
        data: InMut<*mut c_void>,
        sizes: InMut<usize>,
        attributes: InMut<CUmem_range_attribute>,
        count: usize,
        pointer: u64,
        bytes: usize,
    ) {
        let places = data.read().list(count)?;
        let sizes = sizes.read().list(count)?;
        let attributes = attributes.read().list(count)?;
        for ((place, size), attribute) in places.into_iter().zip(sizes).zip(attributes) {
            range_attribute(&Out::at(place), size, attribute, pointer, bytes)?;
        }
        Ok(())
    }

    fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz(stream ; pointer: u64, _bytes: usize, flags: u32) {
        stream.queue()?;
        managed(driver()?, pointer, 0)?;
        if flags.is_power_of_two() && flags <= CU_MEM_ATTACH_SINGLE.0 {
            Ok(())
        } else {
            Err(CUDA_ERROR_INVALID_VALUE)
        }
    }
}

/// Drops what was advised about an allocation that is gone.
pub fn forget(allocation: &Allocation) {
    if allocation.kind == Kind::Managed {
        notes().get_or_insert_default().remove(&allocation.buffer_id);
    }
}

fn notes() -> MutexGuard<'static, Option<HashMap<u64, Advice>>> {
    ADVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn managed(driver: &Driver, pointer: u64, bytes: u64) -> Result<Arc<Allocation>> {
    let found = driver
        .addresses
        .live
        .find(pointer)
        .filter(|found| found.kind == Kind::Managed);
    found
        .filter(|found| found.holds(pointer, bytes))
        .ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn needs_place(advice: CUmem_advise) -> bool {
    matches!(
        advice,
        CU_MEM_ADVISE_SET_PREFERRED_LOCATION
            | CU_MEM_ADVISE_SET_ACCESSED_BY
            | CU_MEM_ADVISE_UNSET_ACCESSED_BY
    )
}

/// A location as the number of a device, or [`HOST`].
fn place(location: &CUmemLocation) -> Result<i32> {
    match location.type_ {
        CU_MEM_LOCATION_TYPE_DEVICE => {
            // SAFETY: every bit pattern is an i32.
            let id = unsafe { location.anonymous1.id };
            Ok(driver()?.device(id)?.ordinal as CUdevice)
        }
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(HOST),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn advise(pointer: u64, bytes: usize, advice: CUmem_advise, device: CUdevice) -> Result {
    let driver = driver()?;
    let allocation = managed(driver, pointer, bytes as u64)?;
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if needs_place(advice) && device != HOST {
        driver.device(device)?;
    }
    let mut notes = notes();
    let note = notes
        .get_or_insert_default()
        .entry(allocation.buffer_id)
        .or_default();
    match advice {
        CU_MEM_ADVISE_SET_READ_MOSTLY => note.read_mostly = true,
        CU_MEM_ADVISE_UNSET_READ_MOSTLY => note.read_mostly = false,
        CU_MEM_ADVISE_SET_PREFERRED_LOCATION => note.preferred = Some(device),
        CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => note.preferred = None,
        CU_MEM_ADVISE_SET_ACCESSED_BY => {
            note.accessed_by.insert(device);
        }
        CU_MEM_ADVISE_UNSET_ACCESSED_BY => {
            note.accessed_by.remove(&device);
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

fn prefetch(pointer: u64, bytes: usize, device: CUdevice, stream: StreamName) -> Result {
    let driver = driver()?;
    stream.queue()?;
    if device != HOST {
        driver.device(device)?;
    }
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let allocation = managed(driver, pointer, bytes as u64)?;
    notes()
        .get_or_insert_default()
        .entry(allocation.buffer_id)
        .or_default()
        .last_prefetch = Some(device);
    Ok(())
}

fn range_attribute(
    data: &Out<c_void>,
    size: usize,
    attribute: CUmem_range_attribute,
    pointer: u64,
    bytes: usize,
) -> Result {
    let allocation = managed(driver()?, pointer, bytes as u64)?;
    if bytes == 0 || size == 0 || !size.is_multiple_of(4) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut notes = notes();
    let note = notes
        .get_or_insert_default()
        .entry(allocation.buffer_id)
        .or_default();
    if attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY {
        let devices = note.accessed_by.iter().copied().chain(std::iter::repeat(NOWHERE));
        return data.set_list_as(devices, size / 4);
    }
    let kind = |place: Option<i32>| match place {
        None => CU_MEM_LOCATION_TYPE_INVALID.0 as i32,
        Some(HOST) => CU_MEM_LOCATION_TYPE_HOST.0 as i32,
        Some(_) => CU_MEM_LOCATION_TYPE_DEVICE.0 as i32,
    };
    data.set_as(match attribute {
        CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => i32::from(note.read_mostly),
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => note.preferred.unwrap_or(NOWHERE),
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => note.last_prefetch.unwrap_or(NOWHERE),
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE => kind(note.preferred),
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => kind(note.last_prefetch),
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID => note.preferred.filter(|&id| id >= 0).unwrap_or(0),
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => {
            note.last_prefetch.filter(|&id| id >= 0).unwrap_or(0)
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}
