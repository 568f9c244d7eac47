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

mod ends;
mod given;
mod order;
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
    /// Devices that fell off the bus.
    lost: Vec<String>,
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
        let mut all = vec![device(0), device(1), divided(2), mig(0), mig(1)];
        all.retain(|device| !self.world().lost.contains(&device.uuid));
        Ok(all)
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
    fn slices_of_all(&self, _: &str) -> Result<Vec<ResourceSlice>, Refusal> {
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
