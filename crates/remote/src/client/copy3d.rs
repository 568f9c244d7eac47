//! Copies of rows and boxes: between device memory, arrays, and memory of the program.
//!
//! Memory of the program that lies in the data area is named to the server. Other memory is copied through a part of the
//! area, as many rows at a time as it has room for.
#![allow(non_snake_case)]

use divvy_abi::*;

use super::area::{Area, area};
use super::{memcpy, thread};
use crate::handle::Word;
use crate::wire::HEADER_BYTES;
use crate::wire::Writer;
use crate::wire::by_hand::{
    ASYNC, COPY_BOX, PER_THREAD, PLACE_AREA, PLACE_ARRAY, PLACE_DEVICE, PLACE_MESSAGE, STAGED,
};

/// Bytes of the part of the data area that rows go through. A longer row makes it longer.
const STAGING_BYTES: usize = 1 << 20;
/// Bytes of a message of such a copy that are not the copy's, and of an answer.
const BOX_BYTES: usize = 160;
/// Bytes of the longest texel of an array: four channels of four bytes.
const TEXEL_BYTES: usize = 16;

/// Where one side of a copy lies.
#[derive(Clone, Copy)]
enum Place {
    Device(u64),
    Array(u64),
    Area(u64),
    Program(*mut u8),
    /// In the message or its answer.
    Message,
}

/// One side of a copy.
#[derive(Clone, Copy)]
struct Side {
    place: Place,
    x: usize,
    y: usize,
    z: usize,
    lod: usize,
    pitch: usize,
    height: usize,
}

/// A copy of `depth` layers of `height` rows of `width` bytes.
#[derive(Clone, Copy)]
pub struct BoxCopy {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
    depth: usize,
}

impl Side {
    fn put(&self, m: &mut Writer<'_>) {
        let (place, word) = match self.place {
            Place::Device(address) => (PLACE_DEVICE, address),
            Place::Array(array) => (PLACE_ARRAY, array),
            Place::Area(offset) => (PLACE_AREA, offset),
            Place::Message => (PLACE_MESSAGE, 0),
            // It was refused, or staged.
            Place::Program(_) => (PLACE_DEVICE, 0),
        };
        m.plain(place);
        m.plain(word);
        for number in [self.x, self.y, self.z, self.lod, self.pitch, self.height] {
            m.plain(number as u64);
        }
    }

    /// The same side, some rows further, and one layer.
    fn moved(self, rows: usize, layers: usize) -> Self {
        Self {
            y: self.y + rows,
            z: self.z + layers,
            ..self
        }
    }

    /// The same side, some bytes further in each row.
    fn moved_across(self, bytes: usize) -> Self {
        Self {
            x: self.x + bytes,
            ..self
        }
    }

    /// The same side, whose rows of memory of the program have a pitch though they do not say so.
    fn with_pitch(self, width: usize) -> Self {
        match self.place {
            Place::Program(_) if self.pitch == 0 => Self {
                pitch: self.x + width,
                ..self
            },
            _ => self,
        }
    }

    /// The address of a row of memory of the program.
    fn row(&self, first: *mut u8, row: usize, width: usize) -> *mut u8 {
        let pitch = if self.pitch == 0 {
            self.x + width
        } else {
            self.pitch
        };
        let rows = self.z * self.height + self.y + row;
        first.wrapping_add(rows.wrapping_mul(pitch).wrapping_add(self.x))
    }
}

impl BoxCopy {
    /// What a program asks for. A place of either kind is looked up.
    pub fn read(symbol: Symbol, copy: &CUDA_MEMCPY3D) -> Result<Self, CUresult> {
        let side = |kind, host: *mut c_void, device, array: CUarray| {
            let address = match kind {
                CU_MEMORYTYPE_ARRAY => return Ok(Place::Array(array.bits())),
                CU_MEMORYTYPE_DEVICE => return Ok(Place::Device(device)),
                CU_MEMORYTYPE_HOST => host.expose_provenance() as u64,
                CU_MEMORYTYPE_UNIFIED => device,
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            };
            if let Some(offset) = area().and_then(|area| area.offset(address as usize, 0)) {
                return Ok(Place::Area(offset));
            }
            if kind == CU_MEMORYTYPE_UNIFIED && memcpy::are_on_device(symbol, [address; 2])?[0] {
                return Ok(Place::Device(address));
            }
            match address {
                0 => Err(CUDA_ERROR_INVALID_VALUE),
                address => Ok(Place::Program(std::ptr::with_exposed_provenance_mut(
                    address as usize,
                ))),
            }
        };
        let from = side(
            copy.srcMemoryType,
            copy.srcHost.cast_mut(),
            copy.srcDevice,
            copy.srcArray,
        )?;
        let to = side(copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstArray)?;
        Ok(Self {
            from: Side {
                place: from,
                x: copy.srcXInBytes,
                y: copy.srcY,
                z: copy.srcZ,
                lod: copy.srcLOD,
                pitch: copy.srcPitch,
                height: copy.srcHeight,
            },
            to: Side {
                place: to,
                x: copy.dstXInBytes,
                y: copy.dstY,
                z: copy.dstZ,
                lod: copy.dstLOD,
                pitch: copy.dstPitch,
                height: copy.dstHeight,
            },
            width: copy.WidthInBytes,
            height: copy.Height,
            depth: copy.Depth,
        })
    }

    /// Whether a side is memory of the program that the server does not see.
    pub fn needs_staging(&self) -> bool {
        matches!(self.from.place, Place::Program(_)) || matches!(self.to.place, Place::Program(_))
    }

    /// What the server is told.
    pub fn put(&self, m: &mut Writer<'_>) {
        self.from.put(m);
        self.to.put(m);
        for number in [self.width, self.height, self.depth] {
            m.plain(number as u64);
        }
    }

    fn send(&self, symbol: Symbol, flags: u8, stream: CUstream) -> CUresult {
        let put = |m: &mut Writer<'_>| {
            m.plain(flags);
            m.plain(stream.bits());
            self.put(m);
        };
        thread::call(COPY_BOX, symbol, put, |_, _| Ok(()))
    }

    /// Makes it.
    ///
    /// # Safety
    /// The program vouches for its memory.
    unsafe fn make(&self, symbol: Symbol, flags: u8, stream: CUstream) -> CUresult {
        match (self.from.place, self.to.place) {
            (Place::Program(from), Place::Program(to)) => {
                // What the stream has to do first is waited for.
                // SAFETY: a handle is passed on.
                let code = unsafe {
                    match flags {
                        ASYNC => (super::TABLE.cuStreamSynchronize)(stream),
                        3 => (super::TABLE.cuStreamSynchronize_ptsz)(stream),
                        _ => CUDA_SUCCESS,
                    }
                };
                for (layer, row) in self.rows().filter(|_| code == CUDA_SUCCESS) {
                    let from = self.from.moved(0, layer).row(from, row, self.width);
                    let to = self.to.moved(0, layer).row(to, row, self.width);
                    // SAFETY: the caller vouches for the rows.
                    unsafe { std::ptr::copy(from, to, self.width) };
                }
                code
            }
            // SAFETY: promised by the caller.
            (Place::Program(_), _) | (_, Place::Program(_)) if self.bytes() != 0 => unsafe {
                self.staged(symbol, flags, stream)
            },
            _ => self.send(symbol, flags, stream),
        }
    }

    fn bytes(&self) -> usize {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }

    fn rows(&self) -> impl Iterator<Item = (usize, usize)> {
        let height = self.height;
        (0..self.depth).flat_map(move |layer| (0..height).map(move |row| (layer, row)))
    }

    /// # Safety
    /// As of [`BoxCopy::make`].
    unsafe fn staged(&self, symbol: Symbol, flags: u8, stream: CUstream) -> CUresult {
        let Some(area) = area() else {
            // SAFETY: promised by the caller.
            return unsafe { self.in_messages(flags, stream) };
        };
        let wanted = self.width.max(STAGING_BYTES.min(self.bytes()));
        let Some(extent) = area.allocate(wanted as u64, 4096) else {
            return CUDA_ERROR_OUT_OF_MEMORY;
        };
        let at_once = (extent.bytes as usize / self.width).min(self.height).max(1);
        let mut code = CUDA_SUCCESS;
        for layer in 0..self.depth {
            for row in (0..self.height).step_by(at_once) {
                if code == CUDA_SUCCESS {
                    let rows = at_once.min(self.height - row);
                    let part = Self {
                        from: self.from.moved(row, layer),
                        to: self.to.moved(row, layer),
                        height: rows,
                        depth: 1,
                        ..*self
                    };
                    // SAFETY: promised by the caller.
                    code = unsafe { part.through(area, extent.offset, symbol, flags | STAGED, stream) };
                }
            }
        }
        area.release(extent);
        code
    }

    /// Row by row, where no memory is shared with the server.
    ///
    /// # Safety
    /// As of [`BoxCopy::make`].
    unsafe fn in_messages(&self, flags: u8, stream: CUstream) -> CUresult {
        if matches!(self.from.place, Place::Array(_)) || matches!(self.to.place, Place::Array(_)) {
            // SAFETY: promised by the caller.
            return unsafe { self.of_array_in_messages(flags, stream) };
        }
        let table = &super::TABLE;
        let device = |address: u64| std::ptr::without_provenance_mut(address as usize);
        let mut code = CUDA_SUCCESS;
        for (layer, row) in self.rows() {
            let (from, to) = (self.from.moved(0, layer), self.to.moved(0, layer));
            // SAFETY: the caller vouches for the rows, and the server judges the addresses of the device.
            code = unsafe {
                match (self.from.place, self.to.place) {
                    (Place::Program(host), Place::Device(address)) => {
                        let host = from.row(host, row, self.width).cast();
                        let address = to.row(device(address), row, self.width).addr() as u64;
                        match flags {
                            0 => (table.cuMemcpyHtoD_v2)(address, host, self.width),
                            PER_THREAD => (table.cuMemcpyHtoD_v2_ptds)(address, host, self.width),
                            ASYNC => (table.cuMemcpyHtoDAsync_v2)(address, host, self.width, stream),
                            _ => (table.cuMemcpyHtoDAsync_v2_ptsz)(address, host, self.width, stream),
                        }
                    }
                    (Place::Device(address), Place::Program(host)) => {
                        let host = to.row(host, row, self.width).cast();
                        let address = from.row(device(address), row, self.width).addr() as u64;
                        match flags {
                            0 => (table.cuMemcpyDtoH_v2)(host, address, self.width),
                            PER_THREAD => (table.cuMemcpyDtoH_v2_ptds)(host, address, self.width),
                            ASYNC => (table.cuMemcpyDtoHAsync_v2)(host, address, self.width, stream),
                            _ => (table.cuMemcpyDtoHAsync_v2_ptsz)(host, address, self.width, stream),
                        }
                    }
                    _ => CUDA_ERROR_NOT_SUPPORTED,
                }
            };
            if code != CUDA_SUCCESS {
                break;
            }
        }
        code
    }

    /// Between an array and memory of the program, where no memory is shared: as many rows in a message as it has room
    /// for, or a part of one.
    ///
    /// # Safety
    /// As of [`BoxCopy::make`].
    unsafe fn of_array_in_messages(&self, flags: u8, stream: CUstream) -> CUresult {
        let room = match thread::capacity() {
            Ok(capacity) => capacity.saturating_sub(HEADER_BYTES + BOX_BYTES),
            Err(code) => return code,
        };
        // No texel is longer, and a part has whole texels.
        let across = self.width.min(room / TEXEL_BYTES * TEXEL_BYTES).max(1);
        let at_once = (room / across).clamp(1, self.height.max(1));
        let (from, to) = (self.from.with_pitch(self.width), self.to.with_pitch(self.width));
        for layer in 0..self.depth {
            for row in (0..self.height).step_by(at_once) {
                for x in (0..self.width).step_by(across) {
                    let part = Self {
                        from: from.moved(row, layer).moved_across(x),
                        to: to.moved(row, layer).moved_across(x),
                        width: across.min(self.width - x),
                        height: at_once.min(self.height - row),
                        depth: 1,
                    };
                    // SAFETY: promised by the caller.
                    let code = unsafe { part.in_one_message(flags, stream) };
                    if code != CUDA_SUCCESS {
                        return code;
                    }
                }
            }
        }
        CUDA_SUCCESS
    }

    /// # Safety
    /// As of [`BoxCopy::make`].
    unsafe fn in_one_message(&self, flags: u8, stream: CUstream) -> CUresult {
        let dense = Side {
            place: Place::Message,
            x: 0,
            y: 0,
            z: 0,
            lod: 0,
            pitch: self.width,
            height: self.height,
        };
        let (described, to_program) = match (self.from.place, self.to.place) {
            (Place::Program(_), _) => (Self { from: dense, ..*self }, None),
            (_, Place::Program(first)) => (Self { to: dense, ..*self }, Some(first)),
            _ => return CUDA_ERROR_INVALID_VALUE,
        };
        thread::call(
            COPY_BOX,
            Symbol::cuMemcpy3D_v2,
            |m| {
                m.plain(flags);
                m.plain(stream.bits());
                described.put(m);
                if let Place::Program(first) = self.from.place {
                    for row in 0..self.height {
                        // SAFETY: the caller vouches for the row.
                        unsafe { m.copy(self.from.row(first, row, self.width), self.width) };
                    }
                }
            },
            |m, good| {
                let Some(first) = to_program.filter(|_| good) else {
                    return Ok(());
                };
                for row in 0..self.height {
                    let came = m.bytes(self.width)?;
                    // SAFETY: as above.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            came.as_ptr(),
                            self.to.row(first, row, self.width),
                            self.width,
                        );
                    }
                }
                Ok(())
            },
        )
    }

    /// Some rows of one layer, through the data area from an offset on, where they stand close together.
    ///
    /// # Safety
    /// As of [`BoxCopy::make`].
    unsafe fn through(
        &self,
        area: &Area,
        offset: u64,
        symbol: Symbol,
        flags: u8,
        stream: CUstream,
    ) -> CUresult {
        let dense = Side {
            place: Place::Area(offset),
            x: 0,
            y: 0,
            z: 0,
            lod: 0,
            pitch: self.width,
            height: self.height,
        };
        let packed = |row: usize| area.at(offset).wrapping_add(row * self.width);
        if let Place::Program(first) = self.from.place {
            for row in 0..self.height {
                let from = self.from.row(first, row, self.width);
                // SAFETY: the caller vouches for the row, and the part of the area has room for it.
                unsafe { std::ptr::copy_nonoverlapping(from, packed(row), self.width) };
            }
            return Self { from: dense, ..*self }.send(symbol, flags, stream);
        }
        let code = Self { to: dense, ..*self }.send(symbol, flags, stream);
        if let (Place::Program(first), CUDA_SUCCESS) = (self.to.place, code) {
            for row in 0..self.height {
                let to = self.to.row(first, row, self.width);
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(packed(row), to, self.width) };
            }
        }
        code
    }
}

/// The same copy as a box of one layer.
fn layer(copy: &CUDA_MEMCPY2D) -> CUDA_MEMCPY3D {
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

macro_rules! copies {
    ($($name:ident $of:ident $as_box:expr, $flags:expr, ($($stream:ident)?);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(pCopy: *const $of, $($stream: CUstream)?) -> CUresult {
            let stream: &[CUstream] = &[$($stream)?];
            let stream = stream.first().copied().unwrap_or(std::ptr::null_mut());
            // SAFETY: the program vouches for its pointer and its memory.
            unsafe {
                let Some(copy) = pCopy.as_ref() else {
                    return CUDA_ERROR_INVALID_VALUE;
                };
                match BoxCopy::read(Symbol::$name, &$as_box(copy)) {
                    Ok(copy) => copy.make(Symbol::$name, $flags, stream),
                    Err(code) => code,
                }
            }
        }
    )*};
}

fn same(copy: &CUDA_MEMCPY3D) -> CUDA_MEMCPY3D {
    *copy
}

copies! {
    cuMemcpy2D_v2 CUDA_MEMCPY2D layer, 0, ();
    cuMemcpy2D_v2_ptds CUDA_MEMCPY2D layer, PER_THREAD, ();
    cuMemcpy2DUnaligned_v2 CUDA_MEMCPY2D layer, 0, ();
    cuMemcpy2DUnaligned_v2_ptds CUDA_MEMCPY2D layer, PER_THREAD, ();
    cuMemcpy2DAsync_v2 CUDA_MEMCPY2D layer, ASYNC, (stream);
    cuMemcpy2DAsync_v2_ptsz CUDA_MEMCPY2D layer, ASYNC | PER_THREAD, (stream);
    cuMemcpy3D_v2 CUDA_MEMCPY3D same, 0, ();
    cuMemcpy3D_v2_ptds CUDA_MEMCPY3D same, PER_THREAD, ();
    cuMemcpy3DAsync_v2 CUDA_MEMCPY3D same, ASYNC, (stream);
    cuMemcpy3DAsync_v2_ptsz CUDA_MEMCPY3D same, ASYNC | PER_THREAD, (stream);
}
