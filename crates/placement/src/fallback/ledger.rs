//! What the extender knows: devices of nodes, and what pods have of them. It is made of what the API server has and of binds that
//! are under way, and of nothing else, so that it can be lost.
//!
//! A pod's grants are *assumed* from the moment a bind is sent, and *confirmed* when the pod is seen with its node and its grants.
//! An assumption ends when the bind is known to have failed, or the pod is gone. It never ends by time: a bind that was sent may
//! yet land.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::ask::PodAsk;
use super::choose::{choose, fit, pick, score};

/// A device of a node, as its device plugin announces it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// Its UUID.
    pub uuid: String,
    /// Its model.
    #[serde(default)]
    pub model: String,
    /// Its memory, in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// How many pods may share it.
    pub slots: u64,
    /// Its NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Devices of one number are linked, as by NVLink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<u32>,
    /// Whether it can be used.
    #[serde(default = "healthy")]
    pub healthy: bool,
}

fn healthy() -> bool {
    true
}

/// A part of a device that a container has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Grant {
    /// The container.
    pub container: String,
    /// The device.
    pub uuid: String,
    /// Memory, in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// Cores, in percent.
    pub cores: u64,
    /// Whether it has the device alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

/// What is taken of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Cores, in percent.
    pub cores: u64,
    /// How many have a part.
    pub slots: u64,
    /// Whether one has it alone.
    pub whole: bool,
}

impl Used {
    /// Counts a grant too.
    pub fn add(&mut self, grant: &Grant) {
        self.count(grant.memory_mib, grant.cores, grant.whole);
    }

    /// Counts another part: its memory in MiB, its cores in percent, and whether the device is for it alone.
    pub fn count(&mut self, memory_mib: u64, cores: u64, whole: bool) {
        self.memory_mib = self.memory_mib.saturating_add(memory_mib);
        self.cores = self.cores.saturating_add(cores);
        self.slots = self.slots.saturating_add(1);
        self.whole |= whole;
    }
}

/// Why a node or a pod was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The node is not known, or announces no devices.
    NoDevices,
    /// Its devices do not fit.
    Full,
    /// The pod has its node already.
    Bound(String),
    /// An earlier bind of the pod may yet land.
    InDoubt(String),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoDevices => f.write_str("the node announces no devices of Divvy's"),
            Self::Full => f.write_str("the node's devices have no room for what the pod asks"),
            Self::Bound(node) => write!(f, "the pod is on node {node} already"),
            Self::InDoubt(node) => {
                write!(
                    f,
                    "an earlier bind to node {node} has not been answered yet: it is tried again"
                )
            }
        }
    }
}

/// What a pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    node: String,
    grants: Vec<Grant>,
    confirmed: bool,
}

#[derive(Clone, Debug, Default)]
struct Place {
    gpus: Vec<Gpu>,
    used: Vec<Used>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    nodes: HashMap<String, Place>,
    /// By the pod's UID.
    pods: BTreeMap<String, Entry>,
    /// The pods of each node.
    by_node: HashMap<String, Vec<String>>,
}

impl Ledger {
    /// A node's devices as they are now. What pods have of them stays counted.
    pub fn node(&mut self, name: &str, gpus: Vec<Gpu>) {
        self.nodes.insert(
            name.to_owned(),
            Place {
                used: vec![Used::default(); gpus.len()],
                gpus,
            },
        );
        self.count(name);
    }

    /// The node is gone. What its pods have is kept: they may be seen again with it.
    pub fn no_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// The pod was seen on a node with these grants. That is the truth, whatever was assumed.
    pub fn seen(&mut self, uid: &str, node: &str, grants: Vec<Grant>) {
        self.insert(uid, node, grants, true);
    }

    /// The pod was seen on a node without grants that count. Where it was assumed there, it has what was assumed: its author may
    /// have written over them. Whether it was.
    pub fn seen_bare(&mut self, uid: &str, node: &str) -> bool {
        let assumed = self.pods.get_mut(uid).filter(|entry| entry.node == node);
        assumed.map(|entry| entry.confirmed = true).is_some()
    }

    /// The pod has ended or is gone: all that it has comes back.
    pub fn gone(&mut self, uid: &str) {
        if let Some(entry) = self.pods.remove(uid) {
            self.unlink(uid, &entry.node);
            self.count(&entry.node);
        }
    }

    /// Whether the pod was seen on its node.
    #[must_use]
    pub fn is_confirmed(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|entry| entry.confirmed)
    }

    /// Whether a bind of the pod is not confirmed.
    #[must_use]
    pub fn is_assumed(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|entry| !entry.confirmed)
    }

    /// Pods that were seen on their nodes.
    #[must_use]
    pub fn confirmed(&self) -> HashSet<String> {
        let entries = self.pods.iter().filter(|(_, entry)| entry.confirmed);
        entries.map(|(uid, _)| uid.clone()).collect()
    }

    /// Whether the node has room. Nothing is changed.
    ///
    /// # Errors
    /// Why not.
    pub fn fits(&self, node: &str, pod: &PodAsk) -> Result<(), Refused> {
        let place = self.nodes.get(node).ok_or(Refused::NoDevices)?;
        match fit(&place.gpus, &place.used, pod) {
            true => Ok(()),
            false => Err(Refused::Full),
        }
    }

    /// What the pod would get of the node. Nothing is changed.
    ///
    /// # Errors
    /// Why it would get nothing.
    pub fn filter(&self, node: &str, pod: &PodAsk) -> Result<Vec<Grant>, Refused> {
        let place = self.nodes.get(node).ok_or(Refused::NoDevices)?;
        choose(&place.gpus, &place.used, pod).ok_or(Refused::Full)
    }

    /// How well the node suits, from 0 to 100; 0 where it does not fit. Nothing is changed.
    #[must_use]
    pub fn score(&self, node: &str, pod: &PodAsk) -> i64 {
        let Some(place) = self.nodes.get(node) else {
            return 0;
        };
        let picks = pick(&place.gpus, &place.used, pod);
        picks.map_or(0, |picks| score(&place.gpus, &place.used, pod, &picks))
    }

    /// Assumes the pod on the node, before its bind is sent.
    ///
    /// # Errors
    /// Why it cannot be there.
    pub fn assume(&mut self, uid: &str, node: &str, pod: &PodAsk) -> Result<Vec<Grant>, Refused> {
        match self.pods.get(uid) {
            Some(entry) if entry.confirmed => return Err(Refused::Bound(entry.node.clone())),
            Some(entry) => return Err(Refused::InDoubt(entry.node.clone())),
            None => {}
        }
        let grants = self.filter(node, pod)?;
        self.insert(uid, node, grants.clone(), false);
        Ok(grants)
    }

    /// The bind is known to have failed, and cannot land any more.
    pub fn forget(&mut self, uid: &str) {
        if self.pods.get(uid).is_some_and(|entry| !entry.confirmed) {
            self.gone(uid);
        }
    }

    /// Pods whose binds are not confirmed.
    #[must_use]
    pub fn assumed(&self) -> Vec<String> {
        let entries = self.pods.iter().filter(|(_, entry)| !entry.confirmed);
        entries.map(|(uid, _)| uid.clone()).collect()
    }

    /// What is taken of a node's devices, in their order.
    #[must_use]
    pub fn used(&self, node: &str) -> Vec<(Gpu, Used)> {
        let place = self.nodes.get(node);
        let both = place.map(|place| {
            place
                .gpus
                .iter()
                .cloned()
                .zip(place.used.iter().copied())
                .collect()
        });
        both.unwrap_or_default()
    }

    /// The names of the nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    fn insert(&mut self, uid: &str, node: &str, grants: Vec<Grant>, confirmed: bool) {
        self.gone(uid);
        let entry = Entry {
            node: node.to_owned(),
            grants,
            confirmed,
        };
        self.pods.insert(uid.to_owned(), entry);
        self.by_node
            .entry(node.to_owned())
            .or_default()
            .push(uid.to_owned());
        self.count(node);
    }

    fn unlink(&mut self, uid: &str, node: &str) {
        if let Some(pods) = self.by_node.get_mut(node) {
            pods.retain(|one| one != uid);
            if pods.is_empty() {
                self.by_node.remove(node);
            }
        }
    }

    /// Counts again what the node's pods have.
    fn count(&mut self, node: &str) {
        let Some(place) = self.nodes.get_mut(node) else {
            return;
        };
        place.used.fill(Used::default());
        let pods = self.by_node.get(node).into_iter().flatten();
        let grants = pods
            .filter_map(|uid| self.pods.get(uid))
            .flat_map(|entry| &entry.grants);
        for grant in grants {
            if let Some(gpu) = place.gpus.iter().position(|gpu| gpu.uuid == grant.uuid) {
                place.used[gpu].add(grant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask::{Ask, Memory};
    use super::*;

    fn gpu(memory: u64) -> Gpu {
        Gpu {
            uuid: "GPU-0".into(),
            memory_mib: memory,
            slots: 8,
            healthy: true,
            ..Gpu::default()
        }
    }

    fn ask(memory: u64) -> PodAsk {
        PodAsk {
            containers: vec![Ask {
                container: "c".into(),
                devices: 1,
                memory: Memory::Mib(memory),
                ..Ask::default()
            }],
            ..PodAsk::default()
        }
    }

    #[test]
    fn an_assumption_stays_until_it_is_confirmed_or_known_to_have_failed() {
        let mut ledger = Ledger::default();
        ledger.node("n", vec![gpu(100)]);
        assert!(ledger.filter("n", &ask(60)).is_ok());
        assert!(ledger.filter("n", &ask(60)).is_ok(), "filter changes nothing");
        let grants = ledger.assume("a", "n", &ask(60)).expect("fits");
        assert_eq!(ledger.assume("b", "n", &ask(60)), Err(Refused::Full));
        assert_eq!(
            ledger.assume("a", "n", &ask(10)),
            Err(Refused::InDoubt("n".into()))
        );
        assert_eq!(ledger.assumed(), ["a"]);
        assert!(ledger.confirmed().is_empty());
        assert_eq!(ledger.used("n")[0].1.memory_mib, 60);
        ledger.seen("a", "n", grants);
        ledger.forget("a");
        assert_eq!(
            (ledger.used("n")[0].1.memory_mib, ledger.assumed().len()),
            (60, 0)
        );
        assert_eq!(ledger.assume("a", "n", &ask(1)), Err(Refused::Bound("n".into())));
        assert!(ledger.confirmed().contains("a"));
        ledger.gone("a");
        assert!(!ledger.seen_bare("a", "n"), "nothing was assumed");
        ledger.assume("a", "n", &ask(60)).expect("fits");
        assert!(!ledger.seen_bare("a", "other") && ledger.is_assumed("a"));
        assert!(ledger.seen_bare("a", "n") && ledger.is_confirmed("a"));
        assert_eq!(ledger.used("n")[0].1.memory_mib, 60);
        ledger.gone("a");
        assert_eq!(ledger.used("n")[0].1, Used::default());
        ledger.assume("b", "n", &ask(100)).expect("there is room again");
        ledger.forget("b");
        assert_eq!(ledger.used("n")[0].1, Used::default());
    }

    #[test]
    fn a_node_that_comes_again_has_what_its_pods_have() {
        let mut ledger = Ledger::default();
        ledger.node("n", vec![gpu(100)]);
        ledger.assume("a", "n", &ask(60)).expect("fits");
        ledger.no_node("n");
        assert_eq!(ledger.filter("n", &ask(1)), Err(Refused::NoDevices));
        assert_eq!(ledger.score("n", &ask(1)), 0);
        ledger.node("n", vec![gpu(50)]);
        assert_eq!(
            ledger.filter("n", &ask(1)),
            Err(Refused::Full),
            "more is taken than there is now"
        );
    }
}
