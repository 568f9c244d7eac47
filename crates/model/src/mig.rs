//! MIG geometry of the products that have it: which instances there are and where each may lie.
//!
//! These tables serve emulated devices, plans made away from the machine, and tests. On a real device ids, memory and
//! multiprocessors differ by board and driver, and are read from NVML. Places are on the axis of *memory* slices.
//!
//! Sources: `nvidia-smi mig -lgip` and `-lgipp` as printed on A100 and H100, NVIDIA's MIG user guide r580 (tables 6 to
//! 8), mig-parted's default configuration. Rows of the H200 that were never seen printed follow the H100's shape; the
//! A30's are from the guide. Of a B200 only names and numbers are known, no places and no ids, so it is not here: on such
//! a machine NVML tells.

/// One kind of GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// `1g.10gb`, `1g.10gb+me`.
    pub name: &'static str,
    /// The id that `nvidia-smi mig -lgip` prints.
    pub id: u32,
    /// Compute slices.
    pub compute_slices: u8,
    /// The most that a device holds of it.
    pub max: u8,
    /// Where it may begin, in memory slices.
    pub starts: &'static [u8],
    /// How many memory slices it covers.
    pub size: u8,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Memory in MiB, as `-lgip` prints it.
    pub memory_mib: u64,
    /// Copy engines, decoders, JPEG decoders and optical flow accelerators; all 0 where they are not known.
    pub engines: [u8; 4],
}

impl MigProfile {
    /// What NVML takes for it in `nvmlDeviceGetGpuInstanceProfileInfo`: `NVML_GPU_INSTANCE_PROFILE_*`, another
    /// numbering than [`Self::id`].
    #[must_use]
    pub fn nvml_number(&self) -> u32 {
        match (self.compute_slices, self.size) {
            (1, _) if self.name.ends_with("+me") => 7,
            (1, 2) => 9,
            (1, _) => 0,
            (2, _) => 1,
            (3, _) => 2,
            (4, _) => 3,
            (7, _) => 4,
            (8, _) => 5,
            _ => 6,
        }
    }
}

/// Sizes of the compute instances that a GPU instance of so many compute slices can hold, in slices, smallest first.
/// They are parts of one, two, three (only of seven) and four slices, and the one that fills it (`nvidia-smi mig
/// -lcip`).
#[must_use]
pub fn compute_parts(whole: u8) -> Vec<u8> {
    let part = |slices: &u8| *slices < whole && (*slices != 3 || whole == 7);
    let mut parts: Vec<u8> = [1, 2, 3, 4].into_iter().filter(part).collect();
    parts.push(whole);
    parts
}

/// Where a compute instance of so many slices may begin, in compute slices, within a GPU instance of `whole`: each size at
/// multiples of the next power of two, `{0,4}:3` and `{0,2,4}:2` of seven (`nvidia-smi mig -lcipp`).
pub fn compute_starts(slices: u8, whole: u8) -> impl Iterator<Item = u8> {
    let step = usize::from(slices.max(1).next_power_of_two());
    (0..=whole.saturating_sub(slices)).step_by(step)
}

/// A product with MIG.
#[derive(Debug, PartialEq, Eq)]
pub struct MigProduct {
    /// Divvy's name of the product, that of the emulated profile: `a100-40gb`.
    pub key: &'static str,
    /// PCI device ids, vendor 10de.
    pub pci_devices: &'static [u16],
    /// Memory slices.
    pub memory_slices: u8,
    /// Compute slices.
    pub compute_slices: u8,
    /// Its profiles, smallest first.
    pub profiles: &'static [MigProfile],
}

impl MigProduct {
    /// The product with this PCI device id of NVIDIA's.
    #[must_use]
    pub fn of_pci(device: u16) -> Option<&'static Self> {
        MIG_PRODUCTS
            .iter()
            .find(|product| product.pci_devices.contains(&device))
    }

    /// The product of an emulated device, by its key.
    #[must_use]
    pub fn of_key(key: &str) -> Option<&'static Self> {
        MIG_PRODUCTS.iter().find(|product| product.key == key)
    }
}

macro_rules! profiles {
    ($($name:literal $id:literal $compute:literal $max:literal $starts:expr, $size:literal $sms:literal $mib:literal, $copy:literal $decode:literal $jpeg:literal $flow:literal;)*) => {
        &[$(MigProfile {
            name: $name,
            id: $id,
            compute_slices: $compute,
            max: $max,
            starts: $starts,
            size: $size,
            sm_count: $sms,
            memory_mib: $mib,
            engines: [$copy, $decode, $jpeg, $flow],
        }),*]
    };
}

/// Every product whose geometry is known.
pub const MIG_PRODUCTS: &[MigProduct] = &[
    MigProduct {
        key: "a100-40gb",
        pci_devices: &[0x20b0, 0x20b1, 0x20f1, 0x20f6],
        memory_slices: 8,
        compute_slices: 7,
        // Name, id, compute slices, most, starts, size, multiprocessors, MiB, engines.
        profiles: profiles! {
            "1g.5gb" 19 1 7 &[0, 1, 2, 3, 4, 5, 6], 1 14 4864, 1 0 0 0;
            "1g.5gb+me" 20 1 1 &[0, 1, 2, 3, 4, 5, 6], 1 14 4864, 1 1 1 1;
            "1g.10gb" 15 1 4 &[0, 2, 4, 6], 2 14 9856, 1 1 0 0;
            "2g.10gb" 14 2 3 &[0, 2, 4], 2 28 9856, 2 1 0 0;
            "3g.20gb" 9 3 2 &[0, 4], 4 42 19968, 3 2 0 0;
            "4g.20gb" 5 4 1 &[0], 4 56 19968, 4 2 0 0;
            "7g.40gb" 0 7 1 &[0], 8 98 40192, 7 5 1 1;
        },
    },
    MigProduct {
        key: "a100-80gb",
        pci_devices: &[0x20b2, 0x20b5, 0x20f3, 0x20f5],
        memory_slices: 8,
        compute_slices: 7,
        // Name, id, compute slices, most, starts, size, multiprocessors, MiB, engines.
        profiles: profiles! {
            "1g.10gb" 19 1 7 &[0, 1, 2, 3, 4, 5, 6], 1 14 9856, 1 0 0 0;
            "1g.10gb+me" 20 1 1 &[0, 1, 2, 3, 4, 5, 6], 1 14 9856, 1 1 1 1;
            "1g.20gb" 15 1 4 &[0, 2, 4, 6], 2 14 19968, 1 1 0 0;
            "2g.20gb" 14 2 3 &[0, 2, 4], 2 28 19968, 2 1 0 0;
            "3g.40gb" 9 3 2 &[0, 4], 4 42 40192, 3 2 0 0;
            "4g.40gb" 5 4 1 &[0], 4 56 40192, 4 2 0 0;
            "7g.80gb" 0 7 1 &[0], 8 98 80384, 7 5 1 1;
        },
    },
    MigProduct {
        key: "h100",
        pci_devices: &[0x2330, 0x2331, 0x2322, 0x2324],
        memory_slices: 8,
        compute_slices: 7,
        // Name, id, compute slices, most, starts, size, multiprocessors, MiB, engines.
        profiles: profiles! {
            "1g.10gb" 19 1 7 &[0, 1, 2, 3, 4, 5, 6], 1 16 9984, 1 1 1 0;
            "1g.10gb+me" 20 1 1 &[0, 1, 2, 3, 4, 5, 6], 1 16 9984, 1 1 1 1;
            "1g.20gb" 15 1 4 &[0, 2, 4, 6], 2 26 20091, 1 1 1 0;
            "2g.20gb" 14 2 3 &[0, 2, 4], 2 32 20091, 2 2 2 0;
            "3g.40gb" 9 3 2 &[0, 4], 4 60 40448, 3 3 3 0;
            "4g.40gb" 5 4 1 &[0], 4 64 40448, 4 4 4 0;
            "7g.80gb" 0 7 1 &[0], 8 132 81152, 8 7 7 1;
        },
    },
    MigProduct {
        key: "h200",
        pci_devices: &[0x2335, 0x233b],
        memory_slices: 8,
        compute_slices: 7,
        // Name, id, compute slices, most, starts, size, multiprocessors, MiB, engines.
        profiles: profiles! {
            "1g.18gb" 19 1 7 &[0, 1, 2, 3, 4, 5, 6], 1 16 16384, 1 1 1 0;
            "1g.18gb+me" 20 1 1 &[0, 1, 2, 3, 4, 5, 6], 1 16 16384, 1 1 1 1;
            "1g.35gb" 15 1 4 &[0, 2, 4, 6], 2 26 33280, 1 1 1 0;
            "2g.35gb" 14 2 3 &[0, 2, 4], 2 32 33280, 2 2 2 0;
            "3g.71gb" 9 3 2 &[0, 4], 4 60 71168, 3 3 3 0;
            "4g.71gb" 5 4 1 &[0], 4 64 71168, 4 4 4 0;
            "7g.141gb" 0 7 1 &[0], 8 132 143360, 8 7 7 1;
        },
    },
    MigProduct {
        key: "a30",
        pci_devices: &[0x20b7],
        memory_slices: 4,
        compute_slices: 4,
        // Name, id, compute slices, most, starts, size, multiprocessors, MiB, engines.
        profiles: profiles! {
            "1g.6gb" 14 1 4 &[0, 1, 2, 3], 1 14 5949, 0 0 0 0;
            "1g.6gb+me" 21 1 1 &[0, 1, 2, 3], 1 14 5949, 0 0 0 0;
            "2g.12gb" 5 2 2 &[0, 2], 2 28 11971, 0 0 0 0;
            "4g.24gb" 0 4 1 &[0], 4 56 24003, 0 0 0 0;
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_on_the_device() {
        for product in MIG_PRODUCTS {
            for profile in product.profiles {
                assert!(
                    profile
                        .starts
                        .iter()
                        .all(|start| start + profile.size <= product.memory_slices),
                    "{}",
                    profile.name
                );
                assert!(
                    profile.compute_slices <= product.compute_slices
                        && usize::from(profile.max) <= profile.starts.len()
                );
            }
            assert_eq!(
                product.profiles.last().map(|whole| (whole.id, whole.max)),
                Some((0, 1)),
                "{}",
                product.key
            );
        }
        assert_eq!(
            MigProduct::of_pci(0x2330).map(|product| product.key),
            Some("h100")
        );
    }

    #[test]
    fn what_fits_an_a30_does_not_fit_an_a100() {
        let profile = |key: &str| {
            let product = MigProduct::of_key(key).expect("a product");
            product
                .profiles
                .iter()
                .find(|profile| profile.id == 14)
                .expect("id 14")
        };
        assert_eq!((profile("a30").name, profile("a30").max), ("1g.6gb", 4));
        assert_eq!(
            (profile("a100-40gb").name, profile("a100-40gb").max),
            ("2g.10gb", 3)
        );
    }
}
