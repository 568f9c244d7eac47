//! What is said of compute on the agent's socket: who runs, who waits, and what each has had of its devices' time.

use divvy_model::{Cap, Class, Compute, Weight};
use serde::{Deserialize, Serialize};

use super::{Document, Items};

/// `GET /v1/compute`: a record for each slice and each of its devices.
pub type ComputeList = Document<Items<ComputeRecord>>;

/// Where a slice stands on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeStanding {
    /// It is alone on its devices without a hard cap: nobody counts what it uses.
    Open,
    /// It wants nothing.
    #[default]
    Idle,
    /// It waits its turn.
    Waiting,
    /// It wants to run, and its hard cap does not let it.
    Throttled,
    /// It holds a lease.
    Running,
    /// Its lease has expired with work in flight: others run beside it, and it pays on.
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
    /// Who holds it, by user id.
    pub uid: u32,
    /// The device.
    pub device_uuid: String,
    /// Where it stands.
    pub standing: ComputeStanding,
    /// The share that holds on the device: for a slice inside another, its part of that one's. None without a promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Compute>,
    /// Without a promise: its weight among those that have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// Whether it may have more.
    pub cap: Cap,
    /// Who goes first.
    pub class: Class,
    /// What it comes to while all slices of the device want it.
    pub effective: Compute,
    /// What it was leased of the last second; none while nobody counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_1s: Option<u32>,
    /// What it was leased of the last ten seconds; none while nobody counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_10s: Option<u32>,
    /// For how much of the last second its processes kept the device busy, as the driver tells; none where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_1s: Option<u32>,
    /// The same of the last ten seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_10s: Option<u32>,
    /// How much of the last second it waited, throttled or in its turn.
    pub queued_1s: u32,
    /// How much of the last ten seconds it waited.
    pub queued_10s: u32,
    /// How long it has been waiting now.
    pub waiting_ns: u64,
    /// Device time that it has to repay before its turn comes.
    pub debt_ns: u64,
    /// Device time that it was charged since the agent took it in.
    pub charged_ns: u64,
    /// Leases that it has had.
    pub leases: u64,
    /// Its typical kernel by its own word; 0 while not known.
    pub kernel_ns: u64,
    /// Work in flight by its own word.
    pub in_flight_ns: u64,
    /// Launches that its living processes counted.
    pub launched: u64,
    /// Leases that were outlasted by so much that others were told.
    pub overdue_total: u64,
    /// Leases that were outlasted by so much that the device went to others.
    pub expired_total: u64,
    /// Device time that the driver saw and nobody was charged for.
    pub escaped_ns: u64,
}
