//! Which libcuda.so.1 stands below the limiter.

use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};

/// The driver below: an absolute path, and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverBelow {
    /// Absolute path of a libcuda.so.1.
    pub path: PathBuf,
    /// `--driver`, `found` or `emulated`.
    pub origin: &'static str,
}

/// Where distributions and containers put NVIDIA's library: Debian and Ubuntu, RPM distributions, Arch and SUSE,
/// WSL 2, NixOS.
const USUAL_PLACES: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/run/opengl-driver/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/local/cuda/compat/libcuda.so.1",
];

/// The places that are looked at, in order.
#[must_use]
pub fn native_candidates() -> Vec<PathBuf> {
    USUAL_PLACES.iter().map(PathBuf::from).collect()
}

/// The driver below: the one that was named, else NVIDIA's. `ours` are Divvy's own drop-ins, which must never stand
/// below themselves.
///
/// # Errors
/// [`Code::Driver`] when the named one is no file or one of ours, or none was found.
pub fn find_driver(named: Option<&Path>, ours: &[PathBuf]) -> Result<DriverBelow, Fault> {
    if let Some(path) = named {
        return named_driver(path, ours);
    }
    native_candidates()
        .into_iter()
        .find(|path| path.is_file() && !is_ours(path, ours))
        .map(|path| DriverBelow {
            path,
            origin: "found",
        })
        .ok_or_else(|| {
            Fault::new(Code::Driver, "no libcuda.so.1 was found on this machine")
                .hint("name one with --driver PATH, or use an emulated device with --device emulated:h100")
        })
}

fn named_driver(path: &Path, ours: &[PathBuf]) -> Result<DriverBelow, Fault> {
    let shown = path.display();
    let absolute = std::path::absolute(path).map_err(|error| {
        Fault::new(Code::Driver, format!("cannot use `{shown}` as driver")).because(&error)
    })?;
    if let Err(error) = std::fs::File::open(&absolute) {
        return Err(
            Fault::new(Code::Driver, format!("cannot open the driver `{shown}`"))
                .because(&error)
                .hint("give the path of a libcuda.so.1"),
        );
    }
    if !absolute.is_file() {
        return Err(
            Fault::new(Code::Driver, format!("the driver `{shown}` is no file"))
                .hint("give the path of a libcuda.so.1"),
        );
    }
    if is_ours(&absolute, ours) {
        return Err(Fault::new(
            Code::Driver,
            format!("the driver `{shown}` is Divvy's own limiter"),
        )
        .hint("name the driver that should stand below it"));
    }
    let cannot = Fault::new(Code::Driver, format!("`{shown}` is no CUDA driver"));
    let hint = "give the path of a libcuda.so.1";
    match crate::elf::exports(&absolute, "cuInit") {
        // The loader decides where the file does not tell.
        Ok(Some(true) | None) => {}
        Ok(Some(false)) => return Err(cannot.cause("it has no cuInit").hint(hint)),
        Err(error) => return Err(cannot.because(&error).hint(hint)),
    }
    Ok(DriverBelow {
        path: absolute,
        origin: "--driver",
    })
}

fn is_ours(path: &Path, ours: &[PathBuf]) -> bool {
    let Ok(real) = path.canonicalize() else {
        return false;
    };
    ours.iter()
        .any(|own| own.canonicalize().is_ok_and(|own| own == real))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_driver_must_be_a_file_and_not_ours() {
        let folder = std::env::temp_dir();
        let refused =
            |path: &Path, ours: &[PathBuf]| find_driver(Some(path), ours).expect_err("refused").message;
        assert!(refused(&folder, &[]).contains("is no file"));
        assert!(refused(Path::new("/nonexistent/libcuda.so.1"), &[]).contains("cannot open"));
        let own = std::env::current_exe().expect("a test has a file");
        assert!(refused(&own, std::slice::from_ref(&own)).contains("own limiter"));
        let refusal = find_driver(Some(&own), &[]).expect_err("a program");
        assert!(refusal.message.contains("is no CUDA driver"), "{refusal:?}");
        assert_eq!(refusal.causes, ["it has no cuInit"]);
        assert!(refused(Path::new("/etc/passwd"), &[]).contains("is no CUDA driver"));
    }
}
