use proptest::prelude::*;

use super::*;
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
        let placed = schedule(&cluster, &queue, &terms).placed;
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
        let outcome = schedule(&cluster, &queue, &terms);
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
            for (node, taken) in cluster.nodes.iter().zip(&outcome.taken) {
                let selects = |device: usize, selector: u32| selected(&cluster.selectors[selector as usize], &node.devices[device]);
                let look = Look { node, selects: &selects, order };
                prop_assert!(allocate(&look, &mut taken.clone(), &specs).is_none());
            }
        }
    }
}
