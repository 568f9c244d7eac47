//! What a kernel needs and may have.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;

use crate::prelude::*;
use crate::registry;

/// The driver's function of a stub, in the thread's context.
pub fn function(stub: *const c_void) -> Result<CUfunction> {
    context()?;
    let kernel = registry::kernel(stub)?;
    let mut function = null_mut();
    // SAFETY: the kernel is the driver's.
    unsafe {
        cu!(cuKernelGetFunction(&mut function, kernel));
    }
    Ok(function)
}

fn attribute(function: CUfunction, attribute: CUfunction_attribute) -> Result<i32> {
    let mut value = 0;
    // SAFETY: the function is the driver's, the pointer that of a number.
    unsafe {
        cu!(cuFuncGetAttribute(&mut value, attribute, function));
    }
    Ok(value)
}

entry! {
    cudaFuncGetAttributes(attr: *mut cudaFuncAttributes, func: *const c_void) {
        refuse(attr.is_null(), cudaErrorInvalidValue)?;
        let function = function(func)?;
        let get = |which| attribute(function, which);
        // What a driver does not know of yet stays 0.
        let newer = |which| attribute(function, which).unwrap_or(0);
        *attr = cudaFuncAttributes {
            sharedSizeBytes: get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)? as usize,
            constSizeBytes: get(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)? as usize,
            localSizeBytes: get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)? as usize,
            maxThreadsPerBlock: get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            numRegs: get(CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            ptxVersion: get(CU_FUNC_ATTRIBUTE_PTX_VERSION)?,
            binaryVersion: get(CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
            cacheModeCA: get(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA)?,
            maxDynamicSharedSizeBytes: get(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?,
            preferredShmemCarveout: get(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)?,
            clusterDimMustBeSet: newer(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET),
            requiredClusterWidth: newer(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH),
            requiredClusterHeight: newer(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT),
            requiredClusterDepth: newer(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH),
            clusterSchedulingPolicyPreference: newer(CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE),
            nonPortableClusterSizeAllowed: newer(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED),
            ..Default::default()
        };
        Ok(())
    }

    cudaFuncSetAttribute(func: *const c_void, attr: cudaFuncAttribute, value: i32) {
        let function = function(func)?;
        cu!(cuFuncSetAttribute(function, CUfunction_attribute(attr.0), value));
        Ok(())
    }

    cudaFuncSetCacheConfig(func: *const c_void, cacheConfig: cudaFuncCache) {
        let function = function(func)?;
        cu!(cuFuncSetCacheConfig(function, CUfunc_cache(cacheConfig.0)));
        Ok(())
    }

    cudaFuncSetSharedMemConfig(func: *const c_void, config: cudaSharedMemConfig) {
        let function = function(func)?;
        cu!(cuFuncSetSharedMemConfig(function, CUsharedconfig(config.0)));
        Ok(())
    }

    cudaFuncGetName(name: *mut *const c_char, func: *const c_void) {
        refuse(name.is_null(), cudaErrorInvalidValue)?;
        if let Some(kernel) = registry::registered(func) {
            // The name lives as long as its image is registered: the program's code holds both.
            *name = kernel.name.as_ptr();
            return Ok(());
        }
        let kernel = registry::kernel(func)?;
        cu!(cuKernelGetName(name, kernel));
        Ok(())
    }

    cudaFuncGetParamInfo(func: *const c_void, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize) {
        context()?;
        let kernel = registry::kernel(func)?;
        cu!(cuKernelGetParamInfo(kernel, paramIndex, paramOffset, paramSize));
        Ok(())
    }

    cudaFuncGetParamCount(func: *const c_void, paramCount: *mut usize) {
        context()?;
        let kernel = registry::kernel(func)?;
        cu!(cuKernelGetParamCount(kernel, paramCount));
        Ok(())
    }

    cudaKernelSetAttributeForDevice(kernel: cudaKernel_t, attr: cudaFuncAttribute, value: i32, device: i32) {
        let device = crate::context::device(device)?;
        cu!(cuKernelSetAttribute(CUfunction_attribute(attr.0), value, kernel, device));
        Ok(())
    }
}
