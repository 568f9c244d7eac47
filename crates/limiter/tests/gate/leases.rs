//! What a closed, an open and a leased gate let through, and how a lease ends.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use divvy_abi::*;
use divvy_ledger::attach::{deliver, recall};
use divvy_ledger::{Lease, monotonic_ns};

use crate::device::{Did, with};
use crate::kit::{Over, activity, alone, beating, kernels, launch, lease, stream, wait_for};
use crate::{AHEAD_NS, MS};

#[test]
fn an_open_gate_counts_nothing_and_records_nothing() {
    alone("an_open_gate_counts_nothing_and_records_nothing", |slice| {
        for _ in 0..1000 {
            launch(null_mut(), 1);
        }
        with(|device| {
            assert_eq!(device.kernels(), 1000);
            assert_eq!(device.did.len(), 1000, "no event of ours");
        });
        assert_eq!(activity(slice).launched, 1);
    });
}

#[test]
fn a_closed_gate_lets_nothing_through_and_what_runs_is_waited_for() {
    alone(
        "a_closed_gate_lets_nothing_through_and_what_runs_is_waited_for",
        |slice| {
            launch(null_mut(), 50_000);
            let end = with(|device| device.end());
            let word = slice.pages.grant.close_gate();
            wait_for("acknowledged", || {
                let said = activity(slice);
                let over = monotonic_ns() >= end;
                let acknowledged = said.acknowledged == word && !said.busy;
                assert!(over || !acknowledged, "acknowledged while a kernel ran");
                acknowledged
            });
            beating(slice, || {
                std::thread::scope(|scope| {
                    let rings = slice.pages.ledger.rings();
                    let launcher = scope.spawn(|| launch(null_mut(), 100));
                    wait_for("it wants", || activity(slice).wants);
                    assert_ne!(slice.pages.ledger.rings(), rings, "and rang");
                    // Longer than a heartbeat stays fresh: the agent lives, so it waits.
                    std::thread::sleep(Duration::from_millis(700));
                    assert_eq!(kernels(), 1);
                    lease(slice, 1, 0, 0);
                    launcher.join().expect("it launched");
                    assert_eq!(kernels(), 2);
                    wait_for("wants no more", || !activity(slice).wants);
                });
            });
        },
    );
}

#[test]
fn under_a_lease_what_is_in_flight_keeps_to_the_bound() {
    alone("under_a_lease_what_is_in_flight_keeps_to_the_bound", |slice| {
        slice.pages.grant.close_gate();
        let stream = stream();
        beating(slice, || {
            lease(slice, 1, 0, 1);
            let mut most = 0;
            for _ in 0..400 {
                launch(stream, 100);
                // The first of them has no measurement yet.
                let (ahead, launched) = with(|device| (device.end(), device.kernels()));
                if launched > 20 {
                    most = most.max(ahead.saturating_sub(monotonic_ns()));
                }
            }
            // 1 ms, plus work whose completion is noticed late; estimates are a little high or low.
            assert!(most < 1_400_000, "{most}");
            let said = activity(slice);
            assert!(said.launched > 300, "{said:?}");
            assert!((50_000..200_000).contains(&said.kernel_ns), "{said:?}");
            wait_for("idle", || !activity(slice).busy);
            let said = activity(slice);
            assert_eq!((said.launched, said.completed), (400, 400));
            assert!(said.busy_ns >= 39 * MS, "{said:?}");
        });
    });
}

#[test]
fn one_kernel_outlasts_a_lease_and_no_more() {
    alone("one_kernel_outlasts_a_lease_and_no_more", |slice| {
        slice.pages.grant.close_gate();
        let stream = stream();
        beating(slice, || {
            let over = &AtomicBool::new(false);
            std::thread::scope(|scope| {
                let name = stream as usize;
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        launch(name as CUstream, 20_000);
                    }
                });
                let _over = Over(over, slice);
                let mut epoch = 0;
                for round in 1..=4 {
                    wait_for("it wants", || activity(slice).wants);
                    let before = kernels();
                    let mut until = 0;
                    // If a busy machine slept through a lease, another one follows.
                    wait_for("launched", || {
                        if kernels() == before && monotonic_ns() > until + MS {
                            epoch += 1;
                            lease(slice, epoch, 5, 1);
                            until = monotonic_ns() + 5 * MS;
                        }
                        kernels() > before
                    });
                    std::thread::sleep(Duration::from_millis(6));
                    let word = slice.pages.grant.close_gate();
                    let end = with(|device| device.end());
                    wait_for("released", || {
                        let said = activity(slice);
                        let released = said.acknowledged == word && !said.busy;
                        assert!(!released || monotonic_ns() + AHEAD_NS >= end, "it still runs");
                        released
                    });
                    assert_eq!(kernels(), before + 1, "round {round}");
                    with(|device| {
                        assert!(
                            device
                                .did
                                .iter()
                                .all(|(at, did)| *at < until || !matches!(did, Did::Kernel { .. }))
                        );
                    });
                }
            });
        });
    });
}

#[test]
fn an_unused_lease_is_given_back() {
    alone("an_unused_lease_is_given_back", |slice| {
        slice.pages.grant.close_gate();
        beating(slice, || {
            lease(slice, 1, 0, 0);
            for round in 1..=5 {
                // Long enough for this thread to poll while it runs, even on a busy machine.
                launch(null_mut(), 20_000);
                let busy = activity(slice).busy;
                assert!(busy || monotonic_ns() >= with(|device| device.end()));
                let rings = slice.pages.ledger.rings();
                wait_for("idle", || !activity(slice).busy);
                assert!(monotonic_ns() >= with(|device| device.end()));
                wait_for("rang", || slice.pages.ledger.rings() != rings);
                assert_eq!(activity(slice).completed, round);
            }
        });
    });
}

#[test]
fn without_an_agent_the_share_holds_and_with_a_new_one_its_word() {
    alone(
        "without_an_agent_the_share_holds_and_with_a_new_one_its_word",
        |slice| {
            slice.pages.grant.set_fallback_share(2_500);
            slice.pages.grant.close_gate();
            let stream = stream();
            let begin = Instant::now();
            slice.pages.grant.beat();
            launch(stream, 1000);
            assert!(
                begin.elapsed() > Duration::from_millis(300),
                "a beat is fresh for half a second"
            );
            let share_of_two_seconds = || {
                let (busy, since) = (activity(slice).busy_ns, Instant::now());
                while since.elapsed() < Duration::from_secs(2) {
                    launch(stream, 1000);
                }
                (activity(slice).busy_ns - busy) as f64 / since.elapsed().as_nanos() as f64
            };
            // It has no more than its share at any time, and all of it where it gets a processor.
            let shares = (0..5).map(|_| share_of_two_seconds());
            let has_its_share = |share: f64| {
                assert!(share < 0.32, "{share}");
                share >= 0.15
            };
            assert!(
                shares.into_iter().any(has_its_share),
                "it is below 0.15 each time"
            );
            // The next agent: another grant, in which the gate is closed.
            wait_for("idle", || !activity(slice).busy);
            let next = recall(&slice.control, 0)
                .expect("the server has them")
                .adopt()
                .expect("pages");
            next.grant.beat();
            next.grant.close_gate();
            deliver(&slice.control, &next).expect("the server takes them");
            let before = kernels();
            std::thread::scope(|scope| {
                let name = stream as usize;
                let launcher = scope.spawn(move || launch(name as CUstream, 1000));
                wait_for("it wants", || {
                    // A machine that stalls for half a second would take the new agent for gone.
                    next.grant.beat();
                    activity(slice).wants
                });
                for _ in 0..20 {
                    next.grant.beat();
                    std::thread::sleep(Duration::from_millis(50));
                    assert_eq!(kernels(), before, "the new agent has said nothing");
                }
                next.grant.lease(Lease {
                    epoch: 1,
                    until_ns: u64::MAX,
                    in_flight_ns: u64::MAX,
                });
                launcher.join().expect("it launched");
            });
        },
    );
}
