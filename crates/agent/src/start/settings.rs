//! The settings with which an agent starts.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use divvy_model::{Bytes, Compute, DeviceKind, DeviceRecord, Fault, Isolation, MemoryAmount, OnOveruse};

use crate::decide::admission::Limits;
use crate::decide::policy::Least;

/// The default memory of one program's context on a physical GPU: about what CUDA 12 takes on an H100 before the
/// program's first allocation, rounded up.
pub const CONTEXT_OF_A_GPU: Bytes = Bytes(512 << 20);

/// An agent's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Promises may add up to this many times a device's memory.
    pub oversubscription: f64,
    /// The most slices of a device.
    pub max_slices: u32,
    /// The memory of one program's context inside its slice; the default depends on the kind of device.
    pub context: Option<Bytes>,
    /// How long an agent without slices stays.
    pub idle_timeout: Duration,
    /// A specification of emulated devices that replace the machine's own.
    pub emulated: Option<String>,
    /// Whether other users than the agent's own and root may have slices.
    pub admit_others: bool,
    /// The most memory of a device that one user's slices may have together, contexts included.
    pub user_memory: Option<MemoryAmount>,
    /// Of host memory, the most that all workers of one enforced slice have, beside the whole of its emulated devices.
    pub worker_memory: Option<Bytes>,
    /// The most slices that one user may have.
    pub user_slices: Option<u32>,
    /// The most of a device's time that one user's slices may be promised together.
    pub user_compute: Option<Compute>,
    /// The default number of parts of a device that is shared by the hardware's time slices.
    pub timeslice_replicas: u32,
    /// Whether `--share mig` may make a MIG instance when none fits, and turn MIG mode on for a GPU without users.
    pub mig_instances: bool,
    /// The memory of the default slice, a lasting one that each user gets with the first run that names no size.
    pub default_slice: Option<MemoryAmount>,
    /// How long a slice runs before the next one may, where several want a device: 1 to 30 ms.
    pub quantum: Duration,
    /// The weakest isolation level that a slice may have; any where none is set.
    pub least_isolation: Option<Isolation>,
    /// The mildest consequence that a supervised slice may ask for; any where none is set.
    pub least_on_overuse: Option<OnOveruse>,
    /// The longest that a user's slice may live, and how long it lives where nothing is asked for.
    pub user_ttl: Option<Duration>,
    /// How long a user's lasting slice stays while nothing runs in it.
    pub idle_ttl: Option<Duration>,
    /// These settings as text, by their names in the files: for lists.
    pub texts: BTreeMap<String, String>,
}

/// Reads the settings again, for a reload.
pub type ReadSettings = Box<dyn Fn() -> Result<Settings, Fault> + Send + Sync>;

/// The settings that an agent keeps from its start to its end, by their names in the files.
const FIXED: [&str; 5] = [
    "admit_others",
    "emulated",
    "idle_timeout",
    "mig_instances",
    "quantum",
];

/// A running agent's settings, which a reload replaces as a whole.
#[derive(Debug)]
pub(crate) struct Current(RwLock<Arc<Settings>>);

impl Current {
    /// Begins with these.
    pub fn of(settings: Settings) -> Self {
        Self(RwLock::new(Arc::new(settings)))
    }

    /// The settings now.
    pub fn get(&self) -> Arc<Settings> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes new ones.
    pub fn reload(&self, fresh: Settings) -> Reloaded {
        let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let (settings, reloaded) = now.reloaded(fresh);
        *now = Arc::new(settings);
        reloaded
    }
}

/// The result of a reload, by the settings' names in the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reloaded {
    /// Those that have another value now.
    pub changed: Vec<String>,
    /// Those whose new value counts when the agent starts again.
    pub later: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            oversubscription: 1.0,
            max_slices: 64,
            context: None,
            idle_timeout: Duration::from_secs(60),
            emulated: None,
            admit_others: false,
            user_memory: None,
            user_slices: None,
            worker_memory: None,
            user_compute: None,
            timeslice_replicas: 4,
            mig_instances: false,
            default_slice: None,
            quantum: Duration::from_millis(5),
            least_isolation: None,
            least_on_overuse: None,
            user_ttl: None,
            idle_ttl: None,
            texts: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// What a request may not go below.
    pub(crate) fn least(&self) -> Least {
        Least {
            isolation: self.least_isolation,
            on_overuse: self.least_on_overuse,
        }
    }

    /// These settings after a reload, and what that changes.
    fn reloaded(&self, fresh: Self) -> (Self, Reloaded) {
        let mut reloaded = Reloaded::default();
        let mut texts = fresh.texts.clone();
        for (name, text) in &fresh.texts {
            let before = self.texts.get(name);
            if before == Some(text) {
                continue;
            }
            if !FIXED.contains(&name.as_str()) {
                reloaded.changed.push(name.clone());
                continue;
            }
            reloaded.later.push(name.clone());
            texts.insert(name.clone(), before.cloned().unwrap_or_default());
        }
        let settings = Self {
            admit_others: self.admit_others,
            emulated: self.emulated.clone(),
            mig_instances: self.mig_instances,
            quantum: self.quantum,
            idle_timeout: self.idle_timeout,
            texts,
            ..fresh
        };
        (settings, reloaded)
    }

    /// The limits of admission on a device. An emulated device's contexts cost what its specification says, by default
    /// nothing.
    #[must_use]
    pub fn limits(&self, device: &DeviceRecord) -> Limits {
        let by_kind = match device.kind {
            DeviceKind::Emulated => Bytes(0),
            DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Partition => CONTEXT_OF_A_GPU,
        };
        Limits {
            oversubscription: self.oversubscription,
            max_slices: self.max_slices,
            context: self.context.or(device.context_bytes).unwrap_or(by_kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(quantum: &str, user_slices: u32) -> Settings {
        let number = quantum.trim_end_matches("ms").parse().expect("a number");
        Settings {
            quantum: Duration::from_millis(number),
            user_slices: Some(user_slices),
            texts: [
                ("quantum", quantum.to_owned()),
                ("user_slices", user_slices.to_string()),
            ]
            .map(|(name, text)| (name.to_owned(), text))
            .into(),
            ..Settings::default()
        }
    }

    #[test]
    fn a_reload_takes_what_a_running_agent_can_and_names_the_rest() {
        let current = Current::of(settings("5ms", 3));
        let reloaded = current.reload(settings("10ms", 2));
        assert_eq!(
            (reloaded.changed, reloaded.later),
            (vec!["user_slices".to_owned()], vec!["quantum".to_owned()])
        );
        let now = current.get();
        assert_eq!(
            (now.user_slices, now.quantum),
            (Some(2), Duration::from_millis(5))
        );
        assert_eq!(now.texts["quantum"], "5ms", "it says what holds");
        assert_eq!(current.reload(settings("5ms", 2)), Reloaded::default());
    }

    #[test]
    fn each_setting_that_a_reload_leaves_as_it_is_waits_for_the_next_start() {
        let before = settings("5ms", 3);
        let mut fresh = Settings {
            admit_others: true,
            emulated: Some("h100".into()),
            idle_timeout: Duration::from_secs(7),
            mig_instances: true,
            ..settings("10ms", 3)
        };
        for name in FIXED {
            fresh.texts.insert(name.into(), "another".into());
        }
        let current = Current::of(before.clone());
        let reloaded = current.reload(fresh);
        assert_eq!(reloaded.later, FIXED);
        let now = Settings {
            texts: before.texts.clone(),
            ..(*current.get()).clone()
        };
        assert_eq!(now, before);
    }
}
