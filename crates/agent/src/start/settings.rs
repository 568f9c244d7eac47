//! The settings with which an agent starts.

use std::time::Duration;

use divvy_model::{Bytes, Compute, DeviceKind, DeviceRecord, Isolation, MemoryAmount, OnOveruse};

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
            user_compute: None,
            timeslice_replicas: 4,
            mig_instances: false,
            default_slice: None,
            quantum: Duration::from_millis(5),
            least_isolation: None,
            least_on_overuse: None,
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
