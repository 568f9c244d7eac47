//! What root does for a request, and the facts by which it refuses.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::answer::{Answer, Refusal};
use crate::request::Request;
use crate::{files, folders, process, vendor, workers};

/// Which users have which subordinate numbers.
const SUBORDINATES: &str = "/etc/subuid";
/// Where engines look for what describes devices, by [`crate::request::CdiFolder`].
const CDI: [&str; 2] = ["/etc/cdi", "/run/cdi"];
/// Where vendors' tools lie. Root's environment is not asked.
const TOOLS: [&str; 6] = [
    "/usr/bin",
    "/bin",
    "/usr/sbin",
    "/sbin",
    "/usr/local/bin",
    "/usr/local/nvidia/bin",
];

/// What requests are checked against.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The agent's user.
    pub(crate) agent_uid: u32,
    /// The process that asks.
    pub(crate) agent_pid: u32,
    /// The caller is not trusted with all that this process may do.
    pub(crate) separate: bool,
    /// The agent's run directory.
    pub(crate) run: PathBuf,
    /// The mount namespaces of the host: this process's own, and the first process's, which differ where a service manager
    /// gave this process one.
    pub(crate) host: [u64; 2],
    pub(crate) cdi: [PathBuf; 2],
    pub(crate) tools: Vec<PathBuf>,
    /// The file that gives users their subordinate numbers.
    pub(crate) subordinates: PathBuf,
}

impl Rules {
    /// Of a helper for the agent of a user and a run directory.
    ///
    /// # Errors
    /// The kernel does not tell something about this process.
    pub fn of_helper(agent_uid: u32, run: &Path) -> std::io::Result<Self> {
        Ok(Self {
            agent_uid,
            agent_pid: 0,
            separate: true,
            run: run.into(),
            host: host()?,
            cdi: CDI.map(PathBuf::from),
            tools: TOOLS.iter().map(PathBuf::from).collect(),
            subordinates: SUBORDINATES.into(),
        })
    }

    /// Of a process that asks itself.
    #[must_use]
    pub fn of_oneself(run: &Path) -> Self {
        Self {
            agent_uid: rustix::process::getuid().as_raw(),
            agent_pid: std::process::id(),
            separate: false,
            run: run.into(),
            host: host().unwrap_or_default(),
            cdi: CDI.map(PathBuf::from),
            tools: TOOLS.iter().map(PathBuf::from).collect(),
            subordinates: SUBORDINATES.into(),
        }
    }

    /// The same for a connection of this process.
    #[must_use]
    pub fn for_agent(&self, pid: u32) -> Self {
        Self {
            agent_pid: pid,
            ..self.clone()
        }
    }

    /// The same with vendors' tools and container engines' folders elsewhere: for tests.
    #[must_use]
    pub fn with_folders(self, tools: &Path, cdi: [&Path; 2]) -> Self {
        Self {
            tools: vec![tools.into()],
            cdi: cdi.map(Path::to_owned),
            ..self
        }
    }

    /// The same with another file in the place of /etc/subuid: for tests.
    #[must_use]
    pub fn with_subordinates(self, file: &Path) -> Self {
        Self {
            subordinates: file.into(),
            ..self
        }
    }
}

fn host() -> std::io::Result<[u64; 2]> {
    let own = process::mount_namespace(std::process::id())?;
    Ok([own, process::mount_namespace(1).unwrap_or(own)])
}

/// Does what a request asks, if the rules let it.
#[must_use]
pub fn perform(request: &Request, rules: &Rules) -> (Answer, Option<OwnedFd>) {
    perform_with(request, None, rules)
}

/// [`perform`] for a request that came with a descriptor.
#[must_use]
pub fn perform_with(
    request: &Request,
    descriptor: Option<OwnedFd>,
    rules: &Rules,
) -> (Answer, Option<OwnedFd>) {
    let answer = match request {
        Request::StartWorker { slice, uid, memory } => workers::start((*slice, *uid), *memory, descriptor),
        Request::Open { process, view } => {
            return match process::open(process, *view, rules) {
                Ok(descriptor) => (Answer::Opened, Some(descriptor)),
                Err(answer) => (answer, None),
            };
        }
        Request::Hello => Ok(Answer::Yes),
        Request::Signal { process, signal } => process::signal(process, *signal, rules),
        Request::MaySignal { process } => process::may_signal(process, rules),
        Request::MountNamespaces { pids } => Ok(process::mount_namespaces(pids)),
        Request::HasOpen {
            process,
            nodes,
            files,
        } => process::has_open(process, nodes, files, rules),
        Request::Look { path } => Ok(files::look(path)),
        Request::RemoveCdi { folder, slice } => files::remove_cdi(*folder, *slice, rules),
        // The daemon writes by names, and the folders above its own are the agent's.
        Request::Mps { uid: 0, .. } if rules.separate => Ok(Answer::Refused(Refusal::RootsDaemon)),
        Request::Mps { uid, device, word } => match folders::user(*uid) {
            Ok(user) => vendor::mps(user, device, word, rules),
            Err(answer) => Err(answer),
        },
        Request::SetTimeSlice { device, length } => vendor::set_time_slice(device, *length, rules),
        Request::Mig { device, word } => vendor::mig(device, *word, rules),
    };
    (answer.unwrap_or_else(|refusal| refusal), None)
}
