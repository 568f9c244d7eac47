//! A plan: where all would go, how what is left is fragmented, and what would place more.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::allocate::Order;
use crate::cluster::{Cluster, Node};
use crate::schedule::{Outcome, Terms, Why, is_whole, schedule};
use crate::selections::Selections;

/// What to plan.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Decides between equal nodes.
    pub seed: u64,
    /// Whether to try other orders and partitions where some pods have no place.
    pub try_others: bool,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Nodes in the cluster.
    pub nodes: u64,
    /// Devices that are published, each counted once whether it is published in one form or in two.
    pub devices: u64,
    /// Pods that had no node, and claims that no pod has.
    pub asked: u64,
    /// Those among them that have a place.
    pub placed: u64,
    /// Those that have none, by the reason.
    pub pending: Vec<Pending>,
    /// How what is left is divided.
    pub fragmentation: Fragmentation,
    /// Other orders and partitions, the best first; empty where all have a place.
    pub alternatives: Vec<Alternative>,
    /// What was left out, in sentences.
    pub remarks: Vec<String>,
    /// Where each went.
    pub placements: Vec<Placement>,
}

/// Pods without a place, of one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pending {
    /// `devices`: no node has them free. `resources`: no node has as much left of the extended resources that they ask for. `node`:
    /// no node has processors, memory or pods left, or the pod may go to none. `pinned`: the pod names its node, so no scheduler allocates its claims.
    pub reason: String,
    /// How many.
    pub count: u64,
    /// The first of them.
    pub examples: Vec<String>,
}

/// How what is left is divided.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Fragmentation {
    /// Devices that nothing was taken of.
    pub free_devices: u64,
    /// Devices with slices on them.
    pub shared_devices: u64,
    /// Devices that are given out whole.
    pub whole_devices: u64,
    /// Free memory in all, in bytes.
    pub free_memory_bytes: u64,
    /// The most free memory of one device, in bytes: no larger slice fits.
    pub largest_free_memory_bytes: u64,
    /// Free memory that no slice can have, in bytes: its device has no cores or no slots left.
    pub stranded_memory_bytes: u64,
    /// Free cores in all, in percent of a device.
    pub free_cores_percent: u64,
    /// Free cores of devices without free memory or slots, in percent of a device.
    pub stranded_cores_percent: u64,
    /// The part of the free memory that is on devices with slices, in percent: no whole device can be made of it.
    pub broken_percent: f64,
}

/// What another order or partition would place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alternative {
    /// What is different: one word.
    pub name: String,
    /// How to have it.
    pub how: String,
    /// How many would have a place.
    pub placed: u64,
    /// How many more than in the plan; fewer are below zero.
    pub more: i64,
}

/// Where a pod went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Namespace and name of the pod, or of the claim that no pod has.
    pub pod: String,
    /// The node.
    pub node: String,
    /// Its devices, each as pool and name.
    pub devices: Vec<String>,
}

/// Plans.
#[must_use]
pub fn plan(cluster: &Cluster, options: Options) -> Plan {
    let queue: Vec<usize> = (0..cluster.pods.len()).collect();
    let base = Terms {
        seed: options.seed,
        ..Terms::default()
    };
    let selections = Selections::of(cluster);
    let outcome = schedule(&selections, &queue, &base);
    let short = outcome.pending.iter().any(|pending| pending.why == Why::Devices);
    let alternatives = match short && options.try_others {
        true => alternatives(&selections, &queue, &base, outcome.placed.len()),
        false => Vec::new(),
    };
    let mut remarks = cluster.remarks.clone();
    remarks.extend(outcome.remarks.iter().cloned());
    let devices = cluster.nodes.iter().map(|node| physical(node).len() as u64);
    Plan {
        nodes: cluster.nodes.len() as u64,
        devices: devices.sum(),
        asked: (outcome.placed.len() + outcome.pending.len()) as u64,
        placed: outcome.placed.len() as u64,
        pending: pending(cluster, &outcome),
        fragmentation: fragmentation(cluster, &outcome),
        alternatives,
        remarks,
        placements: placements(cluster, &outcome),
    }
}

fn pending(cluster: &Cluster, outcome: &Outcome) -> Vec<Pending> {
    const EXAMPLES: usize = 5;
    let mut by_reason: BTreeMap<Why, Pending> = BTreeMap::new();
    for one in &outcome.pending {
        let entry = by_reason.entry(one.why).or_insert_with(|| Pending {
            reason: match one.why {
                Why::Devices => "devices",
                Why::Resources => "resources",
                Why::Node => "node",
                Why::Pinned => "pinned",
            }
            .to_owned(),
            count: 0,
            examples: Vec::new(),
        });
        entry.count += 1;
        if entry.examples.len() < EXAMPLES {
            entry.examples.push(cluster.pods[one.pod].name.clone());
        }
    }
    by_reason.into_values().collect()
}

fn placements(cluster: &Cluster, outcome: &Outcome) -> Vec<Placement> {
    let placed = outcome.placed.iter().map(|placed| {
        let node = &cluster.nodes[placed.node];
        let devices = placed.picks.iter().map(|pick| {
            let device = &node.devices[pick.device];
            format!("{}/{}", device.pool, device.name)
        });
        Placement {
            pod: cluster.pods[placed.pod].name.clone(),
            node: node.name.clone(),
            devices: devices.collect(),
        }
    });
    placed.collect()
}

/// A node's devices, those together that cannot be given out beside each other: the forms of one device. The parts of a divided GPU
/// share counters that have room for all of them, and stand by themselves.
fn physical(node: &Node) -> Vec<Vec<usize>> {
    let mut takers: Vec<Vec<(usize, u64)>> = vec![Vec::new(); node.counters.len()];
    for (place, device) in node.devices.iter().enumerate() {
        for (counter, number) in &device.consumes {
            takers[*counter as usize].push((place, *number));
        }
    }
    // Each device's group, by its first member.
    let mut first: Vec<usize> = (0..node.devices.len()).collect();
    let root = |first: &[usize], mut place: usize| {
        while first[place] != place {
            place = first[place];
        }
        place
    };
    for (takers, has) in takers.iter().zip(&node.counters) {
        for (at, (one, number)) in takers.iter().enumerate() {
            for (other, more) in &takers[at + 1..] {
                if number.checked_add(*more).is_none_or(|both| both > *has) {
                    let (one, other) = (root(&first, *one), root(&first, *other));
                    first[one.max(other)] = one.min(other);
                }
            }
        }
    }
    let mut together: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for place in 0..node.devices.len() {
        together.entry(root(&first, place)).or_default().push(place);
    }
    together.into_values().collect()
}

fn fragmentation(cluster: &Cluster, outcome: &Outcome) -> Fragmentation {
    let mut sum = Fragmentation::default();
    let mut broken = 0_u64;
    for (node, taken) in cluster.nodes.iter().zip(&outcome.taken) {
        for forms in physical(node) {
            let holders = |shared: bool| -> u32 {
                let forms = forms.iter().filter(|form| node.devices[**form].shared == shared);
                forms.map(|form| taken.devices[*form].holders).sum()
            };
            if holders(false) > 0 {
                sum.whole_devices += 1;
                continue;
            }
            let form = forms
                .iter()
                .find(|form| node.devices[**form].shared)
                .or(forms.first());
            let Some(form) = form else { continue };
            let left = |name: &str| {
                let mut all = node.devices[*form]
                    .capacities
                    .iter()
                    .zip(&taken.devices[*form].consumed);
                all.find(|(capacity, _)| capacity.name.rsplit('/').next() == Some(name))
                    .map(|(capacity, used)| capacity.value.saturating_sub(*used))
            };
            let (memory, cores) = (left("memory").unwrap_or(0), left("cores"));
            let slots = left("slots").unwrap_or(1);
            sum.free_memory_bytes += memory;
            sum.largest_free_memory_bytes = sum.largest_free_memory_bytes.max(memory);
            sum.free_cores_percent += cores.unwrap_or(0);
            if cores == Some(0) || slots == 0 {
                sum.stranded_memory_bytes += memory;
            }
            if memory == 0 || slots == 0 {
                sum.stranded_cores_percent += cores.unwrap_or(0);
            }
            if holders(true) > 0 {
                sum.shared_devices += 1;
                broken += memory;
            } else {
                sum.free_devices += 1;
            }
        }
    }
    if sum.free_memory_bytes > 0 {
        sum.broken_percent = (broken as f64 / sum.free_memory_bytes as f64 * 1000.0).round() / 10.0;
    }
    sum
}

/// What a pod asks for, for sorting: whole devices before shares, then by what is asked of memory.
fn size(cluster: &Cluster, pod: usize) -> (bool, u64) {
    let claims = cluster.pods[pod].claims.iter();
    let specs: Vec<_> = claims
        .map(|claim| &cluster.claims[*claim as usize].spec)
        .collect();
    let whole = specs.iter().any(|spec| is_whole(spec, cluster));
    let asks = specs
        .iter()
        .flat_map(|spec| &spec.requests)
        .filter_map(|one| one.alternatives.first());
    let memory = asks
        .flat_map(|ask| &ask.capacity)
        .filter(|(name, _)| name.ends_with("memory"));
    (
        whole,
        memory.map(|(_, number)| *number).fold(0, u64::saturating_add),
    )
}

fn alternatives(
    selections: &Selections<'_>,
    queue: &[usize],
    base: &Terms,
    placed: usize,
) -> Vec<Alternative> {
    let cluster = selections.cluster();
    let mut sorted = queue.to_vec();
    sorted.sort_by_cached_key(|pod| std::cmp::Reverse(size(cluster, *pod)));
    let smallest: Vec<usize> = sorted.iter().rev().copied().collect();
    let with = |order: Order| Terms {
        order,
        ..base.clone()
    };
    let mut found = Vec::new();
    let mut attempt = |name: &str, how: String, queue: &[usize], terms: &Terms| {
        let count = schedule(selections, queue, terms).placed.len();
        found.push(Alternative {
            name: name.to_owned(),
            how,
            placed: count as u64,
            more: i64::try_from(count).unwrap_or(i64::MAX) - i64::try_from(placed).unwrap_or(i64::MAX),
        });
    };
    let say = str::to_owned;
    attempt(
        "largest-first",
        say("create the largest claims first"),
        &sorted,
        base,
    );
    attempt(
        "smallest-first",
        say("create the smallest claims first"),
        &smallest,
        base,
    );
    attempt(
        "fullest-device-first",
        say("let the driver publish a node's fullest devices first: `--prefer binpack`"),
        queue,
        &with(Order::Fullest),
    );
    attempt(
        "emptiest-device-first",
        say("let the driver publish a node's emptiest devices first: `--prefer spread`"),
        queue,
        &with(Order::Emptiest),
    );
    if let Some(kept) = nodes_for_whole(cluster, queue) {
        let terms = Terms {
            kept_for_whole: kept,
            ..base.clone()
        };
        let how =
            format!("publish {kept} nodes' devices as whole devices only, and the others' in shares only");
        attempt("partition", how, queue, &terms);
    }
    found.sort_by_key(|one| std::cmp::Reverse(one.placed));
    found
}

/// How many nodes the claims of whole devices need, where there are both such claims and others.
fn nodes_for_whole(cluster: &Cluster, queue: &[usize]) -> Option<usize> {
    let (mut whole, mut shares) = (0_usize, 0_usize);
    for pod in queue {
        for claim in &cluster.pods[*pod].claims {
            let claim = &cluster.claims[*claim as usize];
            if claim.held.is_some() {
                continue;
            }
            match is_whole(&claim.spec, cluster) {
                true => whole += claim.spec.requests.len(),
                false => shares += 1,
            }
        }
    }
    let mut missing = whole;
    let mut nodes = 0;
    for node in &cluster.nodes {
        if missing == 0 {
            break;
        }
        missing = missing.saturating_sub(physical(node).len());
        nodes += 1;
    }
    (whole > 0 && shares > 0 && nodes < cluster.nodes.len()).then_some(nodes)
}

#[cfg(test)]
mod tests;
