//! Product profiles: what an emulated device claims to be.
//!
//! Figures are those NVIDIA publishes for the product (architecture white papers, CUDA C programming guide's
//! compute-capability tables, PCI ids) and, for memory, what `nvidia-smi` shows as the total.

/// What one product offers; the limits follow its compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// The name used in `DIVVY_EMULATED` and in `emulated:NAME` selectors.
    pub key: &'static str,
    /// What cuDeviceGetName says.
    pub name: &'static str,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Peak clock of the multiprocessors in kHz.
    pub clock_khz: u32,
    /// Peak clock of the memory in kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
    /// Second-level cache in bytes.
    pub l2_bytes: u32,
    /// Single to double precision throughput.
    pub single_to_double_ratio: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// PCI device id (vendor 0x10de).
    pub pci_device_id: u16,
}

/// What the compute capability alone decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Resident threads per multiprocessor.
    pub threads_per_sm: u32,
    /// Resident blocks per multiprocessor.
    pub blocks_per_sm: u32,
    /// 32-bit registers per multiprocessor.
    pub registers_per_sm: u32,
    /// Shared memory per multiprocessor in bytes.
    pub shared_per_sm: u32,
    /// Largest shared memory of a block that opts in, in bytes.
    pub shared_per_block_optin: u32,
    /// Shared memory the system keeps of every block, in bytes.
    pub shared_reserved_per_block: u32,
}

/// Shared memory of a block that does not opt in to more, in bytes.
pub const SHARED_PER_BLOCK: u32 = 48 << 10;
/// Threads of a block.
pub const THREADS_PER_BLOCK: u32 = 1024;
/// Largest block, per dimension.
pub const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
/// Largest grid, per dimension.
pub const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// Registers are handed to warps in units of this many.
pub const REGISTER_ALLOCATION_UNIT: u32 = 256;
/// Lanes of a warp.
pub const WARP: u32 = 32;

const MIB: u64 = 1 << 20;

/// Every product that can be emulated, in the order help texts list them.
pub const PROFILES: &[Profile] = &[
    Profile {
        key: "h100",
        name: "NVIDIA H100 80GB HBM3",
        memory_bytes: 81_559 * MIB,
        sm_count: 132,
        compute_capability: (9, 0),
        clock_khz: 1_980_000,
        memory_clock_khz: 2_619_000,
        memory_bus_bits: 5120,
        l2_bytes: 50 << 20,
        single_to_double_ratio: 2,
        copy_engines: 3,
        pci_device_id: 0x2330,
    },
    Profile {
        key: "h200",
        name: "NVIDIA H200",
        memory_bytes: 143_771 * MIB,
        sm_count: 132,
        compute_capability: (9, 0),
        clock_khz: 1_980_000,
        memory_clock_khz: 3_201_000,
        memory_bus_bits: 6144,
        l2_bytes: 60 << 20,
        single_to_double_ratio: 2,
        copy_engines: 3,
        pci_device_id: 0x2335,
    },
    Profile {
        key: "b200",
        name: "NVIDIA B200",
        memory_bytes: 183_359 * MIB,
        sm_count: 148,
        compute_capability: (10, 0),
        clock_khz: 1_965_000,
        memory_clock_khz: 3_996_000,
        memory_bus_bits: 7680,
        l2_bytes: 253 << 19,
        single_to_double_ratio: 2,
        copy_engines: 3,
        pci_device_id: 0x2901,
    },
    Profile {
        key: "a100-40gb",
        name: "NVIDIA A100-SXM4-40GB",
        memory_bytes: 40_960 * MIB,
        sm_count: 108,
        compute_capability: (8, 0),
        clock_khz: 1_410_000,
        memory_clock_khz: 1_215_000,
        memory_bus_bits: 5120,
        l2_bytes: 40 << 20,
        single_to_double_ratio: 2,
        copy_engines: 3,
        pci_device_id: 0x20b0,
    },
    Profile {
        key: "a100-80gb",
        name: "NVIDIA A100-SXM4-80GB",
        memory_bytes: 81_920 * MIB,
        sm_count: 108,
        compute_capability: (8, 0),
        clock_khz: 1_410_000,
        memory_clock_khz: 1_593_000,
        memory_bus_bits: 5120,
        l2_bytes: 40 << 20,
        single_to_double_ratio: 2,
        copy_engines: 3,
        pci_device_id: 0x20b2,
    },
    Profile {
        key: "a30",
        name: "NVIDIA A30",
        memory_bytes: 24_576 * MIB,
        sm_count: 56,
        compute_capability: (8, 0),
        clock_khz: 1_440_000,
        memory_clock_khz: 1_215_000,
        memory_bus_bits: 3072,
        l2_bytes: 24 << 20,
        single_to_double_ratio: 2,
        copy_engines: 3,
        pci_device_id: 0x20b7,
    },
    Profile {
        key: "a10",
        name: "NVIDIA A10",
        memory_bytes: 23_028 * MIB,
        sm_count: 72,
        compute_capability: (8, 6),
        clock_khz: 1_695_000,
        memory_clock_khz: 6_251_000,
        memory_bus_bits: 384,
        l2_bytes: 6 << 20,
        single_to_double_ratio: 64,
        copy_engines: 2,
        pci_device_id: 0x2236,
    },
    Profile {
        key: "a40",
        name: "NVIDIA A40",
        memory_bytes: 46_068 * MIB,
        sm_count: 84,
        compute_capability: (8, 6),
        clock_khz: 1_740_000,
        memory_clock_khz: 7_251_000,
        memory_bus_bits: 384,
        l2_bytes: 6 << 20,
        single_to_double_ratio: 64,
        copy_engines: 2,
        pci_device_id: 0x2235,
    },
    Profile {
        key: "l4",
        name: "NVIDIA L4",
        memory_bytes: 23_034 * MIB,
        sm_count: 58,
        compute_capability: (8, 9),
        clock_khz: 2_040_000,
        memory_clock_khz: 6_251_000,
        memory_bus_bits: 192,
        l2_bytes: 48 << 20,
        single_to_double_ratio: 64,
        copy_engines: 2,
        pci_device_id: 0x27b8,
    },
    Profile {
        key: "l40s",
        name: "NVIDIA L40S",
        memory_bytes: 46_068 * MIB,
        sm_count: 142,
        compute_capability: (8, 9),
        clock_khz: 2_520_000,
        memory_clock_khz: 9_001_000,
        memory_bus_bits: 384,
        l2_bytes: 96 << 20,
        single_to_double_ratio: 64,
        copy_engines: 2,
        pci_device_id: 0x26b9,
    },
    Profile {
        key: "rtx4090",
        name: "NVIDIA GeForce RTX 4090",
        memory_bytes: 24_564 * MIB,
        sm_count: 128,
        compute_capability: (8, 9),
        clock_khz: 2_520_000,
        memory_clock_khz: 10_501_000,
        memory_bus_bits: 384,
        l2_bytes: 72 << 20,
        single_to_double_ratio: 64,
        copy_engines: 2,
        pci_device_id: 0x2684,
    },
    Profile {
        key: "t4",
        name: "Tesla T4",
        memory_bytes: 15_360 * MIB,
        sm_count: 40,
        compute_capability: (7, 5),
        clock_khz: 1_590_000,
        memory_clock_khz: 5_001_000,
        memory_bus_bits: 256,
        l2_bytes: 4 << 20,
        single_to_double_ratio: 32,
        copy_engines: 3,
        pci_device_id: 0x1eb8,
    },
    Profile {
        key: "v100",
        name: "Tesla V100-SXM2-16GB",
        memory_bytes: 16_384 * MIB,
        sm_count: 80,
        compute_capability: (7, 0),
        clock_khz: 1_530_000,
        memory_clock_khz: 877_000,
        memory_bus_bits: 4096,
        l2_bytes: 6 << 20,
        single_to_double_ratio: 2,
        copy_engines: 6,
        pci_device_id: 0x1db1,
    },
];

/// PoCL: this machine's processors as an OpenCL device. It is none of [`PROFILES`], for no CUDA driver shows it, and its
/// size is this machine's ([`super::processors`]).
pub const POCL: Profile = Profile {
    key: divvy_model::POCL,
    name: "PoCL (OpenCL, no CUDA)",
    memory_bytes: 0,
    sm_count: 0,
    compute_capability: (0, 0),
    clock_khz: 0,
    memory_clock_khz: 0,
    memory_bus_bits: 0,
    l2_bytes: 0,
    single_to_double_ratio: 1,
    copy_engines: 0,
    pci_device_id: 0,
};

impl Profile {
    /// The profile with this key, whatever the case of its letters.
    pub fn by_key(key: &str) -> Option<&'static Profile> {
        PROFILES
            .iter()
            .chain([&POCL])
            .find(|profile| profile.key.eq_ignore_ascii_case(key))
    }

    /// Whether it is [`POCL`].
    pub fn is_opencl_only(&self) -> bool {
        self.key == POCL.key
    }

    /// Whether errors of its memory are corrected, unless an administrator turns that off. On GeForce it is off until one
    /// turns it on.
    pub fn has_ecc(&self) -> bool {
        !self.name.contains("GeForce")
    }

    /// Compute capability as the digits of `sm_NN`.
    pub fn sm(&self) -> u32 {
        self.compute_capability.0 * 10 + self.compute_capability.1
    }

    /// What the compute capability decides (CUDA C programming guide, "Technical Specifications per Compute
    /// Capability").
    pub fn limits(&self) -> Limits {
        let (threads_per_sm, blocks_per_sm, shared_kib, optin_kib, reserved) = match self.compute_capability {
            (9 | 10, _) => (2048, 32, 228, 227, 1024),
            (8, 0) => (2048, 32, 164, 163, 1024),
            (8, 6) => (1536, 16, 100, 99, 1024),
            (8, _) => (1536, 24, 100, 99, 1024),
            (7, 0) => (2048, 32, 96, 96, 0),
            _ => (1024, 16, 64, 64, 0),
        };
        Limits {
            threads_per_sm,
            blocks_per_sm,
            registers_per_sm: 65_536,
            shared_per_sm: shared_kib << 10,
            shared_per_block_optin: optin_kib << 10,
            shared_reserved_per_block: reserved,
        }
    }
}
