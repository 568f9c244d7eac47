//! Launches: the parameters are gathered by the layout that the server tells once of each function, and nothing waits.
#![allow(non_snake_case)]

use std::sync::{Arc, PoisonError};

use divvy_abi::*;

use super::{Layout, client, thread};
use crate::handle::{Id, Kind, Word};
use crate::wire::by_hand::{COOPERATIVE, LAUNCH, LAYOUT, PER_THREAD, SET_ATTRIBUTE};
use crate::wire::{Malformed, Writer};

/// All parameters of a kernel take no more bytes than this.
const MOST_BYTES: usize = 32_764;

/// What a launch of a function needs: where its parameters lie, and what it may ask for.
#[derive(Debug)]
pub struct Function {
    /// Offset and size of each parameter, in bytes.
    pub parameters: Vec<(u32, u32)>,
    /// Blocks in each direction, threads in each direction, threads of a block, bytes of dynamic shared memory.
    limits: [u32; 8],
}

impl Function {
    /// Whether a launch is one that the device refuses, whatever else is so.
    fn refuses(&self, shape: [u32; 7]) -> bool {
        let [x, y, z, width, height, depth, shared] = shape;
        let sizes = [x, y, z, width, height, depth];
        let threads = u64::from(width) * u64::from(height) * u64::from(depth);
        let outside = sizes
            .iter()
            .zip(self.limits)
            .any(|(size, most)| *size == 0 || *size > most);
        outside || threads > u64::from(self.limits[6]) || shared > self.limits[7]
    }
}

/// What a launch of a function needs, which the server is asked for once.
pub fn layout(symbol: Symbol, function: CUfunction) -> Result<Layout, CUresult> {
    let layouts = &client().ok_or(CUDA_ERROR_DEVICE_UNAVAILABLE)?.layouts;
    let known = layouts.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(layout) = known.get(&function.bits()) {
        return Ok(Arc::clone(layout));
    }
    drop(known);
    let (mut all, mut limits) = (Vec::new(), [u32::MAX; 8]);
    let code = thread::call(
        LAYOUT,
        symbol,
        |m| m.plain(function.bits()),
        |m, good| {
            if !good {
                return Ok(());
            }
            let (pairs, _) = m.list(8)?.ok_or(Malformed)?.as_chunks::<8>();
            for pair in pairs {
                let [a, b, c, d, e, f, g, h] = *pair;
                let (offset, size) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
                if u64::from(offset) + u64::from(size) > MOST_BYTES as u64 {
                    return Err(Malformed);
                }
                all.push((offset, size));
            }
            for limit in &mut limits {
                *limit = m.plain()?;
            }
            Ok(())
        },
    );
    if code != CUDA_SUCCESS {
        return Err(code);
    }
    let layout: Layout = Arc::new(Function {
        parameters: all,
        limits,
    });
    let mut layouts = layouts.write().unwrap_or_else(PoisonError::into_inner);
    layouts.insert(function.bits(), Arc::clone(&layout));
    Ok(layout)
}

/// The bytes of the parameters, from either of the two forms that CUDA has for them.
///
/// # Safety
/// `params`, or else `extra`, describes the function's parameters as cuLaunchKernel requires.
unsafe fn gather(
    layout: &[(u32, u32)],
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    into: &mut [u8; MOST_BYTES],
) -> Result<usize, CUresult> {
    let length = layout
        .iter()
        .map(|(offset, size)| offset + size)
        .max()
        .unwrap_or(0) as usize;
    match (params.is_null(), extra.is_null()) {
        (true, true) if layout.is_empty() => Ok(0),
        // Neither form, or both.
        (true, true) | (false, false) => Err(CUDA_ERROR_INVALID_VALUE),
        (false, true) => {
            for (at, (offset, size)) in layout.iter().enumerate() {
                // SAFETY: the list has an entry for each parameter.
                let value = unsafe { params.add(at).read() };
                if value.is_null() {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                let (offset, size) = (*offset as usize, *size as usize);
                // SAFETY: each entry points to a value of the parameter's size; the layout ends within the array.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        value.cast(),
                        into[offset..offset + size].as_mut_ptr(),
                        size,
                    );
                };
            }
            Ok(length)
        }
        (true, false) => {
            // SAFETY: promised by the caller.
            let (buffer, size) = unsafe { packed(extra) }?;
            if size < length || buffer.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: the buffer is as long as the list says, which is enough.
            unsafe { std::ptr::copy_nonoverlapping(buffer, into.as_mut_ptr(), length) };
            Ok(length)
        }
    }
}

/// The buffer of an `extra` list.
///
/// # Safety
/// `extra` is a list of keys and values that ends with CU_LAUNCH_PARAM_END.
unsafe fn packed(mut extra: *mut *mut c_void) -> Result<(*const u8, usize), CUresult> {
    let (mut buffer, mut size) = (std::ptr::null(), 0);
    loop {
        // SAFETY: the list goes on until its end is read.
        let key = unsafe { extra.read() };
        if key == CU_LAUNCH_PARAM_END {
            return Ok((buffer, size));
        }
        // SAFETY: a key other than the end is followed by its value.
        let value = unsafe { extra.add(1).read() };
        match key {
            CU_LAUNCH_PARAM_BUFFER_POINTER => buffer = value.cast_const().cast(),
            // SAFETY: this key's value points to the size.
            CU_LAUNCH_PARAM_BUFFER_SIZE if !value.is_null() => size = unsafe { value.cast::<usize>().read() },
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        // SAFETY: the value that was read was inside the list.
        extra = unsafe { extra.add(2) };
    }
}

macro_rules! launch {
    ($($name:ident $flags:expr, ($($extra:ident)?);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C-unwind" fn $name(
            f: CUfunction,
            gridDimX: u32,
            gridDimY: u32,
            gridDimZ: u32,
            blockDimX: u32,
            blockDimY: u32,
            blockDimZ: u32,
            sharedMemBytes: u32,
            hStream: CUstream,
            kernelParams: *mut *mut c_void,
            $($extra: *mut *mut c_void,)?
        ) -> CUresult {
            let extra: &[*mut *mut c_void] = &[$($extra)?];
            let extra = extra.first().copied().unwrap_or(std::ptr::null_mut());
            let shape = [gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes];
            // SAFETY: the program vouches for its lists.
            unsafe { launch(Symbol::$name, $flags, f, shape, hStream, kernelParams, extra) }
        }
    )*};
}

launch! {
    cuLaunchKernel 0, (extra);
    cuLaunchKernel_ptsz PER_THREAD, (extra);
    cuLaunchCooperativeKernel COOPERATIVE, ();
    cuLaunchCooperativeKernel_ptsz PER_THREAD | COOPERATIVE, ();
}

macro_rules! launch_ex {
    ($($name:ident $flags:expr;)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            config: *const CUlaunchConfig,
            f: CUfunction,
            kernelParams: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> CUresult {
            // SAFETY: the program vouches for its configuration and its lists.
            unsafe {
                let Some(config) = config.as_ref() else {
                    return CUDA_ERROR_INVALID_VALUE;
                };
                match attributes(config) {
                    Ok(flags) => launch(Symbol::$name, $flags | flags, f, shape(config), config.hStream, kernelParams, extra),
                    Err(code) => code,
                }
            }
        }
    )*};
}

launch_ex! {
    cuLaunchKernelEx 0;
    cuLaunchKernelEx_ptsz PER_THREAD;
}

fn shape(config: &CUlaunchConfig) -> [u32; 7] {
    [
        config.gridDimX,
        config.gridDimY,
        config.gridDimZ,
        config.blockDimX,
        config.blockDimY,
        config.blockDimZ,
        config.sharedMemBytes,
    ]
}

/// The flags that a launch's attributes ask for. Those that name other objects, or a shape of clusters, are not served.
///
/// # Safety
/// The list has as many entries as the configuration says.
unsafe fn attributes(config: &CUlaunchConfig) -> Result<u8, CUresult> {
    if config.numAttrs == 0 {
        return Ok(0);
    }
    if config.attrs.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: promised by the caller.
    let list = unsafe { std::slice::from_raw_parts(config.attrs, config.numAttrs as usize) };
    let mut flags = 0;
    for attribute in list {
        match attribute.id {
            CU_LAUNCH_ATTRIBUTE_IGNORE => {}
            // SAFETY: the id says which of the value's members is there.
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE if unsafe { attribute.value.cooperative } == 0 => {}
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE => flags |= COOPERATIVE,
            _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
        }
    }
    Ok(flags)
}

/// # Safety
/// As for [`gather`].
unsafe fn launch(
    symbol: Symbol,
    flags: u8,
    function: CUfunction,
    shape: [u32; 7],
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    // A stream that is none is told at once, as on a device.
    let of_stream = |bits: u64| Id::from_bits(bits).is_some_and(|id| id.kind() == Kind::Stream);
    if !Kind::Stream.is_constant(stream.bits()) && !of_stream(stream.bits()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    let mut values = [0; MOST_BYTES];
    let gathered = layout(symbol, function).and_then(|layout| {
        if layout.refuses(shape) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: promised by the caller.
        unsafe { gather(&layout.parameters, params, extra, &mut values) }
    });
    let length = match gathered {
        Ok(length) => length,
        Err(code) => return code,
    };
    let put = |m: &mut Writer<'_>| {
        m.plain(flags);
        m.plain(function.bits());
        for number in shape {
            m.plain(number);
        }
        m.plain(stream.bits());
        m.bytes(&values[..length]);
    };
    match flags & COOPERATIVE {
        0 => thread::submit(LAUNCH, symbol, put, |_, _| Ok(())),
        // How many blocks run at once depends on more than is known here.
        _ => thread::call(LAUNCH, symbol, put, |_, _| Ok(())),
    }
}

/// The bytes of the parameters of a kernel.
///
/// # Safety
/// As for [`gather`].
pub unsafe fn gathered(
    symbol: Symbol,
    function: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Vec<u8>, CUresult> {
    let mut values = [0; MOST_BYTES];
    let layout = layout(symbol, function)?;
    // SAFETY: promised by the caller.
    let length = unsafe { gather(&layout.parameters, params, extra, &mut values) }?;
    Ok(values[..length].to_vec())
}

fn set_attribute(
    symbol: Symbol,
    function: u64,
    attribute: CUfunction_attribute,
    value: i32,
    device: CUdevice,
) -> CUresult {
    let code = thread::call(
        SET_ATTRIBUTE,
        symbol,
        |m| {
            m.plain(function);
            m.plain(attribute.0);
            m.plain(value);
            m.plain(device);
        },
        |_, _| Ok(()),
    );
    // A launch may ask for more or for less from now on, by any name of the kernel.
    if let Some(client) = client() {
        client
            .layouts
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
    code
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuFuncSetAttribute(
    hfunc: CUfunction,
    attrib: CUfunction_attribute,
    value: i32,
) -> CUresult {
    set_attribute(Symbol::cuFuncSetAttribute, hfunc.bits(), attrib, value, 0)
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuKernelSetAttribute(
    attrib: CUfunction_attribute,
    val: i32,
    kernel: CUkernel,
    dev: CUdevice,
) -> CUresult {
    set_attribute(Symbol::cuKernelSetAttribute, kernel.bits(), attrib, val, dev)
}
