//! A latency-critical tenant beside best-effort ones, against itself alone with the same arrivals.

use divvy_arbiter::sim::{Actor, Lengths, Load, Outcome, Scenario, Sharing, percentile, run};
use divvy_arbiter::{
    Arbiter, Class, Decision, DeviceId, Event, MICROSECOND, MILLISECOND, SECOND, Settings, Share, TenantId,
    Terms,
};

const LASTS: u64 = 60 * SECOND;

fn share(percent: u64) -> Share {
    Share::new(percent as u16 * 100).expect("a share")
}

fn play(sharing: Sharing, actors: Vec<Actor>) -> Outcome {
    run(&Scenario {
        lasts: LASTS,
        ..Scenario::new(sharing, actors)
    })
}

fn critical(load: u64) -> Actor {
    Actor::new(Terms::latency(share(load + 10)), Load::inference(load))
}

fn beside(load: u64, lengths: &[Lengths]) -> Vec<Actor> {
    let others = lengths
        .iter()
        .map(|lengths| Actor::new(Terms::weight(1), Load::Greedy(lengths.clone())));
    [critical(load)].into_iter().chain(others).collect()
}

/// How a percentile of the latency-critical tenant's requests stands to its solo figure: ratio and nanoseconds more.
fn against(solo: &Outcome, beside: &Outcome, percent: f64) -> (f64, i64) {
    let (a, b) = (
        percentile(&solo.actors[0].latencies, percent),
        percentile(&beside.actors[0].latencies, percent),
    );
    (b as f64 / a as f64, b as i64 - a as i64)
}

#[test]
fn beside_short_kernels_it_hardly_notices_and_the_others_keep_what_is_left() {
    let short = Lengths::Fixed(50 * MICROSECOND);
    let long = Lengths::Fixed(MILLISECOND);
    let any = Lengths::Uniform(50 * MICROSECOND, MILLISECOND);
    for load in [30, 60] {
        let solo = play(Sharing::leases(), vec![critical(load)]);
        for others in [
            [short.clone(), short.clone()],
            [any.clone(), any.clone()],
            [short.clone(), long.clone()],
        ] {
            let mixed = play(Sharing::leases(), beside(load, &others));
            let (p50, _) = against(&solo, &mixed, 50.0);
            let (p99, _) = against(&solo, &mixed, 99.0);
            let left = (LASTS - solo.actors[0].busy) as f64;
            let kept = (mixed.actors[1].busy + mixed.actors[2].busy) as f64 / left;
            // It is charged once for what it used and for the moments before it let go.
            let (charged, busy) = (mixed.actors[0].charged as f64, mixed.actors[0].busy as f64);
            assert!(charged <= 1.10 * busy, "{charged} charged for {busy}");
            assert!(p50 <= 1.10, "{load} % beside {others:?}: p50 {p50:.3}");
            assert!(p99 <= 1.05, "{load} % beside {others:?}: p99 {p99:.3}");
            assert!(kept >= 0.90, "{load} % beside {others:?}: {kept:.3} kept");
        }
    }
}

#[test]
fn beside_long_kernels_it_waits_for_one_and_no_more() {
    for load in [30, 60] {
        let solo = play(Sharing::leases(), vec![critical(load)]);
        for ms in [20, 80, 300] {
            let long = Lengths::Fixed(ms * MILLISECOND);
            let mixed = play(Sharing::leases(), beside(load, &[long.clone(), long]));
            for percent in [50.0, 99.0] {
                let (_, more) = against(&solo, &mixed, percent);
                let allowed = (ms + 1) * MILLISECOND;
                assert!(
                    more <= allowed as i64,
                    "{load} %: p{percent} {more} ns more of {allowed}"
                );
            }
        }
    }
}

#[test]
fn without_the_arbiter_it_does_notice() {
    // The negative control: a figure that any kind of sharing reaches would show nothing.
    let any = Lengths::Uniform(50 * MICROSECOND, MILLISECOND);
    let solo = play(Sharing::leases(), vec![critical(30)]);
    for sharing in [Sharing::hardware(), Sharing::Fifo { depth: 16 }] {
        let mixed = play(sharing, beside(30, &[any.clone(), any.clone()]));
        assert!(against(&solo, &mixed, 99.0).0 > 2.0);
    }
}

#[test]
fn one_that_wants_more_than_its_budget_does_not_starve_the_others() {
    for (terms, most) in [
        (Terms::latency(share(30)), 66.0),
        (
            Terms {
                cap: divvy_arbiter::Cap::Hard,
                ..Terms::latency(share(30))
            },
            31.0,
        ),
    ] {
        let greedy = Actor::new(terms, Load::Greedy(Lengths::Fixed(MILLISECOND)));
        let other = Actor::new(Terms::soft(share(30)), Load::Greedy(Lengths::Fixed(MILLISECOND)));
        let outcome = play(Sharing::leases(), vec![greedy, other]);
        let got = outcome.percent(0, 10 * SECOND, LASTS);
        assert!(got > 29.0 && got < most, "{got} %");
        // A whole budget may run at once, and then a quantum.
        assert!(outcome.longest_gap(1, 0) <= 320 * MILLISECOND);
        let sum = got + outcome.percent(1, 10 * SECOND, LASTS);
        assert!(sum > 98.0, "{sum} %");
    }
}

#[test]
fn several_share_by_their_deadlines() {
    let fast = Terms {
        class: Class::Latency {
            period: 20 * MILLISECOND,
        },
        ..Terms::latency(share(40))
    };
    let requests = |percent: u64| Load::Requests {
        every: MILLISECOND * 100 / percent,
        kernels: 2,
        lengths: Lengths::Fixed(MILLISECOND / 2),
    };
    let actors = vec![
        Actor::new(fast, requests(15)),
        Actor::new(Terms::latency(share(50)), Load::inference(30)),
        Actor::new(Terms::weight(1), Load::Greedy(Lengths::Fixed(MILLISECOND))),
    ];
    let outcome = play(Sharing::leases(), actors);
    // Its period is its promise: the other goes first when that one's deadline is near.
    let p90 = percentile(&outcome.actors[0].latencies, 90.0);
    let p99 = percentile(&outcome.actors[0].latencies, 99.0);
    assert!(
        p90 <= 8 * MILLISECOND && p99 <= 25 * MILLISECOND,
        "{p90} {p99} ns"
    );
    assert!(percentile(&outcome.actors[1].latencies, 50.0) <= 7 * MILLISECOND);
    assert!(outcome.conservation() >= 95.0);
}

#[test]
fn what_waits_behind_an_overhanging_kernel_does_not_use_up_the_budget() {
    // The gate counts as busy whatever is in flight, and that may be waiting for another tenant's last kernel.
    let mut arbiter = Arbiter::new(Settings::default(), 1);
    let device = DeviceId(0);
    let (critical, other) = (TenantId(1), TenantId(2));
    let mut now = SECOND;
    let mut tell = |at: u64, event: Event| arbiter.handle(at, &event).expect("it makes sense");
    for (tenant, terms) in [(critical, Terms::latency(share(40))), (other, Terms::weight(1))] {
        tell(
            now,
            Event::Arrived {
                tenant,
                devices: vec![device],
                terms,
            },
        );
    }
    let mut reported = 0;
    for _ in 0..100 {
        tell(now, Event::Ready { tenant: other });
        now += MILLISECOND;
        // A request of 5 ms comes while 20 ms of another's kernel are left.
        let decisions = tell(now, Event::Ready { tenant: critical });
        let granted = |what: &Decision| matches!(what, Decision::Grant { tenant, .. } if *tenant == critical);
        assert!(decisions.iter().any(granted), "{decisions:?}");
        let report = |busy| Event::Report {
            tenant: critical,
            device,
            busy,
            kernel: MILLISECOND / 2,
            in_flight: 0,
        };
        tell(now + 10 * MILLISECOND, report(reported + 10 * MILLISECOND));
        now += 20 * MILLISECOND;
        tell(
            now,
            Event::Released {
                tenant: other,
                device,
                busy: 0,
            },
        );
        now += 5 * MILLISECOND;
        reported += 25 * MILLISECOND;
        tell(now, report(reported));
        tell(now, Event::Idle { tenant: critical });
        tell(now, Event::Idle { tenant: other });
        now += 2 * MILLISECOND;
    }
    let view = arbiter.view(critical, device).expect("registered");
    assert_eq!(view.charged, u128::from(100 * 5 * MILLISECOND));
    // It held a lease for that time all the same: what it uses then is not past the gate.
    assert_eq!(view.waited, u128::from(100 * 20 * MILLISECOND));
}
