//! Gangs beside latency-critical tenants that keep one of their devices busy: each tenant with a share runs.

use divvy_arbiter::sim::{Actor, Lengths, Load, Outcome, Scenario, Sharing, run};
use divvy_arbiter::{Cap, Class, MICROSECOND, Part, SECOND, Share, Terms};

const LASTS: u64 = 20 * SECOND;

fn percent(percent: u16) -> Share {
    Share::new(percent * 100).expect("a share")
}

fn latency(share: u16) -> Terms {
    Terms::latency(percent(share))
}

fn hard(share: u16) -> Terms {
    Terms {
        part: Part::Share(percent(share)),
        cap: Cap::Hard,
        class: Class::BestEffort,
    }
}

fn greedy(terms: Terms, devices: &[u32]) -> Actor {
    let load = Load::Greedy(Lengths::Fixed(500 * MICROSECOND));
    Actor::new(terms, load).on(devices.iter().copied())
}

fn play(devices: u32, actors: Vec<Actor>) -> Outcome {
    run(&Scenario {
        devices,
        lasts: LASTS,
        ..Scenario::new(Sharing::leases(), actors)
    })
}

/// What an actor got of one device, percent.
fn got(outcome: &Outcome, actor: usize, devices: u64) -> f64 {
    100.0 * outcome.actors[actor].busy as f64 / (LASTS * devices) as f64
}

/// Device 0 is promised to latency-critical tenants to the last percent, and three of them want device 1 with it.
fn full_first_device() -> Vec<Actor> {
    vec![
        greedy(latency(32), &[0]),
        greedy(latency(22), &[0, 1]),
        greedy(latency(9), &[0, 1]),
        greedy(latency(37), &[0, 1]),
    ]
}

#[test]
fn a_gang_beside_latency_critical_gangs_has_what_they_leave() {
    let actors = [full_first_device(), vec![greedy(hard(5), &[1, 2])]].concat();
    let outcome = play(3, actors);
    // Device 1 is left to it for a third of the time, and a hard cap saves up no more than a quantum.
    assert!(got(&outcome, 4, 2) > 2.0, "{} %", got(&outcome, 4, 2));
    assert!(got(&outcome, 0, 1) > 29.0, "{} %", got(&outcome, 0, 1));
}

#[test]
fn a_device_that_waits_for_a_latency_critical_gangs_other_device_is_used() {
    let actors = [full_first_device(), vec![greedy(Terms::soft(percent(25)), &[1])]].concat();
    let outcome = play(2, actors);
    assert!(got(&outcome, 4, 1) > 25.0, "{} %", got(&outcome, 4, 1));
}

#[test]
fn a_gang_whose_devices_are_never_free_together_waits_a_few_times_its_share_s_period() {
    // Others want device 2 at all times, and none of them is held back for a claim behind another.
    let single = || greedy(Terms::soft(percent(30)), &[2]);
    let others = vec![greedy(hard(5), &[1, 2]), single(), single()];
    let outcome = play(3, [full_first_device(), others].concat());
    // A quantum of 5 ms accrues in 100 ms; with four times that and its turn in between, it waits half a second.
    let gap = outcome.longest_gap(4, SECOND);
    assert!(gap < SECOND, "{gap} ns");
}

#[test]
fn a_latency_critical_gang_runs_though_one_of_its_devices_is_always_urgent() {
    let actors = vec![
        greedy(latency(60), &[0]),
        greedy(latency(60), &[1]).from(SECOND / 2),
        greedy(latency(40), &[0, 1]).from(SECOND / 4),
    ];
    let outcome = play(2, actors);
    for (actor, devices, least) in [(0, 1, 57.0), (1, 1, 57.0), (2, 2, 37.0)] {
        let got = got(&outcome, actor, devices);
        assert!(got > least, "{actor}: {got} %");
    }
    let gap = outcome.longest_gap(2, SECOND);
    assert!(gap < 3 * SECOND / 2, "{gap} ns");
}
