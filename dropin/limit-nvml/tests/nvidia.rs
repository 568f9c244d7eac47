//! NVIDIA's own NVML below, which needs no GPU to load. Every name of the table that it has is reached, its answers
//! pass through, and nothing is printed or left open.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_abi::nvml::*;

/// Set in the child, to the folder of the libraries.
const CHILD: &str = "DIVVY_TEST_CHILD";

/// `target/<profile>`, with limit-nvml built in it.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    let folder = test.ancestors().nth(2).expect("it lies in target/<profile>/deps");
    // `cargo xtask test` has built everything already.
    if std::env::var_os("DIVVY_TEST_BUILT").is_some() {
        return folder.to_owned();
    }
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(name) => name,
    };
    let status = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "build",
            "--quiet",
            "--profile",
            profile,
            "--package",
            "limit-nvml",
        ])
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the library builds");
    folder.to_owned()
}

/// A loaded NVML.
struct Library(*mut c_void);

impl Library {
    fn open(path: &Path) -> Self {
        let name = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: a C string; the constructors run as in any program.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} does not load", path.display());
        Self(handle)
    }

    fn address(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: an open handle and a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    fn call(&self, name: &CStr) -> nvmlReturn_t {
        let address = self.address(name).expect("a function of this name");
        // SAFETY: the functions that the test calls so have no parameters.
        let function: unsafe extern "C" fn() -> nvmlReturn_t = unsafe { std::mem::transmute(address) };
        // SAFETY: as above.
        unsafe { function() }
    }

    fn error_string(&self, code: u32) -> CString {
        let address = self.address(c"nvmlErrorString").expect("every NVML has it");
        // SAFETY: its type is the table's.
        let function: unsafe extern "C" fn(nvmlReturn_t) -> *const c_char =
            unsafe { std::mem::transmute(address) };
        // SAFETY: any code may be asked for; the text lives for ever.
        unsafe { CStr::from_ptr(function(nvmlReturn_t(code))) }.to_owned()
    }
}

#[test]
fn nvidias_own_library_answers_through_the_limiter() {
    if let Some(folder) = std::env::var_os(CHILD) {
        return child(Path::new(&folder));
    }
    let libraries = libraries();
    let unpacked = libraries.with_file_name("debian").join("libnvidia-ml1");
    let nvidia = unpacked.join("usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1");
    if !nvidia.exists() {
        assert!(
            std::env::var_os("DIVVY_REQUIRE_ALL").is_none(),
            "DIVVY_REQUIRE_ALL is set and there is no {}",
            nvidia.display()
        );
        eprintln!("skipped: there is no {} (cargo xtask setup)", nvidia.display());
        return;
    }
    const TEST: &str = "nvidias_own_library_answers_through_the_limiter";
    let output = divvy_own_process::command(TEST)
        .env(CHILD, &libraries)
        .env("DIVVY_NVML", &nvidia)
        .env_remove("DIVVY_SLICE")
        .env_remove("DIVVY_LOG")
        .output()
        .expect("the child starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    divvy_own_process::assert_passed(TEST, &output);
    assert_eq!(said, "", "the limiter prints nothing");
}

fn child(folder: &Path) {
    let nvidia = std::env::var_os("DIVVY_NVML").expect("the parent sets it");
    let below = Library::open(Path::new(&nvidia));
    let limiter = Library::open(&folder.join("libdivvy_limit_nvml.so"));
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    let before = descriptors();
    let mut shared = 0;
    for name in Symbol::C_NAMES {
        assert!(limiter.address(name).is_some(), "{name:?} is not exported");
        shared += usize::from(below.address(name).is_some());
    }
    assert!(
        shared >= 330,
        "NVIDIA's library has only {shared} names of the table"
    );
    for code in (0..40).chain([999]) {
        assert_eq!(limiter.error_string(code), below.error_string(code), "{code}");
        // Our own texts, for the case without a library below, are NVIDIA's as far as this one knows the code.
        let theirs = below.error_string(code);
        if theirs.as_c_str() != c"Unknown Error" {
            assert_eq!(nvmlReturn_t(code).description(), theirs.as_c_str(), "{code}");
        }
    }
    assert_eq!(limiter.call(c"nvmlShutdown"), below.call(c"nvmlShutdown"));
    // On a machine without NVIDIA's kernel module this is NVML_ERROR_DRIVER_NOT_LOADED; with one, success.
    assert_eq!(limiter.call(c"nvmlInit_v2"), below.call(c"nvmlInit_v2"));
    assert_eq!(limiter.call(c"nvmlShutdown"), below.call(c"nvmlShutdown"));
    assert_eq!(descriptors(), before);
}
