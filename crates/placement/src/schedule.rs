//! Pods one after the other, as the stock scheduler takes them. Node resources are what its scores look at, not devices: so which
//! of the nodes that fit is taken has nothing to do with how full their devices are.
//!
//! From kube-scheduler 1.36: how many nodes are looked at (`numFeasibleNodesToFind`), where the next look begins
//! (`nextStartNodeIndex`), the scores LeastAllocated and BalancedAllocation. Equal scores are decided by chance there; here by a seed.

mod asked;
mod kinds;
mod nodes;
mod why;

use std::collections::HashMap;
use std::sync::Arc;

use crate::allocate::{Pick, Taken};
use crate::cluster::Cluster;
use crate::selections::Selections;

use asked::Asked;
pub use asked::is_whole;
use kinds::{Fit, Kinds};
use nodes::Nodes;
pub use nodes::Terms;
pub use why::Why;

/// Where a pod went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The pod: a place in the cluster's list.
    pub pod: usize,
    /// The node.
    pub node: usize,
    /// Its devices.
    pub picks: Vec<Pick>,
}

/// A pod that has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The pod.
    pub pod: usize,
    /// Why.
    pub why: Why,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Pods that were placed now, in the order of placing.
    pub placed: Vec<Placed>,
    /// Those that were not.
    pub pending: Vec<Pending>,
    /// What is taken on each node in the end.
    pub taken: Vec<Taken>,
    /// Sentences on what the cluster had before.
    pub remarks: Vec<String>,
}

/// Places all pods in this order.
#[must_use]
pub fn schedule(selections: &Selections<'_>, queue: &[usize], terms: &Terms) -> Outcome {
    Run::new(selections, terms).all(queue)
}

struct Run<'a> {
    cluster: &'a Cluster,
    nodes: Nodes<'a>,
    kinds: Kinds<'a>,
    /// How many nodes that fit are looked for.
    wanted: usize,
    /// Where the next look begins.
    start: usize,
    random: u64,
    placed: Vec<Placed>,
    pending: Vec<Pending>,
    remarks: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(selections: &'a Selections<'a>, terms: &'a Terms) -> Self {
        let cluster = selections.cluster();
        let mut run = Self {
            cluster,
            nodes: Nodes::new(selections, terms),
            kinds: Kinds::new(cluster.nodes.len()),
            wanted: nodes_to_find(cluster.nodes.len()),
            start: 0,
            random: terms.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            placed: Vec::new(),
            pending: Vec::new(),
            remarks: Vec::new(),
        };
        run.before();
        run
    }

    fn all(mut self, queue: &[usize]) -> Outcome {
        let mut fits = Vec::new();
        for pod in queue {
            self.place(*pod, &mut fits);
        }
        Outcome {
            placed: self.placed,
            pending: self.pending,
            taken: self.nodes.into_taken(),
            remarks: self.remarks,
        }
    }

    /// Takes what claims have already, and what pods on their nodes ask for.
    fn before(&mut self) {
        let mut places: HashMap<(&str, &str, &str), (usize, usize)> = HashMap::new();
        let mut nodes: HashMap<&str, usize> = HashMap::new();
        for (place, node) in self.cluster.nodes.iter().enumerate() {
            nodes.insert(&node.name, place);
            for (device, known) in node.devices.iter().enumerate() {
                places.insert((&known.driver, &known.pool, &known.name), (place, device));
            }
        }
        let mut unknown = 0_u64;
        for claim in &self.cluster.claims {
            for held in claim.held.iter().flatten() {
                let key = (held.driver.as_str(), held.pool.as_str(), held.device.as_str());
                let Some((node, device)) = places.get(&key).copied() else {
                    unknown += 1;
                    continue;
                };
                let known = &self.cluster.nodes[node].devices[device];
                let of = |name: &Arc<str>| {
                    let found = held.consumed.iter().find(|(consumed, _)| consumed == name);
                    found.map_or(0, |(_, number)| *number)
                };
                let consumed = match known.shared {
                    true => known.capacities.iter().map(|one| of(&one.name)).collect(),
                    false => Vec::new(),
                };
                let pick = Pick {
                    claim: 0,
                    request: 0,
                    alternative: 0,
                    device,
                    consumed,
                    admin: held.admin,
                };
                self.nodes.take(node, &pick);
            }
        }
        if unknown > 0 {
            self.remarks.push(format!(
                "{unknown} devices that claims have are in no complete pool: they are not counted"
            ));
        }
        for pod in &self.cluster.pods {
            if let Some(node) = pod.node.as_deref().and_then(|node| nodes.get(node)) {
                self.nodes.load(*node, pod);
            }
        }
    }

    fn place(&mut self, index: usize, fits: &mut Vec<Fit>) {
        let pod = &self.cluster.pods[index];
        if pod.pinned {
            self.pending.push(Pending {
                pod: index,
                why: Why::Pinned,
            });
            return;
        }
        if pod.node.is_some() {
            return;
        }
        let asked = Asked::of(self.cluster, pod);
        fits.clear();
        let (start, wanted) = (self.start, self.wanted);
        let (last, why) = match self.kinds.of(&asked) {
            Some(kind) => {
                let last = kind.look(&mut self.nodes, &asked, start, wanted, fits);
                (last, fits.is_empty().then(|| kind.why(&self.nodes, &asked)))
            }
            None => look(&mut self.nodes, &asked, start, wanted, fits),
        };
        // A look that found fewer has seen all nodes: the next begins at the same one.
        if let Some(last) = last {
            self.start = (last + 1) % self.nodes.count();
        }
        let chosen = self.best(fits);
        let Some((node, picks)) = chosen.and_then(|node| Some((node, self.nodes.devices(node, &asked)?)))
        else {
            let why = why.unwrap_or(Why::Devices);
            self.pending.push(Pending { pod: index, why });
            return;
        };
        for pick in &picks {
            self.nodes.take(node, pick);
        }
        self.nodes.load(node, pod);
        self.placed.push(Placed {
            pod: index,
            node,
            picks,
        });
    }

    /// One of the nodes with the best score.
    fn best(&mut self, fits: &[Fit]) -> Option<usize> {
        let most = fits.iter().map(|(_, score)| *score).max()?;
        let mut best = fits.iter().filter(|(_, score)| *score == most);
        let equal = best.clone().count();
        let chosen = usize::try_from(self.next() % equal as u64).unwrap_or(0);
        best.nth(chosen).map(|(node, _)| *node)
    }

    /// Xorshift: decides between equal nodes.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// A look without memory: nodes that fit, from `start` on and around, until there are `wanted`; where the last of so many is; and
/// why none fits.
fn look(
    nodes: &mut Nodes<'_>,
    asked: &Asked<'_>,
    start: usize,
    wanted: usize,
    fits: &mut Vec<Fit>,
) -> (Option<usize>, Option<Why>) {
    let mut why = Why::Node;
    for at in (start..nodes.count()).chain(0..start) {
        if !nodes.admits(at, asked) {
            if why == Why::Node && nodes.admits_without_others(at, asked) {
                why = Why::Resources;
            }
            continue;
        }
        if nodes.devices(at, asked).is_none() {
            why = Why::Devices;
            continue;
        }
        fits.push((at, nodes.score(at, asked.pod)));
        if fits.len() >= wanted {
            return (Some(at), None);
        }
    }
    (None, fits.is_empty().then_some(why))
}

/// How many nodes that fit the stock scheduler looks for.
#[must_use]
pub fn nodes_to_find(total: usize) -> usize {
    if total < 100 {
        return total;
    }
    let percent = 50_usize.saturating_sub(total / 125).max(5);
    (total * percent / 100).max(100)
}

#[cfg(test)]
mod tests;
