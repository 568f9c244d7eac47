//! A driver that does not answer. The agent goes on without it: its own records and the ledgers have what is promised
//! and in use. Figures that only the driver has are marked as old, and nothing more of its devices is promised.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use divvy_host::{Nvidia, Silence};
use divvy_model::{Condition, DeviceKind, DeviceRecord, Fault, SliceRecord};

use crate::api::events::EventKind;
use crate::journal::{Incident, Journal};

/// NVIDIA's driver, as far as it answers.
pub(crate) struct DriverWatch {
    pub nvidia: Arc<Nvidia>,
    pub journal: Arc<Journal>,
    /// Whether the last report said that the driver does not answer.
    pub silent: AtomicBool,
}

impl DriverWatch {
    /// Reports when the driver stops to answer, and when it answers again.
    pub fn listen(&self) {
        let silent = self.nvidia.is_silent();
        if self.silent.swap(silent, Relaxed) == silent {
            return;
        }
        let (kind, message) = match silent {
            true => (
                EventKind::DriverSilent,
                "NVIDIA's driver does not answer: its devices' figures are old, and no slices are made on them",
            ),
            false => (EventKind::DriverAnswers, "NVIDIA's driver answers again"),
        };
        tracing::warn!("{message}");
        self.journal.note(Incident {
            kind,
            slice: None,
            owner: None,
            device: None,
            run: None,
            message: message.into(),
        });
    }

    /// Refuses to promise more of a device whose driver does not answer, because its processes cannot be known.
    ///
    /// # Errors
    /// [`divvy_model::Code::Driver`].
    pub fn require_answers(&self, device: &DeviceRecord) -> Result<(), Fault> {
        if device.kind == DeviceKind::Emulated || !self.nvidia.is_silent() {
            return Ok(());
        }
        let silence = Fault::from(Silence::Still);
        Err(silence.cause(format!("so it is unknown what of {} is in use", device.uuid)))
    }

    /// The note on a slice while the driver of its devices does not answer.
    pub fn silence_of(&self, devices: &[DeviceRecord], shown: &SliceRecord) -> Option<Condition> {
        if !self.nvidia.is_silent() {
            return None;
        }
        let mut driven = devices
            .iter()
            .filter(|device| device.kind != DeviceKind::Emulated);
        let on_it = driven.any(|device| shown.shares.place_of(&device.uuid).is_some());
        on_it.then_some(Condition::DriverSilent)
    }
}
