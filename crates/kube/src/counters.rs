//! Counters that devices share. A GPU that is divided by MIG is one set of counters, of which each instance takes its part: its
//! memory slices, its multiprocessors, its memory, as NVIDIA's driver has them. Both forms of a device take the same ones, so the
//! scheduler gives out one form at a time. See docs/adr/0065.

use std::collections::BTreeMap;

use divvy_model::{DeviceRecord, MigPlace, MigProduct};
use k8s_openapi::api::resource::v1::{Counter, CounterSet, DeviceCounterConsumption};

use crate::devices::{label, name};
use crate::quantity::{bytes, count};

/// Kubernetes' bounds on a ResourceSlice: sets of counters, and counters in all of them (1.34 counts those).
const MOST_SETS: usize = 8;
const MOST_COUNTERS: usize = 32;

const MEMORY: &str = "memory";
const MULTIPROCESSORS: &str = "multiprocessors";

/// The set that a device takes its counters of.
fn set_of(device: &DeviceRecord) -> String {
    match device.mig_instance() {
        Some(place) => label(&place.gpu_uuid),
        None => name(device),
    }
}

/// What a device takes of its set, in numbers.
fn taken(device: &DeviceRecord, all: &[DeviceRecord]) -> BTreeMap<String, u64> {
    let Some(place) = device.mig_instance() else {
        return [("owner".to_owned(), 1)].into();
    };
    let beside =
        |other: &MigPlace| (&other.gpu_uuid, other.gpu_instance) == (&place.gpu_uuid, place.gpu_instance);
    let parts = all
        .iter()
        .filter_map(DeviceRecord::mig_instance)
        .filter(|one| beside(one));
    let mut counters = BTreeMap::from([
        // Its own: compute instances of one GPU instance have the same memory slices.
        (name(device), 1),
        (MULTIPROCESSORS.to_owned(), device.sm_count.into()),
    ]);
    // They share its memory as well, so none of them takes it.
    if parts.count() == 1 {
        counters.insert(MEMORY.to_owned(), device.memory_total_bytes.0);
        let slices = place.memory_slices.unwrap_or_default();
        let covered = (slices.start..slices.start.saturating_add(slices.count)).take(MOST_COUNTERS / 2);
        counters.extend(covered.map(|slice| (memory_slice(slice), 1)));
    }
    counters
}

fn memory_slice(number: u32) -> String {
    format!("memory-slice-{number}")
}

fn written(counters: BTreeMap<String, u64>) -> BTreeMap<String, Counter> {
    let one = |(name, number): (String, u64)| {
        let value = if name == MEMORY {
            bytes(number)
        } else {
            count(number)
        };
        (name, Counter { value })
    };
    counters.into_iter().map(one).collect()
}

/// What a device takes while it is given out, in either form. `all` are the node's devices.
#[must_use]
pub fn consumed(device: &DeviceRecord, all: &[DeviceRecord]) -> DeviceCounterConsumption {
    DeviceCounterConsumption {
        counter_set: set_of(device),
        counters: written(taken(device, all)),
    }
}

/// What a GPU has: no less than its instances take together, for they are there.
fn whole(gpu: &DeviceRecord) -> BTreeMap<String, u64> {
    let facts = gpu.hardware.as_deref();
    let pci = facts.and_then(|facts| facts.pci_id.as_deref()?.strip_prefix("10de:"));
    let by_pci = pci.and_then(|id| MigProduct::of_pci(u16::from_str_radix(id, 16).ok()?));
    let product = by_pci.or_else(|| MigProduct::of_key(gpu.profile.as_deref()?));
    let mut counters = BTreeMap::from([
        (MEMORY.to_owned(), gpu.memory_total_bytes.0),
        (MULTIPROCESSORS.to_owned(), gpu.sm_count.into()),
    ]);
    let slices = product.map_or(0, |product| product.memory_slices);
    counters.extend((0..slices.into()).map(|slice| (memory_slice(slice), 1)));
    counters
}

/// The sets of counters of these devices, as ResourceSlices hold them. `all` are the node's devices, those in MIG mode too.
#[must_use]
pub fn sets(devices: &[&DeviceRecord], all: &[DeviceRecord]) -> Vec<Vec<CounterSet>> {
    let mut names: Vec<String> = Vec::new();
    let mut sums: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for device in devices {
        let set = set_of(device);
        let sum = sums.entry(set.clone()).or_insert_with(|| {
            names.push(set);
            BTreeMap::new()
        });
        for (name, number) in taken(device, all) {
            let counter = sum.entry(name.clone()).or_default();
            *counter = match name.starts_with("memory-slice-") {
                // Two that say they have the same slice are not both given out.
                true => 1,
                false => counter.saturating_add(number),
            };
        }
    }
    for gpu in all.iter().filter(|gpu| gpu.is_divided()) {
        if let Some(sum) = sums.get_mut(&label(&gpu.uuid)) {
            for (name, number) in whole(gpu) {
                let counter = sum.entry(name).or_default();
                *counter = number.max(*counter);
            }
        }
    }
    let mut slices: Vec<Vec<CounterSet>> = Vec::new();
    let mut counted = 0;
    for name in names {
        let counters = written(sums.remove(&name).unwrap_or_default());
        let is_full = slices.last().is_none_or(|slice| slice.len() == MOST_SETS);
        if is_full || counted + counters.len() > MOST_COUNTERS {
            slices.push(Vec::new());
            counted = 0;
        }
        counted += counters.len();
        if let Some(slice) = slices.last_mut() {
            slice.push(CounterSet { name, counters });
        }
    }
    slices
}

#[cfg(test)]
pub(crate) mod tests;
