//! One owner per device on a host, by an abstract unix socket. docs/adr/0004 says why.
//!
//! The name is bound by the system agent when it starts, else by the agent that first hands out a slice of the device.
//! The name is free again when that agent is dead, however it died. A client that connects gets the owner's run
//! directory.
//!
//! Any process can bind a name. A bound name makes users' agents refuse each other, but never the system agent. The
//! system agent itself is asked at its socket, whose folder root made.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_model::{Code, Fault};

use crate::start::trust::check_run_dir;

/// The process that owns a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The owning agent's process, as the kernel tells it.
    pub pid: u32,
    /// The user of that process, as the kernel tells it.
    pub uid: u32,
    /// Its run directory, by its own word.
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
        match bind(&address, run_dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(internal(error)),
            // The owner may die between these two steps: then the name is free again.
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

fn bind(address: &SocketAddr, run_dir: &Path) -> io::Result<()> {
    let listener = UnixListener::bind_addr(address)?;
    let run_dir = run_dir.to_path_buf();
    std::thread::Builder::new()
        .name("owner".into())
        .spawn(move || answer(&listener, &run_dir))
        .map(drop)
}

/// Takes a device whose name may have become free, without asking another process.
pub(crate) fn is_free_now(uuid: &str, run_dir: &Path) -> bool {
    address(uuid).is_ok_and(|address| bind(&address, run_dir).is_ok())
}

/// The claims on a device: the taker's alone, or also another's that the taker does not give way to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Only the taker claims it.
    Own,
    /// Another process holds the name.
    Contested(Owner),
}

/// Takes a device for an agent that gives way to `yields` only: no other user's claim keeps the system agent from its
/// devices.
///
/// # Errors
/// As [`own`].
pub(crate) fn claim(uuid: &str, run_dir: &Path, yields: impl Fn(&Owner) -> bool) -> Result<Claim, Fault> {
    match own(uuid, run_dir) {
        Ok(()) => Ok(Claim::Own),
        Err(fault) if fault.code == Code::DeviceTaken => match owner(uuid) {
            Some(other) if !yields(&other) => Ok(Claim::Contested(other)),
            // Any process can hold the name and say nothing: a name alone refuses no system agent.
            None if !yields(&SILENT) => Ok(Claim::Contested(SILENT)),
            _ => Err(fault),
        },
        Err(fault) => Err(fault),
    }
}

/// The owner for a process that holds a name and accepts no connection.
const SILENT: Owner = Owner {
    pid: 0,
    uid: u32::MAX,
    run_dir: None,
};

/// The system agent, if one serves `system` and has this device. It is asked itself, because any process can hold a
/// device's name.
#[must_use]
pub fn system_owner(system: &Path, uuid: &str) -> Option<Owner> {
    /// The system agent lists its devices within milliseconds.
    const TIMEOUT: Duration = Duration::from_secs(2);
    /// No list of devices is longer.
    const LARGEST: u64 = 4 << 20;
    let folder = check_run_dir(system).ok()?;
    let stream = UnixStream::connect(system.join("agent.sock")).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    let uid = peer.uid.as_raw();
    if uid != folder && uid != 0 {
        return None;
    }
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(TIMEOUT)).ok()?;
    (&stream)
        .write_all(b"GET /v1/devices HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\n\r\n")
        .ok()?;
    let mut answer = Vec::new();
    let _cut_off = (&stream).take(LARGEST).read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    answer.contains(&format!("\"{uuid}\"")).then(|| Owner {
        pid: peer.pid.as_raw_nonzero().get().unsigned_abs(),
        uid,
        run_dir: Some(system.to_owned()),
    })
}

/// The owner of a device now, if it has one.
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
            // The process is most likely out of descriptors: the name is held all the same.
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
        // The same path is another folder: the caller is no agent that could be told to use it.
        let refusal = own(&uuid, Path::new("/run/one")).expect_err("taken");
        let hint = refusal.hint.expect("a hint");
        assert!(hint.contains(&format!("kill {}", std::process::id())), "{hint}");
        assert!(!hint.contains("DIVVY_RUN_DIR"), "{hint}");
        assert_eq!(
            owner(&uuid).expect("owned").uid,
            rustix::process::getuid().as_raw()
        );
    }

    #[test]
    fn a_foreign_claim_is_noted_by_who_does_not_give_way_to_it() {
        let uuid = format!("GPU-test-claim-{}", std::process::id());
        let run = Path::new("/run/system");
        own(&uuid, Path::new("/run/another")).expect("free");
        let claimed = claim(&uuid, run, |_| false).expect("it goes on");
        let Claim::Contested(other) = claimed else {
            panic!("{claimed:?}");
        };
        assert_eq!(other.pid, std::process::id());
        let refusal = claim(&uuid, run, |_| true).expect_err("it gives way");
        assert_eq!(refusal.code, Code::DeviceTaken);
        let free = format!("GPU-test-claim-free-{}", std::process::id());
        assert_eq!(claim(&free, run, |_| true), Ok(Claim::Own));
    }

    #[test]
    fn the_system_agent_is_asked_at_its_socket() {
        let base = tempfile::tempdir().expect("a folder");
        let run = base.path().join("run");
        std::fs::create_dir(&run).expect("a folder");
        assert_eq!(system_owner(&run, "GPU-1"), None, "nothing serves there");
        let listener = UnixListener::bind(run.join("agent.sock")).expect("a socket");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a caller");
                let mut asked = [0; 16];
                let _read = stream.read(&mut asked);
                let _told = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"items\":[{\"uuid\":\"GPU-1\"}]}");
            }
        });
        let owner = system_owner(&run, "GPU-1").expect("it has that one");
        assert_eq!(owner.run_dir.as_deref(), Some(&*run));
        assert_eq!(system_owner(&run, "GPU-2"), None);
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o777)).expect("a mode");
        assert_eq!(system_owner(&run, "GPU-1"), None, "any process may listen there");
    }
}
