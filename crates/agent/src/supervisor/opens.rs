//! Whether a process has the device open.
//!
//! A driver tells of numbers. One that ended and was given to another process stands for what the first left behind, where a
//! third has that. A process that began after the driver told of its number, and has the device not open, holds nothing of it.
//! Of any other process that says nothing: it may hide what it has open, in a message or in a thread's own table.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::path::Path;

use divvy_model::{DeviceKind, DeviceRecord};
use divvy_privileged::request::Owner;

use crate::lookout::opened::Marks;

/// A device at one look.
pub(super) struct Opens<'a> {
    run_dir: &'a Path,
    device: &'a DeviceRecord,
    nodes: fn() -> HashSet<u64>,
    marks: OnceCell<Marks>,
}

impl<'a> Opens<'a> {
    pub fn of(run_dir: &'a Path, device: &'a DeviceRecord, nodes: fn() -> HashSet<u64>) -> Self {
        Self {
            run_dir,
            device,
            nodes,
            marks: OnceCell::new(),
        }
    }

    /// Whether the kernel says that this process of a user's, or of a container, has the device not open. What cannot be known
    /// is not said: it may have it.
    pub fn are_none(&self, pid: u32, uid: u32) -> bool {
        let marks = self.marks.get_or_init(|| match self.device.kind {
            DeviceKind::Emulated => Marks {
                files: divvy_host::emulated_page_files(self.run_dir, &self.device.uuid)
                    .into_iter()
                    .collect(),
                ..Marks::default()
            },
            DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Partition => Marks {
                nodes: (self.nodes)(),
                ..Marks::default()
            },
        });
        // Without a mark each process would have none.
        let known = !marks.nodes.is_empty() || !marks.files.is_empty();
        known && marks.are_open_in(pid, &[Owner::User(uid), Owner::Container]) == Some(false)
    }
}
