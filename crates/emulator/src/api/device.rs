//! Devices: how many, which, and what each is.

use super::args::{Out, Text};
use crate::driver::driver;
use divvy_abi::*;
use divvy_device::product::attributes::attribute;
use divvy_device::product::identity::PciAddress;
use divvy_device::product::profile::{BLOCK_MAX, GRID_MAX, SHARED_PER_BLOCK, THREADS_PER_BLOCK, WARP};

entry! {
    fn cuDeviceGetCount(count: Out<i32>) {
        count.set(driver()?.devices.len() as i32)
    }

    fn cuDeviceGet(device: Out<CUdevice>, ordinal: i32) {
        let number = driver()?.device(ordinal)?.ordinal as CUdevice;
        device.set(number)
    }

    fn cuDeviceGetName(name: Out<c_char>, room: i32, device: CUdevice) {
        name.set_text(&driver()?.device(device)?.facts.name(), room)
    }

    // The first version knows no MIG devices: for one it reports the GPU.
    fn cuDeviceGetUuid(uuid: Out<CUuuid>, device: CUdevice) {
        let bytes = driver()?.device(device)?.facts.gpu().0;
        uuid.set(CUuuid { bytes: bytes.map(|byte| byte as c_char) })
    }

    fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, device: CUdevice) {
        let bytes = driver()?.device(device)?.facts.uuid.0;
        uuid.set(CUuuid { bytes: bytes.map(|byte| byte as c_char) })
    }

    // A LUID is Windows' name for an adapter; on Linux the driver has none.
    fn cuDeviceGetLuid(luid: Out<c_char>, mask: Out<u32>, device: CUdevice) {
        driver()?.device(device)?;
        luid.required()?;
        mask.required()?;
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CUdevice) {
        bytes.set(driver()?.device(device)?.facts.memory_bytes() as usize)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, number: CUdevice_attribute, device: CUdevice) {
        let facts = &driver()?.device(device)?.facts;
        value.set(attribute(facts, number.0).ok_or(CUDA_ERROR_INVALID_VALUE)?)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: CUdevice) {
        let capability = driver()?.device(device)?.facts.compute_capability();
        major.set(capability.0 as i32)?;
        minor.set(capability.1 as i32)
    }

    fn cuDeviceGetProperties(properties: Out<CUdevprop>, device: CUdevice) {
        let profile = driver()?.device(device)?.facts.profile;
        properties.set(CUdevprop {
            maxThreadsPerBlock: THREADS_PER_BLOCK as i32,
            maxThreadsDim: BLOCK_MAX.map(|size| size as i32),
            maxGridSize: GRID_MAX.map(|size| size as i32),
            sharedMemPerBlock: SHARED_PER_BLOCK as i32,
            totalConstantMemory: 64 << 10,
            SIMDWidth: WARP as i32,
            memPitch: i32::MAX,
            regsPerBlock: 65_536,
            clockRate: profile.clock_khz as i32,
            textureAlign: 512,
        })
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, room: i32, device: CUdevice) {
        text.set_text(&driver()?.device(device)?.facts.pci.to_string(), room)
    }

    fn cuDeviceGetByPCIBusId(device: Out<CUdevice>, text: Text) {
        let wanted = PciAddress::parse(text.get()?).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let driver = driver()?;
        let found = driver.devices.iter().find(|device| device.facts.pci == wanted);
        device.set(found.ok_or(CUDA_ERROR_INVALID_DEVICE)?.ordinal as CUdevice)
    }

    fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, _kind: CUexecAffinityType, device: CUdevice) {
        driver()?.device(device)?;
        supported.set(0)
    }
}
