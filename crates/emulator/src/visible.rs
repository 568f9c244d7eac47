//! `CUDA_VISIBLE_DEVICES`, by the rules of the CUDA programming guide and the MIG user guide.
//!
//! The list is read left to right and ends at the first entry that names no device; devices before it stay visible. A
//! device named twice hides everything. Set but empty hides everything.
//!
//! Of a GPU in MIG mode its first compute instance is seen; a GPU in that mode with none is no device. An instance is
//! named by `MIG-<uuid>` or `MIG-<GPU-uuid>/<gpu instance>/<compute instance>`. A program sees one instance, and then
//! no other device.

use divvy_device::inventory::DeviceFacts;
use divvy_device::product::identity::Uuid;

/// A GPU, with its MIG devices where it is in MIG mode.
#[derive(Debug, Clone)]
pub struct Present {
    /// The GPU.
    pub gpu: DeviceFacts,
    /// Its MIG devices, in NVML's order; None where the mode is off.
    pub instances: Option<Vec<DeviceFacts>>,
}

impl Present {
    /// What a program gets when it names the GPU.
    fn device(&self) -> Option<DeviceFacts> {
        match &self.instances {
            None => Some(self.gpu),
            Some(instances) => instances.first().copied(),
        }
    }
}

/// The visible devices, in the order the program will see them. `setting` is None when unset.
pub fn visible(setting: Option<&str>, present: &[Present]) -> Vec<DeviceFacts> {
    let Some(setting) = setting else {
        return one_instance(present.iter().filter_map(Present::device).collect());
    };
    let mut chosen: Vec<DeviceFacts> = Vec::new();
    for entry in setting.split(',') {
        let Some(device) = resolve(entry.trim(), present) else {
            break;
        };
        if chosen.iter().any(|known| known.uuid == device.uuid) {
            return Vec::new();
        }
        chosen.push(device);
    }
    one_instance(chosen)
}

/// The first instance of a list hides everything else in it.
fn one_instance(chosen: Vec<DeviceFacts>) -> Vec<DeviceFacts> {
    match chosen.iter().find(|device| device.instance.is_some()) {
        Some(first) => vec![*first],
        None => chosen,
    }
}

fn resolve(entry: &str, present: &[Present]) -> Option<DeviceFacts> {
    if let Ok(index) = entry.parse::<usize>() {
        return present.get(index)?.device();
    }
    if entry.starts_with("MIG-") {
        return instance(&entry.to_ascii_lowercase()["MIG-".len()..], present);
    }
    if !entry.starts_with("GPU-") {
        return None;
    }
    let entry = entry.to_ascii_lowercase();
    let mut matches = present.iter().filter(|one| {
        let uuid = one.gpu.uuid.to_string();
        uuid.to_ascii_lowercase().starts_with(&entry)
    });
    let first = matches.next()?;
    // A prefix that two devices share names neither.
    matches.next().is_none().then(|| first.device())?
}

/// By what follows `MIG-`, in lower case.
fn instance(name: &str, present: &[Present]) -> Option<DeviceFacts> {
    let mut instances = present.iter().flat_map(|one| one.instances.iter().flatten());
    let found = match name.split('/').collect::<Vec<_>>().as_slice() {
        [uuid] => {
            let uuid = Uuid::parse(uuid)?;
            instances.find(|device| device.uuid == uuid)
        }
        [gpu, gpu_instance, compute_instance] => {
            let gpu = Uuid::parse(gpu.strip_prefix("gpu-")?)?;
            let ids = (gpu_instance.parse().ok()?, compute_instance.parse().ok()?);
            instances.find(|device| {
                let place = device.instance.as_ref();
                place.is_some_and(|place| {
                    place.gpu == gpu && (place.gpu_instance, place.compute_instance) == ids
                })
            })
        }
        _ => None,
    };
    found.copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_device::MigState as State;
    use divvy_device::inventory::{compute_instances, devices};
    use std::path::Path;

    fn present(spec: &str) -> Vec<Present> {
        let gpus = devices(spec, Path::new("/run/divvy")).unwrap();
        let whole = |gpu| Present { gpu, instances: None };
        gpus.into_iter().map(whole).collect()
    }

    fn seen(setting: Option<&str>, present: &[Present]) -> Vec<String> {
        visible(setting, present).iter().map(DeviceFacts::id).collect()
    }

    #[test]
    fn indices_reorder_and_stop_at_the_first_bad_one() {
        let devices = present("h100*3");
        let indices = |setting: Option<&str>| -> Vec<usize> {
            visible(setting, &devices)
                .iter()
                .map(|device| device.index)
                .collect()
        };
        assert_eq!(indices(None), [0, 1, 2]);
        assert_eq!(indices(Some("2, 0")), [2, 0]);
        assert_eq!(indices(Some("1,-1,0")), [1]);
        assert_eq!(indices(Some("0,7,1")), [0]);
        for none in ["", "NoDevFiles", "0,1,0"] {
            assert_eq!(indices(Some(none)), [0usize; 0], "{none}");
        }
    }

    #[test]
    fn uuids_and_unique_prefixes() {
        let devices = present("h100*3");
        let whole = devices[2].gpu.id();
        for prefix in [&whole, &whole[..12], &whole.to_uppercase()] {
            assert_eq!(seen(Some(prefix), &devices), [whole.as_str()], "{prefix}");
        }
        assert!(
            seen(Some("GPU-"), &devices).is_empty(),
            "a prefix of all names none"
        );
        assert!(
            seen(Some(&whole[4..]), &devices).is_empty(),
            "the prefix GPU- is required"
        );
    }

    #[test]
    fn of_a_divided_gpu_one_instance_is_seen_and_nothing_beside_it() {
        let mut devices = present("h100*2");
        let product = devices[1].gpu.mig_product().unwrap();
        let mut state = State {
            on: true,
            ..State::default()
        };
        devices[1].instances = Some(compute_instances(&devices[1].gpu, &state));
        assert_eq!(
            seen(None, &devices),
            [devices[0].gpu.id()],
            "no instance is no device"
        );
        assert!(seen(Some("1"), &devices).is_empty());
        let three = state.create(product, 9, None).unwrap();
        let one = state.create(product, 19, None).unwrap();
        for instance in [three, one] {
            state.create_compute(product, instance, 0, None).unwrap();
        }
        state.create_compute(product, three, 0, None).unwrap();
        let instances = compute_instances(&devices[1].gpu, &state);
        devices[1].instances = Some(instances.clone());
        let ids: Vec<String> = instances.iter().map(DeviceFacts::id).collect();
        assert_eq!(ids.len(), 3);
        for first in [None, Some("1"), Some("0,1"), Some("1,0")] {
            assert_eq!(seen(first, &devices), [ids[0].as_str()], "{first:?}");
        }
        assert_eq!(seen(Some("0"), &devices), [devices[0].gpu.id()]);
        assert_eq!(seen(Some(&ids[2]), &devices), [ids[2].as_str()]);
        assert_eq!(
            seen(Some(&ids[1].to_lowercase().replace("mig-", "MIG-")), &devices),
            [ids[1].as_str()]
        );
        let by_place = format!("MIG-{}/{three}/1", devices[1].gpu.id());
        assert_eq!(seen(Some(&by_place), &devices), [ids[1].as_str()]);
        for none in ["MIG-", "MIG-0", &ids[0][..12], &by_place[..by_place.len() - 2]] {
            assert!(seen(Some(none), &devices).is_empty(), "{none}");
        }
        let names: Vec<String> = instances.iter().map(DeviceFacts::name).collect();
        assert_eq!(names[0], "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb");
        assert_eq!(names[2], "NVIDIA H100 80GB HBM3 MIG 1g.10gb");
        assert_eq!((instances[0].sm_count(), instances[2].sm_count()), (16, 16));
        assert_eq!(instances[0].memory_bytes(), 40_448 << 20);
    }
}
