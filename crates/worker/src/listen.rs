//! Waits for programs, and starts a process for each.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, bail};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{Signal, getuid, set_parent_process_death_signal};

/// So many programs are served at once.
const MOST: usize = 256;

/// Listens at a new socket, until the process is ended.
///
/// # Errors
/// The socket cannot be made.
pub fn listen(path: &Path) -> anyhow::Result<()> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let address =
        SocketAddrUnix::new(path).with_context(|| format!("{} is no path of a socket", path.display()))?;
    rustix::net::bind(&socket, &address).with_context(|| format!("Cannot make {}", path.display()))?;
    rustix::net::listen(&socket, 64)?;
    let outcome = accept(&socket);
    let _gone = fs::remove_file(path);
    outcome
}

fn accept(socket: &OwnedFd) -> anyhow::Result<()> {
    let served = Arc::new(());
    loop {
        let connection = match rustix::net::accept_with(socket, SocketFlags::CLOEXEC) {
            Ok(connection) => connection,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
            Err(errno) => bail!("No more programs can be served: {errno}"),
        };
        let may = sockopt::socket_peercred(&connection).is_ok_and(|peer| peer.uid == getuid());
        // One more than programs: ours.
        if may && Arc::strong_count(&served) <= MOST {
            // The program sees that its connection is closed.
            if let Err(error) = serve(connection, Arc::clone(&served)) {
                eprintln!("divvy-worker: a program is not served: {error:#}");
            }
        }
    }
}

/// Starts a process for a program, and a thread that waits for its end.
fn serve(connection: OwnedFd, served: Arc<()>) -> anyhow::Result<()> {
    let mut child = start(connection)?;
    let waits = std::thread::Builder::new().spawn(move || {
        let _ended = child.wait();
        drop(served);
    });
    waits.map(drop).context("Cannot wait for its process")
}

fn start(connection: OwnedFd) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("--serve")
        .stdin(Stdio::from(connection))
        .stdout(Stdio::null());
    // SAFETY: the closure makes one system call, which takes no lock and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command.spawn().context("Cannot start a process for it")
}
