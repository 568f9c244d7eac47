//! Copies of rows and boxes between device memory, arrays and the data area.

use divvy_abi::*;
use divvy_ledger::CopyPath;

use super::{Call, Stop};
use crate::handle::{Kind, Word};
use crate::wire::by_hand::{ASYNC, PER_THREAD, PLACE_AREA, PLACE_ARRAY, PLACE_DEVICE, PLACE_MESSAGE, STAGED};

/// One side of a copy, as a message has it.
struct Side {
    place: u8,
    word: u64,
    x: u64,
    y: u64,
    z: u64,
    lod: u64,
    pitch: u64,
    height: u64,
}

/// A side as the driver below is given it.
struct Checked {
    kind: CUmemorytype,
    host: *mut c_void,
    device: u64,
    array: CUarray,
    side: Side,
    /// Of the data area: its part that is copied.
    part: Option<(u64, u64)>,
    /// It is in the message or the answer.
    travels: bool,
}

/// A copy, and the parts of the data area that it reads or writes.
pub struct BoxCopy {
    /// As the driver below is given it.
    pub copy: CUDA_MEMCPY3D,
    parts: [Option<(u64, u64)>; 2],
    bytes: u64,
    /// Whether each side is in the message or the answer.
    travels: [bool; 2],
}

impl Side {
    fn read(call: &mut Call<'_>) -> Result<Self, Stop> {
        let m = &mut call.message;
        Ok(Self {
            place: m.plain()?,
            word: m.plain()?,
            x: m.plain()?,
            y: m.plain()?,
            z: m.plain()?,
            lod: m.plain()?,
            pitch: m.plain()?,
            height: m.plain()?,
        })
    }

    /// Bytes from the side's address to the end of a box; nothing where they are more than there can be.
    fn reach(&self, [width, height, depth]: [u64; 3]) -> Option<u64> {
        if width == 0 || height == 0 || depth == 0 {
            return Some(0);
        }
        let row_end = self.x.checked_add(width)?;
        let pitch = if self.pitch == 0 { row_end } else { self.pitch };
        let rows = self.y.checked_add(height)?;
        let layers = self.z.checked_add(depth - 1)?;
        let last_row = layers.checked_mul(self.height)?.checked_add(rows - 1)?;
        last_row.checked_mul(pitch)?.checked_add(row_end)
    }

    fn checked(self, call: &mut Call<'_>, size: [u64; 3]) -> Result<Checked, Stop> {
        let none = std::ptr::null_mut();
        let mut checked = Checked {
            kind: CU_MEMORYTYPE_DEVICE,
            host: none,
            device: 0,
            array: none.cast(),
            part: None,
            travels: false,
            side: self,
        };
        let side = &checked.side;
        let reach = side.reach(size).ok_or(Stop::Code(CUDA_ERROR_INVALID_VALUE));
        match side.place {
            PLACE_DEVICE => {
                call.within(side.word, reach?)?;
                checked.device = side.word;
            }
            PLACE_AREA => {
                let reach = reach?;
                checked.host = call.shared(side.word, reach)?;
                checked.part = Some((side.word, reach));
                checked.kind = CU_MEMORYTYPE_HOST;
            }
            PLACE_ARRAY => {
                let array = call.real(Kind::Array, side.word)?;
                checked.array = Word::from_bits(array);
                checked.kind = CU_MEMORYTYPE_ARRAY;
            }
            PLACE_MESSAGE => {
                // The caller says where the bytes are, once it knows.
                let dense = Some(side.pitch) == size.first().copied() && side.height == size[1];
                if !dense || [side.x, side.y, side.z, side.lod, side.word] != [0; 5] {
                    return Err(Stop::Malformed);
                }
                checked.travels = true;
                checked.kind = CU_MEMORYTYPE_HOST;
            }
            _ => return Err(Stop::Malformed),
        }
        Ok(checked)
    }
}

impl BoxCopy {
    /// Reads one, and checks it: both sides lie in memory of the program.
    pub fn read(call: &mut Call<'_>) -> Result<Self, Stop> {
        let copy = Self::read_any(call)?;
        match copy.travels {
            [false, false] => Ok(copy),
            _ => Err(Stop::Malformed),
        }
    }

    fn read_any(call: &mut Call<'_>) -> Result<Self, Stop> {
        let (from, to) = (Side::read(call)?, Side::read(call)?);
        let size: [u64; 3] = [
            call.message.plain()?,
            call.message.plain()?,
            call.message.plain()?,
        ];
        let (from, to) = (from.checked(call, size)?, to.checked(call, size)?);
        let [width, height, depth] = size;
        Ok(Self {
            copy: CUDA_MEMCPY3D {
                srcXInBytes: from.side.x as usize,
                srcY: from.side.y as usize,
                srcZ: from.side.z as usize,
                srcLOD: from.side.lod as usize,
                srcMemoryType: from.kind,
                srcHost: from.host,
                srcDevice: from.device,
                srcArray: from.array,
                srcPitch: from.side.pitch as usize,
                srcHeight: from.side.height as usize,
                dstXInBytes: to.side.x as usize,
                dstY: to.side.y as usize,
                dstZ: to.side.z as usize,
                dstLOD: to.side.lod as usize,
                dstMemoryType: to.kind,
                dstHost: to.host,
                dstDevice: to.device,
                dstArray: to.array,
                dstPitch: to.side.pitch as usize,
                dstHeight: to.side.height as usize,
                WidthInBytes: width as usize,
                Height: height as usize,
                Depth: depth as usize,
                ..CUDA_MEMCPY3D::default()
            },
            parts: [from.part, to.part],
            travels: [from.travels, to.travels],
            bytes: width.saturating_mul(height).saturating_mul(depth),
        })
    }
}

/// A copy: flags, stream, both sides, and the size of the box.
pub fn copy(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let flags: u8 = call.message.plain()?;
    let stream = call.handle(Kind::Stream)?;
    let mut copy = BoxCopy::read_any(call)?;
    let mut answer = None;
    match copy.travels {
        [true, false] => {
            let bytes = call.message.rest();
            if bytes.len() as u64 != copy.bytes {
                return Err(Stop::Malformed);
            }
            copy.copy.srcHost = bytes.as_ptr().cast();
        }
        [false, true] => {
            call.message.end()?;
            let spot = call.room(true, copy.bytes, 1)?;
            copy.copy.dstHost = spot.pointer(call.arena.base());
            answer = Some(spot);
        }
        [false, false] => call.message.end()?,
        [true, true] => return Err(Stop::Malformed),
    }
    let travels = copy.travels.contains(&true);
    if flags & !(ASYNC | PER_THREAD | STAGED) != 0 {
        return Err(Stop::Malformed);
    }
    let (driver, stream) = (call.driver, Word::from_bits(stream.real));
    let staged = flags & STAGED != 0;
    if (staged || travels) && flags & ASYNC != 0 {
        super::memcpy::refuse_capture(call, stream, flags)?;
    }
    call.begin_part(Symbol::cuMemcpy3DAsync_v2)?;
    if travels {
        call.server.traffic.count(CopyPath::Message, copy.bytes);
    }
    for (offset, bytes) in copy.parts.into_iter().flatten() {
        let pinned = call
            .server
            .area
            .get()
            .is_some_and(|area| area.is_pinned(offset, bytes));
        let path = match (staged, pinned) {
            (true, _) => CopyPath::Staged,
            (false, false) => CopyPath::Shared,
            (false, true) => CopyPath::Pinned,
        };
        call.server.traffic.count(path, copy.bytes);
    }
    let described = &raw const copy.copy;
    // SAFETY: both sides were checked: device memory and the data area have the bytes, and so has the message or the room
    // for the answer. Arrays are the driver's, which knows their sizes.
    let mut code = unsafe {
        match flags & !STAGED {
            0 => (driver.cuMemcpy3D_v2)(described),
            PER_THREAD => (driver.cuMemcpy3D_v2_ptds)(described),
            ASYNC => (driver.cuMemcpy3DAsync_v2)(described, stream),
            _ => (driver.cuMemcpy3DAsync_v2_ptsz)(described, stream),
        }
    };
    if flags & ASYNC != 0 && (staged || travels) && code == CUDA_SUCCESS {
        code = super::memcpy::wait_for(driver, flags, stream);
    }
    call.end_part(code);
    if let Some(spot) = answer.filter(|_| code == CUDA_SUCCESS) {
        call.answer.bytes(call.arena.read(spot));
    }
    Ok(code)
}
