//! Pods one after the other, as the stock scheduler takes them. Node resources are what its scores look at, not devices: so which
//! of the nodes that fit is taken has nothing to do with how full their devices are.
//!
//! From kube-scheduler 1.36: how many nodes are looked at (`numFeasibleNodesToFind`), where the next look begins
//! (`nextStartNodeIndex`), the scores LeastAllocated and BalancedAllocation. Equal scores are decided by chance there; here by a seed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::allocate::{Look, Order, Pick, Taken, allocate, selected};
use crate::cluster::{Claim, Cluster, Node, Pod, Spec, Taint, Toleration};

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

/// Why a pod has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// No node has its devices free.
    Devices,
    /// No node that it may go to has the processors, the memory or the pods left.
    Node,
    /// Its author chose the node: no scheduler allocates its claims.
    Pinned,
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

/// What the scores count for a pod that asks for nothing: thousandths of processors, and bytes.
const DEFAULT_CPU: u64 = 100;
const DEFAULT_MEMORY: u64 = 200 << 20;

/// Places all pods in this order.
#[must_use]
pub fn schedule(cluster: &Cluster, queue: &[usize], terms: &Terms) -> Outcome {
    let mut run = Run::new(cluster, terms);
    run.before();
    for pod in queue {
        run.place(*pod);
    }
    Outcome {
        placed: run.placed,
        pending: run.pending,
        taken: run.taken,
        remarks: run.remarks,
    }
}

/// Which nodes may still fit pods of one kind. Nothing is ever given back in a plan, so one that does not fit never will.
struct Kind {
    alive: Vec<u32>,
}

/// What tells pods of one kind: what they ask for.
#[derive(PartialEq, Eq, Hash)]
struct Shape<'a> {
    specs: Vec<Arc<Spec>>,
    cpu: u64,
    memory: u64,
    labels: Vec<(&'a str, &'a str)>,
    tolerations: &'a [Toleration],
}

/// More kinds are looked at without memory of where they did not fit.
const MOST_KINDS: usize = 256;

struct Run<'a> {
    cluster: &'a Cluster,
    terms: &'a Terms,
    taken: Vec<Taken>,
    loads: Vec<Load>,
    selects: Vec<RefCell<HashMap<u32, Box<[bool]>>>>,
    kinds: HashMap<Shape<'a>, usize>,
    alive: Vec<Kind>,
    start: usize,
    random: u64,
    placed: Vec<Placed>,
    pending: Vec<Pending>,
    remarks: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(cluster: &'a Cluster, terms: &'a Terms) -> Self {
        let nodes = cluster.nodes.len();
        Self {
            cluster,
            terms,
            taken: cluster.nodes.iter().map(Taken::none).collect(),
            loads: vec![Load::default(); nodes],
            selects: (0..nodes).map(|_| RefCell::default()).collect(),
            kinds: HashMap::new(),
            alive: Vec::new(),
            start: 0,
            random: terms.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            placed: Vec::new(),
            pending: Vec::new(),
            remarks: Vec::new(),
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
                    request: String::new(),
                    device,
                    consumed,
                    admin: held.admin,
                };
                self.taken[node].take(&self.cluster.nodes[node], &pick);
            }
        }
        if unknown > 0 {
            self.remarks.push(format!(
                "{unknown} devices that claims have are in no complete pool: they are not counted"
            ));
        }
        for pod in &self.cluster.pods {
            if let Some(node) = pod.node.as_deref().and_then(|node| nodes.get(node)) {
                self.load(*node, pod);
            }
        }
    }

    fn load(&mut self, node: usize, pod: &Pod) {
        let load = &mut self.loads[node];
        load.cpu = load.cpu.saturating_add(pod.cpu);
        load.memory = load.memory.saturating_add(pod.memory);
        load.pods += 1;
        load.scored_cpu = load
            .scored_cpu
            .saturating_add(if pod.cpu == 0 { DEFAULT_CPU } else { pod.cpu });
        let memory = if pod.memory == 0 {
            DEFAULT_MEMORY
        } else {
            pod.memory
        };
        load.scored_memory = load.scored_memory.saturating_add(memory);
    }

    fn place(&mut self, index: usize) {
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
        let claims = pod
            .claims
            .iter()
            .map(|claim| &self.cluster.claims[*claim as usize]);
        let claims: Vec<&Claim> = claims.collect();
        let specs: Vec<Arc<Spec>> = claims
            .iter()
            .filter(|claim| claim.held.is_none())
            .map(|claim| claim.spec.clone())
            .collect();
        // A claim that has devices binds its pod to their node.
        let pools: Vec<&str> = claims
            .iter()
            .flat_map(|claim| claim.held.iter().flatten().map(|held| held.pool.as_str()))
            .collect();
        let kind = pools.is_empty().then(|| self.kind(pod, &specs)).flatten();
        let (fits, reached, dead, devices_short) = self.look(pod, &specs, &pools, kind);
        if let Some(kind) = kind
            && !dead.is_empty()
        {
            self.alive[kind]
                .alive
                .retain(|node| dead.binary_search(node).is_err());
        }
        let total = self.cluster.nodes.len().max(1);
        self.start = reached % total;
        let Some((node, picks)) = self.best(pod, fits) else {
            let why = if devices_short { Why::Devices } else { Why::Node };
            self.pending.push(Pending { pod: index, why });
            return;
        };
        for pick in &picks {
            self.taken[node].take(&self.cluster.nodes[node], pick);
        }
        self.load(node, pod);
        self.placed.push(Placed {
            pod: index,
            node,
            picks,
        });
    }

    fn kind(&mut self, pod: &'a Pod, specs: &[Arc<Spec>]) -> Option<usize> {
        let shape = Shape {
            specs: specs.to_vec(),
            cpu: pod.cpu,
            memory: pod.memory,
            labels: pod.labels.iter().map(|(key, value)| (&**key, &**value)).collect(),
            tolerations: &pod.tolerations,
        };
        if let Some(kind) = self.kinds.get(&shape) {
            return Some(*kind);
        }
        if self.alive.len() >= MOST_KINDS {
            return None;
        }
        let all = u32::try_from(self.cluster.nodes.len()).ok()?;
        self.alive.push(Kind {
            alive: (0..all).collect(),
        });
        self.kinds.insert(shape, self.alive.len() - 1);
        Some(self.alive.len() - 1)
    }

    /// The nodes that fit, among as many as the stock scheduler looks for; where the look ended; nodes that do not fit; whether
    /// devices were what some node was short of.
    #[expect(clippy::type_complexity, reason = "what one look finds, taken apart at once")]
    fn look(
        &mut self,
        pod: &Pod,
        specs: &[Arc<Spec>],
        pools: &[&str],
        kind: Option<usize>,
    ) -> (Vec<(usize, Vec<Pick>)>, usize, Vec<u32>, bool) {
        let total = self.cluster.nodes.len();
        let wanted = nodes_to_find(total);
        let candidates: Vec<u32> = match kind {
            Some(kind) => std::mem::take(&mut self.alive[kind].alive),
            None => (0..u32::try_from(total).unwrap_or(u32::MAX)).collect(),
        };
        let first = candidates.partition_point(|node| (*node as usize) < self.start);
        let (before, after) = candidates.split_at(first);
        let mut fits = Vec::new();
        let mut dead = Vec::new();
        let mut reached = self.start;
        let mut short = false;
        for node in after.iter().chain(before) {
            let place = *node as usize;
            reached = place + 1;
            if !self.admits(place, pod, specs, pools) {
                dead.push(*node);
                continue;
            }
            match self.devices(place, specs) {
                Some(picks) => fits.push((place, picks)),
                None => {
                    short = true;
                    dead.push(*node);
                }
            }
            if fits.len() >= wanted {
                break;
            }
        }
        // Nodes that fell out earlier fell out for their devices, as far as is known.
        short |= candidates.len() < total;
        if let Some(kind) = kind {
            self.alive[kind].alive = candidates;
        }
        dead.sort_unstable();
        (fits, reached, dead, short)
    }

    fn devices(&mut self, place: usize, specs: &[Arc<Spec>]) -> Option<Vec<Pick>> {
        let node = &self.cluster.nodes[place];
        let known = &self.selects[place];
        let selects = |device: usize, selector: u32| {
            let mut known = known.borrow_mut();
            let flags = known.entry(selector).or_insert_with(|| {
                let expression = &self.cluster.selectors[selector as usize];
                node.devices
                    .iter()
                    .map(|device| selected(expression, device))
                    .collect()
            });
            flags[device]
        };
        let look = Look {
            node,
            selects: &selects,
            order: self.terms.order,
        };
        allocate(&look, &mut self.taken[place], specs)
    }

    fn admits(&self, place: usize, pod: &Pod, specs: &[Arc<Spec>], pools: &[&str]) -> bool {
        let node = &self.cluster.nodes[place];
        let load = &self.loads[place];
        let room = |has: u64, used: u64, asked: u64| has == 0 || used.saturating_add(asked) <= has;
        let tolerated =
            |taint: &Taint| !taint.repels() || pod.tolerations.iter().any(|one| one.covers(taint));
        let mut labels = pod.labels.iter();
        let kept = place < self.terms.kept_for_whole;
        !node.unschedulable
            && (self.terms.kept_for_whole == 0 || specs.is_empty() || kept == self.is_whole(specs))
            && room(node.cpu, load.cpu, pod.cpu)
            && room(node.memory, load.memory, pod.memory)
            && room(node.pods, load.pods, 1)
            && node.taints.iter().all(tolerated)
            && labels.all(|(key, value)| node.labels.get(key) == Some(value))
            && pools
                .iter()
                .all(|pool| node.devices.iter().any(|device| *device.pool == **pool))
    }

    /// Whether the claims are of whole devices: no request names a capacity.
    fn is_whole(&self, specs: &[Arc<Spec>]) -> bool {
        specs.iter().all(|spec| is_whole(spec, self.cluster))
    }

    fn best(&mut self, pod: &Pod, fits: Vec<(usize, Vec<Pick>)>) -> Option<(usize, Vec<Pick>)> {
        let scores: Vec<u64> = fits.iter().map(|(node, _)| self.score(*node, pod)).collect();
        let most = *scores.iter().max()?;
        let equal = scores.iter().filter(|score| **score == most).count();
        let chosen = usize::try_from(self.next() % equal as u64).unwrap_or(0);
        let mut best = fits.into_iter().zip(scores).filter(|(_, score)| *score == most);
        best.nth(chosen).map(|(found, _)| found)
    }

    /// LeastAllocated and BalancedAllocation, each up to 100.
    fn score(&self, place: usize, pod: &Pod) -> u64 {
        let (node, load): (&Node, &Load) = (&self.cluster.nodes[place], &self.loads[place]);
        if node.cpu == 0 || node.memory == 0 {
            return 0;
        }
        let cpu = load.scored_cpu + if pod.cpu == 0 { DEFAULT_CPU } else { pod.cpu };
        let memory = load.scored_memory
            + if pod.memory == 0 {
                DEFAULT_MEMORY
            } else {
                pod.memory
            };
        let free = |has: u64, used: u64| has.saturating_sub(used).saturating_mul(100) / has;
        let least = u64::midpoint(free(node.cpu, cpu), free(node.memory, memory));
        let share = |has: u64, used: u64| (used as f64 / has as f64).min(1.0);
        let apart = (share(node.cpu, cpu) - share(node.memory, memory)).abs() / 2.0;
        least + ((1.0 - apart) * 100.0) as u64
    }

    /// Xorshift: decides between equal nodes.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// Whether a claim is for whole devices: whatever it may have is not shared.
#[must_use]
pub fn is_whole(spec: &Spec, cluster: &Cluster) -> bool {
    let shares = |selector: &u32| {
        let text = cluster.selectors[*selector as usize].text();
        text.contains("allowMultipleAllocations == true") || text.contains("gpu-shared")
    };
    let mut asks = spec.requests.iter().flat_map(|request| &request.alternatives);
    asks.all(|ask| ask.capacity.is_empty() && !ask.selectors.iter().any(shares))
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
