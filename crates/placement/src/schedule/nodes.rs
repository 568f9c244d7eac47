//! Nodes while pods are placed: what is taken of each, whether a pod fits, and how the stock scheduler scores it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::asked::Asked;
use crate::allocate::{Look, Order, Pick, Taken, allocate};
use crate::cluster::{Cluster, Pod, Taint};
use crate::selections::Selections;

/// What is different from the stock scheduler in a what-if.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// The order of a node's devices.
    pub order: Order,
    /// Nodes at the front of the list that take claims of whole devices only; the others take the rest only.
    pub kept_for_whole: usize,
    /// Decides between equal nodes.
    pub seed: u64,
}

/// What the scores count for a pod that asks for nothing: thousandths of processors, and bytes.
const DEFAULT_CPU: u64 = 100;
const DEFAULT_MEMORY: u64 = 200 << 20;

/// Taken of a node beside devices.
#[derive(Clone, Copy, Default)]
struct Load {
    cpu: u64,
    memory: u64,
    pods: u64,
    /// As the scores count: pods that ask for nothing count a little.
    scored_cpu: u64,
    scored_memory: u64,
}

/// See the module.
pub struct Nodes<'a> {
    cluster: &'a Cluster,
    selections: &'a Selections<'a>,
    terms: &'a Terms,
    taken: Vec<Taken>,
    loads: Vec<Load>,
    /// What pods have of [`crate::cluster::Node::others`].
    others: Vec<BTreeMap<Arc<str>, u64>>,
    /// How often each node has changed, from 1 on.
    changes: Vec<u32>,
}

/// What a pod counts in scores: processors and memory.
fn scored(pod: &Pod) -> (u64, u64) {
    let or = |asked: u64, default: u64| if asked == 0 { default } else { asked };
    (or(pod.cpu, DEFAULT_CPU), or(pod.memory, DEFAULT_MEMORY))
}

impl<'a> Nodes<'a> {
    /// Nothing is taken.
    pub fn new(selections: &'a Selections<'a>, terms: &'a Terms) -> Self {
        let cluster = selections.cluster();
        let nodes = cluster.nodes.len();
        Self {
            cluster,
            selections,
            terms,
            taken: cluster.nodes.iter().map(Taken::none).collect(),
            loads: vec![Load::default(); nodes],
            others: vec![BTreeMap::new(); nodes],
            changes: vec![1; nodes],
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.taken.len()
    }

    /// How often a node has changed, from 1 on: what was found out about it holds as long as this number does.
    pub fn changes(&self, place: usize) -> u32 {
        self.changes[place]
    }

    /// What is taken of devices, in the end.
    pub fn into_taken(self) -> Vec<Taken> {
        self.taken
    }

    /// A device of the node is taken.
    pub fn take(&mut self, place: usize, pick: &Pick) {
        self.changes[place] = self.changes[place].saturating_add(1);
        self.taken[place].take(&self.cluster.nodes[place], pick);
    }

    /// The pod is on the node.
    pub fn load(&mut self, place: usize, pod: &Pod) {
        self.changes[place] = self.changes[place].saturating_add(1);
        let load = &mut self.loads[place];
        let (cpu, memory) = scored(pod);
        load.cpu = load.cpu.saturating_add(pod.cpu);
        load.memory = load.memory.saturating_add(pod.memory);
        load.pods += 1;
        load.scored_cpu = load.scored_cpu.saturating_add(cpu);
        load.scored_memory = load.scored_memory.saturating_add(memory);
        for (name, number) in &pod.others {
            let used = self.others[place].entry(name.clone()).or_default();
            *used = used.saturating_add(*number);
        }
    }

    /// Whether the pod may go there, and what it asks for beside devices is free. Once it is not, it never will be.
    pub fn admits(&self, place: usize, asked: &Asked<'_>) -> bool {
        self.admits_without_others(place, asked) && self.has_others(place, asked.pod)
    }

    /// Whether the pod's [`Pod::others`] are free there, as the scheduler's NodeResourcesFit asks.
    fn has_others(&self, place: usize, pod: &Pod) -> bool {
        let Some(all) = &self.cluster.nodes[place].others else {
            return true;
        };
        let of = |counts: &BTreeMap<Arc<str>, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
        let mut asked = pod.others.iter();
        asked.all(|(name, number)| of(&self.others[place], name).saturating_add(*number) <= of(all, name))
    }

    /// [`Self::admits`] for a pod that asked for none of [`Pod::others`].
    pub fn admits_without_others(&self, place: usize, asked: &Asked<'_>) -> bool {
        let (node, load, pod) = (&self.cluster.nodes[place], &self.loads[place], asked.pod);
        let room = |has: u64, used: u64, asked: u64| has == 0 || used.saturating_add(asked) <= has;
        let tolerated =
            |taint: &Taint| !taint.repels() || pod.tolerations.iter().any(|one| one.covers(taint));
        let kept = place < self.terms.kept_for_whole;
        !node.unschedulable
            && (self.terms.kept_for_whole == 0 || asked.specs.is_empty() || kept == asked.whole)
            && room(node.cpu, load.cpu, pod.cpu)
            && room(node.memory, load.memory, pod.memory)
            && room(node.pods, load.pods, 1)
            && node.taints.iter().all(tolerated)
            && pod
                .labels
                .iter()
                .all(|(key, value)| node.labels.get(key) == Some(value))
            && asked
                .pools
                .iter()
                .all(|pool| node.devices.iter().any(|device| *device.pool == **pool))
    }

    /// The devices that the pod would get there. Once it gets none, it never will.
    pub fn devices(&mut self, place: usize, asked: &Asked<'_>) -> Option<Vec<Pick>> {
        let look = Look {
            node: &self.cluster.nodes[place],
            selects: &|selector| self.selections.flags(place, selector),
            order: self.terms.order,
        };
        allocate(&look, &mut self.taken[place], &asked.specs)
    }

    /// LeastAllocated and BalancedAllocation, each up to 100.
    pub fn score(&self, place: usize, pod: &Pod) -> u8 {
        let (node, load) = (&self.cluster.nodes[place], &self.loads[place]);
        if node.cpu == 0 || node.memory == 0 {
            return 0;
        }
        let (cpu, memory) = scored(pod);
        let (cpu, memory) = (
            load.scored_cpu.saturating_add(cpu),
            load.scored_memory.saturating_add(memory),
        );
        let free = |has: u64, used: u64| has.saturating_sub(used).saturating_mul(100) / has;
        let least = u64::midpoint(free(node.cpu, cpu), free(node.memory, memory));
        let share = |has: u64, used: u64| (used as f64 / has as f64).min(1.0);
        let apart = (share(node.cpu, cpu) - share(node.memory, memory)).abs() / 2.0;
        let all = least + ((1.0 - apart) * 100.0) as u64;
        u8::try_from(all).unwrap_or(u8::MAX)
    }
}
