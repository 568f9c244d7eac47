//! Children of a test: the test program itself, started again for one of its tests with another environment. A process
//! has one limiter, one driver below and one slice for life.
#![allow(dead_code, reason = "each suite uses its part")]

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use divvy_abi::c_void;

/// Set in children, to the folder of the libraries.
const CHILD: &str = "DIVVY_TEST_CHILD";

/// The folder of the limiter and of the drivers that tests put below it, all built.
pub fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(built) = std::env::var_os(CHILD) {
            return built.into();
        }
        // A test lies in target/<profile>/deps.
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
            .args(["build", "--quiet", "--profile", profile])
            .args(["--package", "limit-cuda", "--package", "null-cuda"])
            .args(["--package", "emulated-cuda"])
            .status()
            .expect("cargo starts");
        assert!(status.success(), "the libraries build");
        folder.to_owned()
    })
}

pub fn limiter() -> PathBuf {
    libraries().join("libdivvy_limit_cuda.so")
}

pub fn null_driver() -> PathBuf {
    libraries().join("libdivvy_null_cuda.so")
}

pub fn emulated_driver() -> PathBuf {
    libraries().join("libdivvy_emulated_cuda.so")
}

/// NVIDIA's driver library: the one that `DIVVY_TEST_DRIVER` names, else the one that `cargo xtask setup` unpacks from
/// Debian's libcuda1.
pub fn nvidia_driver() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("DIVVY_TEST_DRIVER") {
        return Some(named.into());
    }
    // Libraries lie in target/<profile>.
    let unpacked = libraries()
        .parent()?
        .join("debian/libcuda1/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1");
    unpacked.exists().then_some(unpacked)
}

/// Whether this process is the child of its test.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs the test called `name` again in a child, where it takes its [`is_child`] path.
pub fn child(name: &str, environment: &[(&str, &Path)]) -> Output {
    let mut command = divvy_own_process::command(name);
    command.env(CHILD, libraries());
    for variable in ["DIVVY_SLICE", "DIVVY_DRIVER", "DIVVY_LOG"] {
        command.env_remove(variable);
    }
    for (variable, value) in environment {
        command.env(variable, value);
    }
    command.output().expect("the child starts")
}

/// Runs a child that must succeed and print nothing of its own.
pub fn quiet_child(name: &str, environment: &[(&str, &Path)]) {
    let output = child(name, environment);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    divvy_own_process::assert_passed(name, &output);
    assert_eq!(err, "", "{name} printed on stderr");
    for line in out.lines().filter(|line| !line.is_empty()) {
        // The test harness's own words.
        assert!(
            line.starts_with("running 1 test") || line.starts_with("test "),
            "{name} printed {line}"
        );
    }
}

/// A library loaded by path.
pub struct Library(*mut c_void);

impl Library {
    pub fn load(path: &Path) -> Self {
        let name = CString::new(path.as_os_str().as_bytes()).expect("no NUL in a path");
        // SAFETY: a C string.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} loads", path.display());
        Self(handle)
    }

    /// Address of an export, or null.
    pub fn address(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle stays open.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }

    /// An export as a function.
    ///
    /// # Safety
    /// `F` is a pointer to function of the export's type.
    pub unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        let address = self.address(name);
        assert!(!address.is_null(), "{name:?} is exported");
        assert_eq!(size_of::<F>(), size_of_val(&address));
        // SAFETY: the caller's promise; both are pointers.
        unsafe { std::mem::transmute_copy(&address) }
    }
}
