//! The bundle's config.json: read whole and bounded, replaced whole.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, renameat, unlinkat};
use serde_json::Value;

/// A configuration is some tens of KiB.
pub const MOST_BYTES: u64 = 4 << 20;

const FILE: &str = "config.json";

/// A bundle whose configuration was read.
#[derive(Debug)]
pub struct Bundle {
    folder: OwnedFd,
    path: PathBuf,
    /// The configuration: every field of it, ours to read or not.
    pub config: Value,
}

impl Bundle {
    /// Opens a bundle.
    ///
    /// # Errors
    /// [`Code::Bundle`].
    pub fn open(path: &Path) -> Result<Self, Fault> {
        let cannot = |error: &dyn std::error::Error| fault(path).because(error);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(rustix::fs::CWD, path, flags, Mode::empty()).map_err(|error| cannot(&error))?;
        // Neither a link nor a FIFO in its place: a process that can put one there must not choose what we read.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = openat(&folder, FILE, flags, Mode::empty()).map_err(|error| cannot(&error))?;
        let meta = fstat(&file).map_err(|error| cannot(&error))?;
        if FileType::from_raw_mode(meta.st_mode) != FileType::RegularFile {
            return Err(fault(path).cause("config.json is no plain file"));
        }
        let mut text = Vec::new();
        File::from(file)
            .take(MOST_BYTES + 1)
            .read_to_end(&mut text)
            .map_err(|error| cannot(&error))?;
        let config = parse(&text).map_err(|reason| fault(path).cause(reason))?;
        Ok(Self {
            folder,
            path: path.into(),
            config,
        })
    }

    /// Replaces the file: a reader sees the old one or the new one.
    ///
    /// # Errors
    /// [`Code::Bundle`].
    pub fn store(&self) -> Result<(), Fault> {
        let aside = format!(".{FILE}.{}.divvy", std::process::id());
        let write = || -> std::io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(&self.folder, &*aside, flags, Mode::RUSR | Mode::WUSR)?;
            let mut file = File::from(file);
            serde_json::to_writer(&mut file, &self.config)?;
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.flush()?;
            renameat(&self.folder, &*aside, &self.folder, FILE)?;
            Ok(())
        };
        write().map_err(|error| {
            let _absent = unlinkat(&self.folder, &*aside, AtFlags::empty());
            fault(&self.path).because(&error)
        })
    }

    /// Where the container's root is.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        let path = self.config.pointer("/root/path").and_then(Value::as_str);
        self.path.join(path.unwrap_or("rootfs"))
    }
}

fn fault(path: &Path) -> Fault {
    Fault::new(
        Code::Bundle,
        format!("the bundle `{}` cannot be used", path.display()),
    )
}

/// Fields that we look at. Go's reader, runc's, takes `Mounts` for `mounts`: two readers that see different
/// configurations in one text are what an attacker wants.
const FIELDS: [&str; 12] = [
    "annotations",
    "args",
    "bounding",
    "capabilities",
    "devices",
    "env",
    "linux",
    "mounts",
    "path",
    "process",
    "resources",
    "root",
];

/// Reads a configuration.
///
/// # Errors
/// Why it is none, in words.
pub fn parse(text: &[u8]) -> Result<Value, String> {
    if text.len() as u64 > MOST_BYTES {
        return Err(format!("config.json has more than {} MiB", MOST_BYTES >> 20));
    }
    let config: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let Some(fields) = config.as_object() else {
        return Err("config.json holds no object".into());
    };
    let parts = [
        "/process",
        "/process/capabilities",
        "/linux",
        "/linux/resources",
        "/root",
    ];
    let deeper = parts
        .iter()
        .filter_map(|part| config.pointer(part).and_then(Value::as_object));
    for name in std::iter::once(fields).chain(deeper).flat_map(|part| part.keys()) {
        let twin = FIELDS
            .iter()
            .find(|field| name != *field && name.eq_ignore_ascii_case(field));
        if let Some(field) = twin {
            return Err(format!(
                "`{name}` is `{field}` to some readers and nothing to others"
            ));
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn every_field_survives() {
        let base = tempfile::tempdir().expect("a folder");
        let text = r#"{"ociVersion":"1.0.2","zz":[1,2.5,{"a":null}],"root":{"path":"/r"},"linux":{"uidMappings":[{"size":4294967295}]}}"#;
        fs::write(base.path().join(FILE), text).expect("written");
        let bundle = Bundle::open(base.path()).expect("a bundle");
        assert_eq!(bundle.root(), Path::new("/r"));
        bundle.store().expect("stored");
        let stored: Value =
            serde_json::from_slice(&fs::read(base.path().join(FILE)).expect("read")).expect("JSON");
        assert_eq!(stored, serde_json::from_str::<Value>(text).expect("JSON"));
        assert_eq!(fs::read_dir(base.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn what_is_no_bundle_is_refused() {
        let base = tempfile::tempdir().expect("a folder");
        let with = |make: &dyn Fn(&Path)| {
            let folder = tempfile::tempdir_in(&base).expect("a folder");
            make(&folder.path().join(FILE));
            Bundle::open(folder.path()).expect_err("refused").causes.join(" ")
        };
        let good = base.path().join("good");
        fs::write(&good, "{}").expect("written");
        let link = with(&|file| symlink(&good, file).expect("a link"));
        assert!(link.contains("symbolic links"), "{link}");
        let fifo = with(&|file| {
            rustix::fs::mknodat(rustix::fs::CWD, file, FileType::Fifo, Mode::RWXU, 0).expect("a fifo");
        });
        assert!(fifo.contains("no plain file"), "{fifo}");
        let large = with(&|file| {
            let size = usize::try_from(MOST_BYTES).expect("small") + 1;
            fs::write(file, vec![b' '; size]).expect("written");
        });
        assert!(large.contains("more than 4 MiB"), "{large}");
        for (text, part) in [
            ("", "EOF"),
            ("[]", "no object"),
            ("{\"a\":1}}", "trailing"),
            (r#"{"Process":{}}"#, "`Process` is `process`"),
            (r#"{"linux":{"DEVICES":[]}}"#, "`DEVICES` is `devices`"),
        ] {
            let said = with(&|file| fs::write(file, text).expect("written"));
            assert!(said.contains(part), "{text}: {said}");
        }
        let deep = "[".repeat(100_000);
        assert!(parse(deep.as_bytes()).is_err());
        assert!(Bundle::open(&base.path().join("absent")).is_err());
    }
}
