//! `divvy guest relay`: serves one machine from inside a slice.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;

use divvy_guest::frame::VERSION;
use divvy_guest::machine::Machine;
use divvy_guest::memory::Memory as Shared;
use divvy_guest::qemu::{self, Control};
use divvy_guest::relay::{End, Event, Relay};
use divvy_model::{Bytes, Code, Fault};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::getuid;

use super::log::Log;
use super::socket;
use crate::flags::parse;
use crate::output;

/// The memory that machine and host share.
#[derive(Clone, Debug, clap::Args)]
pub struct Memory {
    /// Memory that the machine shares with this host, a power of two: the bytes of large copies pass through it, and
    /// pinned memory lies there. It takes memory of the host's only where it is used
    #[arg(long, value_name = "SIZE", value_parser = parse::<Bytes>, default_value = "4GiB")]
    shared_memory: Bytes,
    /// So many programs of the machine use the device at once; others wait. Each has its part of the shared memory
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    programs: u32,
    /// So much of its part may a program pin [default: all of it]
    #[arg(long, value_name = "SIZE", value_parser = parse::<Bytes>)]
    pinned_memory: Option<Bytes>,
    /// Listen for QEMU at this path, in a folder that only the machine's user may enter [default: an abstract name]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Memory {
    /// The flags as words.
    pub fn words(&self) -> Vec<OsString> {
        let bytes = |bytes: Bytes| format!("{}B", bytes.0).into();
        let mut words: Vec<OsString> = vec![
            "--shared-memory".into(),
            bytes(self.shared_memory),
            "--programs".into(),
            self.programs.to_string().into(),
        ];
        if let Some(pinned) = self.pinned_memory {
            words.extend(["--pinned-memory".into(), bytes(pinned)]);
        }
        if let Some(socket) = &self.socket {
            words.extend(["--socket".into(), socket.into()]);
        }
        words
    }
}

/// Flags of `divvy guest relay`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The machine's name
    name: String,
    #[command(flatten)]
    shared: Memory,
    /// QEMU and its arguments
    #[arg(last = true, value_name = "QEMU")]
    command: Vec<OsString>,
}

fn cannot(what: &str) -> impl Fn(Errno) -> Fault {
    let what = what.to_owned();
    move |errno| Fault::new(Code::Guest, what.clone()).because(&std::io::Error::from(errno))
}

/// Serves the machine.
pub fn run(args: &Args) -> Result<u8, Fault> {
    let worker = std::env::var_os("DIVVY_REMOTE")
        .filter(|socket| !socket.is_empty())
        .ok_or_else(|| {
            Fault::new(Code::Guest, "no workers serve programs of this slice")
                .hint("`divvy guest run NAME --isolation enforced` starts this in a slice that has them")
        })?;
    let shared = &args.shared;
    let pinned = shared.pinned_memory.map_or(u64::MAX, |bytes| bytes.0);
    let memory = Shared::new(shared.shared_memory.0, shared.programs, pinned).map_err(|errno| {
        cannot("the shared memory cannot be made")(errno)
            .hint("--shared-memory is a power of two, as 1GiB, and has 1 MiB at least for each of --programs")
    })?;
    let mut log = Log::default();
    let mut relay = Relay::new(memory, worker.into(), move |event| tell(&mut log, &event));
    if args.command.is_empty() {
        return wait_for_machine(args, &mut relay);
    }
    // Each return from here on ends the machine, if it runs.
    let (ours, machine) = start(&args.command, relay.memory())?;
    let ended = machine.ended().map_err(cannot("the machine cannot be watched"))?;
    let served = relay.serve(ours.as_fd(), Some(ended.as_fd()));
    drop(ours);
    ends_well(served, "was killed")?;
    let status = machine
        .wait()
        .map_err(|error| Fault::new(Code::Guest, "the machine's end cannot be waited for").because(&error))?;
    let by_signal = || status.signal().map_or(1, |signal| 128 + signal);
    Ok(u8::try_from(status.code().unwrap_or_else(by_signal)).unwrap_or(1))
}

/// Starts QEMU with a descriptor of the memory and one of the control channel: nothing of either has a path.
fn start(words: &[OsString], memory: &Shared) -> Result<(OwnedFd, Machine), Fault> {
    let make = || -> Result<(OwnedFd, OwnedFd, OwnedFd), Errno> {
        let (ours, its) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let file = rustix::io::dup(memory.file())?;
        // These two go along. Nothing else is started meanwhile.
        rustix::io::fcntl_setfd(&its, FdFlags::empty())?;
        Ok((ours, its, file))
    };
    let (ours, its, file) = make().map_err(cannot("the machine's channel cannot be made"))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let control = Control::Descriptor(its.as_raw_fd());
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .args(qemu::arguments(&path, memory.bytes(), &control));
    let machine = Machine::start(&mut command).map_err(|error| {
        Fault::new(
            Code::ProgramCannotRun,
            format!("{} cannot be started", words[0].to_string_lossy()),
        )
        .because(&error)
    })?;
    Ok((ours, machine))
}

/// Prints what QEMU is to be told, and serves the machine that comes.
fn wait_for_machine(args: &Args, relay: &mut Relay<impl FnMut(Event)>) -> Result<u8, Fault> {
    let own = std::process::id();
    let (listener, file, control) = match &args.shared.socket {
        Some(path) => {
            let in_the_way = |errno| {
                let fault = cannot("the machine's socket cannot be made")(errno);
                match errno {
                    Errno::ADDRINUSE => fault.hint(
                        "another process listens there, or the file is not a socket of this user's: remove it, or \
                         give another --socket",
                    ),
                    _ => fault.hint("--socket is a path of at most 107 bytes, in a folder that is there"),
                }
            };
            // QEMU starts in another folder.
            let path = std::path::absolute(path).map_err(|error| {
                Fault::new(Code::Guest, "the path of --socket cannot be made whole").because(&error)
            })?;
            let (listener, file) = socket::listen_at(&path).map_err(in_the_way)?;
            let control = Control::Path(path.to_string_lossy().into_owned());
            (listener, Some(file), control)
        }
        None => {
            let name = format!("divvy-guest-{}-{own}", args.name);
            let listener = SocketAddrUnix::new_abstract_name(name.as_bytes())
                .and_then(|address| socket::listen(&address));
            let listener = listener.map_err(cannot("the machine's socket cannot be made"))?;
            (listener, None, Control::Abstract(name))
        }
    };
    let memory = relay.memory();
    let path = format!("/proc/{own}/fd/{}", memory.file().as_raw_fd());
    output::print(&format!(
        "{}\n",
        qemu::arguments(&path, memory.bytes(), &control).join(" ")
    ))?;
    let machine = accept(listener.as_fd()).map_err(cannot("no machine can be waited for"))?;
    drop((file, listener));
    let served = relay.serve(machine.as_fd(), None);
    ends_well(served, "is not served")?;
    Ok(0)
}

/// The machine: a process of this user, or root's.
fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut log = Log::default();
    loop {
        let machine = match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            machine => machine?,
        };
        let peer = rustix::net::sockopt::socket_peercred(&machine)?.uid;
        if peer.is_root() || peer == getuid() {
            return Ok(machine);
        }
        log.say(
            "another user",
            "a process of another user's is not the machine, and is not served",
        );
    }
}

/// `then` is what became of a machine that said what it may not.
fn ends_well(served: Result<End, Errno>, then: &str) -> Result<(), Fault> {
    match served.map_err(cannot("the machine cannot be served"))? {
        End::Closed | End::Asked => Ok(()),
        End::Malformed => Err(Fault::new(
            Code::Guest,
            format!("the machine said what no kit of this version says, and {then}"),
        )
        .hint("`divvy guest kit DIR` writes the kit of this version")),
    }
}

fn tell(log: &mut Log, event: &Event) {
    let (kind, text) = match event {
        Event::Guest { version } if *version == VERSION => {
            ("broker", "the machine's broker is there".to_owned())
        }
        Event::Guest { version } => (
            "other version",
            format!(
                "the machine's kit has version {version}, and this is {VERSION}: it is not served; `divvy guest kit \
                 DIR` writes the kit of this version"
            ),
        ),
        Event::Opened(program) => ("served", format!("program {program} is served")),
        Event::Refused(program, why) => ("not served", format!("program {program} is not served: {why}")),
        Event::Ended(program, None) => ("lost", format!("program {program} has lost its worker")),
        Event::Ended(program, Some(traffic)) => (
            "ended",
            format!(
                "program {program} has ended: {} bytes copied, {:.2} copies of each",
                traffic.bytes(),
                traffic.copies_per_byte()
            ),
        ),
    };
    log.say(kind, &text);
}
