//! Whether a process has a device open, as the kernel shows it. A process can hide that, in a message or in a thread's own table.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use divvy_privileged::request::Owner;
use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, makedev, statx};

use crate::system::{privilege, procs};

/// What a process has open that uses a device: a GPU's node, or a page of an emulated device.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// The numbers of device nodes.
    pub nodes: HashSet<u64>,
    /// The file system and the number of each file.
    pub files: HashSet<(u64, u64)>,
}

impl Marks {
    /// Whether the process has one of them open or mapped; none where that cannot be known. `owners` are whose process it may
    /// be, for an agent that asks its helper.
    pub fn are_open_in(&self, pid: u32, owners: &[Owner]) -> Option<bool> {
        if privilege::is_separate() {
            let nodes: Vec<u64> = self.nodes.iter().copied().collect();
            let files: Vec<(u64, u64)> = self.files.iter().copied().collect();
            let mut answers = owners
                .iter()
                .map(|owner| privilege::has_open(pid, *owner, &nodes, &files));
            return answers.find_map(Result::ok);
        }
        // A thread has no folder of mapped files of its own.
        let process = procs::telling_thread(pid);
        let open = PathBuf::from(format!("/proc/{process}/fd"));
        let mapped = PathBuf::from(format!("/proc/{pid}/map_files"));
        let open = entries(&open)?;
        let all = open.chain(entries(&mapped).into_iter().flatten());
        Some(
            all.into_iter()
                .any(|file| look(&file).is_some_and(|seen| self.has(&seen))),
        )
    }

    fn has(&self, seen: &Statx) -> bool {
        match is_node(seen) {
            true => self.nodes.contains(&number(seen)),
            false => self.files.contains(&place(seen)),
        }
    }
}

/// The numbers of this machine's GPUs' nodes, by the names that the vendors give them.
pub(crate) fn nodes() -> HashSet<u64> {
    const STARTS: [&str; 3] = ["nvidia", "kfd", "renderD"];
    ["/dev", "/dev/dri", "/dev/nvidia-caps"]
        .iter()
        .flat_map(|folder| entries(Path::new(folder)).into_iter().flatten())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            STARTS.iter().any(|start| name.starts_with(start))
        })
        .filter_map(|path| look(&path))
        .filter(is_node)
        .map(|seen| number(&seen))
        .collect()
}

/// The data of a file that the kernel has without a server: a container's file systems may have servers that never
/// answer.
pub(super) fn look(path: &Path) -> Option<Statx> {
    statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS).ok()
}

/// A file, whatever its name.
pub(super) fn place(seen: &Statx) -> (u64, u64) {
    (makedev(seen.stx_dev_major, seen.stx_dev_minor), seen.stx_ino)
}

fn is_node(seen: &Statx) -> bool {
    FileType::from_raw_mode(seen.stx_mode.into()) == FileType::CharacterDevice
}

fn number(seen: &Statx) -> u64 {
    makedev(seen.stx_rdev_major, seen.stx_rdev_minor)
}

#[expect(
    clippy::disallowed_methods,
    reason = "what is found in /dev, in /proc and in the run directory is looked at only"
)]
fn entries(folder: &Path) -> Option<impl Iterator<Item = PathBuf> + use<>> {
    let all = fs::read_dir(folder).ok()?.flatten();
    Some(all.map(|entry| entry.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_node_or_a_page_open_is_told_from_what_has_not() {
        let own = std::process::id();
        let base = tempfile::tempdir().expect("a folder");
        let page = base.path().join("page");
        fs::write(&page, "x").expect("written");
        let of_page = Marks {
            files: HashSet::from([place(&look(&page).expect("a page"))]),
            ..Marks::default()
        };
        assert_eq!(of_page.are_open_in(own, &[]), Some(false));
        let open = fs::File::open(&page).expect("open");
        assert_eq!(of_page.are_open_in(own, &[]), Some(true));
        assert_eq!(Marks::default().are_open_in(own, &[]), Some(false));
        drop(open);
        assert_eq!(of_page.are_open_in(own, &[]), Some(false));
        // A device node whose number no other process of these tests has open.
        let node = fs::File::open("/dev/full").expect("open");
        let of_node = Marks {
            nodes: HashSet::from([number(&look(Path::new("/dev/full")).expect("a node"))]),
            ..Marks::default()
        };
        assert_eq!(of_node.are_open_in(own, &[]), Some(true));
        drop(node);
        assert_eq!(of_node.are_open_in(own, &[]), Some(false));
        assert_eq!(of_node.are_open_in(u32::MAX, &[]), None, "there is none");
    }
}
