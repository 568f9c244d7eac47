//! An agent, a driver and records that come to an end halfway: nothing is left, and nothing is lost.

use super::*;

#[test]
fn an_agent_that_goes_away_at_any_step_leaves_nothing() {
    for step in [
        Step::Slices,
        Step::Make,
        Step::MadeAndLost,
        Step::Describe,
        Step::Cluster,
    ] {
        for restarted in [false, true] {
            let mut bench = Bench::new();
            let claim = bench.stand_in.allocate(
                "u-1",
                &[
                    ("a", shared(0), Some(("s1", 4096, 30))),
                    ("b", shared(1), Some(("s2", 8192, 0))),
                ],
            );
            bench.fail(Some(step));
            let refused = bench.node().prepare(&claim).expect_err("refused");
            assert!(
                matches!(refused.code, Code::AgentUnreachable | Code::Cluster),
                "{refused:?}"
            );
            bench.fail(None);
            if restarted {
                bench.restart();
            }
            bench.check(0);
            bench.node().prepare(&claim).expect("prepared");
            bench.check(1);
            // Nor is a claim forgotten whose slices cannot be ended.
            bench.fail(Some(Step::End));
            bench.node().unprepare(&claim).expect_err("refused");
            bench.fail(None);
            let kept = bench.node().claims().expect("records");
            assert_eq!((kept.len(), bench.slices().len()), (1, 2));
            bench.node().unprepare(&claim).expect("taken back");
            bench.check(0);
        }
    }
}

#[test]
fn what_a_killed_driver_left_half_done_is_ended_by_the_next() {
    let mut bench = Bench::new();
    let claim = bench
        .stand_in
        .allocate("u-1", &[("a", shared(0), Some(("s1", 4096, 30)))]);
    // Killed between the slice and the record's last word; nothing can be ended meanwhile.
    bench.fail(Some(Step::Describe));
    let fail_too = bench.stand_in.clone();
    bench.fail(None);
    let found = bench.node().look_up(&claim).expect("found");
    let planned = {
        let kept = bench.node().kept();
        let planned = bench.node().planned(&kept, &claim, &found).expect("planned");
        kept.state.write(&planned).expect("written");
        planned
    };
    fail_too.make(&planned.requests[0].ask, &[]).expect("made");
    bench.restart();
    bench.check(0);
    // The same with an agent that is away while the driver starts: the next call does it.
    bench.node().kept().state.write(&planned).expect("written");
    fail_too.make(&planned.requests[0].ask, &[]).expect("made");
    bench.fail(Some(Step::Slices));
    bench.restart();
    bench.fail(None);
    assert_eq!(bench.slices().len(), 1);
    bench.node().prepare(&claim).expect("prepared");
    bench.check(1);
    // Records that were lost: the slice is found by its name, and is as asked for.
    bench.node().kept().state.remove("u-1").expect("removed");
    let made = bench.stand_in.world().made;
    bench.node().prepare(&claim).expect("prepared");
    assert_eq!(bench.stand_in.world().made, made);
    bench.check(1);
}

#[test]
fn a_damaged_record_stops_its_claim_and_no_other() {
    let mut bench = Bench::new();
    let [damaged, well, next] = ["u-1", "u-2", "u-3"].map(|uid| {
        let share = Some((uid, 4096, 30));
        bench.stand_in.allocate(uid, &[("a", shared(0), share)])
    });
    for claim in [&damaged, &well] {
        bench.node().prepare(claim).expect("prepared");
    }
    std::fs::write(bench.folder.path().join("claims/u-1.json"), "{\"version\":").expect("damaged");
    bench.restart();
    assert_eq!(bench.node().set_aside().expect("read"), ["u-1"]);
    bench.node().prepare(&well).expect("again");
    bench.node().prepare(&next).expect("prepared");
    assert!(
        bench
            .node()
            .prepare(&damaged)
            .expect_err("damaged")
            .message
            .contains("set aside")
    );
    assert_eq!(
        bench.slices().len(),
        3,
        "nothing of the damaged claim is ended under its programs"
    );
    bench.node().unprepare(&damaged).expect("taken back");
    bench.check(2);
    bench.node().prepare(&damaged).expect("prepared");
    bench.check(3);
}

#[test]
fn a_driver_that_is_killed_at_any_point_leaves_nothing() {
    for (number, point) in points::ALL.into_iter().enumerate() {
        for second in [false, true] {
            let mut bench = Bench::new();
            let claim = bench.stand_in.allocate(
                "u-1",
                &[
                    ("a", shared(0), Some(("s1", 4096, 30))),
                    ("b", shared(1), Some(("s2", 8192, 0))),
                ],
            );
            let is_of_prepare = number < 6;
            if !is_of_prepare || second {
                bench.node().prepare(&claim).expect("prepared");
            }
            points::kill_at(point);
            let died =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match is_of_prepare && !second {
                    true => drop(bench.node().prepare(&claim)),
                    false => drop(bench.node().unprepare(&claim)),
                }));
            // Taking back does not come to the points of preparing.
            assert!(
                died.is_err() || (points::spare() && is_of_prepare && second),
                "{point} was not reached"
            );
            // Only the kubelet's next call tells what it wants: without one no half is left.
            bench.restart();
            let prepared = bench.node().claims().expect("records").len();
            bench.check(prepared);
            bench.node().prepare(&claim).expect("asked again");
            bench.check(1);
            bench.node().unprepare(&claim).expect("taken back");
            bench.check(0);
        }
    }
}

/// A device that falls off the bus under a pod: the kubelet may ask again, the pod can be deleted, and nothing new goes there.
#[test]
fn a_gpu_that_is_lost_while_it_is_prepared_can_be_given_back() {
    let mut bench = Bench::new();
    let [running, new, other] = [("u-1", 0), ("u-2", 0), ("u-3", 1)].map(|(uid, index)| {
        bench
            .stand_in
            .allocate(uid, &[("a", shared(index), Some((uid, 4096, 30)))])
    });
    let before = bench.node().prepare(&running).expect("prepared");
    let (mut watch, reports) = crate::health::Watch::new();
    let health = |watch: &mut crate::health::Watch, bench: &Bench| {
        watch.note("node", &bench.node().devices().expect("devices"), 1);
        let reports = reports.borrow();
        let found = reports.iter().find(|report| report.device == shared(0));
        found.map(|report| report.trouble.clone())
    };
    assert_eq!(health(&mut watch, &bench).as_deref(), Some(""));
    bench.stand_in.world().lost.push(device(0).uuid);
    assert!(health(&mut watch, &bench).is_some_and(|trouble| trouble.contains("lost")));
    for restarted in [false, true] {
        if restarted {
            bench.restart();
        }
        assert_eq!(
            bench.node().prepare(&running).expect("a container starts again"),
            before
        );
        let refused = bench.node().prepare(&new).expect_err("it is gone");
        assert!(
            refused.code == Code::Claim && refused.message.contains("no device"),
            "{refused:?}"
        );
        bench.check(1);
    }
    let (gone, failed) = bench.node().reconcile(None);
    assert!(
        gone.is_empty() && failed.is_empty(),
        "a pod has it: {gone:?} {failed:?}"
    );
    bench.node().prepare(&other).expect("the other device");
    bench.check(2);
    bench.node().unprepare(&running).expect("its pod is deleted");
    bench.check(1);
    bench.stand_in.world().lost.clear();
    assert_eq!(health(&mut watch, &bench).as_deref(), Some(""));
    bench.node().prepare(&new).expect("it is back");
    bench.check(2);
}
