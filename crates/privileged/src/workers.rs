//! The process that makes workers for a slice's programs: how root starts it, and what the agent tells it.
//!
//! The agent makes the sockets and sends them, with the variables of the workers, over the process's standard input. So
//! root handles two numbers and a descriptor, and no path. docs/adr/0046 has the reasons.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;

use crate::answer::{Answer, Refusal};
use crate::cgroup::Group;
use crate::channel::{Channel, pair};
use crate::process::start_ticks;
use crate::request::{UNLIMITED, WORKER_UIDS};
use crate::user::is_known;

/// The program.
const PROGRAM: &str = "divvy-worker";

/// Where a listening socket of the process is reached, and whose connections it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// On the host: processes of one user.
    Host {
        /// The slice's user.
        uid: u32,
        /// Only descendants of this `divvy run`, by its id and its start in the kernel's ticks since boot. None: every
        /// process of the user.
        below: Option<(u32, u64)>,
    },
    /// In the slice's containers, which alone have the socket mounted.
    Container,
}

/// What the programs at a socket ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// CUDA calls.
    Calls,
    /// NVML's queries.
    Queries,
}

/// What the agent tells the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The path of its socket: it ends when that is another file, or none.
    pub socket: PathBuf,
    /// What is asked, and whose programs it takes, for each socket that comes beside this.
    pub doors: Vec<(Asks, Door)>,
    /// The variables of the workers.
    pub variables: Vec<(String, OsString)>,
}

impl Order {
    /// Its bytes: lines that end with a zero byte.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut line = |line: &[u8]| {
            bytes.extend_from_slice(line);
            bytes.push(0);
        };
        line(self.socket.as_os_str().as_bytes());
        line(self.doors.len().to_string().as_bytes());
        for (asks, door) in &self.doors {
            let asks = match asks {
                Asks::Calls => "calls",
                Asks::Queries => "queries",
            };
            let door = match door {
                Door::Container => "container".to_owned(),
                Door::Host { uid, below: None } => format!("host {uid}"),
                Door::Host {
                    uid,
                    below: Some((pid, since)),
                } => format!("host {uid} {pid} {since}"),
            };
            line(format!("{asks} {door}").as_bytes());
        }
        for (name, value) in &self.variables {
            let mut variable = name.clone().into_bytes();
            variable.push(b'=');
            variable.extend_from_slice(value.as_bytes());
            line(&variable);
        }
        bytes
    }

    /// Reads it.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.strip_suffix(&[0])?.split(|byte| *byte == 0);
        let socket = PathBuf::from(OsString::from_vec(lines.next()?.to_vec()));
        let text = |line: &[u8]| String::from_utf8(line.to_vec()).ok();
        let count: usize = text(lines.next()?)?.parse().ok()?;
        let mut doors = Vec::new();
        for _ in 0..count {
            let words = text(lines.next()?)?;
            let words: Vec<&str> = words.split(' ').collect();
            let (asks, door) = words.split_first()?;
            let asks = match *asks {
                "calls" => Asks::Calls,
                "queries" => Asks::Queries,
                _ => return None,
            };
            let door = match door {
                ["container"] => Door::Container,
                ["host", uid] => Door::Host {
                    uid: uid.parse().ok()?,
                    below: None,
                },
                ["host", uid, pid, since] => Door::Host {
                    uid: uid.parse().ok()?,
                    below: Some((pid.parse().ok()?, since.parse().ok()?)),
                },
                _ => return None,
            };
            doors.push((asks, door));
        }
        // A loader obeys other names: an agent could have any code in a worker by them.
        let variable = |line: &[u8]| {
            let at = line.iter().position(|byte| *byte == b'=')?;
            let name = text(&line[..at]).filter(|name| VARIABLES.contains(&name.as_str()))?;
            Some((name, OsString::from_vec(line[at + 1..].to_vec())))
        };
        Some(Self {
            socket,
            doors,
            variables: lines.map(variable).collect::<Option<_>>()?,
        })
    }
}

/// The variables that a worker has.
const VARIABLES: [&str; 9] = [
    "CUDA_CACHE_DISABLE",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "DIVVY_DRIVER",
    "DIVVY_EMULATED",
    "DIVVY_NVML",
    "DIVVY_RUN_DIR",
    "DIVVY_SLICE",
    "XDG_RUNTIME_DIR",
];

/// The agent's end and the process's standard input.
///
/// # Errors
/// The system's reason.
pub fn channel() -> io::Result<(Channel, OwnedFd)> {
    let (ours, its) = pair()?;
    Ok((ours, its.into_fd()))
}

/// Tells the process all it has to know: a message for the words, and one for each socket.
///
/// # Errors
/// The system's reason.
pub fn tell(channel: &Channel, order: &Order, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
    channel.send(&order.encode(), None)?;
    sockets
        .iter()
        .try_for_each(|socket| channel.send(b"socket", Some(*socket)))
}

/// What the agent tells this process, whose standard input it is.
///
/// # Errors
/// The system's reason; `InvalidData` for what is no order.
pub fn told() -> io::Result<(Order, Vec<OwnedFd>)> {
    let channel = Channel::of(rustix::stdio::stdin().try_clone_to_owned()?);
    let next = || {
        channel
            .receive()?
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    };
    let order: crate::channel::Received = next()?;
    let order = Order::decode(&order.bytes).ok_or(io::ErrorKind::InvalidData)?;
    let mut sockets = Vec::new();
    for _ in &order.doors {
        let next: io::Result<crate::channel::Received> = next();
        sockets.push(next?.descriptor.ok_or(io::ErrorKind::InvalidData)?);
    }
    Ok((order, sockets))
}

/// No less memory may workers have, in bytes: with less none of them starts.
const LEAST_MEMORY: u64 = 16 << 20;

/// Starts the process: its id, its start in the kernel's ticks since boot, and 1 where its memory is limited, else 0.
pub(crate) fn start((slice, uid): (u32, u32), memory: u64, input: Option<OwnedFd>) -> Result<Answer, Answer> {
    let input = input.ok_or(Answer::Refused(Refusal::Malformed))?;
    if rustix::net::sockopt::socket_type(&input) != Ok(rustix::net::SocketType::SEQPACKET) {
        return Err(Answer::Refused(Refusal::Malformed));
    }
    if !WORKER_UIDS.contains(&uid) || is_known(uid) {
        return Err(Answer::Refused(Refusal::User));
    }
    let program = program().ok_or(Answer::Refused(Refusal::Program))?;
    let mut command = Command::new(program);
    command
        .args(["--slice", &format!("{slice:08x}")])
        .env_clear()
        .current_dir("/")
        // No signal of a terminal's reaches it.
        .process_group(0)
        // No group but this one.
        .uid(uid)
        .gid(nodes_group().unwrap_or(uid))
        .stdin(Stdio::from(input))
        .stdout(Stdio::null());
    let failed = |error: &io::Error| Answer::Failed(Errno::from_io_error(error).unwrap_or(Errno::IO));
    let group = match memory {
        UNLIMITED => None,
        _ => Group::make(slice, uid, memory.max(LEAST_MEMORY)).map_err(Answer::Failed)?,
    };
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            group.into_iter().for_each(Group::remove);
            return Err(failed(&error));
        }
    };
    let pid = child.id();
    // It is not reaped yet, so the number is its own. It does nothing before the agent tells it more, and that is behind
    // this answer: nothing of it runs without the limit.
    let moved = group.as_ref().map_or(Ok(()), |group| group.take(pid));
    if moved.is_err() {
        let _ended = child.kill();
    }
    let since = start_ticks(pid).map_err(|error| failed(&error));
    let is_limited = u64::from(group.is_some());
    // A thread reaps it. Where none can be made it stays, until this process ends, as a process that has ended.
    let _reaps = std::thread::Builder::new().spawn(move || {
        let _ended = child.wait();
        group.into_iter().for_each(Group::remove);
    });
    moved.map_err(Answer::Failed)?;
    Ok(Answer::Numbers(vec![u64::from(pid), since?, is_limited]))
}

/// The group of NVIDIA's device nodes, where the driver gives them one that is not root's.
fn nodes_group() -> Option<u32> {
    let node = std::fs::symlink_metadata("/dev/nvidiactl").ok()?;
    Some(node.gid()).filter(|gid| *gid != 0)
}

/// The program beside this one, or where packages put it. Root alone can change it.
fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let beside = own.parent()?;
    // Tests lie one folder below.
    let above = beside.parent().unwrap_or(beside);
    let places = [
        beside.join(PROGRAM),
        above.join("lib/divvy").join(PROGRAM),
        above.join(PROGRAM),
    ];
    places.into_iter().find(|path| is_roots(path))
}

fn is_roots(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.uid() == 0 && file.mode() & 0o022 == 0)
}

/// The file that a worker is told to load, behind all links, if root alone can change it: it is root's, and so is each folder
/// above it. The folders of this program count as root's, since their owner could put another program there as well.
#[must_use]
pub fn vouched(path: &Path) -> Option<PathBuf> {
    // A name without a folder is one that the loader searches for.
    let named = Some(path).filter(|path| path.is_absolute())?;
    let own = std::env::current_exe().and_then(std::fs::canonicalize).ok()?;
    // The links on the way may be other users' to change. The file that they lead to now is the one that counts.
    let path = std::fs::canonicalize(named).ok()?;
    is_below_roots_folders(&path, &own).then_some(path)
}

fn is_below_roots_folders(path: &Path, own: &Path) -> bool {
    let is_closed = |folder: &Path| {
        const STICKY: u32 = 0o1000;
        std::fs::metadata(folder)
            .is_ok_and(|facts| facts.uid() == 0 && (facts.mode() & 0o022 == 0 || facts.mode() & STICKY != 0))
    };
    let mut folders = path.ancestors().skip(1);
    is_roots(path) && folders.all(|folder| own.starts_with(folder) || is_closed(folder))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_order_comes_over_as_it_was_given() {
        let order = Order {
            socket: "/run/divvy/slices/0123abcd/worker.sock".into(),
            doors: vec![
                (Asks::Calls, Door::Container),
                (
                    Asks::Queries,
                    Door::Host {
                        uid: 1000,
                        below: Some((7, 99)),
                    },
                ),
                (Asks::Calls, Door::Host { uid: 0, below: None }),
            ],
            variables: vec![
                ("DIVVY_EMULATED".into(), "h100,context=1MiB".into()),
                ("DIVVY_NVML".into(), "".into()),
            ],
        };
        assert_eq!(Order::decode(&order.encode()), Some(order.clone()));
        let with_loaders = Order {
            variables: vec![("LD_PRELOAD".into(), "/tmp/mine.so".into())],
            ..order.clone()
        };
        assert_eq!(
            Order::decode(&with_loaders.encode()),
            None,
            "code of another user's"
        );
        assert_eq!(Order::decode(&[]), None);
        assert_eq!(Order::decode(b"/s\x009\x00calls container\x00"), None);
        assert_eq!(Order::decode(b"/s\x001\x00container\x00"), None);
        let (ours, its) = channel().expect("a channel");
        let sent = [its.as_fd()];
        tell(&ours, &order, &sent).expect("sent");
    }

    #[test]
    fn what_another_user_could_change_is_not_loaded() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).expect("a folder");
        let file = inner.join("libcuda.so.1");
        std::fs::write(&file, "").expect("a file");
        let mode = |path: &Path, mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("a mode");
        };
        let own = Path::new("/usr/lib/divvy/divvy-worker");
        mode(&file, 0o644);
        assert!(is_below_roots_folders(&file, own));
        mode(&file, 0o664);
        assert!(!is_below_roots_folders(&file, own), "others write it");
        mode(&file, 0o644);
        mode(&inner, 0o777);
        assert!(!is_below_roots_folders(&file, own), "others replace it");
        assert!(
            is_below_roots_folders(&file, &inner.join("divvy-worker")),
            "as they could this program"
        );
        mode(&inner, 0o755);
        std::os::unix::fs::chown(&inner, Some(1000), None).expect("given away");
        assert!(!is_below_roots_folders(&file, own), "another user's folder");
        assert!(!is_below_roots_folders(&inner.join("none"), own));
    }

    #[test]
    fn no_other_user_can_be_asked_for() {
        let start = |uid| {
            let (_ours, its) = channel().expect("a channel");
            start((1, uid), 1 << 30, Some(its))
        };
        for uid in [
            0,
            1000,
            65_534,
            WORKER_UIDS.start() - 1,
            WORKER_UIDS.end() + 1,
            u32::MAX,
        ] {
            assert_eq!(start(uid), Err(Answer::Refused(Refusal::User)), "{uid}");
        }
        assert_eq!(
            super::start((1, *WORKER_UIDS.start()), 1 << 30, None),
            Err(Answer::Refused(Refusal::Malformed))
        );
    }
}
