use divvy_model::{Bytes, DeviceKind, Hardware, MemorySlices};
use divvy_placement::plan::{Options, Plan, plan};
use divvy_placement::read::read;
use serde_json::json;

use super::*;
use crate::devices::tests::device;
use crate::devices::{Form, Offer, Owner, pool, published_name};

/// An H100 in MIG mode.
pub(crate) fn divided(index: u32) -> DeviceRecord {
    let mut gpu = device(index);
    gpu.memory_total_bytes = Bytes(80 << 30);
    gpu.hardware = Some(Box::new(Hardware {
        pci_id: Some("10de:2330".into()),
        mig_mode: Some(true),
        ..Hardware::default()
    }));
    gpu
}

/// A MIG instance of it: GPU instance, compute instance, GiB, multiprocessors, first memory slice and how many.
pub(crate) fn instance(gpu: u32, ids: (u32, u32), size: (u64, u32), slices: (u32, u32)) -> DeviceRecord {
    let mut found = device(gpu);
    found.uuid = format!("MIG-{gpu}{}{}00000-0000-0000-0000-000000000000", ids.0, ids.1);
    found.kind = DeviceKind::Mig;
    found.memory_total_bytes = Bytes(size.0 << 30);
    found.memory_reserved_bytes = Bytes(0);
    found.sm_count = size.1;
    found.hardware = Some(Box::new(Hardware {
        mig_instance: Some(MigPlace {
            gpu_uuid: device(gpu).uuid,
            gpu_instance: ids.0,
            compute_instance: ids.1,
            profile: None,
            memory_slices: Some(MemorySlices {
                start: slices.0,
                count: slices.1,
            }),
        }),
        ..Hardware::default()
    }));
    found
}

/// 3g.40gb, 2g.20gb and 1g.10gb, and a whole GPU beside them.
fn machine() -> Vec<DeviceRecord> {
    vec![
        divided(0),
        instance(0, (1, 0), (40, 60), (4, 4)),
        instance(0, (3, 0), (20, 32), (0, 2)),
        instance(0, (7, 0), (10, 16), (2, 1)),
        device(1),
    ]
}

/// Where claims for these published devices go, each `whole` or a share.
fn placed(devices: &[DeviceRecord], claims: &[String]) -> Plan {
    let owner = Owner {
        node: "a".into(),
        uid: String::new(),
    };
    let slices = pool(&owner, devices, &Offer::default(), 1);
    let mut items = vec![
        json!({"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {"selectors": []}}),
        json!({"kind": "Node", "metadata": {"name": "a"}}),
    ];
    for slice in &slices {
        let mut one = serde_json::to_value(slice).expect("JSON");
        one["kind"] = "ResourceSlice".into();
        items.push(one);
    }
    for (place, claim) in claims.iter().enumerate() {
        let uuid = claim.trim_start_matches("whole ");
        let kinds = match claim.starts_with("whole ") {
            true => "['gpu', 'mig']",
            false => "['gpu-shared', 'mig-shared']",
        };
        let expression = format!(
            "device.attributes['gpu.divvy.dev'].uuid == '{uuid}' && device.attributes['gpu.divvy.dev'].type in {kinds}"
        );
        let exactly = json!({"deviceClassName": "any", "selectors": [{"cel": {"expression": expression}}]});
        let mut exactly = exactly;
        if !claim.starts_with("whole ") {
            exactly["capacity"] = json!({"requests": {"memory": "1Gi"}});
        }
        items.push(
            json!({"kind": "ResourceClaim", "metadata": {"name": format!("c{place}")},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}),
        );
    }
    let list = json!({"kind": "List", "items": items}).to_string();
    let cluster = read(&[("cluster".into(), list)]).expect("understood");
    plan(
        &cluster,
        Options {
            seed: 1,
            try_others: false,
        },
    )
}

#[test]
fn a_divided_gpu_is_one_set_of_which_its_instances_take_their_parts() {
    let all = machine();
    let devices: Vec<&DeviceRecord> = all[1..].iter().collect();
    let sets = sets(&devices, &all);
    assert_eq!(sets.len(), 1);
    let [gpu, other] = sets[0].as_slice() else {
        panic!("{sets:?}")
    };
    assert_eq!(
        (gpu.name.as_str(), &other.counters["owner"].value.0[..]),
        (&*name(&all[0]), "1")
    );
    let value = |name: &str| gpu.counters[name].value.0.as_str();
    assert_eq!((value("memory"), value("multiprocessors")), ("80Gi", "132"));
    assert!((0..8).all(|slice| value(&memory_slice(slice)) == "1"));
    assert!(!gpu.counters.contains_key(&memory_slice(8)));
    let third = consumed(&all[1], &all);
    assert_eq!(third.counter_set, gpu.name);
    let names: Vec<&str> = third.counters.keys().map(String::as_str).collect();
    let own = name(&all[1]);
    assert_eq!(
        names,
        [
            "memory",
            "memory-slice-4",
            "memory-slice-5",
            "memory-slice-6",
            "memory-slice-7",
            &*own,
            "multiprocessors"
        ]
    );
    assert_eq!(third.counters["multiprocessors"].value.0, "60");
}

#[test]
fn all_instances_are_given_out_at_once_and_each_in_one_form() {
    let all = machine();
    let each = |whole: &str| -> Vec<String> {
        all[1..]
            .iter()
            .map(|device| format!("{whole}{}", device.uuid))
            .collect()
    };
    for claims in [each("whole "), each("")] {
        let found = placed(&all, &claims);
        assert_eq!((found.placed, found.devices), (4, 4), "{found:?}");
    }
    for device in &all[1..] {
        let (whole, share) = (format!("whole {}", device.uuid), device.uuid.clone());
        assert_eq!(placed(&all, &[whole.clone(), share.clone()]).placed, 1, "{whole}");
        assert_eq!(
            placed(&all, &[share.clone(), share.clone(), whole.clone()]).placed,
            2,
            "{whole}"
        );
        assert_eq!(placed(&all, &[whole.clone(), whole]).placed, 1);
    }
    let mixed = [
        format!("whole {}", all[1].uuid),
        all[2].uuid.clone(),
        all[2].uuid.clone(),
    ];
    let found = placed(&all, &mixed);
    let left = &found.fragmentation;
    assert_eq!(found.placed, 3);
    assert_eq!(
        (left.free_devices, left.shared_devices, left.whole_devices),
        (2, 1, 1)
    );
}

/// A driver that is wrong about places must not have one memory slice given out twice.
#[test]
fn instances_that_say_they_have_one_memory_slice_are_not_both_given_out() {
    let mut all = machine();
    all[3] = instance(0, (7, 0), (10, 16), (1, 1));
    let claims = [all[2].uuid.clone(), all[3].uuid.clone(), all[1].uuid.clone()];
    let found = placed(&all, &claims);
    assert_eq!(found.placed, 2, "{found:?}");
}

#[test]
fn compute_instances_of_one_gpu_instance_stand_beside_each_other() {
    let all = vec![
        divided(0),
        instance(0, (1, 0), (40, 16), (4, 4)),
        instance(0, (1, 1), (40, 32), (4, 4)),
    ];
    let claims: Vec<String> = all[1..].iter().map(|one| format!("whole {}", one.uuid)).collect();
    assert_eq!(placed(&all, &claims).placed, 2);
    let taken = consumed(&all[1], &all).counters;
    assert!(
        !taken.contains_key("memory") && !taken.contains_key("memory-slice-4"),
        "{taken:?}"
    );
    // Nor do instances exclude each other where nothing is known of their places.
    let mut unknown = machine();
    for one in unknown.iter_mut().filter(|one| one.mig_instance().is_some()) {
        let place = one
            .hardware
            .as_mut()
            .and_then(|facts| facts.mig_instance.as_mut())
            .expect("one");
        (place.gpu_instance, place.memory_slices) = (0, None);
        one.sm_count = 0;
    }
    let claims: Vec<String> = unknown[1..4].iter().map(|one| one.uuid.clone()).collect();
    assert_eq!(placed(&unknown, &claims).placed, 3);
}

/// Eight GPUs of seven instances each, within Kubernetes' bounds of a ResourceSlice.
#[test]
fn a_full_machine_is_within_kubernetes_bounds() {
    let mut all = Vec::new();
    for gpu in 0..8 {
        all.push(divided(gpu));
        all.extend((0..7).map(|slice| instance(gpu, (7 + slice, 0), (10, 16), (slice, 1))));
    }
    let owner = Owner {
        node: "a".into(),
        uid: String::new(),
    };
    let slices = pool(&owner, &all, &Offer::default(), 1);
    let mut devices = 0;
    for slice in &slices {
        let sets = slice.spec.shared_counters.as_deref().unwrap_or_default();
        let counters: usize = sets.iter().map(|set| set.counters.len()).sum();
        assert!(sets.len() <= MOST_SETS && counters <= MOST_COUNTERS, "{counters}");
        let of_slice = slice.spec.devices.as_deref().unwrap_or_default();
        assert!(of_slice.len() <= 64);
        let consumed = of_slice
            .iter()
            .flat_map(|one| one.consumes_counters.iter().flatten());
        let consumed: usize = consumed.map(|one| one.counters.len()).sum();
        assert!(consumed <= 1024, "{consumed}");
        devices += of_slice.len();
    }
    assert_eq!(devices, 8 * 7 * 2);
    assert!(published_name(&all[1], Form::Shared).len() <= 63);
}
