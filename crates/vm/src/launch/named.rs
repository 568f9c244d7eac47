//! What a name leads to, for a caller who is root and may be led: in a folder of another user's, a link of that user's can lead to any
//! file of the host, which the machine would then read or write.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, openat, readlinkat};

/// As the kernel follows.
const MOST_LINKS: usize = 40;

/// Why root is not led further.
#[derive(Debug)]
struct Led {
    link: String,
    owner: u32,
}

impl std::fmt::Display for Led {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { link, owner } = self;
        match owner {
            0 => write!(
                f,
                "`{link}` is a link in or below a folder where another user can put it: root is not led by it"
            ),
            _ => write!(f, "`{link}` is a link of user {owner}: root is not led by it"),
        }
    }
}

impl std::error::Error for Led {}

/// What to do about an error of [`open_named`]; `else_hint` where the name leads nowhere else.
#[must_use]
pub fn hint<'a>(error: &io::Error, else_hint: &'a str) -> &'a str {
    match error
        .get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<Led>)
    {
        true => "name what the link leads to: `readlink -f` says where that is",
        false => else_hint,
    }
}

/// Opens a file or a folder by its name. For root each link on the way has to be root's, and each folder on the way to it one in which
/// no other user can put another: in such a folder a whole system of root's may have been moved to where a name leads.
///
/// # Errors
/// The system's reason, or which link leads elsewhere.
pub fn open_named(path: &Path, flags: OFlags) -> io::Result<File> {
    let caller = rustix::process::geteuid();
    if !caller.is_root() || std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| is_alone(&map)) {
        return Ok(open(path, flags | OFlags::CLOEXEC, Mode::empty())?.into());
    }
    let found = walk(path, caller.as_raw())?;
    // The same file, which may have another name by now.
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(open(same, flags | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Whether root is the one user of its namespace, as `unshare --map-root-user` makes it, by the kernel's lines of `FIRST OUTSIDE COUNT`.
/// Its rights are that user's, and there the host's own links belong to no known user.
fn is_alone(map: &str) -> bool {
    let mut lines = map.lines().map(|line| line.split_whitespace().nth(2));
    lines.next() == Some(Some("1")) && lines.next().is_none()
}

/// Goes from folder to folder by descriptors, so that nothing is exchanged between the look and the step.
fn walk(path: &Path, caller: u32) -> io::Result<OwnedFd> {
    const STEP: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    if path.as_os_str().is_empty() {
        return Err(rustix::io::Errno::NOENT.into());
    }
    let begin = if path.is_absolute() { "/" } else { "." };
    let mut at = open(begin, STEP.union(OFlags::DIRECTORY), Mode::empty())?;
    let mut left = parts(path.as_os_str());
    let mut links = 0;
    let mut is_own_way = true;
    while let Some(part) = left.pop() {
        is_own_way &= is_kept(&fstat(&at)?, caller);
        let next = openat(&at, &*part, STEP, Mode::empty())?;
        let found = fstat(&next)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            at = next;
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(rustix::io::Errno::LOOP.into());
        }
        if !is_own_way || !is_callers(&found, caller) {
            return Err(io::Error::other(Led {
                link: part.to_string_lossy().escape_debug().to_string(),
                owner: found.st_uid,
            }));
        }
        let target = readlinkat(&next, "", Vec::new())?;
        let target = OsStr::from_bytes(target.as_bytes());
        if Path::new(target).is_absolute() {
            at = open("/", STEP.union(OFlags::DIRECTORY), Mode::empty())?;
            is_own_way = true;
        }
        left.extend(parts(target));
    }
    Ok(at)
}

/// The parts of a name, the last one first. A `/` behind the last one says that it is a folder.
fn parts(name: &OsStr) -> Vec<CString> {
    let bytes = name.as_bytes();
    let own = bytes.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    let mut all: Vec<CString> = own.filter_map(|part| CString::new(part).ok()).collect();
    if bytes.ends_with(b"/") && !all.is_empty() {
        all.push(c".".to_owned());
    }
    all.reverse();
    all
}

/// Whether it belongs to root or the caller.
fn is_callers(found: &Stat, caller: u32) -> bool {
    found.st_uid == 0 || found.st_uid == caller
}

/// Whether what root and the caller have in a folder stays as it is: no other user can write it. In one such as `/tmp` others add links,
/// and leave these as they are.
fn is_kept(folder: &Stat, caller: u32) -> bool {
    const STICKY: u32 = 0o1000;
    is_callers(folder, caller) && (folder.st_mode & 0o022 == 0 || folder.st_mode & STICKY != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    /// A user that no machine needs to have.
    const OTHER: u32 = 64_031;

    fn text(path: &Path) -> io::Result<String> {
        let mut text = String::new();
        open_named(path, OFlags::RDONLY)?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn a_name_leads_where_the_kernel_would_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/b")).expect("folders");
        fs::write(at("a/file"), "content").expect("written");
        for (target, link) in [("../file", "a/b/up"), ("a/b", "down"), ("round", "round")] {
            symlink(target, at(link)).expect("a link");
        }
        symlink(at("down/up"), at("whole")).expect("a link");
        for name in [
            "a/file",
            "a//b/../file",
            "a/b/up",
            "down/up",
            "whole",
            "down/../file",
        ] {
            assert_eq!(text(&at(name)).expect(name), "content", "{name}");
        }
        open_named(&at("down/"), OFlags::RDONLY | OFlags::DIRECTORY).expect("a folder");
        open_named(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY).expect("this one");
        open_named(Path::new("/"), OFlags::RDONLY | OFlags::DIRECTORY).expect("the root");
        for name in ["a/none", "round", "a/file/", "a/file/x"] {
            let error = text(&at(name)).expect_err(name);
            assert_eq!(hint(&error, "else"), "else", "{name}: {error}");
        }
        let no_name = open_named(Path::new(""), OFlags::RDONLY).expect_err("no name");
        assert_eq!(no_name.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn root_is_led_by_no_link_of_another_users() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("theirs/system")).expect("folders");
        fs::create_dir(at("secrets")).expect("a folder");
        fs::write(at("secrets/secret"), "of root alone").expect("written");
        fs::write(at("theirs/disk"), "a disk").expect("written");
        for (target, link) in [
            ("../secrets/secret", "theirs/led"),
            ("../secrets", "theirs/folder"),
        ] {
            symlink(target, at(link)).expect("a link");
        }
        let refused = |name: &str| {
            let error = text(&at(name)).expect_err(name);
            assert!(
                error.to_string().contains("root is not led by it"),
                "{name}: {error}"
            );
            assert!(hint(&error, "else").contains("readlink"), "{name}");
        };
        for name in ["theirs", "theirs/system", "theirs/disk"] {
            chown(at(name), Some(OTHER), Some(OTHER)).expect("given away");
        }
        // Root's link, which that user may take away and put back elsewhere.
        refused("theirs/led");
        for name in ["theirs/led", "theirs/folder"] {
            lchown(at(name), Some(OTHER), Some(OTHER)).expect("given away");
        }
        refused("theirs/led");
        refused("theirs/folder/secret");
        // By a link of root's the way is the same.
        symlink("theirs/led", at("own")).expect("a link");
        refused("own");
        assert_eq!(text(&at("theirs/disk")).expect("no link"), "a disk");
        // In a folder such as /tmp the others' links are refused, and root's are followed.
        fs::create_dir(at("all")).expect("a folder");
        symlink("../secrets/secret", at("all/roots")).expect("a link");
        symlink("../secrets/secret", at("all/others")).expect("a link");
        lchown(at("all/others"), Some(OTHER), Some(OTHER)).expect("given away");
        fs::set_permissions(at("all"), fs::Permissions::from_mode(0o1777)).expect("a mode");
        assert_eq!(text(&at("all/roots")).expect("root's"), "of root alone");
        refused("all/others");
        fs::set_permissions(at("all"), fs::Permissions::from_mode(0o777)).expect("a mode");
        refused("all/roots");
    }

    #[test]
    fn root_of_a_namespace_with_one_user_is_that_user() {
        assert!(is_alone("         0       1000          1\n"));
        assert!(!is_alone("         0          0 4294967295\n"));
        assert!(!is_alone("0 1000 1\n1 100000 65536\n"));
        assert!(!is_alone(""));
    }

    /// A system that root unpacked for another user has links of root's with that user's targets, and the user can give it any name.
    #[test]
    fn root_is_led_by_no_link_that_another_user_can_move() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("theirs/unpacked")).expect("folders");
        fs::write(at("secret"), "of root alone").expect("written");
        symlink(at("secret"), at("theirs/unpacked/disk")).expect("a link");
        assert_eq!(
            text(&at("theirs/unpacked/disk")).expect("root's"),
            "of root alone"
        );
        chown(at("theirs"), Some(OTHER), Some(OTHER)).expect("given away");
        fs::rename(at("theirs/unpacked"), at("theirs/images")).expect("renamed");
        let error = text(&at("theirs/images/disk")).expect_err("moved");
        assert!(error.to_string().contains("root is not led by it"), "{error}");
        // Root's absolute link begins another way, and is followed out of that folder's reach.
        symlink(at("secret"), at("own")).expect("a link");
        assert_eq!(text(&at("own")).expect("root's"), "of root alone");
    }
}
