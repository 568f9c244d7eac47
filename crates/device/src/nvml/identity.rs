//! Which devices there are, and what each is.

use divvy_abi::nvml::*;

use super::args::{Device, In, Out, Text, field};
use super::board::{board, cores_per_sm};
use super::divisible::Divisible;
use super::{Result, state};
use crate::inventory::DeviceFacts;
use crate::product::identity::{PciAddress, Uuid};

/// PCI vendor id of NVIDIA.
const VENDOR: u32 = 0x10de;

fn by_index(index: u32) -> Result<nvmlDevice_t> {
    let devices = state::devices()?;
    let device = devices.get(index as usize).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    Ok(state::handle(device))
}

fn find(wanted: impl Fn(&DeviceFacts) -> bool) -> Result<nvmlDevice_t> {
    let found = state::devices()?.iter().find(|device| wanted(device));
    found.map(state::handle).ok_or(NVML_ERROR_NOT_FOUND)
}

fn by_pci_bus_id(text: &Text) -> Result<nvmlDevice_t> {
    state::devices()?;
    let address = PciAddress::parse(text.get()?).ok_or(NVML_ERROR_NOT_FOUND)?;
    find(|device| device.pci == address)
}

fn bus_id(pci: PciAddress) -> String {
    format!("{:08X}:{:02X}:{:02X}.0", pci.domain, pci.bus, pci.device)
}

fn pci_info(device: &DeviceFacts) -> nvmlPciInfo_t {
    let pci = device.pci;
    nvmlPciInfo_t {
        busIdLegacy: field(&format!(
            "{:04X}:{:02X}:{:02X}.0",
            pci.domain, pci.bus, pci.device
        )),
        domain: pci.domain.into(),
        bus: pci.bus.into(),
        device: pci.device.into(),
        pciDeviceId: u32::from(device.profile.pci_device_id) << 16 | VENDOR,
        pciSubSystemId: 0,
        busId: field(&bus_id(pci)),
    }
}

/// What nvmlPciInfo_t was before its third version: the long bus id is not part of it.
#[repr(C)]
struct OlderPciInfo {
    bus_id: [c_char; 16],
    numbers: [u32; 4],
}

fn older_pci_info(device: &DeviceFacts) -> OlderPciInfo {
    let info = pci_info(device);
    OlderPciInfo {
        bus_id: info.busIdLegacy,
        numbers: [info.domain, info.bus, info.device, info.pciDeviceId],
    }
}

nvml_entry! {
    fn nvmlDeviceGetCount | nvmlDeviceGetCount_v2(count: Out<u32>) {
        count.set(state::devices()?.len() as u32)
    }

    fn nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<nvmlDevice_t>) {
        device.set(by_index(index)?)
    }

    fn nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2(id: Text, device: Out<nvmlDevice_t>) {
        device.set(by_pci_bus_id(&id)?)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<nvmlDevice_t>) {
        state::devices()?;
        device.set(by_uuid(uuid.get()?)?)
    }

    fn nvmlDeviceGetHandleByUUIDV(uuid: In<nvmlUUID_t>, device: Out<nvmlDevice_t>) {
        state::devices()?;
        let asked = uuid.get()?;
        if asked.version != nvmlUUID_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        device.set(match nvmlUUIDType_t(asked.type_) {
            // SAFETY: both members of the union are bytes, and any bytes are a value of either.
            NVML_UUID_TYPE_ASCII => by_uuid(&text_of(unsafe { &asked.value.str })),
            // SAFETY: as above.
            NVML_UUID_TYPE_BINARY => by_bytes(unsafe { asked.value.bytes }),
            _ => Err(NVML_ERROR_INVALID_ARGUMENT),
        }?)
    }

    fn nvmlDeviceGetHandleBySerial(serial: Text, device: Out<nvmlDevice_t>) {
        state::devices()?;
        let asked = serial.get()?;
        device.set(find(|device| serial_number(device) == asked)?)
    }

    fn nvmlDeviceGetName(device: Device, name: Out<c_char>, length: u32) {
        name.set_text(&device.any()?.name(), length)
    }

    fn nvmlDeviceGetUUID(device: Device, uuid: Out<c_char>, length: u32) {
        uuid.set_text(&device.any()?.id(), length)
    }

    fn nvmlDeviceGetSerial(device: Device, serial: Out<c_char>, length: u32) {
        serial.set_text(&serial_number(device.get()?), length)
    }

    // Of a MIG device the number that nvmlDeviceGetMigDeviceHandleByIndex takes.
    fn nvmlDeviceGetIndex(device: Device, index: Out<u32>) {
        let device = device.any()?;
        index.set(place(device)? as u32)
    }

    fn nvmlDeviceGetMinorNumber(device: Device, number: Out<u32>) {
        number.set(device.get()?.index as u32)
    }

    fn nvmlDeviceGetModuleId(device: Device, id: Out<u32>) {
        id.set(device.get()?.index as u32)
    }

    fn nvmlDeviceGetPciInfo | nvmlDeviceGetPciInfo_v2(device: Device, info: Out<nvmlPciInfo_t>) {
        info.set_older(older_pci_info(device.get()?))
    }

    fn nvmlDeviceGetPciInfo_v3(device: Device, info: Out<nvmlPciInfo_t>) {
        info.set(pci_info(device.get()?))
    }

    fn nvmlDeviceGetPciInfoExt(device: Device, info: Out<nvmlPciInfoExt_t>) {
        let device = device.get()?;
        if info.before()?.version != nvmlPciInfoExt_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let short = pci_info(device);
        info.set(nvmlPciInfoExt_t {
            version: nvmlPciInfoExt_v1,
            domain: short.domain,
            bus: short.bus,
            device: short.device,
            pciDeviceId: short.pciDeviceId,
            pciSubSystemId: short.pciSubSystemId,
            // A 3D controller that is no VGA card (PCI code assignment).
            baseClass: 0x03,
            subClass: 0x02,
            busId: short.busId,
        })
    }

    fn nvmlDeviceGetBrand(device: Device, brand: Out<nvmlBrandType_t>) {
        brand.set(board(device.any()?.profile).brand)
    }

    fn nvmlDeviceGetArchitecture(device: Device, architecture: Out<u32>) {
        architecture.set(board(device.any()?.profile).architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: Device, major: Out<i32>, minor: Out<i32>) {
        let (wanted_major, wanted_minor) = device.any()?.compute_capability();
        minor.required()?;
        major.set(wanted_major as i32)?;
        minor.set(wanted_minor as i32)
    }

    fn nvmlDeviceGetNumGpuCores(device: Device, cores: Out<u32>) {
        let device = device.any()?;
        cores.set(device.sm_count() * cores_per_sm(device.profile))
    }

    fn nvmlDeviceGetMemoryBusWidth(device: Device, bits: Out<u32>) {
        bits.set(device.get()?.profile.memory_bus_bits)
    }

    fn nvmlDeviceGetBusType(device: Device, kind: Out<u32>) {
        device.get()?;
        kind.set(NVML_BUS_TYPE_PCIE)
    }

    fn nvmlDeviceGetMultiGpuBoard(device: Device, several: Out<u32>) {
        device.get()?;
        several.set(0)
    }

    fn nvmlDeviceGetBoardId(device: Device, id: Out<u32>) {
        let pci = device.get()?.pci;
        id.set(u32::from(pci.domain) << 16 | u32::from(pci.bus) << 8 | u32::from(pci.device))
    }
}

fn place(device: &DeviceFacts) -> Result<usize> {
    let Some(instance) = device.instance else {
        return Ok(device.index);
    };
    let mut siblings = mig_devices()?
        .into_iter()
        .filter(|other| other.gpu() == instance.gpu);
    siblings
        .position(|other| other.uuid == device.uuid)
        .ok_or(NVML_ERROR_NOT_FOUND)
}

/// The MIG devices of all GPUs.
fn mig_devices() -> Result<Vec<DeviceFacts>> {
    let mut found = Vec::new();
    for on in state::devices()?.iter().filter_map(|gpu| Divisible::of(gpu).ok()) {
        match on.devices() {
            Err(NVML_ERROR_NOT_SUPPORTED) => {}
            devices => found.extend(devices?),
        }
    }
    Ok(found)
}

/// A GPU by `GPU-…` or no prefix, a MIG device by `MIG-…`.
fn by_uuid(text: &str) -> Result<nvmlDevice_t> {
    let uuid = Uuid::parse(text).ok_or(NVML_ERROR_NOT_FOUND)?;
    if !text.starts_with("MIG-") {
        return find(|device| device.uuid == uuid);
    }
    let devices = mig_devices()?;
    let found = devices.iter().find(|device| device.uuid == uuid);
    found.map(state::mig_handle).ok_or(NVML_ERROR_NOT_FOUND)
}

/// The same by the sixteen bytes, which do not tell one from the other.
fn by_bytes(bytes: [u8; 16]) -> Result<nvmlDevice_t> {
    find(|device| device.uuid.0 == bytes).or_else(|_| by_uuid(&Uuid(bytes).of_mig_device()))
}

fn serial_number(device: &DeviceFacts) -> String {
    let digits = u64::from_be_bytes(device.uuid.0[..8].try_into().expect("eight of sixteen bytes"));
    format!("{:013}", digits % 10_000_000_000_000)
}

fn text_of(bytes: &[c_char]) -> String {
    bytes
        .iter()
        .map(|byte| *byte as u8)
        .take_while(|byte| *byte != 0)
        .map(char::from)
        .collect()
}
