//! What an emulated board claims to be besides its chip: constants of the product.
//!
//! Power limits, link generations and temperature limits are those of NVIDIA's product briefs. Sizes of BAR1 are those
//! that nvidia-smi shows on the product. A device that computes on the host's processors has no temperature and draws
//! no power of its own. Those figures are the product's when idle, and do not move.

use divvy_abi::nvml::*;

use crate::product::profile::Profile;

/// One product's board.
#[derive(Debug, Clone, Copy)]
pub struct Board {
    /// NVML_DEVICE_ARCH_*.
    pub architecture: u32,
    /// What the name begins with, as NVML numbers it.
    pub brand: nvmlBrandType_t,
    /// Board power limit in mW.
    pub power_limit_mw: u32,
    /// Lowest limit an administrator could set, in mW.
    pub power_limit_min_mw: u32,
    /// Draw when idle in mW.
    pub power_idle_mw: u32,
    /// Generation of the PCIe link, which has 16 lanes.
    pub pcie_generation: u32,
    /// Size of BAR1 in bytes.
    pub bar1_bytes: u64,
    /// Temperature when idle, at which it slows down, and at which it shuts down, in degrees Celsius.
    pub temperatures: [u32; 3],
    /// Highest temperature in operation, in degrees Celsius.
    pub temperature_max: u32,
    /// NVLinks to the switches of a server (product briefs: 300, 600 and 900 GB/s, 50 GB/s each; 1,800 of a B200, 100 each).
    pub nvlinks: u32,
}

const GIB: u64 = 1 << 30;

const H100: Board = Board {
    architecture: NVML_DEVICE_ARCH_HOPPER,
    brand: NVML_BRAND_NVIDIA,
    power_limit_mw: 700_000,
    power_limit_min_mw: 200_000,
    power_idle_mw: 70_000,
    pcie_generation: 5,
    bar1_bytes: 128 * GIB,
    temperatures: [32, 89, 92],
    temperature_max: 87,
    nvlinks: 18,
};

const H200: Board = Board {
    bar1_bytes: 256 * GIB,
    ..H100
};

const B200: Board = Board {
    architecture: NVML_DEVICE_ARCH_BLACKWELL,
    power_limit_mw: 1_000_000,
    bar1_bytes: 256 * GIB,
    ..H100
};

const A100_40: Board = Board {
    architecture: NVML_DEVICE_ARCH_AMPERE,
    power_limit_mw: 400_000,
    power_limit_min_mw: 100_000,
    power_idle_mw: 50_000,
    pcie_generation: 4,
    bar1_bytes: 64 * GIB,
    temperature_max: 85,
    nvlinks: 12,
    ..H100
};

const A100_80: Board = Board {
    bar1_bytes: 128 * GIB,
    ..A100_40
};

const A30: Board = Board {
    power_limit_mw: 165_000,
    power_idle_mw: 30_000,
    bar1_bytes: 32 * GIB,
    // Its links lead to a bridge between two cards, which is not there.
    nvlinks: 0,
    ..A100_40
};

const A10: Board = Board {
    power_limit_mw: 150_000,
    power_idle_mw: 15_000,
    bar1_bytes: 32 * GIB,
    nvlinks: 0,
    ..A100_40
};

const A40: Board = Board {
    power_limit_mw: 300_000,
    bar1_bytes: 64 * GIB,
    ..A30
};

const L40S: Board = Board {
    architecture: NVML_DEVICE_ARCH_ADA,
    power_limit_mw: 350_000,
    ..A40
};

const RTX_4090: Board = Board {
    architecture: NVML_DEVICE_ARCH_ADA,
    brand: NVML_BRAND_GEFORCE,
    power_limit_mw: 450_000,
    power_limit_min_mw: 150_000,
    power_idle_mw: 20_000,
    bar1_bytes: 256 << 20,
    temperatures: [32, 97, 100],
    temperature_max: 90,
    nvlinks: 0,
    ..A100_40
};

const V100: Board = Board {
    architecture: NVML_DEVICE_ARCH_VOLTA,
    brand: NVML_BRAND_TESLA,
    power_limit_mw: 300_000,
    power_limit_min_mw: 150_000,
    power_idle_mw: 40_000,
    pcie_generation: 3,
    bar1_bytes: 16 * GIB,
    temperatures: [32, 87, 90],
    temperature_max: 83,
    nvlinks: 6,
};

const L4: Board = Board {
    architecture: NVML_DEVICE_ARCH_ADA,
    power_limit_mw: 72_000,
    power_limit_min_mw: 40_000,
    power_idle_mw: 12_000,
    pcie_generation: 4,
    bar1_bytes: 32 * GIB,
    nvlinks: 0,
    ..A100_40
};

const T4: Board = Board {
    architecture: NVML_DEVICE_ARCH_TURING,
    brand: NVML_BRAND_TESLA,
    power_limit_mw: 70_000,
    power_limit_min_mw: 60_000,
    power_idle_mw: 10_000,
    pcie_generation: 3,
    bar1_bytes: 256 << 20,
    temperatures: [32, 93, 96],
    temperature_max: 85,
    nvlinks: 0,
};

/// NVML's number of a product's brand, by the name used in `DIVVY_EMULATED`; none for an unknown product.
pub fn brand(product: &str) -> Option<u32> {
    let mut profiles = crate::product::profile::PROFILES.iter();
    let profile = profiles.find(|profile| profile.key == product)?;
    Some(board(profile).brand.0)
}

/// The board of a product.
pub fn board(profile: &Profile) -> &'static Board {
    match profile.key {
        "h200" => &H200,
        "b200" => &B200,
        "a10" => &A10,
        "a40" => &A40,
        "l40s" => &L40S,
        "rtx4090" => &RTX_4090,
        "v100" => &V100,
        "a100-40gb" => &A100_40,
        "a100-80gb" => &A100_80,
        "a30" => &A30,
        "l4" => &L4,
        "t4" => &T4,
        _ => &H100,
    }
}

/// FP32 lanes of a multiprocessor (CUDA C programming guide, "Arithmetic Instructions").
pub fn cores_per_sm(profile: &Profile) -> u32 {
    match profile.compute_capability {
        (7, _) | (8, 0) => 64,
        _ => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::profile::PROFILES;

    #[test]
    fn every_product_has_a_board_of_its_generation() {
        for profile in PROFILES {
            let expected = match profile.compute_capability {
                (7, 0) => NVML_DEVICE_ARCH_VOLTA,
                (7, 5) => NVML_DEVICE_ARCH_TURING,
                (8, 0 | 6) => NVML_DEVICE_ARCH_AMPERE,
                (8, 9) => NVML_DEVICE_ARCH_ADA,
                (9, 0) => NVML_DEVICE_ARCH_HOPPER,
                (10, 0) => NVML_DEVICE_ARCH_BLACKWELL,
                other => panic!("{}: no board for {other:?}", profile.key),
            };
            let board = board(profile);
            assert_eq!(board.architecture, expected, "{}", profile.key);
            assert_eq!(
                board.brand == NVML_BRAND_TESLA,
                profile.name.starts_with("Tesla"),
                "{}",
                profile.key
            );
        }
    }
}
