//! The file of a machine's disk, looked at before QEMU opens it. A guest wrote its first bytes, and they may name files of the
//! host.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};
use divvy_vm::launch::named::{hint, open_named};
use divvy_vm::launch::words::Opened;
use rustix::fs::{Mode, OFlags, open};

/// How qcow2 begins.
const MAGIC: [u8; 4] = *b"QFI\xfb";

/// What a machine does with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It reads.
    Reads,
    /// It writes too.
    Writes,
}

/// A disk's file, open: QEMU gets what was looked at, whatever has its name by then.
#[derive(Debug)]
pub(super) struct Disk {
    name: PathBuf,
    files: Vec<File>,
    is_block: bool,
}

impl Disk {
    /// Opens it and looks at it. QEMU reads its first bytes again, later. Where another user can write them meanwhile, QEMU may
    /// not be the caller (`is_caller`), whose files they could name.
    ///
    /// # Errors
    /// [`Code::Usage`] for what cannot be opened or is no disk, and for a qcow2 that has parts of its content in other files.
    pub(super) fn open(path: &Path, does: Use, is_caller: bool) -> Result<Self, Fault> {
        let failed = |error: &io::Error| {
            Fault::new(Code::Usage, format!("cannot use the disk `{}`", path.display()))
                .because(error)
                .hint(hint(
                    error,
                    "name the file of a raw or qcow2 image, or a block device",
                ))
        };
        let name = std::path::absolute(path).map_err(|error| failed(&error))?;
        if name.to_str().is_none_or(|text| text.contains(char::is_control)) {
            return Err(failed(&io::Error::other("its name is no text")));
        }
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = open_named(&name, flags | OFlags::RDONLY).map_err(|error| failed(&error))?;
        let found = file.metadata().map_err(|error| failed(&error))?;
        let kind = found.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(failed(&io::Error::other(
                "it is neither a plain file nor a block device",
            )));
        }
        let begin = begin(&file, 512).map_err(|error| failed(&error))?;
        let is_qcow2 = name.extension().is_some_and(|end| end == "qcow2");
        judge(&begin, is_qcow2).map_err(|why| {
            Fault::new(Code::Usage, format!("the disk `{}` {why}", path.display())).hint(
                "`qemu-img convert -O qcow2 OLD NEW.qcow2` makes one that has all of its content itself",
            )
        })?;
        if is_qcow2 && is_caller && is_anothers(&found) {
            return Err(Fault::new(
                Code::Usage,
                format!("another user can write the disk `{}`", path.display()),
            )
            .hint("QEMU runs as you, and its first bytes can name files of yours: use a copy of your own"));
        }
        if does == Use::Writes && !is_qcow2 && !begin.ends_with(&[0x55, 0xaa]) {
            return Err(Fault::new(
                Code::Usage,
                format!("no machine starts from the disk `{}`: its first sector is no boot sector", path.display()),
            )
            .hint("name a disk with an installed system; `--root` runs a program in the files of an image or a folder"));
        }
        let mut files = vec![file];
        if does == Use::Writes {
            // The same file, which may have another name by now.
            let same = format!("/proc/self/fd/{}", files[0].as_raw_fd());
            let writes = open(same, flags | OFlags::RDWR, Mode::empty());
            files.push(File::from(writes.map_err(|errno| failed(&errno.into()))?));
        }
        Ok(Self {
            name,
            files,
            is_block: kind.is_block_device(),
        })
    }

    /// Its whole name.
    pub(super) fn name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// What QEMU is told of it.
    pub(super) fn opened(&self) -> Opened {
        Opened {
            name: self.name(),
            descriptors: self.files.iter().map(AsRawFd::as_raw_fd).collect(),
            is_block: self.is_block,
        }
    }

    /// What QEMU has to have open.
    pub(super) fn files(&self) -> &[File] {
        &self.files
    }
}

/// So many of the first bytes, or all.
fn begin(file: &File, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// Whether another user than the caller and root may write the file.
fn is_anothers(found: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let is_own_group = found.gid() == rustix::process::getegid().as_raw();
    (found.uid() != own && found.uid() != 0)
        || found.mode() & 0o002 != 0
        || (found.mode() & 0o020 != 0 && !is_own_group)
}

/// Whether a disk's first bytes are as its name says, and name no other file.
fn judge(begin: &[u8], is_qcow2: bool) -> Result<(), &'static str> {
    match (begin.starts_with(&MAGIC), is_qcow2) {
        (false, false) => return Ok(()),
        (false, true) => return Err("is not qcow2, as its name says"),
        (true, false) => return Err("is qcow2, and its name does not end in .qcow2"),
        (true, true) => {}
    }
    let number = |at: usize| -> u64 {
        let bytes = begin.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_be_bytes)
    };
    // Bytes 4 to 7 are the version, 8 to 15 where the name of the file below it is, 72 to 79 the features that cannot be passed over.
    const EXTERNAL: u64 = 1 << 2;
    let has_features = number(0) & 0xffff_ffff >= 3;
    match (number(8) != 0, has_features && number(72) & EXTERNAL != 0) {
        (true, _) => Err("has another file below it"),
        (_, true) => Err("has its content in another file"),
        (false, false) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u32, backing: u64, features: u64) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(version.to_be_bytes());
        bytes.extend(backing.to_be_bytes());
        bytes.resize(72, 0);
        bytes.extend(features.to_be_bytes());
        bytes.resize(104, 0);
        bytes
    }

    #[test]
    fn a_disk_that_names_other_files_is_refused() {
        judge(&header(3, 0, 0), true).expect("all of it is in it");
        judge(&header(2, 0, 4), true).expect("version 2 has no features");
        judge(b"", false).expect("raw");
        judge(&[0; 104], false).expect("raw");
        for (begin, is_qcow2) in [
            (header(3, 112, 0), true),
            (header(2, 112, 0), true),
            (header(3, 0, 4), true),
            (header(3, 0, 0), false),
            (vec![0; 104], true),
        ] {
            judge(&begin, is_qcow2).expect_err("it is refused");
        }
    }

    #[test]
    fn a_disk_is_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("a.img");
        std::fs::write(&disk, [0; 512]).expect("written");
        let refused = Disk::open(&disk, Use::Writes, true).expect_err("nothing starts");
        assert!(refused.to_string().contains("no boot sector"), "{refused}");
        Disk::open(&disk, Use::Reads, true).expect("its system may be in its first part");
        let mut sector = [0; 512];
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        std::fs::write(&disk, sector).expect("written");
        let opened = Disk::open(&disk, Use::Writes, true).expect("raw");
        assert_eq!(opened.name(), disk.to_str().expect("text"));
        assert_eq!(opened.files().len(), 2);
        for wrong in ["fat:rw:/etc", "/dev/null", "/nowhere", "/tmp"] {
            let refused = Disk::open(Path::new(wrong), Use::Reads, true).expect_err(wrong);
            assert_eq!(refused.code, Code::Usage);
        }
    }

    #[test]
    fn a_disk_is_the_file_that_was_looked_at() {
        let folder = tempfile::tempdir().expect("a folder");
        let [disk, secret] = ["a.img", "secret"].map(|name| folder.path().join(name));
        std::fs::write(&disk, "content").expect("written");
        std::fs::write(&secret, "secret!").expect("written");
        let opened = Disk::open(&disk, Use::Reads, true).expect("raw");
        std::fs::rename(&secret, &disk).expect("renamed");
        for file in opened.files() {
            assert_eq!(begin(file, 100).expect("read"), b"content");
        }
    }

    #[test]
    fn a_disk_of_another_users_names_no_file_of_the_callers() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("a.qcow2");
        std::fs::write(&disk, header(3, 0, 0)).expect("written");
        let mode = |bits: u32| {
            std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(bits)).expect("a mode");
        };
        mode(0o644);
        Disk::open(&disk, Use::Reads, true).expect("the caller's");
        mode(0o666);
        let refused = Disk::open(&disk, Use::Reads, true).expect_err("all may write it");
        assert!(
            refused.to_string().contains("another user can write"),
            "{refused}"
        );
        Disk::open(&disk, Use::Reads, false).expect("QEMU is another user");
    }
}
