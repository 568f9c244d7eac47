//! The events on the agent's host, as a stream of lines of JSON.

use serde::{Deserialize, Serialize};

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An agent began to serve.
    AgentStarted,
    /// A slice was taken over from an agent that ended.
    SliceAdopted,
    /// A slice was admitted.
    SliceCreated,
    /// A slice's memory or compute was changed.
    SliceResized,
    /// A slice has ended.
    SliceEnded,
    /// A slice's time to live is over: its programs are ended.
    SliceExpired,
    /// What ended slices used cannot be kept: records are dropped until writing works again.
    HistoryDropped,
    /// The agent has read its settings again, or could not.
    SettingsReloaded,
    /// A slice's work is in flight though its lease has ended: others wait for it.
    Overdue,
    /// The device went to others though a slice's work is still in flight: its time is still charged.
    Expired,
    /// No work of an expired lease is in flight any more.
    Recovered,
    /// A slice's processes use the device without being charged for it.
    #[serde(alias = "escaped")]
    Uncharged,
    /// Allocations of a slice's processes were refused because they did not fit into it.
    Oom,
    /// A device's slices page their memory to and fro: leases are longer until they no longer do.
    Thrashing,
    /// A device's slices no longer page to and fro.
    Settled,
    /// A process uses a device past the limiter; under the strict policy it is ended.
    Bypassed,
    /// A container's program was refused: no limiter would hold it to its slice.
    Refused,
    /// NVIDIA's driver does not answer.
    DriverSilent,
    /// NVIDIA's driver answers again.
    DriverAnswers,
    /// A supervised slice held more memory than its limit: processes of it were ended.
    OveruseEnded,
    /// A supervised slice holds more than its limit, or has more than its share; it is only reported, or cannot be
    /// acted upon.
    OveruseReported,
    /// The processes of a supervised slice were stopped, because it took more than it has.
    Frozen,
    /// The processes of a frozen slice go on.
    Thawed,
}

impl EventKind {
    /// The word used in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AgentStarted => "agent_started",
            Self::SliceAdopted => "slice_adopted",
            Self::SliceCreated => "slice_created",
            Self::SliceResized => "slice_resized",
            Self::SliceEnded => "slice_ended",
            Self::SliceExpired => "slice_expired",
            Self::HistoryDropped => "history_dropped",
            Self::SettingsReloaded => "settings_reloaded",
            Self::Overdue => "overdue",
            Self::Expired => "expired",
            Self::Recovered => "recovered",
            Self::Uncharged => "uncharged",
            Self::Oom => "oom",
            Self::Thrashing => "thrashing",
            Self::Settled => "settled",
            Self::Bypassed => "bypassed",
            Self::Refused => "refused",
            Self::DriverSilent => "driver_silent",
            Self::DriverAnswers => "driver_answers",
            Self::OveruseEnded => "overuse_ended",
            Self::OveruseReported => "overuse_reported",
            Self::Frozen => "frozen",
            Self::Thawed => "thawed",
        }
    }
}

/// A line of `GET /v1/events`.
///
/// `?since=N` begins after the event of that number, as far back as the agent remembers. Without it the stream begins
/// with the oldest remembered event. `?follow=false` ends the answer with the last known event instead of waiting for
/// the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Its number, from 1; the next agent counts on.
    pub number: u64,
    /// The time: RFC 3339, UTC.
    pub at: String,
    /// The kind of event.
    pub kind: EventKind,
    /// The slice's id, for an event about a slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_id: Option<String>,
    /// The slice's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// The device, for an event about a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_uuid: Option<String>,
    /// The `divvy run` in which it happened, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_pid: Option<u32>,
    /// The event in words.
    pub message: String,
}
