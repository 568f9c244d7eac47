//! Launches: passed on as they are. Where something lies beyond the share, they are counted on the way.
#![allow(non_snake_case)]

use divvy_abi::{CUfunction, CUlaunchConfig, CUresult, CUstream, c_void, guard};

use crate::below::forward;
use crate::books::spilled;

macro_rules! launches {
    ($($name:ident($($parameter:ident: $of:ty),*);)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> CUresult {
            guard(|| {
                spilled::launched();
                // SAFETY: the arguments are handed on as they came.
                unsafe { forward::$name($($parameter),*) }
            })
        })*
    };
}

macro_rules! by_grid {
    ($($name:ident($($rest:ident: $rest_type:ty),*);)*) => {
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
            );)*
        }
    };
}

by_grid! {
    cuLaunchKernel(extra: *mut *mut c_void);
    cuLaunchKernel_ptsz(extra: *mut *mut c_void);
    cuLaunchCooperativeKernel();
    cuLaunchCooperativeKernel_ptsz();
}

launches! {
    cuLaunchKernelEx(config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuLaunchKernelEx_ptsz(config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void);
}
