//! The pipe and the log folder of a user's MPS daemon. All folders above them are the agent's or root's. They are made
//! here and given to the user by their descriptors. From then on only processes of that user work in them.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, fchown, fstat, mkdirat, open, openat, unlinkat};
use rustix::io::Errno;

use crate::answer::{Answer, Refusal};
use crate::request::Device;
use crate::rules::Rules;

/// The two.
pub(crate) const NAMES: [&str; 2] = ["pipe", "log"];

/// A user and its main group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub uid: u32,
    pub gid: u32,
}

/// The user of this id. One that was deleted keeps its number, and gets the group of the same number.
pub(crate) fn user(uid: u32) -> Result<User, Answer> {
    if uid == u32::MAX {
        return Err(Answer::Refused(Refusal::User));
    }
    let known = nix::unistd::User::from_uid(uid.into());
    let gid = known.ok().flatten().map_or(uid, |user| user.gid.as_raw());
    Ok(User { uid, gid })
}

/// The folder of a daemon, whose parts are all the agent's or root's.
pub(crate) fn of_daemon(user: User, device: &Device, rules: &Rules) -> Result<OwnedFd, Answer> {
    let mut folder = folder_at(CWD, rules.run.as_os_str(), rules)?;
    for part in ["mps".to_owned(), format!("user-{}", user.uid), device.to_string()] {
        folder = folder_at(folder.as_fd(), OsStr::new(&part), rules)?;
    }
    Ok(folder)
}

fn folder_at(above: BorrowedFd<'_>, name: &OsStr, rules: &Rules) -> Result<OwnedFd, Answer> {
    let folder = open_folder(above, name).map_err(|error| match error {
        Errno::LOOP | Errno::NOTDIR => Answer::Refused(Refusal::Foreign),
        error => Answer::Failed(error),
    })?;
    let seen = fstat(&folder).map_err(Answer::Failed)?;
    let ours = [rules.agent_uid, rustix::process::geteuid().as_raw()].contains(&seen.st_uid);
    if !ours || seen.st_mode & 0o022 != 0 {
        return Err(Answer::Refused(Refusal::Foreign));
    }
    Ok(folder)
}

fn open_folder(above: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if std::path::Path::new(name).is_absolute() {
        return open(name, flags, Mode::empty());
    }
    openat(above, name, flags, Mode::empty())
}

/// Makes both folders where they are missing.
pub(crate) fn make(daemon: &OwnedFd, user: User) -> Result<(), Answer> {
    for name in NAMES {
        let made = match mkdirat(daemon, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(Answer::Failed(error)),
        };
        let folder = open_folder(daemon.as_fd(), OsStr::new(name)).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => Answer::Refused(Refusal::Foreign),
            error => Answer::Failed(error),
        })?;
        let seen = fstat(&folder).map_err(Answer::Failed)?;
        if !made {
            if seen.st_uid != user.uid || seen.st_mode & 0o077 != 0 {
                return Err(Answer::Refused(Refusal::Foreign));
            }
            continue;
        }
        // The agent may have put its own folder there meanwhile: that one is not root's.
        if seen.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Answer::Refused(Refusal::Foreign));
        }
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        fchown(&folder, Some(uid), Some(gid)).map_err(Answer::Failed)?;
    }
    Ok(())
}

/// Removes both, which a process of the user has emptied.
pub(crate) fn remove(daemon: &OwnedFd) -> Result<Answer, Answer> {
    for name in NAMES {
        match unlinkat(daemon, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(Answer::Failed(error)),
        }
    }
    Ok(Answer::Yes)
}
