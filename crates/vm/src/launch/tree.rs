//! A folder of files, read into an archive.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use divvy_model::{Bytes, Code, Fault};

use super::archive::{Archive, Facts, LINK};

/// Adds a folder with all below it. Links stay links; devices, sockets and FIFOs are left out. Other file systems that
/// are mounted below it are left out too.
///
/// # Errors
/// [`Code::Usage`] for a file that cannot be read, and where there are more than `most` bytes.
pub fn add<W: Write>(archive: &mut Archive<W>, folder: &Path, to: &str, most: Bytes) -> Result<(), Fault> {
    let device = fs::metadata(folder)
        .map_err(|error| unreadable(folder, &error))?
        .dev();
    let mut left = vec![(folder.to_path_buf(), to.to_owned())];
    while let Some((path, name)) = left.pop() {
        let found = fs::symlink_metadata(&path).map_err(|error| unreadable(&path, &error))?;
        let facts = Facts {
            mode: found.mode(),
            user: found.uid(),
            group: found.gid(),
        };
        let kind = found.file_type();
        let failed = |error: io::Error| unreadable(&path, &error);
        // A folder on which something is mounted comes along empty.
        if kind.is_dir() || path == folder {
            let facts = Facts {
                mode: facts.mode & 0o7777 | super::archive::FOLDER,
                ..facts
            };
            archive.folder(&name, facts).map_err(failed)?;
            if found.dev() != device && path != folder {
                continue;
            }
            let mut entries = fs::read_dir(&path)
                .and_then(Iterator::collect::<io::Result<Vec<_>>>)
                .map_err(failed)?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries.iter().rev() {
                let own = entry.file_name();
                let own = own
                    .to_str()
                    .ok_or_else(|| failed(io::Error::other("a name is no text")))?;
                left.push((entry.path(), format!("{name}/{own}")));
            }
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(failed)?;
            let bytes = target.as_os_str().as_encoded_bytes();
            let facts = Facts {
                mode: LINK | 0o777,
                ..facts
            };
            archive.file(&name, facts, bytes).map_err(failed)?;
        } else if kind.is_file() {
            if archive.bytes().saturating_add(found.len()) > most.0 {
                return Err(Fault::new(
                    Code::Usage,
                    format!("{} has more than the {most} that the machine has for files", folder.display()),
                )
                .hint("its files are in its memory: ask for more with --memory, or start from a disk with --disk"));
            }
            let bytes = fs::read(&path).map_err(failed)?;
            archive.file(&name, facts, &bytes).map_err(failed)?;
        } else {
            // What a program needs of these the machine makes itself.
            debug_assert!(
                kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device()
            );
        }
    }
    Ok(())
}

fn unreadable(path: &Path, error: &io::Error) -> Fault {
    Fault::new(
        Code::Usage,
        format!("cannot read `{}` for the machine", path.display()),
    )
    .because(error)
    .hint("--root names a folder with a system's files, as `mmdebstrap` or `podman export` makes it")
}

#[cfg(test)]
mod tests {
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
}
