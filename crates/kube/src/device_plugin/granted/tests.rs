use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::json;

use super::super::serve::tests::{StandIn, open};
use super::*;
use crate::devices::tests::{device, ill};
use crate::grants::{GRANTS, Granted as Signed, SIGNATURE, Signer};

/// A kubelet and an API server.
#[derive(Clone, Default)]
struct World(Arc<Mutex<Held>>);

#[derive(Default)]
struct Held {
    pods: Pods,
    objects: BTreeMap<String, Pod>,
    told: Vec<String>,
    /// The keys of the node's file, where they are not the extender's.
    keys: Option<Result<Believed, Fault>>,
}

impl World {
    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.0.lock().expect("a lock")
    }

    /// A container that the kubelet has admitted with these ids.
    fn lists(&self, pod: &str, container: &str, ids: &[String]) {
        let whose = PodContainer {
            namespace: "default".into(),
            pod: pod.into(),
            container: container.into(),
        };
        let mut held = self.held();
        held.pods.count += 1;
        for id in ids {
            let id = (RESOURCE.to_owned(), id.clone());
            held.pods.ids.insert(id.clone());
            held.pods.by_id.insert(id, whose.clone());
        }
    }

    fn unlists(&self, ids: &[String]) {
        let mut held = self.held();
        for id in ids {
            let id = (RESOURCE.to_owned(), id.clone());
            held.pods.ids.remove(&id);
            held.pods.by_id.remove(&id);
        }
    }
}

impl Around for World {
    fn pods(&self) -> Result<Pods, Fault> {
        Ok(self.held().pods.clone())
    }
    fn pod(&self, _: &str, name: &str) -> Result<Pod, Refusal> {
        let found = self.held().objects.get(name).cloned();
        found.ok_or_else(|| Refusal::NotFound("gone".into()))
    }
    fn announce(&self, node: &str, text: &str) -> Result<(), Refusal> {
        self.held().told.push(format!("{node} {text}"));
        Ok(())
    }
}

struct Bench {
    world: World,
    slices: StandIn,
    granted: Granted,
    signer: Signer,
    records: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let (world, slices) = (World::default(), StandIn::default());
        let records = tempfile::tempdir().expect("a folder");
        let signer = Signer::of(Signer::make().expect("a key").0.as_bytes()).expect("a key");
        let granted = started(&slices, &records, &world, &signer);
        Self {
            world,
            slices,
            granted,
            signer,
            records,
        }
    }

    /// A pod that the extender has bound here, with so much of these devices for its container `c`.
    fn bound(&self, name: &str, devices: &[u32], memory_mib: u64, cores: u64) -> Signed {
        let grant = |index: &u32| Grant {
            container: "c".into(),
            uuid: device(*index).uuid,
            memory_mib,
            cores,
            whole: false,
        };
        let signed = Signed {
            pod: format!("uid-{name}"),
            node: "a".into(),
            grants: devices.iter().map(grant).collect(),
        };
        self.write(name, &self.signer, &signed);
        signed
    }

    fn write(&self, name: &str, signer: &Signer, signed: &Signed) {
        let texts = signer.sign(signed).expect("signed");
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"),
                "annotations": {GRANTS: texts.text, SIGNATURE: texts.signature}},
            "spec": {"nodeName": "a", "containers": []},
        }));
        self.world.held().objects.insert(name.into(), pod.expect("a pod"));
    }

    fn names(&self) -> Vec<String> {
        self.slices
            .world()
            .slices
            .iter()
            .map(|slice| slice.name.clone())
            .collect()
    }
}

fn started(slices: &StandIn, records: &tempfile::TempDir, world: &World, signer: &Signer) -> Granted {
    let allocator = open(slices, records);
    allocator.set(vec![counted(&[device(0), device(1)])]);
    let (around, world, believed) = (world.clone(), world.clone(), signer.believed());
    let keys = move || match world.held().keys.clone() {
        None => Ok(believed.clone()),
        Some(keys) => keys,
    };
    Granted::new(allocator, Box::new(around), "a".into(), Box::new(keys))
}

fn ids(numbers: &[u32]) -> Vec<String> {
    numbers
        .iter()
        .map(|number| id(&device(0).uuid, Some(*number)))
        .collect()
}

#[test]
fn a_container_gets_what_was_signed_for_it() {
    let bench = Bench::new();
    bench.bound("p", &[1, 0], 1000, 30);
    let two = ids(&[0, 1]);
    let named = bench.granted.named(&two).expect("named");
    assert!(bench.names().is_empty(), "Allocate makes nothing");
    bench.world.lists("p", "c", &two);
    bench.granted.start(&two).expect("made");
    let slice = bench.slices.world().slices[0].clone();
    assert_eq!(named, format!("divvy.dev/slice={}", slice.name));
    let devices: Vec<String> = slice
        .shares
        .iter()
        .map(|share| share.device_uuid.clone())
        .collect();
    assert_eq!(
        devices,
        [device(1).uuid, device(0).uuid],
        "whatever devices the ids are of"
    );
    assert_eq!(
        bench.slices.terms(),
        [(Bytes(1000 << 20), Some(Compute(3000)), 2)]
    );
    // The container starts again, and the plugin does.
    let reordered = ids(&[1, 0]);
    bench.granted.start(&reordered).expect("there");
    let Bench {
        world,
        slices,
        granted,
        signer,
        records,
    } = bench;
    drop(granted);
    let granted = started(&slices, &records, &world, &signer);
    granted.start(&two).expect("there");
    assert_eq!(slices.world().made, 1);
}

#[test]
fn what_was_not_signed_for_the_container_makes_no_slice() {
    let bench = Bench::new();
    let one = ids(&[0]);
    bench.world.lists("p", "c", &one);
    let refused = |words: &str| {
        let fault = bench.granted.start(&one).expect_err(words);
        let said = format!("{fault} {:?}", fault.causes);
        assert!(said.contains(words), "{said}");
        assert!(bench.names().is_empty(), "{words}");
    };
    refused("cannot be read");
    let signed = bench.bound("p", &[0], 1000, 30);
    // Its author's own key, another pod's grants, another node's, another container's, more ids than grants.
    let own = Signer::of(Signer::make().expect("a key").0.as_bytes()).expect("a key");
    bench.write("p", &own, &signed);
    refused("not what the extender signed");
    let with = |change: fn(&mut Signed)| {
        let mut other = signed.clone();
        change(&mut other);
        bench.write("p", &bench.signer, &other);
    };
    with(|signed| signed.pod = "uid-other".into());
    refused("another pod's");
    with(|signed| signed.node = "b".into());
    refused("another node");
    with(|signed| signed.grants[0].container = "other".into());
    refused("grants of 0 devices");
    with(|signed| signed.grants[0].memory_mib = u64::MAX);
    refused("of no memory");
    let annotations = |name: &str| {
        let mut held = bench.world.held();
        let pod = held.objects.get_mut(name).expect("there");
        pod.metadata.annotations = None;
    };
    annotations("p");
    refused("granted it no device");
    bench.write("p", &bench.signer, &signed);
    assert!(
        bench.granted.start(&ids(&[3])).is_err(),
        "no container has this id"
    );
    bench.world.lists("other", "c", &ids(&[4]));
    assert!(
        bench.granted.start(&ids(&[0, 4])).is_err(),
        "ids of two containers"
    );
    for wrong in [vec![], vec!["x".to_owned()], ids(&[1, 1])] {
        assert!(bench.granted.named(&wrong).is_err(), "{wrong:?}");
    }
    bench.granted.start(&one).expect("its own");
}

/// A key that was taken out of the nodes' file counts no more, though the plugin goes on.
#[test]
fn a_key_that_was_taken_away_counts_no_more() {
    let bench = Bench::new();
    let one = ids(&[0]);
    let stolen = bench.bound("p", &[0], 1000, 30);
    bench.world.lists("p", "c", &one);
    let new = Signer::of(Signer::make().expect("a key").0.as_bytes()).expect("a key");
    bench.world.held().keys = Some(Ok(new.believed()));
    let fault = bench.granted.start(&one).expect_err("an earlier key");
    assert!(
        format!("{fault:?}").contains("not what the extender signed"),
        "{fault:?}"
    );
    // Without keys nothing is believed.
    bench.world.held().keys = Some(Err(Fault::new(Code::Usage, "no key")));
    assert_eq!(bench.granted.start(&one).expect_err("no key").code, Code::Usage);
    assert!(bench.names().is_empty());
    bench.world.held().keys = Some(Ok(new.believed()));
    bench.write("p", &new, &stolen);
    bench.granted.start(&one).expect("signed by the new key");
}

/// Grants of a container count once, whatever ids the kubelet has given it before.
#[test]
fn a_containers_grants_are_one_slice() {
    let bench = Bench::new();
    bench.bound("p", &[0], 1000, 30);
    bench.world.lists("p", "c", &ids(&[0]));
    bench.granted.start(&ids(&[0])).expect("made");
    bench.world.unlists(&ids(&[0]));
    bench.world.lists("p", "c", &ids(&[1]));
    bench.granted.start(&ids(&[1])).expect("made");
    assert_eq!(bench.names().len(), 1);
    // The id goes to another pod: its first has ended.
    bench.bound("q", &[1], 500, 10);
    bench.world.unlists(&ids(&[1]));
    bench.world.lists("q", "c", &ids(&[1]));
    bench.granted.start(&ids(&[1])).expect("made");
    assert_eq!(bench.slices.terms(), [(Bytes(500 << 20), Some(Compute(1000)), 1)]);
}

/// The extender knows that a pod is gone before the plugin looks: its room is made at once.
#[test]
fn what_no_pod_has_makes_room() {
    let bench = Bench::new();
    bench.bound("p", &[0], 1000, 30);
    bench.bound("q", &[0], 1000, 30);
    bench.world.lists("p", "c", &ids(&[0]));
    bench.granted.start(&ids(&[0])).expect("made");
    bench.slices.world().full_after = Some(1);
    bench.world.lists("q", "c", &ids(&[1]));
    assert!(bench.granted.start(&ids(&[1])).is_err(), "the first pod is there");
    assert_eq!(bench.names().len(), 1);
    bench.world.unlists(&ids(&[0]));
    bench.granted.start(&ids(&[1])).expect("made");
    assert_eq!(bench.names().len(), 1);
}

#[test]
fn the_node_tells_its_devices_when_they_change() {
    let bench = Bench::new();
    let mut told = None;
    for devices in [
        vec![device(0), device(1)],
        vec![device(0), device(1)],
        vec![ill(0), device(1)],
    ] {
        bench.granted.announce(&devices, &mut told).expect("told");
    }
    let held = bench.world.held();
    assert_eq!(held.told.len(), 2);
    let node = json!({"metadata": {"name": "a", "annotations": {DEVICES: held.told[1].strip_prefix("a ").expect("the node")}}});
    let node = serde_json::from_value(node).expect("a node");
    let read = crate::extender::objects::devices(&node).expect("as the extender reads it");
    assert_eq!(read.len(), 2);
    assert_eq!((read[0].healthy, read[1].healthy), (false, true));
    assert_eq!(read[1].memory_mib, device(1).memory_usable_bytes().0 >> 20);
}
