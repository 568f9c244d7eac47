use std::collections::BTreeMap;
use std::sync::{Arc, Condvar};

use divvy_model::{Bytes, Compute, DeviceShare, MemoryAmount, Shares, SliceRequest};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::DRIVER;
use crate::counters::tests::{divided, instance};
use crate::devices::tests::device;
use crate::points;

mod sequences;

/// A request's name, its device, and of a shared device the shareID, bytes of memory and cores.
type Allocated<'a> = (&'a str, String, Option<(&'a str, u64, u64)>);

/// What an agent and an API server would hold, and which call is to fail next.
#[derive(Default)]
struct World {
    slices: Vec<SliceRecord>,
    described: BTreeMap<String, u32>,
    claims: BTreeMap<String, ResourceClaim>,
    pod: Option<Pod>,
    /// The API server does not answer for this claim.
    held: Option<String>,
    asked: u32,
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
struct StandIn(Arc<Mutex<World>>, Arc<Condvar>);

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
            "status": {"allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": format!("p-{uid}"), "uid": format!("p-{uid}")}]},
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
    fn uid(&self) -> u32 {
        0
    }
    fn devices(&self) -> Result<Vec<DeviceRecord>, Fault> {
        self.step(Step::Slices)?;
        Ok(vec![device(0), device(1), divided(2), mig(0), mig(1)])
    }
    fn slices(&self) -> Result<Vec<SliceRecord>, Fault> {
        self.step(Step::Slices)?;
        Ok(self.world().slices.clone())
    }
    fn make(&self, ask: &SliceRequest, words: &[String]) -> Result<SliceRecord, Fault> {
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
            command: words.to_vec(),
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
        let mut world = self.world();
        world.slices.retain(|other| other.id != slice.id);
        world.described.remove(&slice.id);
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
    fn probe(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        Ok(slice.clone())
    }
    /// One pod for all claims: its UID is the name under which each is reserved.
    fn pod(&self, _: &str, name: &str) -> Result<Pod, Refusal> {
        let found = self.world().pod.clone();
        let mut pod = found.ok_or_else(|| Refusal::NotFound("gone".into()))?;
        pod.metadata.uid = Some(name.to_owned());
        Ok(pod)
    }
    fn tell(&self, _: &Event) -> Result<(), Refusal> {
        Ok(())
    }
    fn claim(&self, _: &str, name: &str) -> Result<ResourceClaim, Refusal> {
        let mut world = self.world();
        world.asked += 1;
        self.1.notify_all();
        while world.held.as_deref() == Some(name) {
            world = self.1.wait(world).expect("a lock");
        }
        drop(world);
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

/// In memory where there is such a folder: records are synced often.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a folder")
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self {
            stand_in: StandIn::default(),
            folder: folder(),
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
        self.node = Some(Node::open("node", host, cluster, state, 100).expect("a node"));
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
        let world = self.stand_in.world();
        let ids: Vec<&String> = world.slices.iter().map(|slice| &slice.id).collect();
        assert!(
            world.described.keys().all(|id| ids.contains(&id)),
            "a CDI file is left"
        );
    }
}

fn shared(index: u32) -> String {
    format!("{}-shared", crate::devices::name(&device(index)))
}

/// A MIG instance of the third GPU: 3g.40gb, or 1g.10gb.
fn mig(number: u32) -> DeviceRecord {
    match number {
        0 => instance(2, (1, 0), (40, 60), (4, 4)),
        _ => instance(2, (7, 0), (10, 16), (0, 1)),
    }
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
