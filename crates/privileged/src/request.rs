//! What is asked of root: each kind with its fields, and the bytes of each.

use std::fmt;

use divvy_model::TimeSlice;
use rustix::process::Signal;

pub use crate::wire::Malformed;
use crate::wire::{Reader, Writer};

/// As many processes are asked about at once.
pub const MOST_PROCESSES: usize = 128;
/// As many nodes, and as many files, are looked for at once.
pub const MOST_FILES: usize = 64;
/// The longest path, in bytes.
pub const LONGEST_PATH: usize = 1024;
/// The longest name of a partition, in bytes.
const LONGEST_NAME: usize = 64;

/// A process, as the agent means it: the helper compares each field with what the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began, in the kernel's ticks since boot.
    pub start_ticks: u64,
    /// Whose it is.
    pub owner: Owner,
}

/// Whose a process must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A process of this user: to be looked at, its effective user; to be signalled, what the user may signal by kill(2).
    User(u32),
    /// A process of a container, of whatever user: its mounts are not the host's.
    Container,
}

/// What of a process is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// What it has mapped.
    Maps,
    /// The environment that it was started with.
    Environment,
}

/// A device's UUID, as NVIDIA writes it: `GPU-` or `MIG-`, and sixteen bytes in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// A MIG instance, not a GPU.
    pub is_instance: bool,
    /// Its bytes.
    pub uuid: [u8; 16],
}

/// A word to the MPS daemon of a user's slices on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpsWord {
    /// Make its folders.
    MakeFolders,
    /// Start it.
    Start {
        /// For static partitions of multiprocessors.
        partitioned: bool,
    },
    /// Tell its servers.
    Servers,
    /// Tell a server's clients.
    Clients {
        /// The server's number.
        server: u32,
    },
    /// Set multiprocessors apart.
    AddPartition {
        /// How many chunks.
        chunks: u32,
    },
    /// Give them back.
    RemovePartition {
        /// Letters, digits, `/`, `-`, `_` and `.`.
        name: PartitionName,
    },
    /// End it.
    Quit,
    /// Remove its folders.
    RemoveFolders,
}

/// A static partition's name: it is put into a line of text, so it holds nothing that ends one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionName(String);

/// What is done to MIG instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigWord {
    /// Turn the mode on or off.
    SetMode {
        /// On.
        on: bool,
    },
    /// Make an instance with one compute instance in it, as large as it is.
    Create {
        /// The driver's number of its profile.
        profile: u32,
        /// The slice of memory at which it begins.
        start: u8,
    },
    /// Remove an instance and what is in it.
    Destroy {
        /// The driver's number of it.
        instance: u32,
    },
}

/// Where container engines look for what describes devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CdiFolder {
    /// /etc/cdi.
    Lasting,
    /// /run/cdi.
    Dynamic,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Whether the helper is there.
    Hello,
    /// Send a signal.
    Signal {
        /// To this process.
        process: Process,
        /// One of [`SIGNALS`].
        signal: Signal,
    },
    /// Whether a signal would be sent.
    MaySignal {
        /// To this process.
        process: Process,
    },
    /// A descriptor of what the kernel says of a process.
    Open {
        /// Of this process.
        process: Process,
        /// What of it.
        view: View,
    },
    /// The mount namespace of each of these processes, 0 where it cannot be told.
    MountNamespaces {
        /// [`MOST_PROCESSES`] at most.
        pids: Vec<u32>,
    },
    /// Whether a process has one of these open or mapped.
    HasOpen {
        /// This process.
        process: Process,
        /// Device nodes, by their numbers; [`MOST_FILES`] at most.
        nodes: Vec<u64>,
        /// Files, by their file system's number and their own; [`MOST_FILES`] at most.
        files: Vec<(u64, u64)>,
    },
    /// Whether there is something at a path, and nothing more of it.
    Look {
        /// Absolute, and without `..`.
        path: Vec<u8>,
    },
    /// Remove what describes a slice to container engines.
    RemoveCdi {
        /// In this folder.
        folder: CdiFolder,
        /// The slice's id.
        slice: u32,
    },
    /// Say a word to an MPS daemon.
    Mps {
        /// The user whose slices it serves, and whose process it is.
        uid: u32,
        /// The device.
        device: Device,
        /// The word.
        word: MpsWord,
    },
    /// Set how long the hardware's turns are.
    SetTimeSlice {
        /// On this device.
        device: Device,
        /// The length.
        length: TimeSlice,
    },
    /// Change a GPU's MIG instances.
    Mig {
        /// The GPU.
        device: Device,
        /// How.
        word: MigWord,
    },
    /// Start the process that makes workers for a slice's programs. Its standard input is the descriptor that comes with
    /// the request.
    StartWorker {
        /// The slice's id, which the process shows as its argument.
        slice: u32,
        /// The user that it becomes: one of [`WORKER_UIDS`].
        uid: u32,
        /// So much of the host's memory may it and its workers have, in bytes; or [`UNLIMITED`].
        memory: u64,
    },
}

/// Of [`Request::StartWorker`]: the workers' memory has no limit.
pub const UNLIMITED: u64 = u64::MAX;

/// The users of workers, one for each slice. No login has such a number, and no range of subordinate numbers by default:
/// those begin at 100,000, and logins end at 60,000.
pub const WORKER_UIDS: std::ops::RangeInclusive<u32> = 70_000..=79_999;

/// The users of QEMU in `divvy vm run`, one for each machine.
pub const MACHINE_UIDS: std::ops::RangeInclusive<u32> = 80_000..=89_999;

/// Whether a user is a worker's or a machine's, and no person's: what a tenant makes it do is not to take devices.
#[must_use]
pub fn is_of_tenants(uid: u32) -> bool {
    let is_ours = WORKER_UIDS.contains(&uid) || MACHINE_UIDS.contains(&uid);
    is_ours && !crate::user::is_known(uid)
}

/// The signals that may be sent: those that end, stop or continue a program, and its own two.
pub const SIGNALS: [Signal; 11] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::ABORT,
    Signal::KILL,
    Signal::USR1,
    Signal::USR2,
    Signal::TERM,
    Signal::CONT,
    Signal::STOP,
    Signal::TSTP,
];

impl Device {
    /// Of the text as NVIDIA writes it, and of nothing else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, digits) = text.split_at_checked(4)?;
        let is_instance = match kind {
            "GPU-" => false,
            "MIG-" => true,
            _ => return None,
        };
        let groups: Vec<&str> = digits.split('-').collect();
        let lengths = groups.iter().map(|group| group.len());
        if !lengths.eq([8, 4, 4, 4, 12]) {
            return None;
        }
        let digits = groups.concat();
        let mut uuid = [0; 16];
        for (byte, pair) in uuid.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let digit = |at: usize| match pair[at] {
                digit @ b'0'..=b'9' => Some(digit - b'0'),
                digit @ b'a'..=b'f' => Some(digit - b'a' + 10),
                _ => None,
            };
            *byte = digit(0)? << 4 | digit(1)?;
        }
        Some(Self { is_instance, uuid })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.is_instance { "MIG" } else { "GPU" })?;
        for (place, byte) in self.uuid.iter().enumerate() {
            if matches!(place, 0 | 4 | 6 | 8 | 10) {
                out.write_str("-")?;
            }
            write!(out, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl PartitionName {
    /// Of a text that may be one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let fits = (1..=LONGEST_NAME).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte));
        fits.then(|| Self(text.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Request {
    /// Its bytes, with the number by which the answer is known.
    #[must_use]
    pub fn encode(&self, number: u64) -> Vec<u8> {
        let mut out = Writer::new(self.kind(), number);
        match self {
            Self::Hello => {}
            Self::Signal { process, signal } => {
                write_process(&mut out, process);
                out.u32(signal.as_raw().unsigned_abs());
            }
            Self::MaySignal { process } => write_process(&mut out, process),
            Self::Open { process, view } => {
                write_process(&mut out, process);
                out.u8(match view {
                    View::Maps => 1,
                    View::Environment => 2,
                });
            }
            Self::MountNamespaces { pids } => {
                count(&mut out, pids.len());
                pids.iter().for_each(|pid| out.u32(*pid));
            }
            Self::HasOpen {
                process,
                nodes,
                files,
            } => {
                write_process(&mut out, process);
                count(&mut out, nodes.len());
                nodes.iter().for_each(|node| out.u64(*node));
                count(&mut out, files.len());
                for (system, file) in files {
                    out.u64(*system);
                    out.u64(*file);
                }
            }
            Self::Look { path } => out.bytes(path),
            Self::RemoveCdi { folder, slice } => {
                out.u8(match folder {
                    CdiFolder::Lasting => 1,
                    CdiFolder::Dynamic => 2,
                });
                out.u32(*slice);
            }
            Self::Mps { uid, device, word } => {
                out.u32(*uid);
                write_device(&mut out, device);
                write_mps(&mut out, word);
            }
            Self::SetTimeSlice { device, length } => {
                write_device(&mut out, device);
                out.u8(length.code());
            }
            Self::Mig { device, word } => {
                write_device(&mut out, device);
                write_mig(&mut out, *word);
            }
            Self::StartWorker { slice, uid, memory } => {
                out.u32(*slice);
                out.u32(*uid);
                out.u64(*memory);
            }
        }
        out.done()
    }

    fn kind(&self) -> u16 {
        match self {
            Self::Hello => 1,
            Self::Signal { .. } => 2,
            Self::Open { .. } => 3,
            Self::MountNamespaces { .. } => 4,
            Self::HasOpen { .. } => 5,
            Self::Look { .. } => 6,
            Self::RemoveCdi { .. } => 7,
            Self::Mps { .. } => 8,
            Self::SetTimeSlice { .. } => 9,
            Self::Mig { .. } => 10,
            Self::StartWorker { .. } => 13,
            Self::MaySignal { .. } => 12,
        }
    }

    /// Reads a message: its number and what it asks.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<(u64, Self), Malformed> {
        let (mut read, head) = Reader::new(bytes)?;
        let request = match head.kind {
            1 => Self::Hello,
            2 => Self::Signal {
                process: read_process(&mut read)?,
                signal: signal(read.u32()?)?,
            },
            3 => Self::Open {
                process: read_process(&mut read)?,
                view: match read.u8()? {
                    1 => View::Maps,
                    2 => View::Environment,
                    _ => return Err(Malformed::Meaning),
                },
            },
            4 => Self::MountNamespaces {
                pids: read.list(MOST_PROCESSES, Reader::u32)?,
            },
            5 => Self::HasOpen {
                process: read_process(&mut read)?,
                nodes: read.list(MOST_FILES, Reader::u64)?,
                files: read.list(MOST_FILES, |read| Ok((read.u64()?, read.u64()?)))?,
            },
            6 => Self::Look {
                path: path(read.bytes(LONGEST_PATH)?)?,
            },
            7 => Self::RemoveCdi {
                folder: match read.u8()? {
                    1 => CdiFolder::Lasting,
                    2 => CdiFolder::Dynamic,
                    _ => return Err(Malformed::Meaning),
                },
                slice: read.u32()?,
            },
            8 => Self::Mps {
                uid: read.u32()?,
                device: read_device(&mut read)?,
                word: read_mps(&mut read)?,
            },
            9 => Self::SetTimeSlice {
                device: read_device(&mut read)?,
                length: match read.u8()? {
                    0 => TimeSlice::Default,
                    1 => TimeSlice::Short,
                    2 => TimeSlice::Medium,
                    3 => TimeSlice::Long,
                    _ => return Err(Malformed::Meaning),
                },
            },
            10 => Self::Mig {
                device: read_device(&mut read)?,
                word: read_mig(&mut read)?,
            },
            // 11 was the same without a limit of memory.
            13 => Self::StartWorker {
                slice: read.u32()?,
                uid: read.u32()?,
                memory: read.u64()?,
            },
            12 => Self::MaySignal {
                process: read_process(&mut read)?,
            },
            _ => return Err(Malformed::Meaning),
        };
        read.end()?;
        Ok((head.number, request))
    }
}

fn count(out: &mut Writer, count: usize) {
    out.u16(u16::try_from(count).unwrap_or(u16::MAX));
}

fn write_process(out: &mut Writer, process: &Process) {
    out.u32(process.pid);
    out.u64(process.start_ticks);
    match process.owner {
        Owner::User(uid) => {
            out.u8(1);
            out.u32(uid);
        }
        Owner::Container => {
            out.u8(2);
            out.u32(0);
        }
    }
}

fn read_process(read: &mut Reader<'_>) -> Result<Process, Malformed> {
    let (pid, start_ticks) = (read.u32()?, read.u64()?);
    let owner = match (read.u8()?, read.u32()?) {
        (1, uid) => Owner::User(uid),
        (2, 0) => Owner::Container,
        _ => return Err(Malformed::Meaning),
    };
    Ok(Process {
        pid,
        start_ticks,
        owner,
    })
}

fn write_device(out: &mut Writer, device: &Device) {
    out.u8(u8::from(device.is_instance));
    out.fixed(&device.uuid);
}

fn read_device(read: &mut Reader<'_>) -> Result<Device, Malformed> {
    Ok(Device {
        is_instance: flag(read)?,
        uuid: read.fixed()?,
    })
}

fn flag(read: &mut Reader<'_>) -> Result<bool, Malformed> {
    match read.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed::Meaning),
    }
}

fn signal(raw: u32) -> Result<Signal, Malformed> {
    let named = i32::try_from(raw).ok().and_then(Signal::from_named_raw);
    named
        .filter(|signal| SIGNALS.contains(signal))
        .ok_or(Malformed::Meaning)
}

fn path(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let fits = bytes.starts_with(b"/")
        && !bytes.contains(&0)
        && bytes.split(|byte| *byte == b'/').all(|part| part != b"..");
    fits.then(|| bytes.to_vec()).ok_or(Malformed::Meaning)
}

fn write_mps(out: &mut Writer, word: &MpsWord) {
    match word {
        MpsWord::MakeFolders => out.u8(1),
        MpsWord::Start { partitioned } => {
            out.u8(2);
            out.u8(u8::from(*partitioned));
        }
        MpsWord::Servers => out.u8(3),
        MpsWord::Clients { server } => {
            out.u8(4);
            out.u32(*server);
        }
        MpsWord::AddPartition { chunks } => {
            out.u8(5);
            out.u32(*chunks);
        }
        MpsWord::RemovePartition { name } => {
            out.u8(6);
            out.bytes(name.0.as_bytes());
        }
        MpsWord::Quit => out.u8(7),
        MpsWord::RemoveFolders => out.u8(8),
    }
}

fn read_mps(read: &mut Reader<'_>) -> Result<MpsWord, Malformed> {
    Ok(match read.u8()? {
        1 => MpsWord::MakeFolders,
        2 => MpsWord::Start {
            partitioned: flag(read)?,
        },
        3 => MpsWord::Servers,
        4 => MpsWord::Clients { server: read.u32()? },
        5 => MpsWord::AddPartition { chunks: read.u32()? },
        6 => {
            let name = std::str::from_utf8(read.bytes(LONGEST_NAME)?).ok();
            let name = name.and_then(PartitionName::parse).ok_or(Malformed::Meaning)?;
            MpsWord::RemovePartition { name }
        }
        7 => MpsWord::Quit,
        8 => MpsWord::RemoveFolders,
        _ => return Err(Malformed::Meaning),
    })
}

fn write_mig(out: &mut Writer, word: MigWord) {
    match word {
        MigWord::SetMode { on } => {
            out.u8(1);
            out.u8(u8::from(on));
        }
        MigWord::Create { profile, start } => {
            out.u8(2);
            out.u32(profile);
            out.u8(start);
        }
        MigWord::Destroy { instance } => {
            out.u8(3);
            out.u32(instance);
        }
    }
}

fn read_mig(read: &mut Reader<'_>) -> Result<MigWord, Malformed> {
    Ok(match read.u8()? {
        1 => MigWord::SetMode { on: flag(read)? },
        2 => MigWord::Create {
            profile: read.u32()?,
            start: read.u8()?,
        },
        3 => MigWord::Destroy {
            instance: read.u32()?,
        },
        _ => return Err(Malformed::Meaning),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_workers_and_machines_are_no_persons() {
        for uid in [70_000, 79_999, 80_000, 89_999] {
            assert!(is_of_tenants(uid), "{uid}");
        }
        for uid in [0, 1000, 60_000, 65_534, 69_999, 90_000, 100_000] {
            assert!(!is_of_tenants(uid), "{uid}");
        }
    }
}
