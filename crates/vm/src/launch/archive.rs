//! A first file system for a kernel: cpio in the format `newc`.

use std::collections::BTreeSet;
use std::io::{self, Write};

/// An archive that is being written.
#[derive(Debug)]
pub struct Archive<W> {
    to: W,
    folders: BTreeSet<String>,
    entries: u32,
    bytes: u64,
}

/// What an entry says besides its name.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Kind and permissions, as `st_mode` has them.
    pub mode: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
}

impl Facts {
    /// Root's plain file or folder of this mode.
    #[must_use]
    pub fn of_root(mode: u32) -> Self {
        Self {
            mode,
            user: 0,
            group: 0,
        }
    }
}

/// A plain file's kind in `st_mode`, a folder's and a link's.
pub const FILE: u32 = 0o100_000;
/// See [`FILE`].
pub const FOLDER: u32 = 0o040_000;
/// See [`FILE`].
pub const LINK: u32 = 0o120_000;

impl<W: Write> Archive<W> {
    /// An empty one.
    pub fn new(to: W) -> Self {
        Self {
            to,
            folders: BTreeSet::new(),
            entries: 0,
            bytes: 0,
        }
    }

    /// How many bytes it has so far, names and all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a folder, and those above it that are missing. One that is there stays as it is.
    ///
    /// # Errors
    /// The system's reason.
    pub fn folder(&mut self, path: &str, facts: Facts) -> io::Result<()> {
        self.above(path)?;
        if !path.is_empty() && self.folders.insert(path.to_owned()) {
            self.entry(path, facts, &[])?;
        }
        Ok(())
    }

    /// Adds a file, and the folders above it.
    ///
    /// # Errors
    /// The system's reason; `InvalidInput` for a file of 4 GiB or more.
    pub fn file(&mut self, path: &str, facts: Facts, bytes: &[u8]) -> io::Result<()> {
        self.above(path)?;
        self.entry(path, facts, bytes)
    }

    fn above(&mut self, path: &str) -> io::Result<()> {
        match path.rsplit_once('/') {
            Some((folder, _)) => self.folder(folder, Facts::of_root(FOLDER | 0o755)),
            None => Ok(()),
        }
    }

    fn entry(&mut self, path: &str, facts: Facts, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a file has 4 GiB or more"))?;
        let name = u32::try_from(path.len() + 1).unwrap_or(u32::MAX);
        self.entries += 1;
        let fields = [
            self.entries,
            facts.mode,
            facts.user,
            facts.group,
            1,
            0,
            length,
            0,
            0,
            0,
            0,
            name,
            0,
        ];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(path);
        header.push('\0');
        self.padded(header.as_bytes())?;
        self.padded(bytes)
    }

    /// Writes bytes, and zeros up to a multiple of four.
    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.bytes += (bytes.len() + padding) as u64;
        self.to.write_all(&[0; 3][..padding])
    }

    /// Ends it.
    ///
    /// # Errors
    /// The system's reason.
    pub fn end(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", Facts::of_root(0), &[])?;
        self.to.flush()?;
        Ok(self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_folders_come_once() {
        let mut archive = Archive::new(Vec::new());
        archive
            .file("a/b/c", Facts::of_root(FILE | 0o644), b"12345")
            .expect("written");
        archive
            .folder("a/b", Facts::of_root(FOLDER | 0o700))
            .expect("written");
        let counted = archive.bytes();
        let bytes = archive.end().expect("written");
        // The last entry is its end.
        assert_eq!(counted, bytes.len() as u64 - 124);
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(text.matches("070701").count(), 4, "{text}");
        assert!(text.contains("a/b/c\0"), "{text}");
        assert!(text.ends_with("TRAILER!!!\0\0\0\0"), "{text:?}");
    }
}
