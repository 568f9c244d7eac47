//! Which of the slice's accounts covers an OpenCL device.
//!
//! Every device that a program uses gets an ordinal, by which the limiter knows it. The limiter asks for an ordinal's
//! UUID and finds the account of the same device: a driver tells the UUID itself, or the PCI address, of which the
//! kernel's NVIDIA driver tells the UUID.

use std::sync::Mutex;

use divvy_ledger::POCL_UUID;
use divvy_limiter::account;
use divvy_limiter::tenant::{self, Tenant};

use crate::below;
use crate::cl::*;
use crate::driver;

/// What the slice says of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charged {
    /// An account covers the device of this ordinal.
    Account(i32),
    /// Nothing is limited: there is no slice, or the device is none that Divvy shares.
    Free,
    /// The slice has no share of it, or this process cannot be counted.
    Refused,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    /// A device with this UUID.
    Uuid([u8; 16]),
    /// A processor that is not shared by Divvy, or a GPU that is reached through libcuda, where it is limited.
    NotShared,
    /// It cannot be told which device this is.
    Unknown,
}

/// A UUID that no device has: an ordinal without one is a device of which no slice has a share.
const NONE: [u8; 16] = [0xff; 16];

#[derive(Clone, Copy)]
struct Known {
    /// The driver's handle.
    device: usize,
    identity: Identity,
}

/// By ordinal. A device of the driver stays as long as the process.
static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// The devices that a process may use at once; more are refused.
const MOST: usize = 128;

/// What the slice says of a device. Joins the slice at the first call.
///
/// # Safety
/// `device` is a device of the driver's.
pub(crate) unsafe fn charged(device: cl_device_id) -> Charged {
    match tenant::join() {
        Ok(Tenant::Unlimited) => return Charged::Free,
        Ok(Tenant::Member(_)) if account::keeps_charges() => {}
        // A forked child, or a slice that cannot be joined: what cannot be counted is not granted.
        _ => return Charged::Refused,
    }
    // SAFETY: the caller's promise.
    let Some((ordinal, identity)) = (unsafe { known(device) }) else {
        return Charged::Refused;
    };
    if identity == Identity::NotShared {
        return Charged::Free;
    }
    match account::of_device(ordinal) {
        Ok(Some(_)) => Charged::Account(ordinal),
        // The policy lets devices pass of which the slice has no share, and the limiter has counted that.
        Ok(None) => Charged::Free,
        Err(_) => Charged::Refused,
    }
}

/// The UUID of an ordinal.
pub(crate) fn uuid(ordinal: i32) -> [u8; 16] {
    match at(ordinal).map(|known| known.identity) {
        Some(Identity::Uuid(uuid)) => uuid,
        _ => NONE,
    }
}

/// The driver's device of an ordinal.
pub(crate) fn handle(ordinal: i32) -> Option<cl_device_id> {
    at(ordinal).map(|known| known.device as cl_device_id)
}

fn at(ordinal: i32) -> Option<Known> {
    let ordinal = usize::try_from(ordinal).ok()?;
    driver::locked(&KNOWN).get(ordinal).copied()
}

/// # Safety
/// As [`charged`].
unsafe fn known(device: cl_device_id) -> Option<(i32, Identity)> {
    // A part of a device is charged as the whole.
    // SAFETY: the caller's promise.
    let whole = unsafe { whole(device) };
    let found = |list: &[Known]| {
        let at = list.iter().position(|known| known.device == whole as usize)?;
        Some((at as i32, list[at].identity))
    };
    if let Some(found) = found(&driver::locked(&KNOWN)) {
        return Some(found);
    }
    // SAFETY: as above. No lock is held while the driver is asked.
    let identity = unsafe { identity(whole) };
    let mut list = driver::locked(&KNOWN);
    if let Some(found) = found(&list) {
        return Some(found);
    }
    if list.len() >= MOST {
        return None;
    }
    list.push(Known {
        device: whole as usize,
        identity,
    });
    found(&list)
}

/// # Safety
/// As [`charged`].
unsafe fn whole(mut device: cl_device_id) -> cl_device_id {
    /// Parts of parts; a driver that tells more is wrong.
    const DEPTH: usize = 8;
    for _ in 0..DEPTH {
        // SAFETY: the caller's promise; then a device that the driver named.
        match unsafe { below::of_device::<usize>(device, CL_DEVICE_PARENT_DEVICE) } {
            Some(parent @ 1..) => device = parent as cl_device_id,
            _ => break,
        }
    }
    device
}

/// PCI's vendor number of NVIDIA, as OpenCL tells it too.
const NVIDIA: u32 = 0x10de;

/// # Safety
/// As [`charged`].
unsafe fn identity(device: cl_device_id) -> Identity {
    // SAFETY: the caller's promise; each value is as wide as OpenCL says.
    let (kind, vendor, is_pocl) = unsafe {
        (
            below::of_device::<cl_bitfield>(device, CL_DEVICE_TYPE).unwrap_or(0),
            below::of_device::<u32>(device, CL_DEVICE_VENDOR_ID).unwrap_or(0),
            is_pocl(device),
        )
    };
    if kind & CL_DEVICE_TYPE_CPU != 0 {
        // Divvy shares processors as PoCL's device only, and where it was asked to.
        return match pocl_account().filter(|_| is_pocl) {
            Some(uuid) => Identity::Uuid(uuid),
            None => Identity::NotShared,
        };
    }
    if is_pocl && vendor == NVIDIA {
        return Identity::NotShared;
    }
    // SAFETY: as above.
    if let Some(uuid) = unsafe { below::of_device::<[u8; 16]>(device, CL_DEVICE_UUID_KHR) }
        && (vendor == NVIDIA || is_in_the_slice(uuid))
    {
        return Identity::Uuid(uuid);
    }
    // SAFETY: as above.
    match unsafe { pci(device) }.and_then(uuid_at) {
        Some(uuid) => Identity::Uuid(uuid),
        None => Identity::Unknown,
    }
}

/// # Safety
/// As [`charged`].
unsafe fn is_pocl(device: cl_device_id) -> bool {
    const NAME: &[u8] = b"Portable Computing Language\0";
    let mut name = [0_u8; 64];
    // SAFETY: the caller's promise; the buffer is as large as it says.
    unsafe {
        let Some(platform) = below::of_device::<usize>(device, CL_DEVICE_PLATFORM) else {
            return false;
        };
        let platform = platform as cl_platform_id;
        below::clGetPlatformInfo(
            platform,
            CL_PLATFORM_NAME,
            name.len(),
            name.as_mut_ptr().cast(),
            core::ptr::null_mut(),
        ) == CL_SUCCESS
            && name.starts_with(NAME)
    }
}

fn accounts() -> Vec<[u8; 16]> {
    match tenant::known() {
        Some(Tenant::Member(member)) => member
            .accounts()
            .map(|account| account.grant().device_uuid())
            .collect(),
        _ => Vec::new(),
    }
}

/// The UUID of this host's PoCL device, if the slice has a share of it.
fn pocl_account() -> Option<[u8; 16]> {
    accounts().into_iter().find(|uuid| uuid.starts_with(&POCL_UUID))
}

fn is_in_the_slice(uuid: [u8; 16]) -> bool {
    accounts().contains(&uuid)
}

/// A PCI address: domain, bus and device.
type Pci = [u32; 3];

/// # Safety
/// As [`charged`].
unsafe fn pci(device: cl_device_id) -> Option<Pci> {
    // SAFETY: the caller's promise; each value is as wide as its extension says.
    unsafe {
        if let Some([domain, bus, slot, _]) = below::of_device::<[u32; 4]>(device, CL_DEVICE_PCI_BUS_INFO_KHR)
        {
            return Some([domain, bus, slot]);
        }
        let number = |name| below::of_device::<u32>(device, name);
        let slot = number(CL_DEVICE_PCI_SLOT_ID_NV)?;
        Some([
            // Older drivers have no domain, and the host has one then.
            number(CL_DEVICE_PCI_DOMAIN_ID_NV).unwrap_or(0),
            number(CL_DEVICE_PCI_BUS_ID_NV)?,
            // The device in the upper bits, the function in the lower three.
            slot >> 3,
        ])
    }
}

/// The UUID of the GPU at an address, as the kernel's NVIDIA driver tells it.
fn uuid_at([domain, bus, slot]: Pci) -> Option<[u8; 16]> {
    let file = format!("/proc/driver/nvidia/gpus/{domain:04x}:{bus:02x}:{slot:02x}.0/information");
    uuid_in(&std::fs::read_to_string(file).ok()?)
}

/// The UUID in such a file: a line `GPU UUID: GPU-…`.
fn uuid_in(text: &str) -> Option<[u8; 16]> {
    let line = text.lines().find_map(|line| line.strip_prefix("GPU UUID:"))?;
    let digits: Vec<u8> = line
        .trim()
        .strip_prefix("GPU-")?
        .bytes()
        .filter(|byte| *byte != b'-')
        .collect();
    if digits.len() != 32 {
        return None;
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_driver_tells_the_uuid_of_an_address() {
        let text =
            "Model: \t\t NVIDIA L4\nIRQ:   \t\t 50\nGPU UUID: \t GPU-0123abcd-1111-2222-3333-444455556666\n";
        let told = uuid_in(text).expect("a UUID");
        assert_eq!(told[..4], [0x01, 0x23, 0xab, 0xcd]);
        assert_eq!(told[15], 0x66);
        for bad in [
            "",
            "GPU UUID: GPU-????????-????-????-????-????????????",
            "GPU UUID: MIG-1",
            "GPU UUID: GPU-01",
        ] {
            assert_eq!(uuid_in(bad), None, "{bad}");
        }
        assert_eq!(uuid_at([0xd1d1, 1, 0]), None, "no such GPU here");
        assert_eq!(uuid(7), NONE, "no such ordinal");
    }
}
