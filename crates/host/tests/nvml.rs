//! The inventory by NVML, over the emulated devices' own NVML: the path that a machine with GPUs takes.

use std::path::PathBuf;
use std::process::Command;

use divvy_host::{Nvidia, emulated_devices};

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

#[test]
fn nvml_tells_of_emulated_devices_what_their_profiles_say() {
    const TEST: &str = "nvml_tells_of_emulated_devices_what_their_profiles_say";
    if std::env::var_os("DIVVY_TEST_CHILD").is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let output = Command::new(std::env::current_exe().expect("a test has a file"))
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env("DIVVY_TEST_CHILD", "1")
            .env("DIVVY_NVML", emulated_nvml())
            .env("DIVVY_EMULATED", DEVICES)
            .env(RUN, folder.path())
            .env_remove("LD_PRELOAD")
            .output()
            .expect("the child starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    let run = PathBuf::from(std::env::var_os(RUN).expect("the parent sets it"));
    let nvidia = Nvidia::open();
    let report = nvidia.report();
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
        assert_eq!(nvidia.memory_used(&seen.uuid), Some(seen.memory_used_bytes));
        assert_eq!(nvidia.processes(&seen.uuid), []);
        let facts = nvidia.facts(&seen.uuid);
        let has_mig = seen.name.contains("H100") || seen.name.contains("A100");
        assert_eq!(facts.mig_mode, has_mig.then_some(false), "{}", seen.name);
        assert!(facts.health.is_empty(), "{:?}", facts.health);
    }
}
