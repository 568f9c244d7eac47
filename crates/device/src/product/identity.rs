//! The identity of an emulated device: a UUID and a PCI address that stay the same from run to run.

use super::profile::Profile;
use divvy_ledger::POCL_UUID;
use std::fmt;
use std::path::Path;

/// A device's UUID; Display is NVIDIA's form, `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Derived from the run directory, the profile and the index. A device's shared page lies in the run directory, so
    /// devices of two run directories are two devices; a device keeps its UUID from run to run.
    pub fn derive(run_directory: &Path, profile: &Profile, index: usize) -> Uuid {
        let seed = format!(
            "divvy emulated {} {} {index}",
            run_directory.display(),
            profile.key
        );
        let mut bytes = [0; 16];
        for (half, out) in bytes.chunks_exact_mut(8).enumerate() {
            out.copy_from_slice(&hash(seed.as_bytes(), half as u64).to_be_bytes());
        }
        // The version and variant fields of RFC 9562: 8 is "custom", which a derived UUID is.
        bytes[6] = (bytes[6] & 0x0f) | 0x80;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        if profile.is_opencl_only() {
            // The layer in a tenant knows the device by it.
            bytes[..POCL_UUID.len()].copy_from_slice(&POCL_UUID);
        }
        Uuid(bytes)
    }

    /// Of a part of what `whole` names, told apart from other parts by `part`.
    pub fn within(whole: Uuid, part: &str) -> Uuid {
        let mut bytes = [0; 16];
        let seed = [&whole.0[..], part.as_bytes()].concat();
        for (half, out) in bytes.chunks_exact_mut(8).enumerate() {
            out.copy_from_slice(&hash(&seed, half as u64).to_be_bytes());
        }
        bytes[6] = (bytes[6] & 0x0f) | 0x80;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Uuid(bytes)
    }

    /// NVIDIA's form for a MIG device: `MIG-` in front.
    pub fn of_mig_device(self) -> String {
        format!("MIG-{}", &self.to_string()["GPU-".len()..])
    }

    /// Reads NVIDIA's form, with or without the `GPU-` or `MIG-` prefix.
    pub fn parse(text: &str) -> Option<Uuid> {
        let prefixed = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
        let text = prefixed.unwrap_or(text);
        let groups: Vec<&str> = text.split('-').collect();
        if groups.iter().map(|group| group.len()).ne([8, 4, 4, 4, 12]) {
            return None;
        }
        let digits = groups.concat();
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Uuid(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU-")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// A PCI address; Display is the form of cuDeviceGetPCIBusId, `0000:65:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PciAddress {
    /// PCI domain.
    pub domain: u16,
    /// Bus number.
    pub bus: u8,
    /// Device number on the bus.
    pub device: u8,
}

impl PciAddress {
    /// Domain 0xd1d1 is far from any real host's, so an emulated device is never taken for hardware.
    pub fn derive(index: usize) -> PciAddress {
        PciAddress {
            domain: 0xd1d1,
            bus: 1 + index as u8,
            device: 0,
        }
    }

    /// Reads `domain:bus:device.function`, `domain:bus:device`, `bus:device.function` or `bus:device`, in
    /// hexadecimal; the function must be 0, because a device has one.
    pub fn parse(text: &str) -> Option<PciAddress> {
        let (address, function) = text.rsplit_once('.').unwrap_or((text, "0"));
        if function != "0" {
            return None;
        }
        let mut parts: Vec<&str> = address.split(':').collect();
        if parts.len() == 2 {
            parts.insert(0, "0");
        }
        let [domain, bus, device] = parts.try_into().ok()?;
        // nvidia-smi writes the domain with eight digits.
        let domain = u16::try_from(u32::from_str_radix(domain, 16).ok()?).ok()?;
        Some(PciAddress {
            domain,
            bus: u8::from_str_radix(bus, 16).ok()?,
            device: u8::from_str_radix(device, 16).ok()?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

/// FNV-1a over the seed, then the finaliser of SplitMix64 so that near seeds give far values.
fn hash(seed: &[u8], salt: u64) -> u64 {
    let mut value = 0xcbf2_9ce4_8422_2325 ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for &byte in seed {
        value = (value ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::profile::PROFILES;
    use std::collections::HashSet;

    #[test]
    fn uuids_are_stable_distinct_and_read_back() {
        let h100 = &PROFILES[0];
        let run = Path::new("/run/divvy");
        assert_eq!(Uuid::derive(run, h100, 0), Uuid::derive(run, h100, 0));
        let mut seen = HashSet::new();
        for run in ["/run/divvy", "/run/user/1/divvy", "/tmp/divvy-1000"].map(Path::new) {
            for profile in PROFILES {
                for index in 0..16 {
                    let uuid = Uuid::derive(run, profile, index);
                    assert!(seen.insert(uuid), "{uuid} twice");
                    assert_eq!(Uuid::parse(&uuid.to_string()), Some(uuid));
                    assert_eq!(Uuid::parse(&uuid.of_mig_device()), Some(uuid));
                    assert!(seen.insert(Uuid::within(uuid, "gi 1")));
                }
            }
        }
    }

    #[test]
    fn malformed_uuids_are_refused() {
        for text in [
            "",
            "GPU-",
            "GPU-0",
            "GPU-0123456789abcdef0123456789abcdef",
            "GPU-é1234567-1234-1234-1234-123456789abc",
        ] {
            assert_eq!(Uuid::parse(text), None, "{text}");
        }
    }

    #[test]
    fn pci_addresses_read_back_in_every_usual_form() {
        let address = PciAddress::derive(3);
        assert_eq!(address.to_string(), "d1d1:04:00.0");
        assert_eq!(PciAddress::parse("d1d1:04:00.0"), Some(address));
        assert_eq!(PciAddress::parse("0000D1D1:04:00.0"), Some(address));
        assert_eq!(PciAddress::parse("d1d1:04:00"), Some(address));
        assert_eq!(
            PciAddress::parse("04:00"),
            Some(PciAddress {
                domain: 0,
                bus: 4,
                device: 0
            })
        );
        for text in ["", "04", "d1d1:04:00.1", "1:2:3:4", "zz:00"] {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
    }
}
