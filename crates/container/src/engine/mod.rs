//! Container engines' own command lines: podman's and docker's.

mod asked;
mod diagnose;
mod flags;
mod line;

pub use asked::Asked;
pub use diagnose::{diagnose, version};
pub use line::{Line, Seen, split};

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};

use crate::oci::clean;

/// An engine with a command line that we translate into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// podman, which needs no daemon.
    Podman,
    /// docker.
    Docker,
}

impl Engine {
    /// The command's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }

    /// The engine by its command's name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        [Self::Podman, Self::Docker]
            .into_iter()
            .find(|engine| engine.name() == name)
    }

    /// The command on this machine.
    ///
    /// # Errors
    /// [`Code::EngineMissing`].
    pub fn find(self) -> Result<PathBuf, Fault> {
        on_path(self.name()).ok_or_else(|| {
            Fault::new(
                Code::EngineMissing,
                format!("`{}` is not on the PATH", self.name()),
            )
            .hint(match self {
                Self::Podman => "install it (Debian: `apt-get install podman`), or use `divvy docker run`",
                Self::Docker => "install it (Debian: `apt-get install docker.io`), or use `divvy podman run`",
            })
        })
    }
}

/// The file that a shell would run by this name.
#[must_use]
pub fn on_path(name: &str) -> Option<PathBuf> {
    use rustix::fs::{Access, access};
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|file| file.is_file());
    }
    // Runtimes lie in sbin, which is not on every user's PATH.
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    std::env::split_paths(&folders)
        .chain(usual)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
}

/// The words that run the container: the engine's own, with the slice's device and the file for the container's id.
#[must_use]
pub fn command(line: &Line, device: &str, id_file: &Path) -> Vec<OsString> {
    let mut words = line.globals.clone();
    words.push("run".into());
    words.extend(["--device".into(), device.into()]);
    if line.seen.id_file.is_none() {
        words.extend(["--cidfile".into(), id_file.into()]);
    }
    words.extend(line.flags.iter().cloned());
    words.extend(line.rest.iter().cloned());
    words
}

/// What of a command line lets the container at devices around its slice, in words.
#[must_use]
pub fn around(seen: &Seen) -> Option<String> {
    if seen.privileged {
        return Some("`--privileged` gives the container every device of this machine".into());
    }
    if seen.gpus {
        return Some("`--gpus` gives the container whole devices".into());
    }
    if let Some(runtime) = seen.runtime.as_deref().filter(|name| {
        let file = Path::new(name).file_name().unwrap_or_default().to_string_lossy();
        file.starts_with("nvidia") || file.starts_with("amd")
    }) {
        return Some(format!(
            "the runtime `{runtime}` gives containers whole devices by itself"
        ));
    }
    if seen.no_cgroups {
        return Some("`--cgroups=disabled` takes the container's device rules away".into());
    }
    if let Some(rule) = &seen.device_rule {
        return Some(format!(
            "`--device-cgroup-rule {rule}` gives the container devices beside its slice"
        ));
    }
    let whole = |device: &&String| {
        let vendors = ["nvidia.com/", "amd.com/gpu", "divvy.dev/"];
        let nodes = ["/dev/nvidia", "/dev/dri", "/dev/kfd"];
        let host = device.split(':').next().unwrap_or_default();
        let host = if host.starts_with('/') {
            clean(host)
        } else {
            String::new()
        };
        vendors.iter().any(|start| device.starts_with(start))
            || nodes.iter().any(|start| host.starts_with(start))
    };
    seen.devices
        .iter()
        .find(whole)
        .map(|device| format!("`--device {device}` gives the container a device beside its slice"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(words: &str) -> Seen {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        split(&words, &|_| None).expect("a line").seen
    }

    #[test]
    fn ways_around_the_slice_are_seen() {
        for words in [
            "run --privileged image",
            "run --gpus all image",
            "run --gpus=1 image",
            "run --device /dev/nvidia0 image",
            "run --device=/dev/dri/renderD128:/dev/x image",
            "run --device nvidia.com/gpu=all image",
            "run --device divvy.dev/slice=other image",
            "run --runtime nvidia image",
            "run --device //dev/./nvidia1 image",
            "run --cgroups=disabled image",
            "run --cgroups disabled image",
            "run --device-cgroup-rule c*:*rwm image",
            "run --runtime=/usr/bin/nvidia-container-runtime image",
        ] {
            assert!(around(&seen(words)).is_some(), "{words}");
        }
        for words in [
            "run image --privileged",
            "run --privileged=false image",
            "run --device /dev/fuse image",
            "run --cgroups enabled image",
            // A node that is mounted is seen, and its device rule keeps it closed.
            "run -v /dev/nvidia1:/dev/nvidia1 image",
            "run --device vendor.com/nic=0 image",
            "run --runtime crun image",
        ] {
            assert_eq!(around(&seen(words)), None, "{words}");
        }
    }

    #[test]
    fn the_engine_gets_its_own_words_untouched() {
        let words = ["--root", "/x", "run", "-it", "image", "cmd", "--memory", "1"].map(OsString::from);
        let line = split(&words, &|_| None).expect("a line");
        let words = command(&line, "divvy.dev/slice=a", Path::new("/tmp/cid"));
        let text: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        assert_eq!(
            text.join(" "),
            "--root /x run --device divvy.dev/slice=a --cidfile /tmp/cid -it image cmd --memory 1"
        );
    }
}
