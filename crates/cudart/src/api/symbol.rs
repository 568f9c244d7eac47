//! Variables in device memory, by the program's own names for them.

use core::ffi::c_void;

use super::copy;
use crate::prelude::*;
use crate::registry;

/// The address of a part of a variable.
///
/// # Errors
/// `cudaErrorInvalidSymbol` for what is no variable, `cudaErrorInvalidValue` for a part beyond its end.
pub fn part(symbol: *const c_void, offset: usize, count: usize) -> Result<*mut c_void> {
    let (address, size) = registry::variable(symbol)?;
    refuse(
        offset.checked_add(count).is_none_or(|end| end > size),
        cudaErrorInvalidValue,
    )?;
    Ok((address as usize + offset) as *mut c_void)
}

/// The directions that a copy to a variable may have.
fn to(kind: cudaMemcpyKind) -> Result<()> {
    let fine = matches!(
        kind,
        cudaMemcpyHostToDevice | cudaMemcpyDeviceToDevice | cudaMemcpyDefault
    );
    refuse(!fine, cudaErrorInvalidMemcpyDirection)
}

/// The directions that a copy from a variable may have.
fn from(kind: cudaMemcpyKind) -> Result<()> {
    let fine = matches!(
        kind,
        cudaMemcpyDeviceToHost | cudaMemcpyDeviceToDevice | cudaMemcpyDefault
    );
    refuse(!fine, cudaErrorInvalidMemcpyDirection)
}

entry! {
    cudaGetSymbolAddress(devPtr: *mut *mut c_void, symbol: *const c_void) {
        refuse(devPtr.is_null(), cudaErrorInvalidValue)?;
        *devPtr = registry::variable(symbol)?.0 as *mut c_void;
        Ok(())
    }

    cudaGetSymbolSize(size: *mut usize, symbol: *const c_void) {
        refuse(size.is_null(), cudaErrorInvalidValue)?;
        *size = registry::variable(symbol)?.1;
        Ok(())
    }

    cudaMemcpyToSymbol | cudaMemcpyToSymbol_ptds on stream (
        symbol: *const c_void, src: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind,
    ) {
        to(kind)?;
        copy::bytes(part(symbol, offset, count)?, src, count, kind, stream)
    }

    cudaMemcpyFromSymbol | cudaMemcpyFromSymbol_ptds on stream (
        dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind,
    ) {
        from(kind)?;
        copy::bytes(dst, part(symbol, offset, count)?, count, kind, stream)
    }

    cudaMemcpyToSymbolAsync | cudaMemcpyToSymbolAsync_ptsz by stream (
        symbol: *const c_void, src: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) {
        to(kind)?;
        copy::bytes_async(part(symbol, offset, count)?, src, count, kind, stream)
    }

    cudaMemcpyFromSymbolAsync | cudaMemcpyFromSymbolAsync_ptsz by stream (
        dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) {
        from(kind)?;
        copy::bytes_async(dst, part(symbol, offset, count)?, count, kind, stream)
    }
}
