//! The devices of the guest: the shared memory and the serial port, as sysfs names them.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::label;

/// PCI's numbers of QEMU's shared memory: vendor and device.
const IVSHMEM: [&str; 2] = ["0x1af4", "0x1110"];

/// The serial port of this name, below the guest's /sys and /dev.
#[must_use]
pub fn port(sys: &Path, dev: &Path, name: &str) -> Option<PathBuf> {
    let ports = fs::read_dir(sys.join("class/virtio-ports")).ok()?;
    let is_named = |port: &PathBuf| word(&port.join("name")).as_deref() == Some(name);
    let found = ports.flatten().map(|entry| entry.path()).find(is_named)?;
    Some(dev.join(found.file_name()?))
}

/// The files of all shared memory of the machine, below /sys.
#[must_use]
pub fn memories(sys: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir(sys.join("bus/pci/devices"))
        .into_iter()
        .flatten()
        .flatten();
    let is_shared = |device: &PathBuf| {
        ["vendor", "device"].map(|file| word(&device.join(file))) == IVSHMEM.map(|word| Some(word.to_owned()))
    };
    let devices = devices.map(|entry| entry.path()).filter(is_shared);
    // Not `resource2_wc`: its writes may be seen in another order than that in which they were made.
    let mut files: Vec<PathBuf> = devices.map(|device| device.join("resource2")).collect();
    files.sort();
    files
}

/// Opens the memory that has this label and so many bytes.
///
/// # Errors
/// `ENODEV` if there is none; else the system's reason for the last that could not be looked at.
pub fn labelled(files: &[PathBuf], label: u64, bytes: u64) -> Result<OwnedFd, Errno> {
    let mut why = Errno::NODEV;
    for file in files {
        let found =
            rustix::fs::open(file, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).and_then(|memory| {
                let length = rustix::fs::fstat(&memory)?.st_size;
                let is_it = u64::try_from(length) == Ok(bytes) && label::read(memory.as_fd())? == Some(label);
                Ok(is_it.then_some(memory))
            });
        match found {
            Ok(Some(memory)) => return Ok(memory),
            Ok(None) => {}
            Err(errno) => why = errno,
        }
    }
    Err(why)
}

fn word(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn devices_are_found_by_what_sysfs_says() {
        let sys = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = sys.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        assert_eq!(port(sys.path(), Path::new("/dev"), "divvy.0"), None);
        assert_eq!(memories(sys.path()), [] as [PathBuf; 0]);
        write("class/virtio-ports/vport1p1/name", "org.qemu.guest_agent.0\n");
        write("class/virtio-ports/vport2p1/name", "divvy.0\n");
        assert_eq!(
            port(sys.path(), Path::new("/dev"), "divvy.0"),
            Some("/dev/vport2p1".into())
        );
        write("bus/pci/devices/0000:00:03.0/vendor", "0x1af4\n");
        write("bus/pci/devices/0000:00:03.0/device", "0x1041\n");
        write("bus/pci/devices/0000:00:04.0/vendor", "0x1af4\n");
        write("bus/pci/devices/0000:00:04.0/device", "0x1110\n");
        let files = memories(sys.path());
        assert!(
            files.len() == 1 && files[0].ends_with("0000:00:04.0/resource2"),
            "{files:?}"
        );
    }

    /// Other memory, a shorter file, and memory with another label are not taken.
    #[test]
    fn only_the_memory_that_the_host_means_is_opened() {
        let (ours, other) = (Memory::new(1 << 21, 1, 0), Memory::new(1 << 21, 1, 0));
        let (ours, other) = (ours.expect("memory"), other.expect("memory"));
        let path = |memory: &Memory| {
            let number = std::os::fd::AsRawFd::as_raw_fd(&memory.file());
            PathBuf::from(format!("/proc/self/fd/{number}"))
        };
        let plain = tempfile::NamedTempFile::new().expect("a file");
        plain.as_file().set_len(1 << 21).expect("a size");
        let files = [plain.path().to_owned(), path(&other), path(&ours)];
        let label = ours.label();
        labelled(&files, label, 1 << 21).expect("the third");
        assert_eq!(labelled(&files[..2], label, 1 << 21).err(), Some(Errno::NODEV));
        assert_eq!(
            labelled(&files, label, 1 << 22).err(),
            Some(Errno::NODEV),
            "too small"
        );
        let gone = [PathBuf::from("/nonexistent")];
        assert_eq!(labelled(&gone, label, 1 << 21).err(), Some(Errno::NOENT));
    }
}
