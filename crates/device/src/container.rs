//! What a container is given of emulated devices: the folder that [`crate::granted`] reads there.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::HardwareError;
use crate::granted::{self, FILE};
use crate::mig;
use crate::pages;
use crate::product::identity::Uuid;

/// What a container is to have in `/run/divvy/device`. The folder itself must be one of the container's own: in a
/// folder of the host's a container could put a link where the host writes a file next time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Says what was granted. For reading.
    pub says: PathBuf,
    /// The folder of the socket that gives out the devices' pages. For reading, under the name `pages`.
    pub socket: PathBuf,
}

/// Makes, in `folder`, what a container is to have of the devices with these names, `GPU-…` or `MIG-…`, of the specification
/// `spec` in the run directory `run`. The agent makes the socket.
///
/// # Errors
/// What keeps the folder or a file from being made.
pub fn grant(folder: &Path, run: &Path, spec: &str, names: &[&str]) -> Result<Grant, HardwareError> {
    let failed = |why: io::Error| HardwareError::Directory(folder.to_owned(), why);
    let socket = folder.join(pages::FOLDER);
    fs::create_dir_all(&socket).map_err(failed)?;
    // Engines mount what is in it as root; no other user of the host needs it.
    fs::set_permissions(folder, Permissions::from_mode(0o700)).map_err(failed)?;
    // A container's programs, of whatever user, come to the socket.
    fs::set_permissions(&socket, Permissions::from_mode(0o711)).map_err(failed)?;
    let mut text = format!("spec {spec}\nrun_directory {}\n", run.display());
    for name in names {
        let gone = || {
            failed(io::Error::new(
                io::ErrorKind::NotFound,
                format!("there is no {name} here"),
            ))
        };
        let uuid = Uuid::parse(name).ok_or_else(gone)?;
        let line = match name.starts_with("MIG-") {
            true => granted::line(&mig::find(run, uuid).ok_or_else(gone)?),
            false => format!("uuid {uuid}"),
        };
        let _infallible = writeln!(text, "{line}");
    }
    let says = folder.join(FILE);
    replace(&says, &text).map_err(failed)?;
    Ok(Grant { says, socket })
}

/// Replaces the file of this name. A link of that name is not followed.
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
    use crate::granted::{Granted, granted_in};
    use crate::inventory::{compute_instances, devices, granted_devices};
    use crate::mig::{Refusal, Store};

    #[test]
    fn a_container_has_the_granted_devices_under_the_hosts_names() {
        let home = std::env::temp_dir().join(format!("divvy-granted-{}", std::process::id()));
        let run = home.join("run");
        fs::create_dir_all(&run).expect("a folder");
        let all = devices("h100*2,l4", &run).expect("devices");
        let folder = home.join("device");
        let asked = [all[1].id(), all[2].id()];
        let asked = asked.each_ref().map(String::as_str);
        let granted = grant(&folder, &run, "h100*2,l4", &asked).expect("granted");
        let precious = home.join("precious");
        fs::write(&precious, "kept").expect("written");
        fs::remove_file(&granted.says).expect("removed");
        symlink(&precious, &granted.says).expect("a link in its place");
        let again = grant(&folder, &run, "h100*2,l4", &asked).expect("granted again");
        assert_eq!(fs::read_to_string(&precious).expect("there"), "kept");
        assert_eq!(again, granted);
        let text = fs::read_to_string(folder.join(FILE)).expect("written");
        let seen = Granted::read(&text).expect("understood");
        let seen = granted_devices(&seen).expect("devices");
        let names: Vec<_> = seen.iter().map(|facts| (facts.index, facts.uuid)).collect();
        assert_eq!(names, [(0, all[1].uuid), (1, all[2].uuid)]);
        assert_eq!(granted_in(&folder), asked);
        assert_eq!(granted_in(&home), [""; 0]);
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        assert_eq!((mode(&folder), mode(&granted.socket)), (0o700, 0o711));
        let inside = fs::read_dir(&granted.socket).expect("a folder").count();
        assert_eq!(inside, 0, "no page of the device is a file");
        assert!(Granted::read("run_directory /x\n").is_none());
        fs::remove_dir_all(&home).expect("removed");
    }

    #[test]
    fn a_container_has_the_granted_instance_of_a_gpu_and_no_other() {
        let run = tempfile::tempdir().expect("a folder");
        let all = devices("l4,h100", run.path()).expect("devices");
        let product = all[1].mig_product().expect("it has MIG");
        let divided = Store::of(run.path(), all[1].uuid).change(|state| {
            state.on = true;
            for profile in [9, 19, 19] {
                let outer = state.create(product, profile, None)?;
                state.create_compute(product, outer, if profile == 9 { 2 } else { 0 }, None)?;
            }
            Ok::<_, Refusal>(())
        });
        divided.expect("written").expect("made");
        let parts = all[1].mig_devices(run.path()).expect("read");
        let folder = run.path().join("device");
        let grant = |names: &[&str]| grant(&folder, run.path(), "l4,h100", names);
        let names = [parts[0].id(), parts[2].id()];
        let names = names.each_ref().map(String::as_str);
        let granted = grant(&names).expect("granted");
        assert_eq!(granted_in(&folder), names);
        let text = fs::read_to_string(granted.says).expect("written");
        let seen = Granted::read(&text).expect("understood");
        let gpus = granted_devices(&seen).expect("devices");
        let uuids: Vec<_> = gpus.iter().map(|facts| (facts.index, facts.uuid)).collect();
        assert_eq!(uuids, [(0, all[1].uuid)], "its GPU, and not the other");
        let inside = compute_instances(&gpus[0], &seen.division(all[1].uuid));
        let inside: Vec<_> = inside
            .iter()
            .map(|facts| (facts.id(), facts.memory_bytes()))
            .collect();
        let expected = [&parts[0], &parts[2]].map(|facts| (facts.id(), facts.memory_bytes()));
        assert_eq!(inside, expected);
        assert!(!seen.division(all[0].uuid).on);
        assert!(grant(&["MIG-00000000-0000-0000-0000-000000000000"]).is_err());
        for odd in ["instance", "instance x gi 1 9 0 ci 0 3 0", "instance GPU-1 gi 1"] {
            let text = format!("spec h100\nrun_directory /x\n{odd}\n");
            assert!(
                Granted::read(&text).expect("understood").instances.is_empty(),
                "{odd}"
            );
        }
    }
}
