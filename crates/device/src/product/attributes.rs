//! What cuDeviceGetAttribute answers for a profile, by attribute number.
//!
//! A capability is reported only when this driver really has it: a program asks first and then uses it.

use super::identity::PciAddress;
use super::profile::{BLOCK_MAX, GRID_MAX, Profile, SHARED_PER_BLOCK, THREADS_PER_BLOCK, WARP};
use crate::inventory::DeviceFacts;

/// The highest CUdevice_attribute of CUDA 13.5.
const LAST_ATTRIBUTE: u32 = 161;

/// The attribute's value, or None for a number that CUDA does not define.
pub fn attribute(device: &DeviceFacts, number: u32) -> Option<i32> {
    if number == 0 || number > LAST_ATTRIBUTE {
        return None;
    }
    let profile = device.profile;
    let value = part(device, number)
        .or_else(|| limit(profile, number))
        .or_else(|| texture(number))
        .or_else(|| identity(profile, device.pci, number))
        .or_else(|| capability(number))
        .unwrap_or(0);
    Some(value)
}

/// The attributes of which a MIG device has less than its GPU.
fn part(device: &DeviceFacts, number: u32) -> Option<i32> {
    let value = match number {
        16 | 157 => device.sm_count(),
        40 => device.copy_engines(),
        _ => return None,
    };
    Some(value as i32)
}

/// Sizes and rates.
#[allow(clippy::match_same_arms, reason = "a table by number")]
fn limit(profile: &Profile, number: u32) -> Option<i32> {
    let limits = profile.limits();
    let value = match number {
        1 => THREADS_PER_BLOCK,
        2..=4 => BLOCK_MAX[number as usize - 2],
        5..=7 => GRID_MAX[number as usize - 5],
        8 => SHARED_PER_BLOCK,
        9 => 64 << 10, // constant memory
        10 => WARP,
        11 => i32::MAX as u32, // largest pitch
        12 => 65_536,          // registers per block
        13 => profile.clock_khz,
        14 => 512, // texture alignment
        30 => 512, // surface alignment
        36 => profile.memory_clock_khz,
        37 => profile.memory_bus_bits,
        38 => profile.l2_bytes,
        39 => limits.threads_per_sm,
        51 => 32, // texture pitch alignment
        81 => limits.shared_per_sm,
        82 => limits.registers_per_sm,
        87 => profile.single_to_double_ratio,
        97 => limits.shared_per_block_optin,
        106 => limits.blocks_per_sm,
        111 => limits.shared_reserved_per_block,
        119 => 1, // pools are shared by descriptor
        126 => 1, // memory synchronisation domains
        149 => 1, // locality domains
        _ => return None,
    };
    Some(value as i32)
}

/// Texture and surface extents: the same for every compute capability of 7.0 and above.
#[allow(clippy::match_same_arms, reason = "a table by number")]
fn texture(number: u32) -> Option<i32> {
    Some(match number {
        21 | 22 | 77 => {
            if number == 77 {
                32_768
            } else {
                131_072
            }
        }
        23 => 65_536,
        24..=26 => 16_384,
        27 | 28 | 42 => 32_768,
        29 | 43 => 2048,
        45 | 46 => 32_768,
        47 | 48 => 8192,
        49 => 32_768,
        52 | 53 => 32_768,
        54 | 68 => 2046,
        55 | 61 => 32_768,
        56 => 131_072,
        57 => 65_536,
        58..=60 => 16_384,
        62 | 65 => 2048,
        63 | 64 | 66 | 67 => 32_768,
        69 => 268_435_456,
        70 => 131_072,
        71 => 65_000,
        72 => 2_097_120,
        73 | 74 => 32_768,
        _ => return None,
    })
}

fn identity(profile: &Profile, pci: PciAddress, number: u32) -> Option<i32> {
    Some(match number {
        32 => i32::from(profile.has_ecc()),
        33 => i32::from(pci.bus),
        34 => i32::from(pci.device),
        50 => i32::from(pci.domain),
        75 => profile.compute_capability.0 as i32,
        76 => profile.compute_capability.1 as i32,
        131 => -1, // the device is no NUMA node
        134 => 0,  // NUMA node of the host nearest to it
        139 => (i32::from(profile.pci_device_id) << 16) | 0x10de,
        140 => 0x10de,
        _ => return None,
    })
}

/// What the device can do. Missing numbers are capabilities it does not have: clusters, tensor maps, multicast,
/// interop.
fn capability(number: u32) -> Option<i32> {
    let has = matches!(
        number,
        15 // copies overlap kernels
        | 19 // mapped host memory
        | 31 // concurrent kernels
        | 41 // unified addressing
        | 78 // stream priorities
        | 79 | 80 // first-level caches
        | 83 // managed memory
        | 89 // managed memory used by both sides at once
        | 90 // compute preemption
        | 91 // host pointers of registered memory are device pointers
        | 92 | 93 | 94 // memory operations on streams
        | 95 // cooperative launch
        | 102 // virtual memory management
        | 103 // sharing by descriptor
        | 99 // host memory registration
        | 113 // of read-only pages as well
        | 115 // memory pools
        | 125 // events between processes
        | 141 // virtual memory management for host memory of a NUMA node
        | 145 // and of any
        | 122 | 123 // memory operations on streams, as of version 2
    );
    has.then_some(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::profile::PROFILES;

    #[test]
    fn every_defined_attribute_has_an_answer_on_every_profile() {
        for profile in PROFILES {
            let devices = crate::inventory::devices(profile.key, std::path::Path::new("/run/divvy")).unwrap();
            let get = |number| attribute(&devices[0], number);
            assert!((1..=LAST_ATTRIBUTE).all(|number| get(number).is_some()));
            assert_eq!((get(0), get(LAST_ATTRIBUTE + 1)), (None, None));
            assert_eq!(get(16), Some(profile.sm_count as i32));
            assert_eq!(get(75).unwrap() * 10 + get(76).unwrap(), profile.sm() as i32);
            assert!(get(97) >= get(8), "opting in to shared memory never gives less");
            assert!(get(81) >= get(97));
            // Zero here makes programs skip work.
            assert_eq!((get(95), get(115), get(83)), (Some(1), Some(1), Some(1)));
        }
    }
}
