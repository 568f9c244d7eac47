//! A tree that holds `sys` and `proc`: `/`, or one that was captured or built.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

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

impl Sysroot {
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

    /// The path of a file of the tree, named as below `/` without the first slash.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A file's text, trimmed; None where there is none. A file that is there and cannot be read is an error.
    ///
    /// # Errors
    /// Whatever reading it meets but its absence.
    pub fn read(&self, path: &str) -> io::Result<Option<String>> {
        match std::fs::read(self.path(path)) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same where it does not matter why it cannot be read. An empty file says nothing.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok().flatten().filter(|text| !text.is_empty())
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

    /// Names in a folder, in order, numbers by their value; none where there is no such folder.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
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
        let target = std::fs::read_link(self.path(path)).ok()?;
        target.file_name().map(|name| name.to_string_lossy().into_owned())
    }

    /// What a link points to, as it is written.
    #[must_use]
    pub fn target(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.to_string_lossy().into_owned())
    }

    /// Whether something is there.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }
}
