//! Publishing against a stand-in that drops fields, refuses, and lets others write first.

use std::sync::Mutex;

use k8s_openapi::api::resource::v1::ResourceClaim;

use super::*;
use crate::devices::tests::{device, ill};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// An API server that has some gates off, refuses what Kubernetes refuses, and lets another writer come first.
#[derive(Default)]
struct StandIn {
    slices: Mutex<Vec<ResourceSlice>>,
    no_capacity: bool,
    no_counters: bool,
    no_taints: bool,
    strict: bool,
    /// The server was upgraded, or its gates are still on: it keeps all.
    upgraded: std::sync::atomic::AtomicBool,
    uid: Mutex<String>,
    conflicts: Mutex<u32>,
    lists: std::sync::atomic::AtomicU32,
    writes: Mutex<u32>,
    denied: Mutex<Option<Refusal>>,
    /// So many writes pass before that.
    passing: Mutex<u32>,
}

impl StandIn {
    fn kept(&self, slice: &ResourceSlice, version: u32) -> Result<ResourceSlice, Refusal> {
        let mut kept = slice.clone();
        kept.metadata.resource_version = Some(version.to_string());
        for taint in kept
            .spec
            .devices
            .iter_mut()
            .flatten()
            .flat_map(|device| device.taints.iter_mut().flatten())
        {
            taint.time_added = serde_json::from_str::<Time>("\"2026-01-01T00:00:00Z\"").ok();
        }
        if self.upgraded.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(kept);
        }
        if self.no_taints {
            kept.spec
                .devices
                .iter_mut()
                .flatten()
                .for_each(|device| device.taints = None);
        }
        if self.no_counters {
            kept.spec.shared_counters = None;
            if self.strict && kept.spec.devices.is_none() {
                return Err(Refusal::Invalid(
                    "spec: exactly one of devices and sharedCounters is required".into(),
                ));
            }
        }
        for device in kept.spec.devices.iter_mut().flatten() {
            if self.no_counters {
                device.consumes_counters = None;
            }
            if self.no_capacity {
                device.allow_multiple_allocations = None;
                for capacity in device.capacity.iter_mut().flatten() {
                    capacity.1.request_policy = None;
                }
            }
        }
        Ok(kept)
    }

    fn write(&self) -> Result<u32, Refusal> {
        if let Some(refusal) = self.denied.lock().expect("a lock").clone() {
            let mut passing = self.passing.lock().expect("a lock");
            match passing.checked_sub(1) {
                Some(left) => *passing = left,
                None => return Err(refusal),
            }
        }
        let mut conflicts = self.conflicts.lock().expect("a lock");
        if *conflicts > 0 {
            *conflicts -= 1;
            return Err(Refusal::Conflict("the object has been modified".into()));
        }
        let mut writes = self.writes.lock().expect("a lock");
        *writes += 1;
        Ok(*writes)
    }
}

impl Cluster for StandIn {
    fn node_uid(&self, _: &str) -> Result<String, Refusal> {
        Ok(format!("n-1{}", self.uid.lock().expect("a lock")))
    }
    fn probe(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        self.kept(slice, 0)
    }
    fn pod(&self, _: &str, _: &str) -> Result<Pod, Refusal> {
        Err(Refusal::NotFound("gone".into()))
    }
    fn tell(&self, _: &Event) -> Result<(), Refusal> {
        Ok(())
    }
    fn resource_slices(&self, _: &str) -> Result<Vec<ResourceSlice>, Refusal> {
        self.lists.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(self.slices.lock().expect("a lock").clone())
    }
    fn slices_of_all(&self, _: &str) -> Result<Vec<ResourceSlice>, Refusal> {
        Ok(self.slices.lock().expect("a lock").clone())
    }
    fn create(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        let kept = self.kept(slice, self.write()?)?;
        self.slices.lock().expect("a lock").push(kept.clone());
        Ok(kept)
    }
    fn replace(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        let mut kept = self.kept(slice, self.write()?)?;
        let mut all = self.slices.lock().expect("a lock");
        let old = all
            .iter_mut()
            .find(|old| old.metadata.name == slice.metadata.name);
        let old = old.ok_or_else(|| Refusal::NotFound("gone".into()))?;
        // As 1.36.2 does: a field that the object has is kept, whatever the gate says now.
        let shares = |device: &Device| {
            device.allow_multiple_allocations.is_some() || device.consumes_counters.is_some()
        };
        if old.spec.shared_counters.is_some() || old.spec.devices.iter().flatten().any(shares) {
            kept.spec.shared_counters.clone_from(&slice.spec.shared_counters);
            let asked = slice.spec.devices.iter().flatten();
            for (device, asked) in kept.spec.devices.iter_mut().flatten().zip(asked) {
                let taints = device.taints.take();
                *device = Device {
                    taints,
                    ..asked.clone()
                };
            }
        }
        if old.metadata.resource_version != slice.metadata.resource_version {
            return Err(Refusal::Conflict("an old version".into()));
        }
        *old = kept.clone();
        Ok(kept)
    }
    fn delete(&self, name: &str) -> Result<(), Refusal> {
        self.write()?;
        let mut all = self.slices.lock().expect("a lock");
        all.retain(|slice| slice.metadata.name.as_deref() != Some(name));
        Ok(())
    }
    fn claim(&self, _: &str, name: &str) -> Result<ResourceClaim, Refusal> {
        Err(Refusal::NotFound(name.into()))
    }
}

#[test]
fn a_pool_is_written_once_and_again_when_it_changes() {
    let server = StandIn::default();
    let mut publisher = Publisher::new(&server, "node", 100);
    let first = publisher.publish(&[device(0)]).expect("published");
    assert_eq!(
        (first.generation, first.shape, first.changed),
        (1, Shape::Both, true)
    );
    assert!(!publisher.publish(&[device(0)]).expect("the same").changed);
    let second = publisher.publish(&[device(0), device(1)]).expect("published");
    assert_eq!((second.generation, second.changed), (2, true));
    // A driver that starts again finds its own pool.
    let mut next = Publisher::new(&server, "node", 100);
    assert!(!next.publish(&[device(0), device(1)]).expect("the same").changed);
    // Another writer's change, and what an earlier install left, go.
    server.slices.lock().expect("a lock")[0].spec.pool.generation = 9;
    let third = next.publish(&[device(0), device(1)]).expect("published");
    assert_eq!((third.generation, third.changed), (10, true));
    let mut stale = server.slices.lock().expect("a lock")[0].clone();
    stale.metadata.name = Some("stale".into());
    server.slices.lock().expect("a lock").push(stale);
    next.publish(&[device(0), device(1)]).expect("published");
    let all = server.slices.lock().expect("a lock").clone();
    assert!(all.len() == 2 && all.iter().all(|slice| slice.spec.pool.generation == 11));
    next.publish(&[]).expect("nothing is left");
    assert!(server.slices.lock().expect("a lock").is_empty());
    next.publish(&[device(0)]).expect("published");
    next.withdraw().expect("deleted");
    assert!(server.slices.lock().expect("a lock").is_empty());
}

/// Ten thousand nodes ask one server.
#[test]
fn a_node_whose_devices_stay_asks_seldom_and_one_whose_devices_change_at_once() {
    let server = StandIn::default();
    let mut publisher = Publisher::new(&server, "node", 100);
    let lists = || server.lists.load(std::sync::atomic::Ordering::Relaxed);
    let mut publish = |devices: &[DeviceRecord]| publisher.publish_if_due(devices).expect("published");
    publish(&[device(0)]);
    let first = lists();
    for _ in 0..360 {
        assert!(!publish(&[device(0)]).changed);
    }
    let hour = lists() - first;
    assert!((5..=12).contains(&hour), "{hour} in an hour of looks");
    let before = lists();
    assert!(publish(&[device(0), device(1)]).changed && lists() > before);
    // What others did meanwhile is found too, in the end.
    server.slices.lock().expect("a lock").clear();
    assert!((0..=2 * REST).any(|_| publish(&[device(0), device(1)]).changed));
    assert!(!server.slices.lock().expect("a lock").is_empty());
}

#[test]
fn the_order_of_devices_is_published_again_when_it_changes() {
    let server = StandIn::default();
    let mut publisher = Publisher::new(&server, "node", 100).preferring(Prefer::Spread);
    let busy = |index: u32, ratio: f64| {
        let mut busy = device(index);
        busy.sharing = Some(divvy_model::Sharing {
            compute_promised_ratio: ratio,
            slice_max: 16,
            ..divvy_model::Sharing::default()
        });
        busy
    };
    let first = || {
        let all = server.slices.lock().expect("a lock").clone();
        let mut devices = all
            .into_iter()
            .flat_map(|slice| slice.spec.devices.unwrap_or_default());
        devices.next().expect("one").name
    };
    let idle = [busy(0, 0.0), busy(1, 0.0)];
    let generation = publisher.publish_if_due(&idle).expect("published").generation;
    assert!(first().starts_with("gpu-00000000"), "{}", first());
    let half = [busy(0, 0.5), busy(1, 0.0)];
    let mut looks = (0..100).map(|_| publisher.publish_if_due(&half).expect("published"));
    let changed = looks.find(|published| published.changed).expect("in the end");
    assert_eq!(changed.generation, generation + 1);
    assert!(first().starts_with("gpu-00000001"), "{}", first());
}

#[test]
fn another_writer_that_comes_first_is_waited_out_and_no_longer() {
    let server = StandIn::default();
    let mut publisher = Publisher::new(&server, "node", 100);
    *server.conflicts.lock().expect("a lock") = 3;
    publisher.publish(&[device(0)]).expect("published in the end");
    *server.conflicts.lock().expect("a lock") = 1000;
    let refused = publisher.publish(&[device(1)]).expect_err("always another");
    assert!(matches!(refused, Refusal::Conflict(_)));
    assert_eq!(*server.conflicts.lock().expect("a lock"), 1000 - 5);
    *server.conflicts.lock().expect("a lock") = 0;
    *server.denied.lock().expect("a lock") = Some(Refusal::Other("forbidden".into()));
    assert_eq!(
        publisher.publish(&[device(1)]),
        Err(Refusal::Other("forbidden".into()))
    );
}

/// A full etcd refuses each write, and an admission policy those of another node. The next look after that writes the pool.
#[test]
fn a_server_that_can_write_nothing_is_asked_again() {
    let server = StandIn::default();
    let mut publisher = Publisher::new(&server, "node", 100);
    publisher.publish_if_due(&[device(0)]).expect("published");
    let held = || server.slices.lock().expect("a lock").clone();
    let before = held();
    for why in ["etcdserver: mvcc: database space exceeded", "denied by a policy"] {
        *server.denied.lock().expect("a lock") = Some(Refusal::Other(why.into()));
        for _ in 0..3 {
            let refused = publisher.publish_if_due(&[device(0), device(1)]).expect_err(why);
            assert_eq!(refused.to_string(), why);
            assert_eq!(held(), before, "what is there stays");
        }
    }
    // It fills up between the two objects of a pool: half of a generation is passed over by the scheduler, as incomplete.
    *server.passing.lock().expect("a lock") = 1;
    publisher
        .publish_if_due(&[device(0), device(1)])
        .expect_err("the second write");
    let generations = || -> Vec<i64> { held().iter().map(|slice| slice.spec.pool.generation).collect() };
    assert_eq!(generations(), [2, 1]);
    *server.denied.lock().expect("a lock") = None;
    assert!(
        publisher
            .publish_if_due(&[device(0), device(1)])
            .expect("published")
            .changed
    );
    assert_eq!(generations(), [3, 3], "the whole pool is written again");
    let devices = held()
        .into_iter()
        .flat_map(|slice| slice.spec.devices.unwrap_or_default());
    assert_eq!(devices.count(), 4);
}

#[test]
fn what_the_server_drops_is_seen_and_said() {
    for (no_capacity, no_counters, strict, shape, named) in [
        (true, true, false, Shape::WholeOnly, "DRAConsumableCapacity"),
        (true, true, true, Shape::WholeOnly, "DRAConsumableCapacity"),
        (true, false, false, Shape::WholeOnly, "DRAConsumableCapacity"),
        (false, true, false, Shape::SharedOnly, "DRAPartitionableDevices"),
        (false, true, true, Shape::SharedOnly, "DRAPartitionableDevices"),
    ] {
        let server = StandIn {
            no_capacity,
            no_counters,
            strict,
            ..StandIn::default()
        };
        let mut publisher = Publisher::new(&server, "node", 100);
        let found = publisher.publish(&[device(0), device(1)]).expect("published");
        assert_eq!(found.shape, shape, "{no_capacity} {no_counters} {strict}");
        assert!(
            found.fallback.as_ref().is_some_and(|words| words.contains(named)),
            "{found:?}"
        );
        // No device is left that looks dedicated and is shared, and none of the other form.
        let all = server.slices.lock().expect("a lock").clone();
        let devices: Vec<Device> = all
            .into_iter()
            .flat_map(|slice| slice.spec.devices.unwrap_or_default())
            .collect();
        assert_eq!(devices.len(), 2);
        for device in devices {
            assert_eq!(device.name.ends_with("-shared"), shape == Shape::SharedOnly);
            assert_eq!(
                device.allow_multiple_allocations.is_some(),
                shape == Shape::SharedOnly
            );
        }
        assert!(
            !publisher
                .publish(&[device(0), device(1)])
                .expect("the same")
                .changed
        );
    }
}

#[test]
fn health_comes_and_goes_without_a_restart() {
    for no_taints in [false, true] {
        let server = StandIn {
            no_taints,
            ..StandIn::default()
        };
        let mut publisher = Publisher::new(&server, "node", 100);
        let offered = || {
            let all = server.slices.lock().expect("a lock").clone();
            let devices = all
                .into_iter()
                .flat_map(|slice| slice.spec.devices.unwrap_or_default());
            devices
                .map(|device| device.taints.is_some_and(|taints| !taints.is_empty()))
                .collect::<Vec<_>>()
        };
        publisher.publish(&[device(0), device(1)]).expect("published");
        assert_eq!(offered(), [false; 4]);
        let found = publisher.publish(&[ill(0), device(1)]).expect("published");
        match no_taints {
            false => assert_eq!(offered(), [true, false, true, false]),
            true => {
                assert_eq!(offered(), [false; 2], "one device is left out");
                assert!(
                    found
                        .fallback
                        .is_some_and(|words| words.contains("DRADeviceTaints"))
                );
            }
        }
        assert!(!publisher.publish(&[ill(0), device(1)]).expect("the same").changed);
        // Nor does a driver that starts again write what is there: the server added a time, or it was asked what it keeps.
        let mut next = Publisher::new(&server, "node", 100);
        assert!(!next.publish(&[ill(0), device(1)]).expect("the same").changed);
        publisher.publish(&[device(0), device(1)]).expect("published");
        assert_eq!(offered(), [false; 4]);
    }
}

#[test]
fn a_server_that_was_upgraded_is_found_out() {
    let server = StandIn {
        no_capacity: true,
        no_counters: true,
        ..StandIn::default()
    };
    let mut publisher = Publisher::new(&server, "node", 100);
    let before = publisher.publish(&[device(0)]).expect("published");
    assert_eq!(before.shape, Shape::WholeOnly);
    let writes = *server.writes.lock().expect("a lock");
    for _ in 0..2 * LOOKS {
        assert!(!publisher.publish(&[device(0)]).expect("the same").changed);
    }
    assert_eq!(
        *server.writes.lock().expect("a lock"),
        writes,
        "looking writes nothing"
    );
    server.upgraded.store(true, std::sync::atomic::Ordering::Relaxed);
    let found: Vec<_> = (0..LOOKS)
        .map(|_| publisher.publish(&[device(0)]).expect("published"))
        .collect();
    let last = found.last().expect("many");
    assert_eq!((last.shape, &last.fallback), (Shape::Both, &None));
}

/// A server keeps the fields of objects that have them, so reading back tells nothing of it. The next driver, and the same one after a
/// while, ask what it would keep of a new object.
#[test]
fn gates_that_were_switched_off_behind_a_publisher_are_found_out() {
    for starts_again in [true, false] {
        let server = StandIn {
            no_capacity: true,
            no_counters: true,
            ..StandIn::default()
        };
        let keeps = |all: bool| server.upgraded.store(all, std::sync::atomic::Ordering::Relaxed);
        keeps(true);
        let mut publisher = Publisher::new(&server, "node", 100);
        let before = publisher.publish(&[device(0)]).expect("published");
        assert_eq!((before.shape, &before.fallback), (Shape::Both, &None));
        keeps(false);
        if starts_again {
            publisher = Publisher::new(&server, "node", 100);
            assert_eq!(
                publisher.publish(&[device(0)]).expect("published").shape,
                Shape::WholeOnly
            );
        }
        let found: Vec<_> = (0..LOOKS * CALM)
            .map(|_| publisher.publish(&[device(0)]).expect("published"))
            .collect();
        let last = found.last().expect("many");
        assert_eq!(last.shape, Shape::WholeOnly, "{last:?}");
        let said = last.fallback.as_deref().unwrap_or_default();
        assert!(said.contains("DRAConsumableCapacity"), "{said}");
        let all = server.slices.lock().expect("a lock").clone();
        let names: Vec<_> = all
            .iter()
            .flat_map(|slice| slice.spec.devices.iter().flatten())
            .map(|device| device.name.clone())
            .collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert!(!names[0].ends_with("-shared"), "{names:?}");
        assert!(all.iter().all(|slice| slice.spec.shared_counters.is_none()));
        keeps(true);
        publisher.looks = LOOKS;
        let again = publisher.publish(&[device(0)]).expect("published");
        assert_eq!((again.shape, &again.fallback), (Shape::Both, &None));
    }
}

#[test]
fn a_node_that_was_made_again_owns_its_slices() {
    let server = StandIn::default();
    let mut publisher = Publisher::new(&server, "node", 100);
    publisher.publish(&[device(0)]).expect("published");
    let owners = || {
        let all = server.slices.lock().expect("a lock").clone();
        let owners = all
            .into_iter()
            .flat_map(|slice| slice.metadata.owner_references.unwrap_or_default());
        owners.map(|owner| owner.uid).collect::<Vec<_>>()
    };
    assert_eq!(owners(), ["n-1", "n-1"]);
    // The garbage collector takes what the old node owned.
    *server.uid.lock().expect("a lock") = "-again".into();
    server.slices.lock().expect("a lock").clear();
    publisher.publish(&[device(0)]).expect("published");
    assert_eq!(owners(), ["n-1-again", "n-1-again"]);
    // Or it has not come yet.
    *server.uid.lock().expect("a lock") = "-once-more".into();
    for _ in 0..LOOKS {
        publisher.publish(&[device(0)]).expect("published");
    }
    assert_eq!(owners(), ["n-1-once-more", "n-1-once-more"]);
}
