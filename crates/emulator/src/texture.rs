//! Texture and surface objects: what memory they read, and how.

use crate::Result;
use crate::array::Array;
use crate::context::Context;
use crate::handle::{self, Handles};
use divvy_abi::*;
use divvy_ptx::{Addressing, Channel, Image, Texture};
use std::sync::{Arc, Weak};

/// CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: where linear memory may begin, in bytes.
const ALIGNMENT: u64 = 512;
/// CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT: what a row of it is a multiple of, in bytes.
const PITCH_ALIGNMENT: usize = 32;
/// The most texels of linear memory, by the guide's table of compute capabilities.
const MOST_TEXELS: usize = 1 << 28;
/// The most texels in a row of pitched memory, rows, and bytes of a row, by the same table.
const MOST_PITCHED: (usize, usize, usize) = (131_072, 65_000, 2_097_120);

/// What an object reads.
pub enum Source {
    /// An array, for as long as that lives.
    Array(Weak<Array>),
    /// Memory of the program: it is looked for at each launch.
    Memory(Image),
}

/// The program's own description, kept to be given back.
pub struct Resource(pub CUDA_RESOURCE_DESC);

// SAFETY: its pointers are handles of arrays, which are numbers here: none is followed.
unsafe impl Send for Resource {}
// SAFETY: as above.
unsafe impl Sync for Resource {}

/// A texture or a surface object.
pub struct Object {
    /// What the program holds.
    pub handle: u64,
    /// The context it belongs to.
    pub context: Arc<Context>,
    /// The texels' memory.
    pub source: Source,
    /// As the program gave it.
    pub resource: Resource,
    /// As the program gave it; None for a surface.
    pub sampling: Option<CUDA_TEXTURE_DESC>,
}

/// The live objects of this process. Kernels name them by their handles.
#[derive(Default)]
pub struct Objects {
    /// Texture objects.
    pub textures: Handles<Object>,
    /// Surface objects.
    pub surfaces: Handles<Object>,
}

impl Objects {
    /// Forgets the objects of a context that ends, by its id.
    pub fn forget_context(&self, id: u64) {
        for objects in [&self.textures, &self.surfaces] {
            objects.remove_all(|object| object.context.id == id);
        }
    }
}

/// What a channel is, by the driver's name of the format.
pub fn channel(format: CUarray_format) -> Result<Channel> {
    Ok(match format {
        CU_AD_FORMAT_UNSIGNED_INT8 => Channel::U8,
        CU_AD_FORMAT_SIGNED_INT8 => Channel::S8,
        CU_AD_FORMAT_UNSIGNED_INT16 => Channel::U16,
        CU_AD_FORMAT_SIGNED_INT16 => Channel::S16,
        CU_AD_FORMAT_UNSIGNED_INT32 => Channel::U32,
        CU_AD_FORMAT_SIGNED_INT32 => Channel::S32,
        CU_AD_FORMAT_HALF => Channel::F16,
        CU_AD_FORMAT_FLOAT => Channel::F32,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

impl Object {
    /// A checked texture object (with `sampling`) or surface object. `find` finds arrays.
    pub fn new(
        context: Arc<Context>,
        resource: CUDA_RESOURCE_DESC,
        sampling: Option<CUDA_TEXTURE_DESC>,
        find: impl Fn(CUarray) -> Result<Arc<Array>>,
    ) -> Result<Arc<Object>> {
        if resource.flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let source = source(&resource, sampling.is_some(), find)?;
        if let Some(sampling) = &sampling {
            check(sampling, &source)?;
        }
        Ok(Arc::new(Object {
            handle: handle::fresh(),
            context,
            source,
            resource: Resource(resource),
            sampling,
        }))
    }

    /// The texels as they are now, and the array that holds them, if one does. None where the array is gone.
    pub fn image(&self) -> Option<(Image, Option<Arc<Array>>)> {
        match &self.source {
            Source::Memory(image) => Some((*image, None)),
            Source::Array(array) => {
                let array = array.upgrade()?;
                Some((array.image().ok()?, Some(array)))
            }
        }
    }

    /// How a kernel reads the image.
    pub fn texture(&self, image: Image) -> Option<Texture> {
        let sampling = self.sampling.as_ref()?;
        let has = |flag: u32| sampling.flags & flag != 0;
        Some(Texture {
            image,
            addressing: sampling.addressMode.map(|mode| match mode {
                CU_TR_ADDRESS_MODE_WRAP => Addressing::Wrap,
                CU_TR_ADDRESS_MODE_MIRROR => Addressing::Mirror,
                CU_TR_ADDRESS_MODE_BORDER => Addressing::Border,
                _ => Addressing::Clamp,
            }),
            linear: sampling.filterMode == CU_TR_FILTER_MODE_LINEAR,
            normalised: has(CU_TRSF_NORMALIZED_COORDINATES),
            as_float: !has(CU_TRSF_READ_AS_INTEGER),
            border: sampling.borderColor,
            of_memory: self.resource.0.resType == CU_RESOURCE_TYPE_LINEAR,
        })
    }
}

/// Bytes that an image of the program's memory reaches over.
pub fn reach(image: &Image) -> u64 {
    let rows = u64::from(image.extent[1]);
    (rows - 1) * image.pitch + u64::from(image.extent[0]) * u64::from(image.texel_bytes())
}

fn source(
    resource: &CUDA_RESOURCE_DESC,
    texture: bool,
    find: impl Fn(CUarray) -> Result<Arc<Array>>,
) -> Result<Source> {
    let checked = |channels: u32, address: u64| {
        if matches!(channels, 1 | 2 | 4) && address != 0 && address.is_multiple_of(ALIGNMENT) {
            Ok(())
        } else {
            Err(CUDA_ERROR_INVALID_VALUE)
        }
    };
    match resource.resType {
        CU_RESOURCE_TYPE_ARRAY => {
            // SAFETY: the type says which field of the union the program set; any bits are a value of it.
            let array = find(unsafe { resource.res.array }.hArray)?;
            let flags = array.format.descriptor.Flags;
            if !texture && flags & CUDA_ARRAY3D_SURFACE_LDST == 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            if flags & CUDA_ARRAY3D_CUBEMAP != 0 {
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
            array.image()?;
            Ok(Source::Array(Arc::downgrade(&array)))
        }
        CU_RESOURCE_TYPE_LINEAR if texture => {
            // SAFETY: as above.
            let linear = unsafe { resource.res.linear };
            checked(linear.numChannels, linear.devPtr)?;
            let channel = channel(linear.format)?;
            let texels = linear.sizeInBytes / (channel.bytes() * linear.numChannels) as usize;
            if texels == 0 || texels > MOST_TEXELS {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            Ok(Source::Memory(Image {
                address: linear.devPtr,
                pitch: 0,
                slice: 0,
                extent: [texels as u32, 1, 1],
                channel,
                channels: linear.numChannels,
            }))
        }
        CU_RESOURCE_TYPE_PITCH2D if texture => {
            // SAFETY: as above.
            let plane = unsafe { resource.res.pitch2D };
            checked(plane.numChannels, plane.devPtr)?;
            let channel = channel(plane.format)?;
            let (width, height, pitch) = (plane.width, plane.height, plane.pitchInBytes);
            let sizes = (1..=MOST_PITCHED.0).contains(&width)
                && (1..=MOST_PITCHED.1).contains(&height)
                && pitch <= MOST_PITCHED.2;
            let row = width.saturating_mul((channel.bytes() * plane.numChannels) as usize);
            if !sizes || pitch < row || !pitch.is_multiple_of(PITCH_ALIGNMENT) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            Ok(Source::Memory(Image {
                address: plane.devPtr,
                pitch: pitch as u64,
                slice: 0,
                extent: [width as u32, height as u32, 1],
                channel,
                channels: plane.numChannels,
            }))
        }
        CU_RESOURCE_TYPE_MIPMAPPED_ARRAY if texture => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn check(sampling: &CUDA_TEXTURE_DESC, source: &Source) -> Result {
    let known = CU_TRSF_READ_AS_INTEGER
        | CU_TRSF_NORMALIZED_COORDINATES
        | CU_TRSF_SRGB
        | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION
        | CU_TRSF_SEAMLESS_CUBEMAP;
    let modes = sampling
        .addressMode
        .iter()
        .all(|mode| mode.0 <= CU_TR_ADDRESS_MODE_BORDER.0);
    if !modes || sampling.filterMode.0 > CU_TR_FILTER_MODE_LINEAR.0 || sampling.flags & !known != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if sampling.flags & CU_TRSF_SRGB != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let channel = match source {
        Source::Memory(image) => image.channel,
        Source::Array(array) => {
            let array = array.upgrade().ok_or(CUDA_ERROR_INVALID_VALUE)?;
            channel(array.format.descriptor.Format)?
        }
    };
    let whole = match channel {
        Channel::F16 | Channel::F32 => false,
        Channel::U32 | Channel::S32 => true,
        _ => sampling.flags & CU_TRSF_READ_AS_INTEGER != 0,
    };
    // There is nothing between whole numbers.
    if whole && sampling.filterMode == CU_TR_FILTER_MODE_LINEAR {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}
