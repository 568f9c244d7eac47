//! The driver below, or the next layer: its table as the loader gave it, and typed calls through it.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::cl::*;
use crate::dispatch::Entry;

/// The table below. One pointer leads to both its place and its length, so that no call reads those of two tables.
static BELOW: AtomicPtr<Below> = AtomicPtr::new(core::ptr::null_mut());

struct Below {
    table: *const *const c_void,
    count: usize,
}

/// Remembers the table below: `count` pointers that stay for the life of the process.
pub(crate) fn set(table: *const *const c_void, count: usize) {
    // The one before stays as well: another thread may be reading it.
    let below = Box::leak(Box::new(Below { table, count }));
    BELOW.store(below, Ordering::Release);
}

/// The function behind an entry, if the loader's table has it.
pub(crate) fn address(entry: Entry) -> Option<*const c_void> {
    // SAFETY: null, or what `set` leaked.
    let below = unsafe { BELOW.load(Ordering::Acquire).as_ref() }?;
    if entry as usize >= below.count {
        return None;
    }
    // SAFETY: within the loader's table, which it keeps.
    let address = unsafe { below.table.add(entry as usize).read() };
    (!address.is_null()).then_some(address)
}

macro_rules! calls {
    ($($name:ident($($parameter:ident: $of:ty),* $(,)?) -> $result:ty, else $missing:expr;)*) => {
        $(
            /// The driver's function of this name.
            ///
            /// # Safety
            /// As OpenCL's specification says of it.
            #[allow(non_snake_case, clippy::too_many_arguments, clippy::unused_unit, reason = "OpenCL's")]
            pub(crate) unsafe fn $name($($parameter: $of),*) -> $result {
                let Some(address) = address(Entry::$name) else {
                    return $missing;
                };
                // SAFETY: the function of this name, whose type is that of Khronos' header.
                let function = unsafe {
                    core::mem::transmute::<*const c_void, unsafe extern "C" fn($($of),*) -> $result>(address)
                };
                // SAFETY: the caller's promise.
                unsafe { function($($parameter),*) }
            }
        )*
    };
}

calls! {
    clGetPlatformInfo(platform: cl_platform_id, name: cl_uint, size: usize, value: *mut c_void, out: *mut usize) -> cl_int,
        else CL_INVALID_OPERATION;
    clGetDeviceInfo(device: cl_device_id, name: cl_uint, size: usize, value: *mut c_void, out: *mut usize) -> cl_int,
        else CL_INVALID_OPERATION;
    clCreateContext(properties: *const isize, count: cl_uint, devices: *const cl_device_id, notify: ContextCallback,
        data: *mut c_void, error: *mut cl_int) -> cl_context, else core::ptr::null_mut();
    clCreateContextFromType(properties: *const isize, kind: cl_bitfield, notify: ContextCallback, data: *mut c_void,
        error: *mut cl_int) -> cl_context, else core::ptr::null_mut();
    clReleaseContext(context: cl_context) -> cl_int, else CL_INVALID_OPERATION;
    clGetContextInfo(context: cl_context, name: cl_uint, size: usize, value: *mut c_void, out: *mut usize) -> cl_int,
        else CL_INVALID_OPERATION;
    clCreateCommandQueue(context: cl_context, device: cl_device_id, properties: cl_bitfield, error: *mut cl_int)
        -> cl_command_queue, else core::ptr::null_mut();
    clCreateCommandQueueWithProperties(context: cl_context, device: cl_device_id, properties: *const u64,
        error: *mut cl_int) -> cl_command_queue, else core::ptr::null_mut();
    clRetainCommandQueue(queue: cl_command_queue) -> cl_int, else CL_INVALID_OPERATION;
    clReleaseCommandQueue(queue: cl_command_queue) -> cl_int, else CL_INVALID_OPERATION;
    clGetCommandQueueInfo(queue: cl_command_queue, name: cl_uint, size: usize, value: *mut c_void, out: *mut usize)
        -> cl_int, else CL_INVALID_OPERATION;
    clFlush(queue: cl_command_queue) -> cl_int, else CL_INVALID_OPERATION;
    clCreateBuffer(context: cl_context, flags: cl_bitfield, size: usize, host: *mut c_void, error: *mut cl_int)
        -> cl_mem, else core::ptr::null_mut();
    clCreateBufferWithProperties(context: cl_context, properties: *const u64, flags: cl_bitfield, size: usize,
        host: *mut c_void, error: *mut cl_int) -> cl_mem, else core::ptr::null_mut();
    clCreateImage2D(context: cl_context, flags: cl_bitfield, format: *const ImageFormat, width: usize, height: usize,
        row_pitch: usize, host: *mut c_void, error: *mut cl_int) -> cl_mem, else core::ptr::null_mut();
    clCreateImage3D(context: cl_context, flags: cl_bitfield, format: *const ImageFormat, width: usize, height: usize,
        depth: usize, row_pitch: usize, slice_pitch: usize, host: *mut c_void, error: *mut cl_int)
        -> cl_mem, else core::ptr::null_mut();
    clCreateImage(context: cl_context, flags: cl_bitfield, format: *const ImageFormat,
        description: *const ImageDescription, host: *mut c_void, error: *mut cl_int)
        -> cl_mem, else core::ptr::null_mut();
    clCreateImageWithProperties(context: cl_context, properties: *const u64, flags: cl_bitfield,
        format: *const ImageFormat, description: *const ImageDescription, host: *mut c_void, error: *mut cl_int)
        -> cl_mem, else core::ptr::null_mut();
    clCreatePipe(context: cl_context, flags: cl_bitfield, packet: cl_uint, packets: cl_uint, properties: *const isize,
        error: *mut cl_int) -> cl_mem, else core::ptr::null_mut();
    clReleaseMemObject(object: cl_mem) -> cl_int, else CL_INVALID_OPERATION;
    clSetMemObjectDestructorCallback(object: cl_mem, notify: ObjectCallback, data: *mut c_void) -> cl_int,
        else CL_INVALID_OPERATION;
    clSVMAlloc(context: cl_context, flags: cl_bitfield, size: usize, alignment: cl_uint) -> *mut c_void,
        else core::ptr::null_mut();
    clSVMFree(context: cl_context, pointer: *mut c_void) -> (), else ();
    clEnqueueSVMFree(queue: cl_command_queue, count: cl_uint, pointers: *mut *mut c_void, notify: SvmFreeCallback,
        data: *mut c_void, waits: cl_uint, list: *const cl_event, event: *mut cl_event) -> cl_int,
        else CL_INVALID_OPERATION;
    clEnqueueNDRangeKernel(queue: cl_command_queue, kernel: cl_kernel, dimensions: cl_uint, offset: *const usize,
        global: *const usize, local: *const usize, waits: cl_uint, list: *const cl_event, event: *mut cl_event)
        -> cl_int, else CL_INVALID_OPERATION;
    clEnqueueTask(queue: cl_command_queue, kernel: cl_kernel, waits: cl_uint, list: *const cl_event,
        event: *mut cl_event) -> cl_int, else CL_INVALID_OPERATION;
    clEnqueueNativeKernel(queue: cl_command_queue, function: NativeKernel, arguments: *mut c_void, size: usize,
        objects: cl_uint, list: *const cl_mem, places: *mut *const c_void, waits: cl_uint, events: *const cl_event,
        event: *mut cl_event) -> cl_int, else CL_INVALID_OPERATION;
    clEnqueueMarkerWithWaitList(queue: cl_command_queue, waits: cl_uint, list: *const cl_event, event: *mut cl_event)
        -> cl_int, else CL_INVALID_OPERATION;
    clEnqueueMarker(queue: cl_command_queue, event: *mut cl_event) -> cl_int, else CL_INVALID_OPERATION;
    clSetEventCallback(event: cl_event, status: cl_int, notify: EventCallback, data: *mut c_void) -> cl_int,
        else CL_INVALID_OPERATION;
    clGetEventInfo(event: cl_event, name: cl_uint, size: usize, value: *mut c_void, out: *mut usize) -> cl_int,
        else CL_INVALID_OPERATION;
    clRetainEvent(event: cl_event) -> cl_int, else CL_INVALID_OPERATION;
    clReleaseEvent(event: cl_event) -> cl_int, else CL_INVALID_OPERATION;
    clGetExtensionFunctionAddress(name: *const c_char) -> *mut c_void, else core::ptr::null_mut();
    clGetExtensionFunctionAddressForPlatform(platform: cl_platform_id, name: *const c_char) -> *mut c_void,
        else core::ptr::null_mut();
}

/// A value that a device tells of itself; `None` if it does not, or in another size.
///
/// # Safety
/// `device` is a device of the driver's, and every bit pattern is a `T`.
pub(crate) unsafe fn of_device<T: Copy>(device: cl_device_id, name: cl_uint) -> Option<T> {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    let mut size = 0;
    // SAFETY: the caller's promise; the out-parameters are as large as they say.
    let result = unsafe {
        clGetDeviceInfo(
            device,
            name,
            size_of::<T>(),
            value.as_mut_ptr().cast(),
            &raw mut size,
        )
    };
    // SAFETY: the driver has filled it in to its end.
    (result == CL_SUCCESS && size == size_of::<T>()).then(|| unsafe { value.assume_init() })
}

/// A value that a queue tells of itself.
///
/// # Safety
/// `queue` is a queue of the driver's, and every bit pattern is a `T`.
pub(crate) unsafe fn of_queue<T: Copy>(queue: cl_command_queue, name: cl_uint) -> Option<T> {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    let mut size = 0;
    // SAFETY: as above.
    let result = unsafe {
        clGetCommandQueueInfo(
            queue,
            name,
            size_of::<T>(),
            value.as_mut_ptr().cast(),
            &raw mut size,
        )
    };
    // SAFETY: as above.
    (result == CL_SUCCESS && size == size_of::<T>()).then(|| unsafe { value.assume_init() })
}

/// The devices of a context; none if the driver does not tell.
///
/// # Safety
/// `context` is a context of the driver's.
pub(crate) unsafe fn devices_of(context: cl_context) -> Vec<cl_device_id> {
    let mut bytes = 0;
    // SAFETY: the caller's promise; a valid out-parameter.
    let result = unsafe {
        clGetContextInfo(
            context,
            CL_CONTEXT_DEVICES,
            0,
            core::ptr::null_mut(),
            &raw mut bytes,
        )
    };
    if result != CL_SUCCESS {
        return Vec::new();
    }
    let mut devices: Vec<cl_device_id> = vec![core::ptr::null_mut(); bytes / size_of::<cl_device_id>()];
    // SAFETY: as above; the list is as long as it says.
    let result = unsafe {
        clGetContextInfo(
            context,
            CL_CONTEXT_DEVICES,
            devices.len() * size_of::<cl_device_id>(),
            devices.as_mut_ptr().cast(),
            core::ptr::null_mut(),
        )
    };
    if result != CL_SUCCESS {
        devices.clear();
    }
    devices
}
