//! Programs in containers of a slice that have a device open and no limiter in them: static programs, and those of
//! musl, which preload nothing. They are in no ledger and below no `divvy run`. They are found by their mounts and
//! cgroups, which the kernel reports (`evidence`): no name and no argument of theirs counts.

use std::collections::{HashMap, HashSet};

use divvy_model::SliceRecord;
use divvy_privileged::request::Owner;
use rustix::fs::makedev;

pub use super::evidence::Evidence;
use super::evidence::SliceBox;
use super::scan::IN_CONTAINER;
use crate::lookout::opened::{self, Marks};
use crate::start::rundir::RunDir;
use crate::system::privilege;

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
    let nodes = opened::nodes();
    let boxes: Vec<SliceBox> = slices.iter().map(|slice| SliceBox::of(run, &slice.id)).collect();
    let mut marks: HashMap<&str, Marks> = HashMap::new();
    evidence
        .inside(&boxes)
        .into_iter()
        .map(|(slice, pid)| {
            let id = boxes[slice].id.as_str();
            let marks = marks.entry(id).or_insert_with(|| Marks {
                nodes: nodes.clone(),
                files: pages.get(id).cloned().unwrap_or_default(),
            });
            Process {
                slice: id.to_owned(),
                pid,
                unlimited: uses(pid, marks),
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
fn uses(pid: u32, marks: &Marks) -> bool {
    let maps = privilege::maps_in_container(pid).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    if maps.contains(IN_CONTAINER) {
        return false;
    }
    let mut mapped = maps.lines().filter_map(mapped);
    mapped.any(|file| marks.files.contains(&file))
        || marks.are_open_in(pid, &[Owner::Container]).unwrap_or(false)
}

/// The file of a line of proc(5)'s maps: the numbers of its file system and its own.
fn mapped(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_whitespace().skip(3);
    let (major, minor) = words.next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let inode = words.next()?.parse().ok()?;
    Some((makedev(number(major)?, number(minor)?), inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_is_known_by_its_numbers_whatever_it_is_called() {
        let line = "7f00-7f01 rw-s 00000000 00:1c 4711                       /memfd:divvy-ledger (deleted)";
        assert_eq!(mapped(line), Some((makedev(0, 0x1c), 4711)));
        assert_eq!(mapped("7f00-7f01 rw-p 00000000 00:00 0"), Some((0, 0)));
        assert_eq!(mapped("rubbish"), None);
    }
}
