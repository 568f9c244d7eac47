//! The settings, as they were when the library was loaded.
//!
//! They are read once and early: a program that cleans its environment before its first CUDA call stays in its slice.
//!
//! In a container they are not variables. A container's grant lies at fixed paths below [`CONTAINER`], and if that
//! folder exists, variables are ignored. So a shell that is opened in the container later, with an environment of its
//! own, is in the same slice.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where a container's runtime mounts the slice's socket (`slice/attach.sock`) and the driver below
/// (`below/libcuda.so.1`, `below/libnvidia-ml.so.1`). The crate `crates/container` writes these mounts.
const CONTAINER: &str = "/run/divvy";

/// A path from the environment, or `None` if the variable is unset or empty; in a container the fixed path.
struct Setting {
    name: &'static str,
    /// The path below [`CONTAINER`]; none for a setting that a container does not fix.
    fixed: Option<&'static str>,
    value: OnceLock<Option<PathBuf>>,
}

impl Setting {
    const fn new(name: &'static str, fixed: Option<&'static str>) -> Self {
        Self {
            name,
            fixed,
            value: OnceLock::new(),
        }
    }

    fn get(&self) -> Option<&Path> {
        static GRANTED: OnceLock<bool> = OnceLock::new();
        let value = self.value.get_or_init(|| {
            let container = Path::new(CONTAINER);
            let granted = GRANTED.get_or_init(|| is_granted(container));
            value(
                container,
                self.fixed.filter(|_| *granted),
                // The user who starts a set-id program writes its environment, but the program runs as another user.
                std::env::var_os(self.name).filter(|_| !is_secure()),
            )
        });
        value.as_deref()
    }
}

/// Whether the kernel started this program with more rights than its caller has: set-uid, set-gid, or capabilities.
fn is_secure() -> bool {
    // SAFETY: it reads the process's auxiliary vector, which the kernel wrote and no code changes.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether `container` is the folder of a container with a grant. The folder in it decides, not the socket. While a
/// page server is being replaced there is no socket for a moment; then the slice cannot be joined, and calls are
/// refused. No slice at all would mean no limit.
fn is_granted(container: &Path) -> bool {
    container.join("slice").is_dir()
}

/// A setting's value: the path `fixed` below `container`, else the variable's value.
fn value(container: &Path, fixed: Option<&str>, variable: Option<OsString>) -> Option<PathBuf> {
    match fixed {
        Some(fixed) => Some(container.join(fixed)),
        None => variable.filter(|value| !value.is_empty()).map(PathBuf::from),
    }
}

static SLICE: Setting = Setting::new("DIVVY_SLICE", Some("slice/attach.sock"));
static DRIVER: Setting = Setting::new("DIVVY_DRIVER", Some("below/libcuda.so.1"));
static NVML: Setting = Setting::new("DIVVY_NVML", Some("below/libnvidia-ml.so.1"));
static LOG: Setting = Setting::new("DIVVY_LOG", None);
static LOG_LEVEL: Setting = Setting::new("DIVVY_LOG_LEVEL", None);

/// Reads the settings now; for a drop-in's load, before the program runs.
pub extern "C" fn capture() {
    for setting in [&SLICE, &DRIVER, &NVML, &LOG, &LOG_LEVEL] {
        setting.get();
    }
}

/// The slice's attach socket.
pub(crate) fn slice() -> Option<&'static Path> {
    SLICE.get()
}

/// The driver below, by absolute path.
pub(crate) fn driver() -> Option<&'static Path> {
    DRIVER.get()
}

/// The NVML below, by absolute path.
pub(crate) fn nvml() -> Option<&'static Path> {
    NVML.get()
}

/// The file for log lines.
pub(crate) fn log() -> Option<&'static Path> {
    LOG.get()
}

/// Whether the log also has lines about what went well.
pub(crate) fn logs_all() -> bool {
    LOG.get().is_some() && LOG_LEVEL.get().is_some_and(|level| level.as_os_str() == "all")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_container_is_granted_no_variable_changes() {
        let container = std::env::temp_dir().join(format!("divvy-container-{}", std::process::id()));
        let fixed = || is_granted(&container).then_some("slice/attach.sock");
        let told = |text: &str| value(&container, fixed(), Some(text.into()));
        assert_eq!(told("/somewhere"), Some("/somewhere".into()));
        assert_eq!(told(""), None);
        std::fs::create_dir_all(container.join("slice")).expect("a folder");
        let socket = Some(container.join("slice/attach.sock"));
        assert_eq!(told("/somewhere"), socket);
        assert_eq!(value(&container, fixed(), None), socket);
        assert_eq!(value(&container, None, Some("x".into())), Some("x".into()));
        std::fs::remove_dir_all(&container).expect("removed");
    }

    /// The child's side of the next test: prints the variables as a program sees them.
    #[test]
    fn child_of_another_user() {
        if std::env::var_os("DIVVY_TEST_SECURE").is_some() {
            // SAFETY: it asks the kernel for a number.
            let user = unsafe { libc::geteuid() };
            println!("as {user}, log: {:?}", LOG.get());
        }
    }

    #[test]
    fn a_set_uid_program_reads_no_variable() {
        use std::os::unix::fs::PermissionsExt as _;
        use std::os::unix::process::CommandExt as _;
        // SAFETY: it asks the kernel for a number.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let folder = std::env::temp_dir().join(format!("divvy-secure-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let program = folder.join("program");
        std::fs::copy(std::env::current_exe().expect("a file"), &program).expect("copied");
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        };
        mode(&folder, 0o755);
        let child = divvy_own_process::beside("child_of_another_user");
        let told = |bits| {
            mode(&program, bits);
            let output = std::process::Command::new(&program)
                .args(["--exact", &child, "--nocapture"])
                .env("DIVVY_TEST_SECURE", "1")
                .env("DIVVY_LOG", "/somewhere")
                .current_dir("/")
                .uid(64_321)
                .output()
                .expect("it runs");
            String::from_utf8(output.stdout).expect("text")
        };
        let (plain, secure) = (told(0o755), told(0o4755));
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!(plain.contains("as 64321, log: Some"), "{plain}");
        // If the file system is mounted without set-uid, there is nothing to test.
        assert!(
            secure.contains("as 0, log: None") || secure.contains("as 64321, log: Some"),
            "{secure}"
        );
    }
}
