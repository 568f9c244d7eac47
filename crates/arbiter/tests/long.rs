//! Launches of tens of milliseconds to a second: shares hold, caps waste nothing, and a lease outlives its end for as
//! long as its launch should last.

use divvy_arbiter::sim::{Actor, Lengths, Load, Outcome, Scenario, Sharing, Step, Turn, run};
use divvy_arbiter::{
    Arbiter, Decision, DeviceId, Event, MILLISECOND, Nanos, SECOND, Settings, Share, TenantId, Terms,
};

type Way = fn(Share) -> Terms;

const WAYS: [(&str, Way); 2] = [("soft", Terms::soft), ("hard", Terms::hard)];

fn share(percent: u16) -> Share {
    Share::new(percent * 100).expect("a share")
}

fn scenario(way: Way, split: &[u16], lengths: &[Lengths], lasts: Nanos) -> Scenario {
    let actors = split
        .iter()
        .zip(lengths.iter().cycle())
        .map(|(&percent, lengths)| Actor::new(way(share(percent)), Load::Greedy(lengths.clone())));
    Scenario {
        lasts,
        ..Scenario::new(Sharing::leases(), actors.collect())
    }
}

/// The shares are right over a window, to a point or a launch; the device is used, and no lease expires.
fn check(what: &str, split: &[u16], longest: Nanos, outcome: &Outcome) {
    let from = outcome.lasted / 10;
    let shares: Vec<f64> = split.iter().map(|&percent| f64::from(percent)).collect();
    for window in [10 * SECOND, outcome.lasted - from] {
        let error = outcome.error(&shares, from, window, false);
        let launch = longest as f64 * 100.0 / window as f64;
        assert!(
            error <= launch.max(1.0),
            "{what}: {error} points over {window} ns"
        );
    }
    let kept = outcome.conservation();
    assert!(kept >= 97.0, "{what}: {kept} % of the device used");
    let expired =
        |(at, decision): &&(Nanos, Decision)| *at > from && matches!(decision, Decision::Expire { .. });
    assert_eq!(outcome.incidents.iter().filter(expired).count(), 0, "{what}");
    assert!(outcome.refusals.is_empty(), "{what}");
}

#[test]
fn shares_hold_for_launches_of_any_length() {
    for ms in [40, 80, 300, 1000] {
        for split in [vec![30, 70], vec![50, 50], vec![20, 30, 50], vec![25; 4]] {
            for (name, way) in WAYS {
                let length = ms * MILLISECOND;
                let lasts = 60 * SECOND.max(length * 4);
                let outcome = run(&scenario(way, &split, &[Lengths::Fixed(length)], lasts));
                check(&format!("{name} {ms} ms {split:?}"), &split, length, &outcome);
            }
        }
    }
}

#[test]
fn one_tenant_of_long_launches_and_three_of_short_ones_have_their_shares() {
    let lengths = [
        Lengths::Fixed(300 * MILLISECOND),
        Lengths::Fixed(MILLISECOND),
        Lengths::mixed(),
        Lengths::Fixed(5 * MILLISECOND),
    ];
    for (name, way) in WAYS {
        let split = [40, 20, 10, 30];
        let outcome = run(&scenario(way, &split, &lengths, 120 * SECOND));
        check(name, &split, 300 * MILLISECOND, &outcome);
    }
}

#[test]
fn an_hour_of_launches_of_random_lengths_leaves_shares_as_they_should_be() {
    let any = Lengths::Uniform(MILLISECOND / 20, SECOND);
    let lengths = [any.clone(), Lengths::mixed(), any];
    for (name, way) in WAYS {
        let split = [30, 20, 50];
        let outcome = run(&Scenario {
            bin: 10 * MILLISECOND,
            ..scenario(way, &split, &lengths, 3600 * SECOND)
        });
        check(name, &split, SECOND, &outcome);
    }
}

/// A tenth to nearly twice of what a launch takes: arguments change lengths, and clocks do.
#[test]
fn wrong_estimates_of_long_launches_cost_no_share() {
    for (name, way) in WAYS {
        let split = [30, 70];
        let lengths = [Lengths::Uniform(MILLISECOND, 300 * MILLISECOND)];
        let mut scenario = scenario(way, &split, &lengths, 120 * SECOND);
        scenario.host.estimate_error = 90;
        check(name, &split, 300 * MILLISECOND, &run(&scenario));
    }
}

/// No gate knows how long a launch takes before the first one is over, and the device runs in turns what is in flight.
#[test]
fn first_launches_of_unknown_length_run_in_turns_and_cost_what_they_took() {
    for (name, way) in WAYS {
        for split in [vec![30, 70], vec![20, 30, 50], vec![25; 4]] {
            let lengths = [Lengths::Fixed(SECOND)];
            let mut scenario = scenario(way, &split, &lengths, 72 * SECOND);
            scenario.host.learns = true;
            scenario.host.slice = Some(2 * MILLISECOND);
            let outcome = run(&scenario);
            let shares: Vec<f64> = split.iter().map(|&percent| f64::from(percent)).collect();
            let error = outcome.error(&shares, 12 * SECOND, 60 * SECOND, false);
            assert!(error <= 1.7, "{name} {split:?}: {error} points");
            let kept = outcome.conservation();
            assert!(kept >= 97.0, "{name} {split:?}: {kept} % of the device used");
            // The first launch of each, and no more.
            let last = outcome.overlaps.last().map_or(0, |&(_, to)| to);
            let first = split.len() as Nanos * SECOND + SECOND / 2;
            assert!(last <= first, "{name} {split:?}: {last} ns");
        }
    }
}

#[test]
fn a_first_launch_of_unknown_length_costs_itself() {
    // Its estimate says a tenth of a millisecond, and it never ends: others go on at once.
    let mut arbiter = Arbiter::new(Settings::default(), 1);
    assert_eq!(waited(&mut arbiter, 100_000), 40 * MILLISECOND);
    // One that is known to take 300 ms is waited for, and so is the next one, though its estimate is wrong.
    let mut arbiter = Arbiter::new(Settings::default(), 1);
    assert_eq!(waited(&mut arbiter, 300 * MILLISECOND), 620 * MILLISECOND);
    let again = waited(&mut arbiter, 0);
    assert!(
        (1100 * MILLISECOND..=1260 * MILLISECOND).contains(&again),
        "{again} ns"
    );
    // A word alone is believed up to eight times what was seen of the tenant, and no tenant is waited for beyond the longest launch.
    let mut arbiter = Arbiter::new(Settings::default(), 1);
    assert_eq!(waited(&mut arbiter, 3600 * SECOND), 660 * MILLISECOND);
    let again = waited(&mut arbiter, 3600 * SECOND);
    assert_eq!(again, 8020 * MILLISECOND, "it paid for the first");
}

/// How long after its end the lease of a tenant with this much work in flight is waited for. The tenant comes and goes
/// on, and releases just as its lease expires.
fn waited(arbiter: &mut Arbiter, in_flight: Nanos) -> Nanos {
    let device = DeviceId(0);
    let (tenant, other) = (TenantId(1), TenantId(2));
    let mut now = arbiter.deadline().unwrap_or(0) + SECOND;
    for tenant in [tenant, other] {
        let terms = Terms::weight(1);
        let devices = vec![device];
        // The second time they are known.
        drop(arbiter.handle(
            now,
            &Event::Arrived {
                tenant,
                devices,
                terms,
            },
        ));
    }
    for event in [
        Event::Idle { tenant: other },
        Event::Ready { tenant },
        Event::Ready { tenant: other },
        Event::Report {
            tenant,
            device,
            busy: 0,
            kernel: 0,
            in_flight,
        },
    ] {
        arbiter.handle(now, &event).expect("taken");
    }
    let mut ended = None;
    for _ in 0..200 {
        now = arbiter.deadline().expect("a lease is out").max(now);
        for decision in arbiter.handle(now, &Event::Time).expect("time") {
            match decision {
                Decision::Overdue { ended: at, .. } => ended = Some(at),
                Decision::Expire { .. } => {
                    let busy = 0;
                    arbiter
                        .handle(now, &Event::Released { tenant, device, busy })
                        .expect("released");
                    arbiter.handle(now, &Event::Idle { tenant }).expect("idle");
                    return now - ended.expect("reported before");
                }
                _ => {}
            }
        }
    }
    panic!("the lease never expired");
}

#[test]
fn stuck_stopped_and_killed_holders_among_long_launches_are_told_apart_soon() {
    for turn in [Turn::Stop, Turn::Kill] {
        for offset in 0..10 {
            let lengths = [Lengths::Fixed(300 * MILLISECOND)];
            let mut scenario = scenario(Terms::soft, &[30, 30, 40], &lengths, 20 * SECOND);
            scenario.steps = vec![Step {
                at: 6 * SECOND + offset * 77 * MILLISECOND,
                actor: 0,
                turn: turn.clone(),
            }];
            let outcome = run(&scenario);
            for other in [1, 2] {
                // Its own turn comes after the stopped one's and the other's launch.
                let gap = outcome.longest_gap(other, 5 * SECOND);
                assert!(gap <= 2 * SECOND, "{turn:?}: {gap} ns");
            }
            let both =
                outcome.percent(1, 10 * SECOND, 20 * SECOND) + outcome.percent(2, 10 * SECOND, 20 * SECOND);
            assert!(both > 97.0, "{turn:?}: {both} %");
        }
    }
    // A kernel that never ends, in a tenant that was never seen before.
    let mut scenario = scenario(
        Terms::soft,
        &[30, 40],
        &[Lengths::Fixed(300 * MILLISECOND)],
        20 * SECOND,
    );
    scenario
        .actors
        .push(Actor::new(Terms::soft(share(30)), Load::Endless).from(6 * SECOND));
    scenario.steps = vec![Step {
        at: 12 * SECOND,
        actor: 2,
        turn: Turn::Kill,
    }];
    let outcome = run(&scenario);
    let expired = outcome
        .incidents
        .iter()
        .find(|(_, decision)| matches!(decision, Decision::Expire { tenant, .. } if *tenant == TenantId(2)));
    let (at, _) = expired.expect("it is told apart");
    assert!(*at <= 8 * SECOND, "{at} ns");
}

#[test]
fn a_gang_of_long_launches_and_tenants_of_short_ones_have_their_shares() {
    for (name, way) in WAYS {
        let half = || way(share(50));
        let long = Load::Greedy(Lengths::Fixed(300 * MILLISECOND));
        let short = || Load::Greedy(Lengths::Fixed(MILLISECOND));
        let mut scenario = scenario(way, &[], &[], 60 * SECOND);
        scenario.devices = 2;
        scenario.actors = vec![
            Actor::new(half(), long).on([0, 1]),
            Actor::new(half(), short()).on([0]),
            Actor::new(half(), short()).on([1]),
        ];
        let outcome = run(&scenario);
        // The gang's use is of both devices.
        for (actor, share) in [(0, 100.0), (1, 50.0), (2, 50.0)] {
            let got = outcome.percent(actor, 10 * SECOND, 60 * SECOND);
            assert!((got - share).abs() <= share / 50.0, "{name} {actor}: {got} %");
        }
    }
}

#[test]
fn a_latency_tenant_waits_for_one_long_launch_at_most() {
    for ms in [80, 300] {
        let lengths = [Lengths::Fixed(ms * MILLISECOND)];
        // So seldom that no request waits for the one before.
        let mut scenario = scenario(Terms::soft, &[30, 30], &lengths, 9000 * SECOND);
        scenario.bin = SECOND;
        let critical = Terms::latency(share(40));
        scenario.actors.push(Actor::new(
            critical,
            Load::Requests {
                every: 30 * SECOND,
                kernels: 10,
                lengths: Lengths::Fixed(MILLISECOND / 2),
            },
        ));
        let alone = Scenario {
            actors: scenario.actors[2..].to_vec(),
            ..scenario.clone()
        };
        let p99 = |outcome: &Outcome, actor: usize| {
            divvy_arbiter::sim::percentile(&outcome.actors[actor].latencies, 99.0)
        };
        let (beside, alone) = (p99(&run(&scenario), 2), p99(&run(&alone), 0));
        let allowed = alone + (ms + 1) * MILLISECOND;
        assert!(beside <= allowed, "{ms} ms: {beside} ns of {allowed}");
    }
}

/// Estimates of such launches are wrong every other time, and the device runs in turns what is in flight.
#[test]
fn a_tenant_that_alternates_a_microsecond_and_a_second_takes_nothing_from_others() {
    for (name, way) in WAYS {
        for learns in [
            None,
            Some(Lengths::OneOf as fn(_) -> _),
            Some(Lengths::OfOne as fn(_) -> _),
        ] {
            let of = learns.unwrap_or(Lengths::OneOf as fn(_) -> _);
            let lengths = [of(vec![1000, SECOND]), Lengths::Fixed(MILLISECOND)];
            let mut scenario = scenario(way, &[30, 70], &lengths, 300 * SECOND);
            scenario.host.learns = learns.is_some();
            scenario.host.slice = Some(2 * MILLISECOND);
            let outcome = run(&scenario);
            let got = outcome.percent(1, 30 * SECOND, 300 * SECOND);
            let what = format!("{name}, {:?}, learns: {}", lengths[0], learns.is_some());
            assert!(got >= 69.0, "{what}: the honest one got {got} %");
            // Each launch of a second is waited for, and none is queued behind another one.
            let late = outcome.overlaps.iter().filter(|(from, _)| *from > 30 * SECOND);
            assert_eq!(late.count(), 0, "{what}: {:?}", outcome.overlaps);
        }
    }
}

/// No gate can know its length, and no lease waits for it for longer than eight seconds.
#[test]
fn a_launch_of_an_hour_costs_others_a_few_seconds_and_its_tenant_the_hour() {
    for (name, way) in WAYS {
        let lengths = [Lengths::Fixed(3600 * SECOND), Lengths::Fixed(MILLISECOND)];
        let mut scenario = scenario(way, &[30, 60], &lengths, 7200 * SECOND);
        scenario.bin = SECOND;
        scenario.host.learns = true;
        scenario.host.slice = Some(2 * MILLISECOND);
        let outcome = run(&scenario);
        let gap = outcome.longest_gap(1, 0);
        assert!(gap <= 9 * SECOND, "{name}: {gap} ns");
        // The hardware runs both in turns, and the launch's tenant pays for all of the time. A hard cap pays for all of its
        // own leases as well: whether the launch had half of them is only known once it is over.
        let got = outcome.percent(1, 10 * SECOND, 7200 * SECOND);
        let least = if name == "hard" { 30.0 } else { 49.0 };
        assert!(got >= least, "{name}: {got} %");
        let actor = &outcome.actors[0];
        assert!(
            actor.charged + u128::from(SECOND) >= u128::from(actor.busy),
            "{name}"
        );
    }
}

/// A tenant that says it has years of work in flight whenever its lease ends, and lets go only when the lease expires.
#[test]
fn a_lie_about_work_in_flight_is_paid_for() {
    for (name, way) in WAYS {
        let mut arbiter = Arbiter::new(Settings::default(), 1);
        let (liar, honest, device) = (TenantId(1), TenantId(2), DeviceId(0));
        let mut now = SECOND;
        let mut decisions = Vec::new();
        for (tenant, percent) in [(liar, 30), (honest, 70)] {
            let arrived = Event::Arrived {
                tenant,
                devices: vec![device],
                terms: way(share(percent)),
            };
            arbiter.handle(now, &arrived).expect("it arrives");
            decisions.extend(
                arbiter
                    .handle(now, &Event::Ready { tenant })
                    .expect("it is ready"),
            );
        }
        let (mut holds, mut had, mut waited, mut longest) = ([None; 2], [0, 0], 0, 0);
        let end = now + 600 * SECOND;
        while now < end {
            for decision in std::mem::take(&mut decisions) {
                match decision {
                    Decision::Grant { tenant, until, .. } => holds[tenant.0 as usize - 1] = Some(until),
                    // It shares the device from now on: it lets go, and asks again.
                    Decision::Expire { .. } => holds[0] = Some(0),
                    _ => {}
                }
            }
            let before = now;
            now = arbiter
                .deadline()
                .unwrap_or(now + MILLISECOND)
                .clamp(now + 1, now + MILLISECOND);
            for (n, hold) in holds.iter().enumerate() {
                had[n] += if hold.is_some() { now - before } else { 0 };
            }
            waited = if holds[1].is_some() {
                0
            } else {
                waited + now - before
            };
            longest = longest.max(waited);
            let mut events = vec![Event::Time];
            if holds[1].is_some_and(|until| until <= now) {
                holds[1] = None;
                events.push(Event::Released {
                    tenant: honest,
                    device,
                    busy: 0,
                });
            }
            match holds[0] {
                Some(0) => {
                    holds[0] = None;
                    events.push(Event::Released {
                        tenant: liar,
                        device,
                        busy: 0,
                    });
                }
                Some(until) if until <= now => events.push(Event::Report {
                    tenant: liar,
                    device,
                    busy: 0,
                    kernel: 0,
                    in_flight: Nanos::MAX,
                }),
                _ => {}
            }
            for event in &events {
                decisions.extend(arbiter.handle(now, event).expect("it makes sense"));
            }
        }
        // Twice the longest launch that is waited for, and a little.
        assert!(longest <= 9 * SECOND, "{name}: it waited {longest} ns");
        let part = had[1] * 100 / (had[0] + had[1]);
        assert!(part >= 68, "{name}: the honest one had {part} %");
    }
}
