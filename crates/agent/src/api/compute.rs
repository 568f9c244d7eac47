//! The compute part of the API: which slices run, which wait, and how much device time each has had.

use divvy_model::{Cap, Class, Compute, Weight};
use serde::{Deserialize, Serialize};

use super::{Document, Items};

/// `GET /v1/compute`: a record for each slice and each of its devices.
pub type ComputeList = Document<Items<ComputeRecord>>;

/// The state of a slice on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeStanding {
    /// It is alone on its devices without a hard cap: its use is not counted.
    Open,
    /// It has no work.
    #[default]
    Idle,
    /// It waits its turn.
    Waiting,
    /// It wants to run, and its hard cap does not let it.
    Throttled,
    /// It holds a lease.
    Running,
    /// Its lease has expired with work in flight: others run beside it, and the time is still charged.
    Stuck,
}

impl ComputeStanding {
    /// The word used in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Idle => "idle",
            Self::Waiting => "waiting",
            Self::Throttled => "throttled",
            Self::Running => "running",
            Self::Stuck => "stuck",
        }
    }
}

/// A slice on one of its devices. Parts are of 10,000; times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeRecord {
    /// The slice's id.
    pub slice_id: String,
    /// The slice's name.
    pub slice: String,
    /// Its user's id.
    pub uid: u32,
    /// The device.
    pub device_uuid: String,
    /// Its state.
    pub standing: ComputeStanding,
    /// The share on the device that is in force; for a nested slice, its part of its parent's. None without a promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Compute>,
    /// For a slice without a promise: its weight among the others of that kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// Whether it may use more than its share.
    pub cap: Cap,
    /// Its class: which slices go first.
    pub class: Class,
    /// Its part while all slices of the device want it.
    pub effective: Compute,
    /// The leased part of the last second; none while its use is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_1s: Option<u32>,
    /// The leased part of the last ten seconds; none while its use is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_10s: Option<u32>,
    /// The part of the last second in which its processes kept the device busy, by the driver; none where it does not
    /// tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_1s: Option<u32>,
    /// The same of the last ten seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_10s: Option<u32>,
    /// The part of the last second in which it waited, throttled or for its turn.
    pub queued_1s: u32,
    /// The part of the last ten seconds in which it waited.
    pub queued_10s: u32,
    /// Its present waiting time.
    pub waiting_ns: u64,
    /// Device time that it must repay before its next turn.
    pub debt_ns: u64,
    /// Device time that it was charged since the agent took it in.
    pub charged_ns: u64,
    /// The number of its leases.
    pub leases: u64,
    /// Its typical kernel by its own report; 0 while not known.
    pub kernel_ns: u64,
    /// Work in flight by its own report.
    pub in_flight_ns: u64,
    /// The number of launches of its living processes.
    pub launched: u64,
    /// Leases that were outlasted by so much that others were told.
    pub overdue_total: u64,
    /// Leases that were outlasted by so much that the device went to others.
    pub expired_total: u64,
    /// Device time that the driver saw and no slice was charged for.
    #[serde(alias = "escaped_ns")]
    pub uncharged_ns: u64,
}
