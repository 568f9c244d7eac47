//! The auditor of compute: the driver's figures beside the charges.

use std::collections::HashMap;

use divvy_arbiter::{DeviceId, MILLISECOND, SECOND, Terms};

use super::world::{Load, World, share};
use crate::api::events::EventKind;
use crate::leasing::Use;

const KERNEL: u64 = MILLISECOND;

/// An honest driver's figures. A process of the first slice also passes the gate for `passing` parts of 10,000 of the
/// time.
fn look(world: &mut World, passing: u64, sampled: bool) {
    let since = world.now;
    let uses: Vec<(String, Vec<(u32, Use)>)> = world
        .tenants
        .iter()
        .enumerate()
        .map(|(n, tenant)| {
            let pid = n as u32 + 100;
            let beyond = if n == 0 { passing } else { 0 };
            let of = match sampled {
                false => Use::Total(tenant.ran + since * beyond / 10_000),
                true => Use::Rate(5_000 + beyond as u32),
            };
            (tenant.id.clone(), vec![(pid, of)])
        })
        .collect();
    let by_slice: HashMap<&str, Vec<(u32, Use)>> = uses
        .iter()
        .map(|(id, uses)| (id.as_str(), uses.clone()))
        .collect();
    world.state.take_samples(world.now);
    world.state.compare(DeviceId(0), &by_slice, world.now);
}

fn two() -> World {
    let mut world = World::new();
    world.add(Terms::soft(share(50)), Load::Greedy(KERNEL));
    world.add(Terms::soft(share(50)), Load::Greedy(KERNEL));
    world.run(SECOND);
    world
}

#[test]
fn a_tenant_that_keeps_to_the_gate_is_not_told_of() {
    for sampled in [false, true] {
        let mut world = two();
        for _ in 0..6 {
            look(&mut world, 0, sampled);
            world.run(SECOND);
        }
        assert!(world.state.incidents.is_empty(), "{:?}", world.state.incidents);
        assert_eq!(world.state.uncharged_ns, 0);
    }
}

#[test]
fn a_tenant_that_passes_it_is_told_of_once_and_counted_on() {
    for (sampled, beyond) in [(false, 2_000), (true, 4_500)] {
        let mut world = two();
        for _ in 0..6 {
            look(&mut world, beyond, sampled);
            world.run(SECOND);
        }
        let kinds: Vec<EventKind> = world
            .state
            .incidents
            .iter()
            .map(|incident| incident.kind)
            .collect();
        assert_eq!(kinds, [EventKind::Uncharged], "sampled: {sampled}");
        let views = world.state.views(world.now);
        assert!(
            views[0].uncharged_ns > 500 * MILLISECOND,
            "{}",
            views[0].uncharged_ns
        );
        assert_eq!(views[1].uncharged_ns, 0);
        assert!(
            world
                .state
                .leaseholders
                .values()
                .next()
                .expect("one")
                .is_uncharged
        );
        assert_eq!(world.state.uncharged_ns, views[0].uncharged_ns);
    }
}

#[test]
fn one_that_is_alone_is_not_compared() {
    let mut world = World::new();
    world.add(Terms::weight(100), Load::Greedy(KERNEL));
    for _ in 0..4 {
        look(&mut world, 5_000, false);
        world.run(SECOND);
    }
    assert!(world.state.incidents.is_empty());
}
