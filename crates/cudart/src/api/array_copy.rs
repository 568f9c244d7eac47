//! Copies to and from arrays, which count bytes in x.

use core::ffi::c_void;

use super::array::{bytes_of, described};
use super::copy::{Cuboid, End, ends};
use crate::prelude::*;

/// # Safety
/// Both ends hold what the copy says.
unsafe fn rectangle(
    from: (End, usize, [usize; 2]),
    to: (End, usize, [usize; 2]),
    extent: [usize; 2],
    kind: cudaMemcpyKind,
    stream: cudaStream_t,
    asynchronous: bool,
) -> Result<()> {
    context()?;
    let copied = Cuboid {
        from: from.0,
        to: to.0,
        kinds: ends(kind)?,
        from_pitch: from.1,
        from_height: extent[1],
        to_pitch: to.1,
        to_height: extent[1],
        from_at: [from.2[0], from.2[1], 0],
        to_at: [to.2[0], to.2[1], 0],
        extent: [extent[0], extent[1], 1],
    };
    // SAFETY: the caller vouches for both ends.
    unsafe { copied.copy(stream, asynchronous) }
}

/// An array and where in it a copy begins.
fn array(handle: cudaArray_const_t) -> Result<End> {
    refuse(handle.is_null(), cudaErrorInvalidResourceHandle)?;
    Ok(End::Array(handle.cast_mut().cast()))
}

/// The rectangles of `count` bytes that begin somewhere in a row of an array and go on in the next ones: where each begins in
/// the array, how many bytes wide and how many rows high it is.
fn parts(width: usize, x: usize, y: usize, mut count: usize) -> Vec<([usize; 2], [usize; 2])> {
    let (mut x, mut y) = (x, y);
    let mut out = Vec::new();
    while count > 0 && x < width {
        let (wide, high) = if x == 0 && count >= width {
            (width, count / width)
        } else {
            (count.min(width - x), 1)
        };
        out.push(([x, y], [wide, high]));
        count -= wide * high;
        (x, y) = (0, y + high);
    }
    out
}

/// Copies bytes that lie one after the other in memory, and row by row in an array.
///
/// # Safety
/// The memory has `count` bytes.
unsafe fn running(
    handle: cudaArray_const_t,
    at: [usize; 2],
    memory: *mut c_void,
    count: usize,
    to_array: bool,
    kind: cudaMemcpyKind,
    stream: cudaStream_t,
    asynchronous: bool,
) -> Result<()> {
    context()?;
    let found = described(handle)?;
    let width = found.Width * bytes_of(found.Format) * found.NumChannels as usize;
    refuse(at[0] >= width && count > 0, cudaErrorInvalidValue)?;
    let mut done = 0;
    for (place, extent) in parts(width, at[0], at[1], count) {
        // SAFETY: the parts are `count` bytes together.
        unsafe {
            let here = (End::Memory(memory.byte_add(done)), extent[0], [0, 0]);
            let there = (array(handle)?, 0, place);
            let (from, to) = if to_array { (here, there) } else { (there, here) };
            rectangle(from, to, extent, kind, stream, asynchronous)?;
        }
        done += extent[0] * extent[1];
    }
    Ok(())
}

entry! {
    cudaMemcpy2DToArray | cudaMemcpy2DToArray_ptds on stream (
        dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, spitch: usize, width: usize,
        height: usize, kind: cudaMemcpyKind,
    ) {
        refuse(width > spitch, cudaErrorInvalidPitchValue)?;
        rectangle(
            (End::Memory(src.cast_mut()), spitch, [0, 0]), (array(dst)?, 0, [wOffset, hOffset]), [width, height], kind,
            stream, false,
        )
    }

    cudaMemcpy2DToArrayAsync | cudaMemcpy2DToArrayAsync_ptsz by stream (
        dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, spitch: usize, width: usize,
        height: usize, kind: cudaMemcpyKind, stream: cudaStream_t,
    ) {
        refuse(width > spitch, cudaErrorInvalidPitchValue)?;
        rectangle(
            (End::Memory(src.cast_mut()), spitch, [0, 0]), (array(dst)?, 0, [wOffset, hOffset]), [width, height], kind,
            stream, true,
        )
    }

    cudaMemcpy2DFromArray | cudaMemcpy2DFromArray_ptds on stream (
        dst: *mut c_void, dpitch: usize, src: cudaArray_const_t, wOffset: usize, hOffset: usize, width: usize,
        height: usize, kind: cudaMemcpyKind,
    ) {
        refuse(width > dpitch, cudaErrorInvalidPitchValue)?;
        rectangle(
            (array(src)?, 0, [wOffset, hOffset]), (End::Memory(dst), dpitch, [0, 0]), [width, height], kind, stream,
            false,
        )
    }

    cudaMemcpy2DFromArrayAsync | cudaMemcpy2DFromArrayAsync_ptsz by stream (
        dst: *mut c_void, dpitch: usize, src: cudaArray_const_t, wOffset: usize, hOffset: usize, width: usize,
        height: usize, kind: cudaMemcpyKind, stream: cudaStream_t,
    ) {
        refuse(width > dpitch, cudaErrorInvalidPitchValue)?;
        rectangle(
            (array(src)?, 0, [wOffset, hOffset]), (End::Memory(dst), dpitch, [0, 0]), [width, height], kind, stream,
            true,
        )
    }

    cudaMemcpy2DArrayToArray | cudaMemcpy2DArrayToArray_ptds on stream (
        dst: cudaArray_t, wOffsetDst: usize, hOffsetDst: usize, src: cudaArray_const_t, wOffsetSrc: usize,
        hOffsetSrc: usize, width: usize, height: usize, kind: cudaMemcpyKind,
    ) {
        rectangle(
            (array(src)?, 0, [wOffsetSrc, hOffsetSrc]), (array(dst)?, 0, [wOffsetDst, hOffsetDst]), [width, height],
            kind, stream, false,
        )
    }

    cudaMemcpyToArray | cudaMemcpyToArray_ptds on stream (
        dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, count: usize, kind: cudaMemcpyKind,
    ) {
        running(dst, [wOffset, hOffset], src.cast_mut(), count, true, kind, stream, false)
    }

    cudaMemcpyToArrayAsync | cudaMemcpyToArrayAsync_ptsz by stream (
        dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, count: usize, kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) {
        running(dst, [wOffset, hOffset], src.cast_mut(), count, true, kind, stream, true)
    }

    cudaMemcpyFromArray | cudaMemcpyFromArray_ptds on stream (
        dst: *mut c_void, src: cudaArray_const_t, wOffset: usize, hOffset: usize, count: usize, kind: cudaMemcpyKind,
    ) {
        running(src, [wOffset, hOffset], dst, count, false, kind, stream, false)
    }

    cudaMemcpyFromArrayAsync | cudaMemcpyFromArrayAsync_ptsz by stream (
        dst: *mut c_void, src: cudaArray_const_t, wOffset: usize, hOffset: usize, count: usize, kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) {
        running(src, [wOffset, hOffset], dst, count, false, kind, stream, true)
    }

    cudaMemcpyArrayToArray | cudaMemcpyArrayToArray_ptds on stream (
        dst: cudaArray_t, wOffsetDst: usize, hOffsetDst: usize, src: cudaArray_const_t, wOffsetSrc: usize,
        hOffsetSrc: usize, count: usize, kind: cudaMemcpyKind,
    ) {
        let found = described(src)?;
        let width = found.Width * bytes_of(found.Format) * found.NumChannels as usize;
        // Rows of both arrays are as long, or the bytes are within one row: anything else was never promised.
        let (wide, high) = if count <= width { (count, 1) } else { (width, count / width) };
        rectangle(
            (array(src)?, 0, [wOffsetSrc, hOffsetSrc]), (array(dst)?, 0, [wOffsetDst, hOffsetDst]), [wide, high], kind,
            stream, false,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn running_bytes_are_rows_of_the_array() {
        assert_eq!(parts(16, 0, 0, 64), [([0, 0], [16, 4])]);
        assert_eq!(
            parts(16, 4, 1, 12 + 32 + 3),
            [([4, 1], [12, 1]), ([0, 2], [16, 2]), ([0, 4], [3, 1])]
        );
        assert_eq!(parts(16, 0, 3, 5), [([0, 3], [5, 1])]);
        assert!(parts(16, 0, 0, 0).is_empty());
        assert!(
            parts(0, 0, 0, 5).is_empty(),
            "an array without a width ends nothing"
        );
    }
}
