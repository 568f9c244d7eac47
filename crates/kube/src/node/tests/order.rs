//! Calls that are late, that the API server holds up, or that never come.

use super::*;

/// Waits in `work` of another thread until the API server was asked.
fn held<T: Send>(bench: &Bench, name: &str, work: impl FnOnce() -> T + Send, meanwhile: impl FnOnce()) -> T {
    bench.stand_in.world().held = Some(name.to_owned());
    let asked = bench.stand_in.world().asked;
    std::thread::scope(|scope| {
        let work = scope.spawn(work);
        let mut world = bench.stand_in.world();
        while world.asked == asked {
            world = bench.stand_in.1.wait(world).expect("a lock");
        }
        drop(world);
        meanwhile();
        bench.stand_in.world().held = None;
        bench.stand_in.1.notify_all();
        work.join().expect("no panic")
    })
}

#[test]
fn an_api_server_that_does_not_answer_holds_up_one_claim_only() {
    let bench = Bench::new();
    let [slow, quick] = ["u-1", "u-2"].map(|uid| {
        let share = Some((uid, 4096, 30));
        bench.stand_in.allocate(uid, &[("a", shared(0), share)])
    });
    let node = bench.node();
    held(
        &bench,
        "c-u-1",
        || node.prepare(&slow),
        || {
            node.prepare(&quick).expect("prepared meanwhile");
            node.unprepare(&quick).expect("taken back meanwhile");
        },
    )
    .expect("prepared in the end");
    bench.check(1);
}

#[test]
fn a_prepare_that_is_late_makes_nothing() {
    let bench = Bench::new();
    let claim = bench
        .stand_in
        .allocate("u-1", &[("a", shared(0), Some(("s1", 4096, 30)))]);
    let node = bench.node();
    // The claim is taken back while the API server is asked about it.
    let refused = held(
        &bench,
        "c-u-1",
        || node.prepare(&claim),
        || {
            node.unprepare(&claim).expect("nothing yet");
        },
    );
    assert_eq!(refused.expect_err("late").code, Code::Claim);
    bench.check(0);
    // The call came first, and is served last.
    let ticket = node.arrive(&claim);
    node.unprepare(&claim).expect("nothing yet");
    assert!(node.prepare_for(&claim, &ticket).is_err());
    bench.check(0);
    // The kubelet gave the call up.
    let ticket = node.arrive(&claim);
    ticket.end();
    assert!(node.prepare_for(&claim, &ticket).is_err());
    // The pod has ended, as the API server knows.
    let reserved = {
        let mut world = bench.stand_in.world();
        let status = world
            .claims
            .get_mut("c-u-1")
            .and_then(|claim| claim.status.as_mut())
            .expect("a status");
        status.reserved_for.take()
    };
    assert!(
        node.prepare(&claim)
            .expect_err("late")
            .message
            .contains("reserved")
    );
    bench.check(0);
    // A later pod has the same claim.
    let mut world = bench.stand_in.world();
    let status = world
        .claims
        .get_mut("c-u-1")
        .and_then(|claim| claim.status.as_mut())
        .expect("a status");
    status.reserved_for = reserved;
    drop(world);
    node.prepare(&claim).expect("prepared");
    bench.check(1);
}

#[test]
fn claims_that_the_kubelet_forgot_are_taken_back() {
    let bench = Bench::new();
    let [gone, kept, listed] = ["u-1", "u-2", "u-3"].map(|uid| {
        let share = Some((uid, 4096, 30));
        let claim = bench.stand_in.allocate(uid, &[("a", shared(0), share)]);
        bench.node().prepare(&claim).expect("prepared");
        claim
    });
    for claim in [&gone, &listed] {
        bench.stand_in.world().claims.remove(&claim.name);
    }
    let pods = std::collections::BTreeSet::from([(listed.namespace.clone(), listed.name.clone())]);
    // An API server that does not answer, and one that answers once.
    bench.fail(Some(Step::Cluster));
    for _ in 0..3 {
        assert!(bench.node().reconcile(Some(&pods)).0.is_empty());
    }
    bench.fail(None);
    assert!(bench.node().reconcile(Some(&pods)).0.is_empty());
    bench.check(3);
    assert_eq!(bench.node().reconcile(Some(&pods)).0, std::slice::from_ref(&gone));
    bench.check(2);
    // Programs still run in it.
    bench.fail(Some(Step::End));
    bench.node().reconcile(None);
    let (done, failed) = bench.node().reconcile(None);
    assert_eq!((done.len(), failed.len()), (0, 1));
    bench.fail(None);
    assert_eq!(bench.node().reconcile(None).0, [listed]);
    // A claim that is named by a call between two looks is counted again.
    let removed = bench.stand_in.world().claims.remove(&kept.name);
    assert!(bench.node().reconcile(None).0.is_empty());
    bench.node().prepare(&kept).expect("again");
    assert!(bench.node().reconcile(None).0.is_empty());
    bench
        .stand_in
        .world()
        .claims
        .extend(removed.map(|claim| (kept.name.clone(), claim)));
    assert!(bench.node().reconcile(None).0.is_empty());
    bench.check(1);
}
