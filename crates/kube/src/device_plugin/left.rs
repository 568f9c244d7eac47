//! What a device plugin left on a node that has a DRA driver now: pods that it served run on, and its process is gone. Their slices end
//! with them, as under the plugin.

use std::fs;
use std::path::PathBuf;

use divvy_model::Fault;

use super::allocate::Allocator;
use crate::kept::Host;
use crate::pods::Pods;
use crate::state::State;

/// See the module.
pub struct Left {
    folder: PathBuf,
    /// While there are records: looks are counted from one sweep to the next.
    open: Option<Allocator>,
}

impl Left {
    /// In this folder of records, which need not be there.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, open: None }
    }

    /// Ends allocations that no pod has at two looks, as [`Allocator::sweep`] does. Where a device plugin runs, it has its records, and
    /// nothing is done. The slices that were ended, and what failed.
    pub fn sweep(&mut self, host: impl FnOnce() -> Box<dyn Host>, pods: &Pods) -> (Vec<String>, Vec<Fault>) {
        if !self.has_records() {
            // A device plugin that comes back finds them free.
            self.open = None;
            return (Vec::new(), Vec::new());
        }
        if self.open.is_none() {
            let Ok(state) = State::open(&self.folder) else {
                return (Vec::new(), Vec::new());
            };
            match Allocator::open(host(), state) {
                Ok(allocator) => self.open = Some(allocator),
                Err(fault) => return (Vec::new(), vec![fault]),
            }
        }
        self.open
            .as_ref()
            .map(|allocator| allocator.sweep(pods))
            .unwrap_or_default()
    }

    fn has_records(&self) -> bool {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.any(|name| name.ends_with(".json"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::resources::resources;
    use super::super::resources::tests::config;
    use super::super::serve::tests::StandIn;
    use super::*;
    use crate::devices::tests::device;

    const GPU: &str = "nvidia.com/gpu";

    /// The pods of a node, which have these devices.
    fn pods(count: usize, ids: &[&str]) -> Pods {
        Pods {
            count,
            ids: ids.iter().map(|id| (GPU.to_owned(), (*id).to_owned())).collect(),
            ..Pods::default()
        }
    }

    #[test]
    fn slices_of_a_plugin_that_is_gone_end_with_their_pods() {
        let (base, host) = (tempfile::tempdir().expect("a folder"), StandIn::default());
        let folder = base.path().join("allocations");
        let mut left = Left::new(folder.clone());
        let sweep = |left: &mut Left, pods: &Pods| {
            let (ended, failed) = left.sweep(|| Box::new(host.clone()), pods);
            assert!(failed.is_empty(), "{failed:?}");
            ended.len()
        };
        assert_eq!(sweep(&mut left, &pods(1, &[])), 0);
        assert!(
            !folder.exists(),
            "a node that never had a device plugin has no folder of one"
        );
        let open = || State::open(&folder).expect("the records");
        let [first, second] = [0, 1].map(|index| device(index).uuid);
        let plugin = Allocator::open(Box::new(host.clone()), open()).expect("opened");
        plugin.set(resources(&[device(0), device(1)], &config("")).expect("resources"));
        for id in [&first, &second] {
            plugin.allocate(GPU, std::slice::from_ref(id)).expect("allocated");
        }
        // The plugin runs: what it made is its own.
        for _ in 0..3 {
            assert_eq!(sweep(&mut left, &pods(1, &[])), 0);
        }
        assert_eq!(host.world().slices.len(), 2);
        drop(plugin);
        // One of its pods runs on, and the other is gone; at the first look it may have been missed.
        let one = pods(2, &[&first]);
        assert_eq!((sweep(&mut left, &one), sweep(&mut left, &one)), (0, 1));
        assert_eq!(host.world().slices.len(), 1);
        assert!(State::open(&folder).is_err(), "looks are counted");
        // A kubelet that has just started knows no pods yet.
        assert_eq!(
            (sweep(&mut left, &pods(0, &[])), sweep(&mut left, &pods(0, &[]))),
            (0, 0)
        );
        assert_eq!(
            (sweep(&mut left, &pods(1, &[])), sweep(&mut left, &pods(1, &[]))),
            (0, 1)
        );
        assert!(host.world().slices.is_empty());
        assert_eq!(sweep(&mut left, &pods(1, &[])), 0);
        drop(open());
    }
}
