//! The file of a machine's disk, looked at before QEMU opens it. A guest wrote its first bytes, and they may name files of the host.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};
use rustix::fs::{Mode, OFlags, open};

/// How qcow2 begins.
const MAGIC: [u8; 4] = *b"QFI\xfb";

/// The disk's whole path.
///
/// # Errors
/// [`Code::Usage`] for what cannot be read or is no disk, and for a qcow2 that has parts of its content in other files.
pub(super) fn look(path: &Path) -> Result<PathBuf, Fault> {
    let failed = |error: &io::Error| {
        Fault::new(Code::Usage, format!("cannot use the disk `{}`", path.display()))
            .because(error)
            .hint("name the file of a raw or qcow2 image, or a block device")
    };
    let whole = std::path::absolute(path).map_err(|error| failed(&error))?;
    if whole.to_str().is_none_or(|text| text.contains(char::is_control)) {
        return Err(failed(&io::Error::other("its name is no text")));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(&whole, flags, Mode::empty()).map_err(|errno| failed(&errno.into()))?;
    let file = File::from(file);
    let kind = file.metadata().map_err(|error| failed(&error))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(failed(&io::Error::other(
            "it is neither a plain file nor a block device",
        )));
    }
    let mut begin = Vec::new();
    file.take(104)
        .read_to_end(&mut begin)
        .map_err(|error| failed(&error))?;
    judge(&begin, whole.extension().is_some_and(|end| end == "qcow2")).map_err(|why| {
        Fault::new(Code::Usage, format!("the disk `{}` {why}", path.display()))
            .hint("`qemu-img convert -O qcow2 OLD NEW.qcow2` makes one that has all of its content itself")
    })?;
    Ok(whole)
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
        assert_eq!(look(&disk).expect("raw"), disk);
        for wrong in ["fat:rw:/etc", "/dev/null", "/nowhere", "/tmp"] {
            assert_eq!(look(Path::new(wrong)).expect_err(wrong).code, Code::Usage);
        }
    }
}
