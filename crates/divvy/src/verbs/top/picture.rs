//! What `divvy top` shows at one moment: the devices, and each slice's use against its share.

use divvy_agent::api::compute::{ComputeRecord, ComputeStanding};
use divvy_model::{Bytes, DeviceKind, DeviceRecord, Mode, ProcessRecord, SliceRecord};
use serde::Serialize;

use super::order::Order;
use crate::share_words;
use crate::table::Table;
use crate::verbs::devices;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Picture {
    /// The devices.
    pub devices: Vec<Device>,
    /// The slices, once for each of their devices.
    pub items: Vec<Item>,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Device {
    /// Its place in bus order.
    pub index: u32,
    /// Its stable id.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// What kind of device it is.
    pub kind: DeviceKind,
    /// How much of the last second its slices were leased; none while that is not counted.
    pub used_1s_ratio: Option<f64>,
    /// For how much of it they kept the device busy; none where its driver does not tell.
    pub busy_1s_ratio: Option<f64>,
    /// The sum of what is promised.
    pub promised_ratio: f64,
    /// Memory in use, by all processes.
    pub memory_used_bytes: Bytes,
    /// Its memory.
    pub memory_total_bytes: Bytes,
}

/// A slice on a device. Ratios are of the device's time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Item {
    /// The slice.
    pub slice: String,
    /// Its id.
    pub slice_id: String,
    /// The device.
    pub device_uuid: String,
    /// Its place in bus order; none where the device is not listed.
    pub device_index: Option<u32>,
    /// How the device is shared.
    pub share_mode: Mode,
    /// What it was promised, in words.
    pub share: String,
    /// What it comes to while all slices want the device.
    pub effective_ratio: Option<f64>,
    /// What it was leased of the last second; none while that is not counted.
    pub used_1s_ratio: Option<f64>,
    /// What it was leased of the last ten seconds.
    pub used_10s_ratio: Option<f64>,
    /// For how much of the last second its processes kept the device busy; none where its driver does not tell.
    pub busy_1s_ratio: Option<f64>,
    /// The same of the last ten seconds.
    pub busy_10s_ratio: Option<f64>,
    /// How much of the last second it waited.
    pub queued_1s_ratio: Option<f64>,
    /// How much of the last ten seconds it waited.
    pub queued_10s_ratio: Option<f64>,
    /// Device time that it has to repay, in nanoseconds.
    pub debt_ns: u64,
    /// Where it stands.
    pub standing: &'static str,
    /// What its processes hold of the device.
    pub memory_used_bytes: Bytes,
    /// What they may hold.
    pub memory_limit_bytes: Bytes,
    /// How many there are.
    pub process_count: usize,
    /// They, with what each holds of all the slice's devices together.
    pub processes: Vec<ProcessRecord>,
    /// Whether its device is emulated.
    pub emulated: bool,
}

/// None of none.
fn sum(ratios: impl Iterator<Item = f64>) -> Option<f64> {
    ratios.fold(None, |sum, ratio| Some(sum.unwrap_or(0.0) + ratio))
}

fn ratio(parts: u32) -> f64 {
    f64::from(parts) / 10_000.0
}

impl Picture {
    /// Of what the agent tells.
    pub fn of(devices: Vec<DeviceRecord>, slices: Vec<SliceRecord>, compute: Vec<ComputeRecord>) -> Self {
        let mut items = Vec::new();
        for slice in &slices {
            for share in slice.shares.iter() {
                let mut records = compute.iter();
                let record = records
                    .find(|record| record.slice_id == slice.id && record.device_uuid == share.device_uuid);
                items.push(Item {
                    memory_used_bytes: share.memory_used_bytes,
                    memory_limit_bytes: share.memory_limit_bytes,
                    device_uuid: share.device_uuid.clone(),
                    device_index: devices
                        .iter()
                        .find(|device| device.uuid == share.device_uuid)
                        .map(|device| device.index),
                    ..Item::of(slice, record)
                });
            }
        }
        let device = |device: DeviceRecord| {
            let here = || items.iter().filter(|item| item.device_uuid == device.uuid);
            Device {
                index: device.index,
                used_1s_ratio: sum(here().filter_map(|item| item.used_1s_ratio)),
                busy_1s_ratio: sum(here().filter_map(|item| item.busy_1s_ratio)),
                promised_ratio: device
                    .sharing
                    .as_ref()
                    .map_or(0.0, |sharing| sharing.compute_promised_ratio),
                uuid: device.uuid,
                name: device.name,
                kind: device.kind,
                memory_used_bytes: device.memory_used_bytes,
                memory_total_bytes: device.memory_total_bytes,
            }
        };
        Self {
            devices: devices.into_iter().map(device).collect(),
            items,
        }
    }

    /// The largest of this first; by name among equals.
    pub fn sort(&mut self, order: Order) {
        let number = |item: &Item| match order {
            Order::Name => 0.0,
            Order::Use => item.use_1s().unwrap_or(-1.0),
            Order::Share => item.effective_ratio.unwrap_or(-1.0),
            Order::Queue => item.queued_1s_ratio.unwrap_or(-1.0),
            Order::Debt => item.debt_ns as f64,
            Order::Memory => item.memory_used_bytes.0 as f64,
        };
        self.items.sort_by(|one, other| {
            let by_number = number(other).total_cmp(&number(one));
            by_number.then_with(|| (&one.slice, &one.device_uuid).cmp(&(&other.slice, &other.device_uuid)))
        });
    }

    /// As a plain table.
    pub fn table(&self) -> Table {
        let spare = ["DEBT", "10s", "WAIT", "SHARE", "STATE"];
        let mut table = Table::new(COLUMNS.to_vec()).without(&spare);
        for item in &self.items {
            let mut cells = item.cells();
            cells[1] = devices::marked(&cells[1], item.emulated);
            table.row(cells);
        }
        table
    }
}

/// The columns of the slices; true for those set to the right.
pub const COLUMNS: [(&str, bool); 10] = [
    ("SLICE", false),
    ("DEVICE", false),
    ("SHARE", false),
    ("USE 1s", true),
    ("10s", true),
    ("WAIT", true),
    ("DEBT", true),
    ("MEMORY", true),
    ("LIMIT", true),
    ("STATE", false),
];

impl Item {
    fn of(slice: &SliceRecord, record: Option<&ComputeRecord>) -> Self {
        // Alone on its device it is not counted: it may have all, and waits for no other.
        let counted = record.filter(|record| record.standing != ComputeStanding::Open);
        Self {
            slice: slice.name.clone(),
            slice_id: slice.id.clone(),
            share_mode: slice.terms.sharing.mode,
            share: share_words::part(slice),
            effective_ratio: record.map(|record| ratio(u32::from(record.effective.0))),
            used_1s_ratio: record.and_then(|record| record.used_1s).map(ratio),
            used_10s_ratio: record.and_then(|record| record.used_10s).map(ratio),
            busy_1s_ratio: record.and_then(|record| record.busy_1s).map(ratio),
            busy_10s_ratio: record.and_then(|record| record.busy_10s).map(ratio),
            queued_1s_ratio: counted.map(|record| ratio(record.queued_1s)),
            queued_10s_ratio: counted.map(|record| ratio(record.queued_10s)),
            debt_ns: record.map_or(0, |record| record.debt_ns),
            standing: record.map_or(slice.state.name(), |record| record.standing.name()),
            process_count: slice.processes.len(),
            processes: slice.processes.clone(),
            emulated: slice.emulated_spec.is_some(),
            ..Self::default()
        }
    }

    /// What it used of the last second: what the device says, or else what was leased.
    pub fn use_1s(&self) -> Option<f64> {
        self.busy_1s_ratio.or(self.used_1s_ratio)
    }

    /// In the order of [`COLUMNS`].
    pub fn cells(&self) -> Vec<String> {
        vec![
            self.slice.clone(),
            self.device_index
                .map_or_else(|| "-".into(), |index| index.to_string()),
            self.share.clone(),
            percent(self.use_1s()),
            percent(self.busy_10s_ratio.or(self.used_10s_ratio)),
            percent(self.queued_1s_ratio),
            duration(self.debt_ns),
            self.memory_used_bytes.to_string(),
            self.memory_limit_bytes.to_string(),
            self.standing.into(),
        ]
    }
}

/// `12.3%`, or a dash where that is not counted.
pub fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".into(), |ratio| format!("{:.1}%", ratio * 100.0))
}

/// `12ms`, `3.4s`, or a dash for none.
fn duration(nanoseconds: u64) -> String {
    match nanoseconds / 1_000_000 {
        0 => "-".into(),
        milliseconds @ 1..=999 => format!("{milliseconds}ms"),
        milliseconds => format!("{:.1}s", milliseconds as f64 / 1000.0),
    }
}
