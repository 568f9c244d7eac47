//! The directories in which engines look for CDI files.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};
use rustix::fs::OFlags;

use super::spec::{Spec, parse};

/// Where engines look, in order: for a name the later one counts.
pub const STANDARD: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// Where what does not outlive the machine's run belongs.
pub const DYNAMIC: &str = "/var/run/cdi";

/// A file in such a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The file.
    pub path: PathBuf,
    /// Its directory's place in the order: of two, the later counts.
    pub priority: usize,
    /// What it holds, or why it cannot be read.
    pub spec: Result<Spec, String>,
}

/// Reads every CDI file in these directories, by directory and name. A directory that is not there holds none.
///
/// # Errors
/// The directory that is there and cannot be read, and why.
pub fn read_all(directories: &[PathBuf]) -> Result<Vec<Found>, (PathBuf, std::io::Error)> {
    let mut all = Vec::new();
    for (priority, directory) in directories.iter().enumerate() {
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| (directory.clone(), error))?,
        };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| {
            let extension = file.extension().unwrap_or_default();
            extension == "json" || extension == "yaml" || extension == "yml"
        });
        files.sort();
        for path in files {
            let spec = read(&path);
            all.push(Found { path, priority, spec });
        }
    }
    Ok(all)
}

/// A CDI file is small: what is not is none. Reading YAML takes sixty times its size.
const MOST_BYTES: u64 = 4 << 20;

fn read(path: &Path) -> Result<Spec, String> {
    let text = text_of(path).map_err(|error| error.to_string())?;
    parse(path, &text)
}

/// A file's text, of no more bytes than that however it grows meanwhile.
fn text_of(path: &Path) -> std::io::Result<String> {
    let wrong = |why: &str| std::io::Error::new(ErrorKind::InvalidData, why);
    let file = File::options()
        .read(true)
        // Opening a FIFO would wait for a writer.
        .custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0))
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(wrong("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(wrong("it is larger than any CDI file"));
    }
    String::from_utf8(bytes).map_err(|_| wrong("it is no text"))
}

/// Writes a file so that an engine sees the old one or the new one, whole. Its path.
///
/// # Errors
/// [`Code::CdiDirectory`].
pub fn write(directory: &Path, name: &str, spec: &Spec) -> Result<PathBuf, Fault> {
    let path = directory.join(name);
    // Engines read `.json` and `.yaml` only.
    let aside = directory.join(format!(".{name}.{}.new", std::process::id()));
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(directory)?;
        let mut file = File::create(&aside)?;
        file.write_all(spec.to_json().as_bytes())?;
        // Engines of other users read it too.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.sync_all()?;
        fs::rename(&aside, &path)
    };
    write().map_err(|error| {
        let _absent = fs::remove_file(&aside);
        Fault::new(Code::CdiDirectory, format!("cannot write `{}`", path.display()))
            .because(&error)
            .hint(format!(
                "run it as root, or choose a directory that your engine reads (`--directory`; of `divvy podman run` and \
                 `divvy docker run` `--cdi-directory`): podman's and docker's are {}; \
                 without root, podman gets slices by the runtime wrapper: \
                 `DIVVY_CONTAINER_REQUESTS=variables podman --runtime /usr/bin/divvy-oci-runtime run --annotation divvy.dev/memory=4GiB IMAGE`",
                STANDARD.join(" and ")
            ))
    })?;
    Ok(path)
}

/// Removes a file that may be gone already.
///
/// # Errors
/// [`Code::CdiDirectory`].
pub fn remove(path: &Path) -> Result<(), Fault> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Fault::new(Code::CdiDirectory, format!("cannot remove `{}`", path.display())).because(&error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdi::{Device, Edits};

    #[test]
    fn files_are_written_whole_and_read_in_order() {
        let base = tempfile::tempdir().expect("a folder");
        let (first, second) = (base.path().join("a"), base.path().join("deep/b"));
        let edits = Edits {
            env: vec!["A=b".into()],
            ..Edits::default()
        };
        let device = Device {
            name: "x".into(),
            container_edits: edits,
            ..Device::default()
        };
        let spec = Spec::new("vendor.com/gpu", vec![device], Edits::default());
        let path = write(&second, "divvy-x.json", &spec).expect("written");
        assert_eq!(
            fs::metadata(&path).expect("there").permissions().mode() & 0o777,
            0o644
        );
        write(&second, "divvy-x.json", &spec).expect("written again");
        fs::create_dir(&first).expect("a folder");
        fs::write(
            first.join("v.yaml"),
            "cdiVersion: 0.5.0\nkind: a.b/c\ndevices: []\n",
        )
        .expect("written");
        fs::write(first.join("w.json"), "{").expect("written");
        fs::write(first.join("notes.txt"), "").expect("written");
        let found = read_all(&[first, base.path().join("absent"), second]).expect("read");
        let kinds: Vec<_> = found
            .iter()
            .map(|found| {
                (
                    found.priority,
                    found.spec.as_ref().map(|spec| spec.kind.as_str()).ok(),
                )
            })
            .collect();
        assert_eq!(
            kinds,
            [(0, Some("a.b/c")), (0, None), (2, Some("vendor.com/gpu"))]
        );
        remove(&path).expect("removed");
        remove(&path).expect("gone already");
    }

    #[test]
    fn what_is_no_small_file_is_said_to_be_none() {
        let base = tempfile::tempdir().expect("a folder");
        let named = |name: &str| base.path().join(name);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, named("a.json"), fifo, 0o600.into(), 0).expect("a FIFO");
        fs::write(named("b.yaml"), vec![b'\n'; 5 << 20]).expect("written");
        fs::write(named("c.yaml"), b"\xff\xfe").expect("written");
        fs::create_dir(named("d.json")).expect("a folder");
        let found = read_all(&[base.path().to_owned()]).expect("read");
        let reasons: Vec<_> = found
            .iter()
            .filter_map(|found| found.spec.as_ref().err())
            .collect();
        assert_eq!(
            reasons,
            [
                "it is no file",
                "it is larger than any CDI file",
                "it is no text",
                "it is no file"
            ]
        );
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_said() {
        let refused = write(Path::new("/proc/divvy"), "divvy-x.json", &Spec::default()).expect_err("no");
        assert_eq!(refused.code, Code::CdiDirectory);
        assert!(refused.hint.is_some_and(|hint| hint.contains("--directory")));
    }
}
