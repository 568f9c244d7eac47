use super::*;
use crate::read::read;

fn planned(text: &str) -> Plan {
    let text = format!("format: divvy/plan\n{text}");
    let cluster = read(&[("plan".into(), text)]).expect("understood");
    plan(
        &cluster,
        Options {
            seed: 7,
            try_others: true,
        },
    )
}

#[test]
fn fragmentation_counts_what_no_slice_can_have() {
    let plan = planned(
        "nodes: [{name: n, gpus: 3, memory: 80Gi, slots: 4}]\n\
         claims: [{name: busy, memory: 10Gi, cores: 100}, {name: all, whole: true}]",
    );
    let left = &plan.fragmentation;
    assert_eq!(
        (left.free_devices, left.shared_devices, left.whole_devices),
        (1, 1, 1)
    );
    assert_eq!(left.free_memory_bytes, 150 << 30);
    assert_eq!(
        (left.stranded_memory_bytes, left.largest_free_memory_bytes),
        (70 << 30, 80 << 30)
    );
    assert_eq!((left.free_cores_percent, left.broken_percent), (100, 46.7));
    assert!(plan.alternatives.is_empty(), "all have a place");
}

#[test]
fn a_partition_or_an_order_that_places_more_is_found() {
    // Small slices first, one on each node's device by chance: then no node has a device left for a whole claim.
    let plan = planned(
        "nodes: [{name: n, count: 8, gpus: 1, memory: 80Gi}]\n\
         claims: [{name: small, count: 8, memory: 1Gi, cores: 1}, {name: all, count: 6, whole: true}]",
    );
    assert!(plan.placed < 14, "{}", plan.placed);
    let best = &plan.alternatives[0];
    assert_eq!(
        (best.placed, best.more),
        (14, 14 - i64::try_from(plan.placed).expect("few"))
    );
    let names: Vec<&str> = plan.alternatives.iter().map(|one| one.name.as_str()).collect();
    assert!(
        names.contains(&"partition") && names.contains(&"largest-first"),
        "{names:?}"
    );
    assert!(
        plan.alternatives
            .is_sorted_by_key(|one| std::cmp::Reverse(one.placed))
    );
    assert_eq!(plan.pending[0].reason, "devices");
    assert!(plan.fragmentation.broken_percent > 0.0);
}
