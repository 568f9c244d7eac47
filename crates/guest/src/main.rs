//! `divvy-guest`: the broker. It runs as root in a virtual machine, and gives programs there parts of the memory that the
//! machine shares with its host. docs/virtual-machines.md says how it is installed.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use divvy_guest::broker::{Broker, End};
use divvy_guest::program::refuse_descriptors;
use divvy_guest::{PORT, devices};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Where programs look for a worker's socket: the place that a container of a slice has.
const FOLDER: &str = "/run/divvy/slice";
/// The time between two looks for a host.
const LOOK: Duration = Duration::from_millis(250);

fn main() -> ExitCode {
    if divvy_guest::init::is_first() {
        divvy_guest::init::run();
        return ExitCode::FAILURE;
    }
    if std::env::args_os().len() != 1 {
        eprintln!("divvy-guest: it takes no arguments, and runs as root in a virtual machine");
        return ExitCode::FAILURE;
    }
    match serve() {
        Ok(why) => {
            eprintln!("divvy-guest: {why}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("divvy-guest: programs cannot be served: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until that has no sense any more: the reason.
fn serve() -> io::Result<String> {
    let listener = listen(Path::new(FOLDER))?;
    let mut said = false;
    loop {
        let Some(port) = open_port()? else {
            if !said {
                eprintln!("divvy-guest: there is no host yet: no port {PORT}, or nothing behind it");
                said = true;
            }
            std::thread::sleep(LOOK);
            continue;
        };
        said = false;
        let files = devices::memories(Path::new("/sys"));
        let end = match Broker::new(port.as_fd(), listener.as_fd(), &files) {
            Ok(broker) => {
                eprintln!("divvy-guest: programs of this machine are served");
                broker.serve()
            }
            Err(end) => end,
        };
        match end {
            End::HostGone => std::thread::sleep(LOOK),
            End::OtherVersion(version) => {
                return Ok(format!(
                    "the host has version {version} of what is said, and this is version {}: install the kit of that host",
                    divvy_guest::frame::VERSION
                ));
            }
            End::NoMemory(errno) => {
                return Ok(format!(
                    "the memory that the host means cannot be had: {errno}; it is an ivshmem device, whose file root \
                     may map where the kernel is not in lockdown (Secure Boot)"
                ));
            }
        }
    }
}

/// The port, where there is one with a host behind it.
fn open_port() -> io::Result<Option<OwnedFd>> {
    let Some(path) = devices::port(Path::new("/sys"), Path::new("/dev"), PORT) else {
        return Ok(None);
    };
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let port = rustix::fs::open(&path, flags, Mode::empty())?;
    let mut look = [PollFd::new(&port, PollFlags::OUT)];
    poll(
        &mut look,
        Some(&rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )?;
    let is_there = !look[0].revents().contains(PollFlags::HUP);
    Ok(is_there.then_some(port))
}

/// The socket at which programs ask for a worker.
fn listen(folder: &Path) -> io::Result<OwnedFd> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o755).create(folder)?;
    let path: PathBuf = folder.join("worker.sock");
    // That of an earlier broker.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // The kernel may not have it: then the threads of programs close what those send.
    let _older = refuse_descriptors(socket.as_fd());
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
    // Programs need no right but this: which users may have devices is for the folder's mode to say.
    fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}
