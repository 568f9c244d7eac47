//! Virtual memory management: addresses, physical memory, and access, each by itself.
//!
//! Rules and error codes are those of the driver API's manual, "Virtual Memory Management" (CUDA 13), and its chapter
//! of the programming guide. Where the manual leaves behaviour undefined (a released handle, an address range in
//! use), the answer is an error or a wait.

use super::args::{Handle, In, Out};
use crate::Result;
use crate::driver::{Driver, driver};
use crate::memory::allocation::{Allocation, Backing, Kind};
use crate::memory::physical::{Physical, Place};
use crate::memory::virtual_range::{Accessor, Mapped, RangeError};
use divvy_abi::*;
use divvy_device::memory::charge::PAGE;
use std::sync::{Arc, Mutex, PoisonError};

entry! {
    fn cuMemGetAllocationGranularity(
        granularity: Out<usize>, properties: In<CUmemAllocationProp>, option: CUmemAllocationGranularity_flags
    ) {
        granularity.required()?;
        let driver = driver()?;
        place(driver, &properties.get()?)?;
        match option {
            CU_MEM_ALLOC_GRANULARITY_MINIMUM | CU_MEM_ALLOC_GRANULARITY_RECOMMENDED => granularity.set(PAGE as usize),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    // The manual asks for whole host pages. NVIDIA's driver also refuses sizes that are not whole device pages, since
    // nothing else could be mapped there.
    fn cuMemAddressReserve(pointer: Out<CUdeviceptr>, bytes: usize, alignment: usize, hint: u64, flags: u64) {
        pointer.required()?;
        let driver = driver()?;
        let aligned = alignment == 0 || alignment.is_power_of_two();
        if bytes == 0 || !whole_pages(bytes as u64) || !aligned || !hint.is_multiple_of(HOST_PAGE) || flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let align = (alignment as u64).max(PAGE);
        let address = driver.reservations.reserve(bytes as u64, align, hint);
        pointer.set(address.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?)
    }

    fn cuMemAddressFree(pointer: u64, bytes: usize) {
        driver()?.reservations.free(pointer, bytes as u64).map_err(code)
    }

    fn cuMemCreate(
        handle: Out<CUmemGenericAllocationHandle>, bytes: usize, properties: In<CUmemAllocationProp>, flags: u64
    ) {
        handle.required()?;
        let driver = driver()?;
        let properties = properties.get()?;
        let place = place(driver, &properties)?;
        if bytes == 0 || !whole_pages(bytes as u64) || flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        handle.set(driver.physical.retain(Arc::new(create(driver, place, bytes as u64, &properties)?)))
    }

    fn cuMemRelease(handle: u64) {
        driver()?.physical.release(handle).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMemRetainAllocationHandle(handle: Out<CUmemGenericAllocationHandle>, address: Handle<*mut c_void>) {
        handle.required()?;
        let driver = driver()?;
        let mapped = driver.reservations.find(address.0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        handle.set(driver.physical.retain(Arc::clone(&mapped.physical)))
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<CUmemAllocationProp>, handle: u64) {
        let physical = driver()?.physical.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        properties.set(describe(&physical))
    }

    fn cuMemMap(pointer: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        let driver = driver()?;
        let physical = driver.physical.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let fits = bytes > 0 && whole_pages(bytes as u64) && bytes as u64 <= physical.bytes;
        // "offset … Note: currently must be zero."
        if !fits || offset != 0 || flags != 0 || !whole_pages(pointer) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.reservations.map(pointer, bytes as u64, physical).map_err(code)
    }

    fn cuMemUnmap(pointer: u64, bytes: usize) {
        let driver = driver()?;
        let mappings = driver.reservations.covering(pointer, bytes as u64).map_err(code)?;
        // The work that may use the range ends first; from then on no call finds it.
        drain(driver);
        for mapped in &mappings {
            driver.addresses.live.remove(mapped.address, |found| is(found, mapped));
        }
        drain(driver);
        driver.reservations.unmap(mappings).map_err(code)
    }

    fn cuMemSetAccess(pointer: u64, bytes: usize, list: In<CUmemAccessDesc>, count: usize) {
        let driver = driver()?;
        let mut changes = Vec::new();
        if count == 0 || count > driver.devices.len() + 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mappings = driver.reservations.covering(pointer, bytes as u64).map_err(code)?;
        for entry in list.list(count)? {
            changes.push((accessor(driver, &entry.location)?, allowed(entry.flags)?));
        }
        let host_reaches_device = |who| {
            who == Accessor::Host && mappings.iter().any(|mapped| matches!(mapped.physical.place, Place::Device(_)))
        };
        if changes.iter().any(|&(who, allowed)| allowed && host_reaches_device(who)) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        mappings.iter().try_for_each(|mapped| set_access(driver, mapped, &changes))
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<CUmemLocation>, pointer: u64) {
        let driver = driver()?;
        let who = accessor(driver, &location.get()?)?;
        let allowed = match driver.reservations.find(pointer) {
            Some(mapped) => mapped.allows(who),
            None => driver.addresses.live.find(pointer).map(|_| true).ok_or(CUDA_ERROR_INVALID_VALUE)?,
        };
        let given = if allowed { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } else { CU_MEM_ACCESS_FLAGS_PROT_NONE };
        flags.set(u64::from(given.0))
    }
}

/// Bytes of a host page.
const HOST_PAGE: u64 = 4096;

fn whole_pages(value: u64) -> bool {
    value.is_multiple_of(PAGE)
}

fn code(why: RangeError) -> CUresult {
    match why {
        RangeError::Unfit => CUDA_ERROR_INVALID_VALUE,
        RangeError::System => CUDA_ERROR_OUT_OF_MEMORY,
    }
}

/// Where an allocation shall be; refuses properties that nothing here can have.
fn place(driver: &Driver, properties: &CUmemAllocationProp) -> Result<Place> {
    match properties.type_ {
        CU_MEM_ALLOCATION_TYPE_PINNED => {}
        CU_MEM_ALLOCATION_TYPE_MANAGED => return Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    check_handle_types(properties.requestedHandleTypes)?;
    if properties.allocFlags.gpuDirectRDMACapable != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    // SAFETY: every bit pattern is an i32.
    let id = unsafe { properties.location.anonymous1.id };
    match properties.location.type_ {
        CU_MEM_LOCATION_TYPE_DEVICE => Ok(Place::Device(driver.device(id)?.ordinal)),
        CU_MEM_LOCATION_TYPE_HOST => Ok(Place::Host(CU_MEM_LOCATION_TYPE_HOST)),
        // The device says that its host has one node, of number 0.
        CU_MEM_LOCATION_TYPE_HOST_NUMA if id == 0 => Ok(Place::Host(CU_MEM_LOCATION_TYPE_HOST_NUMA)),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Refuses handle types that cannot be had on this system.
pub fn check_handle_types(types: CUmemAllocationHandleType) -> Result {
    match types {
        CU_MEM_HANDLE_TYPE_NONE | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Ok(()),
        _ => Err(CUDA_ERROR_NOT_SUPPORTED),
    }
}

fn create(driver: &Driver, place: Place, bytes: u64, properties: &CUmemAllocationProp) -> Result<Physical> {
    let (types, flags) = (properties.requestedHandleTypes.0, properties.allocFlags);
    let made = match place {
        // Any device will do to name what is on none.
        Place::Host(kind) => Physical::on_host(&driver.devices[0], kind, bytes, types, flags),
        Place::Device(ordinal) => {
            let device = &driver.devices[ordinal];
            Physical::on_device(device, bytes, types, flags).or_else(|full| {
                if bytes > device.facts.memory_bytes() {
                    return Err(full);
                }
                crate::pool::trim_all(&driver.pools, ordinal);
                Physical::on_device(device, bytes, types, flags)
            })
        }
    };
    made.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
}

fn describe(physical: &Physical) -> CUmemAllocationProp {
    let (kind, id) = match physical.place {
        Place::Device(ordinal) => (CU_MEM_LOCATION_TYPE_DEVICE, ordinal as i32),
        Place::Host(kind) => (kind, 0),
    };
    CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType(physical.handle_types),
        location: CUmemLocation {
            type_: kind,
            anonymous1: CUmemLocation_v1_anonymous1 { id },
        },
        allocFlags: physical.flags,
        ..CUmemAllocationProp::default()
    }
}

fn accessor(driver: &Driver, location: &CUmemLocation) -> Result<Accessor> {
    match location.type_ {
        CU_MEM_LOCATION_TYPE_DEVICE => {
            // SAFETY: every bit pattern is an i32.
            let id = unsafe { location.anonymous1.id };
            Ok(Accessor::Device(driver.device(id)?.ordinal))
        }
        CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA => Ok(Accessor::Host),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// The engine has no memory that can be read and not written.
fn allowed(flags: CUmemAccess_flags) -> Result<bool> {
    match flags {
        CU_MEM_ACCESS_FLAGS_PROT_NONE => Ok(false),
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Ok(true),
        CU_MEM_ACCESS_FLAGS_PROT_READ => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Changes which devices may use a mapping: the registry knows it while any of them may.
fn set_access(driver: &Driver, mapped: &Arc<Mapped>, changes: &[(Accessor, bool)]) -> Result {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _changing = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = mapped.is_accessible();
    for &(who, allowed) in changes {
        mapped.set_access(who, allowed);
    }
    match (before, mapped.is_accessible()) {
        (false, true) => {
            let (host, device) = match mapped.physical.place {
                Place::Device(ordinal) => (false, ordinal),
                Place::Host(_) => (true, 0),
            };
            let (kind, backing) = (Kind::Mapped { host }, Backing::Mapped(Arc::clone(mapped)));
            let allocation = Allocation::new(mapped.address, mapped.bytes, kind, 0, device, backing);
            driver
                .addresses
                .live
                .insert(Arc::new(allocation))
                .map_err(|_| CUDA_ERROR_UNKNOWN)
        }
        (true, false) => {
            driver
                .addresses
                .live
                .remove(mapped.address, |found| is(found, mapped));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn is(found: &Allocation, mapped: &Arc<Mapped>) -> bool {
    found.mapped().is_some_and(|other| Arc::ptr_eq(other, mapped))
}

/// Waits for all work of all contexts: any of them may use mapped memory.
fn drain(driver: &Driver) {
    for context in driver.contexts.all() {
        context.drain();
    }
}
