//! What a container was granted of emulated devices.
//!
//! A container has no run directory and perhaps no variable of ours. What it was granted is a folder at a fixed path,
//! as a device node is. It has a file that says which devices they are, and the socket that gives their pages. The
//! variables do not change where that folder is.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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
        })
    }
}

/// The devices that [`crate::grant`] wrote into this folder; none where it made none there.
#[must_use]
pub fn granted_in(folder: &Path) -> Vec<Uuid> {
    let text = fs::read_to_string(folder.join(FILE)).unwrap_or_default();
    Granted::read(&text).map_or_else(Vec::new, |granted| granted.uuids)
}
