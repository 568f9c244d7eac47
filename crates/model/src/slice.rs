//! A slice: what is asked for, and what is held.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::terms::is_default;
use crate::{Bytes, Code, Fault, MemoryAmount, Selector, SliceTerms};

/// What a user asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRequest {
    /// A name of the user's choosing; the agent makes one up otherwise.
    #[serde(default)]
    pub name: Option<String>,
    /// Which device; by default any with enough free memory.
    #[serde(default)]
    pub device: Option<Selector>,
    /// Further devices, in order, each with as much memory as the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_devices: Vec<Selector>,
    /// How much memory; the whole device's otherwise.
    #[serde(default)]
    pub memory: Option<MemoryAmount>,
    /// What may be allocated in all, in parts per 100 of the memory: 200 is twice, the half of it in managed memory
    /// that the host backs. 100 by default.
    #[serde(default = "hundred")]
    pub oversubscribe_percent: u32,
    /// The caller asked for no isolation level: the agent chooses, and the level in the terms is the least.
    #[serde(default, skip_serializing_if = "crate::terms::is_default")]
    pub isolation_unasked: bool,
    /// Everything else.
    #[serde(flatten)]
    pub terms: SliceTerms,
}

impl SliceRequest {
    /// The devices asked for, in order; none where any will do.
    pub fn selectors(&self) -> impl Iterator<Item = &Selector> {
        self.device.iter().chain(&self.more_devices)
    }

    /// Sets the devices asked for, in order.
    pub fn select(&mut self, devices: Vec<Selector>) {
        let mut devices = devices.into_iter();
        self.device = devices.next();
        self.more_devices = devices.collect();
    }
}

impl Default for SliceRequest {
    fn default() -> Self {
        Self {
            name: None,
            device: None,
            more_devices: Vec::new(),
            memory: None,
            oversubscribe_percent: hundred(),
            isolation_unasked: false,
            terms: SliceTerms::default(),
        }
    }
}

fn hundred() -> u32 {
    100
}

/// Where a slice stands in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SliceState {
    /// Admitted; its page server has not taken the pages yet.
    #[default]
    Starting,
    /// Its page server lives.
    Running,
    /// Its page server is gone, processes that use the device are not.
    Orphaned,
    /// A lasting slice in which nothing runs.
    Idle,
}

impl SliceState {
    /// The word used in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Orphaned => "orphaned",
            Self::Idle => "idle",
        }
    }
}

/// What is out of the ordinary about a slice, for tables and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// It was resized below what it holds: it gets nothing more until that fits.
    OverLimit,
    /// The device says that its processes hold more than they account for.
    Overuse,
    /// A process of it waits for memory.
    Waiting,
    /// Kernels run while much of its memory lies beyond its share.
    Thrashing,
    /// Its work goes on though its lease of the device has long ended.
    Overstays,
    /// Its processes use the device without being charged for it.
    #[serde(alias = "escapes")]
    Uncharged,
    /// Some of what it has allocated lies beyond its share, in managed memory that the host backs.
    Spilled,
    /// The driver of a device of it does not answer: what the device says of it is old.
    DriverSilent,
    /// Its processes are stopped until the time that they took beyond its share is paid back.
    Frozen,
}

impl Condition {
    /// The words used in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OverLimit => "over limit",
            Self::Overuse => "overuse",
            Self::Waiting => "waiting",
            Self::Thrashing => "thrashing",
            Self::Overstays => "overstays",
            Self::Uncharged => "uncharged",
            Self::Spilled => "spilled",
            Self::DriverSilent => "driver silent",
            Self::Frozen => "frozen",
        }
    }
}

/// A `divvy run` that joined a lasting slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Its process id.
    pub pid: u32,
    /// When the process began, in the kernel's ticks since boot: with it, the number means one process for ever.
    pub start_ticks: u64,
    /// The program it runs, with its arguments.
    pub command: Vec<String>,
}

/// The job of a workload manager that a lasting slice was made for. Root or the agent's own user makes it for the job's user,
/// who joins it and ends programs in it, and changes nothing else about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The manager's name: `slurm`.
    pub manager: String,
    /// The job's number there.
    pub id: String,
    /// The manager's name of this node; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// How often the job had been requeued when the slice was made.
    #[serde(default, skip_serializing_if = "crate::terms::is_default")]
    pub restarts: u32,
}

/// What a lasting slice goes with: when it is gone, and nothing runs in the slice any more, the agent deletes that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LifetimeAnchor {
    /// A process, such as a container's first.
    Process {
        /// Its process id.
        pid: u32,
        /// When it began, in the kernel's ticks since boot.
        start_ticks: u64,
    },
    /// A file or folder, such as the one that an engine keeps of a container until that is removed.
    Path(PathBuf),
    /// The containers that have the slice: the last of them, or the time by which the first must have come.
    Containers {
        /// The time, in seconds since 1970.
        until_unix_s: u64,
        /// Whether one has come.
        taken: bool,
    },
}

/// In the place of a namespace's name: pods of every namespace, and containers that are in no pod.
pub const ANY_POD: &str = "*";

/// A process inside a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Process id as its own namespace's root sees it.
    pub pid: u32,
    /// The program's name.
    pub command: String,
    /// Device memory it holds.
    pub memory_used_bytes: Bytes,
    /// What it holds beyond the share, in managed memory that the host backs.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub memory_spilled_bytes: Bytes,
}

/// A process that uses a device outside any slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmanagedRecord {
    /// Process id.
    pub pid: u32,
    /// The program's name.
    pub command: String,
    /// Its user, where the process can be looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The device it uses.
    pub device_uuid: String,
    /// Device memory it holds, where the driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<Bytes>,
}

/// A slice's share of one of its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceShare {
    /// The device it is a share of.
    pub device_uuid: String,
    /// The slice's share of the device's memory.
    pub memory_limit_bytes: Bytes,
    /// What the slice's processes hold of it: device memory.
    pub memory_used_bytes: Bytes,
    /// The most that they held of it at once. What an allocation reserved for a moment and gave back counts.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub memory_peak_bytes: Bytes,
    /// How many allocations were refused because they did not fit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused_allocations: u64,
    /// What one context of a program costs on the device, inside the limit.
    #[serde(default)]
    pub context_bytes: Bytes,
    /// What the driver holds there for the slice's processes that no call showed: so much less of the limit is left.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub memory_overhead_bytes: Bytes,
    /// What slices nested in it take of its limit there.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub memory_lent_bytes: Bytes,
    /// What may be allocated beyond the limit, in managed memory that the host backs.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub spill_limit_bytes: Bytes,
    /// What is allocated there beyond the limit: the host's memory, not the device's, and not in what is used.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub memory_spilled_bytes: Bytes,
}

impl DeviceShare {
    /// What its page is to say: its limit less what is lent to slices nested in the slice.
    #[must_use]
    pub fn granted(&self) -> Bytes {
        Bytes(self.memory_limit_bytes.0.saturating_sub(self.memory_lent_bytes.0))
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A slice's share of each of its devices, in the order in which its programs see them. It has one device at least.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenShares", into = "WrittenShares")]
pub struct Shares {
    /// The share of its first device.
    pub first: DeviceShare,
    /// The shares of its further devices.
    pub further: Vec<DeviceShare>,
}

/// [`Shares`] in JSON: the first one's fields stand beside the list of all.
#[derive(Clone, Serialize, Deserialize)]
struct WrittenShares {
    #[serde(flatten)]
    first: DeviceShare,
    /// Its share of each of its devices, the first one's included; none in records of a version that had one only.
    #[serde(default)]
    devices: Vec<DeviceShare>,
}

impl From<WrittenShares> for Shares {
    fn from(written: WrittenShares) -> Self {
        Self {
            first: written.first,
            further: written.devices.into_iter().skip(1).collect(),
        }
    }
}

impl From<Shares> for WrittenShares {
    fn from(shares: Shares) -> Self {
        Self {
            first: shares.first.clone(),
            devices: shares.iter().cloned().collect(),
        }
    }
}

impl Shares {
    /// All of them, in order; [`None`] where there are none.
    #[must_use]
    pub fn of(shares: impl IntoIterator<Item = DeviceShare>) -> Option<Self> {
        let mut shares = shares.into_iter();
        Some(Self {
            first: shares.next()?,
            further: shares.collect(),
        })
    }

    /// Each of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &DeviceShare> {
        std::iter::once(&self.first).chain(&self.further)
    }

    /// Each of them, in order, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut DeviceShare> {
        std::iter::once(&mut self.first).chain(&mut self.further)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        1 + self.further.len()
    }

    /// Which of the devices this is, if there is a share of it.
    #[must_use]
    pub fn place_of(&self, device_uuid: &str) -> Option<usize> {
        self.iter().position(|share| share.device_uuid == device_uuid)
    }

    /// The share of this device, if there is one.
    #[must_use]
    pub fn on(&self, device_uuid: &str) -> Option<&DeviceShare> {
        self.iter().find(|share| share.device_uuid == device_uuid)
    }
}

/// A slice as it is shown and stored. Field names are those of the JSON output. The device and the memory beside its other
/// fields are those of its first device; `devices` has all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRecord {
    /// The agent's id for it, unique on the host for the agent's run directory.
    pub id: String,
    /// The name it goes by.
    pub name: String,
    /// Who holds it, by user id.
    pub uid: u32,
    /// For whose quota and debts it counts, by user id, where that is another than who holds it: /etc/subuid gives the holder's
    /// number to that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account_uid: Option<u32>,
    /// Its share of each of its devices.
    #[serde(flatten)]
    pub shares: Shares,
    /// The terms it is held by.
    #[serde(flatten)]
    pub terms: SliceTerms,
    /// Under MPS, where multiprocessors are set apart for it: the partition's name, once it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_partition: Option<String>,
    /// When it began, RFC 3339, UTC.
    pub created_at: String,
    /// When its time to live is over, in seconds since 1970, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_s: Option<u64>,
    /// Where it stands in its life.
    #[serde(default)]
    pub state: SliceState,
    /// On an emulated device: the specification under which its driver shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated_spec: Option<String>,
    /// The program it was made for, with its arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// Process id of its page server, the `divvy run` that hands its pages to new processes.
    #[serde(default, alias = "keeper_pid", skip_serializing_if = "Option::is_none")]
    pub page_server_pid: Option<u32>,
    /// When the page server began, in the kernel's ticks since boot: its id may come to mean another process. 0: not
    /// known.
    #[serde(default, alias = "keeper_start_ticks", skip_serializing_if = "is_default")]
    pub page_server_start_ticks: u64,
    /// Under the `enforced` isolation level: the process that starts a worker for each of its programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerRecord>,
    /// Whether it stays while nothing runs in it, as `divvy slice create` makes them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lasting: bool,
    /// What it goes with, where it does not stay until it is deleted: a container.
    #[serde(default, alias = "attendant", skip_serializing_if = "Option::is_none")]
    pub lifetime_anchor: Option<LifetimeAnchor>,
    /// Which pods and containers may join it by naming it in an annotation: the namespaces of pods, or `*` for all of them
    /// and for containers that are in no pod. None may where this is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// The `divvy run`s that joined it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunRecord>,
    /// The job it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobRecord>,
    /// The slice it is nested in: its memory comes out of that one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// What is out of the ordinary, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// What was asked for and is not enforced: under the best-effort policy, or of compute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bypasses: Vec<String>,
    /// What is wrong with it, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Why what it holds is not known, where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Fault>,
    /// Its pages are missing or damaged: what it holds is not known, and counted as all it may hold.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub usage_unknown: bool,
    /// Bytes that its workers copied between the memory of its programs and its devices', by the path that they took.
    /// Absent where there were none.
    #[serde(default, skip_serializing_if = "CopiedRecord::is_none")]
    pub copied: CopiedRecord,
    /// Its processes that use its devices, with what each holds of them together.
    pub processes: Vec<ProcessRecord>,
    /// The containers that these processes are in, as the command finds out: the agent knows of none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerRecord>,
}

/// Copies of programs without a device, in bytes by the path that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedRecord {
    /// In messages: four copies of each byte.
    #[serde(default)]
    pub message_bytes: Bytes,
    /// Through memory that program and worker share: two copies.
    #[serde(default)]
    pub staged_bytes: Bytes,
    /// From memory of the program that is shared: one copy.
    #[serde(default)]
    pub shared_bytes: Bytes,
    /// From such memory that is pinned: none.
    #[serde(default)]
    pub pinned_bytes: Bytes,
}

impl CopiedRecord {
    /// Whether nothing was copied.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Each path: its name, its bytes, and how often a processor copies a byte on it.
    #[must_use]
    pub fn by_path(&self) -> [(&'static str, Bytes, u32); 4] {
        [
            ("message", self.message_bytes, 4),
            ("staged", self.staged_bytes, 2),
            ("shared", self.shared_bytes, 1),
            ("pinned", self.pinned_bytes, 0),
        ]
    }

    /// How often a processor copied each byte, on average; 0 where there were none.
    #[must_use]
    pub fn copies_per_byte(&self) -> f64 {
        let (mut bytes, mut copies) = (0.0, 0.0);
        for (_, Bytes(on_path), each) in self.by_path() {
            bytes += on_path as f64;
            copies += on_path as f64 * f64::from(each);
        }
        if bytes == 0.0 { 0.0 } else { copies / bytes }
    }
}

/// The process that starts the workers of a slice's programs. The workers have the device; the programs have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// The user of the workers, who is no other slice's.
    pub uid: u32,
    /// Process id; 0 before it was started.
    #[serde(default)]
    pub pid: u32,
    /// When it began, in the kernel's ticks since boot.
    #[serde(default)]
    pub start_ticks: u64,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// `podman`, `docker`, `containerd` or `cri-o`.
    pub engine: String,
    /// Its id, 64 hexadecimal digits.
    pub id: String,
    /// Its name, where the engine tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl SliceRecord {
    /// The user that gets its pages and its device: that of its workers where it has some, else its own.
    #[must_use]
    pub fn device_uid(&self) -> u32 {
        self.worker.as_ref().map_or(self.uid, |worker| worker.uid)
    }

    /// The user whose quota and debts it counts for.
    #[must_use]
    pub fn account(&self) -> u32 {
        self.account_uid.unwrap_or(self.uid)
    }

    /// The user that may resize it, delete it and choose what it goes with: for a job's slice the agent's, `agent`.
    #[must_use]
    pub fn changed_by(&self, agent: u32) -> u32 {
        if self.job.is_some() { agent } else { self.uid }
    }

    /// Refuses what only a lasting slice can have done to it, with a hint at what to do instead.
    ///
    /// # Errors
    /// [`Code::NotLasting`].
    pub fn require_lasting(&self, hint: &str) -> Result<(), Fault> {
        if self.lasting {
            return Ok(());
        }
        let message = format!("slice `{}` belongs to one `divvy run`", self.name);
        Err(Fault::new(Code::NotLasting, message).hint(hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a version stored it that knew of one device only.
    const OLD: &str = r#"{"id": "0123abcd", "name": "old", "uid": 1000, "device_uuid": "GPU-1a2b",
        "memory_limit_bytes": 4096, "memory_used_bytes": 512, "isolation": "cooperative", "policy": "strict",
        "created_at": "2026-01-01T00:00:00Z", "memory_lent_bytes": 1024, "processes": []}"#;

    #[test]
    fn a_record_with_the_former_names_of_fields_is_understood() {
        let mut stored: serde_json::Value = serde_json::from_str(OLD).expect("a document");
        stored["keeper_pid"] = 7.into();
        stored["keeper_start_ticks"] = 42.into();
        stored["attendant"] = serde_json::json!({ "path": "/x" });
        let record: SliceRecord = serde_json::from_value(stored).expect("understood");
        assert_eq!(
            (record.page_server_pid, record.page_server_start_ticks),
            (Some(7), 42)
        );
        let stored = serde_json::to_value(&record).expect("written");
        assert_eq!(
            (&stored["page_server_pid"], &stored["page_server_start_ticks"]),
            (&7.into(), &42.into())
        );
        assert!(stored.get("keeper_pid").is_none());
        assert_eq!(record.lifetime_anchor, Some(LifetimeAnchor::Path("/x".into())));
        assert!(stored.get("lifetime_anchor").is_some() && stored.get("attendant").is_none());
    }

    #[test]
    fn a_record_of_one_device_is_understood_and_keeps_its_fields() {
        let mut record: SliceRecord = serde_json::from_str(OLD).expect("understood");
        assert_eq!(record.shares.count(), 1);
        assert_eq!(record.shares.first.granted(), Bytes(3072));
        let mut further = record.shares.first.clone();
        further.device_uuid = "GPU-3c".into();
        record.shares.further.push(further);
        let place_of = |uuid| record.shares.place_of(uuid);
        assert_eq!((place_of("GPU-1a2b"), place_of("GPU-3c")), (Some(0), Some(1)));
        assert_eq!(place_of("GPU-5e"), None);
        let stored = serde_json::to_value(&record).expect("written");
        assert_eq!(
            (&stored["device_uuid"], &stored["memory_limit_bytes"]),
            (&"GPU-1a2b".into(), &4096.into())
        );
        assert_eq!(stored["devices"].as_array().expect("devices").len(), 2);
        assert_eq!(
            serde_json::from_value::<SliceRecord>(stored)
                .expect("read")
                .shares,
            record.shares
        );
    }
}
