//! CUDA arrays and mipmaps. Rules and codes are those of the driver API's manual, "Memory Management".

use super::args::{Handle, In, Out};
use super::capture::unsafe_call;
use super::current;
use super::memory::take;
use crate::Result;
use crate::array::{ALIGNMENT, Array, Format, Mipmap, levels};
use crate::context::Context;
use crate::driver::{Driver, driver};
use crate::handle;
use crate::memory::allocation::{Allocation, Backing, Kind};
use divvy_abi::*;
use std::sync::Arc;

entry! {
    fn cuArrayCreate_v2(array: Out<CUarray>, descriptor: In<CUDA_ARRAY_DESCRIPTOR>) {
        array.required()?;
        let flat = descriptor.get()?;
        create(&array, CUDA_ARRAY3D_DESCRIPTOR {
            Width: flat.Width,
            Height: flat.Height,
            Depth: 0,
            Format: flat.Format,
            NumChannels: flat.NumChannels,
            Flags: 0,
        })
    }

    fn cuArray3DCreate_v2(array: Out<CUarray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>) {
        array.required()?;
        create(&array, descriptor.get()?)
    }

    fn cuArrayGetDescriptor_v2(descriptor: Out<CUDA_ARRAY_DESCRIPTOR>, array: Handle<CUarray>) {
        let found = known(driver()?, array.0)?.format.descriptor;
        descriptor.set(CUDA_ARRAY_DESCRIPTOR {
            Width: found.Width,
            Height: found.Height,
            Format: found.Format,
            NumChannels: found.NumChannels,
        })
    }

    fn cuArray3DGetDescriptor_v2(descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR>, array: Handle<CUarray>) {
        descriptor.set(known(driver()?, array.0)?.format.descriptor)
    }

    fn cuArrayDestroy(array: Handle<CUarray>) {
        unsafe_call()?;
        let driver = driver()?;
        let found = known(driver, array.0)?;
        if found.is_level {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        found.context.drain();
        driver.arrays.remove(array.0).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    // Only an array without memory of its own, for which the program gives memory later, has requirements.
    fn cuArrayGetMemoryRequirements(
        requirements: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>, array: Handle<CUarray>, device: CUdevice
    ) {
        let driver = driver()?;
        let format = known(driver, array.0)?.format;
        driver.device(device)?;
        require(&requirements, &format, format.bytes())
    }

    // There are no sparse arrays.
    fn cuArrayGetSparseProperties(properties: Out<CUDA_ARRAY_SPARSE_PROPERTIES>, array: Handle<CUarray>) {
        properties.required()?;
        known(driver()?, array.0)?;
        Err(CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMipmappedArrayCreate(
        mipmap: Out<CUmipmappedArray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>, asked: u32
    ) {
        mipmap.required()?;
        unsafe_call()?;
        let context = current::usable()?;
        let format = Format::check(descriptor.get()?)?;
        let (levels, bytes) = levels(&format, asked);
        let memory = memory(&context, &format, bytes)?;
        let made = mipmap_of(driver()?, &context, format, levels, bytes, memory.map(|memory| (memory, 0)));
        mipmap.set(made as CUmipmappedArray)
    }

    fn cuMipmappedArrayGetLevel(array: Out<CUarray>, mipmap: Handle<CUmipmappedArray>, level: u32) {
        let mipmap = known_mipmap(driver()?, mipmap.0)?;
        let level = mipmap.levels.get(level as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        array.set(*level as CUarray)
    }

    fn cuMipmappedArrayDestroy(mipmap: Handle<CUmipmappedArray>) {
        unsafe_call()?;
        let driver = driver()?;
        known_mipmap(driver, mipmap.0)?.context.drain();
        let gone = driver.mipmaps.remove(mipmap.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        for &level in &gone.levels {
            driver.arrays.remove(level);
        }
        Ok(())
    }

    fn cuMipmappedArrayGetMemoryRequirements(
        requirements: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>, mipmap: Handle<CUmipmappedArray>, device: CUdevice
    ) {
        let driver = driver()?;
        let mipmap = known_mipmap(driver, mipmap.0)?;
        driver.device(device)?;
        require(&requirements, &mipmap.format, mipmap.bytes)
    }

    fn cuMipmappedArrayGetSparseProperties(
        properties: Out<CUDA_ARRAY_SPARSE_PROPERTIES>, mipmap: Handle<CUmipmappedArray>
    ) {
        properties.required()?;
        known_mipmap(driver()?, mipmap.0)?;
        Err(CUDA_ERROR_INVALID_VALUE)
    }
}

/// A live array.
pub fn known(driver: &Driver, array: u64) -> Result<Arc<Array>> {
    driver.arrays.get(array).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// The array that a copy names. The manual knows one code for everything that is wrong with a copy.
pub fn copied(array: u64) -> Result<Arc<Array>> {
    known(driver()?, array).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

fn known_mipmap(driver: &Driver, mipmap: u64) -> Result<Arc<Mipmap>> {
    driver.mipmaps.get(mipmap).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn create(out: &Out<CUarray>, descriptor: CUDA_ARRAY3D_DESCRIPTOR) -> Result {
    unsafe_call()?;
    let context = current::usable()?;
    let format = Format::check(descriptor)?;
    let memory = memory(&context, &format, format.bytes())?;
    let array = Array::new(context, format, memory.map(|memory| (memory, 0)), false);
    driver()?.arrays.insert(array.handle, Arc::clone(&array));
    out.set(array.handle as CUarray)
}

/// Device memory that has no address for the program: no pointer names it.
fn memory(context: &Arc<Context>, format: &Format, bytes: u64) -> Result<Option<Arc<Allocation>>> {
    if format.is_deferred() {
        return Ok(None);
    }
    let extent = Arc::new(take(context, &context.device.array_heap, bytes)?);
    let (base, device) = (extent.address(), context.device.ordinal);
    let backing = Backing::Device(extent);
    let allocation = Allocation::new(base, bytes, Kind::Device, context.handle, device, backing);
    Ok(Some(Arc::new(allocation)))
}

/// A mipmap and the arrays of its levels in memory that starts at an offset; gives its handle.
pub fn mipmap_of(
    driver: &Driver,
    context: &Arc<Context>,
    format: Format,
    levels: Vec<(Format, u64)>,
    bytes: u64,
    memory: Option<(Arc<Allocation>, u64)>,
) -> u64 {
    let arrays = levels.into_iter().map(|(level, at)| {
        let memory = memory
            .as_ref()
            .map(|(memory, start)| (Arc::clone(memory), start + at));
        let array = Array::new(Arc::clone(context), level, memory, true);
        driver.arrays.insert(array.handle, Arc::clone(&array));
        array.handle
    });
    let mipmap = Mipmap {
        handle: handle::fresh(),
        context: Arc::clone(context),
        format,
        levels: arrays.collect(),
        bytes,
    };
    let handle = mipmap.handle;
    driver.mipmaps.insert(handle, Arc::new(mipmap));
    handle
}

fn require(out: &Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>, format: &Format, bytes: u64) -> Result {
    if !format.is_deferred() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.set(CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size: bytes as usize,
        alignment: ALIGNMENT as usize,
        reserved: [0; 4],
    })
}
