//! Copying memory, in every direction and up to three dimensions.

use super::args::{Handle, In};
use super::capture::unsafe_call;
use super::current;
use super::stream_name::StreamName;
use crate::Result;
use crate::block::transfer;
use crate::copy::{Known, Place, Shape, Side, Transfer};
use crate::driver::driver;
use crate::graph::Foreign;
use crate::graph::capture::{Recorder, Target};
use crate::graph::work::{MemcpyWork, Work};
use crate::stream::Queue;
use divvy_abi::*;
use std::sync::Arc;

entry! {
    fn cuMemcpy | cuMemcpy_ptds(to: u64, from: u64, bytes: usize => stream) {
        linear(to, Place::Unified, from, Place::Unified, bytes, stream, true)
    }

    fn cuMemcpyAsync | cuMemcpyAsync_ptsz(to: u64, from: u64, bytes: usize ; stream) {
        linear(to, Place::Unified, from, Place::Unified, bytes, stream, false)
    }

    fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds(to: u64, from: Handle<*const c_void>, bytes: usize => stream) {
        linear(to, Place::Device, from.0, Place::Host, bytes, stream, true)
    }

    fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz(to: u64, from: Handle<*const c_void>, bytes: usize ; stream) {
        linear(to, Place::Device, from.0, Place::Host, bytes, stream, false)
    }

    fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds(to: Handle<*mut c_void>, from: u64, bytes: usize => stream) {
        linear(to.0, Place::Host, from, Place::Device, bytes, stream, true)
    }

    fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz(to: Handle<*mut c_void>, from: u64, bytes: usize ; stream) {
        linear(to.0, Place::Host, from, Place::Device, bytes, stream, false)
    }

    fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds(to: u64, from: u64, bytes: usize => stream) {
        linear(to, Place::Device, from, Place::Device, bytes, stream, true)
    }

    fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz(to: u64, from: u64, bytes: usize ; stream) {
        linear(to, Place::Device, from, Place::Device, bytes, stream, false)
    }

    fn cuMemcpyPeer | cuMemcpyPeer_ptds(
        to: u64, to_context: Handle<CUcontext>, from: u64, from_context: Handle<CUcontext>, bytes: usize => stream
    ) {
        contexts(to_context.0, from_context.0)?;
        linear(to, Place::Device, from, Place::Device, bytes, stream, true)
    }

    fn cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz(
        to: u64, to_context: Handle<CUcontext>, from: u64, from_context: Handle<CUcontext>, bytes: usize ; stream
    ) {
        contexts(to_context.0, from_context.0)?;
        linear(to, Place::Device, from, Place::Device, bytes, stream, false)
    }

    fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds(copy: In<CUDA_MEMCPY2D> => stream) {
        block(&widen(&copy.get()?), stream, true)
    }

    fn cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds(copy: In<CUDA_MEMCPY2D> => stream) {
        block(&widen(&copy.get()?), stream, true)
    }

    fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz(copy: In<CUDA_MEMCPY2D> ; stream) {
        block(&widen(&copy.get()?), stream, false)
    }

    fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds(copy: In<CUDA_MEMCPY3D> => stream) {
        block(&copy.get()?, stream, true)
    }

    fn cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz(copy: In<CUDA_MEMCPY3D> ; stream) {
        block(&copy.get()?, stream, false)
    }

    fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds(copy: In<CUDA_MEMCPY3D_PEER> => stream) {
        block(&one_device(&copy.get()?)?, stream, true)
    }

    fn cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz(copy: In<CUDA_MEMCPY3D_PEER> ; stream) {
        block(&one_device(&copy.get()?)?, stream, false)
    }
}

fn contexts(to: u64, from: u64) -> Result {
    current::named(to)?;
    current::named(from).map(drop)
}

fn linear(
    to: u64,
    to_place: Place,
    from: u64,
    from_place: Place,
    bytes: usize,
    stream: StreamName,
    wait: bool,
) -> Result {
    if !wait && let Target::Capture(recorder) = stream.target()? {
        return capture(&recorder, described(to, to_place, from, from_place, bytes));
    }
    let queue = queue(stream, wait)?;
    let shape = Shape::linear(bytes as u64);
    if shape.is_empty() {
        return Ok(());
    }
    let known = Known::Live(&queue.context.addresses);
    let to = Side::linear(to, to_place, bytes as u64, known)?;
    let from = Side::linear(from, from_place, bytes as u64, known)?;
    let transfer = Transfer { to, from, shape };
    if wait {
        transfer.now(&queue)
    } else {
        transfer.later(&queue)
    }
}

/// The stream, for a copy that is not captured.
fn queue(stream: StreamName, wait: bool) -> Result<Queue> {
    if wait {
        unsafe_call()?;
    }
    stream.queue()
}

/// Adds a copy to a captured stream; an empty one is nothing.
pub fn capture(recorder: &Recorder<'_>, copy: CUDA_MEMCPY3D) -> Result {
    let known = Known::Reserved(&recorder.queue.context.addresses);
    if transfer(&copy, known, &driver()?.arrays)?.is_none() {
        return Ok(());
    }
    let work = MemcpyWork {
        copy: Foreign(copy),
        context: Arc::clone(&recorder.queue.context),
    };
    recorder.add(Work::Memcpy(work)).map(drop)
}

/// A plain run of bytes as the driver's structures describe it.
fn described(to: u64, to_place: Place, from: u64, from_place: Place, bytes: usize) -> CUDA_MEMCPY3D {
    let kind = |place| match place {
        Place::Device => CU_MEMORYTYPE_DEVICE,
        Place::Host => CU_MEMORYTYPE_HOST,
        Place::Unified => CU_MEMORYTYPE_UNIFIED,
    };
    CUDA_MEMCPY3D {
        srcMemoryType: kind(from_place),
        srcHost: from as *const c_void,
        srcDevice: from,
        srcPitch: bytes,
        srcHeight: 1,
        dstMemoryType: kind(to_place),
        dstHost: to as *mut c_void,
        dstDevice: to,
        dstPitch: bytes,
        dstHeight: 1,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    }
}

fn block(copy: &CUDA_MEMCPY3D, stream: StreamName, wait: bool) -> Result {
    if !wait && let Target::Capture(recorder) = stream.target()? {
        return capture(&recorder, *copy);
    }
    let queue = queue(stream, wait)?;
    let known = Known::Live(&queue.context.addresses);
    let Some(transfer) = transfer(copy, known, &driver()?.arrays)? else {
        return Ok(());
    };
    if wait {
        transfer.now(&queue)
    } else {
        transfer.later(&queue)
    }
}

/// A two-dimensional copy as a block of one slice.
fn widen(copy: &CUDA_MEMCPY2D) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcMemoryType: copy.srcMemoryType,
        srcHost: copy.srcHost,
        srcDevice: copy.srcDevice,
        srcArray: copy.srcArray,
        srcPitch: copy.srcPitch,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstMemoryType: copy.dstMemoryType,
        dstHost: copy.dstHost,
        dstDevice: copy.dstDevice,
        dstArray: copy.dstArray,
        dstPitch: copy.dstPitch,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    }
}

/// A copy between devices: addresses are unique among all of them, so the contexts only have to exist.
fn one_device(copy: &CUDA_MEMCPY3D_PEER) -> Result<CUDA_MEMCPY3D> {
    driver()?;
    contexts(copy.dstContext as u64, copy.srcContext as u64)?;
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcZ: copy.srcZ,
        srcMemoryType: copy.srcMemoryType,
        srcHost: copy.srcHost,
        srcDevice: copy.srcDevice,
        srcArray: copy.srcArray,
        srcLOD: copy.srcLOD,
        srcPitch: copy.srcPitch,
        srcHeight: copy.srcHeight,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstZ: copy.dstZ,
        dstMemoryType: copy.dstMemoryType,
        dstHost: copy.dstHost,
        dstDevice: copy.dstDevice,
        dstArray: copy.dstArray,
        dstLOD: copy.dstLOD,
        dstPitch: copy.dstPitch,
        dstHeight: copy.dstHeight,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
        Depth: copy.Depth,
        ..CUDA_MEMCPY3D::default()
    })
}
