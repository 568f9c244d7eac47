//! What is to be made for a claim, and whether it fits beside the other claims. Nothing is asked and nothing is changed here.

use std::collections::BTreeMap;

use divvy_model::{Bytes, Compute, DeviceRecord, Fault, MemoryAmount, SliceRequest};

use super::Named;
use crate::claim::{Allocated, Request, refused};
use crate::devices::{Form, find, given_memory};
use crate::state::{Prepared, Record, digest};

pub(super) fn allocations(record: &Record) -> impl Iterator<Item = &Allocated> {
    record.requests.iter().flat_map(|request| &request.devices)
}

/// A request's slice, as it is to be asked of the agent: one slice of all its devices.
pub(super) fn planned(claim: &Named, request: &Request, all: &[DeviceRecord]) -> Result<Prepared, Fault> {
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
        slice_id: String::new(),
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

/// Refuses what other claims have: a share that is theirs, the other form of their device, more than there is of it.
pub(super) fn no_double_booking(
    record: &Record,
    others: &[Record],
    all: &[DeviceRecord],
    most_cores: u64,
) -> Result<(), Fault> {
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
        let too_much = cores[&*mine.device] > most_cores || memory[&*mine.device] > given_memory(device);
        if form == Form::Shared && too_much {
            return Err(refused(&format!(
                "more of device `{}` was allocated than there is",
                mine.device
            )));
        }
    }
    Ok(())
}
