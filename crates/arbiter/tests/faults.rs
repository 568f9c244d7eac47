//! What goes wrong on a real host: dead, stopped and endless holders, clocks that leap, tenants that come and go.

use divvy_arbiter::sim::{Actor, Lengths, Load, Outcome, Scenario, Sharing, Step, Turn, run};
use divvy_arbiter::{
    Decision, DeviceId, Event, MICROSECOND, MILLISECOND, Refused, SECOND, Settings, Share, Standing,
    TenantId, Terms,
};

fn share(percent: u16) -> Share {
    Share::new(percent * 100).expect("a share")
}

fn greedy(percent: u16) -> Actor {
    Actor::new(
        Terms::soft(share(percent)),
        Load::Greedy(Lengths::Fixed(MILLISECOND)),
    )
}

fn play(actors: Vec<Actor>, steps: Vec<Step>) -> Outcome {
    run(&Scenario {
        lasts: 6 * SECOND,
        steps,
        ..Scenario::new(Sharing::leases(), actors)
    })
}

fn step(at: u64, actor: usize, turn: Turn) -> Step {
    Step { at, actor, turn }
}

#[test]
fn a_killed_holder_costs_the_others_little_and_leaves_nothing_behind() {
    for offset in 0..20 {
        let at = 3 * SECOND + offset * 777 * MICROSECOND;
        let outcome = play(vec![greedy(50), greedy(50)], vec![step(at, 0, Turn::Kill)]);
        assert!(outcome.longest_gap(1, 2 * SECOND) <= 50 * MILLISECOND);
        assert!(outcome.percent(1, 4 * SECOND, 6 * SECOND) > 99.0);
        assert_eq!(outcome.registered, 1);
    }
}

#[test]
fn a_stopped_holder_loses_the_device_and_comes_back_in_its_turn() {
    let steps = vec![
        step(2 * SECOND, 0, Turn::Stop),
        step(4 * SECOND, 0, Turn::Continue),
    ];
    let outcome = play(vec![greedy(50), greedy(50)], steps);
    assert!(outcome.longest_gap(1, SECOND) <= 60 * MILLISECOND);
    assert!(outcome.percent(1, 2100 * MILLISECOND, 4 * SECOND) > 99.0);
    // It was charged for the lease that it slept on, and not once for each that it did not get: both are even again.
    let got = outcome.percent(0, 4 * SECOND, 6 * SECOND);
    assert!((got - 50.0).abs() < 2.0, "{got} %");
    let expired = |(_, decision): &(u64, Decision)| matches!(decision, Decision::Expire { tenant, .. } if tenant.0 == 0);
    assert_eq!(outcome.incidents.iter().filter(|what| expired(what)).count(), 1);
}

#[test]
fn an_endless_kernel_is_told_and_its_debt_stands_until_it_is_killed() {
    let actors = vec![
        Actor::new(Terms::soft(share(50)), Load::Endless).from(SECOND),
        greedy(50),
    ];
    let outcome = play(actors, vec![step(4 * SECOND, 0, Turn::Kill)]);
    let told = |wanted: fn(&Decision) -> bool| outcome.incidents.iter().find(|(_, what)| wanted(what));
    let overdue = told(|what| matches!(what, Decision::Overdue { tenant, .. } if tenant.0 == 0));
    let expired = told(|what| matches!(what, Decision::Expire { tenant, .. } if tenant.0 == 0));
    assert!(overdue.expect("the others are told").0 <= 1200 * MILLISECOND);
    assert!(expired.expect("the device is offered to others").0 <= 1200 * MILLISECOND);
    assert!(outcome.percent(1, 4100 * MILLISECOND, 6 * SECOND) > 99.0);
}

#[test]
fn an_unreleased_lease_is_paid_for_however_long_it_is() {
    let mut arbiter = divvy_arbiter::Arbiter::new(Settings::default(), 1);
    let device = DeviceId(0);
    let (a, b) = (TenantId(1), TenantId(2));
    let mut now = SECOND;
    for tenant in [a, b] {
        let event = Event::Arrived {
            tenant,
            devices: vec![device],
            terms: Terms::hard(share(30)),
        };
        arbiter.handle(now, &event).expect("admitted");
    }
    arbiter.handle(now, &Event::Ready { tenant: a }).expect("ready");
    for _ in 0..1000 {
        now = arbiter.deadline().expect("a lease is out").max(now);
        arbiter.handle(now, &Event::Time).expect("time");
        if now > 20 * SECOND {
            break;
        }
    }
    let view = arbiter.view(a, device).expect("registered");
    assert_eq!(view.standing, Standing::Stuck);
    assert_eq!(view.charged, u128::from(now - SECOND));
    assert!(view.debt > 13 * SECOND, "{view:?}");
    assert_eq!(arbiter.holder(device), None);
    // The other has the device meanwhile.
    let decisions = arbiter.handle(now, &Event::Ready { tenant: b }).expect("ready");
    assert!(matches!(decisions[..], [Decision::Grant { tenant, .. }] if tenant == b));
}

#[test]
fn a_leap_of_the_clock_is_charged_to_no_tenant() {
    for leap in [3 * SECOND, 8 * 3600 * SECOND] {
        let outcome = play(
            vec![greedy(30), greedy(70)],
            vec![step(2 * SECOND, 0, Turn::Leap(leap))],
        );
        let charged: u128 = outcome.actors.iter().map(|actor| actor.charged).sum();
        assert!(charged <= u128::from(6 * SECOND), "{charged}");
        let error = outcome.error(&[30.0, 70.0], 5 * SECOND, SECOND, false);
        assert!(error <= 1.0, "{error} points after the leap");
    }
}

#[test]
fn a_clock_that_goes_back_changes_nothing_inside() {
    let mut arbiter = divvy_arbiter::Arbiter::new(Settings::default(), 1);
    let tenant = TenantId(7);
    let arrived = Event::Arrived {
        tenant,
        devices: vec![DeviceId(0)],
        terms: Terms::hard(share(50)),
    };
    arbiter.handle(100 * SECOND, &arrived).expect("admitted");
    arbiter
        .handle(100 * SECOND, &Event::Ready { tenant })
        .expect("ready");
    let told = arbiter.handle(SECOND, &Event::Time).expect("time");
    // The lease's end is sent again, in the new clock.
    let [Decision::Grant { until, .. }] = told[..] else {
        panic!("{told:?}");
    };
    assert!(until > SECOND && until <= SECOND + 5 * MILLISECOND);
    assert_eq!(arbiter.view(tenant, DeviceId(0)).expect("there").charged, 0);
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let mut arbiter = divvy_arbiter::Arbiter::new(Settings::default(), 2);
    let arrive = |tenant: u64, devices: &[u32], terms| Event::Arrived {
        tenant: TenantId(tenant),
        devices: devices.iter().copied().map(DeviceId).collect(),
        terms,
    };
    let soft = Terms::soft(share(60));
    assert_eq!(arbiter.handle(0, &arrive(1, &[], soft)), Err(Refused::Devices));
    assert_eq!(
        arbiter.handle(0, &arrive(1, &[0, 0], soft)),
        Err(Refused::Devices)
    );
    assert_eq!(arbiter.handle(0, &arrive(1, &[2], soft)), Err(Refused::Devices));
    arbiter.handle(0, &arrive(1, &[0, 1], soft)).expect("admitted");
    assert_eq!(
        arbiter.handle(0, &arrive(1, &[0], soft)),
        Err(Refused::Known(TenantId(1)))
    );
    let refused = arbiter.handle(0, &arrive(2, &[1], Terms::hard(share(50))));
    assert!(matches!(refused, Err(Refused::Overcommitted(what)) if what.free == 4000));
    let unpromised = Terms {
        cap: divvy_arbiter::Cap::Hard,
        ..Terms::weight(1)
    };
    assert_eq!(
        arbiter.handle(0, &arrive(2, &[1], unpromised)),
        Err(Refused::NoShare)
    );
    assert_eq!(
        arbiter.handle(0, &Event::Ready { tenant: TenantId(2) }),
        Err(Refused::Unknown(TenantId(2)))
    );
    let resized = Event::Resized {
        tenant: TenantId(1),
        terms: Terms::hard(Share::WHOLE),
    };
    assert_eq!(arbiter.handle(0, &resized), Ok(vec![]));
    assert_eq!(arbiter.tenants(), 1);
}

#[test]
fn paging_lengthens_the_quantum() {
    let mut arbiter = divvy_arbiter::Arbiter::new(Settings::default(), 1);
    let device = DeviceId(0);
    for tenant in [1, 2].map(TenantId) {
        let event = Event::Arrived {
            tenant,
            devices: vec![device],
            terms: Terms::weight(1),
        };
        arbiter.handle(0, &event).expect("admitted");
    }
    let mut length = |refill: u64| {
        arbiter
            .handle(0, &Event::Thrash { device, refill })
            .expect("a device");
        for tenant in [1, 2].map(TenantId) {
            arbiter.handle(0, &Event::Idle { tenant }).expect("idle");
        }
        arbiter
            .handle(0, &Event::Ready { tenant: TenantId(1) })
            .expect("ready");
        let told = arbiter
            .handle(0, &Event::Ready { tenant: TenantId(2) })
            .expect("ready");
        match told[..] {
            [Decision::Grant { until, .. }] => until,
            _ => panic!("{told:?}"),
        }
    };
    assert_eq!(length(0), 5 * MILLISECOND);
    assert_eq!(length(40 * MILLISECOND), 400 * MILLISECOND);
    assert_eq!(length(SECOND), 2 * SECOND);
    assert_eq!(length(0), 5 * MILLISECOND);
}

#[test]
fn a_lone_tenant_is_left_alone_until_another_comes() {
    let alone = play(vec![greedy(10)], vec![]);
    assert!(alone.percent(0, SECOND, 6 * SECOND) > 99.9);
    // Ten wake-ups a second, and nothing else.
    assert!(alone.events < 80, "{} events", alone.events);
    let joined = play(vec![greedy(50), greedy(50).from(3 * SECOND)], vec![]);
    assert!(joined.percent(1, 3100 * MILLISECOND, 3300 * MILLISECOND) > 40.0);
    assert!(joined.error(&[50.0, 50.0], 4 * SECOND, SECOND, false) <= 1.0);
}

#[test]
fn programs_that_wait_on_the_cpu_get_what_they_can_use() {
    let thinker = Actor::new(
        Terms::soft(share(50)),
        Load::Bursts {
            kernels: 1,
            lengths: Lengths::Fixed(MILLISECOND),
            think: MILLISECOND,
        },
    );
    let solo = play(vec![thinker.clone()], vec![]).percent(0, SECOND, 6 * SECOND);
    let outcome = play(vec![thinker, greedy(50)], vec![]);
    let got = outcome.percent(0, SECOND, 6 * SECOND);
    assert!(solo > 45.0 && got > 0.6 * solo, "{got} % of {solo} % alone");
    assert!(outcome.conservation() > 94.0, "{} %", outcome.conservation());
}

#[test]
fn a_tenant_that_lost_its_tokens_while_it_waited_keeps_no_other_from_the_device() {
    let mut arbiter = divvy_arbiter::Arbiter::new(Settings::default(), 1);
    let device = DeviceId(0);
    let (holder, capped, other) = (TenantId(1), TenantId(2), TenantId(3));
    let mut tell = |event: Event| arbiter.handle(SECOND, &event).expect("taken");
    for (tenant, terms) in [
        (holder, Terms::weight(1)),
        (capped, Terms::hard(share(8))),
        (other, Terms::weight(1)),
    ] {
        let devices = vec![device];
        tell(Event::Arrived {
            tenant,
            devices,
            terms,
        });
    }
    for tenant in [holder, capped] {
        tell(Event::Ready { tenant });
    }
    // It is first in the queue, and by its own word it has used up more than its cap.
    let report = Event::Report {
        tenant: capped,
        device,
        busy: 44 * MILLISECOND,
        kernel: 0,
        in_flight: 0,
    };
    tell(report);
    // Behind it by virtual time: 44 ms at a small share are far ahead, so the other one is charged as well.
    tell(Event::Ready { tenant: other });
    tell(Event::Report {
        tenant: other,
        device,
        busy: SECOND,
        kernel: 0,
        in_flight: 0,
    });
    let told = tell(Event::Idle { tenant: holder });
    assert!(
        matches!(told[..], [Decision::Grant { tenant, .. }] if tenant == other),
        "{told:?}"
    );
}
