//! Which processes keep a device's engine busy, as NVML reports it: percentages over a window that ends now.

use divvy_abi::nvml::*;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Result;
use super::args::{Argument, Device, Out};
use crate::engine::usage::{EngineUsage, engine_usage};
use crate::inventory::DeviceFacts;
use crate::log;

/// The longest window that is remembered, in microseconds.
const LONGEST_US: u64 = 1_000_000;
/// The shortest window whose average means anything.
const SHORTEST_US: u64 = 10_000;

/// The engine time of all processes on a device.
pub fn engine(device: &DeviceFacts) -> Result<EngineUsage> {
    engine_usage(device.uuid).map_err(|why| {
        log::once(
            "nvml engine",
            format_args!(
                "cannot read the engine of the emulated device {}: {why}",
                device.uuid
            ),
        );
        NVML_ERROR_UNKNOWN
    })
}

/// Part of a window, rounded up: every process that computes is seen to.
pub fn percent(busy: u64, window: u64) -> u32 {
    u32::try_from((busy.min(window) * 100).div_ceil(window.max(1))).unwrap_or(100)
}

/// Process ids and percentages of the processes that computed since a time in microseconds; and the time now.
fn samples(device: &DeviceFacts, since_us: u64) -> Result<(u64, Vec<(u32, u32)>)> {
    let now_us = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64);
    let window = now_us.saturating_sub(since_us).clamp(SHORTEST_US, LONGEST_US) * 1000;
    let usage = engine(device)?;
    let part = |busy: u64| percent(busy, window);
    let all = usage.processes.iter();
    let all = all.map(|one| (one.pid, part(one.recent(usage.now_ns, window))));
    Ok((now_us, all.filter(|(_, part)| *part > 0).collect()))
}

nvml_entry! {
    fn nvmlDeviceGetProcessUtilization(
        device: Device,
        samples: Out<nvmlProcessUtilizationSample_t>,
        count: Out<u32>,
        since: u64,
    ) {
        let device = device.get()?;
        let room = count.before()?;
        let (now, found) = self::samples(device, since)?;
        count.set(found.len() as u32)?;
        if found.is_empty() {
            // What NVML says where no process was sampled since.
            return Err(NVML_ERROR_NOT_FOUND);
        }
        if samples.is_null() || found.len() as u64 > u64::from(room) {
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        for (index, (pid, part)) in found.into_iter().enumerate() {
            samples.set_at(index, nvmlProcessUtilizationSample_t {
                pid,
                timeStamp: now,
                smUtil: part,
                memUtil: 0,
                encUtil: 0,
                decUtil: 0,
            })?;
        }
        Ok(())
    }

    fn nvmlDeviceGetProcessesUtilizationInfo(device: Device, info: Out<nvmlProcessesUtilizationInfo_t>) {
        let device = device.get()?;
        let mut asked = info.before()?;
        if asked.version != nvmlProcessesUtilizationInfo_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let (now, found) = self::samples(device, asked.lastSeenTimeStamp)?;
        let room = asked.processSamplesCount;
        asked.processSamplesCount = found.len() as u32;
        let array = asked.procUtilArray;
        info.set(asked)?;
        if found.is_empty() {
            return Err(NVML_ERROR_NOT_FOUND);
        }
        if array.is_null() || found.len() as u64 > u64::from(room) {
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        // SAFETY: the program gave room for this many entries.
        let entries: Out<nvmlProcessUtilizationInfo_v1_t> = unsafe { Argument::from_raw(array) };
        for (index, (pid, part)) in found.into_iter().enumerate() {
            entries.set_at(index, nvmlProcessUtilizationInfo_v1_t {
                timeStamp: now,
                pid,
                smUtil: part,
                memUtil: 0,
                encUtil: 0,
                decUtil: 0,
                jpgUtil: 0,
                ofaUtil: 0,
            })?;
        }
        Ok(())
    }
}
