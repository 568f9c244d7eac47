//! Devices of this node that another DRA driver publishes too: the scheduler knows nothing of it, and gives each of them out twice.

use divvy_model::{Code, DeviceRecord, Fault};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};

use crate::DRIVER;
use crate::devices::is_offered;
use crate::split::Split;

/// Kubernetes' own name of a device's place.
const PCI: &str = "resource.kubernetes.io/pciBusID";
/// The most devices that one sentence names.
const MOST_NAMED: usize = 4;

/// What to say of other drivers' ResourceSlices of this node: one sentence for each driver that has devices of this one's.
#[must_use]
pub fn rivals(slices: &[ResourceSlice], devices: &[DeviceRecord], split: &Split) -> Vec<Fault> {
    let own: Vec<&DeviceRecord> = devices
        .iter()
        .filter(|device| split.has(device) && is_offered(device))
        .collect();
    let mut found: std::collections::BTreeMap<&str, Vec<&str>> = std::collections::BTreeMap::new();
    for slice in slices.iter().filter(|slice| slice.spec.driver != DRIVER) {
        for device in slice.spec.devices.iter().flatten() {
            for same in own.iter().filter(|own| is_same(own, device)) {
                let all = found.entry(&slice.spec.driver).or_default();
                if !all.contains(&same.uuid.as_str()) {
                    all.push(&same.uuid);
                }
            }
        }
    }
    let words = |(driver, mut uuids): (&str, Vec<&str>)| {
        let more = uuids.len().saturating_sub(MOST_NAMED);
        uuids.truncate(MOST_NAMED);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        Fault::new(
            Code::Config,
            format!("the driver {driver} publishes devices that this driver publishes too: {}{more}", uuids.join(", ")),
        )
        .hint("two pods could have one device: name this driver's by `--device`, and leave them out of the other's")
    };
    found.into_iter().map(words).collect()
}

/// Whether what another driver publishes is this device, or a part of it.
fn is_same(own: &DeviceRecord, other: &Device) -> bool {
    let mut texts = other.attributes.iter().flatten().filter_map(|(name, value)| {
        let text = value.string.as_deref()?;
        Some((name.as_str(), text))
    });
    texts.any(|(name, text)| match name.rsplit('/').next() {
        Some("uuid" | "parentUUID") => text == own.uuid,
        // The instances of a GPU are at one place.
        _ => name == PCI && own.mig_instance().is_none() && text.eq_ignore_ascii_case(&own.pci_address),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::counters::tests::{divided, instance};
    use crate::devices::tests::device;

    fn slice(driver: &str, attributes: &[Value]) -> ResourceSlice {
        let devices: Vec<Value> = attributes
            .iter()
            .enumerate()
            .map(|(place, attributes)| json!({"name": format!("d{place}"), "attributes": attributes}))
            .collect();
        serde_json::from_value(
            json!({"metadata": {"name": "s"}, "spec": {"driver": driver, "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": devices}}),
        )
        .expect("a ResourceSlice")
    }

    #[test]
    fn a_device_that_another_driver_publishes_is_said() {
        let gpus = [device(0), device(1)];
        let uuid = |uuid: &str| json!({"uuid": {"string": uuid}});
        let said = |slices: &[ResourceSlice], split: &Split| -> Vec<String> {
            rivals(slices, &gpus, split)
                .into_iter()
                .map(|fault| fault.message)
                .collect()
        };
        let all = Split::default();
        let both = slice("gpu.nvidia.com", &[uuid(&gpus[0].uuid), uuid(&gpus[1].uuid)]);
        let found = said(std::slice::from_ref(&both), &all);
        assert!(
            found.len() == 1
                && found[0].contains("gpu.nvidia.com")
                && gpus.iter().all(|gpu| found[0].contains(&gpu.uuid)),
            "{found:?}"
        );
        // Names of other domains, another case, and another's parts of a device that is whole here.
        for attributes in [
            json!({"gpu.example.com/uuid": {"string": gpus[0].uuid}}),
            json!({"resource.kubernetes.io/pciBusID": {"string": gpus[0].pci_address.to_uppercase()}}),
            json!({"parentUUID": {"string": gpus[0].uuid}, "uuid": {"string": "MIG-1"}}),
        ] {
            assert_eq!(
                said(
                    &[slice("gpu.example.com", std::slice::from_ref(&attributes))],
                    &all
                )
                .len(),
                1,
                "{attributes}"
            );
        }
        // A node that is divided between two drivers, devices of others, and what this driver publishes itself.
        let split = Split::new(&[gpus[0].uuid.clone()], &[], &[]).expect("a split");
        for (slices, split) in [
            (slice("gpu.nvidia.com", &[uuid(&gpus[1].uuid)]), &split),
            (
                slice("gpu.nvidia.com", &[uuid("GPU-x"), json!({"index": {"int": 0}})]),
                &all,
            ),
            (slice(DRIVER, &[uuid(&gpus[0].uuid)]), &all),
        ] {
            assert_eq!(said(&[slices], split), [""; 0]);
        }
        // Of a divided GPU the instances are given out, each by itself.
        let (gpu, mig) = (divided(2), instance(2, (1, 0), (40, 60), (4, 4)));
        let other = slice(
            "gpu.nvidia.com",
            &[
                json!({"uuid": {"string": "MIG-other"}, "parentUUID": {"string": gpu.uuid},
            "resource.kubernetes.io/pciBusID": {"string": gpu.pci_address}}),
            ],
        );
        let same = slice("gpu.nvidia.com", &[uuid(&mig.uuid)]);
        assert_eq!(rivals(&[other], &[gpu.clone(), mig.clone()], &all).len(), 0);
        assert_eq!(rivals(&[same], &[gpu, mig], &all).len(), 1);
    }
}
