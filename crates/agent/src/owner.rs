//! One owner per device on a host, by an abstract unix socket. docs/adr/0004 says why.
//!
//! The name is bound by the agent that first hands out a slice of the device, and is free again when that agent is
//! dead, by whatever death. Who connects is told where the owner's run directory is.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_model::{Code, Fault};

/// Whoever owns a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The owning agent's process, as the kernel tells it.
    pub pid: u32,
    /// The user it belongs to, as the kernel tells it.
    pub uid: u32,
    /// Where it says its run directory is.
    pub run_dir: Option<PathBuf>,
}

fn address(uuid: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("divvy/device/{uuid}"))
}

/// Takes a device for the agent of `run_dir`, until this process dies.
///
/// # Errors
/// [`Code::DeviceTaken`], naming the owner.
pub fn own(uuid: &str, run_dir: &Path) -> Result<(), Fault> {
    let internal =
        |error: io::Error| Fault::new(Code::Internal, format!("cannot take {uuid}")).because(&error);
    let address = address(uuid).map_err(internal)?;
    for _ in 0..3 {
        match UnixListener::bind_addr(&address) {
            Ok(listener) => {
                let run_dir = run_dir.to_path_buf();
                std::thread::Builder::new()
                    .name("owner".into())
                    .spawn(move || answer(&listener, &run_dir))
                    .map_err(internal)?;
                return Ok(());
            }
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(internal(error)),
            // The owner may die between our two steps: then the name is free again.
            Err(_) => {
                if let Some(owner) = ask(&address) {
                    return Err(taken(uuid, &owner, run_dir));
                }
            }
        }
    }
    Err(Fault::new(
        Code::DeviceTaken,
        format!("{uuid} is owned by an agent that does not answer"),
    ))
}

/// Who owns a device now, if anybody does.
#[must_use]
pub fn owner(uuid: &str) -> Option<Owner> {
    ask(&address(uuid).ok()?)
}

pub(crate) fn taken(uuid: &str, owner: &Owner, own: &Path) -> Fault {
    let fault = Fault::new(
        Code::DeviceTaken,
        format!(
            "{uuid} is owned by the agent with process id {} of user {}",
            owner.pid, owner.uid
        ),
    );
    match &owner.run_dir {
        Some(run_dir) if run_dir == own => fault
            .cause(format!("`{}` was removed or replaced under it", own.display()))
            .hint(format!(
                "end that agent with `kill {}`, then try again: it can no longer be reached; its slices keep their limits",
                owner.pid
            )),
        Some(run_dir) => fault.hint(format!(
            "use that agent: set DIVVY_RUN_DIR={}, or stop it with `divvy agent stop`",
            run_dir.display()
        )),
        None => fault.hint("wait until its slices have ended"),
    }
}

fn answer(listener: &UnixListener, run_dir: &Path) {
    let line = format!("{}\n", run_dir.display());
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else {
            // Out of descriptors, most likely: the name is held all the same.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = stream.write_all(line.as_bytes());
    }
}

fn ask(address: &SocketAddr) -> Option<Owner> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut text = String::new();
    let _ = (&stream).take(4096).read_to_string(&mut text);
    let told = text.trim_end();
    Some(Owner {
        pid: peer.pid.as_raw_nonzero().get().unsigned_abs(),
        uid: peer.uid.as_raw(),
        run_dir: (!told.is_empty()).then(|| told.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_owner_who_can_be_told() {
        let uuid = format!("GPU-test-owner-{}", std::process::id());
        own(&uuid, Path::new("/run/one")).expect("free");
        let refusal = own(&uuid, Path::new("/run/two")).expect_err("taken");
        assert_eq!(refusal.code, Code::DeviceTaken);
        assert!(
            refusal.message.contains(&std::process::id().to_string()),
            "{refusal:?}"
        );
        assert!(refusal.hint.expect("a hint").contains("/run/one"));
        // The same path, another folder: who asks is no agent that could be told to use it.
        let refusal = own(&uuid, Path::new("/run/one")).expect_err("taken");
        let hint = refusal.hint.expect("a hint");
        assert!(hint.contains(&format!("kill {}", std::process::id())), "{hint}");
        assert!(!hint.contains("DIVVY_RUN_DIR"), "{hint}");
        assert_eq!(
            owner(&uuid).expect("owned").uid,
            rustix::process::getuid().as_raw()
        );
    }
}
