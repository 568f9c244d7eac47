//! Clocks, performance state, and the PCIe link.

use divvy_abi::nvml::*;

use super::Result;
use super::args::{Device, Out};
use super::board::board;
use crate::inventory::DeviceFacts;

const LANES: u32 = 16;

/// The one speed of each domain, in MHz: an emulated device has no reason to change it.
fn clock_mhz(device: &DeviceFacts, domain: nvmlClockType_t) -> Result<u32> {
    let khz = match domain {
        NVML_CLOCK_GRAPHICS | NVML_CLOCK_SM => device.profile.clock_khz,
        NVML_CLOCK_MEM => device.profile.memory_clock_khz,
        // The video clock follows the graphics clock at nine tenths or so on these products.
        NVML_CLOCK_VIDEO => device.profile.clock_khz / 10 * 9,
        _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
    };
    Ok(khz / 1000)
}

/// A list of one speed, by NVML's protocol of capacity and count.
fn one_clock(count: &Out<u32>, clocks: &Out<u32>, mhz: u32) -> Result {
    let room = count.before()?;
    count.set(1)?;
    if room < 1 {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    clocks.set(mhz)
}

nvml_entry! {
    fn nvmlDeviceGetClockInfo
        | nvmlDeviceGetMaxClockInfo
        | nvmlDeviceGetApplicationsClock
        | nvmlDeviceGetDefaultApplicationsClock
        | nvmlDeviceGetMaxCustomerBoostClock(device: Device, domain: nvmlClockType_t, mhz: Out<u32>) {
        mhz.set(clock_mhz(device.get()?, domain)?)
    }

    fn nvmlDeviceGetClock(device: Device, domain: nvmlClockType_t, which: nvmlClockId_t, mhz: Out<u32>) {
        let device = device.get()?;
        if which >= NVML_CLOCK_ID_COUNT {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        mhz.set(clock_mhz(device, domain)?)
    }

    fn nvmlDeviceGetSupportedMemoryClocks(device: Device, count: Out<u32>, clocks: Out<u32>) {
        one_clock(&count, &clocks, clock_mhz(device.get()?, NVML_CLOCK_MEM)?)
    }

    fn nvmlDeviceGetSupportedGraphicsClocks(device: Device, memory_mhz: u32, count: Out<u32>, clocks: Out<u32>) {
        let device = device.get()?;
        if memory_mhz != clock_mhz(device, NVML_CLOCK_MEM)? {
            return Err(NVML_ERROR_NOT_FOUND);
        }
        one_clock(&count, &clocks, clock_mhz(device, NVML_CLOCK_GRAPHICS)?)
    }

    fn nvmlDeviceGetPerformanceState | nvmlDeviceGetPowerState(device: Device, state: Out<nvmlPstates_t>) {
        device.get()?;
        state.set(NVML_PSTATE_0)
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons
        | nvmlDeviceGetCurrentClocksEventReasons
        | nvmlDeviceGetSupportedClocksThrottleReasons
        | nvmlDeviceGetSupportedClocksEventReasons(device: Device, reasons: Out<u64>) {
        device.get()?;
        reasons.set(nvmlClocksEventReasonNone.into())
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration
        | nvmlDeviceGetMaxPcieLinkGeneration
        | nvmlDeviceGetGpuMaxPcieLinkGeneration(device: Device, generation: Out<u32>) {
        generation.set(board(device.get()?.profile).pcie_generation)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth | nvmlDeviceGetMaxPcieLinkWidth(device: Device, lanes: Out<u32>) {
        device.get()?;
        lanes.set(LANES)
    }

    // Copies to and from an emulated device cross no bus.
    fn nvmlDeviceGetPcieThroughput(device: Device, counter: nvmlPcieUtilCounter_t, kib_per_second: Out<u32>) {
        device.get()?;
        if counter >= NVML_PCIE_UTIL_COUNT {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        kib_per_second.set(0)
    }

    fn nvmlDeviceGetPcieReplayCounter(device: Device, count: Out<u32>) {
        device.get()?;
        count.set(0)
    }
}
