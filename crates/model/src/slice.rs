//! A slice: what is asked for, and what is held.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Compute, Isolation, MemoryAmount, Selector};

/// What to do where a limit cannot be enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Fail with a clear error.
    #[default]
    Strict,
    /// Go on, and count each bypass.
    BestEffort,
}

/// What a user asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRequest {
    /// A name of the user's choosing; the agent makes one up otherwise.
    #[serde(default)]
    pub name: Option<String>,
    /// Which device; any with room otherwise.
    #[serde(default)]
    pub device: Option<Selector>,
    /// How much memory; the whole device's otherwise.
    #[serde(default)]
    pub memory: Option<MemoryAmount>,
    /// How much compute; unlimited otherwise.
    #[serde(default)]
    pub compute: Option<Compute>,
    /// The rung of the isolation ladder.
    #[serde(default)]
    pub isolation: Isolation,
    /// What to do where a limit cannot be enforced.
    #[serde(default)]
    pub policy: Policy,
}

/// A process inside a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Process id as its own namespace's root sees it.
    pub pid: u32,
    /// The program's name.
    pub command: String,
    /// Device memory it holds.
    pub memory_used_bytes: Bytes,
}

/// A slice as it is shown and stored. Field names are those of the JSON output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRecord {
    /// The agent's id for it, unique on the host for the agent's run directory.
    pub id: String,
    /// The name it goes by.
    pub name: String,
    /// Who holds it, by user id.
    pub uid: u32,
    /// The device it is a share of.
    pub device_uuid: String,
    /// Its share of memory.
    pub memory_limit_bytes: Bytes,
    /// What its processes hold.
    pub memory_used_bytes: Bytes,
    /// Its share of compute, where one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<Compute>,
    /// The rung of the isolation ladder it stands on.
    pub isolation: Isolation,
    /// What happens where a limit cannot be enforced.
    pub policy: Policy,
    /// When it began, RFC 3339, UTC.
    pub created_at: String,
    /// Its processes that use the device.
    pub processes: Vec<ProcessRecord>,
}
