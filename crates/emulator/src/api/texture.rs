//! Texture and surface objects. Rules and codes are those of the driver API's manual, "Texture Object Management" and
//! "Surface Object Management".

use super::args::{In, Out};
use super::{array, current};
use crate::Result;
use crate::driver::{Driver, driver};
use crate::handle::Handles;
use crate::texture::Object;
use divvy_abi::*;
use std::sync::Arc;

entry! {
    fn cuTexObjectCreate(
        object: Out<CUtexObject>, resource: In<CUDA_RESOURCE_DESC>, sampling: In<CUDA_TEXTURE_DESC>,
        view: In<CUDA_RESOURCE_VIEW_DESC>
    ) {
        object.required()?;
        let driver = driver()?;
        let (resource, sampling) = (resource.get()?, sampling.get()?);
        // A view shows the texels as those of another format, or a part of the layers.
        if !view.pointer().is_null() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let made = make(driver, resource, Some(sampling))?;
        driver.objects.textures.insert(made.handle, Arc::clone(&made));
        object.set(made.handle)
    }

    fn cuTexObjectDestroy(object: CUtexObject) {
        destroy(&driver()?.objects.textures, object)
    }

    fn cuTexObjectGetResourceDesc(resource: Out<CUDA_RESOURCE_DESC>, object: CUtexObject) {
        resource.set(known(&driver()?.objects.textures, object)?.resource.0)
    }

    fn cuTexObjectGetTextureDesc(sampling: Out<CUDA_TEXTURE_DESC>, object: CUtexObject) {
        let object = known(&driver()?.objects.textures, object)?;
        sampling.set(object.sampling.ok_or(CUDA_ERROR_INVALID_VALUE)?)
    }

    // No texture has a view.
    fn cuTexObjectGetResourceViewDesc(view: Out<CUDA_RESOURCE_VIEW_DESC>, object: CUtexObject) {
        view.required()?;
        known(&driver()?.objects.textures, object)?;
        Err(CUDA_ERROR_INVALID_VALUE)
    }

    fn cuSurfObjectCreate(object: Out<CUsurfObject>, resource: In<CUDA_RESOURCE_DESC>) {
        object.required()?;
        let driver = driver()?;
        let made = make(driver, resource.get()?, None)?;
        driver.objects.surfaces.insert(made.handle, Arc::clone(&made));
        object.set(made.handle)
    }

    fn cuSurfObjectDestroy(object: CUsurfObject) {
        destroy(&driver()?.objects.surfaces, object)
    }

    fn cuSurfObjectGetResourceDesc(resource: Out<CUDA_RESOURCE_DESC>, object: CUsurfObject) {
        resource.set(known(&driver()?.objects.surfaces, object)?.resource.0)
    }
}

fn make(
    driver: &Driver,
    resource: CUDA_RESOURCE_DESC,
    sampling: Option<CUDA_TEXTURE_DESC>,
) -> Result<Arc<Object>> {
    let context = current::usable()?;
    Object::new(context, resource, sampling, |named| {
        array::known(driver, named as u64)
    })
}

fn known(objects: &Handles<Object>, object: u64) -> Result<Arc<Object>> {
    objects.get(object).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Kernels that were submitted before may still read it.
fn destroy(objects: &Handles<Object>, object: u64) -> Result {
    known(objects, object)?.context.drain();
    objects.remove(object).map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
}
