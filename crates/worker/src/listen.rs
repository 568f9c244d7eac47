//! Waits for programs, and starts a process for each.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use divvy_privileged::jail::forbid_tracing;
use divvy_privileged::workers::{Asks, Door, told, vouched};
use divvy_remote::local::handshake;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, Signal, getuid, set_parent_process_death_signal, setrlimit};

use crate::doors::{admits, identify};
use crate::ended;
use crate::newcomers::Newcomers;

/// So many programs are served at once.
const MOST: usize = 256;

/// So many programs ask NVML at once. They have a number of their own, so tools keep no program from its device.
const MOST_ASKING: usize = 64;

/// So many threads may all of a slice's workers have.
const MOST_THREADS: u64 = 8192;

/// How often a slice's listener looks whether its slice is still there.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000_000,
};

/// A socket, what is asked there, and whose connections it takes.
struct Listener {
    socket: OwnedFd,
    asks: Asks,
    door: Door,
}

/// Listens at a new socket for programs of this user, until the process is ended; and beside it, as nvml.sock, for their
/// queries.
///
/// # Errors
/// The sockets cannot be made.
pub fn listen(path: &Path) -> anyhow::Result<()> {
    let beside = path.with_file_name("nvml.sock");
    let listeners = [
        own_listener(path, Asks::Calls)?,
        own_listener(&beside, Asks::Queries)?,
    ];
    let outcome = accept_all(&listeners, None, || true);
    let _gone = (fs::remove_file(path), fs::remove_file(&beside));
    outcome
}

fn own_listener(path: &Path, asks: Asks) -> anyhow::Result<Listener> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let address =
        SocketAddrUnix::new(path).with_context(|| format!("{} is no path of a socket", path.display()))?;
    rustix::net::bind(&socket, &address).with_context(|| format!("Cannot make {}", path.display()))?;
    rustix::net::listen(&socket, 64)?;
    let door = Door::Host {
        uid: getuid().as_raw(),
        below: None,
    };
    Ok(Listener { socket, asks, door })
}

/// Listens for the programs of a slice, as its agent says over the standard input, for as long as its socket is there.
///
/// # Errors
/// The agent says nothing that is understood.
pub fn listen_for_slice() -> anyhow::Result<()> {
    // Nothing that another process had open reaches a worker.
    // SAFETY: the flags are of this call, and change no descriptor's number.
    let _all = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
    // Where a tenant has its workers take too much of the host's memory, they go first. It has to be said before /proc is
    // closed to this process.
    let _not_there = fs::write("/proc/self/oom_score_adj", "1000");
    forbid_tracing().map_err(|fault| anyhow::anyhow!("{fault}"))?;
    // Counted for its user, who is no other slice's.
    let most = Rlimit {
        current: Some(MOST_THREADS),
        maximum: Some(MOST_THREADS),
    };
    setrlimit(Resource::Nproc, most)?;
    let (mut order, sockets) = told().context("The agent says nothing that is understood")?;
    for (name, value) in &mut order.variables {
        let is_loaded = ["DIVVY_DRIVER", "DIVVY_NVML"].contains(&name.as_str()) && !value.is_empty();
        if is_loaded {
            let path = Path::new(value);
            let vouched = vouched(path).with_context(|| {
                format!(
                    "{} is not loaded: other users than root could change it",
                    path.display()
                )
            })?;
            *value = vouched.into();
        }
    }
    // Its end is of no account from now on: another agent may come.
    let nowhere = fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    let listeners: Vec<Listener> = sockets
        .into_iter()
        .zip(order.doors)
        .map(|(socket, (asks, door))| Listener { socket, asks, door })
        .collect();
    for listener in &listeners {
        rustix::io::ioctl_fionbio(&listener.socket, true)?;
    }
    let own = identity(&order.socket).context("The slice's socket is gone")?;
    accept_all(&listeners, Some(&order.variables), || {
        // What cannot be looked at is not gone.
        !matches!(identity(&order.socket), Ok(now) if now != own)
            && !identity(&order.socket).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    })
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

fn accept_all(
    listeners: &[Listener],
    variables: Option<&[(String, OsString)]>,
    goes_on: impl Fn() -> bool,
) -> anyhow::Result<()> {
    let (calling, asking) = (Arc::new(()), Arc::new(()));
    let (mut newcomers, mut told) = (Newcomers::default(), Told::default());
    while goes_on() {
        let sockets = listeners.iter().map(|listener| listener.socket.as_fd());
        let mut ready: Vec<PollFd<'_>> = sockets
            .chain(newcomers.sockets())
            .map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN))
            .collect();
        match poll(&mut ready, Some(&LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => bail!("No more programs can be served: {errno}"),
        }
        drop(ready);
        // Before the new ones, which may take the places of those that have begun.
        for (connection, asks) in newcomers.begun(Instant::now()) {
            let (served, most) = match asks {
                Asks::Calls => (&calling, MOST),
                Asks::Queries => (&asking, MOST_ASKING),
            };
            // One more than programs: ours.
            if Arc::strong_count(served) > most {
                let _unheard = handshake::refuse(connection.as_fd());
                told.full(asks, most);
                continue;
            }
            // The program sees that its connection is closed.
            if let Err(error) = serve(connection, asks, variables, Arc::clone(served)) {
                told.tell(&error);
            }
        }
        for listener in listeners {
            let connection = match rustix::net::accept_with(&listener.socket, SocketFlags::CLOEXEC) {
                Ok(connection) => connection,
                Err(Errno::INTR | Errno::CONNABORTED | Errno::AGAIN) => continue,
                // The connection waits until a process has ended.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    continue;
                }
                Err(errno) => bail!("No more programs can be served: {errno}"),
            };
            match admits(&listener.door, connection.as_fd()) {
                Ok(false) => {}
                Ok(true) => newcomers.add(connection, listener.asks, Instant::now()),
                Err(not_shown) => told.tell(&not_shown.into()),
            }
        }
    }
    Ok(())
}

/// What was said of programs that are not served.
#[derive(Default)]
struct Told {
    faults: u32,
    is_full: bool,
}

impl Told {
    /// So often, and no more: a program that connects again and again fills no log.
    const MOST: u32 = 20;

    fn tell(&mut self, error: &anyhow::Error) {
        self.faults = self.faults.saturating_add(1);
        if self.faults <= Self::MOST {
            eprintln!("divvy-worker: a program is not served: {error:#}");
        }
        if self.faults == Self::MOST {
            eprintln!("divvy-worker: no more is said of programs that are not served");
        }
    }

    /// Once: the slice's programs make this as often as they want.
    fn full(&mut self, asks: Asks, most: usize) {
        if std::mem::replace(&mut self.is_full, true) {
            return;
        }
        let have = match asks {
            Asks::Calls => "programs of this slice have a worker",
            Asks::Queries => "programs of this slice ask NVML",
        };
        eprintln!(
            "divvy-worker: a program is not served: {most} {have}, and no more may. One that ends makes room"
        );
    }
}

/// Starts a process for a program, and a thread that waits for its end.
fn serve(
    connection: OwnedFd,
    asks: Asks,
    variables: Option<&[(String, OsString)]>,
    served: Arc<()>,
) -> anyhow::Result<()> {
    // A program that has ended needs no worker.
    let Some(program) = identify(connection.as_fd())? else {
        return Ok(());
    };
    let mut child = start(connection, asks, program, variables)?;
    let waits = std::thread::Builder::new().spawn(move || {
        if let Some(told) = child
            .wait()
            .ok()
            .and_then(|status| ended::told(program.0, status))
        {
            eprintln!("divvy-worker: {told}");
        }
        drop(served);
    });
    waits.map(drop).context("Cannot wait for its process")
}

fn start(
    connection: OwnedFd,
    asks: Asks,
    program: (u32, u64),
    variables: Option<&[(String, OsString)]>,
) -> anyhow::Result<Child> {
    // By what the kernel has open, not by a path: an upgrade may have put another program there.
    let mode = match asks {
        Asks::Calls => "--serve",
        Asks::Queries => "--query",
    };
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("divvy-worker")
        // What the kernel said of the program stands in the worker's own arguments, for the agent to read.
        .args([mode, &format!("{}:{}", program.0, program.1)])
        .stdin(Stdio::from(connection))
        .stdout(Stdio::null());
    if let Some(variables) = variables {
        let variables = variables.iter().map(|(name, value)| (name, value));
        command.env_clear().envs(variables);
    }
    // SAFETY: the closure makes one system call, which takes no lock and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command.spawn().context("Cannot start a process for it")
}

/// Whether the standard input is a connection of a program.
pub fn is_connection(socket: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET)
}
