//! `CUDA_VISIBLE_DEVICES`, by the CUDA programming guide and the MIG user guide.
//!
//! Not set: all. Set and empty: none. Entries are indices, `GPU-` and enough of a UUID, `MIG-<uuid>` or
//! `MIG-<GPU-uuid>/<gpu instance>/<compute instance>`. An entry that names no device ends the list; a device named
//! twice hides all. A program sees one MIG device only, and then no whole GPU.

use super::Filtered;

pub const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// A device as the CUDA driver lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// `GPU-…`, or `MIG-…` of an instance.
    pub uuid: String,
    /// Of an instance: its GPU's UUID, its GPU instance and its compute instance.
    pub instance: Option<(String, u32, u32)>,
}

/// Filters devices, GPUs in the order that `CUDA_DEVICE_ORDER` gives, each followed by its MIG instances.
pub fn filter(value: Option<&str>, devices: &[CudaDevice]) -> Filtered {
    let gpus: Vec<usize> = (0..devices.len())
        .filter(|place| devices[*place].instance.is_none())
        .collect();
    let Some(value) = value else {
        let mut result = Filtered {
            chosen: gpus
                .iter()
                .map(|place| own_instance(*place, devices).unwrap_or(*place))
                .collect(),
            steps: vec![format!("{VARIABLE} is not set: all {} GPUs", gpus.len())],
            warnings: Vec::new(),
        };
        one_instance(&mut result, devices);
        return result;
    };
    if value.is_empty() {
        return Filtered::none(format!("{VARIABLE} is set and empty: no devices"));
    }
    let mut result = Filtered::default();
    result.steps.push(format!("{VARIABLE}={value}"));
    let entries: Vec<&str> = value.split(',').map(str::trim).collect();
    for (at, entry) in entries.iter().enumerate() {
        let place = match resolve(entry, &gpus, devices) {
            Ok(place) => place,
            Err(why) => {
                result.stop(VARIABLE, entry, &why, entries.len() - at - 1);
                break;
            }
        };
        let place = match own_instance(place, devices) {
            Some(instance) => {
                result.steps.push(format!(
                    "`{entry}`: its GPU is in MIG mode, and its first instance is taken"
                ));
                instance
            }
            None => place,
        };
        if result.chosen.contains(&place) {
            result.chosen.clear();
            result
                .steps
                .push(format!("`{entry}`: a device named twice: no devices at all"));
            result.warnings.push(format!(
                "{VARIABLE}: `{entry}` names a device a second time, which hides every device"
            ));
            return result;
        }
        result.take(entry, place, "");
    }
    one_instance(&mut result, devices);
    result
}

/// The first instance of a GPU in MIG mode.
fn own_instance(gpu: usize, devices: &[CudaDevice]) -> Option<usize> {
    devices[gpu].instance.is_none().then_some(())?;
    devices
        .iter()
        .position(|device| matches!(&device.instance, Some((parent, ..)) if *parent == devices[gpu].uuid))
}

/// A program sees the first MIG instance of its list, and nothing else.
fn one_instance(result: &mut Filtered, devices: &[CudaDevice]) {
    let first = result
        .chosen
        .iter()
        .copied()
        .find(|place| devices[*place].instance.is_some());
    if let Some(first) = first.filter(|_| result.chosen.len() > 1) {
        result.chosen = vec![first];
        result.steps.push(format!(
            "a CUDA program sees one MIG device and no other device: {} only",
            devices[first].uuid
        ));
        result.warnings.push(format!(
            "{VARIABLE}: of a list with a MIG device in it, a CUDA program sees that one only"
        ));
    }
}

fn resolve(entry: &str, gpus: &[usize], devices: &[CudaDevice]) -> Result<usize, String> {
    if let Ok(index) = entry.parse::<usize>() {
        return gpus
            .get(index)
            .copied()
            .ok_or_else(|| format!("there is no device {index}"));
    }
    if entry.is_empty() {
        return Err("empty".into());
    }
    let lower = entry.to_ascii_lowercase();
    if entry.starts_with("MIG-") {
        return instance(&lower, devices).ok_or_else(|| "there is no such MIG device".into());
    }
    if !entry.starts_with("GPU-") {
        return Err("no number, and neither GPU- nor MIG- in front".into());
    }
    let mut fits = gpus
        .iter()
        .copied()
        .filter(|place| devices[*place].uuid.to_ascii_lowercase().starts_with(&lower));
    match (fits.next(), fits.next()) {
        (Some(place), None) => Ok(place),
        (None, _) => Err("no device has such a UUID".into()),
        (Some(_), Some(_)) => Err("several devices have such a UUID".into()),
    }
}

fn instance(lower: &str, devices: &[CudaDevice]) -> Option<usize> {
    let path = lower.strip_prefix("mig-").and_then(|rest| {
        let mut parts = rest.split('/');
        let gpu = parts.next()?.to_owned();
        let ids = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then_some((gpu, ids))
    });
    devices.iter().position(|device| match (&device.instance, &path) {
        (Some((gpu, gi, ci)), Some((wanted, ids))) => {
            gpu.to_ascii_lowercase() == *wanted && (*gi, *ci) == *ids
        }
        (Some(_), None) => device.uuid.to_ascii_lowercase() == *lower,
        (None, _) => false,
    })
}
