use std::collections::BTreeMap;
use std::sync::Arc;

use divvy_model::{DeviceShare, Shares};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::DRIVER;
use crate::devices::tests::device;

/// A request's name, its device, and of a shared device the shareID, bytes of memory and cores.
type Allocated<'a> = (&'a str, String, Option<(&'a str, u64, u64)>);

/// What an agent and an API server would hold, and which call is to fail next.
#[derive(Default)]
struct World {
    slices: Vec<SliceRecord>,
    described: BTreeMap<String, u32>,
    claims: BTreeMap<String, ResourceClaim>,
    made: u32,
    fail: Option<Step>,
}

/// Where the agent goes away: before it did it, or after, when only the answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Slices,
    Make,
    MadeAndLost,
    Describe,
    End,
    Cluster,
}

#[derive(Clone, Default)]
struct StandIn(Arc<Mutex<World>>);

impl StandIn {
    fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.0.lock().expect("a lock")
    }

    fn step(&self, step: Step) -> Result<(), Fault> {
        match self.world().fail == Some(step) {
            true => Err(Fault::new(Code::AgentUnreachable, "no agent answers")),
            false => Ok(()),
        }
    }

    /// The scheduler's word: shares of `device` for each request.
    fn allocate(&self, uid: &str, results: &[Allocated<'_>]) -> Named {
        let results: Vec<_> = results
            .iter()
            .map(|(request, device, share)| {
                let mut result =
                    json!({"request": request, "driver": DRIVER, "pool": "node", "device": device});
                if let Some((id, memory, cores)) = share {
                    result["shareID"] = json!(id);
                    result["consumedCapacity"] =
                        json!({"memory": format!("{memory}Mi"), "cores": cores.to_string(), "slots": "1"});
                }
                result
            })
            .collect();
        let name = format!("c-{uid}");
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {},
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "status": {"allocation": {"devices": {"results": results}}},
        });
        let claim = serde_json::from_value(claim).expect("a claim");
        self.world().claims.insert(name.clone(), claim);
        Named {
            namespace: "default".into(),
            uid: uid.into(),
            name,
        }
    }
}

impl Host for StandIn {
    fn devices(&self) -> Result<Vec<DeviceRecord>, Fault> {
        self.step(Step::Slices)?;
        Ok(vec![device(0), device(1)])
    }
    fn slices(&self) -> Result<Vec<SliceRecord>, Fault> {
        self.step(Step::Slices)?;
        Ok(self.world().slices.clone())
    }
    fn make(&self, ask: &SliceRequest, _: &[String]) -> Result<SliceRecord, Fault> {
        self.step(Step::Make)?;
        let mut world = self.world();
        let name = ask.name.clone().expect("a name");
        assert!(
            name.len() <= 63 && world.slices.iter().all(|slice| slice.name != name),
            "{name}"
        );
        world.made += 1;
        let shares = ask.selectors().map(|selector| DeviceShare {
            device_uuid: selector.to_string(),
            memory_limit_bytes: match ask.memory {
                Some(MemoryAmount::Bytes(bytes)) => bytes,
                _ => device(0).memory_usable_bytes(),
            },
            ..DeviceShare::default()
        });
        let slice = SliceRecord {
            id: format!("{:08x}", world.made),
            name,
            shares: Shares::of(shares).expect("a device"),
            terms: ask.terms,
            ..SliceRecord::default()
        };
        world.slices.push(slice.clone());
        drop(world);
        self.step(Step::MadeAndLost)?;
        Ok(slice)
    }
    fn describe(&self, slice: &SliceRecord) -> Result<String, Fault> {
        self.step(Step::Describe)?;
        *self.world().described.entry(slice.id.clone()).or_default() += 1;
        Ok(format!("divvy.dev/slice={}", slice.name))
    }
    fn end(&self, slice: &SliceRecord) -> Result<(), Fault> {
        self.step(Step::End)?;
        self.world().slices.retain(|other| other.id != slice.id);
        Ok(())
    }
}

impl Cluster for StandIn {
    fn node_uid(&self, _: &str) -> Result<String, Refusal> {
        Ok(String::new())
    }
    fn resource_slices(&self, _: &str) -> Result<Vec<ResourceSlice>, Refusal> {
        Ok(Vec::new())
    }
    fn create(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        Ok(slice.clone())
    }
    fn replace(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        Ok(slice.clone())
    }
    fn delete(&self, _: &str) -> Result<(), Refusal> {
        Ok(())
    }
    fn claim(&self, _: &str, name: &str) -> Result<ResourceClaim, Refusal> {
        if self.world().fail == Some(Step::Cluster) {
            return Err(Refusal::Other("connection refused".into()));
        }
        let found = self.world().claims.get(name).cloned();
        found.ok_or_else(|| Refusal::NotFound(format!("{name} not found")))
    }
}

struct Bench {
    stand_in: StandIn,
    folder: tempfile::TempDir,
    node: Option<Node>,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self {
            stand_in: StandIn::default(),
            folder: tempfile::tempdir().expect("a folder"),
            node: None,
        };
        bench.restart();
        bench
    }

    /// The driver is killed and started again.
    fn restart(&mut self) {
        self.node = None;
        let state = State::open(&self.folder.path().join("claims")).expect("records");
        let (host, cluster) = (Box::new(self.stand_in.clone()), Box::new(self.stand_in.clone()));
        self.node = Some(Node::open("node", host, cluster, state).expect("a node"));
    }

    fn node(&self) -> &Node {
        self.node.as_ref().expect("a node")
    }

    fn fail(&self, step: Option<Step>) {
        self.stand_in.world().fail = step;
    }

    fn slices(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .stand_in
            .world()
            .slices
            .iter()
            .map(|slice| slice.name.clone())
            .collect();
        names.sort();
        names
    }

    /// Slices are those of the claims that are prepared, and of no others.
    fn check(&self, prepared: usize) {
        let claims = self.node().claims().expect("records");
        assert!(claims.iter().all(|claim| claim.prepared), "{claims:?}");
        let mut expected: Vec<String> = claims
            .iter()
            .flat_map(|claim| claim.requests.iter().map(|request| request.slice.clone()))
            .collect();
        expected.sort();
        assert_eq!((claims.len(), self.slices()), (prepared, expected));
    }
}

fn shared(index: u32) -> String {
    format!("{}-shared", crate::devices::name(&device(index)))
}

fn whole(index: u32) -> String {
    crate::devices::name(&device(index))
}

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
    bench.stand_in.world().slices.clear();
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
            bench.check(1);
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
    let planned = bench.node().planned(&claim).expect("planned");
    bench.node().state.write(&planned).expect("written");
    bench.fail(None);
    fail_too.make(&planned.requests[0].ask, &[]).expect("made");
    bench.restart();
    bench.check(0);
    // The same with an agent that is away while the driver starts: the next call does it.
    bench.node().state.write(&planned).expect("written");
    fail_too.make(&planned.requests[0].ask, &[]).expect("made");
    bench.fail(Some(Step::Slices));
    bench.restart();
    bench.fail(None);
    assert_eq!(bench.slices().len(), 1);
    bench.node().prepare(&claim).expect("prepared");
    bench.check(1);
    // Records that were lost: the slice is found by its name, and is as asked for.
    bench.node().state.remove("u-1").expect("removed");
    let made = bench.stand_in.world().made;
    bench.node().prepare(&claim).expect("prepared");
    assert_eq!(bench.stand_in.world().made, made);
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
    // Nor is a device whole that has a slice from outside Kubernetes.
    let mut other = bench.stand_in.world().slices[0].clone();
    (other.id, other.name) = ("x".into(), "alice".into());
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the order of calls, failures and restarts: slices are those of the claims that are prepared.
    #[test]
    fn any_sequence_keeps_slices_and_claims_together(
        steps in proptest::collection::vec((0..4_u8, 0..6_usize, proptest::option::weighted(0.3, 0..6_usize)), 1..60)
    ) {
        const STEPS: [Step; 6] = [Step::Slices, Step::Make, Step::MadeAndLost, Step::Describe, Step::End, Step::Cluster];
        let mut bench = Bench::new();
        let claims: Vec<Named> = (0..6)
            .map(|number| {
                let (id, uid) = (format!("s{number}"), format!("u-{number}"));
                let share = Some((&*id, 20 << 10, 16));
                bench.stand_in.allocate(&uid, &[("a", shared(number % 2), share)])
            })
            .collect();
        let mut model = std::collections::BTreeSet::new();
        for (what, which, fail) in steps {
            bench.fail(fail.map(|step| STEPS[step]));
            match what {
                0 | 1 => {
                    if bench.node().prepare(&claims[which]).is_ok() {
                        model.insert(which);
                    }
                }
                2 => {
                    if bench.node().unprepare(&claims[which]).is_ok() {
                        model.remove(&which);
                    }
                }
                _ => bench.restart(),
            }
            bench.fail(None);
            bench.restart();
            bench.check(model.len());
        }
    }
}
