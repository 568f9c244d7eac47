//! The whole devices that a container asked for, as edits.

use divvy_host::machine::Sysroot;
use divvy_model::{Code, DeviceKind, DeviceRecord, Fault, Vendor};

use super::request::Request;
use super::variables::{Nvidia, amd};
use crate::cdi::{self, Edits, Options, Spec};

/// What the request's whole devices add to the container, of a machine with these devices.
///
/// # Errors
/// [`Code::UnknownDevice`] for one that is not there.
pub fn devices(root: &Sysroot, records: &[DeviceRecord], request: &Request) -> Result<Edits, Fault> {
    let mut edits = Edits::default();
    let of = |vendor| {
        let options = Options {
            vendor: Some(vendor),
            capabilities: request.capabilities.clone(),
            ..Options::default()
        };
        let found = cdi::generate(root, records, &options);
        found.into_iter().next().map(|generated| generated.spec)
    };
    match &request.nvidia {
        Nvidia::Void => {}
        asked => {
            let spec = of(Vendor::Nvidia).ok_or_else(|| {
                Fault::new(
                    Code::UnknownDevice,
                    "NVIDIA's devices are asked for, and there are none",
                )
                .hint("`divvy devices` lists those there are")
            })?;
            // The driver's files come with any device and with `none`.
            add(&mut edits, &spec.container_edits);
            let names = match asked {
                Nvidia::All => vec!["all".to_owned()],
                Nvidia::Some(names) => names.clone(),
                Nvidia::None | Nvidia::Void => Vec::new(),
            };
            if names.is_empty() {
                edits.device_nodes.clear();
            }
            for name in names {
                let name = instance(records, &name).unwrap_or(name);
                add(&mut edits, named(&spec, &name)?);
            }
        }
    }
    if request.amd
        && let Some(spec) = of(Vendor::Amd)
    {
        let asked = amd(&request.variables, &unique_ids(records));
        if !asked.is_empty() {
            add(&mut edits, &spec.container_edits);
        }
        for index in asked {
            add(&mut edits, named(&spec, &index.to_string())?);
        }
    }
    Ok(edits)
}

fn named<'a>(spec: &'a Spec, name: &str) -> Result<&'a Edits, Fault> {
    let device = spec.devices.iter().find(|device| device.name == name);
    let device = device.ok_or_else(|| {
        Fault::new(
            Code::UnknownDevice,
            format!("there is no device `{name}` of the kind {}", spec.kind),
        )
        .hint("`divvy devices` lists those there are")
    })?;
    Ok(&device.container_edits)
}

fn add(edits: &mut Edits, more: &Edits) {
    for node in &more.device_nodes {
        if !edits.device_nodes.contains(node) {
            edits.device_nodes.push(node.clone());
        }
    }
    edits.env.extend(more.env.iter().cloned());
    edits.mounts.extend(more.mounts.iter().cloned());
}

/// A MIG instance's place by its UUID, as `GPU:INSTANCE`.
fn instance(records: &[DeviceRecord], uuid: &str) -> Option<String> {
    let of_gpu = |record: &DeviceRecord| {
        let facts = record.hardware.as_deref()?;
        Some(facts.mig_instance.as_ref()?.gpu_uuid.clone())
    };
    let instance = records
        .iter()
        .find(|record| record.kind == DeviceKind::Mig && record.uuid == uuid)?;
    let gpu = of_gpu(instance)?;
    let nvidia = records.iter().filter(|record| {
        record.kind == DeviceKind::Gpu
            && record
                .hardware
                .as_ref()
                .is_some_and(|facts| facts.vendor == Vendor::Nvidia)
    });
    let index = nvidia.into_iter().position(|record| record.uuid == gpu)?;
    let mut siblings = records
        .iter()
        .filter(|record| of_gpu(record).as_ref() == Some(&gpu));
    let number = siblings.position(|record| record.uuid == uuid)?;
    Some(format!("{index}:{number}"))
}

/// The unique ids of AMD's devices in KFD's order, out of their UUIDs.
fn unique_ids(records: &[DeviceRecord]) -> Vec<Option<u64>> {
    let mut accelerators: Vec<(u32, &DeviceRecord)> = records
        .iter()
        .filter_map(|record| Some((record.hardware.as_ref()?.kfd_node?, record)))
        .collect();
    accelerators.sort_by_key(|(node, _)| *node);
    let id = |uuid: &str| {
        let digits = uuid.strip_prefix("GPU-")?.split('/').next()?;
        u64::from_str_radix(digits, 16).ok()
    };
    accelerators
        .into_iter()
        .map(|(_, record)| id(&record.uuid))
        .collect()
}
