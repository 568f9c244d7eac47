//! What a container was granted of emulated devices.
//!
//! A container has no run directory and perhaps no variable of ours. What it was granted is a folder at a fixed path,
//! as a device node is. It has a file that says which devices they are, and the socket that gives their pages. The
//! variables do not change where that folder is.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::mig::{ComputeInstance, GpuInstance, Placed, State};
use crate::product::identity::Uuid;

/// Where a container has the folder that [`crate::grant`] makes.
pub const FOLDER: &str = "/run/divvy/device";
/// The file in it that says what the container was granted.
pub const FILE: &str = "granted";
/// What a container was granted.
pub struct Granted {
    /// The host's specification, a value of `DIVVY_EMULATED`.
    pub spec: String,
    /// The run directory on the host: a device's UUID is derived from it.
    pub run_directory: PathBuf,
    /// Those of the specification's devices that were granted.
    pub uuids: Vec<Uuid>,
    /// The MIG instances that were granted: to the container its GPU has no others.
    pub instances: Vec<Placed>,
}

/// What this container was granted; none on a host.
pub fn granted() -> Option<&'static Granted> {
    static GRANTED: OnceLock<Option<Granted>> = OnceLock::new();
    GRANTED
        .get_or_init(|| Granted::read(&fs::read_to_string(Path::new(FOLDER).join(FILE)).ok()?))
        .as_ref()
}

impl Granted {
    /// Reads the file: lines of `key value`.
    pub fn read(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let line = |line: &'_ str| Some(line.strip_prefix(key)?.strip_prefix(' ')?.to_owned());
            text.lines().find_map(line)
        };
        let uuids = text.lines().filter_map(|line| line.strip_prefix("uuid "));
        Some(Self {
            spec: value("spec")?,
            run_directory: value("run_directory")?.into(),
            uuids: uuids.filter_map(Uuid::parse).collect(),
            instances: text
                .lines()
                .filter_map(|line| instance(line.strip_prefix("instance ")?))
                .collect(),
        })
    }

    /// Whether it is granted a GPU, or an instance of it.
    #[must_use]
    pub fn has(&self, gpu: Uuid) -> bool {
        self.uuids.contains(&gpu) || self.instances.iter().any(|placed| placed.gpu == gpu)
    }

    /// What a GPU is divided into, as the container sees it.
    #[must_use]
    pub fn division(&self, gpu: Uuid) -> State {
        let mut state = State::default();
        for placed in self.instances.iter().filter(|placed| placed.gpu == gpu) {
            (state.on, state.pending) = (true, true);
            match state.instance_mut(placed.outer.id) {
                Some(there) => there.compute.push(placed.compute),
                None => state.instances.push(GpuInstance {
                    compute: vec![placed.compute],
                    ..placed.outer.clone()
                }),
            }
        }
        state
    }
}

/// The line of an instance, as [`instance`] reads it.
#[must_use]
pub fn line(placed: &Placed) -> String {
    let (outer, compute) = (&placed.outer, placed.compute);
    format!(
        "instance {} gi {} {} {} ci {} {} {}",
        placed.gpu, outer.id, outer.profile, outer.start, compute.id, compute.slices, compute.start
    )
}

fn instance(text: &str) -> Option<Placed> {
    let words: Vec<&str> = text.split(' ').collect();
    let [gpu, "gi", id, profile, start, "ci", compute, slices, first] = words[..] else {
        return None;
    };
    Some(Placed {
        gpu: Uuid::parse(gpu)?,
        outer: GpuInstance {
            id: id.parse().ok()?,
            profile: profile.parse().ok()?,
            start: start.parse().ok()?,
            compute: Vec::new(),
        },
        compute: ComputeInstance {
            id: compute.parse().ok()?,
            slices: slices.parse().ok()?,
            start: first.parse().ok()?,
        },
    })
}

/// The names of the devices that [`crate::grant`] wrote into this folder; none where it made none there.
#[must_use]
pub fn granted_in(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join(FILE)).unwrap_or_default();
    let Some(granted) = Granted::read(&text) else {
        return Vec::new();
    };
    let whole = granted.uuids.iter().map(Uuid::to_string);
    let parts = granted
        .instances
        .iter()
        .map(|placed| placed.uuid().of_mig_device());
    whole.chain(parts).collect()
}
