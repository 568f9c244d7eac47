//! The agent's requests to the helper that is root. The agent does itself what it may: the helper is asked only for
//! what the kernel refuses, and only where there is one.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::OnceLock;

use divvy_host::mig::{MigDevice, MigDriver, NewInstance};
use divvy_host::tool::{Tools, first_words};
use divvy_model::{Code, Fault, TimeSlice};
use divvy_privileged::answer::Answer;
use divvy_privileged::request::{
    CdiFolder, Device, MOST_FILES, MOST_PROCESSES, MigWord, MpsWord, Owner, PartitionName, Process, Request,
    View,
};
use divvy_privileged::{Direct, Privileged, Reply};
use rustix::process::Signal;

use crate::files::kernel;
use crate::start::rundir::RunDir;
use crate::system::procs;

/// The part of a process's kernel file that is read, in bytes.
const LONGEST: u64 = 16 << 20;

static HELPER: OnceLock<Box<dyn Privileged>> = OnceLock::new();

/// Names the process that does root's work, once, before the agent serves. An agent without one does all itself.
pub fn set_helper(helper: Box<dyn Privileged>) {
    let _set_already = HELPER.set(helper);
}

/// Whether another process does root's work, and why that does not answer, if so.
#[must_use]
pub fn helper_state() -> Option<Result<(), Fault>> {
    let helper = HELPER.get()?;
    Some(helper.ask(&Request::Hello).map(drop))
}

/// Whether another process does root's work.
#[must_use]
pub(crate) fn is_separate() -> bool {
    HELPER.get().is_some()
}

/// Whether this process does root's work itself.
#[must_use]
pub(crate) fn is_root_itself() -> bool {
    !is_separate() && rustix::process::geteuid().is_root()
}

/// Whether root's work can be done at all: this is root, or has a helper.
#[must_use]
pub(crate) fn has_root() -> bool {
    is_separate() || rustix::process::geteuid().is_root()
}

/// Starts the process that makes workers for a slice, as a user of its own: its id, and its start in the kernel's ticks
/// since boot. Its standard input is `input`.
///
/// # Errors
/// The refusals of the kernel or the helper.
pub(crate) fn start_worker(
    run: &RunDir,
    slice: u32,
    uid: u32,
    memory: u64,
    input: BorrowedFd<'_>,
) -> io::Result<(u32, u64, bool)> {
    let request = Request::StartWorker { slice, uid, memory };
    let reply = match HELPER.get() {
        Some(helper) => helper.ask_with(&request, Some(input)),
        None => Direct::new(run.path()).ask_with(&request, Some(input)),
    };
    match reply.map_err(io::Error::other)?.answer {
        Answer::Numbers(numbers) => match numbers.as_slice() {
            [pid, since, limited] => {
                let pid = u32::try_from(*pid).map_err(io::Error::other)?;
                Ok((pid, *since, *limited != 0))
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        },
        answer => Err(refused(&answer)),
    }
}

fn ask(request: &Request) -> io::Result<Reply> {
    let Some(helper) = HELPER.get() else {
        return Err(io::ErrorKind::PermissionDenied.into());
    };
    helper.ask(request).map_err(io::Error::other)
}

/// An unexpected answer, as an error.
fn refused(answer: &Answer) -> io::Error {
    match answer {
        Answer::Gone => io::ErrorKind::NotFound.into(),
        Answer::Failed(error) => (*error).into(),
        Answer::Refused(why) => io::Error::new(io::ErrorKind::PermissionDenied, why.to_string()),
        other => io::Error::new(io::ErrorKind::InvalidData, format!("{other:?}")),
    }
}

/// The process of this number as it is now.
fn process(pid: u32, owner: Owner) -> io::Result<Process> {
    Ok(Process {
        pid,
        start_ticks: divvy_privileged::start_ticks(pid)?,
        owner,
    })
}

/// Sends a signal that the kernel did not let this process send, or one of a root agent without a helper: as the process's
/// user would, by the helper's rules. It goes to the process that began at `start_ticks`, and to no later one of that
/// number.
///
/// # Errors
/// `NotFound` where it has ended; `PermissionDenied`.
pub(crate) fn signal(pid: u32, start_ticks: u64, owner: Owner, signal: Signal) -> io::Result<()> {
    let process = Process {
        pid,
        start_ticks,
        owner,
    };
    let request = Request::Signal { process, signal };
    let reply = match is_root_itself() {
        // The request names no path.
        true => Direct::new(Path::new("/"))
            .ask(&request)
            .map_err(io::Error::other),
        false => ask(&request),
    };
    match reply?.answer {
        Answer::Yes => Ok(()),
        answer => Err(refused(&answer)),
    }
}

/// Whether this user might signal the process by kill(2): the kernel judges, and its rules include processes in the user's
/// own user namespaces. The caller has pinned the number.
pub(crate) fn may_signal(pid: u32, uid: u32) -> bool {
    let Ok(process) = process(pid, Owner::User(uid)) else {
        return false;
    };
    let request = Request::MaySignal { process };
    let reply = match HELPER.get() {
        Some(helper) => helper.ask(&request),
        // The request names no path.
        None => Direct::new(Path::new("/")).ask(&request),
    };
    reply.is_ok_and(|reply| reply.answer == Answer::Yes)
}

/// The mappings of a process of this user, or of one of a container, as the kernel writes them.
///
/// # Errors
/// `NotFound` where it has ended; the refusals of the kernel or the helper.
pub(crate) fn maps(pid: u32, uid: u32) -> io::Result<Vec<u8>> {
    match view(pid, Owner::User(uid), View::Maps, "maps") {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_separate() => {
            view(pid, Owner::Container, View::Maps, "maps")
        }
        read => read,
    }
}

/// The mappings of a container's process.
///
/// # Errors
/// As [`maps`].
pub(crate) fn maps_in_container(pid: u32) -> io::Result<Vec<u8>> {
    view(pid, Owner::Container, View::Maps, "maps")
}

/// The environment that a process of this user was started with.
///
/// # Errors
/// As [`maps`].
pub(crate) fn environment(pid: u32, uid: u32) -> io::Result<Vec<u8>> {
    view(pid, Owner::User(uid), View::Environment, "environ")
}

fn view(pid: u32, owner: Owner, view: View, name: &str) -> io::Result<Vec<u8>> {
    let file = match kernel::open(procs::telling_thread(pid), name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_separate() => {
            let process = process(pid, owner)?;
            let reply = ask(&Request::Open { process, view })?;
            File::from(reply.descriptor.ok_or_else(|| refused(&reply.answer))?)
        }
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The mount namespace of each process, 0 where it is unknown.
pub(crate) fn mount_namespaces(pids: &[u32]) -> Vec<u64> {
    if !is_separate() {
        let of = |pid: &u32| divvy_privileged::mount_namespace(*pid).unwrap_or(0);
        return pids.iter().map(of).collect();
    }
    let mut all = Vec::with_capacity(pids.len());
    for some in pids.chunks(MOST_PROCESSES) {
        let told = ask(&Request::MountNamespaces { pids: some.into() });
        match told.map(|reply| reply.answer) {
            Ok(Answer::Numbers(numbers)) if numbers.len() == some.len() => all.extend(numbers),
            _ => all.extend(vec![0; some.len()]),
        }
    }
    all
}

/// Whether a container's process has one of these nodes or files open or mapped, for when this process may not look
/// itself.
pub(crate) fn has_open(pid: u32, owner: Owner, nodes: &[u64], files: &[(u64, u64)]) -> io::Result<bool> {
    let process = process(pid, owner)?;
    let mut nodes = nodes.chunks(MOST_FILES);
    let mut files = files.chunks(MOST_FILES);
    loop {
        let (some_nodes, some_files) = (nodes.next(), files.next());
        if some_nodes.is_none() && some_files.is_none() {
            return Ok(false);
        }
        let request = Request::HasOpen {
            process,
            nodes: some_nodes.unwrap_or_default().into(),
            files: some_files.unwrap_or_default().into(),
        };
        match ask(&request)?.answer {
            Answer::Yes => return Ok(true),
            Answer::No => {}
            answer => return Err(refused(&answer)),
        }
    }
}

/// Whether a path exists: as [`std::fs::symlink_metadata`], for paths into which only root may look.
///
/// # Errors
/// `NotFound` where it does not exist. Every other error proves nothing.
pub(crate) fn look(path: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_separate() => {
            let path = path.as_os_str().as_bytes().to_vec();
            match ask(&Request::Look { path })?.answer {
                Answer::Yes => Ok(()),
                answer => Err(refused(&answer)),
            }
        }
        found => found.map(drop),
    }
}

/// Removes a file that describes a slice to container engines, where this process may not. The file is
/// `divvy-slice-ID.json` in one of the folders in which engines look.
///
/// # Errors
/// `PermissionDenied` for any other file.
pub(crate) fn remove_cdi(file: &Path) -> io::Result<()> {
    let folder = match file.parent().and_then(Path::to_str) {
        Some("/etc/cdi") => CdiFolder::Lasting,
        Some("/run/cdi" | "/var/run/cdi") => CdiFolder::Dynamic,
        _ => return Err(io::ErrorKind::PermissionDenied.into()),
    };
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let id = name
        .strip_prefix("divvy-slice-")
        .and_then(|rest| rest.strip_suffix(".json"));
    let slice = id
        .filter(|id| id.len() == 8)
        .and_then(|id| u32::from_str_radix(id, 16).ok());
    let slice = slice.ok_or(io::ErrorKind::PermissionDenied)?;
    match ask(&Request::RemoveCdi { folder, slice })?.answer {
        Answer::Yes => Ok(()),
        answer => Err(refused(&answer)),
    }
}

/// Makes, or removes, the pipe and log folders of another user's MPS daemon.
///
/// # Errors
/// [`Code::Privilege`].
pub(crate) fn mps_folders(uid: u32, device: &str, make: bool) -> Result<(), Fault> {
    let word = match make {
        true => MpsWord::MakeFolders,
        false => MpsWord::RemoveFolders,
    };
    let device = parse(device)?;
    match HelperTools::new(uid).asked(&Request::Mps { uid, device, word })? {
        Answer::Yes => Ok(()),
        answer => Err(not_done("the folders of an MPS daemon", &answer)),
    }
}

fn not_done(what: &str, answer: &Answer) -> Fault {
    Fault::new(Code::Privilege, format!("the helper did not see to {what}")).because(&refused(answer))
}

fn parse(device: &str) -> Result<Device, Fault> {
    Device::parse(device).ok_or_else(|| {
        Fault::new(
            Code::Tool,
            format!("`{device}` is no UUID of a device: the helper takes nothing else"),
        )
    })
}

/// NVIDIA's tools, run by the helper. It builds their command lines itself, from requests that are parsed here first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HelperTools {
    uid: u32,
}

impl HelperTools {
    /// The tools run as one user's processes.
    pub fn new(uid: u32) -> Self {
        Self { uid }
    }

    fn asked(self, request: &Request) -> Result<Answer, Fault> {
        let Some(helper) = HELPER.get() else {
            return Err(Fault::new(
                Code::Privilege,
                "no helper was started for this agent",
            ));
        };
        helper.ask(request).map(|reply| reply.answer)
    }

    fn request(self, tool: &str, words: &[&str], device: &str, input: &str) -> Result<Request, Fault> {
        let uid = self.uid;
        let input: Vec<&str> = input.split_whitespace().collect();
        let number = |word: &str| word.parse().ok();
        let mps = |device: &str, word| {
            Ok(Request::Mps {
                uid,
                device: parse(device)?,
                word,
            })
        };
        let unknown = || {
            Fault::new(
                Code::Privilege,
                format!("the helper knows no such use of `{tool}`"),
            )
        };
        match (tool, words, input.as_slice()) {
            ("nvidia-cuda-mps-control", ["-d", more @ ..], []) => {
                let partitioned = more == ["-S"];
                mps(device, MpsWord::Start { partitioned })
            }
            ("nvidia-cuda-mps-control", [], words) => {
                let word = match words {
                    ["get_server_list"] => Some(MpsWord::Servers),
                    ["get_client_list", server] => number(server).map(|server| MpsWord::Clients { server }),
                    ["sm_partition", "add", _, chunks] => {
                        number(chunks).map(|chunks| MpsWord::AddPartition { chunks })
                    }
                    ["sm_partition", "rm", name] => {
                        PartitionName::parse(name).map(|name| MpsWord::RemovePartition { name })
                    }
                    ["quit", ..] => Some(MpsWord::Quit),
                    _ => None,
                };
                mps(device, word.ok_or_else(unknown)?)
            }
            ("nvidia-smi", ["compute-policy", "-i", device, length], []) => {
                let code: Option<u8> = length
                    .strip_prefix("--set-timeslice=")
                    .and_then(|code| code.parse().ok());
                let length = code.and_then(|code| TimeSlice::ALL.get(usize::from(code)).copied());
                Ok(Request::SetTimeSlice {
                    device: parse(device)?,
                    length: length.ok_or_else(unknown)?,
                })
            }
            _ => Err(unknown()),
        }
    }
}

impl Tools for HelperTools {
    fn run(
        &mut self,
        tool: &str,
        words: &[&str],
        environment: &[(&str, String)],
        input: &str,
    ) -> Result<String, Fault> {
        // The device stands in the daemon's folder: `mps/user-UID/DEVICE/pipe`.
        let mut pipes = environment
            .iter()
            .filter(|(name, _)| *name == "CUDA_MPS_PIPE_DIRECTORY");
        let device = pipes
            .next()
            .and_then(|(_, pipe)| Path::new(pipe).parent()?.file_name()?.to_str());
        let request = self.request(tool, words, device.unwrap_or_default(), input)?;
        match self.asked(&request)? {
            Answer::Words(said) => Ok(said),
            answer => Err(tool_failed(tool, answer)),
        }
    }
}

fn tool_failed(tool: &str, answer: Answer) -> Fault {
    let fault = Fault::new(Code::Tool, format!("`{tool}` failed"));
    match answer {
        Answer::ToolFailed(why) => fault.cause(first_words(&why)),
        Answer::Failed(rustix::io::Errno::NOENT) => Fault::new(Code::Tool, format!("`{tool}` cannot be run"))
            .hint("it comes with the vendor's driver; is it installed?"),
        answer => fault.because(&refused(&answer)),
    }
}

/// MIG as the driver reports it here, changed by the helper.
pub(crate) struct HelperMig<D>(pub D);

impl<D: MigDriver> HelperMig<D> {
    fn change(&mut self, gpu: &str, word: MigWord) -> Result<String, Fault> {
        let device = parse(gpu)?;
        match HelperTools::new(0).asked(&Request::Mig { device, word })? {
            Answer::Words(said) => Ok(said),
            answer => Err(Fault {
                code: Code::MigDriver,
                ..tool_failed("nvidia-smi", answer)
            }),
        }
    }

    fn not_offered() -> Fault {
        Fault::new(
            Code::Privilege,
            "the helper makes and removes whole instances only",
        )
    }
}

impl<D: MigDriver> MigDriver for HelperMig<D> {
    fn devices(&mut self) -> Result<Vec<MigDevice>, Fault> {
        self.0.devices()
    }

    fn set_mode(&mut self, uuid: &str, on: bool) -> Result<bool, Fault> {
        self.change(uuid, MigWord::SetMode { on })?;
        let devices = self.0.devices()?;
        let device = devices.into_iter().find(|device| device.uuid == uuid);
        Ok(device.is_some_and(|device| device.mode == Some(on)))
    }

    fn create(&mut self, uuid: &str, new: &NewInstance) -> Result<u32, Fault> {
        let (profile, start) = (new.profile_id, new.start);
        self.change(uuid, MigWord::Create { profile, start })?;
        // The driver names that instance, not the tool's words.
        let devices = self.0.devices()?;
        let mut instances = devices
            .into_iter()
            .filter(|device| device.uuid == uuid)
            .flat_map(|device| device.instances);
        let made = instances.find(|made| (made.profile_id, made.start) == (profile, start));
        made.map(|made| made.id).ok_or_else(|| {
            Fault::new(
                Code::MigDriver,
                "the driver does not show the instance that it made",
            )
        })
    }

    fn destroy(&mut self, uuid: &str, instance: u32) -> Result<(), Fault> {
        self.change(uuid, MigWord::Destroy { instance }).map(drop)
    }

    fn create_compute(&mut self, _: &str, _: u32, _: u8) -> Result<(), Fault> {
        Err(Self::not_offered())
    }

    fn destroy_compute(&mut self, _: &str, _: u32, _: u32) -> Result<(), Fault> {
        Err(Self::not_offered())
    }
}
