//! Shares, caps, classes: the arbiter's promises reach the pages.

use divvy_arbiter::{MICROSECOND, MILLISECOND, SECOND, Terms};

use super::world::{Load, World, share};
use crate::api::compute::ComputeStanding;
use crate::leasing::account::Hold;
use divvy_ledger::Gate;

const KERNEL: u64 = MILLISECOND;

fn near(parts: u64, percent: u64) -> bool {
    parts.abs_diff(percent * 100) <= 100
}

#[test]
fn alone_the_gate_is_open_and_nothing_is_counted() {
    let mut world = World::new();
    let one = world.add(Terms::soft(share(30)), Load::Greedy(KERNEL));
    assert_eq!(world.tenants[one].gate(), Gate::Open);
    let parts = world.shares(SECOND);
    assert!(parts[one] >= 9_900, "{parts:?}");
    assert_eq!(world.state.leaseholders.values().next().expect("one").leases, 0);

    let other = world.add(Terms::weight(100), Load::Nothing);
    world.run(100 * MILLISECOND);
    assert_ne!(world.tenants[one].gate(), Gate::Open, "two lease");
    world.remove(other);
    assert_eq!(world.tenants[one].gate(), Gate::Open, "alone again");
    assert!(world.shares(SECOND)[one] >= 9_900);
}

#[test]
fn thirty_and_seventy_are_thirty_and_seventy() {
    for (one, other) in [
        (50 * MICROSECOND, MILLISECOND),
        (20 * MILLISECOND, MILLISECOND),
        (MILLISECOND, MILLISECOND),
    ] {
        let mut world = World::new();
        world.add(Terms::soft(share(30)), Load::Greedy(one));
        world.add(Terms::soft(share(70)), Load::Greedy(other));
        world.run(SECOND);
        let parts = world.shares(10 * SECOND);
        assert!(
            near(parts[0], 30) && near(parts[1], 70),
            "{parts:?} with {one}, {other}"
        );
        // And the lists show it.
        let used = |n: usize| {
            let leaseholder = world.state.leaseholders.values().nth(n).expect("there");
            leaseholder.accounts[0].figures.window(10).used
        };
        assert!(
            used(0).abs_diff(3000) <= 150 && used(1).abs_diff(7000) <= 150,
            "{} {}",
            used(0),
            used(1)
        );
    }
}

#[test]
fn without_shares_weights_divide_and_unwanted_time_is_used() {
    let mut world = World::new();
    world.add(Terms::weight(100), Load::Greedy(KERNEL));
    world.add(Terms::weight(300), Load::Greedy(KERNEL));
    world.add(Terms::soft(share(20)), Load::Nothing);
    world.run(SECOND);
    let parts = world.shares(10 * SECOND);
    assert!(near(parts[0], 25) && near(parts[1], 75), "{parts:?}");
}

#[test]
fn a_hard_cap_holds_for_one_alone_too() {
    let mut world = World::new();
    world.add(Terms::hard(share(30)), Load::Greedy(KERNEL));
    assert_eq!(
        world.tenants[0].gate(),
        Gate::Closed,
        "nothing before the first lease"
    );
    world.run(SECOND);
    let parts = world.shares(10 * SECOND);
    assert!(parts[0] <= 3_010 && parts[0] >= 2_900, "{parts:?}");
}

#[test]
fn a_latency_critical_tenant_goes_first() {
    let mut world = World::new();
    let critical = world.add(
        Terms::latency(share(40)),
        Load::Requests(20 * MILLISECOND, 10, 500 * MICROSECOND),
    );
    world.add(Terms::weight(100), Load::Greedy(MILLISECOND));
    world.add(Terms::weight(100), Load::Greedy(50 * MICROSECOND));
    world.run(2 * SECOND);
    world.tenants[critical].latencies.clear();
    let parts = world.shares(5 * SECOND);
    let latencies = &mut world.tenants[critical].latencies;
    latencies.sort_unstable();
    let p99 = latencies[latencies.len() * 99 / 100];
    // Solo it takes 5 ms and a step for each kernel. Beside others it also takes one of their kernels, and what the
    // bound lets in.
    assert!(p99 <= 7 * MILLISECOND + 500 * MICROSECOND, "{p99} ns");
    assert!(parts[1] + parts[2] >= 6_000, "{parts:?}");
}

#[test]
fn a_resize_is_settled_within_two_hundred_milliseconds() {
    let mut world = World::new();
    world.add(Terms::soft(share(30)), Load::Greedy(KERNEL));
    world.add(Terms::soft(share(70)), Load::Greedy(KERNEL));
    world.run(2 * SECOND);
    (world.tenants[0].terms, world.tenants[1].terms) = (Terms::soft(share(80)), Terms::soft(share(20)));
    world.sync();
    world.run(200 * MILLISECOND);
    let parts = world.shares(200 * MILLISECOND);
    assert!(parts[0].abs_diff(8_000) <= 400, "{parts:?}");
}

#[test]
fn who_wants_nothing_gives_its_lease_back() {
    let mut world = World::new();
    let part_time = world.add(
        Terms::soft(share(50)),
        Load::Requests(10 * MILLISECOND, 1, MILLISECOND),
    );
    world.add(Terms::soft(share(50)), Load::Greedy(KERNEL));
    world.run(SECOND);
    let parts = world.shares(5 * SECOND);
    assert!(near(parts[part_time], 10), "{parts:?}");
    assert!(parts[1] >= 8_800, "the rest is not left idle: {parts:?}");
}

#[test]
fn what_an_open_gate_let_through_is_waited_for() {
    let mut world = World::new();
    world.add(Terms::weight(100), Load::Greedy(8 * MILLISECOND));
    world.run(100 * MILLISECOND);
    // Four kernels of the first are queued on the device.
    let second = world.add(Terms::weight(100), Load::Greedy(KERNEL));
    world.run(10 * MILLISECOND);
    let held = |world: &World| world.state.leaseholders.values().next().expect("one").accounts[0].hold;
    assert!(matches!(held(&world), Hold::Ending { .. }), "{:?}", held(&world));
    assert_eq!(world.tenants[second].ran, 0);
    world.run(40 * MILLISECOND);
    assert!(world.tenants[second].ran > 0);
    assert_eq!(world.state.overdue_total, 0);
}

#[test]
fn a_view_says_who_stands_where() {
    let mut world = World::new();
    world.add(Terms::hard(share(10)), Load::Greedy(KERNEL));
    world.add(Terms::weight(100), Load::Greedy(KERNEL));
    world.add(Terms::weight(100), Load::Nothing);
    world.run(3 * SECOND);
    let views = world.state.views(world.now);
    let by_slice: Vec<_> = views
        .iter()
        .map(|view| (view.standing, view.used_1s.unwrap_or(0), view.effective.0))
        .collect();
    assert!(views[0].queued_1s >= 8_000, "{:?}", views[0]);
    assert!(
        by_slice[0].1.abs_diff(1_000) <= 100 && by_slice[1].1 >= 8_700,
        "{by_slice:?}"
    );
    assert_eq!(by_slice[2].0, ComputeStanding::Idle);
    assert_eq!(
        by_slice.iter().map(|view| view.2).collect::<Vec<_>>(),
        [1000, 4500, 4500]
    );
    assert!(views.iter().all(|view| view.device_uuid == super::world::DEVICE));
    assert!(views[1].leases > 10 && views[1].kernel_ns == KERNEL && views[1].launched > 1000);
}
