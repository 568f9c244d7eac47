//! Which devices the selectors of claims select, each looked at once: devices do not change while a cluster is planned, and reading an
//! expression over a device is most of what a look at it costs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::cel::Expression;
use crate::cluster::{Cluster, Device};

/// What is known so far, of every run over the same cluster.
pub struct Selections<'a> {
    cluster: &'a Cluster,
    /// By node: by selector, a flag for each device.
    known: Vec<RefCell<BTreeMap<u32, Rc<[bool]>>>>,
}

impl<'a> Selections<'a> {
    /// Nothing is known yet.
    #[must_use]
    pub fn of(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            known: cluster.nodes.iter().map(|_| RefCell::default()).collect(),
        }
    }

    /// The cluster that they are of.
    #[must_use]
    pub fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    /// For each device of a node, whether a selector selects it: places in the cluster's lists.
    #[must_use]
    pub fn flags(&self, node: usize, selector: u32) -> Rc<[bool]> {
        let mut known = self.known[node].borrow_mut();
        let flags = known.entry(selector).or_insert_with(|| {
            let expression = &self.cluster.selectors[selector as usize];
            let devices = self.cluster.nodes[node].devices.iter();
            devices.map(|device| selected(expression, device)).collect()
        });
        flags.clone()
    }
}

/// Whether the expression selects the device; one that cannot be said of it does not.
fn selected(expression: &Expression, device: &Device) -> bool {
    expression.selects(device).unwrap_or(false)
}
