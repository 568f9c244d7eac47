//! Copies of blocks as the driver's structures describe them: which memory is read, and which is written.

use crate::Result;
use crate::array::Array;
use crate::copy::{Known, Place, Shape, Side, Transfer};
use crate::handle::Handles;
use divvy_abi::*;

/// Checks a copy as the driver's structures describe it; None if it is empty. Graphs check it when a node is made
/// and again when the node runs.
pub fn transfer(copy: &CUDA_MEMCPY3D, known: Known<'_>, arrays: &Handles<Array>) -> Result<Option<Transfer>> {
    let shape = Shape {
        width: copy.WidthInBytes as u64,
        rows: copy.Height as u64,
        slices: copy.Depth as u64,
    };
    if shape.is_empty() {
        return Ok(None);
    }
    let to = Corner {
        kind: copy.dstMemoryType,
        host: copy.dstHost as u64,
        device: copy.dstDevice,
        array: copy.dstArray as u64,
        level: copy.dstLOD,
        pitch: copy.dstPitch,
        height: copy.dstHeight,
        x: copy.dstXInBytes,
        y: copy.dstY,
        z: copy.dstZ,
    };
    let from = Corner {
        kind: copy.srcMemoryType,
        host: copy.srcHost as u64,
        device: copy.srcDevice,
        array: copy.srcArray as u64,
        level: copy.srcLOD,
        pitch: copy.srcPitch,
        height: copy.srcHeight,
        x: copy.srcXInBytes,
        y: copy.srcY,
        z: copy.srcZ,
    };
    let (to, from) = (to.side(shape, known, arrays)?, from.side(shape, known, arrays)?);
    Ok(Some(Transfer { to, from, shape }))
}

/// One side of a block copy, as the driver's structures give it.
struct Corner {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    array: u64,
    /// Must be 0, says the manual.
    level: usize,
    pitch: usize,
    height: usize,
    x: usize,
    y: usize,
    z: usize,
}

impl Corner {
    fn side(&self, shape: Shape, known: Known<'_>, arrays: &Handles<Array>) -> Result<Side> {
        if self.level != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (address, place) = match self.kind {
            CU_MEMORYTYPE_HOST => (self.host, Place::Host),
            CU_MEMORYTYPE_DEVICE => (self.device, Place::Device),
            CU_MEMORYTYPE_UNIFIED => (self.device, Place::Unified),
            CU_MEMORYTYPE_ARRAY => {
                let array = arrays.get(self.array).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                return array.block(self.x as u64, self.y as u64, self.z as u64, shape);
            }
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        // A pitch of 0 means that rows lie end to end, a height of 0 that slices do.
        let pitch = if self.pitch == 0 {
            shape.width
        } else {
            self.pitch as u64
        };
        let height = if self.height == 0 {
            shape.rows
        } else {
            self.height as u64
        };
        let row_end = (self.x as u64)
            .checked_add(shape.width)
            .ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let overlap = shape.rows > 1 && row_end > pitch;
        if overlap || (shape.slices > 1 && height < shape.rows) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let slice = pitch.checked_mul(height).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let offset = (self.z as u64)
            .checked_mul(slice)
            .zip((self.y as u64).checked_mul(pitch))
            .and_then(|(slices, rows)| slices.checked_add(rows)?.checked_add(self.x as u64));
        let first = offset
            .and_then(|offset| address.checked_add(offset))
            .ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Side::block(first, place, pitch, slice, shape, known)
    }
}
