//! CUDA arrays and mipmaps: device memory with a shape, which has a handle and no address.
//!
//! On hardware the elements lie in an order that only the texture units know. Here rows lie one after the other. Each
//! row is rounded up to the 64 bytes, and each slice to the 8 rows, of a block of NVIDIA's block-linear layout. So the
//! memory an array takes is that of whole blocks.

use crate::Result;
use crate::context::Context;
use crate::copy::{Shape, Side};
use crate::handle;
use crate::memory::allocation::Allocation;
use crate::texture::channel;
use divvy_abi::*;
use divvy_ptx::Image;
use std::sync::Arc;

/// Bytes of a block's row.
const BLOCK_WIDTH: u64 = 64;
/// Rows of a block.
const BLOCK_ROWS: u64 = 8;
/// Where a level of a mipmap may start; also the alignment of memory that is bound later.
pub const ALIGNMENT: u64 = 512;

/// A checked description of an array.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// As the program gave it.
    pub descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    /// Bytes of an element: a channel's size times their number.
    element_bytes: u64,
}

/// The largest extents, as the device's attributes say them.
const MAX_1D: usize = 131_072;
const MAX_2D: [usize; 2] = [131_072, 65_536];
const MAX_3D: usize = 16_384;
const MAX_LAYERED: usize = 32_768;
const MAX_LAYERS: usize = 2048;
const MAX_CUBEMAP_LAYERS: usize = 2046;

impl Format {
    /// Checks a description by the rules of cuArray3DCreate.
    pub fn check(descriptor: CUDA_ARRAY3D_DESCRIPTOR) -> Result<Format> {
        let channel_bytes = match descriptor.Format {
            CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
            CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
            CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => 4,
            // Formats of video and of compressed textures, which nothing here could read.
            CUarray_format(other) if other >= CU_AD_FORMAT_NV12.0 => return Err(CUDA_ERROR_NOT_SUPPORTED),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        let (width, height, depth) = (descriptor.Width, descriptor.Height, descriptor.Depth);
        let has = |flag| descriptor.Flags & flag != 0;
        if has(CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let known = CUDA_ARRAY3D_LAYERED
            | CUDA_ARRAY3D_SURFACE_LDST
            | CUDA_ARRAY3D_CUBEMAP
            | CUDA_ARRAY3D_TEXTURE_GATHER
            | CUDA_ARRAY3D_DEPTH_TEXTURE
            | CUDA_ARRAY3D_COLOR_ATTACHMENT
            | CUDA_ARRAY3D_DEFERRED_MAPPING;
        let fits = match (has(CUDA_ARRAY3D_LAYERED), has(CUDA_ARRAY3D_CUBEMAP)) {
            (false, true) => height == width && depth == 6 && width <= MAX_LAYERED,
            (true, true) => {
                let faces = depth.is_multiple_of(6) && (1..=MAX_CUBEMAP_LAYERS).contains(&depth);
                height == width && faces && width <= MAX_LAYERED
            }
            (true, false) => width.max(height) <= MAX_LAYERED && (1..=MAX_LAYERS).contains(&depth),
            (false, false) if depth > 0 => height > 0 && width.max(height).max(depth) <= MAX_3D,
            (false, false) if height > 0 => width <= MAX_2D[0] && height <= MAX_2D[1],
            (false, false) => width <= MAX_1D,
        };
        let gathers_plane = !has(CUDA_ARRAY3D_TEXTURE_GATHER) || (height > 0 && depth == 0);
        let channels = matches!(descriptor.NumChannels, 1 | 2 | 4);
        if width == 0 || !fits || !gathers_plane || !channels || descriptor.Flags & !known != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(Format {
            descriptor,
            element_bytes: channel_bytes * u64::from(descriptor.NumChannels),
        })
    }

    /// An array for which the program gives memory later.
    pub fn is_deferred(&self) -> bool {
        self.descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING != 0
    }

    /// Bytes of a row that hold elements.
    pub fn row_bytes(&self) -> u64 {
        self.descriptor.Width as u64 * self.element_bytes
    }

    fn rows(&self) -> u64 {
        self.descriptor.Height.max(1) as u64
    }

    fn slices(&self) -> u64 {
        self.descriptor.Depth.max(1) as u64
    }

    fn pitch(&self) -> u64 {
        self.row_bytes().next_multiple_of(BLOCK_WIDTH)
    }

    fn slice_bytes(&self) -> u64 {
        let rows = if self.descriptor.Height > 1 {
            self.rows().next_multiple_of(BLOCK_ROWS)
        } else {
            1
        };
        self.pitch() * rows
    }

    /// Memory it takes. No check can overflow: the extents are bounded.
    pub fn bytes(&self) -> u64 {
        (self.slice_bytes() * self.slices()).next_multiple_of(ALIGNMENT)
    }

    /// Levels of a full mipmap: down to a single element.
    pub fn full_levels(&self) -> u32 {
        let depth = if self.layers() { 0 } else { self.descriptor.Depth };
        1 + self
            .descriptor
            .Width
            .max(self.descriptor.Height)
            .max(depth)
            .ilog2()
    }

    /// A level of its mipmap: half the size of the one before, the layers excepted.
    pub fn level(&self, level: u32) -> Format {
        let half = |extent: usize| if extent == 0 { 0 } else { (extent >> level).max(1) };
        let mut descriptor = self.descriptor;
        descriptor.Width = half(descriptor.Width);
        descriptor.Height = half(descriptor.Height);
        if !self.layers() {
            descriptor.Depth = half(descriptor.Depth);
        }
        Format { descriptor, ..*self }
    }

    fn layers(&self) -> bool {
        self.descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0
    }
}

/// A CUDA array.
pub struct Array {
    /// What the program holds.
    pub handle: u64,
    /// The context it belongs to.
    pub context: Arc<Context>,
    /// Its shape and elements.
    pub format: Format,
    /// It is a level of a mipmap, and goes with that.
    pub is_level: bool,
    /// The memory, and where in it the array starts; None while the program has given it none.
    memory: Option<(Arc<Allocation>, u64)>,
}

impl Array {
    /// An array in memory that holds [`Format::bytes`] from an offset.
    pub fn new(
        context: Arc<Context>,
        format: Format,
        memory: Option<(Arc<Allocation>, u64)>,
        is_level: bool,
    ) -> Arc<Array> {
        Arc::new(Array {
            handle: handle::fresh(),
            context,
            format,
            is_level,
            memory,
        })
    }

    /// A block of it: `x` in bytes, `y` in rows, `z` in slices or layers.
    pub fn block(&self, x: u64, y: u64, z: u64, shape: Shape) -> Result<Side> {
        let (memory, offset) = self.memory.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let format = &self.format;
        let inside =
            |from: u64, count: u64, size: u64| from.checked_add(count).is_some_and(|end| end <= size);
        let whole_elements =
            x.is_multiple_of(format.element_bytes) && shape.width.is_multiple_of(format.element_bytes);
        if !inside(x, shape.width, format.row_bytes())
            || !inside(y, shape.rows, format.rows())
            || !inside(z, shape.slices, format.slices())
            || !whole_elements
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let address = memory.base + offset + z * format.slice_bytes() + y * format.pitch() + x;
        Ok(Side::of_array(
            address,
            format.pitch(),
            format.slice_bytes(),
            Arc::clone(memory),
        ))
    }

    /// Its elements as a texture or surface reads them.
    pub fn image(&self) -> Result<Image> {
        let (memory, offset) = self.memory.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let format = &self.format;
        Ok(Image {
            address: memory.base + offset,
            pitch: format.pitch(),
            slice: format.slice_bytes(),
            extent: [
                format.descriptor.Width as u32,
                format.rows() as u32,
                format.slices() as u32,
            ],
            channel: channel(format.descriptor.Format)?,
            channels: format.descriptor.NumChannels,
        })
    }

    /// Size of the plane that cuMemcpyAtoH and its kin see as one run of bytes: rows end to end.
    pub fn plane_bytes(&self) -> Result<u64> {
        if self.format.descriptor.Depth > 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(self.format.row_bytes() * self.format.rows())
    }
}

/// A mipmap: the handles of its levels' arrays, the largest first.
pub struct Mipmap {
    /// What the program holds.
    pub handle: u64,
    /// The context it belongs to.
    pub context: Arc<Context>,
    /// The shape of the first level.
    pub format: Format,
    /// Handles of the levels.
    pub levels: Vec<u64>,
    /// Memory of all levels.
    pub bytes: u64,
}

/// The number of levels for a program that asks for some, where each starts, and what they take together.
pub fn levels(format: &Format, asked: u32) -> (Vec<(Format, u64)>, u64) {
    let mut bytes = 0;
    let levels = (0..asked.clamp(1, format.full_levels()))
        .map(|level| {
            let (level, at) = (format.level(level), bytes);
            bytes += level.bytes();
            (level, at)
        })
        .collect();
    (levels, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(width: usize, height: usize, depth: usize, flags: u32) -> Result<Format> {
        Format::check(CUDA_ARRAY3D_DESCRIPTOR {
            Width: width,
            Height: height,
            Depth: depth,
            Format: CU_AD_FORMAT_FLOAT,
            NumChannels: 4,
            Flags: flags,
        })
    }

    #[test]
    fn sizes_are_whole_blocks() {
        assert_eq!(format(1, 0, 0, 0).unwrap().bytes(), 512);
        assert_eq!(format(5, 9, 0, 0).unwrap().bytes(), 128 * 16);
        assert_eq!(format(5, 9, 3, 0).unwrap().bytes(), 128 * 16 * 3);
        assert_eq!(
            format(131_072, 65_536, 0, 0).unwrap().bytes(),
            131_072 * 65_536 * 16
        );
        assert_eq!(format(4, 0, 100, CUDA_ARRAY3D_LAYERED).unwrap().bytes(), 6656);
    }

    #[test]
    fn shapes_that_no_device_has_are_refused() {
        for (width, height, depth, flags) in [
            (0, 0, 0, 0),
            (usize::MAX, 0, 0, 0),
            (131_073, 0, 0, 0),
            (1, 65_537, 0, 0),
            (1, 0, 1, 0),
            (1, usize::MAX, usize::MAX, 0),
            (16_385, 1, 1, 0),
            (8, 8, 0, CUDA_ARRAY3D_LAYERED),
            (8, 8, 2049, CUDA_ARRAY3D_LAYERED),
            (8, 4, 6, CUDA_ARRAY3D_CUBEMAP),
            (8, 8, 5, CUDA_ARRAY3D_CUBEMAP),
            (8, 8, 13, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED),
            (8, 8, 1, CUDA_ARRAY3D_TEXTURE_GATHER),
            (8, 0, 0, 1 << 31),
        ] {
            let refused = format(width, height, depth, flags).err();
            assert_eq!(
                refused,
                Some(CUDA_ERROR_INVALID_VALUE),
                "{width} {height} {depth} {flags:#x}"
            );
        }
        assert_eq!(
            format(8, 0, 0, CUDA_ARRAY3D_SPARSE).err(),
            Some(CUDA_ERROR_NOT_SUPPORTED)
        );
    }

    #[test]
    fn levels_halve_and_layers_stay() {
        let cube = format(16, 8, 4, 0).unwrap();
        assert_eq!(cube.full_levels(), 5);
        let last = cube.level(4).descriptor;
        assert_eq!((last.Width, last.Height, last.Depth), (1, 1, 1));
        let layered = format(16, 0, 7, CUDA_ARRAY3D_LAYERED).unwrap();
        let last = layered.level(3).descriptor;
        assert_eq!((last.Width, last.Height, last.Depth), (2, 0, 7));
        let (all, bytes) = levels(&cube, 99);
        assert_eq!(all.len(), 5);
        assert_eq!(all[1].1, cube.bytes());
        assert_eq!(bytes, all[4].1 + all[4].0.bytes());
        assert_eq!(levels(&cube, 0).0.len(), 1);
    }
}
