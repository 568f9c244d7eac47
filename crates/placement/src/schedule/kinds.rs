//! What is remembered of nodes for pods that ask for the same, so that a look over hundreds of nodes computes little.
//!
//! Two facts make it exact. Nothing is given back in a plan, so a node that does not fit a kind of pod never will: such nodes are
//! skipped. And what was found of a node holds until a pod is placed there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::asked::Asked;
use super::nodes::Nodes;
use super::why::Why;
use crate::cluster::{Spec, Toleration};

/// The most that is remembered: nodes of one kind, of all kinds together, each of 12 bytes. Pods of further kinds are looked at
/// without memory.
const MOST: usize = 1 << 26;

/// A node that fits, and its score.
pub type Fit = (usize, u8);

/// What tells pods of one kind: what they ask for.
#[derive(PartialEq, Eq, Hash)]
struct Shape<'a> {
    specs: Vec<Arc<Spec>>,
    cpu: u64,
    memory: u64,
    others: &'a BTreeMap<Arc<str>, u64>,
    labels: Vec<(&'a str, &'a str)>,
    tolerations: &'a [Toleration],
}

/// All kinds so far.
pub struct Kinds<'a> {
    places: HashMap<Shape<'a>, usize>,
    all: Vec<Kind>,
    nodes: usize,
    most: usize,
}

impl<'a> Kinds<'a> {
    /// None yet, in a cluster of so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self {
            places: HashMap::new(),
            all: Vec::new(),
            nodes,
            most: if u32::try_from(nodes).is_ok() {
                MOST / nodes.max(1)
            } else {
                0
            },
        }
    }

    /// Remembers no more kinds than these.
    #[cfg(test)]
    pub fn at_most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// The pod's kind; none where no more can be remembered, and for a pod that is bound to a few nodes anyway.
    pub fn of(&mut self, asked: &Asked<'a>) -> Option<&mut Kind> {
        if !asked.pools.is_empty() {
            return None;
        }
        let pod = asked.pod;
        let shape = Shape {
            specs: asked.specs.clone(),
            cpu: pod.cpu,
            memory: pod.memory,
            others: &pod.others,
            labels: pod.labels.iter().map(|(key, value)| (&**key, &**value)).collect(),
            tolerations: &pod.tolerations,
        };
        let place = match self.places.get(&shape) {
            Some(place) => *place,
            None if self.all.len() >= self.most => return None,
            None => {
                self.all.push(Kind {
                    skip: vec![0; self.nodes],
                    found: vec![0; self.nodes],
                    witness: 0,
                    witness_without_others: 0,
                });
                self.places.insert(shape, self.all.len() - 1);
                self.all.len() - 1
            }
        };
        self.all.get_mut(place)
    }
}

/// What is known of nodes for pods of one kind. Both lists begin as zeros, so that the system gives memory for what is used only.
pub struct Kind {
    /// By node: 0 for one that may fit; else how much further one that may fit is to be looked for.
    skip: Vec<u32>,
    /// By node: how often it had changed when it was found to fit, and below the lowest byte, which is its score then.
    found: Vec<u64>,
    /// No node before this one admits such pods.
    witness: usize,
    /// The same for such pods that asked for none of [`crate::cluster::Pod::others`].
    witness_without_others: usize,
}

impl Kind {
    /// Nodes that fit, from `start` on and around, until there are `wanted`; where the last of so many is.
    pub fn look(
        &mut self,
        nodes: &mut Nodes<'_>,
        asked: &Asked<'_>,
        start: usize,
        wanted: usize,
        fits: &mut Vec<Fit>,
    ) -> Option<usize> {
        for (from, to) in [(start, self.skip.len()), (0, start)] {
            let mut at = self.next(from);
            while at < to {
                if let Some(score) = self.fit(nodes, asked, at) {
                    fits.push((at, score));
                    if fits.len() >= wanted {
                        return Some(at);
                    }
                }
                at = self.next(at + 1);
            }
        }
        None
    }

    /// Why no node fits.
    pub fn why(&mut self, nodes: &Nodes<'_>, asked: &Asked<'_>) -> Why {
        while self.witness < nodes.count() && !nodes.admits(self.witness, asked) {
            self.witness += 1;
        }
        // One that takes the pod has too few devices.
        if self.witness < nodes.count() {
            return Why::Devices;
        }
        if asked.pod.others.is_empty() {
            return Why::Node;
        }
        let next = &mut self.witness_without_others;
        while *next < nodes.count() && !nodes.admits_without_others(*next, asked) {
            *next += 1;
        }
        match *next < nodes.count() {
            true => Why::Resources,
            false => Why::Node,
        }
    }

    fn fit(&mut self, nodes: &mut Nodes<'_>, asked: &Asked<'_>, at: usize) -> Option<u8> {
        let changes = u64::from(nodes.changes(at));
        let [score, ..] = self.found[at].to_le_bytes();
        if self.found[at] >> 8 == changes {
            return Some(score);
        }
        if nodes.admits(at, asked) && nodes.devices(at, asked).is_some() {
            let score = nodes.score(at, asked.pod);
            self.found[at] = changes << 8 | u64::from(score);
            return Some(score);
        }
        self.skip[at] = 1;
        None
    }

    /// The first node from here on that may fit; ways that were walked are shorter the next time.
    fn next(&mut self, mut at: usize) -> usize {
        while let Some(step @ 1..) = self.skip.get(at).copied() {
            let beyond = at + step as usize;
            if let Some(further) = self.skip.get(beyond).copied() {
                self.skip[at] += further;
            }
            at = beyond;
        }
        at
    }
}
