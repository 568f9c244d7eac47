//! Texture and surface objects: what they name is looked up, and the driver's numbers of the program's own are kept.

use std::collections::HashMap;

use divvy_abi::*;

use super::{Call, Stop};
use crate::handle::{Id, Kind, Word};

/// The objects of a connection by whether they are surfaces, and by the driver's number: what each goes with.
#[derive(Default)]
pub struct Textures {
    all: HashMap<(bool, u64), Option<Id>>,
    /// Those that a call is about to destroy.
    ending: usize,
}

impl Textures {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len() + self.ending
    }

    /// What goes with these objects is gone.
    pub fn forget(&mut self, gone: &[Id]) {
        if !self.all.is_empty() {
            self.all
                .retain(|_, with| with.is_none_or(|with| !gone.contains(&with)));
        }
    }
}

/// Bytes of a texel; nothing where the format is none of those that memory has.
fn texel_bytes(format: u32, channels: u64) -> Option<u64> {
    let bytes = match CUarray_format(format) {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
        CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => 4,
        _ => return None,
    };
    matches!(channels, 1 | 2 | 4).then(|| bytes * channels)
}

/// What the object shows, checked: an array of the program's, or device memory with all the bytes that are said.
fn resource(call: &mut Call<'_>) -> Result<CUDA_RESOURCE_DESC, Stop> {
    const INVALID: Stop = Stop::Code(CUDA_ERROR_INVALID_VALUE);
    let kind = CUresourcetype(call.message.plain()?);
    let flags: u32 = call.message.plain()?;
    let mut words = [0_u64; 6];
    for word in &mut words {
        *word = call.message.plain()?;
    }
    let [named, format, channels, first, height, pitch] = words;
    let mut of = CUDA_RESOURCE_DESC {
        resType: kind,
        flags,
        ..CUDA_RESOURCE_DESC::default()
    };
    let of_memory = || -> Result<(u32, u32, u64), Stop> {
        let format = u32::try_from(format).map_err(|_| INVALID)?;
        let texel = texel_bytes(format, channels).ok_or(INVALID)?;
        Ok((format, channels as u32, texel))
    };
    match kind {
        CU_RESOURCE_TYPE_ARRAY => {
            let array = call.real(Kind::Array, named)?;
            of.res.array.hArray = Word::from_bits(array);
        }
        CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => {
            let array = call.real(Kind::MipmappedArray, named)?;
            of.res.mipmap.hMipmappedArray = Word::from_bits(array);
        }
        CU_RESOURCE_TYPE_LINEAR => {
            let (format, channels, _) = of_memory()?;
            call.within(named, first.max(1))?;
            of.res.linear = CUDA_RESOURCE_DESC_v1_res_linear {
                devPtr: named,
                format: CUarray_format(format),
                numChannels: channels,
                sizeInBytes: first as usize,
            };
        }
        CU_RESOURCE_TYPE_PITCH2D => {
            let (format, channels, texel) = of_memory()?;
            let width = first.checked_mul(texel).ok_or(INVALID)?;
            if pitch < width || height == 0 || width == 0 {
                return Err(INVALID);
            }
            // The driver may read whole rows.
            call.within(named, (height - 1).saturating_mul(pitch).saturating_add(width))?;
            of.res.pitch2D = CUDA_RESOURCE_DESC_v1_res_pitch2D {
                devPtr: named,
                format: CUarray_format(format),
                numChannels: channels,
                width: first as usize,
                height: height as usize,
                pitchInBytes: pitch as usize,
            };
        }
        _ => return Err(INVALID),
    }
    Ok(of)
}

/// A structure of numbers that a message may have.
///
/// # Safety
/// Any bytes are a value of `T`.
unsafe fn optional<T>(call: &mut Call<'_>) -> Result<Option<T>, Stop> {
    if !call.message.flag()? {
        return Ok(None);
    }
    let bytes = call.message.bytes(size_of::<T>())?;
    // SAFETY: there are as many bytes, the caller vouches for their value, and the read asks for no alignment.
    Ok(Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }))
}

fn pointer<T>(of: &Option<T>) -> *const T {
    of.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
}

/// Makes an object: whether it is a surface, what it shows, how it is sampled, and a view. The answer is its number.
pub fn create(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let is_surface = call.message.flag()?;
    let resource = resource(call)?;
    // SAFETY: both are numbers, and any bits are one.
    let (sampling, view) = unsafe {
        (
            optional::<CUDA_TEXTURE_DESC>(call)?,
            optional::<CUDA_RESOURCE_VIEW_DESC>(call)?,
        )
    };
    call.message.end()?;
    if call.server.tables().textures.len() >= call.server.quota.objects {
        return Err(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY));
    }
    let with = call.current();
    let (mut object, resource) = (0_u64, &raw const resource);
    // SAFETY: the driver reads structures of ours and writes one number. What they name is the program's.
    let code = unsafe {
        match is_surface {
            true => (call.driver.cuSurfObjectCreate)(&raw mut object, resource),
            false => {
                let (sampling, view) = (pointer(&sampling), pointer(&view));
                (call.driver.cuTexObjectCreate)(&raw mut object, resource, sampling, view)
            }
        }
    };
    if code == CUDA_SUCCESS {
        call.server
            .tables()
            .textures
            .all
            .insert((is_surface, object), with);
        call.answer.plain(object);
    }
    Ok(code)
}

/// Destroys one: whether it is a surface, and its number.
pub fn destroy(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let is_surface = call.message.flag()?;
    let object: u64 = call.message.plain()?;
    call.message.end()?;
    let with = {
        let textures = &mut call.server.tables().textures;
        let with = textures.all.remove(&(is_surface, object));
        // Another call finds it no more, and it counts until it is gone.
        textures.ending += usize::from(with.is_some());
        with.ok_or(Stop::Code(CUDA_ERROR_INVALID_VALUE))?
    };
    // SAFETY: the object is one that the driver made for this program, and this call alone destroys it.
    let code = unsafe {
        match is_surface {
            true => (call.driver.cuSurfObjectDestroy)(object),
            false => (call.driver.cuTexObjectDestroy)(object),
        }
    };
    let textures = &mut call.server.tables().textures;
    textures.ending -= 1;
    if code != CUDA_SUCCESS {
        textures.all.insert((is_surface, object), with);
    }
    Ok(code)
}
