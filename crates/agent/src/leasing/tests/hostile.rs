//! Tenants that are stopped, are killed, never end, or lie.

use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use divvy_arbiter::{MILLISECOND, SECOND, Terms};
use divvy_ledger::{Gate, GateWord};

use super::threads::Host;
use super::world::{A_PID, Load, World, share};
use crate::api::events::EventKind;
use crate::leasing::listener::MOST;

const KERNEL: u64 = MILLISECOND;

fn kinds(world: &mut World) -> Vec<EventKind> {
    let incidents = std::mem::take(&mut world.state.incidents);
    incidents.iter().map(|incident| incident.kind).collect()
}

fn two(first: Load) -> World {
    let mut world = World::new();
    world.add(Terms::soft(share(50)), first);
    world.add(Terms::soft(share(50)), Load::Greedy(KERNEL));
    world
}

#[test]
fn a_killed_holder_costs_the_others_no_fifty_milliseconds() {
    let mut world = two(Load::Greedy(KERNEL));
    world.run(SECOND);
    while world.tenants[0].gate() != Gate::Leased {
        world.run(MILLISECOND / 10);
    }
    world.kill(0);
    // The kernel or the clock tells of the death: the loop is told to reap, and looks.
    world.tenants[0].pages[0].ledger.reap().expect("reaped");
    world.ring(0);
    let before = world.tenants[1].ran;
    world.run(100 * MILLISECOND);
    assert!(world.tenants[1].ran - before >= 50 * MILLISECOND);
    assert!(kinds(&mut world).is_empty(), "no lease was outlasted");
    assert!(
        world.shares(SECOND)[1] >= 9_500,
        "the slice is there, and wants nothing"
    );
}

#[test]
fn no_slice_waits_for_a_stopped_holder_and_it_comes_back() {
    let mut world = two(Load::Greedy(KERNEL));
    world.run(SECOND);
    while world.tenants[0].gate() != Gate::Leased {
        world.run(MILLISECOND / 10);
    }
    world.tenants[0].stopped = true;
    world.state.is_stopped = |pid| pid == A_PID;
    let before = world.tenants[1].ran;
    world.run(200 * MILLISECOND);
    assert!(
        world.tenants[1].ran - before >= 145 * MILLISECOND,
        "5 ms of lease, 40 of expiry"
    );
    let told = &world.state.incidents.last().expect("an event").message;
    assert!(told.starts_with("its process 4711 is stopped"), "{told}");
    assert_eq!(kinds(&mut world), [EventKind::Overdue, EventKind::Expired]);
    assert!(world.state.leaseholders.values().next().expect("one").overdue);
    world.tenants[0].stopped = false;
    world.run(SECOND);
    assert_eq!(kinds(&mut world), [EventKind::Recovered]);
    let parts = world.shares(5 * SECOND);
    assert!(parts[0].abs_diff(5_000) <= 200, "{parts:?}");
}

#[test]
fn an_endless_kernel_is_told_of_and_its_slice_pays() {
    let mut world = two(Load::Endless);
    world.run(2 * SECOND);
    let told = &world.state.incidents.last().expect("an event").message;
    assert!(told.starts_with("its work outlasts its lease"), "{told}");
    assert_eq!(kinds(&mut world), [EventKind::Overdue, EventKind::Expired]);
    let views = world.state.views(world.now);
    // It is charged for all of the time for which both run.
    assert!(
        views[0].charged_ns > SECOND && views[0].debt_ns > 0,
        "{:?}",
        views[0]
    );
    assert!(
        world.tenants[1].ran > 1_800 * MILLISECOND,
        "{}",
        world.tenants[1].ran
    );
    assert_eq!((views[0].overdue_total, views[0].expired_total), (1, 1));
    assert!(matches!(world.tenants[1].gate(), Gate::Leased | Gate::Closed));
    // When it is killed, its debt goes with it and its slot is free.
    world.kill(0);
    world.tenants[0].pages[0].ledger.reap().expect("reaped");
    world.ring(0);
    assert_eq!(kinds(&mut world), [EventKind::Recovered]);
}

#[test]
fn one_that_stops_calling_after_it_got_a_lease_loses_it_with_its_end() {
    let mut world = two(Load::Greedy(KERNEL));
    world.run(100 * MILLISECOND);
    // It reports that it wants the device, and never launches.
    world.tenants[0].load = Load::Nothing;
    world.run(10 * MILLISECOND);
    let line = |world: &World| {
        world.tenants[0].pages[0]
            .ledger
            .activities()
            .next()
            .expect("there")
    };
    assert!(!line(&world).busy);
    let parts = world.shares(SECOND);
    assert!(parts[1] >= 9_500, "{parts:?}");
}

#[test]
fn a_corrupted_record_harms_its_own_slice_only() {
    let mut world = two(Load::Greedy(KERNEL));
    world.run(SECOND);
    world.tenants[0].stopped = true;
    let mut noise = 0x2545_f491_4f6c_dd1d_u64;
    let before = world.tenants[1].ran;
    let begin = world.now;
    for _ in 0..20_000 {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        let tenant = &world.tenants[0];
        let slots = tenant.corrupts();
        slots.set(noise & 1 == 0, noise & 2 == 0);
        slots.acknowledge(GateWord::from_bits((noise >> 8) as u32));
        slots.report(noise, u64::MAX - (noise >> 60), noise.rotate_left(17));
        slots.count(noise.rotate_left(31), noise);
        world.ring(0);
        world.run(100_000);
    }
    let had = (world.tenants[1].ran - before) * 10_000 / (world.now - begin);
    assert!(had >= 4_700, "{had}: no less than its share");
    let views = world.state.views(world.now);
    assert!(views.iter().all(|view| view.charged_ns <= world.now), "{views:?}");
}

#[test]
fn one_that_rings_without_end_and_wants_by_turns_takes_no_more_than_its_share() {
    let mut world = World::new();
    world.add(Terms::soft(share(30)), Load::Nothing);
    world.add(Terms::soft(share(70)), Load::Greedy(KERNEL));
    world.run(SECOND);
    world.tenants[0].stopped = true;
    let (before, begin) = (world.tenants[1].ran, world.now);
    for n in 0..50_000_u64 {
        world.tenants[0].corrupts().set(n % 2 == 0, false);
        world.ring(0);
        world.run(40_000);
    }
    let had = (world.tenants[1].ran - before) * 10_000 / (world.now - begin);
    assert!(had >= 6_500, "{had}");
}

/// The place of the first process's number in the page, as the page server sees it, and of its start time.
const HOST_PID: u64 = 4096 + 8;
const CLAIMED_AT: u64 = 4096 + 16;

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_tenant_that_is_another_process_at_each_look_fills_no_table_of_descriptors() {
    let half = Terms::soft(share(50));
    let mut host = Host::new(&[half, half]);
    let watcher = host.leasing.watcher.clone().expect("watches processes");
    let tenant = host.attach(1);
    let page = std::fs::File::from(host.slices[1].0[0].ledger.share().expect("shared"));
    let mut others: Vec<Child> = (0..2 * MOST)
        .map(|_| Command::new("sleep").arg("120").spawn().expect("sleep"))
        .collect();
    let pids: Vec<u32> = others
        .iter()
        .map(Child::id)
        .chain([1, 0x3fff_ffff, u32::MAX])
        .collect();
    let say = |time: u64, pid: u32| {
        page.write_at(&time.to_ne_bytes(), CLAIMED_AT).expect("written");
        page.write_at(&pid.to_ne_bytes(), HOST_PID).expect("written");
        tenant.slot.ring();
    };
    let mut most = 0;
    for (time, pid) in (1..=100_000).zip(pids.iter().cycle()) {
        say(time, *pid);
        most = most.max(watcher.watching());
    }
    let told = host.slices[1].0[0].ledger.activities().next().expect("a process");
    assert_eq!(told.claimed_at_ns, 100_000, "the page is laid out otherwise");
    assert!((1..=MOST).contains(&most), "{most} descriptors");
    let mut time = 100_000;
    let mut next = pids.iter().cycle();
    until("as many as may be", || {
        time += 1;
        say(time, *next.next().expect("for ever"));
        watcher.watching() == MOST
    });
    // A slice that ends frees its part for others.
    for other in &mut others {
        other.kill().expect("killed");
        other.wait().expect("waited for");
    }
    until("the dead are let go of", || watcher.watching() <= 1);
    until("another is watched", || {
        time += 1;
        say(time, std::process::id());
        watcher.watching() >= 1
    });
    host.slices.pop();
    host.sync();
    until("an ended slice's are let go of", || watcher.watching() == 0);
}

/// What root makes is for many, and they do not pay for one another.
#[test]
fn the_next_slice_of_an_account_owes_what_the_one_before_owed_and_not_that_of_one_which_root_made() {
    // The second has two subordinate users, which count for the same one.
    for (uids, account) in [([1000, 1000], 1000), ([100_007, 100_008], 1000), ([0, 0], 0)] {
        let mut world = World::new();
        (world.uid, world.account) = (uids[0], account);
        world.add(Terms::hard(share(70)), Load::Greedy(KERNEL));
        let endless = world.add(Terms::hard(share(30)), Load::Endless);
        world.run(5 * SECOND);
        world.remove(endless);
        world.uid = uids[1];
        let next = world.add(Terms::hard(share(30)), Load::Greedy(KERNEL));
        let id = world.tenants[next].id.clone();
        let now = world.now;
        let views = world.state.views(now);
        let view = views.iter().find(|view| view.slice_id == id).expect("it leases");
        match account {
            0 => assert_eq!(view.debt_ns, 0),
            _ => assert!(view.debt_ns > 2 * SECOND, "{} ns", view.debt_ns),
        }
    }
}
