//! Launches: they wait at the gate if there is one, and are counted if any memory lies beyond the share.
#![allow(non_snake_case)]

use divvy_abi::{CUDA_LAUNCH_PARAMS, CUfunction, CUlaunchConfig, CUresult, CUstream, c_void, guard};

use crate::account;
use crate::below::forward;
use crate::charges::CHARGES;
use crate::gate::{self, Launch, Stream};

macro_rules! launches {
    ($($name:ident($($parameter:ident: $of:ty),*) as $launch:expr;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> CUresult {
            // By value: the open path reads them from registers and not through references.
            guard(move || {
                CHARGES.kernel_launched(|| account::current().ok().flatten());
                gate::launching(
                    move || $launch,
                    // SAFETY: the arguments are handed on as they came.
                    move || unsafe { forward::$name($($parameter),*) },
                )
            })
        })*
    };
}

macro_rules! by_grid {
    ($($name:ident($($rest:ident: $rest_type:ty),*), $per_thread:literal;)*) => {
        launches! {
            $($name(
                function: CUfunction,
                grid_x: u32,
                grid_y: u32,
                grid_z: u32,
                block_x: u32,
                block_y: u32,
                block_z: u32,
                shared: u32,
                stream: CUstream,
                parameters: *mut *mut c_void
                $(, $rest: $rest_type)*
            ) as Some(Launch::kernel(
                function,
                [grid_x, grid_y, grid_z],
                [block_x, block_y, block_z],
                Stream { handle: stream, per_thread: $per_thread },
            ));)*
        }
    };
}

by_grid! {
    cuLaunchKernel(extra: *mut *mut c_void), false;
    cuLaunchKernel_ptsz(extra: *mut *mut c_void), true;
    cuLaunchCooperativeKernel(), false;
    cuLaunchCooperativeKernel_ptsz(), true;
}

macro_rules! by_configuration {
    ($($name:ident, $per_thread:literal;)*) => {
        launches! {
            $($name(
                config: *const CUlaunchConfig,
                function: CUfunction,
                parameters: *mut *mut c_void,
                extra: *mut *mut c_void
            // SAFETY: the program's own configuration, which the driver reads as well.
            ) as unsafe { Launch::configured(function, config, $per_thread) };)*
        }
    };
}

by_configuration! {
    cuLaunchKernelEx, false;
    cuLaunchKernelEx_ptsz, true;
}

/// The interface before CUDA 4 keeps the block and the parameters with the function.
fn old(function: CUfunction, width: i32, height: i32, stream: CUstream) -> Option<Launch> {
    let stream = Stream {
        handle: stream,
        per_thread: false,
    };
    Some(Launch::kernel(
        function,
        [width as u32, height as u32, 1],
        [0; 3],
        stream,
    ))
}

launches! {
    cuLaunch(function: CUfunction) as old(function, 1, 1, core::ptr::null_mut());
    cuLaunchGrid(function: CUfunction, width: i32, height: i32) as old(function, width, height, core::ptr::null_mut());
    cuLaunchGridAsync(function: CUfunction, width: i32, height: i32, stream: CUstream) as old(function, width, height, stream);
}

pub(super) unsafe extern "C-unwind" fn cuLaunchCooperativeKernelMultiDevice(
    list: *mut CUDA_LAUNCH_PARAMS,
    count: u32,
    flags: u32,
) -> CUresult {
    guard(|| {
        CHARGES.kernel_launched(|| account::current().ok().flatten());
        // SAFETY: the arguments are handed on as they came.
        let call = || unsafe { forward::cuLaunchCooperativeKernelMultiDevice(list, count, flags) };
        if list.is_null() || !account::keeps_charges() {
            return call();
        }
        // SAFETY: the program says that there are so many; the driver reads them as well.
        let all = unsafe { core::slice::from_raw_parts(list, count as usize) };
        gate::launching_together(all, call)
    })
}
