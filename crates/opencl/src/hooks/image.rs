//! Images: as many bytes as their elements take. An image over a buffer, or over another image, takes none of its own.
#![allow(non_snake_case)]

use core::ffi::c_void;

use super::guarded;
use crate::cl::*;
use crate::{below, memory};

/// Bytes of an element, by order and type of the channels. A combination that is not known here counts as the largest.
fn element_bytes(format: ImageFormat) -> u64 {
    const LARGEST: u64 = 16;
    let channels = match format.order {
        // R, A, INTENSITY, LUMINANCE, Rx; DEPTH.
        0x10b0 | 0x10b1 | 0x10b8 | 0x10b9 | 0x10ba | 0x10bd => 1,
        // RG, RA, RGx.
        0x10b2 | 0x10b3 | 0x10bb => 2,
        // RGB and its kin have four where they are not packed; RGBA, BGRA, ARGB, sRGB*, ABGR; DEPTH_STENCIL in two words.
        0x10b4..=0x10b7 | 0x10bc | 0x10be..=0x10c3 => 4,
        _ => return LARGEST,
    };
    match format.kind {
        // SNORM_INT8, UNORM_INT8, SIGNED_INT8, UNSIGNED_INT8.
        0x10d0 | 0x10d2 | 0x10d7 | 0x10da => channels,
        // Those of 16 bits.
        0x10d1 | 0x10d3 | 0x10d8 | 0x10db | 0x10dd => channels * 2,
        // Packed: 565, 555; then 101010, 101010_2.
        0x10d4 | 0x10d5 => 2,
        0x10d6 | 0x10e0 => 4,
        // UNORM_INT24, SIGNED_INT32, UNSIGNED_INT32, FLOAT.
        0x10d9 | 0x10dc | 0x10de | 0x10df => channels * 4,
        _ => LARGEST,
    }
}

/// Bytes of an image. It saturates, and every limit refuses that.
fn image_bytes(format: ImageFormat, image: &ImageDescription) -> u64 {
    // Images of these types only can stand over other memory.
    let may_be_over = matches!(image.kind, CL_MEM_OBJECT_IMAGE1D_BUFFER | CL_MEM_OBJECT_IMAGE2D);
    if may_be_over && !image.of.is_null() {
        return 0;
    }
    let at_least_one = |number: usize| (number as u64).max(1);
    let (height, depth, layers) = (image.height, image.depth, image.layers);
    // Fields that a type does not use may hold anything.
    let [height, depth, layers] = match image.kind {
        CL_MEM_OBJECT_IMAGE1D => [1, 1, 1],
        CL_MEM_OBJECT_IMAGE1D_ARRAY => [1, 1, layers],
        CL_MEM_OBJECT_IMAGE2D => [height, 1, 1],
        CL_MEM_OBJECT_IMAGE2D_ARRAY => [height, 1, layers],
        CL_MEM_OBJECT_IMAGE3D => [height, depth, 1],
        _ => [height, depth, layers],
    };
    // A whole chain of smaller levels takes no more than the image, in one dimension.
    let levels = if image.mip_levels > 1 { 2 } else { 1 };
    [
        at_least_one(image.width),
        at_least_one(height),
        at_least_one(depth),
        at_least_one(layers),
        u64::from(image.samples.max(1)),
        levels,
    ]
    .into_iter()
    .fold(element_bytes(format), u64::saturating_mul)
}

/// # Safety
/// Both are null or the program's own, which the driver reads as well.
unsafe fn bytes(format: *const ImageFormat, description: *const ImageDescription) -> u64 {
    // SAFETY: the caller's promise. Without either, the driver refuses.
    match unsafe { (format.as_ref(), description.as_ref()) } {
        (Some(format), Some(description)) => image_bytes(*format, description),
        _ => 0,
    }
}

/// # Safety
/// As [`bytes`].
unsafe fn plain_bytes(format: *const ImageFormat, kind: cl_uint, [width, height, depth]: [usize; 3]) -> u64 {
    let description = ImageDescription {
        kind,
        width,
        height,
        depth,
        layers: 1,
        row_pitch: 0,
        slice_pitch: 0,
        mip_levels: 0,
        samples: 0,
        of: core::ptr::null_mut(),
    };
    // SAFETY: the caller's promise, and our own description.
    unsafe { bytes(format, &raw const description) }
}

pub(super) unsafe extern "C" fn clCreateImage(
    context: cl_context,
    flags: cl_bitfield,
    format: *const ImageFormat,
    description: *const ImageDescription,
    host: *mut c_void,
    error: *mut cl_int,
) -> cl_mem {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came.
        unsafe {
            memory::object(context, bytes(format, description), error, |why| {
                below::clCreateImage(context, flags, format, description, host, why)
            })
        }
    })
}

pub(super) unsafe extern "C" fn clCreateImageWithProperties(
    context: cl_context,
    properties: *const u64,
    flags: cl_bitfield,
    format: *const ImageFormat,
    description: *const ImageDescription,
    host: *mut c_void,
    error: *mut cl_int,
) -> cl_mem {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came.
        unsafe {
            memory::object(context, bytes(format, description), error, |why| {
                below::clCreateImageWithProperties(context, properties, flags, format, description, host, why)
            })
        }
    })
}

#[allow(clippy::too_many_arguments, reason = "OpenCL's")]
pub(super) unsafe extern "C" fn clCreateImage2D(
    context: cl_context,
    flags: cl_bitfield,
    format: *const ImageFormat,
    width: usize,
    height: usize,
    row_pitch: usize,
    host: *mut c_void,
    error: *mut cl_int,
) -> cl_mem {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came.
        unsafe {
            let bytes = plain_bytes(format, CL_MEM_OBJECT_IMAGE2D, [width, height, 1]);
            memory::object(context, bytes, error, |why| {
                below::clCreateImage2D(context, flags, format, width, height, row_pitch, host, why)
            })
        }
    })
}

#[allow(clippy::too_many_arguments, reason = "OpenCL's")]
pub(super) unsafe extern "C" fn clCreateImage3D(
    context: cl_context,
    flags: cl_bitfield,
    format: *const ImageFormat,
    width: usize,
    height: usize,
    depth: usize,
    row_pitch: usize,
    slice_pitch: usize,
    host: *mut c_void,
    error: *mut cl_int,
) -> cl_mem {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came.
        unsafe {
            let bytes = plain_bytes(format, CL_MEM_OBJECT_IMAGE3D, [width, height, depth]);
            memory::object(context, bytes, error, |why| {
                below::clCreateImage3D(
                    context,
                    flags,
                    format,
                    width,
                    height,
                    depth,
                    row_pitch,
                    slice_pitch,
                    host,
                    why,
                )
            })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RGBA: cl_uint = 0x10b5;
    const UNORM_INT8: cl_uint = 0x10d2;
    const FLOAT: cl_uint = 0x10de;

    fn image(kind: cl_uint, sizes: [usize; 4]) -> ImageDescription {
        let [width, height, depth, layers] = sizes;
        ImageDescription {
            kind,
            width,
            height,
            depth,
            layers,
            row_pitch: 0,
            slice_pitch: 0,
            mip_levels: 0,
            samples: 0,
            of: core::ptr::null_mut(),
        }
    }

    fn format(order: cl_uint, kind: cl_uint) -> ImageFormat {
        ImageFormat { order, kind }
    }

    #[test]
    fn an_image_takes_what_its_elements_take() {
        let sizes = [100, 50, 7, 3];
        let of = |kind| image_bytes(format(RGBA, UNORM_INT8), &image(kind, sizes));
        assert_eq!(of(CL_MEM_OBJECT_IMAGE1D), 400);
        assert_eq!(of(CL_MEM_OBJECT_IMAGE1D_ARRAY), 1200);
        assert_eq!(of(CL_MEM_OBJECT_IMAGE2D), 20_000, "it has no depth");
        assert_eq!(of(CL_MEM_OBJECT_IMAGE2D_ARRAY), 60_000);
        assert_eq!(of(CL_MEM_OBJECT_IMAGE3D), 140_000);
        assert_eq!(of(0xffff), 420_000, "an unknown type uses all");
        let none = image(CL_MEM_OBJECT_IMAGE2D, [4, 4, 0, 0]);
        assert_eq!(image_bytes(format(RGBA, FLOAT), &none), 256);
        assert_eq!(image_bytes(format(0x10b0, FLOAT), &none), 64);
        assert_eq!(image_bytes(format(0x10b4, 0x10d4), &none), 32, "packed");
        assert_eq!(image_bytes(format(1, 2), &none), 256, "an unknown format");
        let levels = ImageDescription {
            mip_levels: 3,
            ..none
        };
        assert_eq!(image_bytes(format(RGBA, FLOAT), &levels), 512);
        let over = ImageDescription {
            of: core::ptr::dangling_mut(),
            ..none
        };
        assert_eq!(image_bytes(format(RGBA, FLOAT), &over), 0, "over a buffer");
        let not_over = ImageDescription {
            kind: CL_MEM_OBJECT_IMAGE3D,
            ..over
        };
        assert_eq!(
            image_bytes(format(RGBA, FLOAT), &not_over),
            256,
            "it stands over none"
        );
    }

    #[test]
    fn a_hostile_size_never_wraps() {
        let hostile = image(CL_MEM_OBJECT_IMAGE3D, [usize::MAX, usize::MAX, 2, 1]);
        assert_eq!(image_bytes(format(RGBA, FLOAT), &hostile), u64::MAX);
        // SAFETY: null is allowed.
        let nothing = unsafe { bytes(core::ptr::null(), core::ptr::null()) };
        assert_eq!(nothing, 0);
    }
}
