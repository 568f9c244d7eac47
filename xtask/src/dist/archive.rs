//! Files in one archive, the same bytes for the same files, and their checksums.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::cargo::finish;

/// The file with the checksums, as `sha256sum --check` reads it.
const SUMS: &str = "SHA256SUMS";

/// A file of the archive.
#[derive(Debug)]
pub struct Entry {
    /// Where it is in the archive, below the archive's one folder.
    path: String,
    /// Where it lies now.
    from: PathBuf,
    mode: u32,
}

impl Entry {
    /// A file to be executed or loaded.
    pub fn program(path: String, from: PathBuf) -> Self {
        let mode = 0o755;
        Self { path, from, mode }
    }

    /// Where it is in the archive.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Copies it, with its mode.
    ///
    /// # Errors
    /// It is not there, or the folder cannot be made.
    pub fn copy_to(&self, to: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(to.parent().unwrap_or(to))?;
        fs::copy(&self.from, to).with_context(|| format!("Cannot copy {}", self.from.display()))?;
        fs::set_permissions(to, Permissions::from_mode(self.mode))?;
        Ok(())
    }

    /// Where it lies now.
    pub fn from(&self) -> &Path {
        &self.from
    }

    /// A file to be read.
    pub fn text(path: String, from: PathBuf) -> Self {
        let mode = 0o644;
        Self { path, from, mode }
    }

    /// A text, or all texts below a folder.
    pub fn all_below(path: &str, from: &Path) -> anyhow::Result<Vec<Self>> {
        let cannot = || format!("Cannot read {}", from.display());
        if !fs::metadata(from).with_context(cannot)?.is_dir() {
            return Ok(vec![Self::text(path.to_owned(), from.to_owned())]);
        }
        let mut all = Vec::new();
        for entry in fs::read_dir(from).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            all.extend(Self::all_below(&format!("{path}/{name}"), &entry.path())?);
        }
        Ok(all)
    }
}

/// Copies the entries below `top`, with their modes; the files there.
///
/// # Errors
/// Two entries have one path, or a file cannot be copied.
pub fn lay_out<'a>(top: &Path, entries: impl IntoIterator<Item = &'a Entry>) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in entries {
        let to = top.join(&entry.path);
        if to.exists() {
            bail!("Two files of the archive have the path {}", entry.path);
        }
        entry.copy_to(&to)?;
        files.push(to);
    }
    Ok(files)
}

/// Gives all folders from `top` down the mode that packages have, whatever this process's mask is.
///
/// # Errors
/// A folder cannot be read or changed.
pub fn plain_folders(top: &Path) -> anyhow::Result<()> {
    fs::set_permissions(top, Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(top)? {
        let path = entry?.path();
        if path.is_dir() {
            plain_folders(&path)?;
        }
    }
    Ok(())
}

/// How a package is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As small as it gets: it will be downloaded.
    Small,
    /// In a fifth of the time: it is for a try.
    Quick,
}

impl Effort {
    /// Of a package whose programs are native builds, or not.
    pub const fn of(native: bool) -> Self {
        if native { Self::Quick } else { Self::Small }
    }

    /// gzip's word for it.
    pub const fn of_gzip(self) -> &'static str {
        match self {
            Self::Small => "--best",
            Self::Quick => "--fast",
        }
    }
}

/// Writes `out/<name>.tar.gz` with one folder `name`, which holds the entries and their checksums. Its path.
pub fn pack<'a>(
    out: &Path,
    name: &str,
    entries: impl IntoIterator<Item = &'a Entry>,
    effort: Effort,
) -> anyhow::Result<PathBuf> {
    let stage = tempfile::tempdir_in(out).context("Cannot make a folder to pack in")?;
    let top = stage.path().join(name);
    let files = lay_out(&top, entries)?;
    write_sums(&top, &files)?;
    fs::set_permissions(top.join(SUMS), Permissions::from_mode(0o644))?;
    let packed = out.join(format!("{name}.tar.gz"));
    finish(
        Command::new("tar")
            // No time, user or group of this machine.
            .args(["--create", "--sort=name", "--mtime=@0", "--format=gnu"])
            .args(["--owner=0", "--group=0", "--numeric-owner", "--mode=go=rX,u+w"])
            .arg("--use-compress-program")
            .arg(format!("gzip --no-name {}", effort.of_gzip()))
            .arg("--file")
            .arg(&packed)
            .arg("--directory")
            .arg(stage.path())
            .arg(name),
    )?;
    Ok(packed)
}

/// Writes the checksums of `files`, which lie below `folder`, into a file there.
pub fn write_sums(folder: &Path, files: &[PathBuf]) -> anyhow::Result<()> {
    let mut names: Vec<&Path> = files
        .iter()
        .map(|file| file.strip_prefix(folder).context("A file lies elsewhere"))
        .collect::<anyhow::Result<_>>()?;
    names.sort();
    let output = Command::new("sha256sum")
        .current_dir(folder)
        .arg("--")
        .args(&names)
        .output()
        .context("Cannot start sha256sum")?;
    if !output.status.success() {
        bail!("sha256sum: {}", String::from_utf8_lossy(&output.stderr));
    }
    fs::write(folder.join(SUMS), output.stdout).context("Cannot write the checksums")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(command: &mut Command) -> String {
        let output = command.output().expect("it starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    }

    /// Stand-ins for what is built, in a folder of their own.
    fn stand_ins() -> (tempfile::TempDir, Vec<Entry>) {
        let base = tempfile::tempdir().expect("a folder");
        let file = |name: &str, mode: u32| {
            let path = base.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("it is made");
            fs::write(&path, name).expect("written");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
            path
        };
        let mut entries = vec![
            Entry::program("bin/divvy".to_owned(), file("divvy", 0o700)),
            Entry::program("lib/divvy/libx.so".to_owned(), file("libx.so", 0o600)),
        ];
        file("docs/b.md", 0o600);
        file("docs/adr/a.md", 0o666);
        entries.extend(Entry::all_below("share/doc/divvy/docs", &base.path().join("docs")).expect("texts"));
        (base, entries)
    }

    #[test]
    fn the_same_files_give_the_same_archive() {
        let (out, other) = (
            tempfile::tempdir().expect("a folder"),
            tempfile::tempdir().expect("a folder"),
        );
        let (_base, entries) = stand_ins();
        let (_later, mut again) = stand_ins();
        again.reverse();
        let first = pack(out.path(), "divvy-1-x-linux", &entries, Effort::Small).expect("packed");
        let second = pack(other.path(), "divvy-1-x-linux", &again, Effort::Small).expect("packed");
        let bytes = |path: &Path| fs::read(path).expect("an archive");
        assert!(bytes(&first) == bytes(&second));

        let listed = printed(
            Command::new("tar")
                .args(["--numeric-owner", "--utc", "-tvzf"])
                .arg(&first),
        );
        let shown: Vec<_> = listed
            .lines()
            .map(|line| {
                let words: Vec<_> = line.split_whitespace().collect();
                format!("{} {} {} {}", words[0], words[1], words[3], words[5])
            })
            .filter(|line| !line.ends_with('/'))
            .collect();
        assert_eq!(
            shown,
            [
                "-rw-r--r-- 0/0 1970-01-01 divvy-1-x-linux/SHA256SUMS",
                "-rwxr-xr-x 0/0 1970-01-01 divvy-1-x-linux/bin/divvy",
                "-rwxr-xr-x 0/0 1970-01-01 divvy-1-x-linux/lib/divvy/libx.so",
                "-rw-r--r-- 0/0 1970-01-01 divvy-1-x-linux/share/doc/divvy/docs/adr/a.md",
                "-rw-r--r-- 0/0 1970-01-01 divvy-1-x-linux/share/doc/divvy/docs/b.md",
            ]
        );

        write_sums(out.path(), &[first]).expect("sums");
        printed(
            Command::new("tar")
                .arg("-xzf")
                .arg(out.path().join("divvy-1-x-linux.tar.gz"))
                .arg("-C")
                .arg(out.path()),
        );
        for folder in [out.path().to_owned(), out.path().join("divvy-1-x-linux")] {
            let mut check = Command::new("sha256sum");
            check.args(["--check", "--strict", SUMS]).current_dir(&folder);
            assert!(printed(&mut check).lines().all(|line| line.ends_with(": OK")));
        }
    }

    #[test]
    fn two_files_at_one_path_are_an_error() {
        let out = tempfile::tempdir().expect("a folder");
        let (_base, mut entries) = stand_ins();
        entries.push(Entry::text("bin/divvy".to_owned(), entries[0].from.clone()));
        let error = pack(out.path(), "divvy", &entries, Effort::Quick).expect_err("one would be lost");
        assert!(error.to_string().contains("bin/divvy"), "{error:#}");
    }
}
