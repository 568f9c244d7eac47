//! The edge cases of each decision, over devices and slices that are written down here.

mod compute;
mod life;
mod mig;
mod modes;
mod nesting;
mod placement;
mod queue;
mod resize;
mod rules;

use std::collections::HashMap;

use divvy_host::Inventory;
use divvy_model::{
    Bytes, ComputeTerms, DeviceKind, DeviceRecord, DeviceShare, Fault, Hardware, Isolation, MemoryAmount,
    Mode, Shares, SliceRecord, SliceRequest, SliceTerms,
};

use crate::decide::admission::Hold;
use crate::decide::held::HeldMode;
use crate::decide::placement::{Host, Placed, Question, Sight};
use crate::decide::queue::Ahead;
use crate::decide::rules::{Rules, Tenant, Tenants, UsedOn};
use crate::start::settings::Settings;

const ALICE: u32 = 1000;
const BOB: u32 = 1001;

fn gib(n: u64) -> Bytes {
    Bytes(n << 30)
}

/// GPU number `index`, `GPU-0` and so on, of 80 GiB. Its contexts cost nothing: see [`settings`].
fn gpu(index: u32) -> DeviceRecord {
    DeviceRecord {
        index,
        uuid: format!("GPU-{index}"),
        name: "test".into(),
        kind: DeviceKind::Gpu,
        profile: None,
        pci_address: format!("0000:0{index}:00.0"),
        memory_total_bytes: gib(80),
        memory_reserved_bytes: Bytes(0),
        memory_used_bytes: Bytes(0),
        sm_count: 132,
        compute_capability: "9.0".into(),
        context_bytes: None,
        sharing: None,
        hardware: None,
    }
}

/// A GPU in MIG mode.
fn divided(index: u32) -> DeviceRecord {
    let hardware = Hardware {
        mig_mode: Some(true),
        ..Hardware::default()
    };
    DeviceRecord {
        hardware: Some(Box::new(hardware)),
        ..gpu(index)
    }
}

/// A MIG instance of GPU number `gpu_index`.
fn instance(index: u32, gpu_index: u32, memory: Bytes, sm_count: u32) -> DeviceRecord {
    let place = serde_json::json!({
        "gpu_uuid": format!("GPU-{gpu_index}"), "gpu_instance": index, "compute_instance": 0,
        "profile": "1g.10gb",
    });
    let hardware = Hardware {
        mig_instance: Some(serde_json::from_value(place).expect("a place")),
        ..Hardware::default()
    };
    DeviceRecord {
        uuid: format!("MIG-{index}"),
        kind: DeviceKind::Mig,
        memory_total_bytes: memory,
        sm_count,
        hardware: Some(Box::new(hardware)),
        ..gpu(index)
    }
}

fn inventory(devices: &[DeviceRecord]) -> Inventory {
    Inventory {
        devices: devices.to_vec(),
        ..Inventory::default()
    }
}

fn settings() -> Settings {
    Settings {
        context: Some(Bytes(0)),
        ..Settings::default()
    }
}

fn rules(settings: &Settings) -> Rules<'_> {
    Rules {
        settings,
        asker: ALICE,
        account: ALICE,
        name_of: |uid| format!("user {uid}"),
    }
}

/// A slice of user `uid` that holds so much of each of these devices.
fn tenant(id: &str, uid: u32, holds: &[(&str, u64)]) -> Tenant {
    let hold = |(uuid, held): &(&str, u64)| {
        let hold = Hold {
            id: id.to_owned(),
            name: id.to_owned(),
            uid,
            whole: false,
            limit: gib(*held),
            compute: ComputeTerms::default(),
            mode: Some(HeldMode::default()),
        };
        ((*uuid).to_owned(), hold)
    };
    Tenant {
        id: id.to_owned(),
        accounts: vec![uid],
        holds: holds.iter().map(hold).collect(),
    }
}

fn request(memory: u64) -> SliceRequest {
    SliceRequest {
        memory: Some(MemoryAmount::Bytes(gib(memory))),
        ..SliceRequest::default()
    }
}

/// A record of user [`ALICE`] with so much of each device, inside `parent` where one is named.
fn record(id: &str, parent: Option<&str>, devices: &[(&str, u64)]) -> SliceRecord {
    let share = |(uuid, memory): &(&str, u64)| share(uuid, gib(*memory), Bytes(0));
    SliceRecord {
        id: id.to_owned(),
        name: id.to_owned(),
        uid: ALICE,
        parent_id: parent.map(str::to_owned),
        shares: Shares::of(devices.iter().map(share)).unwrap_or_default(),
        ..SliceRecord::default()
    }
}

/// The terms of a slice without limits.
fn unlimited() -> SliceTerms {
    SliceTerms {
        isolation: Isolation::Env,
        ..SliceTerms::default()
    }
}

/// The terms of a slice that is a whole device.
fn whole() -> SliceTerms {
    SliceTerms {
        whole: true,
        ..SliceTerms::default()
    }
}

/// The terms of a slice that shares its device in this way.
fn sharing(mode: Mode) -> SliceTerms {
    let mut terms = SliceTerms::default();
    terms.sharing.mode = mode;
    terms
}

fn share(uuid: &str, limit: Bytes, lent: Bytes) -> DeviceShare {
    DeviceShare {
        device_uuid: uuid.to_owned(),
        memory_limit_bytes: limit,
        memory_lent_bytes: lent,
        ..DeviceShare::default()
    }
}

/// A host whose looks find prepared figures, and which records the looks.
#[derive(Default)]
struct Played {
    tenants: Tenants,
    used: HashMap<String, UsedOn>,
    taken: Vec<String>,
    silent: Vec<String>,
    looked: Vec<String>,
}

impl Host for Played {
    fn check_owner(&mut self, device: &DeviceRecord) -> Result<(), Fault> {
        match self.taken.contains(&device.uuid) {
            true => Err(Fault::new(divvy_model::Code::DeviceTaken, "another agent has it")),
            false => Ok(()),
        }
    }

    fn look(&mut self, device: &DeviceRecord) -> Result<Sight, Fault> {
        self.looked.push(device.uuid.clone());
        if self.silent.contains(&device.uuid) {
            return Err(Fault::new(divvy_model::Code::Driver, "it does not answer"));
        }
        Ok(Sight {
            used: self.used.get(&device.uuid).copied().unwrap_or_default(),
            tenants: self.tenants.clone(),
        })
    }
}

impl Played {
    fn with(tenants: Vec<Tenant>) -> Self {
        Self {
            tenants: Tenants(tenants),
            ..Self::default()
        }
    }

    /// The device that a request of [`ALICE`] gets among these; each group of devices counts together.
    fn place(
        &mut self,
        settings: &Settings,
        request: &SliceRequest,
        ahead: &Ahead,
        candidates: Vec<Vec<DeviceRecord>>,
    ) -> Result<Placed, Fault> {
        let all: Vec<DeviceRecord> = candidates.iter().flatten().cloned().collect();
        let question = Question {
            rules: rules(settings),
            request,
            isolation: request.terms.isolation,
            ahead,
        };
        let tenants = self.tenants.clone();
        question.place(&inventory(&all), candidates, &tenants, self)
    }
}

fn uuids(placed: &Placed) -> Vec<(&str, u64)> {
    let each = placed.iter();
    each.map(|(device, share)| (device.uuid.as_str(), share.0 >> 30))
        .collect()
}
