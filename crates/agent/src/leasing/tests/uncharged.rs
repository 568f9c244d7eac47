//! The auditor of compute: the driver's figures beside the charges.

use std::collections::HashMap;

use divvy_arbiter::{DeviceId, MILLISECOND, SECOND, TenantId, Terms};

use super::world::{Load, World, share};
use crate::api::events::EventKind;
use crate::decide::supervise::ProcessId;
use crate::decide::supervise::time::{Look, Step, Time, Used};
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

/// The figures of one process of the first slice, `used` in all, and none of the others.
fn look_at_first(world: &mut World, used: u64) {
    let id = world.tenants[0].id.clone();
    let by_slice = HashMap::from([(id.as_str(), vec![(100, Use::Total(used))])]);
    world.state.take_samples(world.now);
    world.state.compare(DeviceId(0), &by_slice, world.now);
}

/// How often it was told that a slice passes the gate.
fn accusations(world: &World) -> usize {
    let incidents = world.state.incidents.iter();
    incidents.filter(|told| told.kind == EventKind::Uncharged).count()
}

#[test]
fn a_latency_tenant_that_runs_beside_a_long_kernels_rest_passes_no_gate() {
    let mut world = World::new();
    let requests = Load::Requests(40 * MILLISECOND, 4, MILLISECOND);
    world.add(Terms::latency(share(30)), requests);
    world.add(Terms::weight(100), Load::Greedy(600 * MILLISECOND));
    let mut time = Time::default();
    let mut waited = 0;
    for _ in 0..80 {
        world.run(100 * MILLISECOND);
        let number = world.state.number(&world.tenants[0].id).expect("it leases");
        let view = world.state.arbiter.view(TenantId(number), DeviceId(0));
        let view = view.expect("on that device");
        waited = u64::try_from(view.waited).expect("seconds");
        // A device that runs both in turns gives it half of the time in which it holds its lease beside the other.
        let used = u64::try_from(view.charged).expect("seconds") + waited / 2;
        look_at_first(&mut world, used);
        let charges = world.state.charges(world.now);
        let its = charges
            .iter()
            .find(|charge| charge.slice_id == world.tenants[0].id);
        let its = its.expect("it leases");
        let step = time.look(&Look {
            at: world.now,
            used: &[(
                ProcessId {
                    pid: 100,
                    start_ticks: 1,
                },
                Used::Total(used),
            )],
            dead: 0,
            charged: its.charged,
            outlasted: its.outlasted,
            ran: false,
            share: its.share,
            counts: its.counts,
            is_open: its.is_open,
        });
        assert_eq!(step, Step::Nothing, "at {} ms", world.now / MILLISECOND);
    }
    assert!(waited > SECOND, "it ran beside the other's rest: {waited} ns");
    assert_eq!(accusations(&world), 0, "{:?}", world.state.incidents);
}

#[test]
fn launches_from_the_time_of_an_open_gate_are_no_use_past_it() {
    let mut world = World::new();
    world.add(Terms::weight(100), Load::Nothing);
    let mut used = 0;
    for _ in 0..4 {
        // Neighbours come and go. What the first launched while it was alone runs on beside the next.
        world.run(SECOND);
        used += SECOND;
        look_at_first(&mut world, used);
        let other = world.add(Terms::weight(100), Load::Greedy(KERNEL));
        for _ in 0..3 {
            world.run(600 * MILLISECOND);
            used += 600 * MILLISECOND;
            look_at_first(&mut world, used);
        }
        world.remove(other);
    }
    assert_eq!(accusations(&world), 0, "{:?}", world.state.incidents);
    // Beside one that stays, such launches have an end.
    world.add(Terms::weight(100), Load::Greedy(KERNEL));
    for _ in 0..12 {
        world.run(600 * MILLISECOND);
        used += 600 * MILLISECOND;
        look_at_first(&mut world, used);
    }
    assert_eq!(accusations(&world), 1, "{:?}", world.state.incidents);
}
