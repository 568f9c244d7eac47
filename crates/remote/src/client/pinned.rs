//! Pinned memory lies in the data area, where the server has the driver below register it: the device reaches it there, and
//! copies of it need no processor.
//!
//! Memory of the program's own cannot be moved there. It may be registered all the same, as a promise that copies are
//! coming; what needs the device to reach it is refused.
#![allow(non_snake_case)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_abi::*;
use divvy_ring::PAGE;
use divvy_ring::data::Extent;

use super::area::area;
use super::{TABLE, start, thread};
use crate::fork::OfProcess;
use crate::wire::by_hand::{PIN, UNPIN};

/// Memory that the device reaches, or that the program has registered.
#[derive(Clone, Copy)]
pub struct Host {
    /// Its first byte.
    pub start: usize,
    /// Its length, as the program asked for it.
    pub bytes: usize,
    /// Its address on the device; 0 where the device does not reach it.
    pub device: u64,
    flags: u32,
    /// Whether it is managed memory.
    pub managed: bool,
    /// Whose it is.
    place: Place,
}

/// Where memory of the host comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Our part of the data area.
    Area(Extent),
    /// A mapping of ours: no memory is shared with the server.
    Plain,
    /// The program's own, which it has registered.
    Programs,
}

static ALL: OfProcess<Mutex<BTreeMap<usize, Host>>> = OfProcess::new();

fn all() -> MutexGuard<'static, BTreeMap<usize, Host>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The host memory that this address lies in.
pub fn holding(address: usize) -> Option<Host> {
    let all = all();
    let (start, host) = all.range(..=address).next_back()?;
    (address - start < host.bytes).then_some(*host)
}

fn allocate(symbol: Symbol, to: *mut *mut c_void, bytes: usize, flags: u32) -> CUresult {
    if to.is_null() || bytes == 0 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let start = match (area(), super::client()) {
        (None, Some(_)) => made_plain(bytes, flags),
        _ => made(symbol, bytes, flags, false),
    };
    match start {
        Ok(start) => {
            // SAFETY: the program vouches for its pointer, which is not null.
            unsafe { to.write(start.cast()) };
            CUDA_SUCCESS
        }
        Err(code) => code,
    }
}

/// Managed memory: pinned memory with the same address for the program and the device.
pub fn allocate_managed(to: *mut CUdeviceptr, bytes: usize) -> CUresult {
    if let Err(code) = start::require_here() {
        return code;
    }
    if to.is_null() || bytes == 0 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if area().is_none() && super::client().is_some() {
        // The server is on another host.
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    let symbol = Symbol::cuMemAllocManaged;
    match made(symbol, bytes, 0, true) {
        Ok(start) => {
            let address = start.expose_provenance();
            if holding(address).is_none_or(|host| host.device != address as u64) {
                // The two processes have it at different places, or the device does not reach it.
                free(symbol, address);
                return CUDA_ERROR_NOT_SUPPORTED;
            }
            // SAFETY: the program vouches for its pointer, which is not null.
            unsafe { to.write(address as u64) };
            CUDA_SUCCESS
        }
        Err(code) => code,
    }
}

/// Whether managed memory begins at this address.
pub fn begins_managed(address: CUdeviceptr) -> bool {
    // Every program frees device memory, and few have managed memory.
    MANAGED.load(Ordering::Relaxed) != 0 && all().get(&(address as usize)).is_some_and(|host| host.managed)
}

/// How much managed memory there is.
static MANAGED: AtomicUsize = AtomicUsize::new(0);

/// Takes a part of the data area, and has the server pin it.
fn made(symbol: Symbol, bytes: usize, flags: u32, managed: bool) -> Result<*mut u8, CUresult> {
    let length = (bytes as u64).checked_next_multiple_of(PAGE as u64);
    let extent = length.and_then(|length| area()?.allocate(length, PAGE as u64));
    let (Some(area), Some(extent)) = (area(), extent) else {
        return Err(match super::client() {
            Some(_) => CUDA_ERROR_OUT_OF_MEMORY,
            None => CUDA_ERROR_DEVICE_UNAVAILABLE,
        });
    };
    let mut device = 0;
    let code = thread::call(
        PIN,
        symbol,
        |m| {
            m.plain(extent.offset);
            m.plain(extent.bytes);
            m.plain(flags & CU_MEMHOSTREGISTER_PORTABLE);
        },
        |m, good| {
            if good {
                device = m.plain()?;
            }
            Ok(())
        },
    );
    if code != CUDA_SUCCESS {
        area.release(extent);
        return Err(code);
    }
    let start = area.at(extent.offset);
    let host = Host {
        start: start.expose_provenance(),
        bytes,
        device,
        flags,
        managed,
        place: Place::Area(extent),
    };
    all().insert(host.start, host);
    MANAGED.fetch_add(usize::from(managed), Ordering::Relaxed);
    Ok(start)
}

/// Memory that the device does not reach: the server is on another host, and its bytes travel in messages.
fn made_plain(bytes: usize, flags: u32) -> Result<*mut u8, CUresult> {
    let mut device = 0;
    // SAFETY: it writes one number to memory of ours. Without a current context nothing may be allocated.
    let code = unsafe { (TABLE.cuCtxGetDevice)(&raw mut device) };
    if code != CUDA_SUCCESS {
        return Err(code);
    }
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let start = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::PRIVATE,
        )
    };
    let start = start.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?.cast::<u8>();
    let host = Host {
        start: start.expose_provenance(),
        bytes,
        device: 0,
        flags,
        managed: false,
        place: Place::Plain,
    };
    all().insert(host.start, host);
    Ok(start)
}

/// Ends such memory.
fn free_plain(address: usize) -> CUresult {
    let Some(host) = all().remove(&address) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    // SAFETY: the mapping was made with this length, and the caller was the one to take it out of the list.
    let _unmapped = unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(address), host.bytes) };
    CUDA_SUCCESS
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemHostAlloc(
    pp: *mut *mut c_void,
    bytesize: usize,
    Flags: u32,
) -> CUresult {
    let known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if Flags & !known != 0 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    allocate(Symbol::cuMemHostAlloc, pp, bytesize, Flags)
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) -> CUresult {
    allocate(Symbol::cuMemAllocHost_v2, pp, bytesize, 0)
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemFreeHost(p: *mut c_void) -> CUresult {
    if p.is_null() {
        return CUDA_SUCCESS;
    }
    if begins_managed(p.addr() as u64) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    free(Symbol::cuMemFreeHost, p.addr())
}

/// Gives memory of the data area back that begins at this address.
pub fn free(symbol: Symbol, address: usize) -> CUresult {
    let known = all().get(&address).map(|host| host.place);
    let (extent, area) = match (known, area()) {
        (Some(Place::Plain), _) => return free_plain(address),
        (Some(Place::Area(extent)), Some(area)) => (extent, area),
        _ => return CUDA_ERROR_INVALID_VALUE,
    };
    let code = thread::call(UNPIN, symbol, |m| m.plain(extent.offset), |_, _| Ok(()));
    // Without a server nothing uses the memory any more; but the region may go with it at any time.
    if code == CUDA_SUCCESS
        && let Some(host) = all().remove(&address)
    {
        MANAGED.fetch_sub(usize::from(host.managed), Ordering::Relaxed);
        area.release(extent);
    }
    code
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemHostGetDevicePointer_v2(
    pdptr: *mut CUdeviceptr,
    p: *mut c_void,
    Flags: u32,
) -> CUresult {
    let Some(host) = holding(p.addr()).filter(|_| Flags == 0 && !pdptr.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    if host.device == 0 {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    // SAFETY: the program vouches for its pointer, which is not null.
    unsafe { pdptr.write(host.device + (p.addr() - host.start) as u64) };
    CUDA_SUCCESS
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemHostGetFlags(pFlags: *mut u32, p: *mut c_void) -> CUresult {
    let Some(host) = holding(p.addr()).filter(|_| !pFlags.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    let mapped = if host.device == 0 {
        0
    } else {
        CU_MEMHOSTALLOC_DEVICEMAP
    };
    // SAFETY: the program vouches for its pointer, which is not null.
    unsafe { pFlags.write(host.flags | mapped) };
    CUDA_SUCCESS
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemHostRegister_v2(
    p: *mut c_void,
    bytesize: usize,
    Flags: u32,
) -> CUresult {
    let known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    let end = p.addr().checked_add(bytesize);
    let Some(end) = end.filter(|_| Flags & !known == 0 && !p.is_null() && bytesize != 0) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    if Flags & CU_MEMHOSTREGISTER_DEVICEMAP != 0 {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    let mut device = 0;
    // SAFETY: it writes one number to memory of ours. Without a current context nothing may be registered.
    let code = unsafe { (TABLE.cuCtxGetDevice)(&raw mut device) };
    if code != CUDA_SUCCESS {
        return code;
    }
    let mut all = all();
    let overlaps = all
        .range(..end)
        .next_back()
        .is_some_and(|(start, host)| start + host.bytes > p.addr());
    if overlaps {
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    let host = Host {
        start: p.addr(),
        bytes: bytesize,
        device: 0,
        flags: Flags,
        managed: false,
        place: Place::Programs,
    };
    all.insert(host.start, host);
    CUDA_SUCCESS
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemHostRegister(p: *mut c_void, bytesize: usize, Flags: u32) -> CUresult {
    // SAFETY: the program vouches for its arguments.
    unsafe { cuMemHostRegister_v2(p, bytesize, Flags) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemHostUnregister(p: *mut c_void) -> CUresult {
    let mut all = all();
    if all
        .get(&p.addr())
        .is_none_or(|host| host.place != Place::Programs)
    {
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    all.remove(&p.addr());
    CUDA_SUCCESS
}
