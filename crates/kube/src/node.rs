//! Prepares claims on this node: a slice at the agent and a CDI device for each request, and takes them back.
//!
//! At all times the agent has the slices of the claims that are prepared, and no others of ours: see [`crate::kept`]. What a
//! call or this process left half done is ended by the next. The API server is asked before the turn is taken, so that one
//! which does not answer holds up the claim that needs it, and no other.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_model::{Code, DeviceRecord, Fault, SliceRecord};
use k8s_openapi::api::resource::v1::ResourceClaim;

use self::calls::Calls;
pub use self::calls::Ticket;
use self::plan::{allocations, no_double_booking, planned};
use crate::claim::{base, refused, requests};
use crate::cluster::{Cluster, Refusal};
use crate::devices::{Form, find};
use crate::kept::{Host, Kept, WORD};
use crate::split::Split;
use crate::state::{Record, State, is_uid};

mod calls;
mod containers;
mod plan;
mod reconcile;

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
    cluster: Box<dyn Cluster>,
    /// What the claims of a device may have of its time together, in percent.
    most_cores: u64,
    split: Split,
    calls: Calls,
    /// One change at a time: two claims must not both find a device free.
    kept: Mutex<Kept>,
    /// Claims that the API server did not know at the last looks, with their number.
    forgotten: Mutex<BTreeMap<String, u32>>,
}

impl Node {
    /// With these records. What an earlier process left half done is ended first. The cores of a device's claims may add up to
    /// `most_cores` percent.
    ///
    /// # Errors
    /// [`Code::Claim`] where the records cannot be read. An agent that is not there is no error: it is asked again at the
    /// next call.
    pub fn open(
        name: &str,
        host: Box<dyn Host>,
        cluster: Box<dyn Cluster>,
        state: State,
        most_cores: u64,
    ) -> Result<Self, Fault> {
        let kept = Kept { host, state };
        for record in kept.state.all()? {
            if !record.prepared {
                let _next_call = kept.take_back(&record);
            }
        }
        Ok(Self {
            name: name.to_owned(),
            cluster,
            most_cores,
            split: Split::default(),
            calls: Calls::default(),
            kept: Mutex::new(kept),
            forgotten: Mutex::default(),
        })
    }

    /// With the devices that this split leaves to this driver. Claims that are prepared stay.
    #[must_use]
    pub fn splitting(mut self, split: Split) -> Self {
        self.split = split;
        self
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

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The devices that the agent has.
    ///
    /// # Errors
    /// As [`Host::devices`].
    pub fn devices(&self) -> Result<Vec<DeviceRecord>, Fault> {
        self.kept().host.devices()
    }

    /// The slices of all users.
    ///
    /// # Errors
    /// As [`Host::slices`].
    pub fn slices(&self) -> Result<Vec<SliceRecord>, Fault> {
        self.kept().host.slices()
    }

    /// The claims that are prepared.
    ///
    /// # Errors
    /// [`Code::Claim`] where the records cannot be read.
    pub fn claims(&self) -> Result<Vec<Record>, Fault> {
        self.kept().state.all()
    }

    /// The UIDs of claims whose records are damaged and were set aside. They are not prepared again before they were taken back.
    ///
    /// # Errors
    /// [`Code::Claim`] where the folder cannot be read.
    pub fn set_aside(&self) -> Result<Vec<String>, Fault> {
        self.kept().state.set_aside()
    }

    /// A call to prepare this claim has arrived. Taking the claim back later ends the call too.
    #[must_use]
    pub fn arrive(&self, claim: &Named) -> Ticket {
        self.calls.arrive(&claim.uid)
    }

    /// A call to take this claim back has arrived: calls to prepare it that came before make nothing any more.
    pub fn overtake(&self, claim: &Named) {
        self.calls.end(&claim.uid);
    }

    /// Prepares a claim. One that is prepared already is looked at, and answered as before.
    ///
    /// # Errors
    /// What keeps it from being prepared. Then nothing of it is left, or what is left is ended by the next call.
    pub fn prepare(&self, claim: &Named) -> Result<Vec<Device>, Fault> {
        self.prepare_for(claim, &self.arrive(claim))
    }

    /// [`Self::prepare`] for a call that has arrived, as long as its ticket is good.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn prepare_for(&self, claim: &Named, ticket: &Ticket) -> Result<Vec<Device>, Fault> {
        check(claim)?;
        if let Some(devices) = self.again(&self.kept(), claim, ticket)? {
            return Ok(devices);
        }
        let found = self.look_up(claim)?;
        let kept = self.kept();
        // Another call may have prepared it meanwhile.
        if let Some(devices) = self.again(&kept, claim, ticket)? {
            return Ok(devices);
        }
        if let Some(half) = kept.state.read(&claim.uid)? {
            kept.take_back(&half)?;
        }
        let mut record = self.planned(&kept, claim, &found)?;
        if let Err(fault) = kept.make(&mut record, &words(claim)) {
            // Where this fails too the record stays, and the next call ends what is left.
            let _next_call = kept.take_back(&record);
            return Err(fault);
        }
        Ok(devices(&record))
    }

    /// The devices of a claim that is prepared, whose slices are made again where they are missing.
    fn again(&self, kept: &Kept, claim: &Named, ticket: &Ticket) -> Result<Option<Vec<Device>>, Fault> {
        ticket.check()?;
        let Some(mut record) = kept.state.read(&claim.uid)?.filter(|record| record.prepared) else {
            return Ok(None);
        };
        self.is_known(&claim.uid);
        kept.make(&mut record, &words(claim))?;
        Ok(Some(devices(&record)))
    }

    /// Takes a claim back. One that is not prepared is no error.
    ///
    /// # Errors
    /// What keeps its slices from being ended: the kubelet asks again.
    pub fn unprepare(&self, claim: &Named) -> Result<(), Fault> {
        check(claim)?;
        self.overtake(claim);
        let kept = self.kept();
        match kept.state.read(&claim.uid) {
            Ok(Some(record)) => kept.take_back(&record),
            Ok(None) => Ok(()),
            Err(_) => kept.take_back_damaged(&claim.uid),
        }
    }

    /// The claim as the API server has it. Its containers can have it.
    fn look_up(&self, claim: &Named) -> Result<ResourceClaim, Fault> {
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
        containers::one_slice_each(self.cluster(), claim, &found, &self.name)?;
        Ok(found)
    }

    /// A record of what the claim was allocated, which fits beside the others'.
    fn planned(&self, kept: &Kept, claim: &Named, found: &ResourceClaim) -> Result<Record, Fault> {
        let requests = requests(found, &claim.uid, &self.name)?;
        let all = kept.host.devices()?;
        let prepared = requests
            .iter()
            .map(|request| planned(claim, request, &all))
            .collect::<Result<Vec<_>, _>>()?;
        let record = Record::new(&claim.uid, &claim.namespace, &claim.name, prepared);
        owned(&record, &self.split, &all)?;
        let others = kept.state.all()?;
        no_double_booking(&record, &others, &all, self.most_cores)?;
        whole_are_free(kept, &record, &others, &all)?;
        Ok(record)
    }
}

/// Refuses a device that is another driver's.
fn owned(record: &Record, split: &Split, all: &[DeviceRecord]) -> Result<(), Fault> {
    let other = allocations(record)
        .filter_map(|device| find(all, &device.device))
        .find(|(device, _)| !split.has(device));
    other.map_or(Ok(()), |(device, _)| {
        Err(
            refused(&format!("device {} of this node is another driver's", device.uuid))
                .hint("`divvy k8s dra-plugin --device` names this driver's: delete the pod, so that it is scheduled again"),
        )
    })
}

/// Refuses a whole device on which there are slices that are not this driver's, of any user.
fn whole_are_free(
    kept: &Kept,
    record: &Record,
    others: &[Record],
    all: &[DeviceRecord],
) -> Result<(), Fault> {
    let whole: Vec<&str> = allocations(record)
        .filter_map(|device| find(all, &device.device))
        .filter(|(_, form)| *form == Form::Whole)
        .map(|(device, _)| &*device.uuid)
        .collect();
    if whole.is_empty() {
        return Ok(());
    }
    let uid = kept.host.uid();
    let ours = |slice: &SliceRecord| {
        let all = others.iter().chain([record]).flat_map(|record| &record.requests);
        slice.uid == uid && all.map(|request| &request.slice).any(|name| *name == slice.name)
    };
    let slices = kept.host.slices()?;
    let in_use = slices.iter().find(|slice| {
        !ours(slice)
            && slice
                .shares
                .iter()
                .any(|share| whole.contains(&&*share.device_uuid))
    });
    in_use.map_or(Ok(()), |slice| {
        Err(refused(&format!(
            "slice `{}` of user {} has a share of a device that was allocated whole",
            slice.name, slice.uid
        )))
    })
}

/// What lists show of a claim's slices.
fn words(claim: &Named) -> [String; 3] {
    [
        WORD.to_owned(),
        format!("{}/{}", claim.namespace, claim.name),
        claim.uid.clone(),
    ]
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
