//! A small driver below and a slice for it, in one process.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use divvy_abi::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUcontext, CUdevice, CUdeviceptr,
    CUdeviceptr_v1, CUmemoryPool, CUpointer_attribute, CUresult, CUstream, Table, c_void,
};
use divvy_ledger::attach::{Door, PageServer, Pages, connect};
use divvy_ledger::{GrantSpec, Terms};

/// Allocations of the driver below: address to bytes.
pub static LIVE: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
/// The memory of the device below.
pub const DEVICE_BYTES: u64 = 16 << 30;

/// Bytes that the driver below has handed out.
pub fn live_bytes() -> u64 {
    LIVE.lock().expect("no test panics inside").values().sum()
}

fn take(bytes: u64) -> Result<u64, CUresult> {
    let mut live = LIVE.lock().expect("no test panics inside");
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let used: u64 = live.values().sum();
    if bytes > DEVICE_BYTES - used {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    // The lowest free address, so that addresses are reused soon.
    let mut address = 0x10_0000;
    for (taken, length) in live.iter() {
        if taken - address >= bytes {
            break;
        }
        address = (taken + length).next_multiple_of(512);
    }
    live.insert(address, bytes);
    Ok(address)
}

unsafe fn put(out: *mut CUdeviceptr, taken: Result<u64, CUresult>) -> CUresult {
    match taken {
        Ok(address) => {
            // SAFETY: the tests give valid out-parameters.
            unsafe { out.write(address) };
            CUDA_SUCCESS
        }
        Err(code) => code,
    }
}

unsafe extern "C-unwind" fn allocate(out: *mut CUdeviceptr, bytes: usize) -> CUresult {
    // SAFETY: as the test calls it; so below.
    unsafe { put(out, take(bytes as u64)) }
}

unsafe extern "C-unwind" fn managed(out: *mut CUdeviceptr, bytes: usize, _: u32) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, take(bytes as u64)) }
}

unsafe extern "C-unwind" fn stream_ordered(out: *mut CUdeviceptr, bytes: usize, _: CUstream) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, take(bytes as u64)) }
}

unsafe extern "C-unwind" fn pooled(
    out: *mut CUdeviceptr,
    bytes: usize,
    _: CUmemoryPool,
    _: CUstream,
) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, take(bytes as u64)) }
}

/// A pitch that no device has, to prove that the driver's own is charged.
pub const PITCH: u64 = 4096;

unsafe extern "C-unwind" fn pitched(
    out: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    _: u32,
) -> CUresult {
    let row = (width as u64).next_multiple_of(PITCH);
    // SAFETY: as above.
    unsafe {
        pitch.write(row as usize);
        put(out, take(row * height as u64))
    }
}

/// A pitch below the usual one, for the older interface.
pub const NARROW_PITCH: u64 = 128;

unsafe extern "C-unwind" fn pitched_v1(
    out: *mut CUdeviceptr_v1,
    pitch: *mut u32,
    width: u32,
    height: u32,
    _: u32,
) -> CUresult {
    let row = u64::from(width).next_multiple_of(NARROW_PITCH);
    // SAFETY: as above.
    unsafe {
        pitch.write(row as u32);
        put_v1(out, take(row * u64::from(height)))
    }
}

unsafe extern "C-unwind" fn allocate_v1(out: *mut CUdeviceptr_v1, bytes: u32) -> CUresult {
    // SAFETY: as above.
    unsafe { put_v1(out, take(bytes.into())) }
}

unsafe fn put_v1(out: *mut CUdeviceptr_v1, taken: Result<u64, CUresult>) -> CUresult {
    let mut wide = 0;
    // SAFETY: the tests give valid out-parameters.
    unsafe {
        let result = put(&raw mut wide, taken);
        if result.is_success() {
            out.write(u32::try_from(wide).expect("low addresses come first"));
        }
        result
    }
}

unsafe extern "C-unwind" fn free_v1(pointer: CUdeviceptr_v1) -> CUresult {
    // SAFETY: follows nothing.
    unsafe { free(pointer.into()) }
}

unsafe extern "C-unwind" fn info_v1(free: *mut u32, total: *mut u32) -> CUresult {
    // SAFETY: as above.
    unsafe {
        free.write(u32::MAX);
        total.write(u32::MAX);
    }
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn total_v1(out: *mut u32, _: CUdevice) -> CUresult {
    // SAFETY: as above.
    unsafe { out.write(u32::MAX) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn free(pointer: CUdeviceptr) -> CUresult {
    if pointer == 0 {
        return CUDA_SUCCESS;
    }
    match LIVE.lock().expect("no test panics inside").remove(&pointer) {
        Some(_) => CUDA_SUCCESS,
        None => CUDA_ERROR_INVALID_VALUE,
    }
}

unsafe extern "C-unwind" fn free_async(pointer: CUdeviceptr, _: CUstream) -> CUresult {
    // SAFETY: follows nothing.
    unsafe { free(pointer) }
}

unsafe extern "C-unwind" fn info(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: as above.
    unsafe {
        free.write((DEVICE_BYTES - live_bytes()) as usize);
        total.write(DEVICE_BYTES as usize);
    }
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn total(out: *mut usize, _: CUdevice) -> CUresult {
    // SAFETY: as above.
    unsafe { out.write(DEVICE_BYTES as usize) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn destroy(_: CUcontext) -> CUresult {
    LIVE.lock().expect("no test panics inside").clear();
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn attribute(
    _: *mut c_void,
    _: CUpointer_attribute,
    pointer: CUdeviceptr,
) -> CUresult {
    match LIVE.lock().expect("no test panics inside").contains_key(&pointer) {
        true => CUDA_SUCCESS,
        false => CUDA_ERROR_INVALID_VALUE,
    }
}

/// A driver with memory functions only.
pub static MEMORY: Table = Table {
    cuMemAlloc: allocate_v1,
    cuMemAllocPitch: pitched_v1,
    cuMemFree: free_v1,
    cuMemGetInfo: info_v1,
    cuDeviceTotalMem: total_v1,
    cuMemAlloc_v2: allocate,
    cuMemAllocPitch_v2: pitched,
    cuMemAllocManaged: managed,
    cuMemAllocAsync: stream_ordered,
    cuMemAllocAsync_ptsz: stream_ordered,
    cuMemAllocFromPoolAsync: pooled,
    cuMemAllocFromPoolAsync_ptsz: pooled,
    cuMemFree_v2: free,
    cuMemFreeAsync: free_async,
    cuMemFreeAsync_ptsz: free_async,
    cuMemGetInfo_v2: info,
    cuDeviceTotalMem_v2: total,
    cuCtxDestroy_v2: destroy,
    cuPointerGetAttribute: attribute,
    ..Table::UNSUPPORTED
};

/// A slice whose page server is a thread of this process.
pub struct Slice {
    /// Its first account's.
    pub pages: Pages,
    /// Its other accounts'.
    pub more: Vec<Pages>,
    pub socket: PathBuf,
    pub control: PathBuf,
    _folder: tempfile::TempDir,
}

impl Slice {
    pub fn new(limit_bytes: u64) -> Self {
        Self::with(&[(limit_bytes, [7; 16])], Terms::default())
    }

    /// A slice of several devices: a limit and a UUID for each.
    pub fn with(devices: &[(u64, [u8; 16])], terms: Terms) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let page_server = Arc::new(PageServer::new());
        let listen = |name: &str, door: Door| {
            let socket = folder.path().join(name);
            let listener = UnixListener::bind(&socket).expect("a socket");
            let serving = Arc::clone(&page_server);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let _served = serving.serve(&stream, door);
                }
            });
            socket
        };
        let socket = listen("attach.sock", Door::Container);
        let control = listen("control.sock", Door::Agent);
        let pages = devices.iter().enumerate().map(|(account, &(limit, uuid))| {
            let pages = Pages::create(&GrantSpec {
                memory_limit_bytes: limit,
                device_uuid: uuid,
                slice_id: "s-1",
                slice_name: "test",
                account: account as u32,
                accounts: devices.len() as u32,
                terms,
            })
            .expect("pages");
            page_server.hold(&pages).expect("the server takes them");
            pages
        });
        let mut pages: Vec<_> = pages.collect();
        Self {
            pages: pages.remove(0),
            more: pages,
            socket,
            control,
            _folder: folder,
        }
    }

    /// Makes this process a member.
    pub fn enter(&self) {
        let accounts = (0..=self.more.len() as u32)
            .map(|account| connect(&self.socket, account).expect("the server answers"));
        divvy_limiter::tenant::enter(accounts.collect());
    }

    pub fn used(&self) -> u64 {
        self.pages.ledger.total_used()
    }
}
