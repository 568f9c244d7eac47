//! The inventory by NVML, over the emulated devices' own NVML: the path that a machine with GPUs takes.

use std::path::PathBuf;
use std::process::Command;

use divvy_host::mig::{MigDriver, NvmlMig, Target, apply, parse_list, plan_devices};
use divvy_host::{Nvidia, emulated_devices};
use divvy_model::{Code, DeviceKind, Fault};

const RUN: &str = "DIVVY_RUN_DIR";
const DEVICES: &str = "h100,a100-40gb,l4,t4";

/// libnvidia-ml.so.1 of the emulated devices, built.
fn emulated_nvml() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    let folder = test.ancestors().nth(2).expect("it lies in target/<profile>/deps");
    // `cargo xtask test` has built everything already.
    if std::env::var_os("DIVVY_TEST_BUILT").is_some() {
        return folder.join("libdivvy_emulated_nvml.so");
    }
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(name) => name,
    };
    let status = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "build",
            "--quiet",
            "--profile",
            profile,
            "--package",
            "emulated-nvml",
        ])
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the library builds");
    folder.join("libdivvy_emulated_nvml.so")
}

/// Runs a test in a process of its own, over the emulated NVML loaded as NVIDIA's would be; false inside that process.
fn in_child(test: &str) -> bool {
    if std::env::var_os("DIVVY_TEST_CHILD").is_some() {
        return false;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let output = divvy_own_process::command(test)
        .env("DIVVY_TEST_CHILD", "1")
        .env("DIVVY_NVML", emulated_nvml())
        .env("DIVVY_EMULATED", DEVICES)
        .env(RUN, folder.path())
        .env_remove("LD_PRELOAD")
        .output()
        .expect("the child starts");
    divvy_own_process::assert_passed(test, &output);
    true
}

#[test]
fn nvml_tells_of_emulated_devices_what_their_profiles_say() {
    const TEST: &str = "nvml_tells_of_emulated_devices_what_their_profiles_say";
    if in_child(TEST) {
        return;
    }
    let run = PathBuf::from(std::env::var_os(RUN).expect("the parent sets it"));
    let nvidia = Nvidia::open();
    let report = nvidia.report().expect("it answers");
    assert_eq!(report.notes, [""; 0]);
    assert!(report.driver_version.is_some());
    let expected = emulated_devices(DEVICES, &run).expect("a specification");
    assert_eq!(report.devices.len(), expected.len());
    for (seen, expected) in report.devices.iter().zip(expected) {
        let expected = expected.record;
        assert_eq!(seen.index, expected.index);
        assert_eq!((&seen.uuid, &seen.name), (&expected.uuid, &expected.name));
        assert_eq!(seen.pci_address, expected.pci_address);
        assert_eq!(seen.memory_total_bytes, expected.memory_total_bytes);
        assert_eq!(seen.memory_used_bytes, expected.memory_used_bytes);
        assert_eq!(seen.sm_count, expected.sm_count, "{}", seen.name);
        assert_eq!(seen.compute_capability, expected.compute_capability);
        let of_it = nvidia.usage(&seen.uuid).expect("it answers");
        assert_eq!(of_it.used, Some(seen.memory_used_bytes));
        assert_eq!(of_it.processes, []);
        let facts = nvidia.facts(&seen.uuid).expect("it answers");
        let has_mig = seen.name.contains("H100") || seen.name.contains("A100");
        assert_eq!(facts.mig_mode, has_mig.then_some(false), "{}", seen.name);
        assert!(facts.health.is_empty(), "{:?}", facts.health);
        assert_eq!(facts.driver_version, report.driver_version);
        let brand = if seen.name.contains("T4") {
            "Tesla"
        } else {
            "Nvidia"
        };
        assert_eq!(facts.brand.as_deref(), Some(brand), "{}", seen.name);
    }
}

#[test]
fn nvlinks_join_the_boards_that_have_them() {
    const TEST: &str = "nvlinks_join_the_boards_that_have_them";
    if in_child(TEST) {
        return;
    }
    let nvidia = Nvidia::open();
    let devices = nvidia.report().expect("it answers").devices;
    let links = nvidia.links().expect("it answers");
    let ends = |at: usize| links.get(&devices[at].uuid).map_or(0, Vec::len);
    assert_eq!([ends(0), ends(1), ends(2), ends(3)], [18, 12, 0, 0]);
    let first = &links[&devices[0].uuid];
    assert!(
        devices.iter().all(|device| !first.contains(&device.pci_address)),
        "switches: {first:?}"
    );
    let matrix = divvy_host::links(
        &divvy_host::machine::Sysroot::at("/nonexistent"),
        &divvy_host::machine::Machine::default(),
        &links,
        &devices,
    );
    use divvy_host::Link::{Nvlink, Same};
    assert_eq!((matrix[0][0], matrix[0][1], matrix[1][0]), (Same, Nvlink, Nvlink));
    assert_ne!(matrix[0][2], Nvlink);
}

fn bring(driver: &mut NvmlMig, device: u32, list: &str) -> Result<usize, Fault> {
    let target = Target {
        device,
        enabled: list != "none",
        wanted: match list {
            "none" => Vec::new(),
            instances => parse_list(instances)?,
        },
    };
    let plans = plan_devices(&driver.devices()?, &[target])?;
    Ok(apply(driver, &plans)?.done.len())
}

#[test]
fn mig_is_changed_through_a_library_that_was_loaded() {
    const TEST: &str = "mig_is_changed_through_a_library_that_was_loaded";
    if in_child(TEST) {
        return;
    }
    let mut driver = NvmlMig::open().expect("the library that DIVVY_NVML names");
    assert_eq!(
        bring(&mut driver, 0, "1c.3g.40gb:0,2c.3g.40gb:0,1g.10gb:6"),
        Ok(3)
    );
    assert_eq!(
        bring(&mut driver, 0, "2c.3g.40gb,1g.10gb,1c.3g.40gb"),
        Ok(0),
        "again: nothing to do"
    );
    // The inventory, by nvml-wrapper, sees the same instances under the same ids.
    let told = driver.devices().expect("told");
    let held = &told[0].instances;
    let report = Nvidia::open().report().expect("it answers");
    let seen: Vec<_> = report
        .devices
        .iter()
        .filter(|device| device.kind == DeviceKind::Mig)
        .map(|device| {
            let place = device.mig_instance().expect("an instance");
            let profile = place.profile.clone().expect("a profile");
            (
                device.uuid.clone(),
                place.gpu_instance,
                place.compute_instance,
                profile,
            )
        })
        .collect();
    let mut expected = Vec::new();
    for instance in held {
        for compute in &instance.compute {
            let uuid = compute.uuid.clone().expect("a uuid");
            let profile = match (instance.start, compute.slices) {
                (6, _) => "1g.10gb".to_owned(),
                (_, slices) => format!("{slices}c.3g.40gb"),
            };
            expected.push((uuid, instance.id, compute.id, profile));
        }
    }
    let sorted = |mut list: Vec<(String, u32, u32, String)>| {
        list.sort();
        list
    };
    assert_eq!(expected.len(), 3);
    assert_eq!(sorted(seen), sorted(expected));
    // The two goes and two ones come, in the same GPU instance.
    let before = held[0].id;
    assert_eq!(
        bring(&mut driver, 0, "1c.3g.40gb,1c.3g.40gb,1c.3g.40gb,1g.10gb"),
        Ok(3)
    );
    assert_eq!(driver.devices().expect("told")[0].instances[0].id, before);
    let refusal = bring(&mut driver, 2, "1g.10gb").expect_err("an L4");
    assert_eq!(refusal.code, Code::NoMig);

    // A driver that is reset between the look and the change has forgotten everything: the former instances are made
    // again.
    let target = Target {
        device: 0,
        enabled: true,
        wanted: parse_list("7g.80gb").expect("a list"),
    };
    let plans = plan_devices(&driver.devices().expect("told"), &[target]).expect("a plan");
    let run = PathBuf::from(std::env::var_os(RUN).expect("the parent sets it"));
    let gpu = &report.devices[0].uuid;
    std::fs::remove_file(run.join(format!("emulated-{gpu}.1.mig"))).expect("it was divided");
    let refusal = apply(&mut driver, &plans).expect_err("the instances are gone");
    assert!(refusal.message.starts_with("GPU 0: could not "), "{refusal:?}");
    let again = driver.devices().expect("told").remove(0);
    assert_eq!(again.mode, Some(true));
    let inside = |at: usize| again.instances[at].compute.len();
    assert_eq!(
        (again.instances.len(), inside(0), inside(1)),
        (2, 3, 1),
        "{again:?}"
    );
    assert_eq!(bring(&mut driver, 0, "7g.80gb"), Ok(3), "and now it can");
    bring(&mut driver, 0, "none").expect("turned off");
}
