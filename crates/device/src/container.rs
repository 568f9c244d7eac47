//! Emulated devices in a container.
//!
//! A container has no run directory and perhaps no variable of ours. What it was granted of emulated devices is a folder
//! at a fixed path, as a device node is: a file that says which devices they are, and the socket at which their pages are to
//! be had. Where that is there, variables say nothing.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::hardware::{HardwareError, run_directory};
use crate::held;
use crate::inventory::{DeviceFacts, devices};
use crate::product::identity::Uuid;
use crate::product::spec;

/// Where a container has the folder that [`grant`] makes.
pub const FOLDER: &str = "/run/divvy/device";
/// The file in it that says what the container was granted.
const FILE: &str = "granted";
/// Where a container's keeper is asked under which id the host knows us.
const KEEPER: &str = "/run/divvy/slice/attach.sock";

/// What a container was granted.
pub struct Granted {
    /// The host's specification, a value of `DIVVY_EMULATED`.
    spec: String,
    /// The run directory on the host: a device's UUID is derived from it.
    run_directory: PathBuf,
    /// Those of the specification's devices that were granted.
    uuids: Vec<Uuid>,
}

/// What this container was granted; none on a host.
pub fn granted() -> Option<&'static Granted> {
    static GRANTED: OnceLock<Option<Granted>> = OnceLock::new();
    GRANTED
        .get_or_init(|| Granted::read(&fs::read_to_string(Path::new(FOLDER).join(FILE)).ok()?))
        .as_ref()
}

impl Granted {
    /// Lines of `key value`.
    fn read(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let line = |line: &'_ str| Some(line.strip_prefix(key)?.strip_prefix(' ')?.to_owned());
            text.lines().find_map(line)
        };
        let uuids = text.lines().filter_map(|line| line.strip_prefix("uuid "));
        Some(Self {
            spec: value("spec")?,
            run_directory: value("run_directory")?.into(),
            uuids: uuids.filter_map(Uuid::parse).collect(),
        })
    }

    /// The granted devices, numbered from 0.
    ///
    /// # Errors
    /// A specification that is not understood.
    pub fn devices(&self) -> Result<Vec<DeviceFacts>, spec::SpecError> {
        let mut found = devices(&self.spec, &self.run_directory)?;
        found.retain(|facts| self.uuids.contains(&facts.uuid));
        for (index, facts) in found.iter_mut().enumerate() {
            facts.index = index;
        }
        Ok(found)
    }
}

/// The file of a run directory that says in which process id namespace its agent is: what `/proc/self/ns/pid` says there.
pub const NAMESPACE: &str = "pid-namespace";

/// Who tells our id where it is not the one that the host knows us by: the keeper of the slice in a container, or of a
/// slice in which somebody made a namespace of processes.
fn who_tells() -> Option<PathBuf> {
    if granted().is_some() {
        return Some(KEEPER.into());
    }
    let keeper = std::env::var_os("DIVVY_SLICE")?;
    let hosts = fs::read(run_directory().join(NAMESPACE)).ok()?;
    let own = fs::read_link("/proc/self/ns/pid").ok()?;
    (own.as_os_str().as_bytes() != hosts).then(|| keeper.into())
}

/// The id of this process as the host knows it, else its own.
pub fn host_pid() -> u32 {
    // Our own id beside the host's: a child has another, and asks anew.
    static TOLD: AtomicU64 = AtomicU64::new(0);
    let own = std::process::id();
    let told = TOLD.load(Ordering::Relaxed);
    if told >> 32 == u64::from(own) {
        return told as u32;
    }
    let known = |pid: u32| {
        TOLD.store(u64::from(own) << 32 | u64::from(pid), Ordering::Relaxed);
        pid
    };
    let Some(keeper) = who_tells() else {
        return known(own);
    };
    match divvy_ledger::attach::observe(&keeper, 0) {
        Ok(seen) if seen.observer_pid != 0 => known(seen.observer_pid),
        _ => own,
    }
}

/// What a container is to have in `/run/divvy/device`. The folder itself must be one of the container's own: in a folder of
/// the host's a container could put a link where the host writes a file next time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Says what was granted. For reading.
    pub says: PathBuf,
    /// The folder of the socket at which the devices' pages are given out. For reading, under the name `pages`.
    pub socket: PathBuf,
}

/// Makes, in `folder`, what a container is to have of these devices of the specification `spec` in the run directory `run`.
/// The socket is the agent's to make.
///
/// # Errors
/// What keeps the folder or a file from being made.
pub fn grant(folder: &Path, run: &Path, spec: &str, uuids: &[Uuid]) -> Result<Grant, HardwareError> {
    let failed = |why: io::Error| HardwareError::Directory(folder.to_owned(), why);
    let socket = folder.join(held::FOLDER);
    fs::create_dir_all(&socket).map_err(failed)?;
    // Engines mount what is in it as root; nobody else of the host has to do with it.
    fs::set_permissions(folder, Permissions::from_mode(0o700)).map_err(failed)?;
    // A container's programs, of whatever user, come to the socket.
    fs::set_permissions(&socket, Permissions::from_mode(0o711)).map_err(failed)?;
    let mut text = format!("spec {spec}\nrun_directory {}\n", run.display());
    for uuid in uuids {
        let _infallible = writeln!(text, "uuid {uuid}");
    }
    let says = folder.join(FILE);
    replace(&says, &text).map_err(failed)?;
    Ok(Grant { says, socket })
}

/// The devices that [`grant`] wrote into this folder; none where it made none there.
#[must_use]
pub fn granted_in(folder: &Path) -> Vec<Uuid> {
    let text = fs::read_to_string(folder.join(FILE)).unwrap_or_default();
    Granted::read(&text).map_or_else(Vec::new, |granted| granted.uuids)
}

/// Puts a new file in the place of whatever has the name, which is not followed.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let aside = path.with_extension(format!("{}", std::process::id()));
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(&aside)?.write_all(text.as_bytes())?;
    fs::rename(&aside, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_container_has_the_granted_devices_under_the_hosts_names() {
        let home = std::env::temp_dir().join(format!("divvy-granted-{}", std::process::id()));
        let run = home.join("run");
        fs::create_dir_all(&run).expect("a folder");
        let all = devices("h100*2,l4", &run).expect("devices");
        let folder = home.join("device");
        let granted = grant(&folder, &run, "h100*2,l4", &[all[1].uuid, all[2].uuid]).expect("granted");
        let precious = home.join("precious");
        fs::write(&precious, "kept").expect("written");
        fs::remove_file(&granted.says).expect("removed");
        symlink(&precious, &granted.says).expect("a link in its place");
        let again = grant(&folder, &run, "h100*2,l4", &[all[1].uuid, all[2].uuid]).expect("granted again");
        assert_eq!(fs::read_to_string(&precious).expect("there"), "kept");
        assert_eq!(again, granted);
        let text = fs::read_to_string(folder.join(FILE)).expect("written");
        let seen = Granted::read(&text)
            .expect("understood")
            .devices()
            .expect("devices");
        let names: Vec<_> = seen.iter().map(|facts| (facts.index, facts.uuid)).collect();
        assert_eq!(names, [(0, all[1].uuid), (1, all[2].uuid)]);
        assert_eq!(granted_in(&folder), [all[1].uuid, all[2].uuid]);
        assert_eq!(granted_in(&home), []);
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        assert_eq!((mode(&folder), mode(&granted.socket)), (0o700, 0o711));
        let inside = fs::read_dir(&granted.socket).expect("a folder").count();
        assert_eq!(inside, 0, "no page of the device is a file");
        assert!(Granted::read("run_directory /x\n").is_none());
        fs::remove_dir_all(&home).expect("removed");
    }
}
