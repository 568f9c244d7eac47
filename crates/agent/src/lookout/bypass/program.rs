//! Checks of a program's file: whether the loader will put the drop-ins into it.
//!
//! A program of another word size gets a harmless library instead: no CUDA driver has been made for it since 2018.
//! Layouts are those of the System V ABI, "Object Files"; rights are those of execve(2) and ld.so(8), "Secure-execution
//! mode".

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use divvy_ledger::Bypass;
use rustix::fs::{Access, access};

/// Scripts may name scripts as their interpreters: this is the depth that Linux follows.
const SCRIPTS: usize = 4;
/// Bytes of a script's first line that Linux reads.
const FIRST_LINE: usize = 256;
const PT_INTERP: u32 = 3;

/// Why no drop-in would be loaded into the program at `path`, if so. An unreadable file is left to the system to
/// refuse.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the program is the caller's own, who runs it next"
)]
pub fn bypass(path: &Path) -> Option<Bypass> {
    let mut path = path.to_owned();
    for _ in 0..=SCRIPTS {
        let file = File::open(&path).ok()?;
        let meta = file.metadata().ok()?;
        let mut start = [0; FIRST_LINE];
        let read = read_up_to(&file, &mut start);
        let start = &start[..read];
        if let Some(line) = start.strip_prefix(b"#!") {
            // The interpreter's rights count: those of a script do not.
            path = interpreter(line)?;
            continue;
        }
        if is_privileged(&path, &meta) {
            return Some(Bypass::PrivilegedProgram);
        }
        return start
            .starts_with(b"\x7fELF")
            .then(|| is_dynamic(&file, start))?
            .and_then(|dynamic| (!dynamic && !is_loader(&path)).then_some(Bypass::StaticProgram));
    }
    None
}

/// The file that a shell would run by this name.
#[must_use]
pub fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
}

fn read_up_to(mut file: &File, into: &mut [u8]) -> usize {
    let mut read = 0;
    while let Ok(more @ 1..) = file.read(&mut into[read..]) {
        read += more;
    }
    read
}

fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let name = line
        .split(u8::is_ascii_whitespace)
        .find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

/// Whether the system will give the program rights that this process lacks: then the loader ignores an LD_PRELOAD with
/// a path in it.
fn is_privileged(path: &Path, meta: &Metadata) -> bool {
    use rustix::process::{getegid, geteuid};
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2000;
    const GROUP_EXECUTE: u32 = 0o010;
    if rustix::fs::statvfs(path).is_ok_and(|fs| fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID)) {
        return false;
    }
    let mode = meta.mode();
    let user = mode & SET_USER != 0 && meta.uid() != geteuid().as_raw();
    let group =
        mode & (SET_GROUP | GROUP_EXECUTE) == SET_GROUP | GROUP_EXECUTE && meta.gid() != getegid().as_raw();
    let capable =
        !geteuid().is_root() && rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    user || group || capable
}

/// The loader itself, run as a program with a program as its argument.
fn is_loader(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_bytes().starts_with(b"ld-") || name.as_bytes().starts_with(b"ld.so"))
}

/// The position, size and number of the program headers in an ELF header of either word size.
struct Shape {
    offset: std::ops::Range<usize>,
    size: usize,
    count: usize,
}

const NARROW: Shape = Shape {
    offset: 0x1c..0x20,
    size: 0x2a,
    count: 0x2c,
};
const WIDE: Shape = Shape {
    offset: 0x20..0x28,
    size: 0x36,
    count: 0x38,
};

/// Whether an ELF file asks for a loader. None for a file that the system will not run anyway.
fn is_dynamic(file: &File, start: &[u8]) -> Option<bool> {
    let shape = match start.get(4..6)? {
        [1, 1] => NARROW,
        [2, 1] => WIDE,
        _ => return None,
    };
    let half = |at: usize| Some(u16::from_le_bytes(start.get(at..at + 2)?.try_into().ok()?));
    let (size, count) = (usize::from(half(shape.size)?), usize::from(half(shape.count)?));
    let mut offset = [0; 8];
    let field = start.get(shape.offset)?;
    offset[..field.len()].copy_from_slice(field);
    let mut headers = vec![0; size * count];
    file.read_exact_at(&mut headers, u64::from_le_bytes(offset))
        .ok()?;
    let wanted = PT_INTERP.to_le_bytes();
    Some(
        size >= wanted.len()
            && headers
                .chunks_exact(size)
                .any(|header| header.starts_with(&wanted)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn programs_are_told_by_their_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let this = std::env::current_exe().expect("this test");
        assert_eq!(bypass(&this), None);
        assert_eq!(bypass(Path::new("/nowhere")), None);

        // The same program without the header that asks for a loader.
        let mut bytes = fs::read(&this).expect("readable");
        let at = u64::from_le_bytes(bytes[0x20..0x28].try_into().expect("eight")) as usize;
        let size = usize::from(u16::from_le_bytes([bytes[0x36], bytes[0x37]]));
        let header = (0..)
            .map(|n| at + n * size)
            .find(|at| bytes[*at..*at + 4] == PT_INTERP.to_le_bytes())
            .expect("a test is dynamic");
        bytes[header] = 0;
        let fixed = folder.path().join("fixed");
        fs::write(&fixed, &bytes).expect("written");
        assert_eq!(bypass(&fixed), Some(Bypass::StaticProgram));
        let loader = folder.path().join("ld-linux-x86-64.so.2");
        fs::copy(&fixed, &loader).expect("copied");
        assert_eq!(bypass(&loader), None);
        fs::write(&fixed, &bytes[..40]).expect("written");
        assert_eq!(bypass(&fixed), None, "cut short, the system refuses it");

        // A script's interpreter is the program that counts.
        fs::write(&fixed, &bytes).expect("written");
        let script = folder.path().join("script");
        fs::write(&script, format!("#! {} -x\n", fixed.display())).expect("written");
        assert_eq!(bypass(&script), Some(Bypass::StaticProgram));
        fs::write(&script, format!("#!{}\n", this.display())).expect("written");
        assert_eq!(bypass(&script), None);
        fs::write(&script, format!("#!{}\n", script.display())).expect("written");
        assert_eq!(bypass(&script), None, "the system refuses it");
        fs::write(&script, "echo no line of its own\n").expect("written");
        assert_eq!(bypass(&script), None);
    }

    #[test]
    fn another_users_rights_are_told_where_they_would_be_given() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("program");
        fs::copy(std::env::current_exe().expect("this test"), &file).expect("copied");
        let set = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("ours");
        set(0o4755);
        assert_eq!(bypass(&file), None, "our own rights are nothing new");
        let nosuid = rustix::fs::statvfs(&file)
            .expect("a file system")
            .f_flag
            .contains(rustix::fs::StatVfsMountFlags::NOSUID);
        if nosuid || std::os::unix::fs::chown(&file, Some(65_534), Some(65_534)).is_err() {
            return;
        }
        for (mode, expected) in [
            (0o755, None),
            (0o4755, Some(Bypass::PrivilegedProgram)),
            (0o2755, Some(Bypass::PrivilegedProgram)),
            (0o2745, None),
        ] {
            set(mode);
            assert_eq!(bypass(&file), expected, "{mode:o}");
        }
    }
}
