//! Devices: profiles, identities, visibility, and what happens where there can be none.

mod common;

use common::{alone, both, code, cu, get, memory_info, process, role, start};
use divvy_abi::*;
use std::ffi::CStr;
use tempfile::TempDir;

fn attribute(number: CUdevice_attribute, device: i32) -> i32 {
    get!(cuDeviceGetAttribute(number, device))
}

fn name(device: i32) -> String {
    let mut text = [0; 64];
    cu!(cuDeviceGetName(text.as_mut_ptr(), 64, device));
    // SAFETY: the call succeeded, so the text ends with a NUL.
    unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_str()
        .unwrap()
        .to_owned()
}

#[test]
fn a_device_is_what_its_profile_says() {
    alone(
        "a_device_is_what_its_profile_says",
        &[("DIVVY_EMULATED", "a100-40gb*2,t4")],
        || {
            assert_eq!(code!(cuDeviceGetCount(&mut 0)), CUDA_ERROR_NOT_INITIALIZED);
            cu!(cuInit(0));
            let count: i32 = get!(cuDeviceGetCount());
            assert_eq!(count, 3);
            assert_eq!(
                (name(0), name(2)),
                ("NVIDIA A100-SXM4-40GB".into(), "Tesla T4".into())
            );
            let bytes: usize = get!(cuDeviceTotalMem_v2(0));
            assert_eq!(bytes, 40_960 << 20);
            assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0), 108);
            assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 2), 7);
            assert_eq!(
                code!(cuDeviceGetAttribute(&mut 0, CUdevice_attribute(9999), 0)),
                CUDA_ERROR_INVALID_VALUE
            );
            for absent in [-1, 3, i32::MAX] {
                assert_eq!(code!(cuDeviceGet(&mut 0, absent)), CUDA_ERROR_INVALID_DEVICE);
            }
        },
    );
}

#[test]
fn identities_are_stable_and_lead_back() {
    alone(
        "identities_are_stable_and_lead_back",
        &[("DIVVY_EMULATED", "l4*2")],
        || {
            cu!(cuInit(0));
            let known = divvy_device::devices("l4*2", &divvy_device::run_directory()).unwrap();
            for (device, facts) in known.iter().enumerate() {
                let device = device as i32;
                let uuid: CUuuid = get!(cuDeviceGetUuid_v2(device));
                assert_eq!(uuid.bytes.map(|byte| byte as u8), facts.uuid.0);
                let mut text = [0; 16];
                cu!(cuDeviceGetPCIBusId(text.as_mut_ptr(), 16, device));
                let found: CUdevice = get!(cuDeviceGetByPCIBusId(text.as_ptr()));
                assert_eq!(found, device);
            }
            let none = c"0000:ff:00.0";
            assert_eq!(
                code!(cuDeviceGetByPCIBusId(&mut 0, none.as_ptr())),
                CUDA_ERROR_INVALID_DEVICE
            );
            // Too little space: as much as fits, and a NUL.
            let mut short = [1; 4];
            cu!(cuDeviceGetName(short.as_mut_ptr(), 4, 0));
            assert_eq!(short, [b'N' as c_char, b'V' as c_char, b'I' as c_char, 0]);
        },
    );
}

#[test]
fn visible_devices_are_renumbered() {
    let directory = TempDir::new().unwrap();
    // The devices belong to a run directory, which the processes started below share with this one.
    let here = role().map_or_else(|| directory.path().to_owned(), |_| divvy_device::run_directory());
    let known = divvy_device::devices("h100,l4", &here).unwrap();
    let second = known[1].uuid.to_string();
    for setting in ["1", &second, &second[..14]] {
        alone(
            "visible_devices_are_renumbered",
            &[
                ("DIVVY_EMULATED", "h100,l4"),
                ("CUDA_VISIBLE_DEVICES", setting),
                ("CASE", setting),
                ("DIVVY_RUN_DIR", directory.path().to_str().unwrap()),
            ],
            || {
                cu!(cuInit(0));
                assert_eq!(name(0), "NVIDIA L4");
                assert_eq!(code!(cuDeviceGet(&mut 0, 1)), CUDA_ERROR_INVALID_DEVICE);
            },
        );
    }
}

/// Runs this file's `refused_start` with settings, and gives its outcome.
fn refused(settings: &[(&str, &str)], run_directory: &str) -> String {
    let mut command = process("refused_start", "start", run_directory);
    command.envs(settings.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    both(&output)
}

#[test]
fn refused_start() {
    if role().is_some() {
        let outcome = code!(cuInit(0));
        println!("cuInit: {outcome:?}");
        return;
    }
    let directory = TempDir::new().unwrap();
    let here = directory.path().to_str().unwrap();
    let text = refused(&[("DIVVY_EMULATED", "b9000")], here);
    assert!(
        text.contains("CUDA_ERROR_NO_DEVICE") && text.contains("choose one of h100, h200"),
        "{text}"
    );
    let text = refused(&[("CUDA_VISIBLE_DEVICES", "")], here);
    assert!(
        text.contains("CUDA_ERROR_NO_DEVICE") && text.contains("leaves no device of 1"),
        "{text}"
    );
    let text = refused(&[], "/proc/divvy");
    assert!(
        text.contains("CUDA_ERROR_OPERATING_SYSTEM") && text.contains("set DIVVY_RUN_DIR"),
        "{text}"
    );
    // A page that is not one of ours.
    let page = directory.path().join("emulated");
    std::fs::create_dir_all(&page).unwrap();
    let page = page.join(format!(
        "emulated-{}.{}.page",
        divvy_device::devices("h100", directory.path()).unwrap()[0].uuid,
        divvy_ledger::PAGE_ABI_VERSION
    ));
    std::fs::write(page, b"not a page").unwrap();
    let text = refused(&[], here);
    assert!(
        text.contains("CUDA_ERROR_OPERATING_SYSTEM") && text.contains("hardware page"),
        "{text}"
    );
}

#[test]
fn contexts_stack_and_primary_contexts_count() {
    alone(
        "contexts_stack_and_primary_contexts_count",
        &[("DIVVY_EMULATED", "h100*2")],
        || {
            let primary = start(0);
            let again: CUcontext = get!(cuDevicePrimaryCtxRetain(0));
            assert_eq!(primary, again);
            let own: CUcontext = get!(cuCtxCreate_v2(0, 1));
            let current: CUcontext = get!(cuCtxGetCurrent());
            assert_eq!(current, own, "creating a context makes it current");
            let device: CUdevice = get!(cuCtxGetDevice());
            assert_eq!(device, 1);
            let popped: CUcontext = get!(cuCtxPopCurrent_v2());
            assert_eq!(popped, own);
            let current: CUcontext = get!(cuCtxGetCurrent());
            assert_eq!(current, primary);
            cu!(cuCtxPushCurrent_v2(own));
            cu!(cuCtxDestroy_v2(own));
            let current: CUcontext = get!(cuCtxGetCurrent());
            assert_eq!(current, primary, "destroying the current context pops it");
            assert_eq!(code!(cuCtxSetCurrent(own)), CUDA_ERROR_INVALID_CONTEXT);
            assert_eq!(code!(cuCtxDestroy_v2(own)), CUDA_ERROR_INVALID_CONTEXT);
            assert_eq!(code!(cuCtxDestroy_v2(primary)), CUDA_ERROR_INVALID_CONTEXT);

            // cuCtxDetach ends a context with its last use, and what was allocated in it.
            let own: CUcontext = get!(cuCtxCreate_v2(0, 0));
            let before = memory_info().0;
            let _goes_with_it: CUdeviceptr = get!(cuMemAlloc_v2(64 << 20));
            let attached: CUcontext = get!(cuCtxAttach(0));
            assert_eq!(attached, own);
            cu!(cuCtxDetach(own));
            assert_eq!(memory_info().0, before - (64 << 20), "one use is left");
            cu!(cuCtxSetCurrent(primary));
            assert_eq!(code!(cuCtxDetach(own)), CUDA_ERROR_INVALID_CONTEXT, "not current");
            cu!(cuCtxSetCurrent(own));
            cu!(cuCtxDetach(own));
            assert_eq!(code!(cuCtxSetCurrent(own)), CUDA_ERROR_INVALID_CONTEXT);
            cu!(cuCtxSetCurrent(primary));
            assert_eq!(memory_info().0, before);
            assert_eq!(code!(cuCtxDetach(primary)), CUDA_ERROR_INVALID_CONTEXT);
            assert_eq!(
                code!(cuCtxDetach(std::ptr::null_mut())),
                CUDA_ERROR_INVALID_CONTEXT
            );

            let (mut flags, mut active) = (9, 9);
            cu!(cuDevicePrimaryCtxRelease_v2(0));
            cu!(cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active));
            assert_eq!((flags, active), (0, 1), "one reference is left");
            cu!(cuDevicePrimaryCtxRelease_v2(0));
            cu!(cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active));
            assert_eq!(active, 0);
            assert_eq!(code!(cuDevicePrimaryCtxRelease_v2(0)), CUDA_ERROR_INVALID_CONTEXT);
            assert_eq!(code!(cuCtxGetDevice(&mut 0)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
            let revived: CUcontext = get!(cuDevicePrimaryCtxRetain(0));
            assert_eq!(revived, primary, "its handle is the same in its next life");
            let limit: usize = get!(cuCtxGetLimit(CU_LIMIT_PRINTF_FIFO_SIZE));
            assert_eq!(limit, 1 << 20);
            assert_eq!(
                code!(cuCtxGetLimit(&mut 0, CUlimit(77))),
                CUDA_ERROR_UNSUPPORTED_LIMIT
            );
        },
    );
}

#[test]
fn a_context_takes_what_the_specification_says() {
    let settings = [("DIVVY_EMULATED", "t4,context=304MiB")];
    alone("a_context_takes_what_the_specification_says", &settings, || {
        const CONTEXT: usize = 304 << 20;
        start(0);
        let (free, total) = memory_info();
        assert_eq!(free, total - CONTEXT);
        let own: CUcontext = get!(cuCtxCreate_v2(0, 0));
        assert_eq!(memory_info().0, total - 2 * CONTEXT);
        let rest: CUdeviceptr = get!(cuMemAlloc_v2(memory_info().0 / (2 << 20) * (2 << 20)));
        let mut refused = std::ptr::null_mut();
        assert_eq!(
            code!(cuCtxCreate_v2(&raw mut refused, 0, 0)),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        cu!(cuMemFree_v2(rest));
        cu!(cuCtxDestroy_v2(own));
        assert_eq!(memory_info().0, free);
        cu!(cuDevicePrimaryCtxReset_v2(0));
        assert_eq!(common::held(0), (0, 0));
        start(0);
        assert_eq!(memory_info().0, free);
    });
}
