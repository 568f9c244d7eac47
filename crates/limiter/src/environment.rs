//! The settings, as they were when the library was loaded.
//!
//! Read once and early: a program that cleans its environment before it first calls CUDA stays in its slice.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A path from the environment, or `None` where the variable is unset or empty.
struct Setting {
    name: &'static str,
    value: OnceLock<Option<PathBuf>>,
}

impl Setting {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            value: OnceLock::new(),
        }
    }

    fn get(&self) -> Option<&Path> {
        let value = self.value.get_or_init(|| {
            let found = std::env::var_os(self.name)?;
            (!found.is_empty()).then(|| PathBuf::from(found))
        });
        value.as_deref()
    }
}

static SLICE: Setting = Setting::new("DIVVY_SLICE");
static DRIVER: Setting = Setting::new("DIVVY_DRIVER");
static NVML: Setting = Setting::new("DIVVY_NVML");
static LOG: Setting = Setting::new("DIVVY_LOG");

/// Takes the settings now; for a drop-in's load, before the program runs.
pub extern "C" fn capture() {
    for setting in [&SLICE, &DRIVER, &NVML, &LOG] {
        setting.get();
    }
}

/// The slice's attach socket.
pub(crate) fn slice() -> Option<&'static Path> {
    SLICE.get()
}

/// The driver below, by absolute path.
pub(crate) fn driver() -> Option<&'static Path> {
    DRIVER.get()
}

/// The NVML below, by absolute path.
pub(crate) fn nvml() -> Option<&'static Path> {
    NVML.get()
}

/// Where to append log lines.
pub(crate) fn log() -> Option<&'static Path> {
    LOG.get()
}
