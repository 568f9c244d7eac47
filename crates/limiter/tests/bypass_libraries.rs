//! Libraries that take device memory past the limiter. They are counted once they are loaded, and under a strict policy
//! they end the program's allocations. The libraries are copies of a harmless one under NVIDIA's names.

mod support;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use divvy_abi::{CUDA_ERROR_NOT_PERMITTED, CUdeviceptr, CUresult};
use divvy_ledger::{Bypass, Policy, Terms};
use divvy_limiter::{TABLE, account, below};
use support::{MEMORY, Slice};

const MIB: u64 = 1 << 20;

fn allocate(bytes: u64) -> Result<CUdeviceptr, CUresult> {
    let mut pointer = 0;
    // SAFETY: a valid out-parameter.
    unsafe { (TABLE.cuMemAlloc_v2)(&raw mut pointer, bytes as usize) }.ok()?;
    Ok(pointer)
}

/// A library that this process has loaded anyway, and that makes no calls when it is loaded again.
fn harmless() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("/libgcc_s"))
        .expect("Rust programs have it");
    path.into()
}

fn load(folder: &Path, name: &str) {
    let path = folder.join(name);
    std::fs::copy(harmless(), &path).expect("a copy");
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    // SAFETY: a library that does nothing when it is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{name} loads");
}

fn follow(slice: &Slice, policy: Policy) {
    slice.pages.grant.set_terms(&Terms {
        policy,
        ..Terms::default()
    });
}

/// A process has one slice for life, so the scenarios of this process run one after the other.
#[test]
fn a_process_with_libraries_that_bypass_the_limiter() {
    below::stand_on(&MEMORY);
    let slice = Slice::new(1 << 30);
    slice.enter();
    let folder = tempfile::tempdir().expect("a folder");
    let counted = |bypass| slice.pages.ledger.bypasses(bypass);

    // Counted once per process, and allowed.
    follow(&slice, Policy::BestEffort);
    allocate(2 * MIB).expect("no other process is here");
    load(folder.path(), "libnvidia-opencl.so.1");
    load(folder.path(), "libharmless.so.1");
    for _ in 0..3 {
        allocate(2 * MIB).expect("best effort");
    }
    assert_eq!(counted(Bypass::OpenCl), 1);
    load(folder.path(), "libnvidia-glcore.so.535.261.03");
    load(folder.path(), "libnvcuvid.so.1");
    load(folder.path(), "libcuda.so.535.261.03");
    account::of_device(0).expect("a context looks as well");
    for bypass in Bypass::ALL {
        let expected = matches!(
            bypass,
            Bypass::OpenCl | Bypass::Graphics | Bypass::Codec | Bypass::ForeignLibcuda
        );
        assert_eq!(counted(bypass), u64::from(expected), "{bypass}");
    }

    // Strict: no more allocations, large or small; existing ones stay, and are returned.
    let held = allocate(MIB).expect("best effort");
    follow(&slice, Policy::Strict);
    assert_eq!(allocate(2 * MIB), Err(CUDA_ERROR_NOT_PERMITTED));
    assert_eq!(allocate(512), Err(CUDA_ERROR_NOT_PERMITTED));
    assert_eq!(account::of_device(0).err(), Some(CUDA_ERROR_NOT_PERMITTED));
    let before = slice.used();
    // SAFETY: the driver below checks the pointer.
    assert!(unsafe { (TABLE.cuMemFree_v2)(held) }.is_success());
    assert_eq!(slice.used(), before - MIB);
}
