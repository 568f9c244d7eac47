//! The jail of a worker: what a process gives up that has a tenant's device open, and reads what the tenant sends.
//!
//! Each step is for good. What stays is what it has open, its own memory and threads, and the files that the driver
//! reads while it works.

use std::collections::BTreeMap;
use std::path::PathBuf;

use divvy_model::{Code, Fault};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

use crate::calls::OF_WORKERS;

/// The driver that a worker has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// The emulated device: memory and threads, no file and no device node.
    Emulated,
    /// NVIDIA's driver: its device nodes, what it reads below /proc and /sys, and libraries that it loads when it
    /// compiles.
    Native,
}

/// What a worker is asked.
pub use crate::workers::Asks;

/// What of the jail the kernel does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Landlock, of Linux 5.13, switched on. The filter of system calls and the user's rights hold alone.
    Landlock,
}

/// The first steps, before anything is opened: no core file, no tracer of the same user, no right back by what is
/// executed.
///
/// # Errors
/// [`Code::Privilege`]. The process must not go on then.
pub fn forbid_tracing() -> Result<(), Fault> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none)
        .and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable))
        .and_then(|()| rustix::thread::set_no_new_privs(true))
        .map_err(|error| cannot(&std::io::Error::from(error)))
}

/// Locks the process up, all its threads, for as long as it lives. What it needs is open by now.
///
/// # Errors
/// [`Code::Privilege`] where a step fails that every kernel has. The process must not go on then.
pub fn lock_up(below: Below, asks: Asks) -> Result<Option<Lack>, Fault> {
    let lack = restrict_files(below, asks)?;
    for filter in filters(below).map_err(|error| cannot(&error))? {
        apply_filter_all_threads(&filter).map_err(|error| cannot(&error))?;
    }
    Ok(lack)
}

fn cannot(error: &dyn std::error::Error) -> Fault {
    Fault::new(
        Code::Privilege,
        "a worker cannot be locked up, and does not serve",
    )
    .because(error)
}

/// What the worker may still open. It keeps what it has open already.
fn restrict_files(below: Below, asks: Asks) -> Result<Option<Lack>, Fault> {
    const LATEST: ABI = ABI::V6;
    let restrict = || -> Result<RulesetStatus, landlock::RulesetError> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(LATEST))?
            .handle_access(AccessNet::from_all(LATEST))?
            .scope(Scope::from_all(LATEST))?
            .create()?;
        for (paths, access) in files(below, asks) {
            for path in paths {
                // One that is not there cannot be opened later either.
                if let Ok(file) = PathFd::new(&path) {
                    rules = rules.add_rule(PathBeneath::new(file, access & AccessFs::from_all(LATEST)))?;
                }
            }
        }
        Ok(rules.restrict_self()?.ruleset)
    };
    match restrict().map_err(|error| cannot(&error))? {
        RulesetStatus::NotEnforced => Ok(Some(Lack::Landlock)),
        _ => Ok(None),
    }
}

type Files = (Vec<PathBuf>, landlock::BitFlags<AccessFs>);

fn files(below: Below, asks: Asks) -> Vec<Files> {
    let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    // Threads ask how many processors there are.
    let mut files = vec![(
        paths(&["/proc/self", "/sys/devices/system/cpu", "/sys/fs/cgroup"]),
        read,
    )];
    if asks == Asks::Queries {
        // The ledger has workers, and a list of processes has their programs: the arguments of workers say which, and the
        // programs' status says their numbers in a container. The host's rights for other users hold there.
        files.push((paths(&["/proc"]), read));
    }
    if below == Below::Native {
        files.push((
            paths(&["/proc", "/sys", "/etc", "/dev/null", "/dev/zero", "/dev/urandom"]),
            read,
        ));
        files.push((
            paths(&["/usr", "/lib", "/lib64", "/opt"]),
            read | AccessFs::Execute,
        ));
        files.push((
            nodes(),
            AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
        ));
    }
    files
}

/// NVIDIA's device nodes.
fn nodes() -> Vec<PathBuf> {
    let of_folder = |folder: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut nodes = of_folder("/dev");
    nodes.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("nvidia"))
    });
    nodes
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

fn one_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    let same = |value: &u64| SeccompRule::new(vec![condition(argument, SeccompCmpOp::Eq, *value)?]);
    values.iter().map(same).collect()
}

/// A masked argument has this value.
fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![condition(argument, SeccompCmpOp::MaskedEq(mask), value)?])
}

fn filters(below: Below) -> Result<[BpfProgram; 2], BackendError> {
    /// `PR_SET_VMA`: a name for memory, which allocators give.
    const SET_VMA: u64 = 0x5356_4d41;
    /// `PROT_EXEC`.
    const EXECUTE: u64 = 4;
    let mut allowed: Rules = OF_WORKERS
        .iter()
        .flat_map(|list| list.iter())
        .map(|call| (*call, vec![]))
        .collect();
    // A kernel's own answer to a call that it does not have: then threads are made by `clone`, whose flags can be read.
    allowed.insert(libc::SYS_clone3, vec![]);
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    let flags = thread | crate::confine::NAMESPACES;
    allowed.insert(libc::SYS_clone, vec![masked(0, flags, thread)?]);
    let own = u64::from(std::process::id());
    allowed.insert(libc::SYS_tgkill, one_of(0, &[own])?);
    let asked = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_GET_NO_NEW_PRIVS];
    let mut asked = asked.map(|what| u64::from(what.unsigned_abs())).to_vec();
    asked.push(SET_VMA);
    allowed.insert(libc::SYS_prctl, one_of(0, &asked)?);
    // The limits of itself, to read.
    allowed.insert(
        libc::SYS_prlimit64,
        vec![SeccompRule::new(vec![
            condition(0, SeccompCmpOp::Eq, 0)?,
            SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?,
        ])?],
    );
    // A new agent brings new pages, which the limiter fetches at the slice's attach socket.
    let unix = u64::from(libc::AF_UNIX.unsigned_abs());
    allowed.insert(libc::SYS_socket, one_of(0, &[unix])?);
    let no_code = match below {
        // Nothing of it makes code, and no library is loaded any more.
        Below::Emulated => vec![masked(2, EXECUTE, 0)?],
        Below::Native => Vec::new(),
    };
    allowed.insert(libc::SYS_mmap, no_code.clone());
    allowed.insert(libc::SYS_mprotect, no_code);
    if below == Below::Native {
        // The resource manager's calls have the letter F; those of unified memory are bare numbers, two of them high.
        let ours = vec![
            masked(1, 0xff00, 0x4600)?,
            masked(1, 0xffff_ff00, 0)?,
            masked(1, 0xffff_ff00, 0x3000_0000)?,
        ];
        allowed.insert(libc::SYS_ioctl, ours);
    }
    let no_clone3: Rules = [(libc::SYS_clone3, vec![])].into();
    let arch = std::env::consts::ARCH.try_into()?;
    let refused = |error: i32| SeccompAction::Errno(error.unsigned_abs());
    Ok([
        SeccompFilter::new(no_clone3, SeccompAction::Allow, refused(libc::ENOSYS), arch)?.try_into()?,
        SeccompFilter::new(allowed, refused(libc::EPERM), SeccompAction::Allow, arch)?.try_into()?,
    ])
}
