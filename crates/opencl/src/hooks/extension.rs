//! Functions of extensions, which programs ask for by name: those that allocate or launch are the layer's.
//!
//! Each driver has a function of its own behind a name. The layer remembers it by the platform for which it was asked, and
//! finds it again by the platform of the call's context or queue.
#![allow(non_snake_case)]

use core::ffi::{CStr, c_char, c_void};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use super::launch::{gated, single};
use super::{guarded, svm};
use crate::cl::*;
use crate::driver::locked;
use crate::{below, memory};

/// The layer's functions, by name.
const OURS: [(&CStr, Name); 6] = [
    (c"clDeviceMemAllocINTEL", Name::DeviceAlloc),
    (c"clSharedMemAllocINTEL", Name::SharedAlloc),
    (c"clMemFreeINTEL", Name::Free),
    (c"clMemBlockingFreeINTEL", Name::BlockingFree),
    (c"clCreateCommandBufferKHR", Name::CreateCommandBuffer),
    (c"clEnqueueCommandBufferKHR", Name::EnqueueCommandBuffer),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Name {
    DeviceAlloc,
    SharedAlloc,
    Free,
    BlockingFree,
    CreateCommandBuffer,
    EnqueueCommandBuffer,
}

impl Name {
    fn ours(self) -> *mut c_void {
        let address = match self {
            Self::DeviceAlloc => device_alloc as *const c_void,
            Self::SharedAlloc => shared_alloc as *const c_void,
            Self::Free => free as *const c_void,
            Self::BlockingFree => blocking_free as *const c_void,
            Self::CreateCommandBuffer => create_command_buffer as *const c_void,
            Self::EnqueueCommandBuffer => enqueue_command_buffer as *const c_void,
        };
        address.cast_mut()
    }
}

type Functions = HashMap<(Name, usize), usize>;

fn functions() -> &'static Mutex<Functions> {
    static FUNCTIONS: OnceLock<Mutex<Functions>> = OnceLock::new();
    FUNCTIONS.get_or_init(Mutex::default)
}

/// Queues of command buffers.
fn buffers() -> &'static Mutex<HashMap<usize, usize>> {
    static BUFFERS: OnceLock<Mutex<HashMap<usize, usize>>> = OnceLock::new();
    BUFFERS.get_or_init(Mutex::default)
}

/// The driver's function behind a name; null if it was not asked for.
fn function(name: Name, platform: usize) -> Option<usize> {
    let functions = locked(functions());
    let of_platform = functions.get(&(name, platform));
    // The older question names no platform.
    of_platform.or_else(|| functions.get(&(name, 0))).copied()
}

/// # Safety
/// The devices are the driver's.
unsafe fn platform_of(devices: &[cl_device_id]) -> usize {
    let Some(first) = devices.first() else { return 0 };
    // SAFETY: the caller's promise.
    unsafe { below::of_device::<usize>(*first, CL_DEVICE_PLATFORM) }.unwrap_or(0)
}

/// # Safety
/// `queue` is a queue of the driver's.
unsafe fn platform_of_queue(queue: cl_command_queue) -> usize {
    // SAFETY: the caller's promise; then the driver named the device.
    unsafe {
        match below::of_queue::<usize>(queue, CL_QUEUE_DEVICE) {
            Some(device) => platform_of(&[device as cl_device_id]),
            None => 0,
        }
    }
}

/// # Safety
/// `name` is null or a C string.
unsafe fn answer(name: *const c_char, platform: usize, theirs: *mut c_void) -> *mut c_void {
    if theirs.is_null() || name.is_null() {
        return theirs;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    match OURS.iter().find(|(ours, _)| *ours == name) {
        // A driver may tell its own function behind a core name, which would pass the layer.
        None => super::named(name).unwrap_or(theirs),
        Some((_, name)) => {
            locked(functions()).insert((*name, platform), theirs as usize);
            name.ours()
        }
    }
}

pub(super) unsafe extern "C" fn clGetExtensionFunctionAddress(name: *const c_char) -> *mut c_void {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the argument is handed on as it came.
        unsafe { answer(name, 0, below::clGetExtensionFunctionAddress(name)) }
    })
}

pub(super) unsafe extern "C" fn clGetExtensionFunctionAddressForPlatform(
    platform: cl_platform_id,
    name: *const c_char,
) -> *mut c_void {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came.
        unsafe {
            let theirs = below::clGetExtensionFunctionAddressForPlatform(platform, name);
            answer(name, platform as usize, theirs)
        }
    })
}

/// `clDeviceMemAllocINTEL` and `clSharedMemAllocINTEL` of cl_intel_unified_shared_memory.
type Alloc =
    unsafe extern "C" fn(cl_context, cl_device_id, *const u64, usize, cl_uint, *mut cl_int) -> *mut c_void;

/// # Safety
/// As the extension says of the function.
unsafe fn allocate(
    name: Name,
    context: cl_context,
    device: cl_device_id,
    properties: *const u64,
    size: usize,
    alignment: cl_uint,
    error: *mut cl_int,
) -> *mut c_void {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came, to the driver's function of the name.
        let made = unsafe {
            let devices = match device.is_null() {
                true => below::devices_of(context),
                false => vec![device],
            };
            match function(name, platform_of(&devices)) {
                None => Err(CL_INVALID_OPERATION),
                Some(address) => {
                    let theirs = core::mem::transmute::<usize, Alloc>(address);
                    svm::allocate(context, &devices, size, || {
                        let mut why = CL_SUCCESS;
                        let pointer = theirs(context, device, properties, size, alignment, &raw mut why);
                        match pointer.is_null() {
                            false => Ok(pointer),
                            true if why == CL_SUCCESS => Err(CL_OUT_OF_RESOURCES),
                            true => Err(why),
                        }
                    })
                }
            }
        };
        if !error.is_null() {
            // SAFETY: the program's own place.
            unsafe { error.write(made.err().unwrap_or(CL_SUCCESS)) };
        }
        made.unwrap_or(core::ptr::null_mut())
    })
}

unsafe extern "C" fn device_alloc(
    context: cl_context,
    device: cl_device_id,
    properties: *const u64,
    size: usize,
    alignment: cl_uint,
    error: *mut cl_int,
) -> *mut c_void {
    // SAFETY: the arguments are handed on as they came.
    unsafe {
        allocate(
            Name::DeviceAlloc,
            context,
            device,
            properties,
            size,
            alignment,
            error,
        )
    }
}

unsafe extern "C" fn shared_alloc(
    context: cl_context,
    device: cl_device_id,
    properties: *const u64,
    size: usize,
    alignment: cl_uint,
    error: *mut cl_int,
) -> *mut c_void {
    // SAFETY: the arguments are handed on as they came.
    unsafe {
        allocate(
            Name::SharedAlloc,
            context,
            device,
            properties,
            size,
            alignment,
            error,
        )
    }
}

/// # Safety
/// As the extension says of the function.
unsafe fn free_by(name: Name, context: cl_context, pointer: *mut c_void) -> cl_int {
    guarded(CL_OUT_OF_RESOURCES, || {
        // SAFETY: the arguments are handed on as they came, to the driver's function of the name.
        unsafe {
            let Some(address) = function(name, platform_of(&below::devices_of(context))) else {
                return CL_INVALID_OPERATION;
            };
            let theirs = core::mem::transmute::<usize, unsafe extern "C" fn(cl_context, *mut c_void) -> cl_int>(
                address,
            );
            let charge = memory::taken(context, pointer);
            let result = theirs(context, pointer);
            match charge {
                Some(charge) if result == CL_SUCCESS => charge.end(),
                Some(charge) => memory::keep(context, pointer, charge),
                None => {}
            }
            result
        }
    })
}

unsafe extern "C" fn free(context: cl_context, pointer: *mut c_void) -> cl_int {
    // SAFETY: the arguments are handed on as they came.
    unsafe { free_by(Name::Free, context, pointer) }
}

unsafe extern "C" fn blocking_free(context: cl_context, pointer: *mut c_void) -> cl_int {
    // SAFETY: the arguments are handed on as they came.
    unsafe { free_by(Name::BlockingFree, context, pointer) }
}

/// `clCreateCommandBufferKHR` of cl_khr_command_buffer.
unsafe extern "C" fn create_command_buffer(
    count: cl_uint,
    queues: *const cl_command_queue,
    properties: *const u64,
    error: *mut cl_int,
) -> cl_command_buffer_khr {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came, to the driver's function of the name.
        unsafe {
            let first = match count > 0 && !queues.is_null() {
                true => queues.read(),
                false => core::ptr::null_mut(),
            };
            let platform = if first.is_null() {
                0
            } else {
                platform_of_queue(first)
            };
            let Some(address) = function(Name::CreateCommandBuffer, platform) else {
                if !error.is_null() {
                    error.write(CL_INVALID_OPERATION);
                }
                return core::ptr::null_mut();
            };
            let theirs = core::mem::transmute::<
                usize,
                unsafe extern "C" fn(
                    cl_uint,
                    *const cl_command_queue,
                    *const u64,
                    *mut cl_int,
                ) -> cl_command_buffer_khr,
            >(address);
            let buffer = theirs(count, queues, properties, error);
            if !buffer.is_null() {
                locked(buffers()).insert(buffer as usize, first as usize);
            }
            buffer
        }
    })
}

/// `clEnqueueCommandBufferKHR`: one launch, whatever the buffer holds.
unsafe extern "C" fn enqueue_command_buffer(
    count: cl_uint,
    queues: *mut cl_command_queue,
    buffer: cl_command_buffer_khr,
    waits: cl_uint,
    list: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    guarded(CL_OUT_OF_RESOURCES, || {
        // SAFETY: the arguments are handed on as they came, to the driver's function of the name.
        unsafe {
            let queue = match count > 0 && !queues.is_null() {
                true => queues.read(),
                false => locked(buffers()).get(&(buffer as usize)).copied().unwrap_or(0) as cl_command_queue,
            };
            let platform = if queue.is_null() {
                0
            } else {
                platform_of_queue(queue)
            };
            let Some(address) = function(Name::EnqueueCommandBuffer, platform) else {
                return CL_INVALID_OPERATION;
            };
            let theirs = core::mem::transmute::<
                usize,
                unsafe extern "C" fn(
                    cl_uint,
                    *mut cl_command_queue,
                    cl_command_buffer_khr,
                    cl_uint,
                    *const cl_event,
                    *mut cl_event,
                ) -> cl_int,
            >(address);
            let call = |event| theirs(count, queues, buffer, waits, list, event);
            match queue.is_null() {
                true => call(event),
                false => gated(queue, single(buffer as usize), event, call),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_core_leads_to_the_layer_too() {
        let theirs = core::ptr::dangling_mut::<c_void>();
        // SAFETY: C strings.
        let told = |name: &CStr, theirs| unsafe { answer(name.as_ptr(), 0, theirs) };
        for name in [
            c"clCreateBuffer",
            c"clSVMAlloc",
            c"clEnqueueNDRangeKernel",
            c"clRetainCommandQueue",
        ] {
            let ours = told(name, theirs);
            assert!(!ours.is_null() && ours != theirs, "{name:?}");
            assert!(
                told(name, core::ptr::null_mut()).is_null(),
                "the driver has none: {name:?}"
            );
        }
        assert_eq!(told(c"clCreateUserEvent", theirs), theirs);
    }
}
