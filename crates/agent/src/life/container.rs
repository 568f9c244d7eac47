//! The files of a lasting slice for containers: folders and files on the host, ready to be mounted.
//!
//! Nothing here knows a container engine. `crates/container` decides what is mounted where, and how an engine is told.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use divvy_host::{find_driver, grant_emulated};
use divvy_model::{Code, DeviceKind, DeviceRecord, Fault, SliceRecord};
use serde::{Deserialize, Serialize};

use crate::api::{Described, Share, ShareDevices};
use crate::files::Folder;
use crate::holder::PageHolder;
use crate::launch::stage::{DropIns, second_name, stage_for_containers};
use crate::life::anchors::LifetimeAnchors;
use crate::life::described::{PRELOAD, remember};
use crate::start::rundir::RunDir;
use crate::start::rundir::{BOXES, CONTAINERS, ENTER_ONLY};
use crate::state::Shared;
use crate::system::peer::Peer;

/// The files for containers with emulated devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The file that says what was granted, to be mounted read-only.
    pub says: PathBuf,
    /// The folder of the socket at which its programs get the devices' pages, to be mounted read-only.
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

/// The files for containers with emulated devices and no slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedDevices {
    /// The devices.
    pub grant: Grant,
    /// The folder of the emulated driver's libraries.
    pub driver: PathBuf,
}

/// The files for containers of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// The folder of the page server's socket. The folder is mounted, because the page server may be replaced.
    pub socket: PathBuf,
    /// The limiter's libraries, or the split driver's under [`Below::Worker`], in a folder for each value that `$LIB` has in one image or another.
    pub limiter: PathBuf,
    /// The one of these folders whose files are mounted over an image's own libraries.
    pub limiter_files: PathBuf,
    /// The content of /etc/ld.so.preload.
    pub preload: PathBuf,
    /// The driver below.
    pub below: Below,
    /// For emulated devices: the file that says which, and the folder where their pages are served.
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
    /// None: workers make the calls of its programs. No node of a device belongs in the container.
    Worker,
}

/// Makes the files of slices for containers.
pub(crate) struct Containers {
    pub run: RunDir,
    /// The agent's own user.
    pub uid: u32,
    pub state: Shared,
    pub holder: Arc<PageHolder>,
    pub anchors: Arc<LifetimeAnchors>,
}

impl Containers {
    /// Makes the files of a lasting slice for containers.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::NotLasting`], [`Code::RunDir`], [`Code::DropIn`],
    /// [`Code::Driver`].
    pub fn share(&self, peer: Peer, which: &str, ask: &Share) -> Result<Parts, Fault> {
        // Only root, or the agent's own user without root, mounts into containers.
        peer.may_change(self.uid, self.uid)?;
        let (slice, devices) = {
            let mut state = self.state.lock();
            let record = state.find(which, peer)?.record.clone();
            record.require_lasting("`divvy slice create` makes slices that containers can have")?;
            let devices = record.shares.iter().map(|share| state.device(&share.device_uuid));
            (record.clone(), devices.collect::<Result<Vec<_>, _>>()?)
        };
        let parts = prepare(&self.run, &slice, &devices, &ask.lib, &ask.preloads)?;
        if parts.device.is_some() {
            let uuids: Vec<&str> = devices.iter().map(|device| device.uuid.as_str()).collect();
            self.holder.hold_granted(&uuids)?;
        }
        self.anchors.watch_for_container(&slice);
        Ok(parts)
    }

    /// Notes a file that describes a slice to container engines.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::RunDir`].
    pub fn described(&self, peer: Peer, which: &str, ask: &Described) -> Result<SliceRecord, Fault> {
        peer.may_change(self.uid, self.uid)?;
        let mut state = self.state.lock();
        let slice = state.find(which, peer)?;
        remember(&self.run, &slice.record.id, &ask.file)?;
        Ok(slice.shown())
    }

    /// Makes the files of emulated devices without a slice for containers.
    ///
    /// # Errors
    /// [`Code::NotAllowed`], [`Code::Usage`] for a name that is none, [`Code::RunDir`], [`Code::DropIn`].
    pub fn share_devices(&self, peer: Peer, ask: &ShareDevices) -> Result<SharedDevices, Fault> {
        peer.may_change(self.uid, self.uid)?;
        let uuids: Vec<&str> = ask.uuids.iter().map(String::as_str).collect();
        let shared = prepare_emulated(&self.run, &ask.name, &ask.spec, &uuids)?;
        self.holder.hold_granted(&uuids)?;
        Ok(shared)
    }
}

/// Makes a slice's files for containers, or replaces them. `lib` is where the containers will have the limiter's
/// folder. `preloads` are the image's own libraries that every program in it is to load first.
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
    let remote = slice.worker.is_some();
    let (limiter, limiter_files) = match remote {
        true => stage_for_containers(run, &drop_ins.remote_links()?)?,
        false => stage_for_containers(run, &drop_ins.limiter.links())?,
    };
    // An engine mounts files of it. Only containers of the slice, and processes that may enter here, can open them: see
    // `openings`.
    let folder = own_folder(run, &slice.id, AGENT_ONLY).map_err(cannot)?;
    write_readable(&folder, PRELOAD, &preload_text(lib, preloads)).map_err(cannot)?;
    // The source of a mount belongs to the agent: in an older layout a container would get what the slice's user put
    // there.
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
    let (below, device) = if remote {
        (Below::Worker, None)
    } else if emulated {
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

/// Makes the files of emulated devices without a slice for containers: their pages, in a folder called `name`, and the
/// folder of the emulated driver's libraries.
///
/// # Errors
/// [`Code::RunDir`], [`Code::DropIn`].
fn prepare_emulated(run: &RunDir, name: &str, spec: &str, uuids: &[&str]) -> Result<SharedDevices, Fault> {
    let name = format!("device-{name}");
    let home = run.container(&name);
    // Engines mount what is in it. At no moment could another user enter it.
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

/// The text of the file, one path a line: ld.so(8) splits it at white space and colons.
fn preload_text(lib: &str, preloads: &[String]) -> String {
    let names = ["libcuda.so", "libnvidia-ml.so"];
    let libraries = names.iter().map(|name| format!("{lib}/$LIB/{name}.1"));
    let second_names = names
        .iter()
        .map(|name| format!("{lib}/$LIB/{}", second_name(name)));
    let ours: Vec<String> = libraries.chain(second_names).collect();
    let all = preloads.iter().chain(&ours);
    let all: Vec<&str> = all.map(String::as_str).collect();
    all.join("\n") + "\n"
}

/// The mode of a folder for the agent's user and root.
const AGENT_ONLY: u32 = 0o700;

/// The folder of the files for containers, of a slice or of a device.
fn own_folder(run: &RunDir, name: &str, mode: u32) -> io::Result<Folder> {
    run.folder()?.folder(CONTAINERS, ENTER_ONLY)?.folder(name, mode)
}

/// Running containers have the old file mounted and keep it. It differs only in the preloads of an image, which are
/// that container's own.
fn write_readable(folder: &Folder, name: &str, text: &str) -> io::Result<()> {
    match folder.read_text(name) {
        Ok(now) if now == text => Ok(()),
        _ => folder.write(name, text.as_bytes(), 0o644),
    }
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
}
