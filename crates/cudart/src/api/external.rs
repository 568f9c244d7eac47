//! Memory that another interface allocated.

use core::ffi::c_void;

use super::array::format;
use crate::prelude::*;

/// # Safety
/// The handle is of the kind that it says.
unsafe fn import(
    out: *mut cudaExternalMemory_t,
    kind: cudaExternalMemoryHandleType,
    descriptor: i32,
    size: u64,
    flags: u32,
) -> Result<()> {
    refuse(out.is_null(), cudaErrorInvalidValue)?;
    refuse(
        kind != cudaExternalMemoryHandleTypeOpaqueFd,
        cudaErrorNotSupported,
    )?;
    context()?;
    let mut described = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
        type_: CUexternalMemoryHandleType(kind.0),
        size,
        flags,
        ..Default::default()
    };
    described.handle.fd = descriptor;
    // SAFETY: the caller vouches for the descriptor.
    unsafe {
        cu!(cuImportExternalMemory(out.cast(), &described));
    }
    Ok(())
}

/// # Safety
/// `address` is null or that of an address.
unsafe fn buffer(
    address: *mut *mut c_void,
    memory: cudaExternalMemory_t,
    offset: u64,
    size: u64,
    flags: u32,
) -> Result<()> {
    refuse(address.is_null(), cudaErrorInvalidValue)?;
    context()?;
    let described = CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
        offset,
        size,
        flags,
        ..Default::default()
    };
    let mut device = 0;
    // SAFETY: the caller vouches for the pointer, and the driver looks at the handle.
    unsafe {
        cu!(cuExternalMemoryGetMappedBuffer(
            &mut device,
            memory.cast(),
            &described
        ));
        *address = device as *mut c_void;
    }
    Ok(())
}

/// # Safety
/// `mipmap` is null or that of a handle.
unsafe fn mipmapped(
    mipmap: *mut cudaMipmappedArray_t,
    memory: cudaExternalMemory_t,
    (offset, flags, levels): (u64, u32, u32),
    channels: cudaChannelFormatDesc,
    extent: cudaExtent,
) -> Result<()> {
    refuse(mipmap.is_null(), cudaErrorInvalidValue)?;
    context()?;
    let (format, channels) = format(&channels)?;
    let described = CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
        offset,
        arrayDesc: CUDA_ARRAY3D_DESCRIPTOR {
            Width: extent.width,
            Height: extent.height,
            Depth: extent.depth,
            Format: format,
            NumChannels: channels,
            Flags: flags,
        },
        numLevels: levels,
        ..Default::default()
    };
    // SAFETY: the caller vouches for the pointer, and the driver looks at the handle.
    unsafe {
        cu!(cuExternalMemoryGetMappedMipmappedArray(
            mipmap.cast(),
            memory.cast(),
            &described
        ));
    }
    Ok(())
}

entry! {
    cudaImportExternalMemory(extMem_out: *mut cudaExternalMemory_t, of: *const cudaExternalMemoryHandleDesc) {
        refuse(of.is_null(), cudaErrorInvalidValue)?;
        import(extMem_out, (*of).type_, (*of).handle.fd, (*of).size, (*of).flags)
    }

    cudaImportExternalMemory_12(extMem_out: *mut cudaExternalMemory_t, of: *const cudaExternalMemoryHandleDesc_12) {
        refuse(of.is_null(), cudaErrorInvalidValue)?;
        import(extMem_out, (*of).type_, (*of).handle.fd, (*of).size, (*of).flags)
    }

    cudaExternalMemoryGetMappedBuffer(
        devPtr: *mut *mut c_void, extMem: cudaExternalMemory_t, of: *const cudaExternalMemoryBufferDesc,
    ) {
        refuse(of.is_null(), cudaErrorInvalidValue)?;
        buffer(devPtr, extMem, (*of).offset, (*of).size, (*of).flags)
    }

    cudaExternalMemoryGetMappedBuffer_12(
        devPtr: *mut *mut c_void, extMem: cudaExternalMemory_t, of: *const cudaExternalMemoryBufferDesc_12,
    ) {
        refuse(of.is_null(), cudaErrorInvalidValue)?;
        buffer(devPtr, extMem, (*of).offset, (*of).size, (*of).flags)
    }

    cudaExternalMemoryGetMappedMipmappedArray(
        mipmap: *mut cudaMipmappedArray_t, extMem: cudaExternalMemory_t,
        of: *const cudaExternalMemoryMipmappedArrayDesc,
    ) {
        refuse(of.is_null(), cudaErrorInvalidValue)?;
        let of = &*of;
        mipmapped(mipmap, extMem, (of.offset, of.flags, of.numLevels), of.formatDesc, of.extent)
    }

    cudaExternalMemoryGetMappedMipmappedArray_12(
        mipmap: *mut cudaMipmappedArray_t, extMem: cudaExternalMemory_t,
        of: *const cudaExternalMemoryMipmappedArrayDesc_12,
    ) {
        refuse(of.is_null(), cudaErrorInvalidValue)?;
        let of = &*of;
        mipmapped(mipmap, extMem, (of.offset, of.flags, of.numLevels), of.formatDesc, of.extent)
    }

    cudaDestroyExternalMemory(extMem: cudaExternalMemory_t) {
        context()?;
        cu!(cuDestroyExternalMemory(extMem.cast()));
        Ok(())
    }
}
