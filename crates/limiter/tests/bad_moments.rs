//! Wrong calls, and calls at a wrong time: the driver's own codes, nothing charged, nothing leaked, no crash.

mod address_reuse;
mod emulated;
mod support;

use std::cell::Cell;
use std::ptr::null_mut;

use divvy_abi::*;
use divvy_ledger::Terms;
use divvy_ledger::attach::connect;
use divvy_limiter::{below, tenant};
use emulated::{agree, alone, alone_on, code, context, cu, get, held, uuid_in};
use support::Slice;

const MIB: usize = 1 << 20;
const GIB: u64 = 1 << 30;

/// The same call through the limiter and straight to the driver below: the same result, and an unchanged ledger.
macro_rules! alike {
    ($slice:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let used = $slice.used();
        let through = code!($function($($argument),*));
        // SAFETY: as through the limiter.
        let straight = unsafe { (divvy_emulator::TABLE.$function)($($argument),*) };
        assert_eq!(through, straight, "{}({})", stringify!($function), stringify!($($argument),*));
        assert_ne!(through, CUDA_SUCCESS, "{}({})", stringify!($function), stringify!($($argument),*));
        assert_eq!($slice.used(), used, "{}", stringify!($function));
        through
    }};
}

#[test]
fn nothing_is_asked_of_a_driver_that_was_not_started() {
    if std::env::var_os("BEFORE").is_none() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let test = "nothing_is_asked_of_a_driver_that_was_not_started";
        return again(test, folder.path(), &[("BEFORE", "1")], 0);
    }
    let folder = std::env::var_os("DIVVY_RUN_DIR").expect("set");
    let slice = Slice::with(&[(GIB, uuid_in(folder.as_ref()))], Terms::default());
    below::stand_on(&divvy_emulator::TABLE);
    slice.enter();
    let (mut pointer, mut bytes) = (0, 0);
    let uninitialised = [
        alike!(slice, cuMemAlloc_v2(&raw mut pointer, MIB)),
        alike!(slice, cuMemAlloc_v2(&raw mut pointer, 0)),
        alike!(slice, cuMemFree_v2(0x1000)),
        alike!(slice, cuMemAllocAsync(&raw mut pointer, MIB, null_mut())),
        alike!(slice, cuMemFreeAsync(0x1000, null_mut())),
        alike!(
            slice,
            cuMemAllocManaged(&raw mut pointer, MIB, CU_MEM_ATTACH_GLOBAL.0)
        ),
        alike!(slice, cuMemGetInfo_v2(&raw mut bytes, &raw mut bytes)),
        alike!(slice, cuDeviceTotalMem_v2(&raw mut bytes, 0)),
        alike!(slice, cuCtxSynchronize()),
        alike!(slice, cuCtxCreate_v2(&mut null_mut(), 0, 0)),
        alike!(slice, cuDevicePrimaryCtxRetain(&mut null_mut(), 0)),
        alike!(slice, cuMemRelease(7)),
    ];
    assert!(
        uninitialised
            .iter()
            .all(|code| *code == CUDA_ERROR_NOT_INITIALIZED),
        "{uninitialised:?}"
    );
    // And then it works as before.
    cu!(cuInit(0));
    context();
    pointer = get!(cuMemAlloc_v2(4 * MIB));
    cu!(cuMemFree_v2(pointer));
    assert_eq!((slice.used(), held()), (0, 0));
}

#[test]
fn sizes_of_nothing_and_of_everything() {
    alone("sizes_of_nothing_and_of_everything", GIB, |slice| {
        context();
        let mut pointer = 0;
        alike!(slice, cuMemAlloc_v2(&raw mut pointer, 0));
        alike!(slice, cuMemAllocAsync(&raw mut pointer, 0, null_mut()));
        alike!(
            slice,
            cuMemAllocManaged(&raw mut pointer, 0, CU_MEM_ATTACH_GLOBAL.0)
        );
        alike!(slice, cuMemAllocPitch_v2(&raw mut pointer, &mut 0, 0, 7, 4));
        alike!(slice, cuMemAllocPitch_v2(&raw mut pointer, &mut 0, 7, 0, 4));
        let mut properties = CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            ..Default::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        alike!(slice, cuMemCreate(&mut 0, 0, &raw const properties, 0));
        for bytes in [
            usize::MAX,
            usize::MAX - 511,
            usize::MAX - 4095,
            1 << 63,
            (1 << 40) + 1,
        ] {
            let out_of_memory = CUDA_ERROR_OUT_OF_MEMORY;
            assert_eq!(code!(cuMemAlloc_v2(&raw mut pointer, bytes)), out_of_memory);
            assert_eq!(
                code!(cuMemAllocAsync(&raw mut pointer, bytes, null_mut())),
                out_of_memory
            );
            assert_ne!(
                code!(cuMemAllocPitch_v2(&raw mut pointer, &mut 0, bytes, 3, 4)),
                CUDA_SUCCESS
            );
            assert_ne!(
                code!(cuMemAllocPitch_v2(&raw mut pointer, &mut 0, 8, bytes, 4)),
                CUDA_SUCCESS
            );
            assert_ne!(
                code!(cuMemCreate(&mut 0, bytes, &raw const properties, 0)),
                CUDA_SUCCESS
            );
        }
        for (width, height, depth) in [
            (1 << 63, 1 << 63, 0),
            (usize::MAX, 1, 0),
            (1 << 32, 1 << 32, 1 << 32),
            (1 << 21, 1 << 21, 0),
        ] {
            let mut array = null_mut();
            let mut described = CUDA_ARRAY3D_DESCRIPTOR {
                Width: width,
                Height: height,
                Depth: depth,
                Format: CU_AD_FORMAT_FLOAT,
                NumChannels: 1,
                Flags: 0,
            };
            let code = alike!(slice, cuArray3DCreate_v2(&raw mut array, &raw const described));
            assert_eq!(code, CUDA_ERROR_INVALID_VALUE, "{width} x {height} x {depth}");
            alike!(
                slice,
                cuMipmappedArrayCreate((&raw mut array).cast(), &raw const described, 3)
            );
            // An invalid format, of a size that no device has.
            described.NumChannels = 3;
            alike!(slice, cuArray3DCreate_v2(&raw mut array, &raw const described));
        }
        assert_eq!((slice.used(), held()), (0, 0));
    });
}

#[test]
fn frees_of_what_is_not_there() {
    alone("frees_of_what_is_not_there", GIB, |slice| {
        context();
        let mine: CUdeviceptr = get!(cuMemAlloc_v2(4 * MIB));
        let mut on_the_host = [0_u8; 64];
        let foreign = on_the_host.as_mut_ptr() as CUdeviceptr;
        let inside = mine + 512;
        for bogus in [1, 0x1234, foreign, inside, u64::MAX, 1 << 63] {
            alike!(slice, cuMemFree_v2(bogus));
            alike!(slice, cuMemFreeAsync(bogus, null_mut()));
            alike!(slice, cuIpcCloseMemHandle(bogus));
        }
        for bogus in [0, 7, u64::MAX] {
            alike!(slice, cuMemRelease(bogus));
            alike!(slice, cuMemUnmap(bogus | 1 << 21, 1 << 21));
        }
        cu!(cuMemFree_v2(mine));
        assert_eq!(code!(cuMemFree_v2(mine)), CUDA_ERROR_INVALID_VALUE, "freed twice");
        assert_ne!(
            code!(cuMemFreeAsync(mine, null_mut())),
            CUDA_SUCCESS,
            "and a third time"
        );
        assert_eq!(
            code!(cuMemFree_v2(0)),
            CUDA_SUCCESS,
            "nothing is free at any time"
        );
        assert_eq!((slice.used(), held()), (0, 0));
    });
}

#[test]
fn a_destroyed_context_takes_what_it_had_and_answers_no_more() {
    alone(
        "a_destroyed_context_takes_what_it_had_and_answers_no_more",
        GIB,
        |slice| {
            let gone = context();
            let stream: CUstream = get!(cuStreamCreate(0));
            let pointer: CUdeviceptr = get!(cuMemAlloc_v2(4 * MIB));
            cu!(cuCtxDestroy_v2(gone));
            assert_eq!(slice.used(), 0);
            let mut other = 0;
            alike!(slice, cuCtxDestroy_v2(gone));
            alike!(slice, cuCtxSetCurrent(gone));
            alike!(slice, cuMemFree_v2(pointer));
            alike!(slice, cuMemAlloc_v2(&raw mut other, MIB));
            alike!(slice, cuMemAllocAsync(&raw mut other, MIB, stream));
            let fresh = context();
            alike!(slice, cuMemFree_v2(pointer));
            alike!(slice, cuStreamSynchronize(stream));
            alike!(slice, cuMemAllocAsync(&raw mut other, MIB, stream));
            alike!(slice, cuMemFreeAsync(pointer, stream));
            let again: CUdeviceptr = get!(cuMemAlloc_v2(4 * MIB));
            agree(slice, &"a context after another");
            cu!(cuMemFree_v2(again));
            assert_eq!((slice.used(), held()), (0, 0));
            cu!(cuCtxDestroy_v2(fresh));
            assert_eq!(slice.used(), 0);
        },
    );
}

/// This test again, in a process of its own that must end with `status`.
fn again(test: &str, folder: &std::path::Path, set: &[(&str, &str)], status: i32) {
    let output = divvy_own_process::command(test)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("DIVVY_EMULATED", "h100")
        .env("DIVVY_RUN_DIR", folder)
        .envs(set.iter().copied())
        .output()
        .expect("this program starts again");
    divvy_own_process::assert_ran(test, &output);
    let said = divvy_own_process::both(&output);
    assert_eq!(output.status.code(), Some(status), "{said}");
}

const LATE: &str = "calls_after_teardown_answer_and_leave_nothing";

/// The exit status that confirms the late calls, and their results.
const SOUND: i32 = 42;

thread_local! {
    /// A key of the program's own, made before the drop-in's: it ends after them.
    static LAST: Cell<Option<Late>> = const { Cell::new(None) };
}

/// An object at the end of a thread or of the program, such as a C++ program's static objects.
struct Late;

impl Drop for Late {
    fn drop(&mut self) {
        late_calls();
    }
}

/// Typical calls of destructors: they free, query, and sometimes even allocate. Any valid code of the driver will do.
fn late_calls() {
    let mut pointer = 0;
    let (mut free, mut total) = (0, 0);
    let codes = [
        code!(cuMemAlloc_v2(&raw mut pointer, 4 * MIB)),
        code!(cuMemFree_v2(pointer)),
        code!(cuMemFree_v2(0x1234)),
        code!(cuMemGetInfo_v2(&raw mut free, &raw mut total)),
        code!(cuMemAllocAsync(&raw mut pointer, MIB, null_mut())),
        code!(cuCtxSynchronize()),
        code!(cuStreamSynchronize(null_mut())),
        code!(cuCtxGetCurrent(&mut null_mut())),
        code!(cuModuleUnload(null_mut())),
        code!(cuDevicePrimaryCtxRelease_v2(0)),
    ];
    // This stands for a panic that was caught at the boundary.
    let unknown = codes.contains(&CUDA_ERROR_UNKNOWN);
    if unknown {
        // SAFETY: ends this process at once; nothing after it matters.
        unsafe { libc::_exit(1) };
    }
}

extern "C" fn at_the_end() {
    late_calls();
    // SAFETY: ends this process at once; nothing after it matters.
    unsafe { libc::_exit(SOUND) };
}

#[test]
fn calls_after_teardown_answer_and_leave_nothing() {
    let Some(socket) = std::env::var_os("SOCKET") else {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let slice = Slice::with(&[(GIB, uuid_in(folder.path()))], Terms::default());
        let socket = slice.socket.to_str().expect("a path in UTF-8");
        again(LATE, folder.path(), &[("SOCKET", socket)], SOUND);
        slice.pages.ledger.reap().expect("reaped");
        assert_eq!(slice.used(), 0);
        return;
    };
    // The first of all ends: this runs after all handlers that the drop-ins registered later, and after the thread's
    // own values.
    // SAFETY: a function without arguments that does not unwind.
    assert_eq!(unsafe { libc::atexit(at_the_end) }, 0);
    below::stand_on(&divvy_emulator::TABLE);
    tenant::enter(vec![connect(socket.as_ref(), 0).expect("the server answers")]);
    let worker = std::thread::spawn(|| {
        LAST.set(Some(Late));
        cu!(cuInit(0));
        let context = context();
        let _kept: CUdeviceptr = get!(cuMemAlloc_v2(64 * MIB));
        context as usize
    });
    let context = worker.join().expect("the thread ends");
    cu!(cuCtxSetCurrent(context as CUcontext));
    let _pooled: CUdeviceptr = get!(cuMemAllocAsync(8 * MIB, null_mut()));
    #[expect(
        clippy::disallowed_methods,
        reason = "what runs at a program's end is what is tested"
    )]
    // SAFETY: ends this process as its main function would; another thread runs only the harness.
    unsafe {
        libc::exit(0)
    }
}

#[test]
fn what_goes_with_a_context_goes_though_its_address_is_in_use_again() {
    alone_on(
        &address_reuse::TABLE,
        "what_goes_with_a_context_goes_though_its_address_is_in_use_again",
        GIB,
        |slice| {
            let kept = context();
            let passing = context();
            let pointer: CUdeviceptr = get!(cuMemAlloc_v2(8 * MIB));
            address_reuse::at(pointer);
            let before = slice.used();
            cu!(cuCtxDestroy_v2(passing));
            cu!(cuCtxSetCurrent(kept));
            assert_eq!((before, slice.used()), (8 << 20, 0));
        },
    );
}
