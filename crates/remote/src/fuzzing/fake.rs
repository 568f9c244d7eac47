//! A driver that does nothing but touch what it is given: all that a role says may be read or written, no more.
//!
//! Under a sanitizer, and in tests with guarded memory, a length that was believed shows. A handle or an address that
//! this driver never gave is a panic, which the server turns into `CUDA_ERROR_UNKNOWN`: [`issued`] tells of it.

use std::cell::RefCell;
use std::collections::HashSet;

use divvy_abi::*;

use crate::handle::Word;

/// Where the memory of this driver begins. Each allocation has 4 GiB of addresses, and no byte of it is there.
pub const MEMORY: u64 = 0x7000_0000_0000;
const EACH: u64 = 1 << 32;

#[derive(Default)]
struct State {
    calls: u64,
    handles: HashSet<u64>,
    memory: u64,
    /// The first thing that was used and had not been given.
    strange: Option<String>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Forgets everything: another input.
pub fn reset() {
    STATE.with(|state| *state.borrow_mut() = State::default());
}

/// How many calls this thread made for the present input.
///
/// # Panics
/// A call used a handle or an address that was not given.
pub fn issued() -> u64 {
    STATE.with(|state| {
        let state = state.borrow();
        assert_eq!(state.strange, None);
        state.calls
    })
}

fn state<R>(body: impl FnOnce(&mut State) -> R) -> R {
    STATE.with(|state| body(&mut state.borrow_mut()))
}

/// Counts a call. Every seventh fails, and does nothing.
fn refuses() -> bool {
    state(|state| {
        state.calls += 1;
        state.calls.is_multiple_of(7)
    })
}

fn new_handle() -> u64 {
    state(|state| {
        let handle = 0x10_0000 + 16 * state.handles.len() as u64;
        state.handles.insert(handle);
        handle
    })
}

fn known(handle: u64, name: &str) {
    state(|state| {
        if handle > 2 && !state.handles.contains(&handle) {
            state
                .strange
                .get_or_insert(format!("{name} was given the handle {handle:#x}"));
        }
    });
}

fn new_memory() -> u64 {
    state(|state| {
        let address = MEMORY + (state.memory % 16) * EACH;
        state.memory += 1;
        address
    })
}

fn within(address: u64, name: &str) {
    if address != 0 && !(MEMORY..=MEMORY + 16 * EACH).contains(&address) {
        state(|state| {
            state
                .strange
                .get_or_insert(format!("{name} was given the address {address:#x}"));
        });
    }
}

/// # Safety
/// `from` is null or has so many bytes.
unsafe fn read(from: *const u8, bytes: usize) {
    for at in 0..if from.is_null() { 0 } else { bytes } {
        // SAFETY: the caller vouches for the bytes.
        std::hint::black_box(unsafe { from.add(at).read_volatile() });
    }
}

/// # Safety
/// `to` is null or has so many bytes.
unsafe fn write(to: *mut u8, bytes: usize) {
    if !to.is_null() {
        // SAFETY: the caller vouches for the bytes.
        unsafe { to.write_bytes(0, bytes) };
    }
}

macro_rules! product {
    ($($factor:tt)*) => {
        1_u64$(.saturating_mul(factor!($factor)))* as usize
    };
}

macro_rules! factor {
    ($literal:literal) => {
        $literal
    };
    ($argument:ident) => {
        crate::client::Count::count($argument)
    };
}

macro_rules! touch {
    ($name:ident handle $p:ident $needs:tt) => { known($p.bits(), stringify!($name)) };
    ($name:ident destroy $p:ident $needs:tt) => { known($p.bits(), stringify!($name)) };
    ($name:ident create $p:ident $needs:tt) => { give($p, new_handle()) };
    ($name:ident find $p:ident $needs:tt) => { give($p, new_handle()) };
    ($name:ident finds $p:ident [$kind:ident $(of $parent:ident)?; $($count:tt)*]) => {
        for at in 0..if $p.is_null() { 0 } else { product!($($count)*) } {
            give($p.add(at), new_handle());
        }
    };
    ($name:ident handles $p:ident [$kind:ident; $($count:tt)*]) => {
        for at in 0..if $p.is_null() { 0 } else { product!($($count)*) } {
            known($p.add(at).read().bits(), stringify!($name));
        }
    };
    ($name:ident input $p:ident $needs:tt) => { read($p.cast(), size($p)) };
    ($name:ident inputs $p:ident [$($count:tt)*]) => { read($p.cast(), product!($($count)*) * size($p)) };
    ($name:ident inout $p:ident $needs:tt) => { read($p.cast_const().cast(), size($p)) };
    ($name:ident output $p:ident $needs:tt) => { write($p.cast(), size($p)) };
    ($name:ident find_device $p:ident $needs:tt) => { write($p.cast(), size($p)) };
    ($name:ident outputs $p:ident [$($count:tt)*]) => { write($p.cast(), product!($($count)*) * size($p)) };
    ($name:ident string $p:ident $needs:tt) => {
        if !$p.is_null() {
            std::hint::black_box(core::ffi::CStr::from_ptr($p).to_bytes());
        }
    };
    ($name:ident memory $p:ident $needs:tt) => { within($p.bits(), stringify!($name)) };
    ($name:ident rows $p:ident $needs:tt) => { within($p.bits(), stringify!($name)) };
    ($name:ident free_memory $p:ident $needs:tt) => { within($p.bits(), stringify!($name)) };
    ($name:ident new_memory $p:ident [$($parent:ident)?; $($count:tt)*]) => {
        if product!($($count)*) as u64 > EACH {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        give($p, new_memory());
    };
    // value, device, null
    ($name:ident $role:ident $p:ident $needs:tt) => {};
}

/// Bytes of what a pointer points to.
fn size<P: crate::wire::Pointee>(_: P) -> usize {
    size_of::<P::To>()
}

/// # Safety
/// `to` is null or may be written.
unsafe fn give<T: Word>(to: *mut T, bits: u64) {
    if !to.is_null() {
        // SAFETY: the caller vouches for the place.
        unsafe { to.write(T::from_bits(bits)) };
    }
}

macro_rules! fakes {
    ([] $($name:ident $id:literal [$how:ident] ($($p:ident: $of:ty = $role:ident $needs:tt),*);)*) => {
        mod generated {
            use super::*;

            $(
                #[allow(non_snake_case, unused_variables, unused_unsafe, clippy::too_many_arguments)]
                pub unsafe extern "C-unwind" fn $name($($p: $of),*) -> CUresult {
                    if refuses() {
                        return CUDA_ERROR_OUT_OF_MEMORY;
                    }
                    // SAFETY: the server vouches for its pointers, which is what is tried here.
                    unsafe { $(touch!($name $role $p $needs);)* }
                    CUDA_SUCCESS
                }
            )*
        }

        const GENERATED: Table = Table { $($name: generated::$name,)* ..Table::UNSUPPORTED };
    };
}

driver_roles! { [fakes] }

/// The driver.
pub static FAKE: Table = Table {
    cuCtxGetCurrent: current,
    cuFuncGetParamInfo: parameter,
    cuKernelGetParamInfo: kernel_parameter,
    cuLaunchKernel: launch,
    cuLaunchKernel_ptsz: launch,
    cuLaunchCooperativeKernel: launch_cooperative,
    cuLaunchCooperativeKernel_ptsz: launch_cooperative,
    cuMemcpyHtoD_v2: to_device,
    cuMemcpyHtoD_v2_ptds: to_device,
    cuMemcpyHtoDAsync_v2: to_device_async,
    cuMemcpyHtoDAsync_v2_ptsz: to_device_async,
    cuMemcpyDtoH_v2: from_device,
    cuMemcpyDtoH_v2_ptds: from_device,
    cuMemcpyDtoHAsync_v2: from_device_async,
    cuMemcpyDtoHAsync_v2_ptsz: from_device_async,
    cuMemFree_v2: free,
    cuMemHostRegister_v2: register,
    cuMemHostUnregister: unregister,
    cuMemHostGetDevicePointer_v2: device_pointer,
    cuModuleLoadDataEx: load,
    cuLibraryLoadData: load_library,
    cuDevicePrimaryCtxRetain: retain,
    cuDevicePrimaryCtxRelease_v2: number,
    cuDevicePrimaryCtxReset_v2: number,
    ..GENERATED
};

unsafe extern "C-unwind" fn number(_: CUdevice) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn retain(context: *mut CUcontext, _: CUdevice) -> CUresult {
    // SAFETY: the server vouches for its pointers, here and below: that is what is tried.
    unsafe { give(context, new_handle()) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn current(context: *mut CUcontext) -> CUresult {
    // SAFETY: as above.
    unsafe { give(context, 0) };
    CUDA_SUCCESS
}

/// Two parameters: of 8 and of 4 bytes.
unsafe extern "C-unwind" fn parameter(
    f: CUfunction,
    at: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CUresult {
    known(f.bits(), "cuFuncGetParamInfo");
    let (Some(of), false) = ([(0, 8), (8, 4)].get(at), offset.is_null() || size.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    // SAFETY: as above.
    unsafe {
        offset.write(of.0);
        size.write(of.1);
    }
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn kernel_parameter(
    k: CUkernel,
    at: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CUresult {
    // SAFETY: as above.
    unsafe { parameter(k.cast(), at, offset, size) }
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn launch(
    f: CUfunction,
    x: u32,
    y: u32,
    z: u32,
    width: u32,
    height: u32,
    depth: u32,
    shared: u32,
    stream: CUstream,
    parameters: *mut *mut c_void,
    _: *mut *mut c_void,
) -> CUresult {
    // SAFETY: as above.
    unsafe { launch_cooperative(f, x, y, z, width, height, depth, shared, stream, parameters) }
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn launch_cooperative(
    f: CUfunction,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    stream: CUstream,
    parameters: *mut *mut c_void,
) -> CUresult {
    if refuses() {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    known(f.bits(), "cuLaunchKernel");
    known(stream.bits(), "cuLaunchKernel");
    // SAFETY: as above.
    unsafe {
        read(parameters.read().cast(), 8);
        read(parameters.add(1).read().cast(), 4);
    }
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn to_device(to: CUdeviceptr, from: *const c_void, bytes: usize) -> CUresult {
    within(to, "cuMemcpyHtoD");
    // SAFETY: as above.
    unsafe { read(from.cast(), bytes) };
    if refuses() {
        CUDA_ERROR_OUT_OF_MEMORY
    } else {
        CUDA_SUCCESS
    }
}

unsafe extern "C-unwind" fn to_device_async(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    known(stream.bits(), "cuMemcpyHtoDAsync");
    // SAFETY: as above.
    unsafe { to_device(to, from, bytes) }
}

unsafe extern "C-unwind" fn from_device(to: *mut c_void, from: CUdeviceptr, bytes: usize) -> CUresult {
    within(from, "cuMemcpyDtoH");
    // SAFETY: as above.
    unsafe { write(to.cast(), bytes) };
    if refuses() {
        CUDA_ERROR_OUT_OF_MEMORY
    } else {
        CUDA_SUCCESS
    }
}

unsafe extern "C-unwind" fn from_device_async(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    known(stream.bits(), "cuMemcpyDtoHAsync");
    // SAFETY: as above.
    unsafe { from_device(to, from, bytes) }
}

unsafe extern "C-unwind" fn free(address: CUdeviceptr) -> CUresult {
    within(address, "cuMemFree");
    if refuses() {
        CUDA_ERROR_OUT_OF_MEMORY
    } else {
        CUDA_SUCCESS
    }
}

unsafe extern "C-unwind" fn register(host: *mut c_void, bytes: usize, _: u32) -> CUresult {
    // SAFETY: as above.
    unsafe { write(host.cast(), bytes) };
    if refuses() {
        CUDA_ERROR_OUT_OF_MEMORY
    } else {
        CUDA_SUCCESS
    }
}

unsafe extern "C-unwind" fn unregister(_: *mut c_void) -> CUresult {
    if refuses() {
        CUDA_ERROR_UNKNOWN
    } else {
        CUDA_SUCCESS
    }
}

unsafe extern "C-unwind" fn device_pointer(device: *mut CUdeviceptr, _: *mut c_void, _: u32) -> CUresult {
    // SAFETY: as above.
    unsafe { give(device, new_memory()) };
    CUDA_SUCCESS
}

/// Reads an image as the driver does: to the end that its own header names.
///
/// # Safety
/// As above.
unsafe fn image(image: *const c_void) {
    let start = image.cast::<u8>();
    // SAFETY: as above.
    unsafe {
        let mut look = |at: usize, count: usize| Some(std::slice::from_raw_parts(start.add(at), count));
        let text = || Some(core::ffi::CStr::from_ptr(start.cast()).to_bytes_with_nul().len());
        read(start, crate::image::measure(&mut look, text).unwrap_or(0));
    }
}

unsafe extern "C-unwind" fn load(
    module: *mut CUmodule,
    data: *const c_void,
    count: u32,
    keys: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CUresult {
    // SAFETY: as above.
    unsafe {
        image(data);
        read(keys.cast(), 4 * count as usize);
        read(values.cast(), 8 * count as usize);
        give(module, new_handle());
    }
    CUDA_SUCCESS
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn load_library(
    library: *mut CUlibrary,
    data: *const c_void,
    keys: *mut CUjit_option,
    values: *mut *mut c_void,
    count: u32,
    _: *mut CUlibraryOption,
    _: *mut *mut c_void,
    _: u32,
) -> CUresult {
    // SAFETY: as above.
    unsafe { load(library.cast(), data, count, keys, values) }
}
