//! Programs of images into which the limiter is not loaded: those of musl, whose loader is another one, and static ones.
//! They are recognised by their file's head; paths inside an image are followed inside the image only.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use divvy_model::{Code, Fault};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

/// Why the limiter is not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No loader loads anything.
    Static,
    /// musl's loader reads no /etc/ld.so.preload, and cannot load a library of glibc's.
    Musl,
}

impl Why {
    /// The refusal, for the program of this name.
    #[must_use]
    pub fn refusal(self, program: &str) -> Fault {
        let (cause, hint) = match self {
            Self::Static => (
                "it is linked statically: nothing can be loaded into it",
                "link it dynamically",
            ),
            Self::Musl => (
                "it is a program of musl (Alpine), whose loader loads neither the limiter nor NVIDIA's libcuda",
                "use an image with glibc, such as one of Debian, Ubuntu or Red Hat",
            ),
        };
        Fault::new(
            Code::NotEnforceable,
            format!("`{program}` cannot be kept to its slice"),
        )
        .cause(cause)
        .hint(format!("{hint}; `--policy best-effort` lets it run"))
    }
}

/// Programs that only start others, and are static so that they run in any image. The programs that they start are not
/// seen here.
const STARTERS: [&str; 10] = [
    "catatonit",
    "docker-init",
    "dumb-init",
    "gosu",
    "init",
    "podman-init",
    "s6-svscan",
    "su-exec",
    "tini",
    "tini-static",
];

/// Scripts may name scripts as their interpreters: as many as Linux follows.
const SCRIPTS: usize = 4;
/// The head of a program: its headers lie there, but for files that no linker makes.
const HEAD: u64 = 64 << 10;

/// Whether the program that a container of this root runs first is one that the limiter is not loaded into. `None` for
/// one that is fine, and for what cannot be found: it may be mounted, or the runtime says so.
#[must_use]
pub fn of_root(root: &Path, arguments: &[String], path: &str, folder: &str) -> Option<Why> {
    let root = rustix::fs::open(
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let mut arguments = arguments.iter().map(String::as_str);
    let mut program = arguments.next()?.to_owned();
    // An engine's own init, which is mounted, and what it starts.
    if find(&root, &program, path, folder).is_none() && arguments.next() == Some("--") {
        program = arguments.next()?.to_owned();
    }
    for _ in 0..=SCRIPTS {
        let head = head(find(&root, &program, path, folder)?)?;
        match head.strip_prefix(b"#!") {
            Some(line) => program = interpreter(line)?,
            None => return of_head(&head).filter(|why| is_meant(*why, &program)),
        }
    }
    None
}

/// The program's file, inside the root whatever links there are.
fn find(root: &OwnedFd, program: &str, path: &str, folder: &str) -> Option<OwnedFd> {
    let open = |name: String| {
        openat2(
            root,
            name.trim_start_matches('/'),
            // A fifo in the place of a program is not waited for.
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
        .ok()
        .filter(|file| {
            fstat(file).is_ok_and(|meta| FileType::from_raw_mode(meta.st_mode) == FileType::RegularFile)
        })
    };
    if program.starts_with('/') {
        return open(program.to_owned());
    }
    if program.contains('/') {
        return open(format!("{folder}/{program}"));
    }
    path.split(':')
        .find_map(|place| open(format!("{place}/{program}")))
}

fn head(file: OwnedFd) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::from(file).take(HEAD).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn interpreter(line: &[u8]) -> Option<String> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let word = line
        .split(u8::is_ascii_whitespace)
        .find(|word| !word.is_empty())?;
    String::from_utf8(word.to_vec()).ok()
}

/// By the head of an ELF file of 64 bits (System V ABI, "Object Files"). Programs of 32 bits use no GPU.
#[must_use]
pub fn of_head(head: &[u8]) -> Option<Why> {
    const INTERP: u32 = 3;
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let wide = |at: usize| -> Option<usize> {
        let bytes = head.get(at..at.checked_add(8)?)?;
        usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let half = |at: usize| -> Option<usize> {
        let bytes = head.get(at..at.checked_add(2)?)?;
        Some(usize::from(u16::from_le_bytes(bytes.try_into().ok()?)))
    };
    let (table, size, count) = (wide(0x20)?, half(0x36)?, half(0x38)?);
    for index in 0..count {
        let at = table.checked_add(index.checked_mul(size)?)?;
        // Headers beyond the head are of no common linker: such a program is not judged by its file.
        let header = head.get(at..at.checked_add(56)?)?;
        if header[..4] == INTERP.to_le_bytes() {
            let (begin, length) = (wide(at + 8)?, wide(at + 32)?);
            let name = head.get(begin..begin.checked_add(length)?)?;
            let musl = name.windows(7).any(|part| part == b"ld-musl");
            return musl.then_some(Why::Musl);
        }
    }
    Some(Why::Static)
}

/// Whether a process runs a program of its own root yet. Before that it is its runtime: a file of the host's, or one in
/// memory, whatever the image calls its own programs.
#[must_use]
pub fn is_begun(pid: u32) -> bool {
    let begun = || -> rustix::io::Result<bool> {
        let folder = |path: &str| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty())
        };
        let (own, root) = (folder("/")?, folder(&format!("/proc/{pid}/root"))?);
        if is_same(&own, &root)? {
            return Ok(false);
        }
        let exe = format!("/proc/{pid}/exe");
        let name = rustix::fs::readlink(&exe, Vec::new())?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let program = openat2(&root, &name, flags, Mode::empty(), inside)?;
        is_same(&program, &rustix::fs::open(&exe, flags, Mode::empty())?)
    };
    begun().unwrap_or(false)
}

fn is_same(one: &OwnedFd, other: &OwnedFd) -> rustix::io::Result<bool> {
    let (one, other) = (fstat(one)?, fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// The same as [`of_root`] of a process that runs: by its file.
#[must_use]
pub fn of_process(pid: u32) -> Option<Why> {
    let mut head = Vec::new();
    let file = File::open(format!("/proc/{pid}/exe")).ok()?;
    file.take(HEAD).read_to_end(&mut head).ok()?;
    let name = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    of_head(&head).filter(|why| is_meant(*why, &name.to_string_lossy()))
}

/// Whether it is this program that would use the device. One that only has the name of a starter is ended by the agent
/// when it opens one.
fn is_meant(why: Why, program: &str) -> bool {
    let name = Path::new(program)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    // glibc's loader as a program: what it starts loads what is preloaded.
    let loader = name.starts_with("ld-linux") || name.starts_with("ld64.so");
    why == Why::Musl || !(loader || STARTERS.contains(&name.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A program that asks for this loader, or for none.
    fn program(loader: Option<&str>) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[0x20] = 64;
        file[0x36] = 56;
        file[0x38] = 1;
        let mut header = vec![0; 56];
        if let Some(loader) = loader {
            header[0] = 3;
            header[8] = 120;
            header[32] = u8::try_from(loader.len()).expect("short");
        } else {
            header[0] = 1;
        }
        file.extend(header);
        file.extend(loader.unwrap_or_default().bytes());
        file
    }

    #[test]
    fn programs_are_told_by_their_loader() {
        assert_eq!(of_head(&program(Some("/lib64/ld-linux-x86-64.so.2"))), None);
        assert_eq!(
            of_head(&program(Some("/lib/ld-musl-x86_64.so.1"))),
            Some(Why::Musl)
        );
        assert_eq!(of_head(&program(None)), Some(Why::Static));
        assert_eq!(of_head(b"\x7fELF\x02\x01"), None);
        assert_eq!(of_head(b"#!/bin/sh"), None);
        assert_eq!(of_process(std::process::id()), None);
        assert!(!is_begun(std::process::id()), "its root is the host's");
        assert!(!is_begun(u32::MAX));
        // Whatever the numbers in the head are, nothing is read beyond it.
        let mut wild = program(Some("/lib/ld-musl-x86_64.so.1"));
        for at in 0..wild.len() {
            let was = std::mem::replace(&mut wild[at], 0xff);
            let _any = of_head(&wild);
            let _cut = of_head(&wild[..at]);
            wild[at] = was;
        }
    }

    #[test]
    fn an_images_program_is_found_inside_the_image_only() {
        let base = tempfile::tempdir().expect("a folder");
        let (root, outside) = (base.path().join("root"), base.path().join("outside"));
        fs::create_dir_all(root.join("bin")).expect("a folder");
        fs::create_dir_all(root.join("usr/bin")).expect("a folder");
        fs::write(&outside, program(None)).expect("written");
        let musl = program(Some("/lib/ld-musl-x86_64.so.1"));
        fs::write(root.join("bin/busybox"), musl).expect("written");
        symlink("/bin/busybox", root.join("usr/bin/sh")).expect("a link");
        fs::write(root.join("bin/script"), "#! /usr/bin/sh -e\n").expect("written");
        fs::write(root.join("bin/solo"), program(None)).expect("written");
        fs::write(root.join("bin/tini"), program(None)).expect("written");
        fs::write(root.join("bin/ld-linux-x86-64.so.2"), program(None)).expect("written");
        symlink(&outside, root.join("bin/out")).expect("a link");
        symlink("../../outside", root.join("bin/up")).expect("a link");
        symlink("loop", root.join("bin/loop")).expect("a link");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("bin/fifo"),
            FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .expect("a fifo");
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            of_root(&root, &words, "/usr/bin:/bin", "/usr")
        };
        for words in [
            &["sh"][..],
            &["/bin/busybox"],
            &["bin/sh"],
            &["script"],
            &["/dev/init", "--", "sh"],
        ] {
            assert_eq!(of(words), Some(Why::Musl), "{words:?}");
        }
        assert_eq!(of(&["solo"]), Some(Why::Static));
        for words in [
            &["tini", "--", "solo"][..],
            &["/bin/ld-linux-x86-64.so.2", "/bin/program"],
            &["/bin/out"],
            &["up"],
            &["loop"],
            &["fifo"],
            &["/bin"],
            &["none"],
            &[],
        ] {
            assert_eq!(of(words), None, "{words:?}");
        }
    }
}
