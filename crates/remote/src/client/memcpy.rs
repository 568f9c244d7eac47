//! Copies between the program's memory and the device's. The path depends on where the program's memory lies:
//!
//! * pinned memory, in the data area: the device reads and writes it by itself (bypass, no copy by a processor);
//! * other memory in the data area: the driver below copies it once;
//! * elsewhere, and more than a few bytes: through staging memory in the data area, part by part, two copies;
//! * small copies, and all where no memory is shared: in messages.
#![allow(non_snake_case)]

use std::cell::OnceCell;

use divvy_abi::*;
use divvy_ring::data::Extent;

use super::area::{Area, area};
use super::{TABLE, given, thread};
use crate::handle::Word;
use crate::wire::by_hand::{
    ARRAY, ASYNC, COPY, FROM_DEVICE, IS_DEVICE, PER_THREAD, STAGED, TO_AREA, TO_DEVICE,
};
use crate::wire::{HEADER_BYTES, Writer};

/// Bytes of a message or an answer that are not the copy's: flags, stream, address, array, count; codes.
const OVERHEAD: usize = HEADER_BYTES + 48;
/// A copy of no more bytes than this travels in messages: a part of the data area would not pay.
const INLINE_BYTES: usize = 1 << 14;
/// Bytes of a part of the staging memory: they stay in a processor's cache between the two copies.
const PART_BYTES: usize = 1 << 18;
/// Parts of a thread's staging memory. While the server copies one, the program copies the next.
const PARTS: usize = 4;

/// One copy between the program's memory and the device's.
#[derive(Clone, Copy)]
struct Copy {
    symbol: Symbol,
    flags: u8,
    stream: CUstream,
    /// An address, or an offset in the array.
    device: u64,
    /// The array's name, where the device's side is one.
    array: Option<u64>,
    host: *mut u8,
    bytes: usize,
    to_host: bool,
}

/// A thread's own part of the data area, for copies of memory that lies elsewhere.
struct Staging {
    extent: Extent,
}

thread_local! {
    static STAGING: OnceCell<Option<Staging>> = const { OnceCell::new() };
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(area) = area() {
            area.release(self.extent);
        }
    }
}

/// Where this thread's staging memory begins in the data area. A thread that is ending has none.
fn staging(area: &Area) -> Option<u64> {
    let made = || {
        let extent = area.allocate((PARTS * PART_BYTES) as u64, PART_BYTES as u64)?;
        Some(Staging { extent })
    };
    let offset = |cell: &OnceCell<Option<Staging>>| {
        let staging = cell.get_or_init(made).as_ref();
        staging.map(|staging| staging.extent.offset)
    };
    STAGING.try_with(offset).ok().flatten()
}

impl Copy {
    /// Makes it, by the path with the fewest copies.
    ///
    /// # Safety
    /// `host` has so many bytes, to read or to write.
    unsafe fn make(self) -> CUresult {
        if self.host.is_null() && self.bytes != 0 {
            return CUDA_ERROR_INVALID_VALUE;
        }
        let Some(area) = area().filter(|_| self.bytes != 0) else {
            // SAFETY: promised by the caller.
            return unsafe { self.inline() };
        };
        if let Some(offset) = area.offset(self.host.addr(), self.bytes) {
            return self.shared(offset);
        }
        let staging = (self.bytes > INLINE_BYTES).then(|| staging(area)).flatten();
        // SAFETY: promised by the caller.
        unsafe {
            match staging {
                Some(offset) => self.staged(area, offset),
                None => self.inline(),
            }
        }
    }

    /// The bytes lie in the data area: the server finds them there.
    fn shared(self, offset: u64) -> CUresult {
        let to_area = if self.to_host { TO_AREA } else { 0 };
        let put = |m: &mut Writer<'_>| self.put_area(m, self.flags | to_area, 0, offset, self.bytes);
        match self.flags & ASYNC {
            0 => thread::call(COPY, self.symbol, put, |_, _| Ok(())),
            _ => thread::submit(COPY, self.symbol, put, |_, _| Ok(())),
        }
    }

    fn put_area(self, m: &mut Writer<'_>, flags: u8, at: usize, offset: u64, bytes: usize) {
        self.put_place(m, flags, at);
        m.plain(offset);
        m.plain(bytes as u64);
    }

    /// The beginning of each message of a copy: flags, stream, and the place of its bytes from `at` on.
    fn put_place(self, m: &mut Writer<'_>, flags: u8, at: usize) {
        m.plain(flags | self.array.map_or(0, |_| ARRAY));
        m.plain(self.stream.bits());
        m.plain(self.device.wrapping_add(at as u64));
        if let Some(array) = self.array {
            m.plain(array);
        }
    }

    /// Through the staging memory, part by part.
    ///
    /// # Safety
    /// As of [`Copy::make`].
    unsafe fn staged(self, area: &Area, staging: u64) -> CUresult {
        let parts = self.bytes.div_ceil(PART_BYTES);
        let part = |index: usize| {
            let at = index * PART_BYTES;
            let place = staging + (index % PARTS * PART_BYTES) as u64;
            (at, PART_BYTES.min(self.bytes - at), place)
        };
        let to_area = if self.to_host { TO_AREA } else { 0 };
        thread::pipelined(
            COPY,
            parts,
            PARTS,
            |index, m| {
                let (at, bytes, place) = part(index);
                if !self.to_host {
                    // SAFETY: the caller vouches for the bytes. The part's place is this thread's, and the server is
                    // done with it: no more parts are under way than there are places.
                    unsafe { std::ptr::copy_nonoverlapping(self.host.add(at), area.at(place), bytes) };
                }
                self.put_area(m, self.flags | to_area | STAGED, at, place, bytes);
            },
            |index, _| {
                let (at, bytes, place) = part(index);
                if self.to_host {
                    // SAFETY: the caller vouches for the room, and the part's place is this thread's until it is used
                    // again.
                    unsafe { std::ptr::copy_nonoverlapping(area.at(place), self.host.add(at), bytes) };
                }
                Ok(())
            },
        )
    }

    /// In messages. A copy of nothing is a message all the same: the driver judges the address.
    ///
    /// # Safety
    /// As of [`Copy::make`].
    unsafe fn inline(self) -> CUresult {
        let most = match thread::capacity() {
            Ok(capacity) => capacity.saturating_sub(OVERHEAD).max(1),
            Err(code) => return code,
        };
        let parts = self.bytes.div_ceil(most).max(1);
        let part = |index: usize| (index * most, most.min(self.bytes - index * most));
        let id = if self.to_host { FROM_DEVICE } else { TO_DEVICE };
        thread::pipelined(
            id,
            parts,
            PARTS,
            |index, m| {
                let (at, bytes) = part(index);
                self.put_place(m, self.flags, at);
                if self.to_host {
                    m.plain(bytes as u64);
                } else {
                    // SAFETY: the caller vouches for the bytes, and the part lies among them.
                    unsafe { m.copy(self.host.wrapping_add(at), bytes) };
                }
            },
            |index, m| {
                let (at, bytes) = part(index);
                if self.to_host {
                    let came = m.bytes(bytes)?;
                    // SAFETY: the caller vouches for the room, and the part lies in it.
                    unsafe {
                        std::ptr::copy_nonoverlapping(came.as_ptr(), self.host.wrapping_add(at), bytes);
                    }
                }
                Ok(())
            },
        )
    }
}

macro_rules! to_device {
    ($($name:ident $flags:expr, ($($stream:ident)?);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            to: CUdeviceptr, from: *const c_void, bytes: usize, $($stream: CUstream)?
        ) -> CUresult {
            let stream: &[CUstream] = &[$($stream)?];
            let stream = stream.first().copied().unwrap_or(std::ptr::null_mut());
            // SAFETY: the program vouches for its bytes.
            unsafe {
                let (symbol, flags, host) = (Symbol::$name, $flags, from.cast_mut().cast());
                Copy { symbol, flags, stream, device: to, array: None, host, bytes, to_host: false }.make()
            }
        }
    )*};
}

macro_rules! from_device {
    ($($name:ident $flags:expr, ($($stream:ident)?);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            to: *mut c_void, from: CUdeviceptr, bytes: usize, $($stream: CUstream)?
        ) -> CUresult {
            let stream: &[CUstream] = &[$($stream)?];
            let stream = stream.first().copied().unwrap_or(std::ptr::null_mut());
            // SAFETY: the program vouches for its room.
            unsafe {
                let (symbol, flags, host) = (Symbol::$name, $flags, to.cast());
                Copy { symbol, flags, stream, device: from, array: None, host, bytes, to_host: true }.make()
            }
        }
    )*};
}

to_device! {
    cuMemcpyHtoD_v2 0, ();
    cuMemcpyHtoD_v2_ptds PER_THREAD, ();
    cuMemcpyHtoDAsync_v2 ASYNC, (stream);
    cuMemcpyHtoDAsync_v2_ptsz ASYNC | PER_THREAD, (stream);
}

from_device! {
    cuMemcpyDtoH_v2 0, ();
    cuMemcpyDtoH_v2_ptds PER_THREAD, ();
    cuMemcpyDtoHAsync_v2 ASYNC, (stream);
    cuMemcpyDtoHAsync_v2_ptsz ASYNC | PER_THREAD, (stream);
}

macro_rules! to_array {
    ($($name:ident $flags:expr, ($($stream:ident)?);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            to: CUarray, offset: usize, from: *const c_void, bytes: usize, $($stream: CUstream)?
        ) -> CUresult {
            let stream: &[CUstream] = &[$($stream)?];
            let stream = stream.first().copied().unwrap_or(std::ptr::null_mut());
            let (symbol, flags, host, array) = (Symbol::$name, $flags, from.cast_mut().cast(), Some(to.bits()));
            let device = offset as u64;
            // SAFETY: the program vouches for its bytes.
            unsafe { Copy { symbol, flags, stream, device, array, host, bytes, to_host: false }.make() }
        }
    )*};
}

macro_rules! from_array {
    ($($name:ident $flags:expr, ($($stream:ident)?);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            to: *mut c_void, from: CUarray, offset: usize, bytes: usize, $($stream: CUstream)?
        ) -> CUresult {
            let stream: &[CUstream] = &[$($stream)?];
            let stream = stream.first().copied().unwrap_or(std::ptr::null_mut());
            let (symbol, flags, host, array) = (Symbol::$name, $flags, to.cast(), Some(from.bits()));
            let device = offset as u64;
            // SAFETY: the program vouches for its room.
            unsafe { Copy { symbol, flags, stream, device, array, host, bytes, to_host: true }.make() }
        }
    )*};
}

to_array! {
    cuMemcpyHtoA_v2 0, ();
    cuMemcpyHtoA_v2_ptds PER_THREAD, ();
    cuMemcpyHtoAAsync_v2 ASYNC, (stream);
    cuMemcpyHtoAAsync_v2_ptsz ASYNC | PER_THREAD, (stream);
}

from_array! {
    cuMemcpyAtoH_v2 0, ();
    cuMemcpyAtoH_v2_ptds PER_THREAD, ();
    cuMemcpyAtoHAsync_v2 ASYNC, (stream);
    cuMemcpyAtoHAsync_v2_ptsz ASYNC | PER_THREAD, (stream);
}

/// Copies between addresses of either kind: which kind each is of decides the copy.
///
/// # Safety
/// As of [`Copy::make`], for an address that is the program's.
unsafe fn unified(
    symbol: Symbol,
    flags: u8,
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let [to_device, from_device] = match are_on_device(symbol, [to, from]) {
        Ok(kinds) => kinds,
        Err(code) => return code,
    };
    let pointer = |address: u64| std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    let copy = |device, host, to_host| Copy {
        symbol,
        flags,
        stream,
        device,
        array: None,
        host: pointer(host),
        bytes,
        to_host,
    };
    // SAFETY: the program vouches for its memory.
    unsafe {
        match (to_device, from_device) {
            (true, false) => copy(to, from, false).make(),
            (false, true) => copy(from, to, true).make(),
            (true, true) => match flags {
                0 => (TABLE.cuMemcpyDtoD_v2)(to, from, bytes),
                ASYNC => (TABLE.cuMemcpyDtoDAsync_v2)(to, from, bytes, stream),
                PER_THREAD => (TABLE.cuMemcpyDtoD_v2_ptds)(to, from, bytes),
                _ => (TABLE.cuMemcpyDtoDAsync_v2_ptsz)(to, from, bytes, stream),
            },
            (false, false) => {
                // Both are the program's. What the stream has to do first is waited for.
                let code = match flags {
                    0 | PER_THREAD => CUDA_SUCCESS,
                    ASYNC => (TABLE.cuStreamSynchronize)(stream),
                    _ => (TABLE.cuStreamSynchronize_ptsz)(stream),
                };
                if code == CUDA_SUCCESS {
                    std::ptr::copy(pointer(from), pointer(to), bytes);
                }
                code
            }
        }
    }
}

/// Which of these addresses are device memory of this program. A server that says of memory which it gave that it is none
/// is not believed: the copy would read or write memory of the program's that lies at its address.
pub fn are_on_device(symbol: Symbol, addresses: [u64; 2]) -> Result<[bool; 2], CUresult> {
    let given = addresses.map(given::holds);
    let mut kinds = [false; 2];
    let code = thread::call(
        IS_DEVICE,
        symbol,
        |m| addresses.map(|address| m.plain(address)).into_iter().collect(),
        |m, good| {
            if good {
                kinds = [m.flag()?, m.flag()?];
            }
            Ok(())
        },
    );
    // Pinned memory has an address on the device too; here it counts as the program's.
    let host = |address: u64| area().is_some_and(|area| area.offset(address as usize, 1).is_some());
    match code {
        CUDA_SUCCESS => {
            let is_device = |at: usize| (kinds[at] || given[at]) && !host(addresses[at]);
            Ok([is_device(0), is_device(1)])
        }
        code => Err(code),
    }
}

macro_rules! unified {
    ($($name:ident $flags:expr, ($($stream:ident)?);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, $($stream: CUstream)?
        ) -> CUresult {
            let stream: &[CUstream] = &[$($stream)?];
            let stream = stream.first().copied().unwrap_or(std::ptr::null_mut());
            // SAFETY: the program vouches for its memory.
            unsafe { unified(Symbol::$name, $flags, dst, src, bytes, stream) }
        }
    )*};
}

unified! {
    cuMemcpy 0, ();
    cuMemcpy_ptds PER_THREAD, ();
    cuMemcpyAsync ASYNC, (stream);
    cuMemcpyAsync_ptsz ASYNC | PER_THREAD, (stream);
}
