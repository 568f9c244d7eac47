//! The parameters and attributes of a launch, as the program's lists give them.

use crate::Result;
use crate::launch::Geometry;
use divvy_abi::*;
use divvy_ptx::Kernel;

/// The parameters' values, laid out as the kernel declares them, from one of the two forms CUDA has for them.
///
/// # Safety
/// `params`, or else `extra`, describes the kernel's parameters as cuLaunchKernel requires.
pub unsafe fn gather(kernel: &Kernel, params: *mut *mut c_void, extra: *mut *mut c_void) -> Result<Vec<u8>> {
    let mut bytes = vec![0; kernel.param_bytes as usize];
    if !params.is_null() && !extra.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if !params.is_null() {
        for (at, param) in kernel.params.iter().enumerate() {
            // SAFETY: the list has one entry for each parameter.
            let value = unsafe { params.add(at).read() };
            if value.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: each entry points to a value of the parameter's size.
            let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), param.size as usize) };
            let start = param.offset as usize;
            bytes
                .get_mut(start..start + value.len())
                .ok_or(CUDA_ERROR_INVALID_VALUE)?
                .copy_from_slice(value);
        }
    } else if !extra.is_null() {
        // SAFETY: promised by the caller.
        let buffer = unsafe { packed(extra) }?;
        if buffer.len() < bytes.len() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        bytes.copy_from_slice(&buffer[..kernel.param_bytes as usize]);
    } else if !kernel.params.is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(bytes)
}

/// The parameter buffer of an `extra` list.
///
/// # Safety
/// `extra` is a list of keys and values that ends with CU_LAUNCH_PARAM_END.
unsafe fn packed<'a>(extra: *mut *mut c_void) -> Result<&'a [u8]> {
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), 0);
    let mut entry = extra;
    loop {
        // SAFETY: the list goes on until its end is read.
        let key = unsafe { entry.read() };
        if key == CU_LAUNCH_PARAM_END {
            break;
        }
        // SAFETY: a key other than the end is followed by its value.
        let value = unsafe { entry.add(1).read() };
        match key {
            CU_LAUNCH_PARAM_BUFFER_POINTER => buffer = value.cast(),
            CU_LAUNCH_PARAM_BUFFER_SIZE if !value.is_null() => {
                // SAFETY: this key's value points to the size.
                size = unsafe { value.cast::<usize>().read() };
            }
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        // SAFETY: the value just read was inside the list, so one past it is too.
        entry = unsafe { entry.add(2) };
    }
    // SAFETY: the buffer is as long as the list says.
    unsafe { list(buffer, size) }
}

/// A list of the program's.
///
/// # Safety
/// `first` points to `count` entries.
pub unsafe fn list<'a, T>(first: *const T, count: usize) -> Result<&'a [T]> {
    match (count, first.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(CUDA_ERROR_INVALID_VALUE),
        // SAFETY: promised by the caller.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}

/// What a launch attribute changes, or a refusal of what is not emulated. The others are hints, or permissions that
/// need not be used: a kernel that may start early (programmatic dependent launch) starts in time.
pub fn apply(id: CUlaunchAttributeID, value: &CUlaunchAttributeValue, geometry: &mut Geometry) -> Result {
    match id {
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
            // SAFETY: this attribute's value is the member `cooperative`, and any bits are an i32.
            geometry.cooperative = unsafe { value.cooperative } != 0;
        }
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
            // SAFETY: this attribute's value is the member `clusterDim`, and any bits are numbers.
            let size = unsafe { value.clusterDim };
            // Zeros are what an attribute that was never set reads as.
            if !matches!((size.x, size.y, size.z), (1, 1, 1) | (0, 0, 0)) {
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE if is_updatable(value) => {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT | CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        _ => {}
    }
    Ok(())
}

/// Whether a kernel node is to be changed by kernels.
fn is_updatable(value: &CUlaunchAttributeValue) -> bool {
    // SAFETY: the caller knows that the value is this member; any bits of its first part are an i32.
    unsafe { value.deviceUpdatableKernelNode.deviceUpdatable != 0 }
}
