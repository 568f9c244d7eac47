use proptest::prelude::*;

use super::*;
use crate::allocate::{Look, Order, allocate};
use crate::cluster::{Held, Taint, Toleration};
use crate::read::read;

fn cluster(text: &str) -> Cluster {
    let text = format!("format: divvy/plan\n{text}");
    read(&[("plan".into(), text)]).expect("understood")
}

#[test]
fn as_many_nodes_are_looked_for_as_kube_scheduler_does() {
    for (nodes, found) in [
        (0, 0),
        (99, 99),
        (100, 100),
        (1000, 420),
        (5000, 500),
        (10_000, 500),
    ] {
        assert_eq!(nodes_to_find(nodes), found, "{nodes}");
    }
}

#[test]
fn the_seed_decides_and_nothing_else() {
    let cluster = cluster(
        "nodes: [{name: n, count: 20, gpus: 4, memory: 80Gi}]\nclaims: [{name: c, count: 30, memory: 30Gi, cores: 40}]",
    );
    let queue: Vec<usize> = (0..30).collect();
    let of = |seed| {
        let terms = Terms {
            seed,
            ..Terms::default()
        };
        let placed = schedule(&Selections::of(&cluster), &queue, &terms).placed;
        placed.into_iter().map(|one| one.node).collect::<Vec<_>>()
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

proptest! {
    /// Whatever is asked: no device has more taken than it has, forms exclude each other, and none is turned away while a node
    /// would take it.
    #[test]
    fn nothing_is_given_out_twice(
        nodes in 1_u64..6,
        gpus in 1_u64..5,
        claims in prop::collection::vec((1_u64..12, 0_u64..90, 0_u64..101, 1_u64..4, any::<bool>()), 1..8),
        order in 0_usize..3,
        seed in any::<u64>(),
    ) {
        let mut text = format!("nodes: [{{name: n, count: {nodes}, gpus: {gpus}, memory: 80Gi, slots: 3}}]\nclaims:\n");
        for (place, (count, memory, cores, devices, whole)) in claims.iter().enumerate() {
            text += &match whole {
                true => format!("- {{name: w{place}, count: {count}, whole: true, devices: {devices}}}\n"),
                false => format!(
                    "- {{name: s{place}, count: {count}, memory: {memory}Gi, cores: {cores}, devices: {devices}}}\n"
                ),
            };
        }
        let cluster = cluster(&text);
        let queue: Vec<usize> = (0..cluster.pods.len()).collect();
        let order = [Order::Published, Order::Fullest, Order::Emptiest][order];
        let terms = Terms { order, seed, ..Terms::default() };
        let selections = Selections::of(&cluster);
        let outcome = schedule(&selections, &queue, &terms);
        prop_assert_eq!(outcome.placed.len() + outcome.pending.len(), queue.len());
        let mut counted: Vec<Taken> = cluster.nodes.iter().map(Taken::none).collect();
        for placed in &outcome.placed {
            let devices: std::collections::HashSet<usize> = placed.picks.iter().map(|pick| pick.device).collect();
            prop_assert_eq!(devices.len(), placed.picks.len());
            for pick in &placed.picks {
                counted[placed.node].take(&cluster.nodes[placed.node], pick);
            }
        }
        for (node, taken) in cluster.nodes.iter().zip(&counted) {
            for (device, used) in node.devices.iter().zip(&taken.devices) {
                prop_assert!(device.shared || used.holders <= 1);
                for (capacity, used) in device.capacities.iter().zip(&used.consumed) {
                    prop_assert!(*used <= capacity.value);
                }
            }
            for gpu in 0..usize::try_from(gpus).expect("few") {
                let both = taken.devices[gpu].holders > 0 && taken.devices[gpu + usize::try_from(gpus).expect("few")].holders > 0;
                prop_assert!(!both);
            }
        }
        for pending in &outcome.pending {
            let specs: Vec<_> = cluster.pods[pending.pod].claims.iter().map(|claim| cluster.claims[*claim as usize].spec.clone()).collect();
            for (place, taken) in outcome.taken.iter().enumerate() {
                let selects = |selector: u32| selections.flags(place, selector);
                let look = Look { node: &cluster.nodes[place], selects: &selects, order };
                prop_assert!(allocate(&look, &mut taken.clone(), &specs).is_none());
            }
        }
    }
}

/// The obvious way: each look computes all that it says of each node, and nothing is remembered.
fn plainly(run: &mut Run<'_>, queue: &[usize]) {
    for index in queue {
        let pod = &run.cluster.pods[*index];
        if pod.pinned {
            run.pending.push(Pending {
                pod: *index,
                why: Why::Pinned,
            });
        }
        if pod.pinned || pod.node.is_some() {
            continue;
        }
        let asked = Asked::of(run.cluster, pod);
        let (mut fits, mut short, mut looked) = (Vec::new(), false, 0);
        let total = run.cluster.nodes.len();
        while looked < total && fits.len() < run.wanted {
            let at = (run.start + looked) % total;
            looked += 1;
            if run.nodes.admits(at, &asked) {
                match run.nodes.devices(at, &asked) {
                    Some(picks) => fits.push((at, run.nodes.score(at, pod), picks)),
                    None => short = true,
                }
            }
        }
        run.start = (run.start + looked) % total;
        let most = fits.iter().map(|(_, score, _)| *score).max();
        fits.retain(|(_, score, _)| Some(*score) == most);
        if fits.is_empty() {
            let has_all_else = |at| run.nodes.admits_without_others(at, &asked);
            let why = match short {
                true => Why::Devices,
                false if (0..total).any(has_all_else) && !pod.others.is_empty() => Why::Resources,
                false => Why::Node,
            };
            run.pending.push(Pending { pod: *index, why });
            continue;
        }
        let chosen = usize::try_from(run.next() % fits.len() as u64).expect("few");
        let (node, _, picks) = fits.swap_remove(chosen);
        picks.iter().for_each(|pick| run.nodes.take(node, pick));
        run.nodes.load(node, pod);
        run.placed.push(Placed {
            pod: *index,
            node,
            picks,
        });
    }
}

prop_compose! {
    /// Nodes of three kinds and pods of few kinds, some of which are on nodes or have their devices already.
    fn clusters()(
        counts in (1_u64..5, 0_u64..5, 0_u64..5),
        claims in prop::collection::vec((1_u64..9, 1_u64..60, 0_u64..101, 1_u64..3, 0_u8..4), 1..7),
        nodes in prop::collection::vec((0_u64..4, 0_u64..4, 0_u64..9, 0_u8..8), 15),
        others in prop::collection::vec((0_u64..5, 0_u64..4), 87),
        pods in prop::collection::vec((0_u64..3, 0_u64..3, 0_u8..12, 0_usize..15, 0_usize..4), 72),
    ) -> Cluster {
        let mut text = String::from("nodes:\n");
        for (place, (count, gpus)) in [(counts.0, 2), (counts.1, 3), (counts.2, 1)].into_iter().enumerate() {
            if count > 0 {
                text += &format!("- {{name: n{place}, count: {count}, gpus: {gpus}, memory: 80Gi, slots: 3}}\n");
            }
        }
        text += "claims:\n";
        for (place, (count, memory, cores, devices, form)) in claims.iter().enumerate() {
            text += &match form {
                0 => format!("- {{name: w{place}, count: {count}, whole: true, devices: {devices}}}\n"),
                _ => format!("- {{name: s{place}, count: {count}, memory: {memory}Gi, cores: {cores}, devices: {devices}}}\n"),
            };
        }
        let mut cluster = cluster(&text);
        for (node, (cpu, memory, pods, marks)) in cluster.nodes.iter_mut().zip(nodes) {
            (node.cpu, node.memory, node.pods) = (cpu * 2000, memory << 32, pods);
            node.unschedulable = marks == 7;
            if marks & 1 == 1 {
                node.labels.insert("zone".into(), "a".into());
            }
            if marks & 2 == 2 {
                node.taints.push(Taint { key: "gpu".into(), value: String::new(), effect: "NoSchedule".into() });
            }
        }
        // Two in five nodes have none of the resource, one in five does not tell, and one in four pods asks for it.
        let (of_nodes, of_pods) = others.split_at(15);
        for (node, (count, _)) in cluster.nodes.iter_mut().zip(of_nodes) {
            node.others = match count {
                0 => None,
                1 => Some(std::collections::BTreeMap::new()),
                count => Some([("x/nic".into(), count - 2)].into()),
            };
        }
        for (pod, (count, asks)) in cluster.pods.iter_mut().zip(of_pods) {
            if *asks == 0 && *count > 0 {
                pod.others.insert("x/nic".into(), *count);
            }
        }
        let names: Vec<String> = cluster.nodes.iter().map(|node| node.name.clone()).collect();
        for (at, (pod, (cpu, memory, marks, node, device))) in cluster.pods.iter_mut().zip(pods).enumerate() {
            (pod.cpu, pod.memory) = (cpu * 700, memory << 30);
            if marks & 1 == 1 {
                pod.labels.insert("zone".into(), "a".into());
            }
            if marks & 2 == 2 {
                pod.tolerations.push(Toleration { key: "gpu".into(), exists: true, ..Toleration::default() });
            }
            let Some(name) = names.get(node).filter(|_| marks > 7) else { continue };
            match marks {
                8 => (pod.node, pod.pinned) = (Some(name.clone()), true),
                // Its claim has a device already, whether it is on the node yet or not.
                9 | 10 => {
                    cluster.claims[at].held = Some(vec![Held {
                        driver: "gpu.divvy.dev".into(),
                        pool: name.clone(),
                        device: format!("gpu-{device}-shared"),
                        consumed: vec![("gpu.divvy.dev/memory".into(), 1 << 30), ("gpu.divvy.dev/slots".into(), 1)],
                        admin: false,
                    }]);
                    pod.node = (marks == 9).then(|| name.clone());
                }
                _ => {
                    // Two claims in one pod: that of the pod before as well.
                    pod.claims.extend(at.checked_sub(1).and_then(|before| u32::try_from(before).ok()));
                }
            }
        }
        cluster
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// What is remembered changes no plan, however many kinds are remembered and however few nodes are looked for.
    #[test]
    fn the_remembered_way_places_as_the_obvious_one_does(
        cluster in clusters(),
        order in 0_usize..3,
        kept_for_whole in 0_usize..3,
        wanted in 1_usize..16,
        kinds in 0_usize..9,
        seed in any::<u64>(),
    ) {
        let terms = Terms { order: [Order::Published, Order::Fullest, Order::Emptiest][order], kept_for_whole, seed };
        let selections = Selections::of(&cluster);
        let queue: Vec<usize> = (0..cluster.pods.len()).collect();
        let run = |kinds| {
            let mut run = Run::new(&selections, &terms);
            run.kinds = Kinds::new(cluster.nodes.len()).at_most(kinds);
            run.wanted = wanted.min(cluster.nodes.len());
            run
        };
        let mut plain = run(0);
        plainly(&mut plain, &queue);
        let fast = run(kinds).all(&queue);
        prop_assert_eq!(fast.placed, plain.placed);
        prop_assert_eq!(fast.pending, plain.pending);
        prop_assert_eq!(fast.remarks, plain.remarks);
    }
}
