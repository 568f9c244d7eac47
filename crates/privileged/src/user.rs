//! Becoming another user for good.

use std::ffi::CString;

use divvy_model::{Code, Fault};
use nix::unistd::{Gid, Uid, User, initgroups, setgroups, setresgid, setresuid};

/// The user of a name or a number.
///
/// # Errors
/// [`Code::Config`] where there is none, or it is root.
pub fn find(name: &str) -> Result<User, Fault> {
    let by_name = User::from_name(name).ok().flatten();
    let by_number = || User::from_uid(name.parse::<u32>().ok()?.into()).ok()?;
    let user = by_name.or_else(by_number).ok_or_else(|| {
        Fault::new(
            Code::Config,
            format!("there is no user `{name}` for the agent to run as"),
        )
        .hint("`divvy agent install` makes the user `divvy`; `agent_user` names another")
    })?;
    if user.uid.is_root() {
        return Err(
            Fault::new(Code::Config, "the agent of several users does not run as root")
                .hint("`divvy agent install` makes the user `divvy`; `agent_user` names another"),
        );
    }
    Ok(user)
}

/// Whether the table of users has one of this number. Where it cannot be read, it may.
#[must_use]
pub fn is_known(uid: u32) -> bool {
    !matches!(User::from_uid(uid.into()), Ok(None))
}

/// Becomes the user with its groups, for good. Nothing that is executed later gets any right back.
///
/// # Errors
/// [`Code::Privilege`].
pub fn become_user(user: &User) -> Result<(), Fault> {
    let name = CString::new(user.name.as_str()).unwrap_or_default();
    change(|| initgroups(&name, user.gid), user.uid, user.gid)
}

/// Becomes a user of this number with this group and no other, for good.
///
/// # Errors
/// [`Code::Privilege`].
pub fn become_number(uid: u32, gid: u32) -> Result<(), Fault> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    change(|| setgroups(&[gid]), uid, gid)
}

fn change(groups: impl Fn() -> nix::Result<()>, uid: Uid, gid: Gid) -> Result<(), Fault> {
    let change = || -> nix::Result<()> {
        if nix::unistd::geteuid().is_root() {
            groups()?;
        }
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)
    };
    let cannot = |error: &std::io::Error| {
        Fault::new(Code::Privilege, format!("cannot become user {uid}")).because(error)
    };
    change().map_err(|error| cannot(&error.into()))?;
    rustix::thread::set_no_new_privs(true).map_err(|error| cannot(&error.into()))
}
