//! What a container asks for, by whichever names, in one form.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::ledger::Grant;

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

impl PodAsk {
    /// Whether these grants are what is asked for: of each container as many devices, and as much of each. A pod's author
    /// can write any grants, but cannot change the limits that the ask is read from.
    #[must_use]
    pub fn is_met_by(&self, grants: &[Grant]) -> bool {
        let of = |ask: &Ask, grant: &Grant| {
            let has_memory = match ask.memory {
                Memory::Mib(mib) => grant.memory_mib == mib,
                Memory::All | Memory::Percent(_) => true,
            };
            has_memory && (grant.whole, grant.cores) == (ask.whole, ask.cores)
        };
        let met = |ask: &Ask| {
            let its = || grants.iter().filter(|grant| grant.container == ask.container);
            let devices: BTreeSet<&str> = its().map(|grant| grant.uuid.as_str()).collect();
            let count = its().count();
            count == devices.len() && count == ask.devices as usize && its().all(|grant| of(ask, grant))
        };
        let known = |grant: &Grant| self.containers.iter().any(|ask| ask.container == grant.container);
        self.containers.iter().all(met) && grants.iter().all(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(container: &str, uuid: &str, memory_mib: u64, whole: bool) -> Grant {
        Grant {
            container: container.into(),
            uuid: uuid.into(),
            memory_mib,
            cores: 30,
            whole,
        }
    }

    #[test]
    fn only_what_is_asked_for_meets_an_ask() {
        let pod = PodAsk {
            containers: vec![Ask {
                container: "c".into(),
                devices: 2,
                memory: Memory::Mib(100),
                cores: 30,
                whole: false,
            }],
            ..PodAsk::default()
        };
        let (one, two) = (grant("c", "GPU-1", 100, false), grant("c", "GPU-2", 100, false));
        assert!(pod.is_met_by(&[one.clone(), two.clone()]));
        for forged in [
            vec![],
            vec![one.clone()],
            vec![one.clone(), one.clone()],
            vec![one.clone(), grant("c", "GPU-2", 101, false)],
            vec![one.clone(), grant("c", "GPU-2", 100, true)],
            vec![one.clone(), two.clone(), grant("other", "GPU-3", 100, false)],
        ] {
            assert!(!pod.is_met_by(&forged), "{forged:?}");
        }
        assert!(PodAsk::default().is_met_by(&[]), "it asks for nothing");
        assert!(!PodAsk::default().is_met_by(&[one]), "and has nothing");
    }
}
