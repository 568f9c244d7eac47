//! What containers have of a lasting slice: folders and files on the host, ready to be mounted.
//!
//! Nothing here knows a container engine. What is mounted where, and how an engine is told, is `crates/container`'s.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use divvy_host::{find_driver, grant_emulated};
use divvy_model::{Attendant, Code, DeviceKind, DeviceRecord, Fault, SliceRecord};
use serde::{Deserialize, Serialize};

use crate::api::{Described, Share, ShareDevices};
use crate::daemon::Daemon;
use crate::files::Folder;
use crate::launch::stage::{DropIns, second_name, stage_for_containers};
use crate::start::rundir::RunDir;
use crate::start::rundir::{BOXES, CONTAINERS, ENTER_ONLY};
use crate::system::peer::Peer;
use crate::system::privilege;

/// What a container is to have of emulated devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Says what was granted. For reading.
    pub says: PathBuf,
    /// The folder of the socket at which its programs get the devices' pages. For reading.
    pub socket: PathBuf,
}

impl From<divvy_host::Grant> for Grant {
    fn from(grant: divvy_host::Grant) -> Self {
        Self {
            says: grant.says,
            socket: grant.socket,
        }
    }
}

/// What containers have of emulated devices without a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedDevices {
    /// The devices.
    pub grant: Grant,
    /// The folder of the emulated driver's libraries.
    pub driver: PathBuf,
}

/// What containers have of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Of emulated devices: what says which, and where their pages are to be had.
    pub device: Option<Grant>,
}

/// The driver below the limiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Below {
    /// A folder with both libraries: the emulated device's.
    Folder(PathBuf),
    /// NVIDIA's libcuda.so.1, as it lies on the host.
    Driver(PathBuf),
}

impl Daemon {
    /// Makes ready what containers are to have of a lasting slice.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::NotLasting`], [`Code::RunDir`], [`Code::DropIn`], [`Code::Driver`].
    pub fn share(&self, peer: Peer, which: &str, ask: &Share) -> Result<Parts, Fault> {
        // Whoever mounts into containers is root, or the agent's own user without root.
        peer.may_change(self.uid, self.uid)?;
        let (slice, devices) = {
            let mut state = self.state();
            let record = state.find(which, peer)?.record.clone();
            record.require_lasting("`divvy slice create` makes slices that containers can have")?;
            let shares = record.shares();
            let devices = shares.iter().map(|share| state.device(&share.device_uuid));
            (record.clone(), devices.collect::<Result<Vec<_>, _>>()?)
        };
        let parts = prepare(&self.run, &slice, &devices, &ask.lib, &ask.preloads)?;
        if parts.device.is_some() {
            let uuids: Vec<&str> = devices.iter().map(|device| device.uuid.as_str()).collect();
            self.hold_granted(&uuids)?;
        }
        self.watch_for_container(&slice);
        Ok(parts)
    }

    /// Waits for the first container of a slice that goes with its containers.
    pub(crate) fn watch_for_container(&self, slice: &SliceRecord) {
        if let Some(Attendant::Containers { taken: false, .. }) = &slice.attendant
            && let Ok(folder) = self
                .run
                .folder()
                .and_then(|run| run.below(CONTAINERS)?.below(&slice.id))
        {
            self.openings.watch(&folder, PRELOAD, &slice.id);
        }
    }

    /// Notes a file that describes a slice to container engines.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::RunDir`].
    pub fn described(&self, peer: Peer, which: &str, ask: &Described) -> Result<SliceRecord, Fault> {
        peer.may_change(self.uid, self.uid)?;
        let mut state = self.state();
        let slice = state.find(which, peer)?;
        remember(&self.run, &slice.record.id, &ask.file)?;
        Ok(slice.shown())
    }

    /// Makes ready what containers are to have of emulated devices without a slice.
    ///
    /// # Errors
    /// [`Code::NotAllowed`], [`Code::Usage`] for a name that is none, [`Code::RunDir`], [`Code::DropIn`].
    pub fn share_devices(&self, peer: Peer, ask: &ShareDevices) -> Result<SharedDevices, Fault> {
        peer.may_change(self.uid, self.uid)?;
        let uuids: Vec<&str> = ask.uuids.iter().map(String::as_str).collect();
        let shared = prepare_emulated(&self.run, &ask.name, &ask.spec, &uuids)?;
        self.hold_granted(&uuids)?;
        Ok(shared)
    }
}

/// Makes what containers are to have of the slice, or makes it anew. `lib` is where they will have the limiter's folder,
/// and `preloads` are libraries of the image's own that every program in it is to load first.
///
/// # Errors
/// [`Code::RunDir`], [`Code::DropIn`], [`Code::Driver`].
fn prepare(
    run: &RunDir,
    slice: &SliceRecord,
    devices: &[DeviceRecord],
    lib: &str,
    preloads: &[String],
) -> Result<Parts, Fault> {
    let home = run.container(&slice.id);
    let cannot = |error: io::Error| {
        Fault::new(
            Code::RunDir,
            format!("cannot prepare `{}` for containers", home.display()),
        )
        .because(&error)
        .hint("only the user of the run directory, or root, can share its slices with containers")
    };
    let drop_ins = DropIns::find()?;
    let (limiter, limiter_files) = stage_for_containers(run, &drop_ins.limiter.links())?;
    // An engine mounts files of it. Only containers of the slice, and who may enter here, can open them: see `openings`.
    let folder = own_folder(run, &slice.id, AGENT_ONLY).map_err(cannot)?;
    write_readable(&folder, PRELOAD, &preload_text(lib, preloads)).map_err(cannot)?;
    // A source of a mount is the agent's own: a container of a slice of an older layout would get what its user put there.
    let own_box = run.folder().and_then(|home| home.below(BOXES)?.below(&slice.id));
    if own_box.is_err() {
        return Err(Fault::new(
            Code::PageVersion,
            format!(
                "slice {} was made by an earlier version, for which containers cannot have it",
                slice.name
            ),
        )
        .hint("delete it and make it again: `divvy slice delete`, `divvy slice create`"));
    }
    let emulated = devices.iter().all(|device| device.kind == DeviceKind::Emulated);
    let (below, device) = if emulated {
        let (_, files) = stage_for_containers(run, &drop_ins.emulated.links())?;
        let spec = slice.emulated_spec.as_deref().unwrap_or_default();
        let uuids: Vec<&str> = devices.iter().map(|device| device.uuid.as_str()).collect();
        let granted = grant_emulated(&home.join("device"), run.path(), spec, &uuids)?;
        (Below::Folder(files), Some(granted.into()))
    } else {
        let driver = find_driver(None, std::slice::from_ref(&drop_ins.limiter.cuda))?;
        (Below::Driver(driver.path), None)
    };
    Ok(Parts {
        socket: run.slice_box(&slice.id),
        limiter,
        limiter_files,
        preload: home.join(PRELOAD),
        below,
        device,
    })
}

/// Makes what containers are to have of emulated devices without a slice: their pages, in a folder which is called
/// `name`, and the folder of the emulated driver's libraries.
///
/// # Errors
/// [`Code::RunDir`], [`Code::DropIn`].
fn prepare_emulated(run: &RunDir, name: &str, spec: &str, uuids: &[&str]) -> Result<SharedDevices, Fault> {
    let name = format!("device-{name}");
    let home = run.container(&name);
    // Engines mount what is in it. For another user there is no moment in which it could be entered.
    own_folder(run, &name, AGENT_ONLY).map_err(|error| {
        Fault::new(
            Code::RunDir,
            format!("cannot prepare `{}` for containers", home.display()),
        )
        .because(&error)
    })?;
    let (_, files) = stage_for_containers(run, &DropIns::find()?.emulated.links())?;
    let granted = grant_emulated(&home, run.path(), spec, uuids)?;
    Ok(SharedDevices {
        grant: granted.into(),
        driver: files,
    })
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
fn remember(run: &RunDir, id: &str, file: &Path) -> Result<(), Fault> {
    let line = file.to_string_lossy();
    let add = || -> io::Result<()> {
        let folder = own_folder(run, id, AGENT_ONLY)?;
        let known = folder.read_text(FILES).unwrap_or_default();
        match known.lines().any(|known| known == line) {
            true => Ok(()),
            false => folder.write(FILES, format!("{known}{line}\n").as_bytes(), 0o600),
        }
    };
    add().map_err(|error| {
        let list = run.container(id).join(FILES);
        Fault::new(Code::RunDir, format!("cannot write `{}`", list.display())).because(&error)
    })
}

/// Removes the files that describe a slice.
pub(crate) fn forget(run: &RunDir, id: &str) {
    let list = || run.folder()?.below(CONTAINERS)?.below(id)?.read_text(FILES);
    let Ok(text) = list() else {
        return;
    };
    for file in text.lines().map(Path::new) {
        // Only ever what we name: the list may have been damaged.
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if file.is_absolute() && name.starts_with("divvy-") && name.ends_with(".json") {
            let folder = file.parent().unwrap_or(file);
            let removed = match Folder::settled(folder).and_then(|folder| folder.remove(&name)) {
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

/// The mode of a folder for the agent's user and root.
const AGENT_ONLY: u32 = 0o700;
const FILES: &str = "files";
const PRELOAD: &str = "ld.so.preload";

/// The folder of what containers have of a slice, or of a device.
fn own_folder(run: &RunDir, name: &str, mode: u32) -> io::Result<Folder> {
    run.folder()?.folder(CONTAINERS, ENTER_ONLY)?.folder(name, mode)
}

/// Containers that run have the file mounted, and keep the one they have: it says the same in all but the preloads of an
/// image, which are that container's own.
fn write_readable(folder: &Folder, name: &str, text: &str) -> io::Result<()> {
    match folder.read_text(name) {
        Ok(now) if now == text => Ok(()),
        _ => folder.write(name, text.as_bytes(), 0o644),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        crate::life::records::discard(&run, "ab");
        assert!(!spec.exists() && other.exists());
        assert!(!run.container("ab").exists());
    }
}
