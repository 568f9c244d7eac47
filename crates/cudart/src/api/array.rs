//! Arrays: memory in the layout that textures and surfaces read.

use crate::prelude::*;

/// Bytes of one channel.
pub fn bytes_of(format: CUarray_format) -> usize {
    match format {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
        _ => 4,
    }
}

/// Format and number of channels. Channels have one width, and there are 1, 2 or 4 of them.
///
/// # Errors
/// `cudaErrorInvalidChannelDescriptor` for anything else.
pub fn format(of: &cudaChannelFormatDesc) -> Result<(CUarray_format, u32)> {
    let bits = [of.x, of.y, of.z, of.w];
    let channels = bits.iter().take_while(|bits| **bits != 0).count();
    let even =
        bits[..channels].iter().all(|bits| *bits == of.x) && bits[channels..].iter().all(|bits| *bits == 0);
    refuse(
        !even || !matches!(channels, 1 | 2 | 4),
        cudaErrorInvalidChannelDescriptor,
    )?;
    let format = match (of.f, of.x) {
        (cudaChannelFormatKindUnsigned, 8) => CU_AD_FORMAT_UNSIGNED_INT8,
        (cudaChannelFormatKindUnsigned, 16) => CU_AD_FORMAT_UNSIGNED_INT16,
        (cudaChannelFormatKindUnsigned, 32) => CU_AD_FORMAT_UNSIGNED_INT32,
        (cudaChannelFormatKindSigned, 8) => CU_AD_FORMAT_SIGNED_INT8,
        (cudaChannelFormatKindSigned, 16) => CU_AD_FORMAT_SIGNED_INT16,
        (cudaChannelFormatKindSigned, 32) => CU_AD_FORMAT_SIGNED_INT32,
        (cudaChannelFormatKindFloat, 16) => CU_AD_FORMAT_HALF,
        (cudaChannelFormatKindFloat, 32) => CU_AD_FORMAT_FLOAT,
        _ => return Err(cudaErrorInvalidChannelDescriptor),
    };
    Ok((format, channels as u32))
}

/// The description of channels of a driver's array.
pub fn channels(format: CUarray_format, channels: u32) -> cudaChannelFormatDesc {
    let bits = bytes_of(format) as i32 * 8;
    let of = |channel| if channel < channels { bits } else { 0 };
    cudaChannelFormatDesc {
        x: of(0),
        y: of(1),
        z: of(2),
        w: of(3),
        f: match format {
            CU_AD_FORMAT_SIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT32 => {
                cudaChannelFormatKindSigned
            }
            CU_AD_FORMAT_HALF | CU_AD_FORMAT_FLOAT => cudaChannelFormatKindFloat,
            _ => cudaChannelFormatKindUnsigned,
        },
    }
}

/// # Safety
/// `desc` is null or points to such.
unsafe fn descriptor(
    desc: *const cudaChannelFormatDesc,
    extent: cudaExtent,
    flags: u32,
) -> Result<CUDA_ARRAY3D_DESCRIPTOR> {
    refuse(desc.is_null(), cudaErrorInvalidValue)?;
    // SAFETY: it is not null, and the caller vouches for it.
    let (format, channels) = format(unsafe { &*desc })?;
    Ok(CUDA_ARRAY3D_DESCRIPTOR {
        Width: extent.width,
        Height: extent.height,
        Depth: extent.depth,
        Format: format,
        NumChannels: channels,
        Flags: flags,
    })
}

/// What the driver says of an array.
pub fn described(array: cudaArray_const_t) -> Result<CUDA_ARRAY3D_DESCRIPTOR> {
    refuse(array.is_null(), cudaErrorInvalidResourceHandle)?;
    let mut descriptor = CUDA_ARRAY3D_DESCRIPTOR::default();
    // SAFETY: the pointer is that of a descriptor; the driver looks whether the array is one.
    unsafe {
        cu!(cuArray3DGetDescriptor_v2(
            &mut descriptor,
            array.cast_mut().cast()
        ));
    }
    Ok(descriptor)
}

pub unsafe extern "C-unwind" fn cudaCreateChannelDesc(
    x: i32,
    y: i32,
    z: i32,
    w: i32,
    f: cudaChannelFormatKind,
) -> cudaChannelFormatDesc {
    cudaChannelFormatDesc { x, y, z, w, f }
}

entry! {
    cudaMallocArray(
        array: *mut cudaArray_t, desc: *const cudaChannelFormatDesc, width: usize, height: usize, flags: u32,
    ) {
        refuse(array.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let descriptor = descriptor(desc, cudaExtent { width, height, depth: 0 }, flags)?;
        cu!(cuArray3DCreate_v2(array.cast(), &descriptor));
        Ok(())
    }

    cudaMalloc3DArray(array: *mut cudaArray_t, desc: *const cudaChannelFormatDesc, extent: cudaExtent, flags: u32) {
        refuse(array.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let descriptor = descriptor(desc, extent, flags)?;
        cu!(cuArray3DCreate_v2(array.cast(), &descriptor));
        Ok(())
    }

    cudaFreeArray(array: cudaArray_t) {
        context()?;
        if array.is_null() {
            return Ok(());
        }
        cu!(cuArrayDestroy(array.cast()));
        Ok(())
    }

    cudaMallocMipmappedArray(
        mipmappedArray: *mut cudaMipmappedArray_t, desc: *const cudaChannelFormatDesc, extent: cudaExtent,
        numLevels: u32, flags: u32,
    ) {
        refuse(mipmappedArray.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let descriptor = descriptor(desc, extent, flags)?;
        cu!(cuMipmappedArrayCreate(mipmappedArray.cast(), &descriptor, numLevels));
        Ok(())
    }

    cudaFreeMipmappedArray(mipmappedArray: cudaMipmappedArray_t) {
        context()?;
        if mipmappedArray.is_null() {
            return Ok(());
        }
        cu!(cuMipmappedArrayDestroy(mipmappedArray.cast()));
        Ok(())
    }

    cudaGetMipmappedArrayLevel(
        levelArray: *mut cudaArray_t, mipmappedArray: cudaMipmappedArray_const_t, level: u32,
    ) {
        context()?;
        cu!(cuMipmappedArrayGetLevel(levelArray.cast(), mipmappedArray.cast_mut().cast(), level));
        Ok(())
    }

    cudaGetChannelDesc(desc: *mut cudaChannelFormatDesc, array: cudaArray_const_t) {
        refuse(desc.is_null(), cudaErrorInvalidValue)?;
        let found = described(array)?;
        *desc = channels(found.Format, found.NumChannels);
        Ok(())
    }

    cudaArrayGetInfo(
        desc: *mut cudaChannelFormatDesc, extent: *mut cudaExtent, flags: *mut u32, array: cudaArray_t,
    ) {
        let found = described(array)?;
        if !desc.is_null() {
            *desc = channels(found.Format, found.NumChannels);
        }
        if !extent.is_null() {
            *extent = cudaExtent { width: found.Width, height: found.Height, depth: found.Depth };
        }
        if !flags.is_null() {
            *flags = found.Flags;
        }
        Ok(())
    }

    cudaArrayGetMemoryRequirements(
        memoryRequirements: *mut cudaArrayMemoryRequirements, array: cudaArray_t, device: i32,
    ) {
        let device = crate::context::device(device)?;
        cu!(cuArrayGetMemoryRequirements(memoryRequirements.cast(), array.cast(), device));
        Ok(())
    }

    cudaMipmappedArrayGetMemoryRequirements(
        memoryRequirements: *mut cudaArrayMemoryRequirements, mipmap: cudaMipmappedArray_t, device: i32,
    ) {
        let device = crate::context::device(device)?;
        cu!(cuMipmappedArrayGetMemoryRequirements(memoryRequirements.cast(), mipmap.cast(), device));
        Ok(())
    }

    cudaArrayGetSparseProperties(sparseProperties: *mut cudaArraySparseProperties, array: cudaArray_t) {
        cu!(cuArrayGetSparseProperties(sparseProperties.cast(), array.cast()));
        Ok(())
    }

    cudaMipmappedArrayGetSparseProperties(
        sparseProperties: *mut cudaArraySparseProperties, mipmap: cudaMipmappedArray_t,
    ) {
        cu!(cuMipmappedArrayGetSparseProperties(sparseProperties.cast(), mipmap.cast()));
        Ok(())
    }

    cudaArrayGetPlane(pPlaneArray: *mut cudaArray_t, hArray: cudaArray_t, planeIdx: u32) {
        cu!(cuArrayGetPlane(pPlaneArray.cast(), hArray.cast(), planeIdx));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_have_one_width() {
        let of = |x, y, z, w, f| format(&cudaChannelFormatDesc { x, y, z, w, f });
        assert_eq!(
            of(32, 0, 0, 0, cudaChannelFormatKindFloat),
            Ok((CU_AD_FORMAT_FLOAT, 1))
        );
        assert_eq!(
            of(8, 8, 8, 8, cudaChannelFormatKindUnsigned),
            Ok((CU_AD_FORMAT_UNSIGNED_INT8, 4))
        );
        for odd in [
            of(8, 8, 8, 0, cudaChannelFormatKindUnsigned),
            of(8, 16, 0, 0, cudaChannelFormatKindUnsigned),
            of(0, 8, 0, 0, cudaChannelFormatKindUnsigned),
            of(64, 0, 0, 0, cudaChannelFormatKindFloat),
            of(0, 0, 0, 0, cudaChannelFormatKindFloat),
        ] {
            assert_eq!(odd, Err(cudaErrorInvalidChannelDescriptor));
        }
        let halves = channels(CU_AD_FORMAT_HALF, 2);
        assert_eq!((halves.x, halves.y, halves.z, halves.w), (16, 16, 0, 0));
        assert_eq!(halves.f, cudaChannelFormatKindFloat);
    }
}
