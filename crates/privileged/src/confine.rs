//! Filters of system calls, and rights given up for good. A call that is not allowed fails with EPERM and ends no
//! process.
//!
//! A filter stays with a process and with all that it starts. So the helper's allows the vendors' tools, and the
//! agent's its page servers, which narrow it for themselves.

use std::collections::BTreeMap;

use divvy_model::{Code, Fault};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};

use crate::calls::{OF_AGENTS, OF_HELPERS, OF_PAGE_SERVERS};
use crate::user;

/// `clone` may make processes and threads, and no namespaces.
pub(crate) const NAMESPACES: u64 = 0x7e02_0000;
/// What a page server sets or asks of its files: not to block, to be closed on exec, whether they are a terminal.
const PAGE_SERVERS_IOCTLS: [u64; 3] = [0x5421, 0x5451, 0x5401];

/// Confines this process, a slice's page server, for good: it gives up user 0 where it is that, can get no right back,
/// and can start nothing. To be called after its sockets are there, before it serves.
///
/// # Errors
/// [`Code::Privilege`].
pub fn confine_page_server(uid: u32, gid: u32) -> Result<(), Fault> {
    if rustix::process::geteuid().is_root() && uid != 0 {
        user::become_number(uid, gid)?;
    }
    confine(&[OF_PAGE_SERVERS], &[libc::AF_UNIX], Some(&PAGE_SERVERS_IOCTLS))
}

/// Confines this process, an agent that has become its user, and all that it starts.
///
/// # Errors
/// [`Code::Privilege`].
pub fn confine_agent() -> Result<(), Fault> {
    confine(
        &[OF_PAGE_SERVERS, OF_AGENTS],
        &[libc::AF_UNIX, libc::AF_NETLINK],
        None,
    )
}

/// Confines this process, the helper, and the vendors' tools that it starts.
///
/// # Errors
/// [`Code::Privilege`].
pub fn confine_helper() -> Result<(), Fault> {
    let calls = [OF_PAGE_SERVERS, OF_AGENTS, OF_HELPERS];
    confine(&calls, &[libc::AF_UNIX, libc::AF_NETLINK], None)
}

fn confine(calls: &[&[&[i64]]], families: &[i32], ioctls: Option<&[u64]>) -> Result<(), Fault> {
    let cannot = |error: &dyn std::error::Error| {
        Fault::new(
            Code::Privilege,
            "the system calls of this process cannot be limited",
        )
        .because(error)
        .hint("a kernel with seccomp filters does that, in a container too")
    };
    for filter in filters(calls, families, ioctls).map_err(|error| cannot(&error))? {
        // Sets no_new_privs too, for every thread.
        apply_filter_all_threads(&filter).map_err(|error| cannot(&error))?;
    }
    Ok(())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn filters(
    calls: &[&[&[i64]]],
    families: &[i32],
    ioctls: Option<&[u64]>,
) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let mut allowed: Rules = calls
        .iter()
        .flat_map(|group| group.iter())
        .flat_map(|list| list.iter())
        .map(|call| (*call, vec![]))
        .collect();
    // Its arguments lie in memory: the filter below answers, as a kernel that does not have it.
    allowed.insert(libc::SYS_clone3, vec![]);
    let no_namespaces =
        SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(NAMESPACES), 0)?;
    allowed.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_namespaces])?]);
    let families = families.iter().map(|family| u64::from(family.unsigned_abs()));
    allowed.insert(libc::SYS_socket, one_of(0, families)?);
    if let Some(ioctls) = ioctls {
        allowed.insert(libc::SYS_ioctl, one_of(1, ioctls.iter().copied())?);
    }
    let no_clone3: Rules = [(libc::SYS_clone3, vec![])].into();
    let arch = std::env::consts::ARCH.try_into()?;
    let refused = |error: i32| SeccompAction::Errno(error.unsigned_abs());
    Ok([
        SeccompFilter::new(no_clone3, SeccompAction::Allow, refused(libc::ENOSYS), arch)?.try_into()?,
        SeccompFilter::new(allowed, refused(libc::EPERM), SeccompAction::Allow, arch)?.try_into()?,
    ])
}

fn one_of(
    argument: u8,
    values: impl Iterator<Item = u64>,
) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    values
        .map(|value| {
            let same = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?;
            SeccompRule::new(vec![same])
        })
        .collect()
}
