//! What the keeper of a lasting slice gives up before it serves: user 0, groups, and all ways to more privileges.

use divvy_model::{Code, Fault};
use nix::unistd::{Gid, Uid, User, setgroups, setresgid, setresuid};

/// The user of the system agent and of keepers, where the host has it.
const SYSTEM_USER: &str = "divvy";
/// The user of nothing, on every Linux system.
const NOBODY: u32 = 65_534;

/// Becomes a user without privileges where this process is user 0, for good.
///
/// # Errors
/// [`Code::Internal`] where the system refuses: then nothing is served.
pub(super) fn give_up_privileges() -> Result<(), Fault> {
    let cannot = |error: nix::Error| {
        Fault::new(Code::Internal, "cannot give up the keeper's privileges").because(&error)
    };
    nix::sys::prctl::set_no_new_privs().map_err(cannot)?;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = match User::from_name(SYSTEM_USER) {
        Ok(Some(user)) if !user.uid.is_root() => (user.uid, user.gid),
        _ => (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY)),
    };
    // Root in a user namespace may have no other user, or no say over its groups.
    let alone = setgroups(&[])
        .and_then(|()| setresgid(gid, gid, gid))
        .and_then(|()| setresuid(uid, uid, uid));
    match alone {
        Err(_) if in_user_namespace() => Ok(()),
        outcome => outcome.map_err(cannot),
    }
}

/// Whether user 0 here is some other user of the host's.
fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]
}
