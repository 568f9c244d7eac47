//! How much device memory arrays and mipmaps take.
//!
//! Drivers do not report it for those that they allocate themselves. Their elements lie in blocks of 64 bytes by 8
//! rows, as NVIDIA documents the layout for the exchange of such memory. So rows and slices are rounded up to whole
//! blocks.

use divvy_abi::*;

use crate::units::rounded;

const BLOCK_WIDTH: u64 = 64;
const BLOCK_ROWS: u64 = 8;

/// Bytes of an element, and how many texels of a row, and how many rows, it covers.
fn element(format: CUarray_format, channels: u32) -> (u64, u64) {
    let channels = u64::from(channels.max(1));
    match format {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => (channels, 1),
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => (2 * channels, 1),
        CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => (4 * channels, 1),
        CU_AD_FORMAT_UNORM_INT8X1 | CU_AD_FORMAT_SNORM_INT8X1 => (1, 1),
        CU_AD_FORMAT_UNORM_INT8X2
        | CU_AD_FORMAT_SNORM_INT8X2
        | CU_AD_FORMAT_UNORM_INT16X1
        | CU_AD_FORMAT_SNORM_INT16X1 => (2, 1),
        CU_AD_FORMAT_UNORM_INT8X4
        | CU_AD_FORMAT_SNORM_INT8X4
        | CU_AD_FORMAT_UNORM_INT16X2
        | CU_AD_FORMAT_SNORM_INT16X2
        | CU_AD_FORMAT_UNORM_INT_101010_2 => (4, 1),
        CU_AD_FORMAT_BC1_UNORM
        | CU_AD_FORMAT_BC1_UNORM_SRGB
        | CU_AD_FORMAT_BC4_UNORM
        | CU_AD_FORMAT_BC4_SNORM => (8, 4),
        CUarray_format(number)
            if (CU_AD_FORMAT_BC1_UNORM.0..=CU_AD_FORMAT_BC7_UNORM_SRGB.0).contains(&number) =>
        {
            (16, 4)
        }
        // 16 bits for each of four channels, and enough for all video formats.
        _ => (8, 1),
    }
}

/// Bytes of device memory that an array of this description takes; `u64::MAX` if the size overflows.
#[must_use]
pub fn bytes(array: &CUDA_ARRAY3D_DESCRIPTOR) -> u64 {
    if array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 {
        // The program supplies the memory, which is charged already.
        return 0;
    }
    let (element_bytes, texels) = element(array.Format, array.NumChannels);
    let across = |extent: usize| (extent as u64).max(1).div_ceil(texels);
    let row = across(array.Width)
        .checked_mul(element_bytes)
        .and_then(|row| row.checked_next_multiple_of(BLOCK_WIDTH));
    let rows = match across(array.Height) {
        1 => Some(1),
        rows => rows.checked_next_multiple_of(BLOCK_ROWS),
    };
    let slice = row.zip(rows).and_then(|(row, rows)| row.checked_mul(rows));
    slice
        .and_then(|slice| slice.checked_mul((array.Depth as u64).max(1)))
        .map_or(u64::MAX, rounded)
}

/// Bytes that a mipmap takes: each level has half the size of the one before, except for layers, down to a single
/// element.
#[must_use]
pub fn mipmap_bytes(array: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> u64 {
    let layered = array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let depth = if layered { 0 } else { array.Depth };
    let full = 1 + array.Width.max(array.Height).max(depth).max(1).ilog2();
    let half = |extent: usize, level: u32| if extent == 0 { 0 } else { (extent >> level).max(1) };
    (0..levels.clamp(1, full))
        .map(|level| {
            bytes(&CUDA_ARRAY3D_DESCRIPTOR {
                Width: half(array.Width, level),
                Height: half(array.Height, level),
                Depth: if layered {
                    array.Depth
                } else {
                    half(array.Depth, level)
                },
                ..*array
            })
        })
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(width: usize, height: usize, depth: usize, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: width,
            Height: height,
            Depth: depth,
            Format: CU_AD_FORMAT_FLOAT,
            NumChannels: 4,
            Flags: flags,
        }
    }

    #[test]
    fn arrays_take_whole_blocks() {
        assert_eq!(bytes(&array(1, 0, 0, 0)), 512);
        assert_eq!(bytes(&array(1024, 1024, 0, 0)), 16 << 20);
        assert_eq!(bytes(&array(1024, 1025, 0, 0)), (1032 * 1024) << 4);
        assert_eq!(bytes(&array(4, 1, 0, CUDA_ARRAY3D_SPARSE)), 0);
        assert_eq!(bytes(&array(64, 64, 64, 0)), 64 * 64 * 64 * 16);
        for huge in [usize::MAX, usize::MAX / 2, 1 << 60] {
            assert!(bytes(&array(huge, huge, huge, 0)) > 1 << 48);
            assert!(bytes(&array(huge, 1, 1, 0)) > 1 << 48);
        }
        let compressed = CUDA_ARRAY3D_DESCRIPTOR {
            Format: CU_AD_FORMAT_BC7_UNORM,
            ..array(1024, 1024, 0, 0)
        };
        assert_eq!(bytes(&compressed), 1 << 20);
    }

    #[test]
    fn mipmaps_take_their_levels() {
        let base = array(256, 256, 0, 0);
        assert_eq!(mipmap_bytes(&base, 1), bytes(&base));
        let two = bytes(&base) + bytes(&array(128, 128, 0, 0));
        assert_eq!(mipmap_bytes(&base, 2), two);
        assert!(mipmap_bytes(&base, u32::MAX) < bytes(&base) * 3 / 2);
        let layers = array(256, 256, 6, CUDA_ARRAY3D_LAYERED);
        assert_eq!(mipmap_bytes(&layers, 2), 6 * two);
    }
}
