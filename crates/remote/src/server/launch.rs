//! Launches: the parameters come as one run of bytes, laid out as the kernel declares them.

use std::sync::Arc;

use divvy_abi::*;

use super::arguments::Used;
use super::{Call, Stop};
use crate::handle::{Id, Kind, Word};
use crate::wire::by_hand::{COOPERATIVE, PER_THREAD};

/// So many parameters may a kernel have: each has a byte at least, and all of them 32,764 bytes.
const MOST_PARAMETERS: usize = 32_764;

/// Where each parameter of a kernel lies: its offset and its size, in bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Layout(pub Vec<(u32, u32)>);

impl Layout {
    /// Bytes that [`tell`] writes of it.
    pub fn told_bytes(&self) -> usize {
        4 + 8 * self.0.len() + 4 * 8
    }

    /// Bytes that the parameters take.
    pub fn bytes(&self) -> usize {
        let ends = self
            .0
            .iter()
            .map(|(offset, size)| *offset as usize + *size as usize);
        ends.max().unwrap_or(0)
    }
}

/// The layout of a function's parameters: a count, then offset and size of each.
pub fn layout(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let function = call.handle(Kind::Function)?;
    call.message.end()?;
    let layout = of(call, function)?;
    tell(call, function, &layout);
    Ok(CUDA_SUCCESS)
}

/// Writes what a launch of a function needs: a count of parameters, offset and size of each, then eight limits.
pub fn tell(call: &mut Call<'_>, function: Used, layout: &Layout) {
    call.answer.count(Some(layout.0.len()));
    for (offset, size) in &layout.0 {
        call.answer.plain(*offset);
        call.answer.plain(*size);
    }
    for limit in limits(call.driver, function) {
        call.answer.plain(limit);
    }
}

/// What a launch of a kernel may ask for: blocks and threads in each direction, threads of a block, bytes of dynamic shared
/// memory. What the driver below does not tell is not limited here.
fn limits(driver: &Table, function: Used) -> [u32; 8] {
    let mut limits = [u32::MAX; 8];
    let mut device = 0;
    // SAFETY: the driver writes one number to memory of ours.
    if unsafe { (driver.cuCtxGetDevice)(&raw mut device) } != CUDA_SUCCESS {
        return limits;
    }
    let of_device = |attribute| {
        let mut value = 0;
        // SAFETY: as above.
        let code = unsafe { (driver.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
        (code == CUDA_SUCCESS).then_some(value)
    };
    let kernel = function.id().is_some_and(|id| id.kind() == Kind::Kernel);
    let of_function = |attribute| {
        let mut value = 0;
        // SAFETY: as above, and the handle is the driver's.
        let code = unsafe {
            match kernel {
                true => {
                    let kernel = Word::from_bits(function.real);
                    (driver.cuKernelGetAttribute)(&raw mut value, attribute, kernel, device)
                }
                false => {
                    (driver.cuFuncGetAttribute)(&raw mut value, attribute, Word::from_bits(function.real))
                }
            }
        };
        (code == CUDA_SUCCESS).then_some(value)
    };
    let sizes = [
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
    ];
    for (limit, attribute) in limits.iter_mut().zip(sizes) {
        *limit = of_device(attribute).map_or(u32::MAX, |value| value.max(0) as u32);
    }
    limits[6] =
        of_function(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK).map_or(u32::MAX, |value| value.max(0) as u32);
    let by_default = of_device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)
        .zip(of_function(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES))
        .map(|(all, own)| all - own);
    let opted_in = of_function(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    limits[7] = by_default.zip(opted_in).map_or(u32::MAX, |(default, opted_in)| {
        default.max(opted_in).max(0) as u32
    });
    limits
}

/// Sets an attribute of a kernel: the function, the attribute, the value, the device.
pub fn set_attribute(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let function = call.handle(Kind::Function)?;
    let attribute = CUfunction_attribute(call.message.plain()?);
    let (value, device): (i32, CUdevice) = (call.message.plain()?, call.message.plain()?);
    call.message.end()?;
    // SAFETY: the handle is the driver's.
    Ok(unsafe {
        match function.id().map(Id::kind) {
            Some(Kind::Kernel) => {
                let kernel = Word::from_bits(function.real);
                (call.driver.cuKernelSetAttribute)(attribute, value, kernel, device)
            }
            _ => (call.driver.cuFuncSetAttribute)(Word::from_bits(function.real), attribute, value),
        }
    })
}

/// The list of pointers to a kernel's parameters, whose values are these bytes.
pub fn list(call: &mut Call<'_>, function: Used, bytes: &[u8]) -> Result<*mut *mut c_void, Stop> {
    let layout = of(call, function)?;
    if bytes.len() < layout.bytes() {
        return Err(Stop::Code(CUDA_ERROR_INVALID_VALUE));
    }
    let values = call.arena.keep(Some(bytes))?;
    let list = call.arena.zeros(8 * layout.0.len() as u64)?;
    let base = call.arena.base();
    let first = values.pointer::<u8>(base).addr() as u64;
    let (places, _) = call.arena.bytes_mut(list).as_chunks_mut();
    for ((offset, _), place) in layout.0.iter().zip(places) {
        *place = (first + u64::from(*offset)).to_le_bytes();
    }
    let base = call.arena.base();
    Ok(match layout.0.is_empty() {
        true => std::ptr::null_mut(),
        false => list.pointer(base),
    })
}

/// A launch: flags, function, grid, block, shared bytes, stream, then the parameters' bytes.
pub fn launch(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let flags: u8 = call.message.plain()?;
    let function = call.handle(Kind::Function)?;
    let mut shape = [0_u32; 7];
    for number in &mut shape {
        *number = call.message.plain()?;
    }
    let stream = call.handle(Kind::Stream)?;
    let bytes = call.message.rest();
    let parameters = list(call, function, bytes)?;
    call.begin_part(Symbol::cuLaunchKernel)?;
    let [x, y, z, width, height, depth, shared] = shape;
    let (driver, stream) = (call.driver, Word::from_bits(stream.real));
    let f = Word::from_bits(function.real);
    let none = std::ptr::null_mut();
    // SAFETY: the function and the stream are the driver's. The list has a pointer for each parameter, to as many bytes
    // in the arena as the driver said of it.
    let code = unsafe {
        match flags {
            0 => (driver.cuLaunchKernel)(f, x, y, z, width, height, depth, shared, stream, parameters, none),
            PER_THREAD => (driver.cuLaunchKernel_ptsz)(
                f, x, y, z, width, height, depth, shared, stream, parameters, none,
            ),
            COOPERATIVE => (driver.cuLaunchCooperativeKernel)(
                f, x, y, z, width, height, depth, shared, stream, parameters,
            ),
            3 => (driver.cuLaunchCooperativeKernel_ptsz)(
                f, x, y, z, width, height, depth, shared, stream, parameters,
            ),
            _ => return Err(Stop::Malformed),
        }
    };
    call.end_part(code);
    Ok(code)
}

/// The layout of a function, which the driver is asked for once.
pub fn of(call: &Call<'_>, function: Used) -> Result<Arc<Layout>, Stop> {
    let id = function.id().ok_or(Stop::Code(CUDA_ERROR_INVALID_HANDLE))?;
    if let Some(known) = call.server.tables().layouts.get(&id) {
        return Ok(Arc::clone(known));
    }
    let layout = Arc::new(asked(call.driver, id, function.real)?);
    call.server.tables().layouts.insert(id, Arc::clone(&layout));
    Ok(layout)
}

fn asked(driver: &Table, id: Id, real: u64) -> Result<Layout, Stop> {
    let mut all = Vec::new();
    loop {
        let (mut offset, mut size) = (0_usize, 0_usize);
        let (to_offset, to_size) = (&raw mut offset, &raw mut size);
        // SAFETY: the handle is the driver's, and it writes two numbers to memory of ours.
        let code = unsafe {
            match id.kind() {
                Kind::Kernel => {
                    (driver.cuKernelGetParamInfo)(Word::from_bits(real), all.len(), to_offset, to_size)
                }
                _ => (driver.cuFuncGetParamInfo)(Word::from_bits(real), all.len(), to_offset, to_size),
            }
        };
        match code {
            CUDA_SUCCESS if all.len() < MOST_PARAMETERS => {
                let number = |value: usize| u32::try_from(value).map_err(|_| Stop::Code(CUDA_ERROR_UNKNOWN));
                all.push((number(offset)?, number(size)?));
            }
            // There is no parameter of this number.
            CUDA_ERROR_INVALID_VALUE => return Ok(Layout(all)),
            CUDA_SUCCESS => return Err(Stop::Code(CUDA_ERROR_UNKNOWN)),
            code => return Err(Stop::Code(code)),
        }
    }
}
