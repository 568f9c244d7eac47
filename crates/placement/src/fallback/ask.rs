//! What a container asks for, by whichever names, in one form.

use serde::{Deserialize, Serialize};

/// Which devices come first where several fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prefer {
    /// The fullest, so that others stay whole.
    #[default]
    Binpack,
    /// The emptiest.
    Spread,
    /// Devices that are linked, or of one NUMA node.
    Topology,
}

/// How much memory of each device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Memory {
    /// All of it.
    #[default]
    All,
    /// So many MiB.
    Mib(u64),
    /// So many percent of the device's.
    Percent(u64),
}

impl Memory {
    /// In MiB, of a device with `total`.
    #[must_use]
    pub fn of(self, total: u64) -> u64 {
        match self {
            Self::All => total,
            Self::Mib(mib) => mib,
            Self::Percent(percent) => total.saturating_mul(percent).div_ceil(100),
        }
    }
}

/// What one container asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ask {
    /// The container.
    pub container: String,
    /// How many devices.
    pub devices: u32,
    /// Memory of each.
    #[serde(default)]
    pub memory: Memory,
    /// Cores of each, in percent; 0 for none promised.
    #[serde(default)]
    pub cores: u64,
    /// Whether the devices are for this container alone.
    #[serde(default)]
    pub whole: bool,
}

/// What a pod asks for: a device of one container may serve another of the same pod too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodAsk {
    /// By container.
    pub containers: Vec<Ask>,
    /// Which devices come first.
    #[serde(default)]
    pub prefer: Prefer,
    /// Only devices with one of these UUIDs; empty for any.
    #[serde(default)]
    pub only: Vec<String>,
    /// No device with one of these UUIDs.
    #[serde(default)]
    pub never: Vec<String>,
    /// Only devices whose model has one of these texts in its name, whatever its case; empty for any.
    #[serde(default)]
    pub models: Vec<String>,
    /// No device whose model has one of these texts in its name.
    #[serde(default)]
    pub no_models: Vec<String>,
}
