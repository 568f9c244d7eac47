//! The record of a slice that is admitted, as far as the request decides it.

use divvy_model::{Bytes, DeviceRecord, DeviceShare, SliceRecord, SliceRequest};

use crate::api::CreateSlice;
use crate::start::settings::Settings;

/// A record with all that was asked for and none of what is decided later.
#[must_use]
pub fn as_asked(ask: &CreateSlice) -> SliceRecord {
    SliceRecord {
        terms: ask.request.terms,
        command: ask.command.clone(),
        lasting: ask.lasting,
        job: ask.for_job.as_ref().map(|owner| owner.job.clone()),
        pods: match ask.lasting {
            true => ask.pods.clone(),
            false => Vec::new(),
        },
        ..SliceRecord::default()
    }
}

/// The share that a request gets of `device`, of `memory` bytes.
#[must_use]
pub fn share_of(
    settings: &Settings,
    request: &SliceRequest,
    device: &DeviceRecord,
    memory: Bytes,
) -> DeviceShare {
    DeviceShare {
        device_uuid: device.uuid.clone(),
        memory_limit_bytes: memory,
        context_bytes: match request.terms.whole {
            true => Bytes(0),
            false => settings.limits(device).context,
        },
        spill_limit_bytes: beyond(memory, request.oversubscribe_percent),
        ..DeviceShare::default()
    }
}

/// The bytes that may be allocated beyond `memory` where `percent` of it may be allocated in all.
fn beyond(memory: Bytes, percent: u32) -> Bytes {
    let more = u128::from(memory.0) * u128::from(percent.saturating_sub(100)) / 100;
    Bytes(u64::try_from(more).unwrap_or(u64::MAX))
}
