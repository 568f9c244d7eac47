//! Event sets: an emulated device has no events, so that a wait for one ends with its time.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use divvy_abi::nvml::*;

use super::args::{Device, Out};
use super::{Result, state};

/// The next set: a number that is never used twice and looks like an aligned pointer.
static NEXT: AtomicU64 = AtomicU64::new(0xd1d1_0010);

static SETS: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

fn known(set: nvmlEventSet_t) -> Result {
    let sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    if sets.contains(&(set as u64)) {
        Ok(())
    } else {
        Err(NVML_ERROR_INVALID_ARGUMENT)
    }
}

fn wait(set: nvmlEventSet_t, timeout_ms: u32) -> Result {
    state::devices()?;
    known(set)?;
    std::thread::sleep(Duration::from_millis(timeout_ms.into()));
    Err(NVML_ERROR_TIMEOUT)
}

nvml_entry! {
    fn nvmlEventSetCreate(set: Out<nvmlEventSet_t>) {
        state::devices()?;
        set.required()?;
        let number = NEXT.fetch_add(16, Ordering::Relaxed);
        SETS.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
        set.set(number as nvmlEventSet_t)
    }

    fn nvmlEventSetFree(set: nvmlEventSet_t) {
        state::devices()?;
        known(set)?;
        SETS.lock().unwrap_or_else(PoisonError::into_inner).remove(&(set as u64));
        Ok(())
    }

    fn nvmlEventSetWait | nvmlEventSetWait_v2(set: nvmlEventSet_t, _data: Out<nvmlEventData_t>, timeout_ms: u32) {
        wait(set, timeout_ms)
    }

    fn nvmlDeviceGetSupportedEventTypes(device: Device, types: Out<u64>) {
        device.get()?;
        types.set(0)
    }
}
