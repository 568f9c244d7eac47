//! What is said on the agent's socket: HTTP and JSON, the same documents that `-o json` prints.

use std::path::PathBuf;

use divvy_model::{
    Cap, Class, Compute, ComputeTerms, DeviceRecord, Fault, MemoryAmount, SliceRecord, SliceRequest,
    UnmanagedRecord, Weight,
};
use serde::{Deserialize, Serialize};

pub mod compute;
pub mod events;
pub(crate) mod viewer;

/// Version of every document. Changes within it only add.
pub const API_VERSION: &str = "divvy/v1";

/// A document: `{"apiVersion": …, "kind": …}` and its own fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document<T> {
    /// [`API_VERSION`].
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    /// What it is: `SliceList`, `Error` and so on.
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

/// Several of a kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Items<T> {
    /// The things.
    pub items: Vec<T>,
}

/// Cuts a command to what is shown and stored of it: its first words, and a word that says so.
pub fn shorten(command: &mut Vec<String>) {
    /// In sum.
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
    // The first that does not fit is shown as far as it does.
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

/// The slices, and who uses the devices without one.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateSlice {
    /// What is asked for.
    pub request: SliceRequest,
    /// The program it is for, with its arguments, to be shown.
    pub command: Vec<String>,
    /// The caller's specification of emulated devices, where it has one.
    #[serde(default)]
    pub emulated: Option<String>,
    /// CUDA_VISIBLE_DEVICES as the caller has it: no other device is taken.
    #[serde(default)]
    pub visible: Option<String>,
    /// The slice that the caller's environment says it is in, by id.
    #[serde(default)]
    pub inside: Option<String>,
    /// It is to stay while nothing runs in it, kept by a process of the agent's.
    #[serde(default)]
    pub lasting: bool,
    /// A lasting one: it is to go with the caller's process, until the caller says what it goes with.
    #[serde(default)]
    pub attended: bool,
    /// A lasting one: it is to go with the containers that have it, of which the first has to come within so many
    /// milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_within_ms: Option<u64>,
    /// A lasting one: the pods and containers that may join it by an annotation, see [`SliceRecord::pods`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// Only say what would happen.
    #[serde(default)]
    pub dry_run: bool,
}

/// The answer: a slice that waits for its keeper, or one that was joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreatedSlice {
    /// The slice.
    pub slice: SliceRecord,
    /// The device it is a share of, the first of several.
    pub device: DeviceRecord,
    /// All its devices, in order.
    #[serde(default)]
    pub devices: Vec<DeviceRecord>,
    /// The slice's directory, where its keeper binds `attach.sock`.
    pub directory: PathBuf,
    /// The slice has a keeper already: the caller only runs its program in it.
    #[serde(default)]
    pub joined: bool,
}

/// `POST /v1/slices/{slice}/join`: a `divvy run` puts its program into a lasting slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The program, with its arguments, to be shown.
    pub command: Vec<String>,
    /// The slice that the caller's environment says it is in, by id.
    #[serde(default)]
    pub inside: Option<String>,
    /// Only say what would happen.
    #[serde(default)]
    pub dry_run: bool,
}

/// `POST /v1/slices/{slice}/attend`: what a lasting slice goes with from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attend {
    /// A process, by the number that it has for the agent.
    Process(u32),
    /// A file or folder: for the agent's own user and root only.
    Path(PathBuf),
}

/// `POST /v1/slices/{slice}/share`: makes ready what containers are to have of a lasting slice. The answer is
/// [`crate::life::container::Parts`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Where containers will have the limiter's folder.
    pub lib: String,
    /// Libraries of the image's own that every program in it loads first.
    #[serde(default)]
    pub preloads: Vec<String>,
}

/// `POST /v1/slices/{slice}/described`: a file outside the run directory describes the slice to container engines, and goes
/// when the slice does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// The file, by its absolute path.
    pub file: PathBuf,
}

/// `POST /v1/devices/share`: makes ready what containers are to have of emulated devices without a slice. The answer is
/// [`crate::life::container::SharedDevices`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareDevices {
    /// What its folder is called.
    pub name: String,
    /// The specification under which the devices are found.
    pub spec: String,
    /// The devices.
    pub uuids: Vec<String>,
}

/// `POST /v1/queue`: stands in line for a slice. The answer comes when the slice is there, when the place changes, or
/// after some seconds; who waits on asks again with its ticket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// What is wanted.
    pub ask: CreateSlice,
    /// The place the caller has, as the last answer gave it.
    #[serde(default)]
    pub ticket: Option<String>,
    /// The place as it was last told: the answer waits until it is another.
    #[serde(default)]
    pub told: Option<(u32, u32)>,
    /// How long the answer may take, in milliseconds.
    #[serde(default)]
    pub patience_ms: u64,
}

/// The answer: where one stands in line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// What to ask again with.
    pub ticket: String,
    /// The place, from 1; 0 for one who has been served.
    pub place: u32,
    /// How many stand in the same line.
    pub count: u32,
    /// What is lacking.
    #[serde(default)]
    pub why: Option<Fault>,
    /// The slice, for one who has been served.
    #[serde(default)]
    pub created: Option<CreatedSlice>,
}

impl Standing {
    /// One who has been served.
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

/// `PATCH /v1/slices/{slice}`: changes a live slice. What is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// Its new share of memory.
    #[serde(default)]
    pub memory: Option<MemoryAmount>,
    /// Its new share of compute, in the place of a weight.
    #[serde(default)]
    pub compute: Option<Compute>,
    /// Its new weight, in the place of a share.
    #[serde(default)]
    pub weight: Option<Weight>,
    /// Whether its share is to be a bound too.
    #[serde(default)]
    pub cap: Option<Cap>,
    /// Who is to go first.
    #[serde(default)]
    pub class: Option<Class>,
    /// Only say what would happen.
    #[serde(default)]
    pub dry_run: bool,
}

impl Resize {
    /// What is asked for of compute, put into what there is.
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
    /// Only say who would get it.
    #[serde(default)]
    pub dry_run: bool,
}

/// The answer: who got the signal.
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
    /// Whose it is.
    pub uid: u32,
    /// Its run directory.
    pub run_dir: PathBuf,
    /// When it started, RFC 3339, UTC.
    pub started_at: String,
    /// Slices it looks after.
    pub slice_count: u32,
    /// Limits that were asked for and not enforced, since it started.
    pub bypass_total: u64,
    /// Leases that were outlasted by so much that others were told, since it started.
    #[serde(default)]
    pub overdue_total: u64,
    /// Leases that were outlasted by so much that the device went to others, since it started.
    #[serde(default)]
    pub expired_total: u64,
    /// Nanoseconds for which slices used devices and were not charged, since it started.
    #[serde(default)]
    pub escaped_ns_total: u64,
    /// NVIDIA's driver has left a question without an answer: figures of its devices are old, and no slices are made there.
    #[serde(default)]
    pub driver_silent: bool,
    /// Who does for it what needs root.
    #[serde(default)]
    pub helper: HelperState,
}

/// Who does for an agent what needs root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HelperState {
    /// The agent itself, as far as its user may.
    #[default]
    None,
    /// A helper, which answers.
    Answers,
    /// A helper, which does not answer: what needs root is refused until it does.
    Silent,
}

impl HelperState {
    /// For people.
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
