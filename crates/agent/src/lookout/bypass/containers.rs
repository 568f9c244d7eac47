//! Programs in containers of a slice that have a device open and no limiter in them: static programs, and those of
//! musl, which preload nothing. They are in no ledger and below no `divvy run`. They are found by their mounts and
//! cgroups, which the kernel reports (`evidence`): no name and no argument of theirs counts.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use divvy_model::SliceRecord;
use rustix::fs::{FileType, Statx, makedev};

pub use super::evidence::Evidence;
use super::evidence::SliceBox;
use super::place::{look, place};
use super::scan::IN_CONTAINER;
use crate::start::rundir::RunDir;
use crate::system::{privilege, procs};

/// A process of a container.
pub struct Process {
    /// Its slice's id.
    pub slice: String,
    /// Its number.
    pub pid: u32,
    /// It uses a device, and the limiter is not in it.
    pub unlimited: bool,
}

/// The processes of these slices' containers. `pages` are those of each slice's emulated devices, and `evidence` has
/// the findings of earlier rounds.
pub fn look_into(
    run: &RunDir,
    slices: &[SliceRecord],
    pages: &HashMap<String, HashSet<(u64, u64)>>,
    evidence: &mut Evidence,
) -> Vec<Process> {
    let slices: Vec<&SliceRecord> = slices
        .iter()
        .filter(|slice| slice.lasting && run.container(&slice.id).is_dir())
        .collect();
    if slices.is_empty() {
        return Vec::new();
    }
    let nodes = nodes();
    let boxes: Vec<SliceBox> = slices.iter().map(|slice| SliceBox::of(run, &slice.id)).collect();
    let none = HashSet::new();
    evidence
        .inside(&boxes)
        .into_iter()
        .map(|(slice, pid)| {
            let id = boxes[slice].id.as_str();
            Process {
                slice: id.to_owned(),
                pid,
                unlimited: uses(pid, &nodes, pages.get(id).unwrap_or(&none)),
            }
        })
        .collect()
}

/// The processes of the containers that have this slice, with or without a device.
#[must_use]
pub fn members(run: &RunDir, slice: &SliceRecord) -> Vec<u32> {
    let boxes = [SliceBox::of(run, &slice.id)];
    let inside = Evidence::default().inside(&boxes);
    inside.into_iter().map(|(_, pid)| pid).collect()
}

/// The processes of the containers that have these slices, by the slice's id: each by its number and its start.
#[must_use]
pub fn members_of(run: &RunDir, slices: &[&SliceRecord]) -> HashMap<String, HashMap<u32, u64>> {
    let mut found: HashMap<String, HashMap<u32, u64>> = HashMap::new();
    let boxes: Vec<SliceBox> = slices.iter().map(|slice| SliceBox::of(run, &slice.id)).collect();
    if boxes.is_empty() {
        return found;
    }
    for (slice, pid, began) in Evidence::default().inside_since(&boxes) {
        found
            .entry(boxes[slice].id.clone())
            .or_default()
            .insert(pid, began);
    }
    found
}

/// Whether the process has one of these device nodes or of these files open or mapped, and no limiter.
fn uses(pid: u32, nodes: &HashSet<u64>, pages: &HashSet<(u64, u64)>) -> bool {
    let maps = privilege::maps_in_container(pid).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    if maps.contains(IN_CONTAINER) {
        return false;
    }
    if maps.lines().filter_map(mapped).any(|file| pages.contains(&file)) {
        return true;
    }
    if privilege::is_separate() {
        let (nodes, pages): (Vec<u64>, Vec<_>) =
            (nodes.iter().copied().collect(), pages.iter().copied().collect());
        return privilege::has_open(pid, &nodes, &pages).unwrap_or(false);
    }
    // A thread has no folder of mapped files of its own.
    let process = procs::telling_thread(pid);
    let open = [format!("/proc/{process}/fd"), format!("/proc/{pid}/map_files")].map(PathBuf::from);
    open.iter().flat_map(|folder| entries(folder)).any(|file| {
        look(&file).is_some_and(|seen| match is_node(&seen) {
            true => nodes.contains(&number(&seen)),
            false => pages.contains(&place(&seen)),
        })
    })
}

/// The numbers of this machine's GPUs' nodes, by the names that the vendors give them.
fn nodes() -> HashSet<u64> {
    const STARTS: [&str; 3] = ["nvidia", "kfd", "renderD"];
    ["/dev", "/dev/dri", "/dev/nvidia-caps"]
        .iter()
        .flat_map(|folder| entries(Path::new(folder)))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            STARTS.iter().any(|start| name.starts_with(start))
        })
        .filter_map(|path| look(&path))
        .filter(is_node)
        .map(|seen| number(&seen))
        .collect()
}

/// The file of a line of proc(5)'s maps: the numbers of its file system and its own.
fn mapped(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_whitespace().skip(3);
    let (major, minor) = words.next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let inode = words.next()?.parse().ok()?;
    Some((makedev(number(major)?, number(minor)?), inode))
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
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    all.map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_node_or_a_page_open_or_mapped_is_told_from_what_has_not() {
        let own = std::process::id();
        let base = tempfile::tempdir().expect("a folder");
        let page = base.path().join("page");
        fs::write(&page, "x").expect("written");
        let (none, no_page) = (HashSet::new(), HashSet::new());
        let pages = HashSet::from([place(&look(&page).expect("a page"))]);
        assert!(!uses(own, &none, &pages));
        let open = fs::File::open(&page).expect("open");
        assert!(uses(own, &none, &pages) && !uses(own, &none, &no_page));
        drop(open);
        assert!(!uses(own, &none, &pages));
        // A device node whose number no other process of these tests has open.
        let node = fs::File::open("/dev/full").expect("open");
        let nodes = HashSet::from([number(&look(Path::new("/dev/full")).expect("a node"))]);
        assert!(uses(own, &nodes, &no_page));
        drop(node);
        assert!(!uses(own, &nodes, &no_page));
        assert!(!uses(u32::MAX, &nodes, &pages));
    }

    #[test]
    fn a_mapped_file_is_known_by_its_numbers_whatever_it_is_called() {
        let line = "7f00-7f01 rw-s 00000000 00:1c 4711                       /memfd:divvy-ledger (deleted)";
        assert_eq!(mapped(line), Some((makedev(0, 0x1c), 4711)));
        assert_eq!(mapped("7f00-7f01 rw-p 00000000 00:00 0"), Some((0, 0)));
        assert_eq!(mapped("rubbish"), None);
    }
}
