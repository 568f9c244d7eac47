//! Brings the node's ResourceSlices to the API server, and looks at what it kept.
//!
//! A server whose feature gates are off drops fields without a word: a device that was to be shared looks dedicated. So what
//! was published is read back. Where something is missing, the pool is published again in a form that the server keeps.

use divvy_model::DeviceRecord;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice, ResourceSliceSpec};

use crate::cluster::{Cluster, Refusal};
use crate::devices::{Offer, Owner, Shape, pool};
use crate::order::{Order, Prefer};
use crate::split::Split;

/// How often a pool is written again after another writer came first.
const ATTEMPTS: usize = 5;
/// After so many looks the node's UID is read again, and a server that had dropped fields is asked whether it still does.
const LOOKS: u32 = 30;

/// For so many looks the API server is not asked what it has, where the devices are what they were. With looks of 10 s a node
/// asks every 5 to 10 minutes: 10,000 nodes that asked at each look would be 1,000 lists a second.
const REST: u32 = 30;

/// What was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The pool's generation; 0 for a pool that was always empty.
    pub generation: i64,
    /// In which form.
    pub shape: Shape,
    /// Whether anything had to be written.
    pub changed: bool,
    /// What the server did not keep, and what was published in its place.
    pub fallback: Option<String>,
}

/// The publisher of one node.
pub struct Publisher<'a> {
    cluster: &'a dyn Cluster,
    owner: Owner,
    offer: Offer,
    order: Order,
    fallback: Option<String>,
    looks: u32,
    /// What the server had last, and for how many looks that is believed.
    settled: Option<(Vec<ResourceSlice>, Published, u32)>,
    /// What was asked for last and what the server kept of it, which may differ in the notation of numbers.
    last: Option<(Vec<ResourceSlice>, Vec<ResourceSlice>)>,
}

impl<'a> Publisher<'a> {
    /// Of a node whose devices' claims may have so many percent of a device's time together. Nothing is sent yet.
    #[must_use]
    pub fn new(cluster: &'a dyn Cluster, node: &str, most_cores: u64) -> Self {
        Self {
            cluster,
            owner: Owner {
                node: node.to_owned(),
                uid: String::new(),
            },
            offer: Offer {
                most_cores,
                ..Offer::default()
            },
            order: Order::default(),
            fallback: None,
            looks: 0,
            settled: None,
            last: None,
        }
    }

    /// Publishes devices in this order.
    #[must_use]
    pub fn preferring(mut self, prefer: Prefer) -> Self {
        self.order = Order::new(prefer);
        self
    }

    /// Publishes what this split leaves to this driver.
    #[must_use]
    pub fn splitting(mut self, split: Split) -> Self {
        self.offer.split = split;
        self
    }

    /// As [`Self::publish`], and asks nothing for a while where the devices are as they were published.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub fn publish_if_due(&mut self, devices: &[DeviceRecord]) -> Result<Published, Refusal> {
        let ordered = self.order.of(devices);
        let devices = ordered.as_slice();
        if let Some((slices, published, rest)) = &mut self.settled
            && *rest > 0
            && *slices == pool(&self.owner, devices, &self.offer, published.generation)
        {
            *rest -= 1;
            return Ok(Published {
                changed: false,
                ..published.clone()
            });
        }
        if self.settled.take().is_some() {
            // Whether the node and the server are what they were, too.
            self.looks = LOOKS;
        }
        let published = self.publish(devices)?;
        let slices = pool(&self.owner, devices, &self.offer, published.generation);
        self.settled = Some((slices, published.clone(), REST + self.spread()));
        Ok(published)
    }

    /// Up to as many looks more, by the node's name: nodes that started together do not ask together.
    fn spread(&self) -> u32 {
        let sum = self.owner.node.bytes().fold(0_u32, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u32::from(byte))
        });
        sum % (REST + 1)
    }

    /// Publishes these devices, unless that is done.
    ///
    /// # Errors
    /// What the API server refuses; publishing again later is right.
    pub fn publish(&mut self, devices: &[DeviceRecord]) -> Result<Published, Refusal> {
        self.looks += 1;
        if self.looks >= LOOKS {
            self.look_again(devices);
        }
        if self.owner.uid.is_empty() {
            self.owner.uid = self.cluster.node_uid(&self.owner.node)?;
        }
        let mut changed = false;
        loop {
            let lost = match self.write(devices) {
                Ok((wrote, generation, lost)) => {
                    changed |= wrote;
                    if lost.is_empty() {
                        return Ok(Published {
                            generation,
                            shape: self.offer.shape,
                            changed,
                            fallback: self.fallback.clone(),
                        });
                    }
                    lost
                }
                // A server may refuse what is left after it dropped a field.
                Err(Refusal::Invalid(why)) if self.offer.shape == Shape::Both => vec![Lost::Counters(why)],
                Err(refusal) => return Err(refusal),
            };
            let before = self.offer.clone();
            self.offer = below(&before, &lost)?;
            let mut instead = Vec::new();
            match self.offer.shape {
                shape if shape == before.shape => {}
                Shape::Both => {}
                Shape::SharedOnly => instead.push("shares only: no claim gets a whole device"),
                Shape::WholeOnly => instead.push("whole devices only: no claim gets a share"),
            }
            if before.taints && !self.offer.taints {
                instead.push("healthy devices only");
            }
            let words: Vec<String> = lost.iter().map(Lost::words).collect();
            let words = format!(
                "the API server keeps no {}; published {}",
                words.join(", no "),
                instead.join(", and ")
            );
            self.fallback = Some(match self.fallback.take() {
                Some(earlier) => format!("{earlier}; {words}"),
                None => words,
            });
            self.last = None;
        }
    }

    /// A node can be deleted and made again under its name, and a server can be upgraded. Neither tells.
    fn look_again(&mut self, devices: &[DeviceRecord]) {
        self.looks = 0;
        self.owner.uid = String::new();
        if self.fallback.is_none() {
            return;
        }
        let best = Offer {
            most_cores: self.offer.most_cores,
            split: self.offer.split.clone(),
            ..Offer::default()
        };
        let mut probes = pool(&self.owner, devices, &best, 1);
        let mut kept = Vec::new();
        for probe in &mut probes {
            let name = probe.metadata.name.take().unwrap_or_default();
            probe.metadata.name = Some(crate::devices::probe_name(&name));
            // One that is refused is kept as little as one that is cut.
            kept.extend(self.cluster.probe(probe));
        }
        if !probes.is_empty() && lost(&probes, &kept).is_empty() {
            self.offer = best;
            self.fallback = None;
            self.last = None;
        }
    }

    /// Deletes what this node has published.
    ///
    /// # Errors
    /// What the API server refuses.
    pub fn withdraw(&mut self) -> Result<(), Refusal> {
        self.last = None;
        for slice in self.cluster.resource_slices(&self.owner.node)? {
            self.cluster
                .delete(slice.metadata.name.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }

    /// Whether anything was written, the generation, and what of it was lost.
    fn write(&mut self, devices: &[DeviceRecord]) -> Result<(bool, i64, Vec<Lost>), Refusal> {
        let mut attempt = 0;
        loop {
            match self.write_once(devices) {
                Err(Refusal::Conflict(_) | Refusal::NotFound(_)) if attempt + 1 < ATTEMPTS => attempt += 1,
                outcome => return outcome,
            }
        }
    }

    fn write_once(&mut self, devices: &[DeviceRecord]) -> Result<(bool, i64, Vec<Lost>), Refusal> {
        let there = self.cluster.resource_slices(&self.owner.node)?;
        let newest = there
            .iter()
            .map(|slice| slice.spec.pool.generation)
            .max()
            .unwrap_or(0);
        let same = pool(&self.owner, devices, &self.offer, newest);
        if is_same(&same, &there) || self.is_kept(&same, &there) {
            return Ok((false, newest, Vec::new()));
        }
        // A write is rare, and an owner that is gone takes what it owns with it.
        self.owner.uid = self.cluster.node_uid(&self.owner.node)?;
        let wanted = pool(&self.owner, devices, &self.offer, newest + 1);
        for slice in &wanted {
            let old = there.iter().find(|old| old.metadata.name == slice.metadata.name);
            let mut slice = slice.clone();
            match old {
                Some(old) => {
                    slice
                        .metadata
                        .resource_version
                        .clone_from(&old.metadata.resource_version);
                    self.cluster.replace(&slice)?;
                }
                None => drop(self.cluster.create(&slice)?),
            }
        }
        // Of an earlier install, or of more devices.
        for old in &there {
            if !wanted
                .iter()
                .any(|slice| slice.metadata.name == old.metadata.name)
            {
                self.cluster
                    .delete(old.metadata.name.as_deref().unwrap_or_default())?;
            }
        }
        let kept = self.cluster.resource_slices(&self.owner.node)?;
        let lost = lost(&wanted, &kept);
        self.last = Some((wanted, kept));
        Ok((true, newest + 1, lost))
    }

    /// Whether this was published before, and the server still has what it kept of it then.
    fn is_kept(&self, wanted: &[ResourceSlice], there: &[ResourceSlice]) -> bool {
        self.last
            .as_ref()
            .is_some_and(|(asked, kept)| is_same(asked, wanted) && is_same(kept, there))
    }
}

/// Whether these are the same ResourceSlices, in any order.
fn is_same(some: &[ResourceSlice], others: &[ResourceSlice]) -> bool {
    let same = |one: &ResourceSlice, other: &ResourceSlice| {
        one.metadata.name == other.metadata.name
            && one.metadata.owner_references == other.metadata.owner_references
            && untimed(one) == untimed(other)
    };
    some.len() == others.len() && some.iter().all(|one| others.iter().any(|other| same(one, other)))
}

/// What is published, without the times that the server adds to taints.
fn untimed(slice: &ResourceSlice) -> ResourceSliceSpec {
    let mut spec = slice.spec.clone();
    for device in spec.devices.iter_mut().flatten() {
        for taint in device.taints.iter_mut().flatten() {
            taint.time_added = None;
        }
    }
    spec
}

/// A field that the server did not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lost {
    Sharing,
    Policy,
    Counters(String),
    Taints,
    Slice(String),
}

impl Lost {
    fn words(&self) -> String {
        match self {
            Self::Sharing => "allowMultipleAllocations (feature gate DRAConsumableCapacity)".into(),
            Self::Policy => "requestPolicy (feature gate DRAConsumableCapacity)".into(),
            Self::Counters(why) if why.is_empty() => "counters (feature gate DRAPartitionableDevices)".into(),
            Self::Counters(why) => format!("counters (feature gate DRAPartitionableDevices: {why})"),
            Self::Taints => "taints (feature gate DRADeviceTaints)".into(),
            Self::Slice(name) => format!("ResourceSlice {name}"),
        }
    }
}

/// What to publish where this was lost.
fn below(offer: &Offer, lost: &[Lost]) -> Result<Offer, Refusal> {
    let has = |what: &dyn Fn(&Lost) -> bool| lost.iter().any(what);
    if has(&|lost| matches!(lost, Lost::Slice(_))) {
        return Err(Refusal::Conflict(
            "another writer changes this node's ResourceSlices".into(),
        ));
    }
    let mut below = offer.clone();
    if has(&|lost| matches!(lost, Lost::Taints)) {
        below.taints = false;
    }
    let sharing = has(&|lost| matches!(lost, Lost::Sharing | Lost::Policy));
    let counters = has(&|lost| matches!(lost, Lost::Counters(_)));
    below.shape = match offer.shape {
        Shape::Both | Shape::SharedOnly if sharing => Shape::WholeOnly,
        Shape::Both if counters => Shape::SharedOnly,
        shape => shape,
    };
    match below == *offer {
        true => Err(Refusal::Invalid(
            "the API server does not keep what was published, in any form".into(),
        )),
        false => Ok(below),
    }
}

fn lost(wanted: &[ResourceSlice], kept: &[ResourceSlice]) -> Vec<Lost> {
    let mut lost = Vec::new();
    let mut note = |what: Lost| {
        if !lost.contains(&what) {
            lost.push(what);
        }
    };
    for slice in wanted {
        let name = slice.metadata.name.clone().unwrap_or_default();
        let Some(found) = kept.iter().find(|kept| kept.metadata.name == slice.metadata.name) else {
            note(Lost::Slice(name));
            continue;
        };
        if found.spec.pool != slice.spec.pool {
            note(Lost::Slice(name));
            continue;
        }
        let sets = |slice: &ResourceSlice| slice.spec.shared_counters.as_ref().map_or(0, Vec::len);
        if sets(found) != sets(slice) {
            note(Lost::Counters(String::new()));
        }
        let none = Vec::new();
        let found = found.spec.devices.as_ref().unwrap_or(&none);
        for device in slice.spec.devices.as_ref().unwrap_or(&none) {
            let Some(kept) = found.iter().find(|kept| kept.name == device.name) else {
                note(Lost::Slice(format!("{name}'s device {}", device.name)));
                continue;
            };
            if device.allow_multiple_allocations.is_some() && kept.allow_multiple_allocations.is_none() {
                note(Lost::Sharing);
            } else if policies(device) != policies(kept) {
                note(Lost::Policy);
            }
            if device.consumes_counters.is_some() && kept.consumes_counters.is_none() {
                note(Lost::Counters(String::new()));
            }
            let taints = |device: &Device| device.taints.as_ref().map_or(0, Vec::len);
            if taints(device) != taints(kept) {
                note(Lost::Taints);
            }
        }
    }
    lost
}

fn policies(device: &Device) -> usize {
    let all = device.capacity.iter().flatten();
    all.filter(|(_, capacity)| capacity.request_policy.is_some())
        .count()
}

#[cfg(test)]
mod tests {
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
        /// The server was upgraded: it keeps all.
        upgraded: std::sync::atomic::AtomicBool,
        uid: Mutex<String>,
        conflicts: Mutex<u32>,
        lists: std::sync::atomic::AtomicU32,
        writes: Mutex<u32>,
        denied: Mutex<Option<Refusal>>,
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
                return Err(refusal);
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
        fn create(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
            let kept = self.kept(slice, self.write()?)?;
            self.slices.lock().expect("a lock").push(kept.clone());
            Ok(kept)
        }
        fn replace(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
            let kept = self.kept(slice, self.write()?)?;
            let mut all = self.slices.lock().expect("a lock");
            let old = all
                .iter_mut()
                .find(|old| old.metadata.name == slice.metadata.name);
            let old = old.ok_or_else(|| Refusal::NotFound("gone".into()))?;
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
        *server.denied.lock().expect("a lock") = None;
        assert!(
            publisher
                .publish_if_due(&[device(0), device(1)])
                .expect("published")
                .changed
        );
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
            // Nor does a driver that starts again write what is there: the server added a time.
            let mut next = Publisher::new(&server, "node", 100);
            assert_eq!(
                next.publish(&[ill(0), device(1)]).expect("the same").changed,
                no_taints
            );
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
}
