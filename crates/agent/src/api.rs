//! The agent's HTTP API: the same JSON documents that `-o json` prints.

use std::collections::BTreeMap;
use std::path::PathBuf;

use divvy_model::{
    Cap, Class, Compute, ComputeTerms, DeviceRecord, Fault, JobRecord, MemoryAmount, SliceRecord,
    SliceRequest, UnmanagedRecord, Weight,
};
use serde::{Deserialize, Serialize};

pub mod compute;
pub mod events;
pub mod history;
pub(crate) mod viewer;

/// Version of every document. Changes within it only add.
pub const API_VERSION: &str = "divvy/v1";

/// A document: `{"apiVersion": …, "kind": …}` and its own fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document<T> {
    /// [`API_VERSION`].
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    /// The kind: `SliceList`, `Error` and so on.
    pub kind: String,
    /// The fields.
    #[serde(flatten)]
    pub body: T,
}

impl<T> Document<T> {
    /// A document of this version.
    pub fn new(kind: &str, body: T) -> Self {
        Self {
            api_version: API_VERSION.into(),
            kind: kind.into(),
            body,
        }
    }
}

/// A list of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Items<T> {
    /// The items.
    pub items: Vec<T>,
}

/// Shortens a command for lists and records: its first words, and a mark that more follow.
pub fn shorten(command: &mut Vec<String>) {
    /// In total.
    const BYTES: usize = 4 << 10;
    const WORDS: usize = 64;
    const MORE: &str = "…";
    let mut left = BYTES - MORE.len();
    let fits = command.iter().take(WORDS).take_while(|word| {
        let fits = word.len() <= left;
        left -= if fits { word.len() } else { 0 };
        fits
    });
    let whole = fits.count();
    if whole == command.len() {
        return;
    }
    // The first word that does not fit is cut.
    let part = command.get(whole).filter(|_| whole < WORDS).map_or("", |word| {
        let end = (0..=left).rev().find(|end| word.is_char_boundary(*end));
        &word[..end.unwrap_or(0)]
    });
    let last = format!("{part}{MORE}");
    command.truncate(whole.min(WORDS - 1));
    command.push(last);
}

/// `DeviceList`.
pub type DeviceList = Document<Items<DeviceRecord>>;
/// `SliceList`.
pub type SliceList = Document<SliceItems>;

/// The slices, and the processes that use the devices without one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SliceItems {
    /// The slices.
    pub items: Vec<SliceRecord>,
    /// The processes that use a device outside any slice.
    #[serde(default)]
    pub unmanaged: Vec<UnmanagedRecord>,
}
/// `Error`.
pub type ErrorDocument = Document<Fault>;

/// `POST /v1/slices`: asks for a slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
pub struct CreateSlice {
    /// The request.
    pub request: SliceRequest,
    /// The program that it is for, with its arguments, for lists.
    pub command: Vec<String>,
    /// The caller's specification of emulated devices, where it has one.
    #[serde(default)]
    pub emulated: Option<String>,
    /// The caller's CUDA_VISIBLE_DEVICES: no other device is taken.
    #[serde(default)]
    pub visible: Option<String>,
    /// The slice named in the caller's environment, by id.
    #[serde(default)]
    pub inside: Option<String>,
    /// A lasting slice: it stays while nothing runs in it, and a process of the agent's serves its pages.
    #[serde(default)]
    pub lasting: bool,
    /// For a lasting slice: it goes with the caller's process, until the caller sets another lifetime anchor.
    #[serde(default)]
    pub attended: bool,
    /// For a lasting slice: it goes with its containers, of which the first must come within so many milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_within_ms: Option<u64>,
    /// For a lasting slice: the pods and containers that may join it by an annotation, see [`SliceRecord::pods`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// For a lasting slice of root's or of the agent's own user: it belongs to a job's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_job: Option<ForJob>,
    /// A dry run: only report what would happen.
    #[serde(default)]
    pub dry_run: bool,
}

/// A job, and its user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForJob {
    /// The user whose slice it is: names, quotas and pages are that user's.
    pub uid: u32,
    /// The job.
    #[serde(flatten)]
    pub job: JobRecord,
}

/// The answer: a slice that waits for its page server, or one that was joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreatedSlice {
    /// The slice.
    pub slice: SliceRecord,
    /// Its device, or the first of several.
    pub device: DeviceRecord,
    /// All its devices, in order.
    #[serde(default)]
    pub devices: Vec<DeviceRecord>,
    /// The slice's directory, where its page server binds `attach.sock`.
    pub directory: PathBuf,
    /// The slice has a page server already: the caller only runs its program in it.
    #[serde(default)]
    pub joined: bool,
}

/// `POST /v1/slices/{slice}/join`: a `divvy run` puts its program into a lasting slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The program, with its arguments, for lists.
    pub command: Vec<String>,
    /// The slice named in the caller's environment, by id.
    #[serde(default)]
    pub inside: Option<String>,
    /// For a job's slice: what joins is the job's step around the caller, the nearest process above that is a
    /// `slurmstepd` of root's. All that runs below it is in the slice.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub step: bool,
    /// A dry run: only report what would happen.
    #[serde(default)]
    pub dry_run: bool,
}

/// `POST /v1/slices/{slice}/attend`: sets the lifetime anchor with which a lasting slice goes from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attend {
    /// A process, by its number in the agent's pid namespace.
    Process(u32),
    /// A file or folder: for the agent's own user and root only.
    Path(PathBuf),
}

/// `POST /v1/slices/{slice}/share`: prepares the files of a lasting slice for containers. The answer is
/// [`crate::life::container::Parts`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The limiter's folder in the containers.
    pub lib: String,
    /// Libraries of the image's own that every program in it loads first.
    #[serde(default)]
    pub preloads: Vec<String>,
}

/// `POST /v1/slices/{slice}/described`: names a file outside the run directory that describes the slice to container
/// engines, and is removed with the slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// The file, by its absolute path.
    pub file: PathBuf,
}

/// `POST /v1/devices/share`: prepares the files of emulated devices for containers without a slice. The answer is
/// [`crate::life::container::SharedDevices`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareDevices {
    /// The name of the container's folder.
    pub name: String,
    /// The specification under which the devices are found.
    pub spec: String,
    /// The devices.
    pub uuids: Vec<String>,
}

/// `POST /v1/queue`: queues for a slice. The answer comes when the slice is there, when the place changes, or after
/// some seconds. A caller that still waits asks again with its ticket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The request for the slice.
    pub ask: CreateSlice,
    /// The caller's ticket, from the last answer.
    #[serde(default)]
    pub ticket: Option<String>,
    /// The last known place: the answer waits until it changes.
    #[serde(default)]
    pub told: Option<(u32, u32)>,
    /// How long the answer may take, in milliseconds. Its name on the wire is that of earlier versions, whose clients and
    /// agents are understood.
    #[serde(default, rename = "patience_ms")]
    pub timeout_ms: u64,
}

/// The answer: the place in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// The ticket for the next request.
    pub ticket: String,
    /// The place, from 1; 0 for a request that was served.
    pub place: u32,
    /// The number of requests in the same queue.
    pub count: u32,
    /// The reason why it waits.
    #[serde(default)]
    pub why: Option<Fault>,
    /// The slice, for a request that was served.
    #[serde(default)]
    pub created: Option<CreatedSlice>,
}

impl Standing {
    /// The answer to a request that was served.
    #[must_use]
    pub fn admitted(created: CreatedSlice) -> Self {
        Self {
            ticket: String::new(),
            place: 0,
            count: 0,
            why: None,
            created: Some(created),
        }
    }
}

/// `PATCH /v1/slices/{slice}`: changes a live slice. Omitted fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// Its new share of memory.
    #[serde(default)]
    pub memory: Option<MemoryAmount>,
    /// Its new share of compute, in place of a weight.
    #[serde(default)]
    pub compute: Option<Compute>,
    /// Its new weight, in place of a share.
    #[serde(default)]
    pub weight: Option<Weight>,
    /// Whether its share becomes a hard cap too.
    #[serde(default)]
    pub cap: Option<Cap>,
    /// Its new class.
    #[serde(default)]
    pub class: Option<Class>,
    /// A dry run: only report what would happen.
    #[serde(default)]
    pub dry_run: bool,
}

impl Resize {
    /// The requested changes, applied to the present terms.
    #[must_use]
    pub fn compute_terms(&self, before: ComputeTerms) -> ComputeTerms {
        let (share, weight) = match (self.compute, self.weight) {
            (None, None) => (before.share, before.weight),
            asked => asked,
        };
        ComputeTerms {
            share,
            weight,
            cap: self.cap.unwrap_or(before.cap),
            class: self.class.unwrap_or(before.class),
        }
    }
}

/// `POST /v1/slices/{slice}/kill`: signals a slice's processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kill {
    /// A signal's number.
    pub signal: i32,
    /// A dry run: only report which processes would get it.
    #[serde(default)]
    pub dry_run: bool,
}

/// The answer: the processes that got the signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Killed {
    /// The slice.
    pub slice: SliceRecord,
    /// Process ids, parents first.
    pub pids: Vec<u32>,
}

/// `GET /v1/status`: the agent itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Divvy's version.
    pub version: String,
    /// The agent's process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its run directory.
    pub run_dir: PathBuf,
    /// When it started, RFC 3339, UTC.
    pub started_at: String,
    /// The number of its slices.
    pub slice_count: u32,
    /// The number of requested limits that were not enforced, since it started.
    pub bypass_total: u64,
    /// Leases that were outlasted by so much that others were told, since it started.
    #[serde(default)]
    pub overdue_total: u64,
    /// Leases that were outlasted by so much that the device went to others, since it started.
    #[serde(default)]
    pub expired_total: u64,
    /// Nanoseconds for which slices used devices and were not charged, since it started.
    #[serde(default, alias = "escaped_ns_total")]
    pub uncharged_ns_total: u64,
    /// Processes of supervised slices that were ended for holding more memory than their slice has, since it started.
    #[serde(default)]
    pub overuse_ended_total: u64,
    /// How often a supervised slice was frozen, since it started.
    #[serde(default)]
    pub frozen_total: u64,
    /// NVIDIA's driver has left a question without an answer: the figures of its devices are old, and no slices are
    /// made there.
    #[serde(default)]
    pub driver_silent: bool,
    /// The process that does the agent's work as root.
    #[serde(default)]
    pub helper: HelperState,
    /// The settings that it holds to, as text, by their names in the files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// The process that does an agent's work as root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HelperState {
    /// The agent itself, as far as its user may.
    #[default]
    None,
    /// A helper that answers.
    Answers,
    /// A helper that does not answer: work that needs root is refused until it does.
    Silent,
}

impl HelperState {
    /// The text for people.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::None => "none: the agent is one process",
            Self::Answers => "answers",
            Self::Silent => "does not answer: other users' programs cannot be ended, nor MPS and MIG changed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_cut_to_so_many_words_and_bytes() {
        let of = |words: &[String]| {
            let mut command = words.to_vec();
            shorten(&mut command);
            let bytes: usize = command.iter().map(String::len).sum();
            assert!(command.len() <= 64 && bytes <= 4096, "{} {bytes}", command.len());
            command
        };
        let few = ["train".to_owned(), "--fast".to_owned()];
        assert_eq!(of(&few), few);
        assert_eq!(of(&[]), [""; 0]);
        let many = vec!["x".to_owned(); 1000];
        let cut = of(&many);
        assert_eq!((cut.len(), cut[63].as_str()), (64, "…"));
        let whole = vec!["x".to_owned(); 64];
        assert_eq!(of(&whole), whole);
        let long = of(&["train".into(), "ä".repeat(1 << 20), "end".into()]);
        assert_eq!(long.len(), 2);
        assert!(long[1].starts_with("ää") && long[1].ends_with('…'));
        let exact = of(&["y".repeat(4093)]);
        assert_eq!(exact[0].len(), 4093, "it fits");
    }
}
