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

/// Of so many looks again one asks a server that keeps all whether it still would: a switched gate is rare, and nodes are many.
const CALM: u32 = 6;

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
    /// Whether anything was published by this publisher.
    begun: bool,
    /// How often it has looked again.
    again: u32,
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
            begun: false,
            again: 0,
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
        // An earlier publisher's objects tell nothing of what the server keeps of new ones: `look_again` says why.
        let inherits = !self.begun && !self.cluster.resource_slices(&self.owner.node)?.is_empty();
        if self.looks >= LOOKS || inherits {
            self.looks = 0;
            self.owner.uid = String::new();
            self.again += 1;
            if inherits || self.fallback.is_some() || self.again.is_multiple_of(CALM) {
                self.look_again(devices)?;
            }
        }
        self.begun = true;
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
            self.fall_back(&lost)?;
        }
    }

    /// Offers what a server keeps that dropped this, and says so.
    fn fall_back(&mut self, lost: &[Lost]) -> Result<(), Refusal> {
        let before = self.offer.clone();
        self.offer = below(&before, lost)?;
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
        Ok(())
    }

    /// A node can be deleted and made again under its name, and a server's gates can be switched either way. Neither tells.
    ///
    /// A server whose gates are off still keeps their fields in an object that has them, so that a downgrade loses nothing
    /// (Kubernetes' rule for disabled fields). Its scheduler takes such devices for dedicated ones all the same. So what counts is
    /// what the server would keep of a new object.
    fn look_again(&mut self, devices: &[DeviceRecord]) -> Result<(), Refusal> {
        let best = Offer {
            most_cores: self.offer.most_cores,
            split: self.offer.split.clone(),
            ..Offer::default()
        };
        let mut probes = pool(&self.owner, devices, &best, 1);
        let (mut kept, mut refused) = (Vec::new(), None);
        for probe in &mut probes {
            let name = probe.metadata.name.take().unwrap_or_default();
            probe.metadata.name = Some(crate::devices::probe_name(&name));
            match self.cluster.probe(probe) {
                Ok(found) => kept.push(found),
                // What is left after a field was dropped may be refused.
                Err(Refusal::Invalid(why)) => refused = Some(why),
                // Another cause than a gate: what stands stays, and the next write is read back.
                Err(_) => return Ok(()),
            }
        }
        let mut gone = lost(&probes, &kept);
        if let Some(why) = refused {
            gone.retain(|lost| !matches!(lost, Lost::Slice(_)));
            gone.push(Lost::Counters(why));
        }
        match (gone.is_empty(), self.fallback.is_some()) {
            (true, true) if !probes.is_empty() => {
                self.offer = best;
                self.fallback = None;
                self.last = None;
                Ok(())
            }
            (false, false) => self.fall_back(&gone),
            _ => Ok(()),
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
mod tests;
