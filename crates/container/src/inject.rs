//! What a container of a slice has mounted.
//!
//! The limiter is mounted over the image's own libraries, and /etc/ld.so.preload loads it into every program of the
//! container. So no variable decides whether a program is in its slice. A shell that is opened later has an environment
//! of its own, and is in the slice all the same. A user's LD_PRELOAD works as ever, before ours.
//!
//! All mounts have fixed targets that we name; none is read from an image. All sources are files of the host's own
//! making, and read-only. No folder of the host's is writable in a container. The host's root would later meet what a
//! container put into one, perhaps a link in the place of a file.

use std::path::Path;

use divvy_agent::container::{Below, Grant, Parts};
use divvy_model::{Code, Fault};

use crate::cdi::Mount;
use crate::oci::clean;

/// Where the limiter's folder is.
pub const LIMITER: &str = "/run/divvy/lib";
/// Where the folder of the slice's socket is. The limiter looks here first.
pub const SLICE: &str = "/run/divvy/slice";
/// Where the driver below is.
pub const BELOW: &str = "/run/divvy/below";
/// Where the emulated driver looks for what it was granted.
pub const DEVICE: &str = "/run/divvy/device";
/// What ld.so(8) preloads into every program.
const PRELOAD: &str = "/etc/ld.so.preload";

/// Folders that the loaders of images search by themselves: Debian's, then Red Hat's and SUSE's. A path of the other
/// distribution's is made in the container and read by no loader.
#[cfg(target_arch = "x86_64")]
const LIBRARIES: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"];
#[cfg(not(target_arch = "x86_64"))]
const LIBRARIES: [&str; 2] = ["/usr/lib/aarch64-linux-gnu", "/usr/lib64"];

/// Whether a folder of the host's that a container has mounted there would be written to: the runtime makes empty files and
/// folders in it where ours are mounted. On the host such a `libcuda.so.1` would be in every program's way.
#[must_use]
pub fn is_written(target: &str) -> bool {
    let target = clean(target);
    // The targets of these links in most images.
    let target = match target.split('/').nth(1) {
        Some("lib" | "lib64") => format!("/usr{target}"),
        Some("var") if target.starts_with("/var/run") => target["/var".len()..].to_owned(),
        _ => target,
    };
    let folder = |place: &&str| {
        let rest = place.strip_prefix(&target);
        rest.is_some_and(|rest| target == "/" || rest.is_empty() || rest.starts_with('/'))
    };
    let places = [Path::new(PRELOAD), Path::new(LIMITER)].map(|path| path.parent().unwrap_or(path));
    LIBRARIES
        .into_iter()
        .chain(places.iter().filter_map(|place| place.to_str()))
        .any(|place| folder(&place))
}

/// The refusal of such a mount.
#[must_use]
pub fn written(source: &str, target: &str) -> Fault {
    Fault::new(
        Code::NotEnforceable,
        format!("`{source}` cannot be mounted at `{target}` in a container of a slice"),
    )
    .cause("the limiter's parts are mounted in there, and the runtime would make empty files for them in the host's folder")
    .hint("mount it elsewhere, and lead programs there with LD_LIBRARY_PATH or the like")
}

fn mount(from: &Path, to: &str, options: &[&str]) -> Mount {
    Mount {
        host_path: from.display().to_string(),
        container_path: to.into(),
        options: options.iter().map(|option| (*option).into()).collect(),
        kind: String::new(),
    }
}

/// A file or folder, for reading and executing only.
#[must_use]
pub fn bind(from: &Path, to: &str) -> Mount {
    mount(from, to, &["ro", "nosuid", "nodev", "bind"])
}

/// A file or folder of which nothing is executed.
fn data(from: &Path, to: &str) -> Mount {
    mount(from, to, &["ro", "nosuid", "nodev", "noexec", "bind"])
}

/// What the emulated driver finds of the devices that were granted: the file that names them, and the socket that gives
/// out their pages. They lie in a file system of the container's own. There its programs put what they share with each
/// other.
pub(crate) fn pages(grant: &Grant) -> Vec<Mount> {
    let own = Mount {
        host_path: "tmpfs".into(),
        container_path: DEVICE.into(),
        options: ["nosuid", "nodev", "noexec", "size=16m", "mode=755"]
            .map(Into::into)
            .into(),
        kind: "tmpfs".into(),
    };
    let target = |file: &Path| format!("{DEVICE}/{}", file.file_name().unwrap_or_default().display());
    let says = data(&grant.says, &target(&grant.says));
    // The holder may be replaced: it is the socket's folder that is mounted.
    let socket = data(&grant.socket, &target(&grant.socket));
    vec![own, says, socket]
}

/// A library over an image's own, whatever the distribution.
#[must_use]
pub fn over_libraries(file: &Path, name: &str) -> Vec<Mount> {
    LIBRARIES
        .iter()
        .map(|folder| bind(file, &format!("{folder}/{name}")))
        .collect()
}

/// The mounts of a slice: the limiter, the slice's socket, the driver below. Of a slice with workers: the split driver and
/// the slice's socket, and no driver.
#[must_use]
pub fn mounts(parts: &Parts) -> Vec<Mount> {
    let mut mounts = vec![
        bind(&parts.limiter, LIMITER),
        data(&parts.socket, SLICE),
        data(&parts.preload, PRELOAD),
    ];
    for name in ["libcuda.so", "libnvidia-ml.so"] {
        let file = parts.limiter_files.join(format!("{name}.1"));
        mounts.extend(over_libraries(&file, &format!("{name}.1")));
        mounts.extend(over_libraries(&file, name));
    }
    match &parts.below {
        Below::Worker => {}
        Below::Folder(folder) => mounts.push(bind(folder, BELOW)),
        Below::Driver(cuda) => {
            mounts.push(bind(cuda, &format!("{BELOW}/libcuda.so.1")));
            let nvml = cuda.with_file_name("libnvidia-ml.so.1");
            if nvml.exists() {
                mounts.push(bind(&nvml, &format!("{BELOW}/libnvidia-ml.so.1")));
            }
        }
    }
    mounts.extend(parts.device.iter().flat_map(pages));
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_ours_would_be_made_in_are_known() {
        for target in [
            LIBRARIES[0],
            "/usr/lib64",
            "/usr/lib/",
            "/usr//lib/./",
            "/usr",
            "/lib64",
            "/lib",
            "/etc",
            "/run",
            "/var/run",
            "/run/divvy",
            "/",
        ] {
            assert!(is_written(target), "{target}");
        }
        for target in [
            "/etc/hosts",
            "/usr/local/lib",
            "/usr/lib/python3",
            "/library",
            "/data",
            "/run/secrets",
            "/var",
            "/etcetera",
        ] {
            assert!(!is_written(target), "{target}");
        }
    }
}
