//! Agents that die under load, and their successors.

use crate::decide::supervise::ProcessId;
use crate::decide::supervise::time::{Look, Step, Time, Used};
use divvy_arbiter::{MILLISECOND, SECOND, Terms};
use divvy_ledger::Gate;

use super::world::{Load, World, share};

const KERNEL: u64 = MILLISECOND;

#[test]
fn a_hundred_agents_die_under_load_and_no_tenant_is_stuck() {
    let mut world = World::new();
    world.add(Terms::soft(share(30)), Load::Greedy(KERNEL));
    world.add(Terms::soft(share(50)), Load::Greedy(5 * MILLISECOND));
    world.add(Terms::weight(100), Load::Greedy(50_000));
    world.run(100 * MILLISECOND);
    let mut word = world.tenants[0].pages[0].grant.gate();
    for agent in 0..100 {
        world.restart_agent();
        let next = world.tenants[0].pages[0].grant.gate();
        assert!(
            next.is_since(word) && next != word,
            "agent {agent} goes on counting"
        );
        word = next;
        let before: Vec<u64> = world.tenants.iter().map(|tenant| tenant.ran).collect();
        world.run(60 * MILLISECOND + agent * 130_000);
        let stuck = world
            .tenants
            .iter()
            .zip(&before)
            .position(|(tenant, before)| tenant.ran == *before);
        assert_eq!(stuck, None, "under agent {agent}");
    }
    world.run(SECOND);
    let parts = world.shares(5 * SECOND);
    assert!(
        parts[0].abs_diff(3_000) <= 150 && parts[1].abs_diff(5_000) <= 150,
        "{parts:?}"
    );
}

#[test]
fn what_ran_when_the_agent_died_is_over_before_another_begins() {
    let mut world = World::new();
    world.add(Terms::weight(100), Load::Greedy(30 * MILLISECOND));
    world.add(Terms::weight(100), Load::Greedy(KERNEL));
    world.run(200 * MILLISECOND);
    while world.tenants[0].gate() != Gate::Leased {
        world.run(MILLISECOND / 10);
    }
    // Its kernel has just begun.
    world.run(MILLISECOND);
    world.restart_agent();
    let before = world.tenants[1].ran;
    world.run(20 * MILLISECOND);
    assert_eq!(world.tenants[1].ran, before, "the first one's kernel runs still");
    assert_eq!(world.tenants[1].gate(), Gate::Closed);
    // The first one may have its turn again.
    world.run(60 * MILLISECOND);
    assert!(world.tenants[1].ran > before);
}

#[test]
fn no_slice_waits_long_for_a_process_that_was_stopped_when_the_agent_died() {
    let mut world = World::new();
    world.add(Terms::weight(100), Load::Greedy(KERNEL));
    world.add(Terms::weight(100), Load::Greedy(KERNEL));
    world.run(SECOND);
    world.tenants[0].stopped = true;
    world.restart_agent();
    world.run(200 * MILLISECOND);
    let before = world.tenants[1].ran;
    world.run(200 * MILLISECOND);
    assert!(world.tenants[1].ran - before > 100 * MILLISECOND);
    world.tenants[0].stopped = false;
    world.run(SECOND);
    let parts = world.shares(2 * SECOND);
    assert!(parts[0].abs_diff(5_000) <= 200, "{parts:?}");
}

#[test]
fn one_that_is_alone_goes_on_without_a_pause() {
    let mut world = World::new();
    world.add(Terms::weight(100), Load::Greedy(KERNEL));
    world.run(SECOND);
    for _ in 0..10 {
        world.restart_agent();
        assert_eq!(world.tenants[0].gate(), Gate::Open);
        assert!(world.shares(50 * MILLISECOND)[0] >= 9_500);
    }
}

#[test]
fn no_slice_is_charged_for_the_time_in_which_the_agent_was_stopped() {
    for stopped in [300 * MILLISECOND, 1_500 * MILLISECOND, 2_500 * MILLISECOND] {
        let mut world = World::new();
        world.add(Terms::soft(share(30)), Load::Greedy(KERNEL));
        world.add(Terms::soft(share(70)), Load::Greedy(KERNEL));
        world.run(SECOND);
        for leaseholder in [Gate::Leased, Gate::Closed] {
            while world.tenants[0].gate() != leaseholder {
                world.run(MILLISECOND / 10);
            }
            world.agent_stopped = true;
            world.run(stopped);
            world.agent_stopped = false;
            let parts = world.shares(SECOND / 2);
            assert!(
                parts[0].abs_diff(3_000) <= 300 && parts[1].abs_diff(7_000) <= 300,
                "{parts:?} after {stopped} ns"
            );
        }
    }
}

/// Nothing of an earlier agent's leases is in this one's charges, and a launch under one of them may last.
#[test]
fn a_launch_that_outlives_its_agent_is_not_taken_for_use_past_the_gate() {
    const LONG: &str = "00000001";
    let mut world = World::new();
    world.add(Terms::hard(share(30)), Load::Endless);
    world.add(Terms::hard(share(70)), Load::Greedy(KERNEL));
    world.run(3 * SECOND);
    world.restart_agent();
    let began = world.now;
    let mut time = Time::of_adopted(began);
    for _ in 0..60 {
        world.run(100 * MILLISECOND);
        let now = world.now;
        let charges = world.state.charges(now);
        let charge = charges
            .iter()
            .find(|charge| charge.slice_id == LONG)
            .expect("it leases");
        let id = ProcessId {
            pid: 1,
            start_ticks: 1,
        };
        let used = [(id, Used::Total((now - began) / 2 + 7 * SECOND))];
        let step = time.look(&Look {
            at: now,
            used: &used,
            dead: 0,
            charged: charge.charged,
            outlasted: charge.outlasted,
            ran: false,
            share: charge.share,
            counts: charge.counts,
            is_open: charge.is_open,
        });
        assert_eq!(
            step,
            Step::Nothing,
            "{} ms: {charge:?}",
            (now - began) / MILLISECOND
        );
    }
}
