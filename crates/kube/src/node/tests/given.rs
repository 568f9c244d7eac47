//! What is made for a claim, and what is refused because it is given already.

use super::*;

#[test]
fn a_claim_is_prepared_once_however_often_it_is_asked_for() {
    let mut bench = Bench::new();
    let claim = bench.stand_in.allocate(
        "u-1",
        &[
            ("a", shared(0), Some(("s1", 4096, 30))),
            ("b", shared(0), Some(("s2", 8192, 0))),
        ],
    );
    let first = bench.node().prepare(&claim).expect("prepared");
    let named: Vec<_> = first
        .iter()
        .map(|device| (&*device.request, device.share_id.as_deref(), device.cdi.len()))
        .collect();
    assert_eq!(
        named,
        [("a", Some("s1"), 1), ("b", Some("s2"), 1)],
        "one device, two shares"
    );
    assert_ne!(first[0].cdi, first[1].cdi);
    let terms: Vec<_> = bench
        .stand_in
        .world()
        .slices
        .iter()
        .map(|slice| (slice.shares.first.memory_limit_bytes, slice.terms.compute.share))
        .collect();
    assert_eq!(
        terms,
        [(Bytes(4 << 30), Some(Compute(3000))), (Bytes(8 << 30), None)]
    );
    assert_eq!(bench.node().prepare(&claim).expect("again"), first);
    bench.restart();
    bench.fail(Some(Step::Cluster));
    assert_eq!(
        bench.node().prepare(&claim).expect("without an API server"),
        first
    );
    bench.fail(None);
    assert_eq!(bench.stand_in.world().made, 2);
    bench.check(1);
    // A host that has started again has no slices: they are made again, as they were.
    {
        let mut world = bench.stand_in.world();
        world.slices.clear();
        world.described.clear();
    }
    assert_eq!(bench.node().prepare(&claim).expect("made again"), first);
    bench.check(1);
    for _ in 0..2 {
        bench.node().unprepare(&claim).expect("taken back");
        bench.check(0);
    }
}

#[test]
fn devices_of_one_request_are_one_slice() {
    let bench = Bench::new();
    let claim = bench.stand_in.allocate(
        "u-1",
        &[
            ("a/half", shared(0), Some(("s1", 4096, 30))),
            ("a/half", shared(1), Some(("s2", 4096, 30))),
        ],
    );
    let devices = bench.node().prepare(&claim).expect("prepared");
    let cdi: Vec<_> = devices
        .iter()
        .map(|device| (&*device.request, device.cdi.len()))
        .collect();
    assert_eq!(cdi, [("a", 1), ("a", 0)], "a container gets the slice once");
    assert_eq!(bench.stand_in.world().slices[0].shares.count(), 2);
    for wrong in [
        [
            ("a", shared(0), Some(("s3", 4096, 30))),
            ("a", shared(1), Some(("s4", 8192, 30))),
        ],
        [
            ("a", shared(0), Some(("s3", 4096, 30))),
            ("a", shared(0), Some(("s4", 4096, 30))),
        ],
    ] {
        let claim = bench.stand_in.allocate("u-2", &wrong);
        assert_eq!(
            bench.node().prepare(&claim).expect_err("refused").code,
            Code::Claim
        );
    }
    bench.check(1);
}

#[test]
fn what_is_given_out_twice_is_refused() {
    let bench = Bench::new();
    let first = bench
        .stand_in
        .allocate("u-1", &[("a", shared(0), Some(("s1", 100 << 10, 60)))]);
    bench.node().prepare(&first).expect("prepared");
    for (what, uid, device, share) in [
        ("the same share", "u-2", shared(0), Some(("s1", 4096, 0))),
        ("the device, whole", "u-3", whole(0), None),
        ("more cores", "u-4", shared(0), Some(("s2", 4096, 41))),
        ("more memory", "u-5", shared(0), Some(("s3", 40 << 10, 0))),
        ("no share of its memory", "u-6", shared(1), None),
        ("no such device", "u-7", "gpu-x".into(), None),
    ] {
        let claim = bench.stand_in.allocate(uid, &[("a", device, share)]);
        let refused = bench.node().prepare(&claim).expect_err(what);
        assert_eq!(refused.code, Code::Claim, "{what}");
        bench.check(1);
    }
    let whole_one = bench.stand_in.allocate("u-8", &[("a", whole(1), None)]);
    bench.node().prepare(&whole_one).expect("prepared");
    let share = bench
        .stand_in
        .allocate("u-9", &[("a", shared(1), Some(("s1", 4096, 0)))]);
    assert!(
        bench
            .node()
            .prepare(&share)
            .expect_err("whole")
            .message
            .contains("c-u-8")
    );
    bench.node().unprepare(&whole_one).expect("taken back");
    // Nor is a device whole that has a slice from outside Kubernetes, of any user.
    let mut other = bench.stand_in.world().slices[0].clone();
    (other.id, other.name, other.uid) = ("x".into(), "alice".into(), 1000);
    other.shares.first.device_uuid = device(1).uuid;
    bench.stand_in.world().slices.push(other);
    assert!(
        bench
            .node()
            .prepare(&whole_one)
            .expect_err("alice's")
            .message
            .contains("alice")
    );
}

#[test]
fn a_mig_instance_is_given_out_once_in_one_form_and_its_gpu_never() {
    let bench = Bench::new();
    let named = |number: u32| crate::devices::name(&mig(number));
    let allocate = |uid: &str, device: String, share| bench.stand_in.allocate(uid, &[("a", device, share)]);
    let first = allocate("u-1", named(0), None);
    bench.node().prepare(&first).expect("prepared");
    let share = |id| Some((id, 4096_u64, 10_u64));
    let small = allocate("u-2", format!("{}-shared", named(1)), share("s1"));
    bench
        .node()
        .prepare(&small)
        .expect("another instance of the same GPU");
    bench.check(2);
    for (what, uid, device, share) in [
        ("the same instance", "u-3", named(0), None),
        (
            "a share of it",
            "u-4",
            format!("{}-shared", named(0)),
            share("s2"),
        ),
        ("shares, whole", "u-5", named(1), None),
        (
            "the same share",
            "u-6",
            format!("{}-shared", named(1)),
            share("s1"),
        ),
        (
            "more than the instance has",
            "u-7",
            format!("{}-shared", named(1)),
            Some(("s3", 7 << 10, 0)),
        ),
        ("the divided GPU", "u-8", whole(2), None),
        (
            "an instance that is not there any more",
            "u-9",
            "mig-gone".into(),
            None,
        ),
    ] {
        let refused = bench
            .node()
            .prepare(&allocate(uid, device, share))
            .expect_err(what);
        assert_eq!(refused.code, Code::Claim, "{what}");
        bench.check(2);
    }
    bench.node().unprepare(&first).expect("taken back");
    bench
        .node()
        .prepare(&allocate("u-4", format!("{}-shared", named(0)), share("s2")))
        .expect("it is free");
    bench.check(2);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let bench = Bench::new();
    for (namespace, uid, name) in [
        ("default", "../../x", "c"),
        ("default", "", "c"),
        ("a/b", "u", "c"),
        ("default", "u", "c?x=y"),
        ("default", "u", "../c"),
    ] {
        let claim = Named {
            namespace: namespace.into(),
            uid: uid.into(),
            name: name.into(),
        };
        assert_eq!(
            bench.node().prepare(&claim).expect_err("refused").code,
            Code::Claim
        );
        assert_eq!(
            bench.node().unprepare(&claim).expect_err("refused").code,
            Code::Claim
        );
    }
    let unknown = Named {
        namespace: "default".into(),
        uid: "u-1".into(),
        name: "none".into(),
    };
    assert_eq!(
        bench.node().prepare(&unknown).expect_err("unknown").code,
        Code::Claim
    );
    bench.node().unprepare(&unknown).expect("nothing to take back");
}

#[test]
fn a_slice_that_was_resized_stays_its_claims() {
    let mut bench = Bench::new();
    let claim = bench
        .stand_in
        .allocate("u-1", &[("a", shared(0), Some(("s1", 4096, 30)))]);
    let first = bench.node().prepare(&claim).expect("prepared");
    bench.stand_in.world().slices[0].shares.first.memory_limit_bytes = Bytes(6 << 30);
    bench.restart();
    assert_eq!(bench.node().prepare(&claim).expect("again"), first);
    bench.check(1);
    // A slice that another made under the name is none.
    {
        let mut world = bench.stand_in.world();
        world.slices[0].id = "made by hand".into();
    }
    assert_eq!(
        bench.node().prepare(&claim).expect_err("another's").code,
        Code::Claim
    );
}

/// A pod of two claims' containers; each container names claims and requests.
fn pod(claims: &[(&str, &str)], containers: &[&[(&str, Option<&str>)]]) -> Pod {
    let claims: Vec<_> = claims
        .iter()
        .map(|(name, claim)| json!({"name": name, "resourceClaimName": claim}))
        .collect();
    let containers: Vec<_> = containers
        .iter()
        .enumerate()
        .map(|(number, claims)| {
            let claims: Vec<_> = claims
                .iter()
                .map(|(name, request)| json!({"name": name, "request": request}))
                .collect();
            json!({"name": format!("c{number}"), "resources": {"claims": claims}})
        })
        .collect();
    let pod = json!({"metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": "node", "resourceClaims": claims, "containers": containers}});
    serde_json::from_value(pod).expect("a pod")
}

#[test]
fn a_container_is_in_one_slice() {
    let bench = Bench::new();
    let two = [
        ("a", shared(0), Some(("s1", 4096, 0))),
        ("b", shared(0), Some(("s2", 4096, 0))),
    ];
    let first = bench.stand_in.allocate("u-1", &two);
    let second = bench
        .stand_in
        .allocate("u-2", &[("a", shared(1), Some(("s1", 4096, 0)))]);
    let claims = [("x", "c-u-1"), ("y", "c-u-2")];
    for (containers, fits) in [
        (
            &[&[("x", Some("a"))][..], &[("x", Some("b"))], &[("y", None)]][..],
            true,
        ),
        (
            &[&[("x", Some("a"))], &[("x", Some("a"))], &[("y", Some("a"))]],
            true,
        ),
        (&[&[("x", None)], &[("y", None)]], false),
        (&[&[("x", Some("a")), ("y", None)]], false),
        (&[&[("x", Some("a")), ("x", Some("b"))]], false),
    ] {
        bench.stand_in.world().pod = Some(pod(&claims, containers));
        let done = bench.node().prepare(&first);
        assert_eq!(done.is_ok(), fits, "{containers:?}: {done:?}");
        if let Err(refused) = done {
            assert!(
                refused.message.contains("container `c0`") && refused.code == Code::Claim,
                "{refused:?}"
            );
            bench.check(0);
        }
        bench.node().unprepare(&first).expect("taken back");
    }
    // Of the other claim's own: its container is well.
    bench.stand_in.world().pod = Some(pod(&claims, &[&[("x", None)], &[("y", None)]]));
    bench.node().prepare(&second).expect("prepared");
    // A pod that the scheduler gave an extended resource beside a claim.
    let mut both = pod(&[("y", "c-u-2")], &[&[("y", None)]]);
    let extended = json!({"resourceClaimName": "c-u-1",
        "requestMappings": [{"containerName": "c0", "requestName": "a", "resourceName": "x/gpu"}]});
    both.status.get_or_insert_default().extended_resource_claim_status =
        Some(serde_json::from_value(extended).expect("a status"));
    bench.stand_in.world().pod = Some(both);
    assert!(bench.node().prepare(&first).is_err());
}

/// A control plane whose clock is years ahead, or behind.
#[test]
fn times_of_another_clock_change_nothing() {
    let bench = Bench::new();
    for (uid, time) in [("u-1", "2199-01-01T00:00:00Z"), ("u-2", "1971-01-01T00:00:00Z")] {
        let claim = bench
            .stand_in
            .allocate(uid, &[("a", shared(0), Some((uid, 4096, 30)))]);
        let time = serde_json::from_value(json!(time)).expect("a time");
        let mut world = bench.stand_in.world();
        let found = world.claims.get_mut(&claim.name).expect("a claim");
        found.metadata.creation_timestamp = Some(time);
        drop(world);
        bench.node().prepare(&claim).expect("prepared");
        for _ in 0..3 {
            let (gone, failed) = bench.node().reconcile(None);
            assert!(gone.is_empty() && failed.is_empty(), "{gone:?} {failed:?}");
        }
    }
    bench.check(2);
}

#[test]
fn a_device_of_another_driver_is_not_prepared_and_what_runs_on_it_stays() {
    let mut bench = Bench::new();
    let before = bench
        .stand_in
        .allocate("u-1", &[("a", shared(1), Some(("s1", 4096, 0)))]);
    let devices = bench.node().prepare(&before).expect("prepared");
    bench.restart();
    let split = crate::split::Split::new(&[device(0).uuid], &[], &[]).expect("a split");
    bench.node = bench.node.take().map(|node| node.splitting(split));
    let own = bench
        .stand_in
        .allocate("u-2", &[("a", shared(0), Some(("s1", 4096, 0)))]);
    let other = bench
        .stand_in
        .allocate("u-3", &[("a", shared(1), Some(("s2", 4096, 0)))]);
    bench.node().prepare(&own).expect("this driver's");
    let refused = bench.node().prepare(&other).expect_err("another driver's");
    assert!(refused.message.contains("another driver's"), "{refused:?}");
    assert_eq!(bench.node().prepare(&before).expect("as before"), devices);
    bench.check(2);
    bench.node().unprepare(&before).expect("taken back");
    bench.check(1);
}
