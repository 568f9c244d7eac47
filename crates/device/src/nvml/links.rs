//! NVLink: boards that have it are joined through switches where there are several, as in NVIDIA's own servers.

use divvy_abi::nvml::*;

use super::args::{Device, Out, field};
use super::board::board;
use super::{Result, state};
use crate::inventory::DeviceFacts;
use crate::product::identity::PciAddress;

/// Switches of a server with eight H100.
const SWITCHES: u32 = 4;
/// The bus of the first: behind the last device.
const FIRST_SWITCH: u8 = 0xfc;
/// `GH100 [H100 NVSwitch]` in the PCI id database.
const SWITCH_ID: u32 = 0x22a3_10de;

/// NVLinks of a product's board, by the name used in `DIVVY_EMULATED`.
pub fn nvlinks(product: &str) -> u32 {
    let profiles = crate::product::profile::PROFILES.iter();
    let mut found = profiles.filter(|profile| profile.key == product);
    found.next().map_or(0, |profile| board(profile).nvlinks)
}

/// Whether a link of a device goes anywhere: where no other device has any, there is nothing at its end.
fn is_active(device: &DeviceFacts, link: u32) -> Result<bool> {
    let links = board(device.profile).nvlinks;
    if links == 0 {
        return Err(NVML_ERROR_NOT_SUPPORTED);
    }
    if link >= links {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    let joined = |other: &&DeviceFacts| board(other.profile).nvlinks > 0;
    Ok(state::devices()?.iter().filter(joined).count() > 1)
}

/// What is at the end of a link.
fn switch(device: &DeviceFacts, link: u32) -> Result<PciAddress> {
    if !is_active(device, link)? {
        return Err(NVML_ERROR_NOT_SUPPORTED);
    }
    Ok(PciAddress {
        domain: device.pci.domain,
        bus: FIRST_SWITCH + (link % SWITCHES) as u8,
        device: 0,
    })
}

nvml_entry! {
    fn nvmlDeviceGetNvLinkState(device: Device, link: u32, active: Out<nvmlEnableState_t>) {
        active.set(match is_active(device.get()?, link)? {
            true => NVML_FEATURE_ENABLED,
            false => NVML_FEATURE_DISABLED,
        })
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: Device, link: u32, kind: Out<nvmlIntNvLinkDeviceType_t>) {
        switch(device.get()?, link)?;
        kind.set(NVML_NVLINK_DEVICE_TYPE_SWITCH)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Device, link: u32, info: Out<nvmlPciInfo_t>) {
        let pci = switch(device.get()?, link)?;
        info.set(nvmlPciInfo_t {
            busIdLegacy: field(&format!("{:04X}:{:02X}:{:02X}.0", pci.domain, pci.bus, pci.device)),
            domain: pci.domain.into(),
            bus: pci.bus.into(),
            device: pci.device.into(),
            pciDeviceId: SWITCH_ID,
            pciSubSystemId: 0,
            busId: field(&format!("{:08X}:{:02X}:{:02X}.0", pci.domain, pci.bus, pci.device)),
        })
    }
}
