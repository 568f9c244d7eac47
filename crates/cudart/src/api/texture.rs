//! Textures and surfaces, as objects.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use super::array::format;
use crate::prelude::*;

/// What an object was made of, as the program said it: the driver describes it in other words.
#[derive(Clone, Copy)]
struct Made {
    resource: Resource,
    texture: Option<cudaTextureDesc>,
    view: Option<View>,
}

/// A resource's description: CUDA 13's has room behind CUDA 12's.
#[derive(Clone, Copy)]
struct Resource {
    kind: cudaResourceType,
    of: cudaResourceDesc_res,
    flags: u32,
}

// SAFETY: handles and addresses, which may be used by any thread.
unsafe impl Send for Resource {}

/// A view's description without its reserve.
#[derive(Clone, Copy)]
struct View {
    format: cudaResourceViewFormat,
    size: [usize; 3],
    levels: [u32; 2],
    layers: [u32; 2],
}

static MADE: LazyLock<Mutex<HashMap<(bool, u64), Made>>> = LazyLock::new(Mutex::default);

fn remember(surface: bool, object: u64, made: Made) {
    MADE.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert((surface, object), made);
}

fn forget(surface: bool, object: u64) {
    MADE.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&(surface, object));
}

fn made(surface: bool, object: u64) -> Result<Made> {
    let made = MADE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&(surface, object))
        .copied();
    made.ok_or(cudaErrorInvalidValue)
}

/// CUDA 12's description: its union ends where the longest of its members does.
///
/// # Safety
/// `given` is null or points to such.
unsafe fn resource_12(given: *const cudaResourceDesc_12) -> Result<Resource> {
    refuse(given.is_null(), cudaErrorInvalidValue)?;
    // SAFETY: it is not null, and the caller vouches for it; the union's first bytes are laid out alike.
    unsafe {
        let given = &*given;
        let mut of = cudaResourceDesc_res::default();
        core::ptr::copy_nonoverlapping(
            (&raw const given.res).cast::<u8>(),
            (&raw mut of).cast::<u8>(),
            size_of::<cudaResourceDesc_res_12>(),
        );
        Ok(Resource {
            kind: given.resType,
            of,
            flags: 0,
        })
    }
}

/// # Safety
/// `given` is null or points to such.
unsafe fn resource(given: *const cudaResourceDesc) -> Result<Resource> {
    refuse(given.is_null(), cudaErrorInvalidValue)?;
    // SAFETY: it is not null, and the caller vouches for it.
    let given = unsafe { &*given };
    Ok(Resource {
        kind: given.resType,
        of: given.res,
        flags: given.flags,
    })
}

impl Resource {
    /// As the driver describes it.
    fn described(&self) -> Result<CUDA_RESOURCE_DESC> {
        let mut out = CUDA_RESOURCE_DESC {
            resType: CUresourcetype(self.kind.0),
            flags: self.flags,
            ..Default::default()
        };
        // SAFETY: the kind says which member was written, and any bytes are one of each.
        unsafe {
            match self.kind {
                cudaResourceTypeArray => out.res.array.hArray = self.of.array.array.cast(),
                cudaResourceTypeMipmappedArray => {
                    out.res.mipmap.hMipmappedArray = self.of.mipmap.mipmap.cast();
                }
                cudaResourceTypeLinear => {
                    let linear = self.of.linear;
                    let (format, channels) = format(&linear.desc)?;
                    out.res.linear.devPtr = linear.devPtr as CUdeviceptr;
                    out.res.linear.format = format;
                    out.res.linear.numChannels = channels;
                    out.res.linear.sizeInBytes = linear.sizeInBytes;
                }
                cudaResourceTypePitch2D => {
                    let pitched = self.of.pitch2D;
                    let (format, channels) = format(&pitched.desc)?;
                    out.res.pitch2D.devPtr = pitched.devPtr as CUdeviceptr;
                    out.res.pitch2D.format = format;
                    out.res.pitch2D.numChannels = channels;
                    out.res.pitch2D.width = pitched.width;
                    out.res.pitch2D.height = pitched.height;
                    out.res.pitch2D.pitchInBytes = pitched.pitchInBytes;
                }
                _ => return Err(cudaErrorInvalidValue),
            }
        }
        Ok(out)
    }
}

fn described(texture: &cudaTextureDesc) -> CUDA_TEXTURE_DESC {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    CUDA_TEXTURE_DESC {
        addressMode: texture.addressMode.map(|mode| CUaddress_mode(mode.0)),
        filterMode: CUfilter_mode(texture.filterMode.0),
        flags: flag(
            texture.readMode == cudaReadModeElementType,
            CU_TRSF_READ_AS_INTEGER,
        ) | flag(texture.normalizedCoords != 0, CU_TRSF_NORMALIZED_COORDINATES)
            | flag(texture.sRGB != 0, CU_TRSF_SRGB)
            | flag(
                texture.disableTrilinearOptimization != 0,
                CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION,
            )
            | flag(texture.seamlessCubemap != 0, CU_TRSF_SEAMLESS_CUBEMAP),
        maxAnisotropy: texture.maxAnisotropy,
        mipmapFilterMode: CUfilter_mode(texture.mipmapFilterMode.0),
        mipmapLevelBias: texture.mipmapLevelBias,
        minMipmapLevelClamp: texture.minMipmapLevelClamp,
        maxMipmapLevelClamp: texture.maxMipmapLevelClamp,
        borderColor: texture.borderColor,
        ..Default::default()
    }
}

/// # Safety
/// The pointers are null or point to such.
unsafe fn create(
    object: *mut cudaTextureObject_t,
    resource: Resource,
    texture: *const cudaTextureDesc,
    view: Option<View>,
) -> Result<()> {
    refuse(object.is_null() || texture.is_null(), cudaErrorInvalidValue)?;
    context()?;
    // SAFETY: they are not null, and the caller vouches for them.
    unsafe {
        let of = resource.described()?;
        let texture = *texture;
        let sampled = described(&texture);
        let viewed = view.map(|view| CUDA_RESOURCE_VIEW_DESC {
            format: CUresourceViewFormat(view.format.0),
            width: view.size[0],
            height: view.size[1],
            depth: view.size[2],
            firstMipmapLevel: view.levels[0],
            lastMipmapLevel: view.levels[1],
            firstLayer: view.layers[0],
            lastLayer: view.layers[1],
            ..Default::default()
        });
        let viewed = viewed.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        cu!(cuTexObjectCreate(object, &of, &sampled, viewed));
        remember(
            false,
            *object,
            Made {
                resource,
                texture: Some(texture),
                view,
            },
        );
    }
    Ok(())
}

/// # Safety
/// `object` is null or points to such.
unsafe fn create_surface(object: *mut cudaSurfaceObject_t, resource: Resource) -> Result<()> {
    refuse(object.is_null(), cudaErrorInvalidValue)?;
    refuse(resource.kind != cudaResourceTypeArray, cudaErrorInvalidValue)?;
    context()?;
    let of = resource.described()?;
    // SAFETY: it is not null, and the caller vouches for it.
    unsafe {
        cu!(cuSurfObjectCreate(object, &of));
        remember(
            true,
            *object,
            Made {
                resource,
                texture: None,
                view: None,
            },
        );
    }
    Ok(())
}

macro_rules! view {
    ($given:expr) => {
        $given.as_ref().map(|view| View {
            format: view.format,
            size: [view.width, view.height, view.depth],
            levels: [view.firstMipmapLevel, view.lastMipmapLevel],
            layers: [view.firstLayer, view.lastLayer],
        })
    };
}

macro_rules! write_view {
    ($to:expr, $view:expr) => {{
        refuse($to.is_null(), cudaErrorInvalidValue)?;
        let view = $view.ok_or(cudaErrorInvalidValue)?;
        let to = &mut *$to;
        to.format = view.format;
        [to.width, to.height, to.depth] = view.size;
        [to.firstMipmapLevel, to.lastMipmapLevel] = view.levels;
        [to.firstLayer, to.lastLayer] = view.layers;
        Ok(())
    }};
}

/// # Safety
/// `to` is null or points to such.
unsafe fn write_resource(to: *mut cudaResourceDesc, made: Made) -> Result<()> {
    refuse(to.is_null(), cudaErrorInvalidValue)?;
    // SAFETY: it is not null, and the caller vouches for it.
    unsafe {
        *to = cudaResourceDesc {
            resType: made.resource.kind,
            res: made.resource.of,
            flags: made.resource.flags,
        };
    }
    Ok(())
}

/// # Safety
/// `to` is null or points to such.
unsafe fn write_resource_12(to: *mut cudaResourceDesc_12, made: Made) -> Result<()> {
    refuse(to.is_null(), cudaErrorInvalidValue)?;
    // SAFETY: it is not null, and the caller vouches for it; the unions' first bytes are laid out alike.
    unsafe {
        (*to).resType = made.resource.kind;
        core::ptr::copy_nonoverlapping(
            (&raw const made.resource.of).cast::<u8>(),
            (&raw mut (*to).res).cast::<u8>(),
            size_of::<cudaResourceDesc_res_12>(),
        );
    }
    Ok(())
}

entry! {
    cudaCreateTextureObject(
        pTexObject: *mut cudaTextureObject_t, pResDesc: *const cudaResourceDesc, pTexDesc: *const cudaTextureDesc,
        pResViewDesc: *const cudaResourceViewDesc,
    ) {
        create(pTexObject, resource(pResDesc)?, pTexDesc, view!(pResViewDesc))
    }

    cudaCreateTextureObject_12(
        pTexObject: *mut cudaTextureObject_t, pResDesc: *const cudaResourceDesc_12, pTexDesc: *const cudaTextureDesc,
        pResViewDesc: *const cudaResourceViewDesc_12,
    ) {
        create(pTexObject, resource_12(pResDesc)?, pTexDesc, view!(pResViewDesc))
    }

    cudaDestroyTextureObject(texObject: cudaTextureObject_t) {
        context()?;
        if texObject == 0 {
            return Ok(());
        }
        cu!(cuTexObjectDestroy(texObject));
        forget(false, texObject);
        Ok(())
    }

    cudaGetTextureObjectResourceDesc(pResDesc: *mut cudaResourceDesc, texObject: cudaTextureObject_t) {
        write_resource(pResDesc, made(false, texObject)?)
    }

    cudaGetTextureObjectResourceDesc_12(pResDesc: *mut cudaResourceDesc_12, texObject: cudaTextureObject_t) {
        write_resource_12(pResDesc, made(false, texObject)?)
    }

    cudaGetTextureObjectTextureDesc(pTexDesc: *mut cudaTextureDesc, texObject: cudaTextureObject_t) {
        refuse(pTexDesc.is_null(), cudaErrorInvalidValue)?;
        *pTexDesc = made(false, texObject)?.texture.ok_or(cudaErrorInvalidValue)?;
        Ok(())
    }

    cudaGetTextureObjectResourceViewDesc(pResViewDesc: *mut cudaResourceViewDesc, texObject: cudaTextureObject_t) {
        write_view!(pResViewDesc, made(false, texObject)?.view)
    }

    cudaGetTextureObjectResourceViewDesc_12(
        pResViewDesc: *mut cudaResourceViewDesc_12, texObject: cudaTextureObject_t,
    ) {
        write_view!(pResViewDesc, made(false, texObject)?.view)
    }

    cudaCreateSurfaceObject(pSurfObject: *mut cudaSurfaceObject_t, pResDesc: *const cudaResourceDesc) {
        create_surface(pSurfObject, resource(pResDesc)?)
    }

    cudaCreateSurfaceObject_12(pSurfObject: *mut cudaSurfaceObject_t, pResDesc: *const cudaResourceDesc_12) {
        create_surface(pSurfObject, resource_12(pResDesc)?)
    }

    cudaDestroySurfaceObject(surfObject: cudaSurfaceObject_t) {
        context()?;
        if surfObject == 0 {
            return Ok(());
        }
        cu!(cuSurfObjectDestroy(surfObject));
        forget(true, surfObject);
        Ok(())
    }

    cudaGetSurfaceObjectResourceDesc(pResDesc: *mut cudaResourceDesc, surfObject: cudaSurfaceObject_t) {
        write_resource(pResDesc, made(true, surfObject)?)
    }

    cudaGetSurfaceObjectResourceDesc_12(pResDesc: *mut cudaResourceDesc_12, surfObject: cudaSurfaceObject_t) {
        write_resource_12(pResDesc, made(true, surfObject)?)
    }
}
