//! A control group for a slice's workers, with a limit of memory.
//!
//! All names come from the kernel and from numbers of the request: where the groups are mounted, and which group this
//! process is in. The new group stands where the limits above this process's own hold as well. docs/adr/0064 says why.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, lstat, mkdirat, open, openat, unlinkat};
use rustix::io::Errno;

/// How a group of workers begins; the numbers of this process, the slice and the user follow, and one of the group's own.
const PREFIX: &str = "divvy-workers-";

/// The kernel's two ways of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// This process's own group of the memory controller.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    version: Version,
    /// Its folder.
    own: PathBuf,
    /// Where the controller is mounted.
    mount: PathBuf,
    /// The mount's device, as stat(2) has it.
    device: u64,
    /// It is the topmost group that this process sees.
    is_root: bool,
}

/// A slice's group.
pub(crate) struct Group {
    above: OwnedFd,
    folder: OwnedFd,
    name: String,
}

impl Group {
    /// Makes a group with this limit, in bytes; none where this process has no group of the memory controller that it
    /// could write to, as in a container whose groups are read-only.
    ///
    /// # Errors
    /// The group cannot be made, or not limited.
    pub fn make(slice: u32, uid: u32, bytes: u64) -> Result<Option<Self>, Errno> {
        let Some(place) = place() else { return Ok(None) };
        let Some((above, version)) = above(&place)? else {
            return Ok(None);
        };
        sweep(&above);
        let Some(name) = make_in(&above, slice, uid)? else {
            return Ok(None);
        };
        let folder = open_folder_at(&above, &name)?;
        let group = Self { above, folder, name };
        let (limit, with_swap, of_swap) = match version {
            Version::One => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", bytes),
            Version::Two => ("memory.max", "memory.swap.max", 0),
        };
        // A kernel that does not account for swap has no such file.
        let written = write(&group.folder, limit, bytes).and_then(|()| {
            match write(&group.folder, with_swap, of_swap) {
                Err(Errno::NOENT) => Ok(()),
                written => written,
            }
        });
        if let Err(error) = written {
            group.remove();
            return Err(error);
        }
        Ok(Some(group))
    }

    /// Moves a process here. What it starts from then on begins here.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn take(&self, pid: u32) -> Result<(), Errno> {
        write(&self.folder, "cgroup.procs", u64::from(pid))
    }

    /// Removes it, once its processes have ended.
    pub fn remove(self) {
        for _ in 0..200 {
            match unlinkat(&self.above, &self.name, AtFlags::REMOVEDIR) {
                // Workers end with the process that made them, a moment later.
                Err(Errno::BUSY) => std::thread::sleep(Duration::from_millis(50)),
                _ => return,
            }
        }
    }
}

/// Makes a group that was not there: one that is there may be another's, or have processes under another limit. Its name;
/// none where this process may make none.
fn make_in(above: &OwnedFd, slice: u32, uid: u32) -> Result<Option<String>, Errno> {
    /// Another process of this one's number may have left as many, with processes in them.
    const TRIES: u32 = 64;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..TRIES {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{slice:08x}-{uid}-{number}", std::process::id());
        match mkdirat(above, &name, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => {}
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => return Ok(None),
            Err(error) => return Err(error),
            Ok(()) => return Ok(Some(name)),
        }
    }
    Err(Errno::EXIST)
}

fn open_folder_at(above: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(above, name, flags, Mode::empty())
}

fn write(folder: &OwnedFd, name: &str, number: u64) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty())?;
    rustix::io::write(&file, number.to_string().as_bytes()).map(drop)
}

/// The folder in which a new group is made; none where that cannot be.
fn above(place: &Place) -> Result<Option<(OwnedFd, Version)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = match place.version {
        Version::Two if !place.is_root => place.own.parent().unwrap_or(&place.own),
        // Below the own one: a group of version 1 may have processes and groups.
        _ => &place.own,
    };
    let folder = open(path, flags, Mode::empty())?;
    // It is the mount that the kernel told of, and no other file system over it.
    if fstat(&folder)?.st_dev != place.device || !are_roots(path, &place.mount) {
        return Ok(None);
    }
    if place.version == Version::Two && !hands_on_memory(&folder) {
        return Ok(None);
    }
    Ok(Some((folder, place.version)))
}

/// Whether root alone can move processes in this group and in each above it. Where a service manager gave one of them to a
/// user, as for a session, that user could take workers out of their limit.
fn are_roots(path: &Path, mount: &Path) -> bool {
    let is_roots = |path: &Path| match lstat(path) {
        Ok(facts) => facts.st_uid == 0 && facts.st_mode & 0o022 == 0,
        Err(errno) => errno == Errno::NOENT,
    };
    let mut folders = path.ancestors().take_while(|folder| folder.starts_with(mount));
    folders.all(|folder| is_roots(folder) && is_roots(&folder.join("cgroup.procs")))
}

/// Whether the groups in a folder of version 2 have the memory controller, which is asked for where they have not.
fn hands_on_memory(folder: &OwnedFd) -> bool {
    let file = |access| {
        openat(
            folder,
            "cgroup.subtree_control",
            access | OFlags::CLOEXEC,
            Mode::empty(),
        )
    };
    let has = || {
        let mut text = [0; 512];
        let read = file(OFlags::RDONLY).and_then(|file| rustix::io::read(&file, &mut text));
        read.is_ok_and(|count| {
            text[..count]
                .split(u8::is_ascii_whitespace)
                .any(|word| word == b"memory")
        })
    };
    has() || (file(OFlags::WRONLY).is_ok_and(|file| rustix::io::write(&file, b"+memory").is_ok()) && has())
}

/// Removes what processes of this kind left that have ended. A group with processes in it stays: the kernel says so.
fn sweep(above: &OwnedFd) {
    let Ok(entries) = Dir::read_from(above) else {
        return;
    };
    for entry in entries.flatten() {
        let Some(name) = entry
            .file_name()
            .to_str()
            .ok()
            .and_then(|name| name.strip_prefix(PREFIX))
        else {
            continue;
        };
        let maker = name
            .split('-')
            .next()
            .and_then(|number| number.parse::<u32>().ok());
        if maker.is_some_and(|maker| crate::process::start_ticks(maker).is_err()) {
            let _stays = unlinkat(above, entry.file_name(), AtFlags::REMOVEDIR);
        }
    }
}

/// How many processes of this process's own group the kernel has ended for want of memory; none where it does not say.
#[must_use]
pub fn ended_for_memory() -> Option<u64> {
    let place = place()?;
    let name = match place.version {
        Version::One => "memory.oom_control",
        Version::Two => "memory.events",
    };
    ended_in(&fs::read_to_string(place.own.join(name)).ok()?)
}

fn ended_in(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

fn place() -> Option<Place> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    place_in(&groups, &mounts)
}

/// The group by what the kernel says in `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn place_in(groups: &str, mounts: &str) -> Option<Place> {
    let mut lines = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    });
    let of_one = lines
        .clone()
        .find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let (version, path) = match of_one {
        Some((_, path)) => (Version::One, path),
        None => (
            Version::Two,
            lines.find(|(controllers, _)| controllers.is_empty())?.1,
        ),
    };
    mounts.lines().find_map(|line| {
        let (before, behind) = line.split_once(" - ")?;
        let before: Vec<&str> = before.split(' ').collect();
        let [_, _, device, root, at, ..] = before.as_slice() else {
            return None;
        };
        let behind: Vec<&str> = behind.split(' ').collect();
        let [kind, _, options] = behind.as_slice() else {
            return None;
        };
        let is_it = match version {
            Version::One => *kind == "cgroup" && options.split(',').any(|name| name == "memory"),
            Version::Two => *kind == "cgroup2",
        };
        // Names with backslashes are none of the kernel's own, nor are those that lead out of what this process sees.
        if !is_it || at.contains('\\') || path.split('/').any(|part| part == "..") {
            return None;
        }
        let below = Path::new(path).strip_prefix(root).ok()?;
        let (major, minor) = device.split_once(':')?;
        Some(Place {
            version,
            own: Path::new(at).join(below),
            mount: at.into(),
            device: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
            is_root: below.as_os_str().is_empty(),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_kernel_says_where_the_own_group_is() {
        let first = "5:pids:/\n4:cpu,memory:/a/b\n0::/\n";
        let mounts = "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpuset\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,cpu,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = place_in(first, mounts).expect("version 1");
        assert_eq!((found.version, found.is_root), (Version::One, false));
        assert_eq!(found.own, Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(found.device, rustix::fs::makedev(0, 32));
        let second = place_in("0::/system.slice/x.service\n", mounts).expect("version 2");
        assert_eq!((second.version, second.is_root), (Version::Two, false));
        assert_eq!(
            second.own,
            Path::new("/sys/fs/cgroup/unified/system.slice/x.service")
        );
        let part = "35 31 0:32 /a /m rw shared:1 - cgroup cgroup rw,cpu,memory\n";
        assert_eq!(place_in(first, part).map(|place| place.own), Some("/m/b".into()));
        for (groups, mounts) in [
            ("4:cpu,memory:/../b\n", mounts),
            ("4:cpu,memory:/c\n", part),
            ("5:pids:/\n", mounts),
            (first, "35 31 0:32 / /m\\040x rw - cgroup cgroup rw,cpu,memory\n"),
            (first, ""),
            ("", ""),
        ] {
            assert_eq!(place_in(groups, mounts), None, "{groups} {mounts}");
        }
    }

    #[test]
    fn the_kernel_says_how_many_it_ended() {
        assert_eq!(ended_in("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(ended_in("low 0\noom 1\noom_kill 1\noom_group_kill 0\n"), Some(1));
        assert_eq!(ended_in("max 3\n"), None);
    }

    #[test]
    fn no_group_is_made_where_another_user_moves_processes() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let mount = tempfile::tempdir().expect("a folder");
        let [session, own] = ["session", "session/own"].map(|name| mount.path().join(name));
        fs::create_dir_all(&own).expect("folders");
        let place = Place {
            version: Version::One,
            device: lstat(&own).expect("it is there").st_dev,
            mount: mount.path().into(),
            own: own.clone(),
            is_root: false,
        };
        let may_be = || above(&place).expect("looked").is_some();
        assert!(may_be());
        for (path, what) in [(&own, "its own"), (&session, "one above")] {
            std::os::unix::fs::chown(path, Some(1000), None).expect("given away");
            assert!(!may_be(), "{what}");
            std::os::unix::fs::chown(path, Some(0), None).expect("taken back");
        }
        let procs = session.join("cgroup.procs");
        fs::write(&procs, "").expect("a file");
        std::os::unix::fs::chown(&procs, Some(1000), None).expect("given away");
        assert!(!may_be(), "the file by which processes are moved");
    }

    #[test]
    fn a_group_that_is_there_is_not_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let above: OwnedFd = fs::File::open(folder.path()).expect("opened").into();
        let first = make_in(&above, 7, 70_007).expect("made").expect("a name");
        let number: u32 = first
            .rsplit('-')
            .next()
            .and_then(|number| number.parse().ok())
            .expect("a number");
        // Other groups may be made meanwhile: some of the next names are taken.
        for next in number + 1..number + 10 {
            let name = format!("{PREFIX}{}-00000007-70007-{next}", std::process::id());
            let _taken = fs::create_dir(folder.path().join(name));
        }
        let second = make_in(&above, 7, 70_007).expect("made").expect("a name");
        let later: u32 = second
            .rsplit('-')
            .next()
            .and_then(|number| number.parse().ok())
            .expect("a number");
        assert!(later >= number + 10, "{first} {second}");
    }

    /// Where this machine lets root make groups, a process that takes too much is ended, and its group goes.
    #[test]
    fn a_process_with_too_much_memory_is_ended_and_no_other() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let Some(group) = Group::make(7, 70_007, 32 << 20).expect("made and limited") else {
            return;
        };
        // It waits for a line before it takes memory.
        let script = "input(); held = b'x' * (256 << 20); print('too much')";
        let started = Command::new("python3")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = started else {
            return group.remove();
        };
        group.take(child.id()).expect("moved");
        drop(
            child
                .stdin
                .take()
                .map(|mut input| std::io::Write::write_all(&mut input, b"\n")),
        );
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&output.status),
            Some(9),
            "{output:?}"
        );
        let (above, name) = (group.above.try_clone().expect("a copy"), group.name.clone());
        assert!(open_folder_at(&above, &name).is_ok());
        group.remove();
        assert_eq!(open_folder_at(&above, &name).err(), Some(Errno::NOENT));
    }
}
