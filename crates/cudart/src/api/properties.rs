//! What a device is: the structure that programs ask for, as each release lays it out.

use crate::prelude::*;

/// What cudaGetDeviceProperties of CUDA 11 wrote, in bytes: CUDA 12's structure begins with it.
const ELEVEN_BYTES: usize = 728;

fn attribute(device: CUdevice, number: u32) -> i32 {
    let mut value = 0;
    // SAFETY: the pointer is that of a number. What a driver does not know of stays 0.
    let answer = unsafe {
        match crate::driver::table() {
            Ok(driver) => (driver.cuDeviceGetAttribute)(&mut value, CUdevice_attribute(number), device),
            Err(_) => CUDA_ERROR_UNKNOWN,
        }
    };
    if answer == CUDA_SUCCESS { value } else { 0 }
}

/// Fills the members of `$to` that are attributes, by the driver's numbers of them.
macro_rules! fill {
    ($to:ident, $device:ident: $($member:ident = $($number:literal)+;)*) => {
        $(fill! { @ $to.$member, $device, $($number)+ })*
    };
    (@ $to:ident.$member:ident, $device:ident, $number:literal) => {
        $to.$member = attribute($device, $number) as _;
    };
    (@ $to:ident.$member:ident, $device:ident, $($number:literal)+) => {
        $to.$member = [$(attribute($device, $number)),+];
    };
}

/// The members that both releases have.
macro_rules! common {
    ($to:ident, $device:ident) => {{
        cu!(cuDeviceGetName(
            $to.name.as_mut_ptr(),
            $to.name.len() as i32,
            $device
        ));
        cu!(cuDeviceGetUuid_v2(&mut $to.uuid, $device));
        // Not on Linux.
        let _ = (crate::driver::table()?.cuDeviceGetLuid)(
            $to.luid.as_mut_ptr(),
            &mut $to.luidDeviceNodeMask,
            $device,
        );
        cu!(cuDeviceTotalMem_v2(&mut $to.totalGlobalMem, $device));
        fill! { $to, $device:
            sharedMemPerBlock = 8;
            regsPerBlock = 12;
            warpSize = 10;
            memPitch = 11;
            maxThreadsPerBlock = 1;
            maxThreadsDim = 2 3 4;
            maxGridSize = 5 6 7;
            totalConstMem = 9;
            major = 75;
            minor = 76;
            textureAlignment = 14;
            texturePitchAlignment = 51;
            multiProcessorCount = 16;
            integrated = 18;
            canMapHostMemory = 19;
            maxTexture1D = 21;
            maxTexture1DMipmap = 77;
            maxTexture2D = 22 23;
            maxTexture2DMipmap = 73 74;
            maxTexture2DLinear = 70 71 72;
            maxTexture2DGather = 45 46;
            maxTexture3D = 24 25 26;
            maxTexture3DAlt = 47 48 49;
            maxTextureCubemap = 52;
            maxTexture1DLayered = 42 43;
            maxTexture2DLayered = 27 28 29;
            maxTextureCubemapLayered = 53 54;
            maxSurface1D = 55;
            maxSurface2D = 56 57;
            maxSurface3D = 58 59 60;
            maxSurface1DLayered = 61 62;
            maxSurface2DLayered = 63 64 65;
            maxSurfaceCubemap = 66;
            maxSurfaceCubemapLayered = 67 68;
            surfaceAlignment = 30;
            concurrentKernels = 31;
            ECCEnabled = 32;
            pciBusID = 33;
            pciDeviceID = 34;
            pciDomainID = 50;
            tccDriver = 35;
            asyncEngineCount = 40;
            unifiedAddressing = 41;
            memoryBusWidth = 37;
            l2CacheSize = 38;
            persistingL2CacheMaxSize = 108;
            maxThreadsPerMultiProcessor = 39;
            streamPrioritiesSupported = 78;
            globalL1CacheSupported = 79;
            localL1CacheSupported = 80;
            sharedMemPerMultiprocessor = 81;
            regsPerMultiprocessor = 82;
            managedMemory = 83;
            isMultiGpuBoard = 84;
            multiGpuBoardGroupID = 85;
            hostNativeAtomicSupported = 86;
            pageableMemoryAccess = 88;
            concurrentManagedAccess = 89;
            computePreemptionSupported = 90;
            canUseHostPointerForRegisteredMem = 91;
            cooperativeLaunch = 95;
            sharedMemPerBlockOptin = 97;
            pageableMemoryAccessUsesHostPageTables = 100;
            directManagedMemAccessFromHost = 101;
            maxBlocksPerMultiProcessor = 106;
            accessPolicyMaxWindowSize = 109;
            reservedSharedMemPerBlock = 111;
            hostRegisterSupported = 99;
            sparseCudaArraySupported = 112;
            hostRegisterReadOnlySupported = 113;
            timelineSemaphoreInteropSupported = 114;
            memoryPoolsSupported = 115;
            gpuDirectRDMASupported = 116;
            gpuDirectRDMAFlushWritesOptions = 117;
            gpuDirectRDMAWritesOrdering = 118;
            memoryPoolSupportedHandleTypes = 119;
            deferredMappingCudaArraySupported = 121;
            ipcEventSupported = 125;
            clusterLaunch = 120;
            unifiedFunctionPointers = 129;
        }
    }};
}

fn thirteen(ordinal: i32) -> Result<cudaDeviceProp> {
    let device = crate::context::device(ordinal)?;
    let mut out = cudaDeviceProp::default();
    // SAFETY: each pointer is that of a member, of the size that is said or asked for.
    unsafe {
        common!(out, device);
    }
    fill! { out, device:
        deviceNumaConfig = 130;
        deviceNumaId = 131;
        mpsEnabled = 133;
        hostNumaId = 134;
        gpuPciDeviceID = 139;
        gpuPciSubsystemID = 140;
        hostNumaMultinodeIpcSupported = 143;
    }
    Ok(out)
}

fn twelve(ordinal: i32) -> Result<cudaDeviceProp_12> {
    let device = crate::context::device(ordinal)?;
    let mut out = cudaDeviceProp_12::default();
    // SAFETY: each pointer is that of a member, of the size that is said or asked for.
    unsafe {
        common!(out, device);
    }
    fill! { out, device:
        clockRate = 13;
        deviceOverlap = 15;
        kernelExecTimeoutEnabled = 17;
        computeMode = 20;
        maxTexture1DLinear = 69;
        memoryClockRate = 36;
        singleToDoublePrecisionPerfRatio = 87;
        cooperativeMultiDeviceLaunch = 96;
    }
    Ok(out)
}

/// The first device that has what is asked for: memory and compute capability.
///
/// # Safety
/// `device` is null or that of a number.
unsafe fn choose(device: *mut i32, memory: usize, major: i32, minor: i32) -> Result<()> {
    refuse(device.is_null(), cudaErrorInvalidValue)?;
    let mut chosen = 0;
    for ordinal in (0..device_count()?).rev() {
        let has = thirteen(ordinal)?;
        if has.totalGlobalMem >= memory && (has.major, has.minor) >= (major, minor) {
            chosen = ordinal;
        }
    }
    // SAFETY: it is not null, and the caller vouches for it.
    unsafe { *device = chosen };
    Ok(())
}

entry! {
    cudaGetDeviceProperties(prop: *mut cudaDeviceProp, device: i32) {
        refuse(prop.is_null(), cudaErrorInvalidValue)?;
        *prop = thirteen(device)?;
        Ok(())
    }

    cudaGetDeviceProperties_v2(prop: *mut cudaDeviceProp_12, device: i32) {
        refuse(prop.is_null(), cudaErrorInvalidValue)?;
        *prop = twelve(device)?;
        Ok(())
    }

    cudaGetDeviceProperties_12(prop: *mut cudaDeviceProp_12, device: i32) {
        refuse(prop.is_null(), cudaErrorInvalidValue)?;
        let whole = twelve(device)?;
        core::ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), prop.cast::<u8>(), ELEVEN_BYTES);
        Ok(())
    }

    cudaChooseDevice(device: *mut i32, prop: *const cudaDeviceProp) {
        refuse(prop.is_null(), cudaErrorInvalidValue)?;
        choose(device, (*prop).totalGlobalMem, (*prop).major, (*prop).minor)
    }

    cudaChooseDevice_12(device: *mut i32, prop: *const cudaDeviceProp_12) {
        refuse(prop.is_null(), cudaErrorInvalidValue)?;
        choose(device, (*prop).totalGlobalMem, (*prop).major, (*prop).minor)
    }
}
