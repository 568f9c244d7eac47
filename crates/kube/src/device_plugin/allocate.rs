//! Makes the slice of an allocation: so much of each device's memory and time as its replicas are of all. NVIDIA's plugin only
//! counts them.
//!
//! The kubelet tells of no end. It gives the same ids out again only when their pod has ended, and lists what pods have; both
//! end the slice. While a pod lives its containers may start again, so the slice stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(doc)]
use divvy_model::Code;
use divvy_model::{Bytes, Compute, Fault, MemoryAmount, Mode, SliceRecord, SliceRequest};
use tokio::sync::watch;

use super::config::Way;
use super::resources::{Part, Resource};
use crate::claim::{Allocated, refused};
use crate::kept::{Host, Kept, SLICE_KIND, WORD};
use crate::pods::Pods;
use crate::state::{Prepared, Record, State, digest};

/// Memory is given out in multiples of so many bytes.
const STEP: u64 = 1 << 20;
/// So many looks in a row have to find that no pod has an allocation.
const LOOKS: u32 = 2;

/// The allocations of a node.
pub struct Allocator {
    kept: Mutex<Kept>,
    resources: watch::Sender<Vec<Resource>>,
    /// Allocations that no pod had at the last looks, with their number.
    unseen: Mutex<BTreeMap<String, u32>>,
}

impl Allocator {
    /// With these records. What an earlier process left half done is ended first.
    ///
    /// # Errors
    /// [`Code::Claim`] where the records cannot be read.
    pub fn open(host: Box<dyn Host>, state: State) -> Result<Self, Fault> {
        let kept = Kept { host, state };
        for record in kept.state.all()? {
            if !record.prepared {
                let _later = kept.take_back(&record);
            }
        }
        Ok(Self {
            kept: Mutex::new(kept),
            resources: watch::Sender::new(Vec::new()),
            unseen: Mutex::default(),
        })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host.
    ///
    /// # Errors
    /// As [`Host::devices`].
    pub fn devices(&self) -> Result<Vec<divvy_model::DeviceRecord>, Fault> {
        self.kept().host.devices()
    }

    /// The slices of all users.
    ///
    /// # Errors
    /// As [`Host::slices`].
    pub fn slices(&self) -> Result<Vec<SliceRecord>, Fault> {
        self.kept().host.slices()
    }

    /// The resources, as they are now and whenever they change.
    #[must_use]
    pub fn resources(&self) -> watch::Receiver<Vec<Resource>> {
        self.resources.subscribe()
    }

    /// What the node has now.
    pub fn set(&self, resources: Vec<Resource>) {
        self.resources.send_if_modified(|before| {
            let changed = *before != resources;
            *before = resources;
            changed
        });
    }

    /// Makes the slices again that are missing: a host that starts again has none, and its kubelet starts the containers with
    /// the CDI devices that it noted. What failed.
    pub fn restore(&self) -> Vec<Fault> {
        let kept = self.kept();
        let records = match kept.state.all() {
            Ok(records) => records,
            Err(fault) => return vec![fault],
        };
        let again = |mut record: Record| {
            let words = words(&record);
            match record.prepared {
                true => kept.make(&mut record, &words).err(),
                false => kept.take_back(&record).err(),
            }
        };
        records.into_iter().filter_map(again).collect()
    }

    /// Makes the slice of a container that gets these ids of a resource; what container runtimes call it.
    ///
    /// # Errors
    /// [`Code::Claim`]: the ids are not the resource's, are too many, or their last pod's programs still run; what the agent refuses.
    pub fn allocate(&self, resource: &str, ids: &[String]) -> Result<String, Fault> {
        let all = self.resources.borrow().clone();
        let found = all.iter().find(|one| one.name == resource);
        let found =
            found.ok_or_else(|| refused(&format!("there is no resource `{resource}` on this node")))?;
        let parts = parts(found, ids)?;
        let kept = self.kept();
        // What the kubelet gives out is free: its last pod has ended.
        take_back(&kept, resource, ids)?;
        let mut record = planned(found, &parts)?;
        let words = words(&record);
        if let Err(fault) = kept.make(&mut record, &words) {
            let _later = kept.take_back(&record);
            return Err(fault);
        }
        self.seen(&record.uid);
        Ok(record
            .requests
            .iter()
            .map(|request| request.cdi.clone())
            .collect())
    }

    /// Whether the ids are a resource's.
    ///
    /// # Errors
    /// [`Code::Claim`]: why not.
    pub fn check(&self, resource: &str, ids: &[String]) -> Result<(), Fault> {
        let all = self.resources.borrow();
        let found = all.iter().find(|one| one.name == resource);
        let found =
            found.ok_or_else(|| refused(&format!("there is no resource `{resource}` on this node")))?;
        parts(found, ids).map(drop)
    }

    /// Makes the slice of a container, or finds it: a container may start again. The kubelet's list says which ids are in use, so
    /// what was made for this container under other ids, or for others under these, is ended. Where there is no room, what no pod
    /// has any more is ended at once.
    ///
    /// # Errors
    /// What the agent refuses.
    pub fn start(&self, mut record: Record, pods: &Pods) -> Result<(), Fault> {
        let kept = self.kept();
        let (ids, request) = (allocated(&record), record.requests[0].request.clone());
        for other in kept.state.all()? {
            let same_container = other.requests.iter().any(|one| one.request == request);
            if other.uid == record.uid && same_container {
                record = other;
            } else if same_container || !allocated(&other).is_disjoint(&ids) {
                kept.take_back(&other)?;
            }
        }
        let words = words(&record);
        let mut made = kept.make(&mut record, &words);
        if made.is_err() && self.end_unlisted(&kept, pods, &record.uid)? {
            made = kept.make(&mut record, &words);
        }
        if let Err(fault) = made {
            let _later = kept.take_back(&record);
            return Err(fault);
        }
        // What was named at Allocate has to be what was made.
        let own = &record.requests[0];
        if own.cdi != format!("{SLICE_KIND}={}", own.slice) {
            return Err(refused(&format!("the slice's CDI device is `{}`", own.cdi)));
        }
        self.seen(&record.uid);
        Ok(())
    }

    /// Ends what no pod of the list has, besides this; whether there was any.
    fn end_unlisted(&self, kept: &Kept, pods: &Pods, besides: &str) -> Result<bool, Fault> {
        let mut ended = false;
        for other in kept.state.all()? {
            let is_listed = allocated(&other).iter().any(|id| pods.ids.contains(id));
            if other.uid != besides && !is_listed && kept.take_back(&other).is_ok() {
                self.seen(&other.uid);
                ended = true;
            }
        }
        Ok(ended)
    }

    /// Ends what was made for these ids of a resource, where another container of the same pod could not be served.
    ///
    /// # Errors
    /// What keeps it from being ended: [`Self::sweep`] does it later.
    pub fn give_back(&self, resource: &str, ids: &[String]) -> Result<(), Fault> {
        take_back(&self.kept(), resource, ids)
    }

    /// Ends allocations that no pod has at two looks. An empty list is not believed: a kubelet that has just started knows no
    /// pods yet. The allocations that were ended, and what failed.
    pub fn sweep(&self, pods: &Pods) -> (Vec<String>, Vec<Fault>) {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        let kept = self.kept();
        let records = match kept.state.all() {
            Ok(records) => records,
            Err(fault) => return (done, vec![fault]),
        };
        for record in records {
            let is_listed = allocated(&record).iter().any(|id| pods.ids.contains(id));
            if record.prepared && (is_listed || pods.count == 0 || !self.is_unseen(&record.uid)) {
                if is_listed {
                    self.seen(&record.uid);
                }
                continue;
            }
            match kept.take_back(&record) {
                Ok(()) => {
                    self.seen(&record.uid);
                    done.extend(record.requests.into_iter().map(|request| request.slice));
                }
                Err(fault) => failed.push(fault),
            }
        }
        (done, failed)
    }

    fn is_unseen(&self, uid: &str) -> bool {
        let mut unseen = self.unseen.lock().unwrap_or_else(PoisonError::into_inner);
        let looks = unseen.entry(uid.to_owned()).or_default();
        *looks += 1;
        *looks >= LOOKS
    }

    fn seen(&self, uid: &str) {
        let mut unseen = self.unseen.lock().unwrap_or_else(PoisonError::into_inner);
        unseen.remove(uid);
    }
}

/// Ends whatever was made for any of these ids.
fn take_back(kept: &Kept, resource: &str, ids: &[String]) -> Result<(), Fault> {
    for record in kept.state.all()? {
        let had = allocated(&record);
        if ids
            .iter()
            .any(|id| had.contains(&(resource.to_owned(), id.clone())))
        {
            kept.take_back(&record)?;
        }
    }
    Ok(())
}

/// The ids of a record, each with its resource.
fn allocated(record: &Record) -> BTreeSet<(String, String)> {
    let devices = record.requests.iter().flat_map(|request| &request.devices);
    devices
        .filter_map(|device| Some((device.pool.clone(), device.share_id.clone()?)))
        .collect()
}

/// What lists show of an allocation's slice.
fn words(record: &Record) -> Vec<String> {
    let devices = record.requests.iter().flat_map(|request| &request.devices);
    let ids = devices.filter_map(|device| device.share_id.clone());
    [WORD.to_owned(), record.name.clone(), record.uid.clone()]
        .into_iter()
        .chain(ids)
        .collect()
}

fn parts<'a>(resource: &'a Resource, ids: &[String]) -> Result<Vec<&'a Part>, Fault> {
    let mut all = Vec::new();
    for id in ids {
        let found = resource.parts.iter().find(|part| part.id == *id);
        let found = found.ok_or_else(|| refused(&format!("`{}` has no device of this id", resource.name)))?;
        if all.iter().any(|part: &&Part| part.id == *id) {
            return Err(refused("one id was allocated twice"));
        }
        all.push(found);
    }
    if all.is_empty() {
        return Err(refused("no device was allocated"));
    }
    if resource.one_only && all.len() > 1 {
        return Err(refused(&format!(
            "{} of `{}` were asked for, and the maximum of a shared resource is 1",
            all.len(),
            resource.name
        ))
        .hint(
            "failRequestsGreaterThanOne: several replicas are one device's, and more of them no more devices",
        ));
    }
    Ok(all)
}

/// What an allocation is known by: its resource and ids, in any order.
pub(super) fn uid(resource: &str, ids: &[String]) -> String {
    let mut ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    ids.sort_unstable();
    let mut named = vec![resource];
    named.extend(&ids);
    digest(&named)
}

/// The name of an allocation's slice.
pub(super) fn slice_name(resource: &str, ids: &[String]) -> String {
    let plain = resource.rsplit('/').next().unwrap_or_default();
    let plain: String = plain.chars().take(30).collect();
    format!("{plain}-{}", uid(resource, ids))
}

/// One slice of all the devices, of each as much as the replicas of the device with the least are of all of its replicas.
fn planned(resource: &Resource, parts: &[&Part]) -> Result<Record, Fault> {
    let mut devices: BTreeMap<&str, (&Part, u64)> = BTreeMap::new();
    for part in parts {
        devices.entry(&part.device.uuid).or_insert((part, 0)).1 += 1;
    }
    let ids: Vec<String> = parts.iter().map(|part| part.id.clone()).collect();
    let uid = uid(&resource.name, &ids);
    let slice = slice_name(&resource.name, &ids);
    let is_whole = |(part, count): &(&Part, u64)| *count == u64::from(part.of);
    let mut ask = SliceRequest {
        name: Some(slice.clone()),
        ..SliceRequest::default()
    };
    ask.isolation_unasked = true;
    if devices.values().all(is_whole) {
        ask.terms.compute.share = Some(Compute::WHOLE);
    } else {
        let memory = devices
            .values()
            .map(|(part, count)| {
                part.device.memory_usable_bytes().0 / u64::from(part.of) * count / STEP * STEP
            })
            .min();
        let cores = devices
            .values()
            .map(|(part, count)| u64::from(Compute::WHOLE.0) * count / u64::from(part.of))
            .min();
        ask.memory = memory.map(|memory| MemoryAmount::Bytes(Bytes(memory)));
        ask.terms.compute.share = cores
            .and_then(|cores| u16::try_from(cores).ok())
            .map(|cores| Compute(cores.max(1)));
    }
    if resource.way == Some(Way::Mps) {
        ask.terms.sharing.mode = Mode::Mps;
    }
    // A slice that names no device would be given any.
    let selectors = devices.keys().map(|uuid| {
        uuid.parse()
            .map_err(|error: divvy_model::SelectorError| Fault::from(error))
    });
    ask.select(selectors.collect::<Result<_, Fault>>()?);
    let allocated = parts.iter().map(|part| Allocated {
        pool: resource.name.clone(),
        device: part.device.uuid.clone(),
        share_id: Some(part.id.clone()),
        memory: None,
        cores: 0,
    });
    let prepared = Prepared {
        request: String::new(),
        devices: allocated.collect(),
        slice,
        slice_id: String::new(),
        cdi: String::new(),
        ask,
    };
    Ok(Record::new(&uid, "", &resource.name, vec![prepared]))
}
