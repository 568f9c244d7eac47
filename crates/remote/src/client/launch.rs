//! Launches: the server tells once of each function where its parameters lie, and nothing waits.
#![allow(non_snake_case)]

use divvy_abi::*;

use super::parameters::{self, Values};
use super::{client, start, thread};
use crate::handle::{Id, Kind, Word};
use crate::wire::Writer;
use crate::wire::by_hand::{COOPERATIVE, LAUNCH, PER_THREAD, SET_ATTRIBUTE};

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
/// As for [`Values::of`].
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
    let outcome = parameters::with(symbol, function.bits(), |known| {
        if known.refuses(shape) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: promised by the caller.
        let values = unsafe { Values::of(known, params, extra) }?;
        let put = |m: &mut Writer<'_>| {
            m.plain(flags);
            m.plain(function.bits());
            for number in shape {
                m.plain(number);
            }
            m.plain(stream.bits());
            values.put(m);
        };
        Ok(match flags & COOPERATIVE {
            0 => thread::submit(LAUNCH, symbol, put, |_, _| Ok(())),
            // How many blocks run at once depends on more than is known here.
            _ => thread::call(LAUNCH, symbol, put, |_, _| Ok(())),
        })
    });
    outcome.unwrap_or_else(|code| code)
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
        client.functions.forget();
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
    let device = start::to_worker(dev);
    set_attribute(Symbol::cuKernelSetAttribute, kernel.bits(), attrib, val, device)
}
