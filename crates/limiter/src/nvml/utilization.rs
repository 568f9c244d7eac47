//! How busy the slice keeps its share of the device: the share counts as 100 %.

use std::time::{SystemTime, UNIX_EPOCH};

use divvy_abi::nvml::*;
use divvy_ledger::WHOLE_COMPUTE;
use divvy_ledger::attach::Observed;

use super::below::forward;
use super::outcome::{Result, code, done};
use super::slice;

/// The largest age of a process's own figure, in microseconds: the longest window of NVML's own figures.
const RECENT_US: u64 = 1_000_000;

/// Percent of the slice's compute share, from percent of the device.
fn of_share(percent: u32, slice: &Observed) -> u32 {
    let share = match slice.terms.compute.share {
        // No share was set: it may use all of the device.
        0 => WHOLE_COMPUTE,
        share => share.min(WHOLE_COMPUTE),
    };
    let scaled = u64::from(percent) * u64::from(WHOLE_COMPUTE) / u64::from(share);
    scaled.min(100) as u32
}

fn is_ours(slice: &Observed, pid: u32) -> bool {
    slice.processes.iter().any(|process| process.pid == pid)
}

/// The slice's processes' total use of the device in the last second, as far as the library below tells processes
/// apart.
fn own_rates(device: nvmlDevice_t, slice: &Observed) -> Result<nvmlUtilization_t> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = u64::try_from(now.as_micros())
        .unwrap_or(u64::MAX)
        .saturating_sub(RECENT_US);
    let mut count = 0;
    let ask = |samples, count| {
        // SAFETY: null, or space for as many samples as the count says.
        unsafe { forward::nvmlDeviceGetProcessUtilization(device, samples, count, since) }
    };
    match ask(core::ptr::null_mut(), &raw mut count) {
        NVML_SUCCESS | NVML_ERROR_INSUFFICIENT_SIZE if count > 0 => {}
        NVML_SUCCESS => return Err(NVML_ERROR_NOT_FOUND),
        refused => return Err(refused),
    }
    let mut samples = vec![nvmlProcessUtilizationSample_t::default(); count as usize];
    done(ask(samples.as_mut_ptr(), &raw mut count))?;
    samples.truncate(count as usize);
    // Of several samples of a process the newest one counts.
    samples.sort_by_key(|sample| (sample.pid, core::cmp::Reverse(sample.timeStamp)));
    samples.dedup_by_key(|sample| sample.pid);
    let ours = samples.iter().filter(|sample| is_ours(slice, sample.pid));
    Ok(
        ours.fold(nvmlUtilization_t::default(), |sum, sample| nvmlUtilization_t {
            gpu: sum.gpu.saturating_add(sample.smUtil),
            memory: sum.memory.saturating_add(sample.memUtil),
        }),
    )
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    rates: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    // SAFETY: the program's arguments.
    let answer = unsafe { forward::nvmlDeviceGetUtilizationRates(device, rates) };
    let Some(path) = slice::path() else { return answer };
    let rewrite = || -> Result {
        done(answer)?;
        let slice = slice::account_of(path, device)?;
        // SAFETY: the library below has just written there.
        let whole = unsafe { *rates };
        // If processes are not told apart, the device's figure is an upper bound of the slice's.
        let own = own_rates(device, &slice).unwrap_or(whole);
        let shown = nvmlUtilization_t {
            gpu: of_share(own.gpu, &slice),
            memory: of_share(own.memory, &slice),
        };
        // SAFETY: as above.
        unsafe { rates.write(shown) };
        Ok(())
    };
    code(rewrite())
}

/// Keeps the slice's entries of a list, in their order, and scales them. Returns how many there are.
fn keep_ours<T: Copy>(list: &mut [T], keep: impl Fn(&mut T) -> bool) -> usize {
    let mut kept = 0;
    for index in 0..list.len() {
        let mut entry = list[index];
        if keep(&mut entry) {
            list[kept] = entry;
            kept += 1;
        }
    }
    kept
}

/// # Safety
/// After a success `list` is null or holds `count` entries.
unsafe fn filter<T: Copy>(list: *mut T, count: &mut u32, keep: impl Fn(&mut T) -> bool) -> Result {
    if list.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let entries = unsafe { core::slice::from_raw_parts_mut(list, *count as usize) };
    *count = keep_ours(entries, keep) as u32;
    if *count == 0 {
        Err(NVML_ERROR_NOT_FOUND)
    } else {
        Ok(())
    }
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut u32,
    since: u64,
) -> nvmlReturn_t {
    // SAFETY: the program's arguments.
    let answer = unsafe { forward::nvmlDeviceGetProcessUtilization(device, samples, count, since) };
    let Some(path) = slice::path() else { return answer };
    let rewrite = || -> Result {
        done(answer)?;
        let slice = slice::account_of(path, device)?;
        let keep = |sample: &mut nvmlProcessUtilizationSample_t| {
            sample.smUtil = of_share(sample.smUtil, &slice);
            sample.memUtil = of_share(sample.memUtil, &slice);
            let is_ours = is_ours(&slice, sample.pid);
            sample.pid = slice::shown(sample.pid);
            is_ours
        };
        // SAFETY: the library below has just succeeded with these.
        unsafe { filter(samples, &mut *count, keep) }
    };
    code(rewrite())
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetProcessesUtilizationInfo(
    device: nvmlDevice_t,
    info: *mut nvmlProcessesUtilizationInfo_t,
) -> nvmlReturn_t {
    // SAFETY: the program's arguments.
    let answer = unsafe { forward::nvmlDeviceGetProcessesUtilizationInfo(device, info) };
    let Some(path) = slice::path() else { return answer };
    let rewrite = || -> Result {
        done(answer)?;
        let slice = slice::account_of(path, device)?;
        let keep = |sample: &mut nvmlProcessUtilizationInfo_v1_t| {
            sample.smUtil = of_share(sample.smUtil, &slice);
            sample.memUtil = of_share(sample.memUtil, &slice);
            let is_ours = is_ours(&slice, sample.pid);
            sample.pid = slice::shown(sample.pid);
            is_ours
        };
        // SAFETY: the library below has just succeeded with it.
        let info = unsafe { &mut *info };
        // SAFETY: as above.
        unsafe { filter(info.procUtilArray, &mut info.processSamplesCount, keep) }
    };
    code(rewrite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_ledger::attach::ObservedProcess;
    use divvy_ledger::{ComputeTerms, Terms};

    fn slice(share: u32, pids: &[u32]) -> Observed {
        Observed {
            account: 0,
            accounts: 1,
            device_uuid: [0; 16],
            memory_limit_bytes: 0,
            memory_used_bytes: 0,
            terms: Terms {
                compute: ComputeTerms {
                    share,
                    ..ComputeTerms::default()
                },
                ..Terms::default()
            },
            processes: pids
                .iter()
                .map(|pid| ObservedProcess {
                    pid: *pid,
                    used_bytes: 0,
                })
                .collect(),
            observer_pid: 0,
        }
    }

    #[test]
    fn the_share_is_the_whole() {
        assert_eq!(of_share(30, &slice(3000, &[])), 100);
        assert_eq!(of_share(15, &slice(3000, &[])), 50);
        assert_eq!(of_share(60, &slice(3000, &[])), 100);
        assert_eq!(of_share(15, &slice(0, &[])), 15);
        assert_eq!(of_share(15, &slice(u32::MAX, &[])), 15);
    }

    #[test]
    fn other_processes_are_left_out() {
        let slice = slice(0, &[7, 9]);
        let mut list = [5, 7, 8, 9];
        assert_eq!(keep_ours(&mut list, |pid| is_ours(&slice, *pid)), 2);
        assert_eq!(list[..2], [7, 9]);
    }
}
