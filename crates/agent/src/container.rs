//! What containers have of a lasting slice: folders and files on the host, ready to be mounted.
//!
//! Nothing here knows a container engine. What is mounted where, and how an engine is told, is `crates/container`'s.

use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub use divvy_host::Grant;
use divvy_host::{find_driver, grant_emulated};
use divvy_model::{Code, DeviceKind, DeviceRecord, Fault, SliceRecord};

use crate::RunDir;
use crate::privilege;
use crate::stage::{DropIns, second_name, stage_for_containers};

/// What containers have of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The folder of the keeper's socket. The keeper may be replaced: it is the folder that is mounted.
    pub socket: PathBuf,
    /// The limiter's libraries, in a folder for each value that `$LIB` has in one image or another.
    pub limiter: PathBuf,
    /// The one of these folders whose files are mounted over an image's own libraries.
    pub limiter_files: PathBuf,
    /// What /etc/ld.so.preload is to say.
    pub preload: PathBuf,
    /// The driver below.
    pub below: Below,
    /// Of emulated devices: what says which, and their pages.
    pub device: Option<Grant>,
}

/// The driver below the limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Below {
    /// A folder with both libraries: the emulated device's.
    Folder(PathBuf),
    /// NVIDIA's libcuda.so.1, as it lies on the host.
    Driver(PathBuf),
}

/// Makes what containers are to have of the slice, or makes it anew. `lib` is where they will have the limiter's folder,
/// and `preloads` are libraries of the image's own that every program in it is to load first.
///
/// # Errors
/// [`Code::RunDir`], [`Code::DropIn`], [`Code::Driver`].
pub fn prepare(
    run: &RunDir,
    slice: &SliceRecord,
    devices: &[DeviceRecord],
    lib: &str,
    preloads: &[String],
) -> Result<Parts, Fault> {
    let home = run.container(&slice.id);
    let cannot = |error: std::io::Error| {
        Fault::new(
            Code::RunDir,
            format!("cannot prepare `{}` for containers", home.display()),
        )
        .because(&error)
        .hint("only the user of the run directory, or root, can share its slices with containers")
    };
    let drop_ins = DropIns::find()?;
    let (limiter, limiter_files) = stage_for_containers(run, &drop_ins.limiter.links())?;
    folder(&run.path().join("containers"), 0o711).map_err(cannot)?;
    folder(&home, 0o711).map_err(cannot)?;
    let preload = home.join("ld.so.preload");
    write_readable(&preload, &preload_text(lib, preloads)).map_err(cannot)?;
    let emulated = devices.iter().all(|device| device.kind == DeviceKind::Emulated);
    let (below, device) = if emulated {
        let (_, files) = stage_for_containers(run, &drop_ins.emulated.links())?;
        let spec = slice.emulated_spec.as_deref().unwrap_or_default();
        let uuids: Vec<&str> = devices.iter().map(|device| device.uuid.as_str()).collect();
        let granted = grant_emulated(&home.join("device"), run.path(), spec, &uuids)?;
        (Below::Folder(files), Some(granted))
    } else {
        let driver = find_driver(None, std::slice::from_ref(&drop_ins.limiter.cuda))?;
        (Below::Driver(driver.path), None)
    };
    Ok(Parts {
        socket: run.slice_box(&slice.id),
        limiter,
        limiter_files,
        preload,
        below,
        device,
    })
}

/// Makes what containers are to have of emulated devices without a slice: their pages, in a folder which is called
/// `name`, and the folder of the emulated driver's libraries.
///
/// # Errors
/// [`Code::RunDir`], [`Code::DropIn`].
pub fn prepare_emulated(
    run: &RunDir,
    name: &str,
    spec: &str,
    uuids: &[&str],
) -> Result<(Grant, PathBuf), Fault> {
    let home = run.container(&format!("device-{name}"));
    let all = run.path().join("containers");
    folder(&all, 0o711).map_err(|error| {
        Fault::new(
            Code::RunDir,
            format!("cannot prepare `{}` for containers", all.display()),
        )
        .because(&error)
    })?;
    let (_, files) = stage_for_containers(run, &DropIns::find()?.emulated.links())?;
    let granted = grant_emulated(&home, run.path(), spec, uuids)?;
    Ok((granted, files))
}

/// One path to a line: ld.so(8) takes them apart at white space and colons.
fn preload_text(lib: &str, preloads: &[String]) -> String {
    let names = ["libcuda.so", "libnvidia-ml.so"];
    let libraries = names.map(|name| format!("{lib}/$LIB/{name}.1"));
    let second_names = names.map(|name| format!("{lib}/$LIB/{}", second_name(name)));
    let all = preloads.iter().chain(&libraries).chain(&second_names);
    let all: Vec<&str> = all.map(String::as_str).collect();
    all.join("\n") + "\n"
}

/// Writes down which file outside the run directory describes the slice to container engines, so that it goes when the
/// slice does.
///
/// # Errors
/// [`Code::RunDir`].
pub fn remember(run: &RunDir, id: &str, file: &Path) -> Result<(), Fault> {
    let list = run.container(id).join(FILES);
    let known = fs::read_to_string(&list).unwrap_or_default();
    let line = file.to_string_lossy();
    if known.lines().any(|known| known == line) {
        return Ok(());
    }
    fs::write(&list, format!("{known}{line}\n")).map_err(|error| {
        Fault::new(Code::RunDir, format!("cannot write `{}`", list.display())).because(&error)
    })
}

/// Removes the files that describe a slice.
pub(crate) fn forget(run: &RunDir, id: &str) {
    let Ok(text) = fs::read_to_string(run.container(id).join(FILES)) else {
        return;
    };
    for file in text.lines().map(Path::new) {
        // Only ever what we name: the list may have been damaged.
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if file.is_absolute() && name.starts_with("divvy-") && name.ends_with(".json") {
            let removed = match fs::remove_file(file) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => privilege::remove_cdi(file),
                removed => removed,
            };
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    tracing::warn!(slice = id, file = %file.display(), %error, "cannot remove a slice's CDI file");
                }
                _ => {}
            }
        }
    }
}

const FILES: &str = "files";

fn folder(path: &Path, mode: u32) -> std::io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => fs::set_permissions(path, Permissions::from_mode(mode)),
    }
}

/// The file keeps its inode: containers that run have it mounted.
fn write_readable(path: &Path, text: &str) -> std::io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|now| now == text) {
        return Ok(());
    }
    fs::write(path, text)?;
    fs::set_permissions(path, Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_own_preloads_come_first() {
        assert_eq!(
            preload_text("/l", &["/opt/p.so".into()]),
            "/opt/p.so\n/l/$LIB/libcuda.so.1\n/l/$LIB/libnvidia-ml.so.1\n\
             /l/$LIB/libcuda-name.so\n/l/$LIB/libnvidia-ml-name.so\n"
        );
    }

    #[test]
    fn what_describes_a_slice_goes_with_it_and_nothing_else_does() {
        let base = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&base.path().join("run")).expect("a run directory");
        fs::create_dir_all(run.container("ab")).expect("a folder");
        let (spec, other) = (
            base.path().join("divvy-slice-a.json"),
            base.path().join("somebody.json"),
        );
        for file in [&spec, &other] {
            fs::write(file, "{}").expect("written");
            remember(&run, "ab", file).expect("remembered");
        }
        remember(&run, "ab", &spec).expect("once");
        crate::records::discard(&run, "ab");
        assert!(!spec.exists() && other.exists());
        assert!(!run.container("ab").exists());
    }
}
