//! Utilisation, temperature and power of a device.

use divvy_abi::nvml::*;

use super::args::{Device, Out};
use super::board::board;
use super::divisible::Divisible;
use super::utilization::{engine, percent};

/// Length of the window that a utilisation is an average over, in microseconds; NVML's own is between 1/6 and 1 s.
const WINDOW_US: u32 = 1_000_000;

nvml_entry! {
    fn nvmlDeviceGetUtilizationRates(device: Device, rates: Out<nvmlUtilization_t>) {
        let device = device.get()?;
        // Of a GPU in MIG mode NVML tells no rates.
        if Divisible::of(device).is_ok_and(|on| on.divided().is_ok()) {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        let busy = engine(device)?.recent(u64::from(WINDOW_US) * 1000);
        // An emulated device does not know which of them moved memory.
        rates.set(nvmlUtilization_t { gpu: percent(busy, u64::from(WINDOW_US) * 1000), memory: 0 })
    }

    fn nvmlDeviceGetEncoderUtilization
        | nvmlDeviceGetDecoderUtilization
        | nvmlDeviceGetJpgUtilization
        | nvmlDeviceGetOfaUtilization(device: Device, percent: Out<u32>, window_us: Out<u32>) {
        device.get()?;
        window_us.required()?;
        percent.set(0)?;
        window_us.set(WINDOW_US)
    }

    fn nvmlDeviceGetEncoderStats(device: Device, sessions: Out<u32>, fps: Out<u32>, latency: Out<u32>) {
        device.get()?;
        fps.required()?;
        latency.required()?;
        sessions.set(0)?;
        fps.set(0)?;
        latency.set(0)
    }

    fn nvmlDeviceGetFBCStats(device: Device, stats: Out<nvmlFBCStats_t>) {
        device.get()?;
        stats.set(nvmlFBCStats_t::default())
    }

    fn nvmlDeviceGetTemperature(device: Device, sensor: nvmlTemperatureSensors_t, temperature: Out<u32>) {
        let device = device.get()?;
        if sensor != NVML_TEMPERATURE_GPU {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        temperature.set(board(device.profile).temperatures[0])
    }

    fn nvmlDeviceGetTemperatureV(device: Device, temperature: Out<nvmlTemperature_t>) {
        let device = device.get()?;
        let mut asked = temperature.before()?;
        if asked.version != nvmlTemperature_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        if asked.sensorType != NVML_TEMPERATURE_GPU {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        asked.temperature = board(device.profile).temperatures[0] as i32;
        temperature.set(asked)
    }

    fn nvmlDeviceGetTemperatureThreshold(
        device: Device,
        threshold: nvmlTemperatureThresholds_t,
        temperature: Out<u32>,
    ) {
        let board = board(device.get()?.profile);
        let [_, slowdown, shutdown] = board.temperatures;
        temperature.set(match threshold {
            NVML_TEMPERATURE_THRESHOLD_SHUTDOWN => shutdown,
            NVML_TEMPERATURE_THRESHOLD_SLOWDOWN => slowdown,
            NVML_TEMPERATURE_THRESHOLD_GPU_MAX => board.temperature_max,
            _ => return Err(NVML_ERROR_NOT_SUPPORTED),
        })
    }

    fn nvmlDeviceGetPowerUsage(device: Device, milliwatts: Out<u32>) {
        milliwatts.set(board(device.get()?.profile).power_idle_mw)
    }

    fn nvmlDeviceGetEnforcedPowerLimit
        | nvmlDeviceGetPowerManagementLimit
        | nvmlDeviceGetPowerManagementDefaultLimit(device: Device, milliwatts: Out<u32>) {
        milliwatts.set(board(device.get()?.profile).power_limit_mw)
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(device: Device, least: Out<u32>, most: Out<u32>) {
        let board = board(device.get()?.profile);
        most.required()?;
        least.set(board.power_limit_min_mw)?;
        most.set(board.power_limit_mw)
    }

    fn nvmlDeviceGetPowerManagementMode(device: Device, mode: Out<nvmlEnableState_t>) {
        device.get()?;
        mode.set(NVML_FEATURE_ENABLED)
    }
}
