//! The visible-device rules against a table of vectors, and `set` against `explain`.

use std::collections::BTreeMap;

use divvy_host::visible::{Environment, Runtime, Seen, SeenDevice, Target, explain, settings};
use proptest::prelude::*;

const VECTORS: &str = include_str!("visible_vectors.txt");

fn device(index: u32, unique_id: u64) -> SeenDevice {
    SeenDevice {
        index,
        uuid: format!(
            "GPU-{:08x}-{:04x}-{:04x}-0000-000000000000",
            unique_id >> 32,
            unique_id >> 16 & 0xffff,
            unique_id & 0xffff
        ),
        name: "a device".into(),
        unique_id,
        kfd_node: Some(index + 1),
        cuda: true,
        instance: None,
    }
}

fn of_ids(ids: &[u64]) -> Seen {
    Seen {
        devices: (0..).zip(ids).map(|(index, id)| device(index, *id)).collect(),
    }
}

fn fixture(name: &str) -> Seen {
    match name {
        "four" => of_ids(&[
            0x1111_1111_1111_1111,
            0x2222_2222_2222_2222,
            0x2222_3333_aaaa_bbbb,
            0xabcd_ef01_2345_6789,
        ]),
        "one" => of_ids(&[0x1111_1111_1111_1111]),
        "zero" => of_ids(&[0, 0x2222_2222_2222_2222]),
        "cpx" => of_ids(&[
            0x5555_5555_5555_5555,
            0x5555_5555_5555_5555,
            0x6666_6666_6666_6666,
        ]),
        "sixteen" => of_ids(&(0..16).map(|at| 0x1000_0000_0000_0000 + at).collect::<Vec<u64>>()),
        "none" => Seen::default(),
        "mig" => {
            let mut seen = of_ids(&[0x1111_1111_1111_1111, 0x2222_2222_0000_0000]);
            let parent = seen.devices[1].uuid.clone();
            for instance in 1..=2 {
                let mut mig = device(1 + instance, 0);
                mig.uuid = format!("MIG-aaaaaaaa-0000-0000-0000-00000000000{instance}");
                mig.instance = Some((parent.clone(), instance, 0));
                seen.devices.push(mig);
            }
            seen
        }
        other => panic!("no fixture {other}"),
    }
}

fn variable(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::Rocm => "ROCR_VISIBLE_DEVICES",
        Runtime::Hip => "HIP_VISIBLE_DEVICES",
        Runtime::OpenCl => "GPU_DEVICE_ORDINAL",
        Runtime::Cuda => "CUDA_VISIBLE_DEVICES",
        Runtime::OpenMp => "OMP_DEFAULT_DEVICE",
    }
}

#[test]
fn every_vector() {
    let mut counts: BTreeMap<Runtime, usize> = BTreeMap::new();
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        // Spaces matter in values: a field has exactly one at each side.
        let fields: Vec<&str> = line.split(" | ").collect();
        let [runtime, devices, value, expected, why] = fields.as_slice() else {
            panic!("five fields in {line}");
        };
        let runtime: Runtime = runtime.parse().expect("a runtime");
        let mut environment = Environment::new();
        match *value {
            "unset" => {}
            "empty" => drop(environment.insert(variable(runtime).into(), String::new())),
            other => drop(environment.insert(variable(runtime).into(), other.replace("\\t", "\t"))),
        }
        let explained = explain(&environment, &fixture(devices));
        let view = explained.of(runtime).expect("every runtime is explained");
        let shown: Vec<String> = view.visible.iter().map(u32::to_string).collect();
        let shown = if shown.is_empty() {
            "-".into()
        } else {
            shown.join(",")
        };
        assert_eq!(shown, *expected, "{line}\n{view:#?}");
        assert!(!view.steps.is_empty() && !why.is_empty(), "{line}");
        *counts.entry(runtime).or_default() += 1;
    }
    for runtime in [Runtime::Rocm, Runtime::Hip, Runtime::OpenCl, Runtime::Cuda] {
        assert!(counts[&runtime] >= 50, "{counts:?}");
    }
    assert!(counts.values().sum::<usize>() >= 200, "{counts:?}");
}

fn environment(pairs: &[(&str, &str)]) -> Environment {
    pairs
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect()
}

fn visible(pairs: &[(&str, &str)], runtime: Runtime) -> Vec<u32> {
    explain(&environment(pairs), &fixture("four"))
        .of(runtime)
        .expect("every runtime")
        .visible
        .clone()
}

fn warnings(pairs: &[(&str, &str)], devices: &str) -> String {
    explain(&environment(pairs), &fixture(devices))
        .warnings
        .join("\n")
}

#[test]
fn hip_indexes_what_rocr_leaves() {
    let pairs = [("ROCR_VISIBLE_DEVICES", "2,3"), ("HIP_VISIBLE_DEVICES", "1")];
    assert_eq!(visible(&pairs, Runtime::Hip), [3]);
    assert_eq!(visible(&pairs, Runtime::OpenCl), [2, 3]);
    // The commonest accident: the same list in both.
    let pairs = [("ROCR_VISIBLE_DEVICES", "2,3"), ("HIP_VISIBLE_DEVICES", "2,3")];
    assert_eq!(visible(&pairs, Runtime::Hip), [0_u32; 0]);
    let told = warnings(&pairs, "four");
    assert!(told.contains("double filtering"), "{told}");
    let safe = [
        ("ROCR_VISIBLE_DEVICES", "GPU-abcd,GPU-1"),
        ("HIP_VISIBLE_DEVICES", "0,1"),
    ];
    assert_eq!(visible(&safe, Runtime::Hip), [3, 0]);
    assert_eq!(warnings(&safe, "four"), "");
}

#[test]
fn hip_reads_cudas_variable_where_its_own_is_unset_or_empty() {
    assert_eq!(visible(&[("CUDA_VISIBLE_DEVICES", "2")], Runtime::Hip), [2]);
    let both = [("CUDA_VISIBLE_DEVICES", "2"), ("HIP_VISIBLE_DEVICES", "")];
    assert_eq!(visible(&both, Runtime::Hip), [2]);
    let both = [("CUDA_VISIBLE_DEVICES", "2"), ("HIP_VISIBLE_DEVICES", "1")];
    assert_eq!(visible(&both, Runtime::Hip), [1]);
    // Spaces are trimmed for CUDA, and end HIP's list.
    assert_eq!(visible(&[("CUDA_VISIBLE_DEVICES", "0, 1")], Runtime::Hip), [0]);
    assert_eq!(
        visible(&[("CUDA_VISIBLE_DEVICES", "")], Runtime::Hip),
        [0, 1, 2, 3]
    );
    assert_eq!(
        visible(&[("CUDA_VISIBLE_DEVICES", "1")], Runtime::OpenCl),
        [0, 1, 2, 3]
    );
}

#[test]
fn openmps_default_is_an_index_within_what_is_visible_and_hides_nothing() {
    let pairs = [("CUDA_VISIBLE_DEVICES", "2,1"), ("OMP_DEFAULT_DEVICE", "1")];
    let explained = explain(&environment(&pairs), &fixture("four"));
    let view = explained.of(Runtime::OpenMp).expect("every runtime");
    assert_eq!(view.visible, [2, 1]);
    let steps = view.steps.join("\n");
    assert!(
        steps.contains("device 1 of `divvy devices` is the default"),
        "{steps}"
    );
    let told = warnings(
        &[("CUDA_VISIBLE_DEVICES", "2,1"), ("OMP_DEFAULT_DEVICE", "2")],
        "four",
    );
    assert!(told.contains("OMP_DEFAULT_DEVICE=2"), "{told}");
}

#[test]
fn surprises_are_told() {
    for (name, value, words) in [
        ("ROCR_VISIBLE_DEVICES", "010", "octal for 8"),
        ("ROCR_VISIBLE_DEVICES", "0x10,1", "ends at `0x10`"),
        ("ROCR_VISIBLE_DEVICES", "0xf", "hexadecimal for 15"),
        ("ROCR_VISIBLE_DEVICES", "4294967299", "overflows an int to 3"),
        ("ROCR_VISIBLE_DEVICES", "0,99,1", "ends at `99`"),
        ("ROCR_VISIBLE_DEVICES", "1,,2", "throw an exception"),
        (
            "ROCR_VISIBLE_DEVICES",
            "GPU-11111111-1111-1111-1111-111111111111",
            "more than 20 characters",
        ),
        ("HIP_VISIBLE_DEVICES", "", "hides nothing"),
        ("HIP_VISIBLE_DEVICES", "0, 1", "spaces are not trimmed"),
        ("HIP_VISIBLE_DEVICES", "GPU-1", "the first of them is taken"),
        ("CUDA_VISIBLE_DEVICES", "1,1", "hides every device"),
    ] {
        let told = warnings(&[(name, value)], "sixteen");
        assert!(told.contains(words), "{name}={value}: {told}");
    }
    let mut unlike = fixture("four");
    unlike.devices[2].name = "another".into();
    let told = explain(&environment(&[("CUDA_VISIBLE_DEVICES", "1")]), &unlike)
        .warnings
        .join("\n");
    assert!(told.contains("CUDA_DEVICE_ORDER"), "{told}");
}

/// Machines with emulated, AMD and NVIDIA devices in any mixture; ids may be 0 or shared.
fn machines() -> impl Strategy<Value = Seen> {
    let id = prop_oneof![Just(0_u64), 1_u64..4, any::<u64>()];
    prop::collection::vec((0_u8..3, id, any::<u16>()), 0..9).prop_map(|parts| {
        let devices = (0..).zip(parts).map(|(index, (kind, id, node))| SeenDevice {
            // CUDA's UUIDs never coincide, whatever the ids do.
            uuid: format!("GPU-{index:08x}-0000-0000-0000-000000000000"),
            // Nodes in any order, each its own.
            kfd_node: (kind != 2).then_some(u32::from(node) << 8 | index),
            cuda: kind != 1,
            ..device(index, id)
        });
        Seen {
            devices: devices.collect(),
        }
    })
}

fn sees(runtime: Runtime, device: &SeenDevice) -> bool {
    match runtime {
        Runtime::Cuda => device.cuda,
        Runtime::OpenMp => true,
        Runtime::Rocm | Runtime::Hip | Runtime::OpenCl => device.kfd_node.is_some(),
    }
}

fn any_places(seen: &Seen, keys: &[u32], take: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..seen.devices.len()).collect();
    places.sort_by_key(|place| keys[*place]);
    places.truncate(take);
    places
}

fn as_environment(variables: Vec<(&'static str, String)>) -> Environment {
    variables
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// What is set for all runtimes at once shows each of them exactly the devices asked for, in that order.
    #[test]
    fn what_is_set_is_what_is_seen(
        seen in machines(),
        keys in prop::collection::vec(any::<u32>(), 9),
        take in 0_usize..9,
    ) {
        let places = any_places(&seen, &keys, take);
        let environment = as_environment(settings(&seen, &places, Target::All).expect("no MIG devices here"));
        for view in &explain(&environment, &seen).views {
            let ours = places.iter().map(|place| &seen.devices[*place]);
            let mut expected: Vec<&SeenDevice> = ours.filter(|device| sees(view.runtime, device)).collect();
            if view.runtime == Runtime::OpenMp {
                // Its plugins come one after the other: AMD's, then CUDA's.
                expected.sort_by_key(|device| device.cuda);
            }
            let expected: Vec<u32> = expected.iter().map(|device| device.index).collect();
            prop_assert_eq!(&view.visible, &expected, "{} {:?}", view.runtime, environment);
        }
    }

    /// What is set for one runtime is what that runtime shows.
    #[test]
    fn one_runtime_at_a_time(
        seen in machines(),
        keys in prop::collection::vec(any::<u32>(), 9),
        which in 0_usize..5,
    ) {
        let runtime = Runtime::ALL[which];
        let mut places = any_places(&seen, &keys, 9);
        places.retain(|place| sees(runtime, &seen.devices[*place]));
        places.truncate(3);
        if runtime == Runtime::OpenMp {
            places.sort_by_key(|place| seen.devices[*place].cuda);
        }
        let variables = settings(&seen, &places, Target::One(runtime)).expect("its own devices");
        let environment = as_environment(variables);
        let explained = explain(&environment, &seen);
        let expected: Vec<u32> = places.iter().map(|place| seen.devices[*place].index).collect();
        let view = explained.of(runtime).expect("a view");
        prop_assert_eq!(&view.visible, &expected, "{} {:?}", runtime, environment);
    }

    /// No text makes the rules panic.
    #[test]
    fn any_text_is_explained(
        rocr in ".{0,24}",
        hip in ".{0,24}",
        cuda in "[0-9a-fGPUMI,/ +-]{0,24}",
    ) {
        let pairs = [
            ("ROCR_VISIBLE_DEVICES", rocr.as_str()),
            ("HIP_VISIBLE_DEVICES", &hip),
            ("CUDA_VISIBLE_DEVICES", &cuda),
        ];
        prop_assert_eq!(explain(&environment(&pairs), &fixture("mig")).views.len(), 5);
    }
}
