//! Copies: of bytes, of rectangles and of boxes.

use core::ffi::c_void;

use crate::prelude::*;

/// One end of a copy.
#[derive(Clone, Copy)]
pub enum End {
    Memory(*mut c_void),
    Array(CUarray),
}

/// What kind of memory the two ends of a copy are; `None` where the driver finds out.
///
/// # Errors
/// `cudaErrorInvalidMemcpyDirection` for a number that names no direction.
pub fn ends(kind: cudaMemcpyKind) -> Result<[CUmemorytype; 2]> {
    Ok(match kind {
        cudaMemcpyHostToHost => [CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST],
        cudaMemcpyHostToDevice => [CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE],
        cudaMemcpyDeviceToHost => [CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST],
        cudaMemcpyDeviceToDevice => [CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE],
        cudaMemcpyDefault => [CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED],
        _ => return Err(cudaErrorInvalidMemcpyDirection),
    })
}

/// Copies bytes in a stream, and does not wait.
///
/// # Safety
/// As cudaMemcpyAsync asks.
pub unsafe fn bytes_async(
    dst: *mut c_void,
    src: *const c_void,
    count: usize,
    kind: cudaMemcpyKind,
    stream: cudaStream_t,
) -> Result<()> {
    let kinds = ends(kind)?;
    if count == 0 {
        return Ok(());
    }
    // SAFETY: the caller vouches for both ends.
    unsafe {
        match kinds {
            [CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE] => {
                cu!(cuMemcpyHtoDAsync_v2(dst as CUdeviceptr, src, count, stream));
            }
            [CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST] => {
                cu!(cuMemcpyDtoHAsync_v2(dst, src as CUdeviceptr, count, stream));
            }
            [CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE] => {
                cu!(cuMemcpyDtoDAsync_v2(
                    dst as CUdeviceptr,
                    src as CUdeviceptr,
                    count,
                    stream
                ));
            }
            _ => cu!(cuMemcpyAsync(
                dst as CUdeviceptr,
                src as CUdeviceptr,
                count,
                stream
            )),
        }
    }
    Ok(())
}

/// Copies bytes, and waits: in the null stream by the driver's own synchronous calls.
///
/// # Safety
/// As cudaMemcpy asks.
pub unsafe fn bytes(
    dst: *mut c_void,
    src: *const c_void,
    count: usize,
    kind: cudaMemcpyKind,
    stream: cudaStream_t,
) -> Result<()> {
    // SAFETY: the caller vouches for both ends.
    unsafe {
        if !stream.is_null() {
            bytes_async(dst, src, count, kind, stream)?;
            cu!(cuStreamSynchronize(stream));
            return Ok(());
        }
        let kinds = ends(kind)?;
        if count == 0 {
            return Ok(());
        }
        match kinds {
            [CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE] => {
                cu!(cuMemcpyHtoD_v2(dst as CUdeviceptr, src, count));
            }
            [CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST] => {
                cu!(cuMemcpyDtoH_v2(dst, src as CUdeviceptr, count));
            }
            [CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE] => {
                cu!(cuMemcpyDtoD_v2(dst as CUdeviceptr, src as CUdeviceptr, count));
            }
            _ => cu!(cuMemcpy(dst as CUdeviceptr, src as CUdeviceptr, count)),
        }
    }
    Ok(())
}

/// A box to copy, with one or both ends in memory of the given kind, or in an array.
///
/// Widths and offsets in x are bytes.
pub struct Cuboid {
    pub from: End,
    pub to: End,
    pub kinds: [CUmemorytype; 2],
    pub from_pitch: usize,
    pub from_height: usize,
    pub to_pitch: usize,
    pub to_height: usize,
    pub from_at: [usize; 3],
    pub to_at: [usize; 3],
    pub extent: [usize; 3],
}

impl Cuboid {
    /// As the driver describes it.
    pub fn described(&self) -> CUDA_MEMCPY3D {
        let mut out = CUDA_MEMCPY3D {
            srcXInBytes: self.from_at[0],
            srcY: self.from_at[1],
            srcZ: self.from_at[2],
            srcPitch: self.from_pitch,
            srcHeight: self.from_height,
            dstXInBytes: self.to_at[0],
            dstY: self.to_at[1],
            dstZ: self.to_at[2],
            dstPitch: self.to_pitch,
            dstHeight: self.to_height,
            WidthInBytes: self.extent[0],
            Height: self.extent[1],
            Depth: self.extent[2],
            ..Default::default()
        };
        match self.from {
            End::Array(array) => {
                out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
                out.srcArray = array;
            }
            End::Memory(address) => {
                out.srcMemoryType = self.kinds[0];
                if self.kinds[0] == CU_MEMORYTYPE_HOST {
                    out.srcHost = address;
                } else {
                    out.srcDevice = address as CUdeviceptr;
                }
            }
        }
        match self.to {
            End::Array(array) => {
                out.dstMemoryType = CU_MEMORYTYPE_ARRAY;
                out.dstArray = array;
            }
            End::Memory(address) => {
                out.dstMemoryType = self.kinds[1];
                if self.kinds[1] == CU_MEMORYTYPE_HOST {
                    out.dstHost = address;
                } else {
                    out.dstDevice = address as CUdeviceptr;
                }
            }
        }
        out
    }

    /// Copies it: waits unless `asynchronous`.
    ///
    /// # Safety
    /// Both ends hold what the box says.
    pub unsafe fn copy(&self, stream: cudaStream_t, asynchronous: bool) -> Result<()> {
        if self.extent.contains(&0) {
            return Ok(());
        }
        let described = self.described();
        // SAFETY: the caller vouches for both ends.
        unsafe {
            if asynchronous {
                cu!(cuMemcpy3DAsync_v2(&described, stream));
            } else if stream.is_null() {
                cu!(cuMemcpy3D_v2(&described));
            } else {
                cu!(cuMemcpy3DAsync_v2(&described, stream));
                cu!(cuStreamSynchronize(stream));
            }
        }
        Ok(())
    }
}

/// # Errors
/// `cudaErrorInvalidPitchValue` where a row is longer than its pitch.
fn rectangle(
    dst: *mut c_void,
    dpitch: usize,
    src: *const c_void,
    spitch: usize,
    width: usize,
    height: usize,
    kind: cudaMemcpyKind,
) -> Result<Cuboid> {
    let kinds = ends(kind)?;
    refuse(width > dpitch || width > spitch, cudaErrorInvalidPitchValue)?;
    Ok(Cuboid {
        from: End::Memory(src.cast_mut()),
        to: End::Memory(dst),
        kinds,
        from_pitch: spitch,
        from_height: height,
        to_pitch: dpitch,
        to_height: height,
        from_at: [0; 3],
        to_at: [0; 3],
        extent: [width, height, 1],
    })
}

/// The bytes of an element of an array.
pub fn element_bytes(array: CUarray) -> Result<usize> {
    let mut descriptor = CUDA_ARRAY3D_DESCRIPTOR::default();
    // SAFETY: the pointer is that of a descriptor; the driver looks whether the array is one.
    unsafe {
        cu!(cuArray3DGetDescriptor_v2(&mut descriptor, array));
    }
    Ok(super::array::bytes_of(descriptor.Format) * descriptor.NumChannels as usize)
}

/// The box of a cudaMemcpy3D: its extent and offsets count elements where an array takes part.
///
/// # Safety
/// `parameters` is null or points to such.
pub unsafe fn cuboid(parameters: *const cudaMemcpy3DParms) -> Result<Cuboid> {
    refuse(parameters.is_null(), cudaErrorInvalidValue)?;
    // SAFETY: it is not null, and the caller vouches for it.
    let given = unsafe { &*parameters };
    let kinds = ends(given.kind)?;
    let end = |array: cudaArray_t, pointer: cudaPitchedPtr| match (array.is_null(), pointer.ptr.is_null()) {
        (false, true) => Ok(End::Array(array.cast())),
        (true, false) => Ok(End::Memory(pointer.ptr)),
        _ => Err(cudaErrorInvalidValue),
    };
    let from = end(given.srcArray, given.srcPtr)?;
    let to = end(given.dstArray, given.dstPtr)?;
    let element = match (from, to) {
        (End::Array(array), _) | (_, End::Array(array)) => element_bytes(array)?,
        _ => 1,
    };
    let wide = |elements: usize, unit: usize| elements.checked_mul(unit).ok_or(cudaErrorInvalidValue);
    let unit = |end: End| if matches!(end, End::Array(_)) { element } else { 1 };
    Ok(Cuboid {
        from,
        to,
        kinds,
        from_pitch: given.srcPtr.pitch,
        from_height: given.srcPtr.ysize,
        to_pitch: given.dstPtr.pitch,
        to_height: given.dstPtr.ysize,
        from_at: [wide(given.srcPos.x, unit(from))?, given.srcPos.y, given.srcPos.z],
        to_at: [wide(given.dstPos.x, unit(to))?, given.dstPos.y, given.dstPos.z],
        extent: [
            wide(given.extent.width, element)?,
            given.extent.height,
            given.extent.depth,
        ],
    })
}

entry! {
    cudaMemcpy | cudaMemcpy_ptds on stream (
        dst: *mut c_void, src: *const c_void, count: usize, kind: cudaMemcpyKind,
    ) {
        context()?;
        bytes(dst, src, count, kind, stream)
    }

    cudaMemcpyAsync | cudaMemcpyAsync_ptsz by stream (
        dst: *mut c_void, src: *const c_void, count: usize, kind: cudaMemcpyKind, stream: cudaStream_t,
    ) {
        context()?;
        bytes_async(dst, src, count, kind, stream)
    }

    cudaMemcpy2D | cudaMemcpy2D_ptds on stream (
        dst: *mut c_void, dpitch: usize, src: *const c_void, spitch: usize, width: usize, height: usize,
        kind: cudaMemcpyKind,
    ) {
        context()?;
        rectangle(dst, dpitch, src, spitch, width, height, kind)?.copy(stream, false)
    }

    cudaMemcpy2DAsync | cudaMemcpy2DAsync_ptsz by stream (
        dst: *mut c_void, dpitch: usize, src: *const c_void, spitch: usize, width: usize, height: usize,
        kind: cudaMemcpyKind, stream: cudaStream_t,
    ) {
        context()?;
        rectangle(dst, dpitch, src, spitch, width, height, kind)?.copy(stream, true)
    }

    cudaMemcpy3D | cudaMemcpy3D_ptds on stream (p: *const cudaMemcpy3DParms) {
        context()?;
        cuboid(p)?.copy(stream, false)
    }

    cudaMemcpy3DAsync | cudaMemcpy3DAsync_ptsz by stream (p: *const cudaMemcpy3DParms, stream: cudaStream_t) {
        context()?;
        cuboid(p)?.copy(stream, true)
    }

    cudaMemcpyPeer(dst: *mut c_void, dstDevice: i32, src: *const c_void, srcDevice: i32, count: usize) {
        context()?;
        let (to, from) = (crate::context::primary(dstDevice)?, crate::context::primary(srcDevice)?);
        cu!(cuMemcpyPeer(dst as CUdeviceptr, to, src as CUdeviceptr, from, count));
        Ok(())
    }

    cudaMemcpyPeerAsync (
        dst: *mut c_void, dstDevice: i32, src: *const c_void, srcDevice: i32, count: usize, stream: cudaStream_t,
    ) {
        context()?;
        let (to, from) = (crate::context::primary(dstDevice)?, crate::context::primary(srcDevice)?);
        cu!(cuMemcpyPeerAsync(dst as CUdeviceptr, to, src as CUdeviceptr, from, count, stream));
        Ok(())
    }

    cudaMemcpy3DPeer | cudaMemcpy3DPeer_ptds on stream (p: *const cudaMemcpy3DPeerParms) {
        context()?;
        let described = peers(p)?;
        if stream.is_null() {
            cu!(cuMemcpy3DPeer(&described));
        } else {
            cu!(cuMemcpy3DPeerAsync(&described, stream));
            cu!(cuStreamSynchronize(stream));
        }
        Ok(())
    }

    cudaMemcpy3DPeerAsync | cudaMemcpy3DPeerAsync_ptsz by stream (
        p: *const cudaMemcpy3DPeerParms, stream: cudaStream_t,
    ) {
        context()?;
        let described = peers(p)?;
        cu!(cuMemcpy3DPeerAsync(&described, stream));
        Ok(())
    }

    cudaMemcpyBatchAsync | cudaMemcpyBatchAsync_ptsz by stream (
        dsts: *const *mut c_void, srcs: *const *const c_void, sizes: *const usize, count: usize,
        _attrs: *mut cudaMemcpyAttributes, _attrsIdxs: *mut usize, _numAttrs: usize, stream: cudaStream_t,
    ) {
        context()?;
        batch(dsts, srcs, sizes, count, stream)
    }

    cudaMemcpyBatchAsync_12 | cudaMemcpyBatchAsync_12_ptsz by stream (
        dsts: *mut *mut c_void, srcs: *mut *mut c_void, sizes: *mut usize, count: usize,
        _attrs: *mut cudaMemcpyAttributes, _attrsIdxs: *mut usize, _numAttrs: usize, failIdx: *mut usize,
        stream: cudaStream_t,
    ) {
        context()?;
        if !failIdx.is_null() {
            // "None of them in particular": the driver's own answer where it cannot say.
            *failIdx = usize::MAX;
        }
        batch(dsts, srcs.cast(), sizes, count, stream)
    }
}

/// Copies one after the other: a batch promises no order, so any will do.
///
/// # Safety
/// As cudaMemcpyBatchAsync asks.
unsafe fn batch(
    dsts: *const *mut c_void,
    srcs: *const *const c_void,
    sizes: *const usize,
    count: usize,
    stream: cudaStream_t,
) -> Result<()> {
    refuse(
        count == 0 || dsts.is_null() || srcs.is_null() || sizes.is_null(),
        cudaErrorInvalidValue,
    )?;
    refuse(stream.is_null(), cudaErrorInvalidValue)?;
    for at in 0..count {
        // SAFETY: the caller vouches for `count` of each, and for both ends.
        unsafe {
            bytes_async(
                *dsts.add(at),
                *srcs.add(at),
                *sizes.add(at),
                cudaMemcpyDefault,
                stream,
            )?;
        }
    }
    Ok(())
}

/// # Safety
/// `parameters` is null or points to such.
unsafe fn peers(parameters: *const cudaMemcpy3DPeerParms) -> Result<CUDA_MEMCPY3D_PEER> {
    refuse(parameters.is_null(), cudaErrorInvalidValue)?;
    // SAFETY: it is not null, and the caller vouches for it; the copy made of it lives until the call's end.
    let (given, described) = unsafe {
        let given = &*parameters;
        let plain = cudaMemcpy3DParms {
            srcArray: given.srcArray,
            srcPos: given.srcPos,
            srcPtr: given.srcPtr,
            dstArray: given.dstArray,
            dstPos: given.dstPos,
            dstPtr: given.dstPtr,
            extent: given.extent,
            kind: cudaMemcpyDefault,
        };
        (given, cuboid(&plain)?.described())
    };
    Ok(CUDA_MEMCPY3D_PEER {
        srcXInBytes: described.srcXInBytes,
        srcY: described.srcY,
        srcZ: described.srcZ,
        srcLOD: 0,
        srcMemoryType: described.srcMemoryType,
        srcHost: described.srcHost,
        srcDevice: described.srcDevice,
        srcArray: described.srcArray,
        srcContext: crate::context::primary(given.srcDevice)?,
        srcPitch: described.srcPitch,
        srcHeight: described.srcHeight,
        dstXInBytes: described.dstXInBytes,
        dstY: described.dstY,
        dstZ: described.dstZ,
        dstLOD: 0,
        dstMemoryType: described.dstMemoryType,
        dstHost: described.dstHost,
        dstDevice: described.dstDevice,
        dstArray: described.dstArray,
        dstContext: crate::context::primary(given.dstDevice)?,
        dstPitch: described.dstPitch,
        dstHeight: described.dstHeight,
        WidthInBytes: described.WidthInBytes,
        Height: described.Height,
        Depth: described.Depth,
    })
}
