//! A tree that holds `sys` and `proc`: `/`, or one that was captured or built.
//!
//! A captured tree may be hostile. Its links lead nowhere but into the tree itself, only plain files are read, and no
//! file is read further than an honest one goes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2, readlinkat};
use rustix::io::Errno;

/// Files of `sys` and `proc` are a page or a few.
const LARGEST: usize = 1 << 20;
/// A list of modules' aliases has 2 MiB.
const LONGEST: usize = 1 << 24;
/// No folder of them has more entries but `proc` of a machine that does little else.
const MOST: usize = 1 << 16;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysroot {
    root: PathBuf,
}

impl Default for Sysroot {
    fn default() -> Self {
        Self::at("/")
    }
}

/// Names a tree in the place of `/`, to try what Divvy does on machines that are not here.
pub const SYSROOT: &str = "DIVVY_SYSROOT";

impl Sysroot {
    /// The tree that `DIVVY_SYSROOT` names, else `/`.
    #[must_use]
    pub fn of_process() -> Self {
        let named = std::env::var_os(SYSROOT).filter(|path| !path.is_empty());
        named.map_or_else(Self::default, Self::at)
    }

    /// The tree below `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether this is the running machine's own.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where a file of the tree is, named as below `/` without the first slash: to show it, or to hand it on. The other
    /// functions read what lies there; they follow no link out of the tree.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Where what lies at a path of the tree really is, with all links followed, inside the tree only: for callers that
    /// follow links anywhere. None where nothing is there.
    #[must_use]
    pub fn real(&self, path: &str) -> Option<PathBuf> {
        let found = self.open(path, OFlags::PATH).ok()?;
        let link = format!("/proc/self/fd/{}", found.as_raw_fd());
        std::fs::read_link(link).ok().filter(|place| place.is_absolute())
    }

    /// Opens what lies at a path of the tree, named as below `/` without the first slash.
    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = match flags.contains(OFlags::PATH) {
            true => flags | OFlags::CLOEXEC,
            // Neither a FIFO nor a terminal of the tree blocks the reader.
            false => flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY,
        };
        if self.is_own() {
            return Ok(openat(CWD, self.root.join(path), flags, Mode::empty())?);
        }
        let root = open(
            &self.root,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..16 {
            match openat2(&root, path, flags, Mode::empty(), within) {
                // A part of the path is being renamed just now.
                Err(Errno::AGAIN) => {}
                opened => return Ok(opened?),
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Opens a plain file. Other kinds of file are not even opened: to open a device can be to use it.
    fn plain(&self, path: &str, flags: OFlags) -> io::Result<File> {
        let looked = self.open(path, OFlags::PATH)?;
        match FileType::from_raw_mode(fstat(&looked)?.st_mode) {
            FileType::RegularFile => Ok(self.open(path, flags)?.into()),
            FileType::Directory => Err(Errno::ISDIR.into()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no plain file")),
        }
    }

    /// A file's bytes, of `largest` at most.
    pub(super) fn bytes(&self, path: &str, largest: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.plain(path, OFlags::RDONLY)?;
        file.take(largest as u64 + 1).read_to_end(&mut bytes)?;
        match bytes.len() > largest {
            true => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is larger than any such file",
            )),
            false => Ok(bytes),
        }
    }

    /// A file's text, trimmed; None where there is none. A file that is there and cannot be read is an error.
    ///
    /// # Errors
    /// Whatever reading it meets but its absence.
    pub fn read(&self, path: &str) -> io::Result<Option<String>> {
        match self.bytes(path, LARGEST) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A file's text as it is, of a list's length at most; None where there is none.
    ///
    /// # Errors
    /// Whatever reading it meets but its absence; `InvalidData` for what is no text.
    pub fn whole(&self, path: &str) -> io::Result<Option<String>> {
        match self.bytes(path, LONGEST) {
            Ok(bytes) => {
                let text = String::from_utf8(bytes);
                text.map(Some)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes to a file that is there.
    ///
    /// # Errors
    /// Whatever the kernel refuses, of a file that is not there too.
    pub fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let mut file = self.plain(path, OFlags::WRONLY | OFlags::TRUNC)?;
        file.write_all(text.as_bytes())
    }

    /// The same as [`Self::read`] where it does not matter why it cannot be read. An empty file says nothing.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok().flatten().filter(|text| !text.is_empty())
    }

    /// The same for a list that may be longer than a file of `sys` or `proc`, such as that of the kernel's modules.
    #[must_use]
    pub fn long_text(&self, path: &str) -> Option<String> {
        let bytes = self.bytes(path, LONGEST).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A number in a file, decimal or with `0x`.
    #[must_use]
    pub fn number<T: FromStr + TryFrom<u64>>(&self, path: &str) -> Option<T> {
        let text = self.text(path)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok()?.try_into().ok(),
            None => text.parse().ok(),
        }
    }

    /// Names in a folder, in order, numbers by their value; none where there is no such folder. A name with control
    /// characters is skipped.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let opened = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY);
        let Ok(folder) = opened.and_then(|folder| Ok(Dir::new(folder)?)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = folder
            .take(MOST)
            .flatten()
            .filter_map(|entry| Some(entry.file_name().to_str().ok()?.to_owned()))
            .filter(|name| name != "." && name != ".." && !name.contains(char::is_control))
            .collect();
        names.sort_by(|a, b| {
            let number = |name: &str| name.parse::<u64>().unwrap_or(u64::MAX);
            (number(a), a).cmp(&(number(b), b))
        });
        names
    }

    /// The last name of what a link points to, whether or not that is there.
    #[must_use]
    pub fn link(&self, path: &str) -> Option<String> {
        let target = self.target(path)?;
        let name = Path::new(&target).file_name()?;
        Some(name.to_string_lossy().into_owned())
    }

    /// What a link points to, as it is written.
    #[must_use]
    pub fn target(&self, path: &str) -> Option<String> {
        let link = self.open(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        // An empty path is the link itself.
        let target = readlinkat(&link, "", Vec::new()).ok()?;
        Some(target.to_string_lossy().into_owned())
    }

    /// Whether something is there.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.open(path, OFlags::PATH).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_of_a_captured_tree_lead_nowhere_else() {
        let outside = tempfile::tempdir().expect("a folder");
        let folder = tempfile::tempdir().expect("a folder");
        let secret = outside.path().join("secret");
        fs::write(&secret, "mine").expect("a file");
        let root = Sysroot::at(folder.path());
        fs::create_dir_all(folder.path().join("sys/kernel")).expect("a folder");
        fs::write(folder.path().join("sys/kernel/name"), " here\n").expect("a file");
        let link = |name: &str, target: &Path| symlink(target, folder.path().join(name)).expect("a link");
        link("absolute", &secret);
        link("folder", outside.path());
        let up = PathBuf::from(format!("../../../../../..{}", secret.display()));
        link("sys/up", &up);
        link("inside", Path::new("/sys/kernel"));
        link("round", Path::new("round"));
        for path in ["absolute", "folder/secret", "sys/up", "round"] {
            assert_eq!(root.text(path), None, "{path}");
            assert!(root.write(path, "theirs").is_err(), "{path}");
        }
        assert!(root.names("folder").is_empty());
        assert!(!root.has("absolute") && root.has("inside/name"));
        assert_eq!(
            root.text("inside/name").as_deref(),
            Some("here"),
            "as in a chroot"
        );
        assert_eq!(root.link("absolute").as_deref(), Some("secret"));
        assert_eq!(fs::read_to_string(&secret).expect("a file"), "mine");
        root.write("inside/name", "there").expect("a file of the tree");
        assert_eq!(root.text("sys/kernel/name").as_deref(), Some("there"));
        assert!(root.write("new", "x").is_err(), "nothing is made");
    }

    #[test]
    fn what_never_ends_or_answers_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = Sysroot::at(folder.path());
        let at = |name: &str| folder.path().join(name);
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket");
        let large = File::create(at("large")).expect("a file");
        large.set_len(1 << 40).expect("a file with a hole");
        fs::write(at("bytes"), [0xff, 0xfe, b'7']).expect("a file");
        fs::create_dir(at("folder")).expect("a folder");
        for name in ["fifo", "socket", "large", "folder"] {
            assert!(root.read(name).is_err(), "{name}");
            assert_eq!(root.number::<u32>(name), None, "{name}");
        }
        assert_eq!(root.read("none").expect("nothing is there"), None);
        assert_eq!(root.number::<u32>("bytes"), None);
        fs::write(at("folder/1\x1b[2J"), "").expect("a file");
        fs::write(at("folder/10"), "").expect("a file");
        fs::write(at("folder/9"), "").expect("a file");
        assert_eq!(root.names("folder"), ["9", "10"]);
        assert_eq!(root.names("fifo"), [""; 0]);
    }
}
