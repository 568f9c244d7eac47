//! cuMemcpyAtoH and its kin: bytes of an array as one run, rows end to end.

use super::args::Handle;
use super::array::copied;
use super::capture::unsafe_call;
use super::memcpy;
use super::stream_name::StreamName;
use crate::Result;
use crate::array::Array;
use crate::copy::{Known, Place, Shape, Side, Transfer};
use crate::driver::driver;
use crate::graph::capture::Target;
use crate::stream::Queue;
use divvy_abi::*;

entry! {
    fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds(
        to: Handle<*mut c_void>, array: Handle<CUarray>, offset: usize, bytes: usize => stream
    ) {
        linear(array.0, offset, to.0, Place::Host, bytes, false, stream, true)
    }

    fn cuMemcpyAtoHAsync_v2 | cuMemcpyAtoHAsync_v2_ptsz(
        to: Handle<*mut c_void>, array: Handle<CUarray>, offset: usize, bytes: usize ; stream
    ) {
        linear(array.0, offset, to.0, Place::Host, bytes, false, stream, false)
    }

    fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds(
        array: Handle<CUarray>, offset: usize, from: Handle<*const c_void>, bytes: usize => stream
    ) {
        linear(array.0, offset, from.0, Place::Host, bytes, true, stream, true)
    }

    fn cuMemcpyHtoAAsync_v2 | cuMemcpyHtoAAsync_v2_ptsz(
        array: Handle<CUarray>, offset: usize, from: Handle<*const c_void>, bytes: usize ; stream
    ) {
        linear(array.0, offset, from.0, Place::Host, bytes, true, stream, false)
    }

    fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds(to: u64, array: Handle<CUarray>, offset: usize, bytes: usize => stream) {
        linear(array.0, offset, to, Place::Device, bytes, false, stream, true)
    }

    fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds(
        array: Handle<CUarray>, offset: usize, from: u64, bytes: usize => stream
    ) {
        linear(array.0, offset, from, Place::Device, bytes, true, stream, true)
    }

    fn cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds(
        to: Handle<CUarray>, to_offset: usize, from: Handle<CUarray>, from_offset: usize, bytes: usize => stream
    ) {
        let queue = stream.queue()?;
        let (to, from) = (copied(to.0)?, copied(from.0)?);
        let (mut to_at, mut from_at, mut left) = (to_offset as u64, from_offset as u64, bytes as u64);
        inside(&to, to_at, left)?;
        inside(&from, from_at, left)?;
        let mut transfers = Vec::new();
        while left > 0 {
            let room = |array: &Array, at: u64| array.format.row_bytes() - at % array.format.row_bytes();
            let width = left.min(room(&to, to_at)).min(room(&from, from_at));
            let (to, from) = (row(&to, to_at, width)?, row(&from, from_at, width)?);
            transfers.push(Transfer { to, from, shape: Shape::linear(width) });
            (to_at, from_at, left) = (to_at + width, from_at + width, left - width);
        }
        run(&queue, transfers, true)
    }
}

fn inside(array: &Array, offset: u64, bytes: u64) -> Result {
    match offset.checked_add(bytes) {
        Some(end) if end <= array.plane_bytes()? => Ok(()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// A part of one row, by its place in the run.
fn row(array: &Array, at: u64, width: u64) -> Result<Side> {
    let row_bytes = array.format.row_bytes();
    array.block(at % row_bytes, at / row_bytes, 0, Shape::linear(width))
}

/// Between an array and memory with addresses: the rest of the first row, whole rows, the start of the last.
#[allow(
    clippy::too_many_arguments,
    reason = "the arguments of the driver's call, and two of its name"
)]
fn linear(
    array: u64,
    offset: usize,
    address: u64,
    place: Place,
    bytes: usize,
    into_array: bool,
    stream: StreamName,
    wait: bool,
) -> Result {
    let target = if wait {
        unsafe_call()?;
        Target::Queue(stream.queue()?)
    } else {
        stream.target()?
    };
    let found = copied(array)?;
    inside(&found, offset as u64, bytes as u64)?;
    let known = Known::Live(&driver()?.addresses);
    if bytes > 0 {
        Side::linear(address, place, bytes as u64, known)?;
    }
    let spans = spans(found.format.row_bytes(), offset as u64, bytes as u64);
    match target {
        Target::Queue(queue) => {
            let transfer = |span: &Span| {
                let here = found.block(span.x, span.y, 0, span.shape)?;
                let there = Side::linear(address + span.start, place, span.bytes(), known)?
                    .with_pitch(span.shape.width);
                let (to, from) = if into_array { (here, there) } else { (there, here) };
                let shape = span.shape;
                Ok(Transfer { to, from, shape })
            };
            run(&queue, spans.iter().map(transfer).collect::<Result<_>>()?, wait)
        }
        Target::Capture(recorder) => spans.iter().try_for_each(|span| {
            let copy = span.described(array, address + span.start, place, into_array);
            memcpy::capture(&recorder, copy)
        }),
    }
}

/// A part of a run that is a block of the array.
struct Span {
    /// Where it starts in the run of bytes.
    start: u64,
    x: u64,
    y: u64,
    shape: Shape,
}

/// The rest of the first row, whole rows, and the start of the last.
fn spans(row_bytes: u64, offset: u64, bytes: u64) -> Vec<Span> {
    let (mut start, mut spans) = (0, Vec::new());
    while start < bytes {
        let (at, left) = (offset + start, bytes - start);
        let (x, y, whole) = (at % row_bytes, at / row_bytes, left / row_bytes);
        let shape = if x == 0 && whole > 0 {
            Shape {
                width: row_bytes,
                rows: whole,
                slices: 1,
            }
        } else {
            Shape::linear(left.min(row_bytes - x))
        };
        spans.push(Span { start, x, y, shape });
        start += shape.width * shape.rows;
    }
    spans
}

impl Span {
    fn bytes(&self) -> u64 {
        self.shape.width * self.shape.rows
    }

    /// The copy as a graph's node describes it.
    fn described(&self, array: u64, address: u64, place: Place, into_array: bool) -> CUDA_MEMCPY3D {
        let other = if place == Place::Host {
            CU_MEMORYTYPE_HOST
        } else {
            CU_MEMORYTYPE_DEVICE
        };
        let size = CUDA_MEMCPY3D {
            WidthInBytes: self.shape.width as usize,
            Height: self.shape.rows as usize,
            Depth: 1,
            ..CUDA_MEMCPY3D::default()
        };
        let (x, y, pitch) = (self.x as usize, self.y as usize, self.shape.width as usize);
        if into_array {
            CUDA_MEMCPY3D {
                srcMemoryType: other,
                srcHost: address as *const c_void,
                srcDevice: address,
                srcPitch: pitch,
                dstMemoryType: CU_MEMORYTYPE_ARRAY,
                dstArray: array as CUarray,
                dstXInBytes: x,
                dstY: y,
                ..size
            }
        } else {
            CUDA_MEMCPY3D {
                srcMemoryType: CU_MEMORYTYPE_ARRAY,
                srcArray: array as CUarray,
                srcXInBytes: x,
                srcY: y,
                dstMemoryType: other,
                dstHost: address as *mut c_void,
                dstDevice: address,
                dstPitch: pitch,
                ..size
            }
        }
    }
}

fn run(queue: &Queue, transfers: Vec<Transfer>, wait: bool) -> Result {
    transfers.into_iter().try_for_each(|transfer| {
        if wait {
            transfer.now(queue)
        } else {
            transfer.later(queue)
        }
    })
}
