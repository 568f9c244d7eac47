//! Programs in containers of a slice that have a device open and no limiter in them: static ones, and those of musl, for
//! which nothing is preloaded. They are in no ledger and below no `divvy run`. What tells them is what their mount namespace
//! has mounted, whoever gave it to them: no name and no argument of theirs counts.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use divvy_model::SliceRecord;
use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, makedev, statx};

use super::scan::IN_CONTAINER;
use crate::{RunDir, privilege};

/// Where containers have the folder of their slice's socket.
const SLICE: &str = " /run/divvy/slice ";
/// Where they have the pages of emulated devices.
const PAGES: &str = "/run/divvy/device/";
/// Processes of one mount namespace that are asked what is mounted there: one that has changed its root sees less.
const ASKED: usize = 16;

/// A process of a container.
pub struct Process {
    /// Its slice's id.
    pub slice: String,
    /// Its number.
    pub pid: u32,
    /// It uses a device, and the limiter is not in it.
    pub unlimited: bool,
}

/// The processes of these slices' containers. What containers did to the pages that they were granted is taken back.
pub fn look_into(run: &RunDir, slices: &[SliceRecord]) -> Vec<Process> {
    let slices: Vec<&SliceRecord> = slices
        .iter()
        .filter(|slice| slice.lasting && run.container(&slice.id).is_dir())
        .collect();
    if slices.is_empty() {
        return Vec::new();
    }
    for slice in &slices {
        divvy_host::mend_granted(&run.container(&slice.id).join("device"));
    }
    let nodes = nodes();
    let mut found = Vec::new();
    for (slice, pids) in inside(&slices) {
        let pages = files(&run.container(&slice.id).join("device"));
        found.extend(pids.into_iter().map(|pid| Process {
            slice: slice.id.clone(),
            pid,
            unlimited: uses(pid, &nodes, &pages),
        }));
    }
    found
}

/// The processes of the containers that have this slice, whether they use a device or not.
#[must_use]
pub fn members(slice: &SliceRecord) -> Vec<u32> {
    inside(&[slice]).into_iter().flat_map(|(_, pids)| pids).collect()
}

/// The processes of each mount namespace that has one of these slices.
fn inside<'a>(slices: &[&'a SliceRecord]) -> Vec<(&'a SliceRecord, Vec<u32>)> {
    let of = |pids: &[u32]| pids.iter().take(ASKED).find_map(|pid| slice_of(*pid, slices));
    namespaces()
        .into_values()
        .filter_map(|pids| Some((of(&pids)?, pids)))
        .collect()
}

/// The processes of each mount namespace but our own.
fn namespaces() -> HashMap<u64, Vec<u32>> {
    let own = divvy_privileged::mount_namespace(std::process::id()).unwrap_or(0);
    let mut all: HashMap<u64, Vec<u32>> = HashMap::new();
    let pids = entries(Path::new("/proc")).filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    let pids: Vec<u32> = pids.collect();
    for (pid, namespace) in pids.iter().zip(privilege::mount_namespaces(&pids)) {
        if namespace != 0 && namespace != own {
            all.entry(namespace).or_default().push(*pid);
        }
    }
    all
}

/// The slice whose folder this process has where containers have it. Read as text: no path of a container is followed.
fn slice_of<'a>(pid: u32, slices: &[&'a SliceRecord]) -> Option<&'a SliceRecord> {
    let mounts = fs::read(format!("/proc/{pid}/mountinfo")).ok()?;
    let mounts = String::from_utf8_lossy(&mounts);
    mounts
        .lines()
        .filter_map(|line| line.split_once(SLICE))
        // `36 35 98:0 /slices/ID/box`: what of its file system is mounted.
        .find_map(|(before, _)| {
            let of = |slice: &&&SliceRecord| before.ends_with(&format!("/slices/{}/box", slice.id));
            slices.iter().find(of).copied()
        })
}

/// Whether the process has one of these device nodes or of these files open or mapped, and no limiter.
fn uses(pid: u32, nodes: &HashSet<u64>, pages: &HashSet<(u64, u64)>) -> bool {
    let maps = privilege::maps_in_container(pid).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    if maps.contains(IN_CONTAINER) {
        return false;
    }
    if maps.contains(PAGES) {
        return true;
    }
    if privilege::is_separate() {
        let (nodes, pages): (Vec<u64>, Vec<_>) =
            (nodes.iter().copied().collect(), pages.iter().copied().collect());
        return privilege::has_open(pid, &nodes, &pages).unwrap_or(false);
    }
    let open = ["fd", "map_files"].map(|folder| PathBuf::from(format!("/proc/{pid}/{folder}")));
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

fn files(folder: &Path) -> HashSet<(u64, u64)> {
    entries(folder)
        .filter_map(|path| look(&path))
        .map(|seen| place(&seen))
        .collect()
}

/// What is known of a file without asking anybody for it: a container's file systems may have servers that never answer.
fn look(path: &Path) -> Option<Statx> {
    statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS).ok()
}

fn is_node(seen: &Statx) -> bool {
    FileType::from_raw_mode(seen.stx_mode.into()) == FileType::CharacterDevice
}

fn number(seen: &Statx) -> u64 {
    makedev(seen.stx_rdev_major, seen.stx_rdev_minor)
}

/// A file, whatever it is called.
fn place(seen: &Statx) -> (u64, u64) {
    (makedev(seen.stx_dev_major, seen.stx_dev_minor), seen.stx_ino)
}

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
        let pages = files(base.path());
        assert_eq!(pages.len(), 1);
        assert!(!uses(own, &none, &pages));
        let open = fs::File::open(&page).expect("open");
        assert!(uses(own, &none, &pages) && !uses(own, &none, &no_page));
        drop(open);
        assert!(!uses(own, &none, &pages));
        // A node of a number that nobody else of this process's tests has open.
        let node = fs::File::open("/dev/full").expect("open");
        let nodes = HashSet::from([number(&look(Path::new("/dev/full")).expect("a node"))]);
        assert!(uses(own, &nodes, &no_page));
        drop(node);
        assert!(!uses(own, &nodes, &no_page));
        assert!(!uses(u32::MAX, &nodes, &pages));
    }
}
