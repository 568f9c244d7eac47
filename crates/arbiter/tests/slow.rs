//! A busy machine: each change of holder wakes three threads late. The quantum follows what that costs, within bounds.

use divvy_arbiter::sim::{Actor, Host, Lengths, Load, Outcome, Scenario, Sharing, percentile, run};
use divvy_arbiter::{
    Arbiter, Decision, DeviceId, Event, MICROSECOND, MILLISECOND, Nanos, SECOND, Settings, Share, TenantId,
    Terms,
};

type Way = fn(Share) -> Terms;

const WAYS: [(&str, Way); 2] = [("soft", Terms::soft), ("hard", Terms::hard)];

/// Some 450 µs at each change of holder.
fn busy() -> Host {
    Host {
        hop: 100 * MICROSECOND,
        alarm: 150 * MICROSECOND,
        notice: 100 * MICROSECOND,
        ..Host::default()
    }
}

fn play(way: Way, parts: &[u16], lengths: &[Lengths]) -> Outcome {
    let actors = parts.iter().zip(lengths.iter().cycle()).map(|(&parts, lengths)| {
        let share = Share::new(parts).expect("a share");
        Actor::new(way(share), Load::Greedy(lengths.clone()))
    });
    let mut scenario = Scenario {
        lasts: 42 * SECOND,
        host: busy(),
        ..Scenario::new(Sharing::leases(), actors.collect())
    };
    scenario.host.learns = true;
    scenario.host.slice = Some(2 * MILLISECOND);
    run(&scenario)
}

/// What is used of the device once the tenants have settled, percent.
fn used(outcome: &Outcome) -> f64 {
    (0..outcome.actors.len())
        .map(|actor| outcome.percent(actor, 12 * SECOND, 42 * SECOND))
        .sum()
}

#[test]
fn one_long_among_three_short_tenants_costs_few_changes() {
    for (name, way) in WAYS {
        let lengths = [300, 1, 1, 1].map(|ms| Lengths::Fixed(ms * MILLISECOND));
        let outcome = play(way, &[2500; 4], &lengths);
        let error = outcome.error(&[25.0; 4], 12 * SECOND, 30 * SECOND, false);
        assert!(error <= 1.0, "{name}: {error} points");
        let used = used(&outcome);
        assert!(used >= 97.0, "{name}: {used} %");
    }
}

#[test]
fn many_short_tenants_change_less_often_where_each_change_costs_much() {
    for (name, way) in WAYS {
        let outcome = play(way, &[625; 16], &[Lengths::Fixed(MILLISECOND)]);
        let used = used(&outcome);
        assert!(used >= 96.0, "{name}: {used} %");
        // No turn is longer than four quanta, and no cap is passed by more than one such lease.
        let gap = outcome.longest_gap(1, 12 * SECOND);
        assert!(gap <= 16 * 21 * MILLISECOND, "{name}: {gap} ns");
        let over = outcome.violation(0, 6.25, SECOND);
        assert!(over <= 23 * MILLISECOND as i64, "{name}: {over} ns");
    }
}

/// Where each wake-up takes a fifth of a millisecond, a request of 5 ms must not cost 7: its budget would run out, and
/// two long launches would come before it.
#[test]
fn a_latency_critical_tenant_is_charged_for_little_more_than_its_requests() {
    for load in [30, 60] {
        let share = Share::new((load + 10) * 100).expect("a share");
        let critical = Actor::new(Terms::latency(share), Load::inference(u64::from(load)));
        let long = Actor::new(Terms::weight(1), Load::Greedy(Lengths::Fixed(300 * MILLISECOND)));
        let play = |actors: &[Actor]| {
            let mut scenario = Scenario {
                lasts: 120 * SECOND,
                host: busy(),
                ..Scenario::new(Sharing::leases(), actors.to_vec())
            };
            scenario.host.hop = 200 * MICROSECOND;
            scenario.host.notice = 200 * MICROSECOND;
            run(&scenario)
        };
        let alone = play(std::slice::from_ref(&critical));
        let beside = play(&[critical, long.clone(), long]);
        let actor = &beside.actors[0];
        let charged = actor.charged as f64 / actor.busy as f64;
        assert!(charged <= 1.06, "{load} %: {charged} times what it used");
        let p99 = |outcome: &Outcome| percentile(&outcome.actors[0].latencies, 99.0);
        let more = p99(&beside) - p99(&alone);
        assert!(more <= 301 * MILLISECOND, "{load} %: {more} ns more");
    }
}

/// An arbiter with two tenants that want its device without end. Each lease is held for `idle` without work.
fn quantum_after(changes: u32, idle: Nanos) -> Nanos {
    let mut arbiter = Arbiter::new(Settings::default(), 1);
    let device = DeviceId(0);
    let mut now = SECOND;
    let mut busy = [0; 2];
    let mut quantum = 0;
    let mut holder = None;
    let arrived = [1, 2].map(|n| Event::Arrived {
        tenant: TenantId(n),
        devices: vec![device],
        terms: Terms::soft(Share::new(5000).expect("a half")),
    });
    let ready = [1, 2].map(|n| Event::Ready { tenant: TenantId(n) });
    for event in arrived.iter().chain(&ready) {
        let decisions = arbiter.handle(now, event).expect("it makes sense");
        note(&decisions, now, &mut holder, &mut quantum);
    }
    for _ in 0..changes {
        let (tenant, since, until) = holder.expect("a holder");
        // It may be renewed until its last moment.
        now = until;
        let n = tenant as usize - 1;
        busy[n] += (now - since).saturating_sub(idle);
        let released = Event::Released {
            tenant: TenantId(tenant),
            device,
            busy: busy[n],
        };
        let decisions = arbiter.handle(now, &released).expect("it makes sense");
        note(&decisions, now, &mut holder, &mut quantum);
    }
    quantum
}

fn note(decisions: &[Decision], now: Nanos, holder: &mut Option<(u64, Nanos, Nanos)>, quantum: &mut Nanos) {
    for decision in decisions {
        if let Decision::Grant { tenant, until, .. } = *decision {
            let since = match *holder {
                Some((same, since, _)) if same == tenant.0 => since,
                _ => now,
            };
            *holder = Some((tenant.0, since, until));
            *quantum = until.saturating_sub(since);
        }
    }
}

#[test]
fn the_quantum_follows_the_cost_of_a_change_within_bounds() {
    let default = Settings::default().quantum;
    assert_eq!(quantum_after(400, 100 * MICROSECOND), default);
    let costly = quantum_after(400, 250 * MICROSECOND);
    assert!((9 * MILLISECOND..=11 * MILLISECOND).contains(&costly), "{costly}");
    // One that says it never had anything to do makes it four times as long, and no longer.
    assert_eq!(quantum_after(4000, SECOND), 4 * default);
}
