//! Which groups have GPUs, and who has them.

use std::path::Path;

use divvy_host::machine::Sysroot;
use serde::Serialize;

use crate::bind::concerns;
use crate::function::{Function, Kind};
use crate::group::Group;
use crate::holders::holders;
use crate::record::{Phase, Record, boot, peek};

/// How a group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The host's drivers have it.
    Host,
    /// All of it is on VFIO: a virtual machine can have it.
    Bound,
    /// A virtual machine has it.
    InUse,
    /// A part of it is on VFIO, and a part on the host's drivers: no virtual machine can have it.
    Half,
    /// A change of it did not end.
    Unfinished,
    /// No driver has it.
    Free,
}

impl State {
    /// For a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Bound => "bound",
            Self::InUse => "in use",
            Self::Half => "half bound",
            Self::Unfinished => "unfinished",
            Self::Free => "no driver",
        }
    }
}

/// A function of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionStatus {
    /// PCI address.
    pub address: String,
    /// What it is for.
    pub kind: Kind,
    /// PCI vendor and device, `10de:2330`.
    pub id: String,
    /// Its driver.
    pub driver: Option<String>,
    /// The driver that `divvy vm unbind` gives it back to.
    pub first_driver: Option<String>,
}

/// A group with a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupStatus {
    /// The GPU's PCI address.
    pub address: String,
    /// The number of the IOMMU group; None where the IOMMU is off.
    pub group: Option<u32>,
    /// How it stands.
    pub state: State,
    /// Whether a virtual machine can have it as it is.
    pub viable: bool,
    /// Its functions, the GPU among them.
    pub functions: Vec<FunctionStatus>,
    /// What uses it.
    pub used_by: Vec<String>,
}

/// Every group with a GPU, by the address of its first GPU.
#[must_use]
pub fn status(root: &Sysroot, base: &Path) -> Vec<GroupStatus> {
    let records = peek(base);
    let now = boot(root);
    let gpus: Vec<Function> = Function::all(root)
        .into_iter()
        .filter(|function| function.kind() == Kind::Gpu)
        .collect();
    let mut seen = Vec::new();
    let mut all = Vec::new();
    for gpu in gpus {
        let group = match gpu.group {
            Some(number) if seen.contains(&number) => continue,
            Some(number) => {
                seen.push(number);
                Group::read(root, number)
            }
            None => Group {
                number: 0,
                functions: vec![gpu.clone()],
            },
        };
        let record = records
            .iter()
            .find(|record| record.boot == now && concerns(record, &group));
        all.push(one(root, &gpu, &group, record));
    }
    all
}

fn one(root: &Sysroot, gpu: &Function, group: &Group, record: Option<&Record>) -> GroupStatus {
    let on_host = group.on_host_drivers();
    let on_vfio = group.functions.iter().any(Function::is_on_vfio);
    let used = holders(root, &group.functions);
    let has_machine = used.iter().any(|holder| {
        matches!(holder, crate::holders::Holder::Process { file, .. } if file.starts_with("/dev/vfio"))
    });
    let state = match record {
        Some(record) if record.phase != Phase::Bound => State::Unfinished,
        _ if on_vfio && has_machine => State::InUse,
        _ if on_vfio && !on_host.is_empty() => State::Half,
        _ if on_vfio => State::Bound,
        _ if on_host.is_empty() => State::Free,
        _ => State::Host,
    };
    let first = |address: &str| {
        let saved = record?.functions.iter().find(|saved| saved.address == address)?;
        saved.driver.clone()
    };
    GroupStatus {
        address: gpu.address.clone(),
        group: gpu.group,
        viable: gpu.group.is_some() && on_vfio && on_host.is_empty(),
        state,
        functions: group
            .functions
            .iter()
            .map(|function| FunctionStatus {
                address: function.address.clone(),
                kind: function.kind(),
                id: function.id(),
                driver: function.driver.clone(),
                first_driver: first(&function.address),
            })
            .collect(),
        used_by: used.iter().map(ToString::to_string).collect(),
    }
}
