//! What slices used, as it is kept after their end.

use divvy_model::{Bytes, SliceRecord};
use serde::{Deserialize, Serialize};

use super::{Document, Items};

/// `GET /v1/history`: the newest slices that have ended, oldest first.
pub type HistoryList = Document<Items<HistoryRecord>>;

/// A slice that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryRecord {
    /// Its id.
    pub slice_id: String,
    /// Its name.
    pub slice: String,
    /// Its user's id.
    pub uid: u32,
    /// For whose quota it counted, by user id, where that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account_uid: Option<u32>,
    /// When it began, RFC 3339, UTC.
    pub created_at: String,
    /// When it ended.
    pub ended_at: String,
    /// The program that it was made for, with its first arguments; for its user, the agent's own user and root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Nanoseconds of its devices' time that it had, where that was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_time_ns: Option<u64>,
    /// Its memory on each of its devices.
    pub devices: Vec<UsedShare>,
}

/// What a slice used of a device's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedShare {
    /// The device.
    pub device_uuid: String,
    /// What it might use, at its end.
    pub memory_limit_bytes: Bytes,
    /// The most that its processes held at once.
    pub memory_peak_bytes: Bytes,
    /// How many allocations were refused because they did not fit.
    #[serde(default)]
    pub refused_allocations: u64,
}

impl HistoryRecord {
    /// The record of a slice that ends at `ended_at`, as it is shown last.
    #[must_use]
    pub fn of(slice: &SliceRecord, device_time_ns: Option<u64>, ended_at: String) -> Self {
        /// The words of a command that are kept, and the bytes of each.
        const WORDS: usize = 8;
        const BYTES: usize = 64;
        let cut = |word: &String| word.chars().take(BYTES).collect();
        let share = |share: &divvy_model::DeviceShare| UsedShare {
            device_uuid: share.device_uuid.clone(),
            memory_limit_bytes: share.memory_limit_bytes,
            memory_peak_bytes: share.memory_peak_bytes,
            refused_allocations: share.refused_allocations,
        };
        Self {
            slice_id: slice.id.clone(),
            slice: slice.name.clone(),
            uid: slice.uid,
            account_uid: slice.account_uid,
            created_at: slice.created_at.clone(),
            ended_at,
            command: slice.command.iter().take(WORDS).map(cut).collect(),
            device_time_ns,
            devices: slice.shares.iter().map(share).collect(),
        }
    }
}
