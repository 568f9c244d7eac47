//! Prepares claims on this node: a slice at the agent and a CDI device for each request, and takes them back.
//!
//! At all times the agent has the slices of the claims that are prepared, and no others of ours: a record is written before the
//! first slice is made, and removed after the last has ended. What a call or this process left half done is ended by the next.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use divvy_model::{Bytes, Code, Compute, DeviceRecord, Fault, MemoryAmount, SliceRecord, SliceRequest};

use crate::claim::{Allocated, Request, base, refused, requests};
use crate::cluster::{Cluster, Refusal};
use crate::devices::{Form, find};
use crate::state::{Prepared, Record, State, digest, is_uid};

/// What is asked of the agent and of the container runtime's folder, so that tests have one of their own. Calls block.
///
/// # Errors
/// Every method: what the agent refuses with, [`Code::AgentUnreachable`] where there is none.
#[expect(clippy::missing_errors_doc, reason = "said once, above")]
pub trait Host: Send + Sync {
    /// The devices that the agent has.
    fn devices(&self) -> Result<Vec<DeviceRecord>, Fault>;
    /// The slices that this process's user made.
    fn slices(&self) -> Result<Vec<SliceRecord>, Fault>;
    /// Makes a slice. Lists show `words`, which say what it is for.
    fn make(&self, ask: &SliceRequest, words: &[String]) -> Result<SliceRecord, Fault>;
    /// Writes the slice's CDI device, if it is not there; what container runtimes call it.
    fn describe(&self, slice: &SliceRecord) -> Result<String, Fault>;
    /// Ends a slice, and removes its CDI device. One that is gone already is no error.
    fn end(&self, slice: &SliceRecord) -> Result<(), Fault>;
}

/// A claim, as the kubelet names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// Its name.
    pub name: String,
}

/// A device of a claim that was prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The request, as containers refer to it.
    pub request: String,
    /// The pool.
    pub pool: String,
    /// The device's name there.
    pub device: String,
    /// Which share of it.
    pub share_id: Option<String>,
    /// CDI devices.
    pub cdi: Vec<String>,
}

/// The driver's part on one node.
pub struct Node {
    name: String,
    host: Box<dyn Host>,
    cluster: Box<dyn Cluster>,
    state: State,
    /// One call at a time: two claims must not both find a device free.
    turn: Mutex<()>,
}

impl Node {
    /// With these records. What an earlier process left half done is ended first.
    ///
    /// # Errors
    /// [`Code::Claim`] where the records cannot be read. An agent that is not there is no error: it is asked again at the
    /// next call.
    pub fn open(
        name: &str,
        host: Box<dyn Host>,
        cluster: Box<dyn Cluster>,
        state: State,
    ) -> Result<Self, Fault> {
        let node = Self {
            name: name.to_owned(),
            host,
            cluster,
            state,
            turn: Mutex::new(()),
        };
        for record in node.state.all()? {
            if !record.prepared {
                let _next_call = node.take_back(&record);
            }
        }
        Ok(node)
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The API server.
    #[must_use]
    pub fn cluster(&self) -> &dyn Cluster {
        &*self.cluster
    }

    /// The devices that the agent has.
    ///
    /// # Errors
    /// As [`Host::devices`].
    pub fn devices(&self) -> Result<Vec<DeviceRecord>, Fault> {
        self.host.devices()
    }

    /// The claims that are prepared.
    ///
    /// # Errors
    /// [`Code::Claim`] where the records cannot be read.
    pub fn claims(&self) -> Result<Vec<Record>, Fault> {
        self.state.all()
    }

    /// Prepares a claim. One that is prepared already is looked at, and answered as before.
    ///
    /// # Errors
    /// What keeps it from being prepared. Then nothing of it is left, or what is left is ended by the next call.
    pub fn prepare(&self, claim: &Named) -> Result<Vec<Device>, Fault> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        check(claim)?;
        let mut record = match self.state.read(&claim.uid)? {
            Some(record) if record.prepared => record,
            Some(half) => {
                self.take_back(&half)?;
                self.planned(claim)?
            }
            None => self.planned(claim)?,
        };
        let was = record.prepared;
        match self.made(&mut record) {
            Ok(()) => Ok(devices(&record)),
            Err(fault) if was => Err(fault),
            Err(fault) => {
                // Where this fails too the record stays, and the next call ends what is left.
                let _next_call = self.take_back(&record);
                Err(fault)
            }
        }
    }

    /// Takes a claim back. One that is not prepared is no error.
    ///
    /// # Errors
    /// What keeps its slices from being ended: the kubelet asks again.
    pub fn unprepare(&self, claim: &Named) -> Result<(), Fault> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        check(claim)?;
        match self.state.read(&claim.uid)? {
            Some(record) => self.take_back(&record),
            None => Ok(()),
        }
    }

    /// A record of what the claim was allocated, which fits beside the others'.
    fn planned(&self, claim: &Named) -> Result<Record, Fault> {
        let found = self
            .cluster
            .claim(&claim.namespace, &claim.name)
            .map_err(|refusal| {
                let message = format!("claim {}/{} cannot be read", claim.namespace, claim.name);
                let code = match refusal {
                    Refusal::NotFound(_) => Code::Claim,
                    _ => Code::Cluster,
                };
                Fault::new(code, message).cause(refusal.to_string())
            })?;
        let requests = requests(&found, &claim.uid, &self.name)?;
        let all = self.host.devices()?;
        let prepared = requests
            .iter()
            .map(|request| planned(claim, request, &all))
            .collect::<Result<Vec<_>, _>>()?;
        let record = Record::new(&claim.uid, &claim.namespace, &claim.name, prepared);
        let others = self.state.all()?;
        no_double_booking(&record, &others, &all)?;
        self.whole_are_free(&record, &others, &all)?;
        Ok(record)
    }

    /// Makes what is not there of a claim's slices.
    fn made(&self, record: &mut Record) -> Result<(), Fault> {
        if !record.prepared {
            self.state.write(record)?;
        }
        let before = record.clone();
        let slices = self.host.slices()?;
        for request in &mut record.requests {
            let found = slices.iter().find(|slice| slice.name == request.slice);
            let slice = match found {
                Some(slice) if is_as_asked(slice, request) => slice.clone(),
                // Made by hand under this name: names hold a digest of the claim's UID.
                Some(_) => return Err(refused(&format!("there is another slice `{}`", request.slice))),
                None => {
                    let words = [
                        "kubernetes".to_owned(),
                        format!("{}/{}", record.namespace, record.name),
                    ];
                    self.host.make(&request.ask, &words)?
                }
            };
            request.cdi = self.host.describe(&slice)?;
        }
        record.prepared = true;
        if *record != before {
            self.state.write(record)?;
        }
        Ok(())
    }

    /// Ends what was made for a claim. The record goes last: after a crash in between it is done again.
    fn take_back(&self, record: &Record) -> Result<(), Fault> {
        let slices = self.host.slices()?;
        for request in &record.requests {
            if let Some(slice) = slices.iter().find(|slice| slice.name == request.slice) {
                self.host.end(slice)?;
            }
        }
        self.state.remove(&record.uid)
    }

    /// Refuses a whole device on which there are slices that are not this driver's.
    fn whole_are_free(&self, record: &Record, others: &[Record], all: &[DeviceRecord]) -> Result<(), Fault> {
        let whole: Vec<&str> = allocations(record)
            .filter_map(|device| find(all, &device.device))
            .filter(|(_, form)| *form == Form::Whole)
            .map(|(device, _)| &*device.uuid)
            .collect();
        if whole.is_empty() {
            return Ok(());
        }
        let ours = |name: &str| {
            let all = others.iter().chain([record]).flat_map(|record| &record.requests);
            all.map(|request| &request.slice).any(|slice| slice == name)
        };
        let slices = self.host.slices()?;
        let in_use = slices.iter().find(|slice| {
            !ours(&slice.name)
                && slice
                    .shares
                    .iter()
                    .any(|share| whole.contains(&&*share.device_uuid))
        });
        in_use.map_or(Ok(()), |slice| {
            Err(refused(&format!(
                "slice `{}` has a share of a device that was allocated whole",
                slice.name
            )))
        })
    }
}

/// Refuses what cannot name a claim: a UID becomes part of a file's name.
fn check(claim: &Named) -> Result<(), Fault> {
    let is_name = |text: &str| {
        (1..=253).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    };
    match is_uid(&claim.uid) && is_name(&claim.namespace) && is_name(&claim.name) {
        true => Ok(()),
        false => Err(refused("that is no claim's name, namespace and UID")),
    }
}

fn allocations(record: &Record) -> impl Iterator<Item = &Allocated> {
    record.requests.iter().flat_map(|request| &request.devices)
}

/// A request's slice, as it is to be asked of the agent: one slice of all its devices.
fn planned(claim: &Named, request: &Request, all: &[DeviceRecord]) -> Result<Prepared, Fault> {
    let mut selectors = Vec::new();
    let mut amount: Option<(Option<u64>, u64)> = None;
    for allocated in &request.devices {
        let (device, form) = find(all, &allocated.device)
            .ok_or_else(|| refused(&format!("there is no device `{}` on this node", allocated.device)))?;
        let of_this = match form {
            Form::Whole => (None, 100),
            Form::Shared if allocated.memory.is_none() => {
                return Err(refused(&format!(
                    "device `{}` was allocated without a share of its memory",
                    allocated.device
                ))
                .hint("the API server or the scheduler has DRAConsumableCapacity turned off"));
            }
            Form::Shared => (allocated.memory, allocated.cores),
        };
        if *amount.get_or_insert(of_this) != of_this {
            return Err(refused(
                "the devices of one request were allocated in different shares",
            ));
        }
        let selector = device
            .uuid
            .parse()
            .map_err(|error: divvy_model::SelectorError| Fault::from(error))?;
        if selectors.contains(&selector) {
            return Err(refused("one request was allocated two shares of one device")
                .hint("a constraint with `distinctAttribute: gpu.divvy.dev/uuid` keeps a request's devices apart"));
        }
        selectors.push(selector);
    }
    let (memory, cores) = amount.unwrap_or_default();
    let slice = slice_name(claim, request);
    let mut ask = SliceRequest {
        name: Some(slice.clone()),
        memory: memory.map(|memory| MemoryAmount::Bytes(Bytes(memory))),
        ..SliceRequest::default()
    };
    ask.terms.compute.share = match cores {
        0 => None,
        cores => Some(Compute(u16::try_from(cores * 100).unwrap_or(Compute::WHOLE.0))),
    };
    request.parameters.apply(&mut ask)?;
    ask.select(selectors);
    Ok(Prepared {
        request: request.name.clone(),
        devices: request.devices.clone(),
        slice,
        cdi: String::new(),
        ask,
    })
}

/// The name of a request's slice: the claim's for people, then what no other request of any claim has.
fn slice_name(claim: &Named, request: &Request) -> String {
    const PLAIN: usize = 30;
    let mut parts = vec![claim.uid.as_str(), &request.name];
    for device in &request.devices {
        parts.extend([
            device.pool.as_str(),
            &device.device,
            device.share_id.as_deref().unwrap_or_default(),
        ]);
    }
    let plain: String = claim
        .name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c))
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(PLAIN)
        .collect();
    let plain = if plain.is_empty() { "claim" } else { &plain };
    format!("{plain}-{}", digest(&parts))
}

/// Whether a slice of the right name is what was asked for.
fn is_as_asked(slice: &SliceRecord, request: &Prepared) -> bool {
    let memory = match request.ask.memory {
        Some(MemoryAmount::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    let devices: Vec<String> = request.ask.selectors().map(ToString::to_string).collect();
    slice.shares.count() == devices.len()
        && slice.shares.iter().all(|share| {
            devices.contains(&share.device_uuid)
                && memory.is_none_or(|memory| share.memory_limit_bytes == memory)
        })
}

/// Refuses what other claims have: a share that is theirs, the other form of their device, more than there is of it.
fn no_double_booking(record: &Record, others: &[Record], all: &[DeviceRecord]) -> Result<(), Fault> {
    let theirs: Vec<(&Record, &Allocated)> = others
        .iter()
        .filter(|other| other.uid != record.uid)
        .flat_map(|other| allocations(other).map(move |device| (other, device)))
        .collect();
    let mut cores: BTreeMap<&str, u64> = BTreeMap::new();
    let mut memory: BTreeMap<&str, u64> = BTreeMap::new();
    for device in allocations(record).chain(theirs.iter().map(|(_, device)| *device)) {
        *cores.entry(&device.device).or_default() += device.cores;
        *memory.entry(&device.device).or_default() += device.memory.unwrap_or(0);
    }
    for mine in allocations(record) {
        let Some((device, form)) = find(all, &mine.device) else {
            continue;
        };
        let taken = theirs.iter().find(|(_, their)| match find(all, &their.device) {
            Some((same, other_form)) if same.uuid == device.uuid => {
                other_form != form || form == Form::Whole || their.share_id == mine.share_id
            }
            _ => false,
        });
        if let Some((other, _)) = taken {
            return Err(refused(&format!(
                "device `{}` is claim {}/{}'s already",
                mine.device, other.namespace, other.name
            ))
            .hint("the scheduler gave it out twice: kubernetes#139034 was that before 1.36.2"));
        }
        let too_much = cores[&*mine.device] > 100 || memory[&*mine.device] > device.memory_usable_bytes().0;
        if form == Form::Shared && too_much {
            return Err(refused(&format!(
                "more of device `{}` was allocated than there is",
                mine.device
            )));
        }
    }
    Ok(())
}

fn devices(record: &Record) -> Vec<Device> {
    let mut all = Vec::new();
    for request in &record.requests {
        for (place, device) in request.devices.iter().enumerate() {
            all.push(Device {
                request: base(&request.request).to_owned(),
                pool: device.pool.clone(),
                device: device.device.clone(),
                share_id: device.share_id.clone(),
                // One slice has all devices of a request: a container is to get it once.
                cdi: if place == 0 {
                    vec![request.cdi.clone()]
                } else {
                    Vec::new()
                },
            });
        }
    }
    all
}

#[cfg(test)]
mod tests;
