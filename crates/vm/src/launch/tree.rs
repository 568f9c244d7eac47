//! A folder of files, read into an archive.
//!
//! Another user may be changing it meanwhile, and the reader may be root: every step goes by a descriptor, and no link is followed. What is read is what
//! was looked at.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use divvy_model::{Bytes, Code, Fault};
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};

use super::archive::{Archive, FOLDER, Facts, LINK};
use super::named::{hint, open_named};

/// No honest folder is deeper. Each level has a descriptor open.
const DEEPEST: usize = 128;

/// Adds a folder with all below it. Links stay links; devices, sockets and FIFOs are left out. Files and folders that are
/// mounted below it are left out too.
///
/// # Errors
/// [`Code::Usage`] for a file that cannot be read, and where there are more than `most` bytes.
pub fn add<W: Write>(archive: &mut Archive<W>, folder: &Path, to: &str, most: Bytes) -> Result<(), Fault> {
    // The folder itself may be named by a link of the caller's.
    let opened = open_named(folder, OFlags::RDONLY | OFlags::DIRECTORY);
    let opened = OwnedFd::from(opened.map_err(|error| unreadable(folder, &error))?);
    let facts = fstat(&opened).map_err(|errno| unreadable(folder, &errno.into()))?;
    let mut walk = Walk {
        archive,
        top: folder,
        device: facts.st_dev,
        most,
    };
    walk.folder(&opened, folder, to, 0)
}

struct Walk<'a, W> {
    archive: &'a mut Archive<W>,
    top: &'a Path,
    device: u64,
    most: Bytes,
}

impl<W: Write> Walk<'_, W> {
    fn folder(&mut self, opened: &OwnedFd, path: &Path, name: &str, depth: usize) -> Result<(), Fault> {
        let failed = |error: io::Error| unreadable(path, &error);
        let found = fstat(opened).map_err(|errno| failed(errno.into()))?;
        if depth > DEEPEST {
            return Err(failed(io::Error::other("it is deeper than any system")));
        }
        self.room(0)?;
        self.archive
            .folder(name, facts(&found, found.st_mode & 0o7777 | FOLDER))
            .map_err(failed)?;
        // A folder on which something is mounted comes along empty.
        if found.st_dev != self.device {
            return Ok(());
        }
        let entries = Dir::read_from(opened).map_err(|errno| failed(errno.into()))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|errno| failed(errno.into()))?;
            match entry.file_name().to_str() {
                Ok("." | "..") => {}
                Ok(own) => names.push(own.to_owned()),
                Err(_) => return Err(failed(io::Error::other("a name is no text"))),
            }
        }
        names.sort();
        for own in names {
            self.entry(opened, &own, &path.join(&own), &format!("{name}/{own}"), depth)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        above: &OwnedFd,
        own: &str,
        path: &Path,
        name: &str,
        depth: usize,
    ) -> Result<(), Fault> {
        let failed = |error: io::Error| unreadable(path, &error);
        let at = |flags: OFlags| {
            openat(
                above,
                own,
                flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )
        };
        // What is no plain file is not even opened: to open a device can be to use it.
        let looked = at(OFlags::PATH).map_err(|errno| failed(errno.into()))?;
        let found = fstat(&looked).map_err(|errno| failed(errno.into()))?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {
                let opened = at(OFlags::RDONLY | OFlags::DIRECTORY).map_err(|errno| failed(errno.into()))?;
                self.folder(&opened, path, name, depth + 1)
            }
            FileType::Symlink => {
                let target = readlinkat(&looked, "", Vec::new()).map_err(|errno| failed(errno.into()))?;
                self.room(target.as_bytes().len() as u64)?;
                self.archive
                    .file(name, facts(&found, LINK | 0o777), target.as_bytes())
                    .map_err(failed)
            }
            FileType::RegularFile if found.st_dev == self.device => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
                let opened = at(flags).map_err(|errno| failed(errno.into()))?;
                let found = fstat(&opened).map_err(|errno| failed(errno.into()))?;
                if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile
                    || found.st_dev != self.device
                {
                    return Err(failed(io::Error::other("it changed while it was read")));
                }
                let length = u64::try_from(found.st_size).unwrap_or(u64::MAX);
                self.room(length)?;
                let mut bytes = Vec::new();
                // One that grows meanwhile comes along as long as it was.
                File::from(opened)
                    .take(length)
                    .read_to_end(&mut bytes)
                    .map_err(failed)?;
                self.archive
                    .file(name, facts(&found, found.st_mode), &bytes)
                    .map_err(failed)
            }
            // What a program needs of these the machine makes itself.
            _ => Ok(()),
        }
    }

    /// Whether there is room for so many bytes more.
    fn room(&self, more: u64) -> Result<(), Fault> {
        if self.archive.bytes().saturating_add(more) <= self.most.0 {
            return Ok(());
        }
        Err(Fault::new(
            Code::Usage,
            format!(
                "{} has more than the {} that the machine has for files",
                self.top.display(),
                self.most
            ),
        )
        .hint("its files are in its memory: ask for more with --memory, or name the image of a disk"))
    }
}

fn facts(found: &Stat, mode: u32) -> Facts {
    Facts {
        mode,
        user: found.st_uid,
        group: found.st_gid,
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Fault {
    Fault::new(
        Code::Usage,
        format!("cannot read `{}` for the machine", path.display()),
    )
    .because(error)
    .hint(hint(
        error,
        "--root names a folder with a system's files, as `mmdebstrap` or `podman export` makes it",
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    use super::*;

    #[test]
    fn files_and_links_come_along_and_too_many_do_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        fs::create_dir(root.join("bin")).expect("a folder");
        fs::write(root.join("bin/program"), "12345678").expect("written");
        std::os::unix::fs::symlink("program", root.join("bin/again")).expect("a link");
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).expect("a socket");
        let read = |most: u64| {
            let mut archive = Archive::new(Vec::new());
            add(&mut archive, root, "root", Bytes(most))?;
            Ok::<_, Fault>(archive.end().expect("written"))
        };
        let bytes = read(1 << 20).expect("small enough");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        for name in ["root/bin/program\0", "root/bin/again\0", "12345678"] {
            assert!(text.contains(name), "{name}: {text}");
        }
        assert!(!text.contains("socket"), "{text}");
        let refused = read(10).expect_err("too large");
        assert!(refused.message.contains("more than the"), "{}", refused.message);
        let missing = add(
            &mut Archive::new(Vec::new()),
            &root.join("none"),
            "root",
            Bytes(1),
        );
        assert!(missing.is_err());
    }

    /// Another user puts a link to root's file, and a FIFO, where a file was a moment ago.
    #[test]
    fn what_changes_meanwhile_leads_nowhere_else() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let folder = tempfile::tempdir().expect("a folder");
        let (root, aside) = (folder.path().join("root"), folder.path().join("aside"));
        for place in [&root, &aside] {
            fs::create_dir(place).expect("a folder");
        }
        fs::create_dir(folder.path().join("secrets")).expect("a folder");
        fs::write(folder.path().join("secrets/secret"), "of root alone").expect("written");
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, aside.join(at)).expect("a link");
        for name in ["file", "pipe"] {
            fs::write(root.join(name), "mine").expect("written");
        }
        fs::create_dir(root.join("folder")).expect("a folder");
        link("../secrets/secret", "file");
        link("../secrets", "folder");
        rustix::fs::mknodat(CWD, aside.join("pipe"), FileType::Fifo, Mode::RWXU, 0).expect("a FIFO");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for name in ["file", "folder", "pipe"] {
                        let (one, other) = (root.join(name), aside.join(name));
                        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).expect("exchanged");
                    }
                }
            });
            let mut whole = 0;
            for _ in 0..4000 {
                let mut archive = Archive::new(Vec::new());
                // What changed at the wrong moment may be refused.
                if add(&mut archive, &root, "root", Bytes(1 << 20)).is_ok() {
                    let bytes = archive.end().expect("written");
                    let text = String::from_utf8_lossy(&bytes);
                    let secret = text.contains("of root alone");
                    over.store(secret, Ordering::Relaxed);
                    assert!(!secret, "{text}");
                    whole += 1;
                }
            }
            over.store(true, Ordering::Relaxed);
            assert!(whole > 0, "none was read");
        });
    }

    #[test]
    fn names_take_room_too() {
        let folder = tempfile::tempdir().expect("a folder");
        for number in 0..100 {
            fs::write(folder.path().join(number.to_string()), "").expect("written");
        }
        let mut archive = Archive::new(Vec::new());
        add(&mut archive, folder.path(), "root", Bytes(4096)).expect_err("a hundred headers are more");
    }
}
