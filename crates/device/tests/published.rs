//! Product profiles against what NVIDIA publishes.
//!
//! Sources. *Capabilities*: CUDA C++ Programming Guide 13, "Technical Specifications per Compute Capability". *Products*: data
//! sheets of V100, T4, A10, A30, A40, A100, L4, L40S, H100, H200 and HGX B200, and the RTX 4090 in the Ada white paper:
//! peak rates and bandwidth, which follow from multiprocessors, clocks and the bus. Second-level caches: white papers of
//! Volta, Turing, Ampere (GA100, GA102), Ada, and the tuning guides of Hopper and Blackwell. PCI ids: pci.ids.

use divvy_device::inventory;
use divvy_device::product::attributes::attribute;
use divvy_device::product::profile::{PROFILES, Profile};

/// Of a compute capability: threads, blocks and kilobytes of shared memory a multiprocessor, those of a block that opts in.
const CAPABILITIES: &[((u32, u32), [u32; 4])] = &[
    ((7, 0), [2048, 32, 96, 96]),
    ((7, 5), [1024, 16, 64, 64]),
    ((8, 0), [2048, 32, 164, 163]),
    ((8, 6), [1536, 16, 100, 99]),
    ((8, 9), [1536, 24, 100, 99]),
    ((9, 0), [2048, 32, 228, 227]),
    ((10, 0), [2048, 32, 228, 227]),
];

/// Lanes of single precision a multiprocessor ("Arithmetic Instructions" of the same guide).
fn lanes(capability: (u32, u32)) -> u32 {
    match capability {
        (7, _) | (8, 0) => 64,
        _ => 128,
    }
}

/// What a data sheet says.
struct Sheet {
    key: &'static str,
    name: &'static str,
    capability: (u32, u32),
    /// As it is sold, in GB.
    memory_gb: u64,
    /// GB a second.
    bandwidth: f64,
    /// Peak of single precision without tensor cores, in TFLOPS.
    single: f64,
    /// And of double precision.
    double: f64,
    l2_mib: f64,
    pci: u16,
}

const SHEETS: &[Sheet] = &[
    sheet(
        "h100",
        "NVIDIA H100 80GB HBM3",
        (9, 0),
        80,
        [3350.0, 67.0, 34.0],
        50.0,
        0x2330,
    ),
    sheet(
        "h200",
        "NVIDIA H200",
        (9, 0),
        141,
        [4800.0, 67.0, 34.0],
        60.0,
        0x2335,
    ),
    sheet(
        "b200",
        "NVIDIA B200",
        (10, 0),
        180,
        [7700.0, 75.0, 37.0],
        126.5,
        0x2901,
    ),
    sheet(
        "a100-40gb",
        "NVIDIA A100-SXM4-40GB",
        (8, 0),
        40,
        [1555.0, 19.5, 9.7],
        40.0,
        0x20b0,
    ),
    sheet(
        "a100-80gb",
        "NVIDIA A100-SXM4-80GB",
        (8, 0),
        80,
        [2039.0, 19.5, 9.7],
        40.0,
        0x20b2,
    ),
    sheet("a30", "NVIDIA A30", (8, 0), 24, [933.0, 10.3, 5.2], 24.0, 0x20b7),
    sheet("a10", "NVIDIA A10", (8, 6), 24, [600.0, 31.2, 0.488], 6.0, 0x2236),
    sheet("a40", "NVIDIA A40", (8, 6), 48, [696.0, 37.4, 0.585], 6.0, 0x2235),
    sheet("l4", "NVIDIA L4", (8, 9), 24, [300.0, 30.3, 0.49], 48.0, 0x27b8),
    sheet(
        "l40s",
        "NVIDIA L40S",
        (8, 9),
        48,
        [864.0, 91.6, 1.414],
        96.0,
        0x26b9,
    ),
    sheet(
        "rtx4090",
        "NVIDIA GeForce RTX 4090",
        (8, 9),
        24,
        [1008.0, 82.6, 1.29],
        72.0,
        0x2684,
    ),
    sheet("t4", "Tesla T4", (7, 5), 16, [320.0, 8.1, 0.254], 4.0, 0x1eb8),
    sheet(
        "v100",
        "Tesla V100-SXM2-16GB",
        (7, 0),
        16,
        [900.0, 15.7, 7.8],
        6.0,
        0x1db1,
    ),
];

const fn sheet(
    key: &'static str,
    name: &'static str,
    capability: (u32, u32),
    memory_gb: u64,
    [bandwidth, single, double]: [f64; 3],
    l2_mib: f64,
    pci: u16,
) -> Sheet {
    Sheet {
        key,
        name,
        capability,
        memory_gb,
        bandwidth,
        single,
        double,
        l2_mib,
        pci,
    }
}

/// Data sheets round.
fn near(what: &str, profile: &Profile, ours: f64, published: f64) {
    let off = (ours - published).abs() / published;
    assert!(
        off < 0.05,
        "{what} of {}: {ours:.2}, published {published}",
        profile.key
    );
}

#[test]
fn products_have_the_rates_of_their_data_sheets() {
    assert_eq!(SHEETS.len(), PROFILES.len(), "a sheet for each profile");
    for sheet in SHEETS {
        let profile = Profile::by_key(sheet.key).expect(sheet.key);
        assert_eq!(
            (profile.name, profile.compute_capability, profile.pci_device_id),
            (sheet.name, sheet.capability, sheet.pci)
        );
        // Two transfers a cycle; two operations of a fused multiplication and addition.
        let bandwidth =
            f64::from(profile.memory_clock_khz) * 2.0 * f64::from(profile.memory_bus_bits) / 8.0 / 1e6;
        near("the bandwidth", profile, bandwidth, sheet.bandwidth);
        let lanes = f64::from(profile.sm_count * lanes(profile.compute_capability));
        let single = lanes * 2.0 * f64::from(profile.clock_khz) / 1e9;
        near("single precision", profile, single, sheet.single);
        near(
            "double precision",
            profile,
            single / f64::from(profile.single_to_double_ratio),
            sheet.double,
        );
        assert_eq!(
            f64::from(profile.l2_bytes) / f64::from(1 << 20),
            sheet.l2_mib,
            "{}",
            sheet.key
        );
        // Some is kept for error correction and for the driver, and a GB is not a GiB.
        let whole = sheet.memory_gb << 30;
        assert!(
            (whole * 92 / 100..=whole * 102 / 100).contains(&profile.memory_bytes),
            "{}: {} MiB",
            sheet.key,
            profile.memory_bytes >> 20
        );
    }
}

#[test]
fn attributes_are_those_of_the_compute_capability() {
    for profile in PROFILES {
        let (_, [threads, blocks, shared, optin]) = CAPABILITIES
            .iter()
            .find(|(capability, _)| *capability == profile.compute_capability)
            .unwrap_or_else(|| panic!("{} has a capability that is in no table", profile.key));
        let devices = inventory::devices(profile.key, std::path::Path::new("/run/divvy")).expect(profile.key);
        let get = |number| attribute(&devices[0], number).map(|value| value as u32);
        for (what, number, expected) in [
            ("threads of a multiprocessor", 39, *threads),
            ("blocks of a multiprocessor", 106, *blocks),
            ("shared memory of a multiprocessor", 81, shared << 10),
            ("shared memory of a block that opts in", 97, optin << 10),
            ("shared memory of a block", 8, 48 << 10),
            ("registers of a multiprocessor", 82, 65_536),
            ("registers of a block", 12, 65_536),
            ("threads of a block", 1, 1024),
            ("a warp", 10, 32),
            ("a block's z", 4, 64),
            ("a grid's x", 5, (1_u32 << 31) - 1),
            ("a grid's y", 6, 65_535),
            ("constant memory", 9, 64 << 10),
            ("multiprocessors", 16, profile.sm_count),
            ("error correction", 32, u32::from(profile.key != "rtx4090")),
        ] {
            assert_eq!(get(number), Some(expected), "{what} of {}", profile.key);
        }
    }
}
