//! A device whose kernels are compiled: right results, and a fault that stays with its context.

mod common;

use common::{POKE, VECTOR_ADD, alone, code, cu, download, function, launch, module, param, start, upload};
use divvy_abi::*;
use std::ptr::null_mut;

#[test]
fn compiled_kernels_compute_and_fail_as_others_do() {
    let settings = [("DIVVY_EMULATED", "h100,kernels=compiled")];
    alone(
        "compiled_kernels_compute_and_fail_as_others_do",
        &settings,
        || {
            assert!(divvy_device::devices_from_env().unwrap()[0].compile);
            start(0);
            let memory = upload(&[1.5f32; 64]);
            let add = function(module(VECTOR_ADD), c"add");
            let n = 64u32;
            let mut params = [param(&memory), param(&memory), param(&memory), param(&n)];
            assert_eq!(launch(add, 1, 64, null_mut(), &mut params), CUDA_SUCCESS);
            cu!(cuCtxSynchronize());
            assert_eq!(download::<f32>(memory, 64), [3.0; 64]);
            let (poke, nowhere) = (function(module(POKE), c"poke"), 0x10u64);
            assert_eq!(
                launch(poke, 1, 1, null_mut(), &mut [param(&nowhere)]),
                CUDA_SUCCESS
            );
            assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
        },
    );
}
