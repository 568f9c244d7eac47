//! Paths: whether there is something, and the files that describe slices to container engines.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstat, open, openat2, statat, statx,
    unlinkat,
};
use rustix::io::Errno;

use crate::answer::{Answer, Refusal};
use crate::request::CdiFolder;
use crate::rules::Rules;

/// Whether there is something at a path. Why not is for the asker to judge.
pub(crate) fn look(path: &[u8]) -> Answer {
    let path = Path::new(OsStr::from_bytes(path));
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match statx(CWD, path, flags, StatxFlags::TYPE) {
        Ok(_) => Answer::Yes,
        Err(error) => Answer::Failed(error),
    }
}

/// Removes `divvy-slice-ID.json` from a folder that only root writes.
pub(crate) fn remove_cdi(folder: CdiFolder, slice: u32, rules: &Rules) -> Result<Answer, Answer> {
    let folder = &rules.cdi[match folder {
        CdiFolder::Lasting => 0,
        CdiFolder::Dynamic => 1,
    }];
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = match openat2(CWD, folder, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // A kernel before 5.6: the folders above are root's, the last part is checked.
        Err(Errno::NOSYS) => open(folder, flags, Mode::empty()),
        opened => opened,
    };
    let opened = match opened {
        Err(Errno::NOENT) => return Ok(Answer::Yes),
        opened => opened.map_err(Answer::Failed)?,
    };
    let of_folder = fstat(&opened).map_err(Answer::Failed)?;
    let own = rustix::process::geteuid().as_raw();
    if of_folder.st_uid != own || of_folder.st_mode & 0o022 != 0 {
        return Err(Answer::Refused(Refusal::Foreign));
    }
    let name = format!("divvy-slice-{slice:08x}.json");
    match statat(&opened, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(Answer::Yes),
        Ok(file) if FileType::from_raw_mode(file.st_mode) == FileType::RegularFile => {}
        Ok(_) => return Err(Answer::Refused(Refusal::Foreign)),
        Err(error) => return Err(Answer::Failed(error)),
    }
    match unlinkat(&opened, &name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(Answer::Yes),
        Err(error) => Err(Answer::Failed(error)),
    }
}
