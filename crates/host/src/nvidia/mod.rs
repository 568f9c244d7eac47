//! NVIDIA's devices, through NVML. Where libnvidia-ml.so.1 is missing there are none, quietly; where the driver hangs, that is
//! said in time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use divvy_model::{Bytes, DeviceRecord, Hardware};

use crate::timeout::{Silence, WithTimeout};
use crate::topology::Nvlinks;

mod library;

/// How long the first question may take, for which the library starts: sixteen GPUs that nothing has used since they started
/// take some seconds.
const START: Duration = Duration::from_secs(15);
/// How long the others may take. The caller may hold others up meanwhile.
const QUESTION: Duration = Duration::from_secs(3);

/// NVML, asked within a time.
pub struct Nvidia {
    /// None: a machine whose devices are all emulated.
    library: Option<WithTimeout<Box<dyn NvidiaLibrary>>>,
    started: AtomicBool,
    start: Duration,
    question: Duration,
}

/// What NVML says about this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NvidiaReport {
    /// The devices, by PCI address.
    pub devices: Vec<DeviceRecord>,
    /// The driver's version, `550.54.15`.
    pub driver_version: Option<String>,
    /// Why there are no devices, or why one is missing.
    pub notes: Vec<String>,
    /// The library is there, and its driver does not answer: why.
    pub failure: Option<String>,
}

/// NVML's number of a brand (`nvmlBrandType_t`) as the word that NVIDIA's driver for Kubernetes publishes; none for an unknown one.
#[must_use]
pub fn brand(number: u32) -> Option<&'static str> {
    const WORDS: [&str; 17] = [
        "",
        "Quadro",
        "Tesla",
        "NVS",
        "Grid",
        "GeForce",
        "Titan",
        "NvidiaVApps",
        "NvidiaVPC",
        "NvidiaVCS",
        "NvidiaVWS",
        "NvidiaCloudGaming",
        "QuadroRTX",
        "NvidiaRTX",
        "Nvidia",
        "GeForceRTX",
        "TitanRTX",
    ];
    let word = WORDS.get(usize::try_from(number).ok()?)?;
    (!word.is_empty()).then_some(*word)
}

/// What the driver says of who uses a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Memory in use, by all processes; None where the driver does not tell.
    pub used: Option<Bytes>,
    /// The processes that hold memory: process id and bytes, where the driver tells them.
    pub processes: Vec<(u32, Option<Bytes>)>,
}

/// The questions to a library. Tests use a fake.
pub trait NvidiaLibrary {
    /// The devices as they are now.
    fn report(&self) -> NvidiaReport;
    /// The CUDA version that the driver offers.
    fn cuda_version(&self) -> Option<(u32, u32)>;
    /// Who uses a device.
    fn usage(&self, uuid: &str) -> DeviceUse;
    /// How much of the last second each process kept the device's multiprocessors busy, in percent.
    fn utilization(&self, uuid: &str) -> Vec<(u32, u32)>;
    /// The clock of the device's multiprocessors now, in MHz; none where the driver does not tell.
    fn clock_mhz(&self, _uuid: &str) -> Option<u32> {
        None
    }
    /// MIG mode, processes, health.
    fn facts(&self, uuid: &str) -> Hardware;
    /// The active NVLinks of each GPU.
    fn links(&self) -> Nvlinks;
}

impl Nvidia {
    /// Opens libnvidia-ml.so.1 by its name, or the file that `DIVVY_NVML` names; its absence is an answer, not an error.
    #[must_use]
    pub fn open() -> Self {
        let named = std::env::var_os("DIVVY_NVML").filter(|path| !path.is_empty());
        let name = named.unwrap_or_else(|| "libnvidia-ml.so.1".into());
        Self::over(move || library::Library::open(&name), START, QUESTION)
    }

    /// Over what `open` makes on a thread of its own, with times for the first question and for each other.
    #[must_use]
    pub fn over<A: NvidiaLibrary + 'static>(
        open: impl FnOnce() -> A + Send + 'static,
        start: Duration,
        question: Duration,
    ) -> Self {
        Self {
            library: Some(WithTimeout::start(|| Box::new(open()) as Box<dyn NvidiaLibrary>)),
            started: AtomicBool::new(false),
            start,
            question,
        }
    }

    /// No NVML: for a machine whose devices are all emulated.
    #[must_use]
    pub fn absent() -> Self {
        Self {
            library: None,
            started: AtomicBool::new(false),
            start: START,
            question: QUESTION,
        }
    }

    /// Whether nothing of NVIDIA's is looked for.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.library.is_none()
    }

    /// Whether the driver has left a question without an answer: it is asked nothing else until that answer is there.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.library.as_ref().is_some_and(WithTimeout::is_silent)
    }

    fn ask<T: Default + Send + 'static>(
        &self,
        question: impl FnOnce(&dyn NvidiaLibrary) -> T + Send + 'static,
    ) -> Result<T, Silence> {
        let Some(library) = &self.library else {
            return Ok(T::default());
        };
        let limit = match self.started.load(Relaxed) {
            true => self.question,
            false => self.start,
        };
        let answer = library.ask(limit, |asked| question(asked.as_ref()))?;
        self.started.store(true, Relaxed);
        Ok(answer)
    }

    fn ask_of<T: Default + Send + 'static>(
        &self,
        uuid: &str,
        question: impl FnOnce(&dyn NvidiaLibrary, &str) -> T + Send + 'static,
    ) -> Result<T, Silence> {
        let uuid = uuid.to_owned();
        self.ask(move |asked| question(asked, &uuid))
    }

    /// The devices as they are now.
    ///
    /// # Errors
    /// [`Silence`], as of all that is asked.
    pub fn report(&self) -> Result<NvidiaReport, Silence> {
        self.ask(|asked| asked.report())
    }

    /// The CUDA version that the driver offers, where there is one that tells.
    #[must_use]
    pub fn cuda_version(&self) -> Option<(u32, u32)> {
        self.ask(|asked| asked.cuda_version()).ok().flatten()
    }

    /// Who uses a device.
    ///
    /// # Errors
    /// [`Silence`].
    pub fn usage(&self, uuid: &str) -> Result<DeviceUse, Silence> {
        self.ask_of(uuid, |asked, uuid| asked.usage(uuid))
    }

    /// How much of the last second each process kept the device's multiprocessors busy, in percent, as NVML samples it:
    /// coarsely. Nothing where the driver does not tell.
    #[must_use]
    pub fn utilization(&self, uuid: &str) -> Vec<(u32, u32)> {
        self.ask_of(uuid, |asked, uuid| asked.utilization(uuid))
            .unwrap_or_default()
    }

    /// The clock of the device's multiprocessors now, in MHz; none where the driver does not tell.
    #[must_use]
    pub fn clock_mhz(&self, uuid: &str) -> Option<u32> {
        self.ask_of(uuid, |asked, uuid| asked.clock_mhz(uuid))
            .unwrap_or_default()
    }

    /// What NVML tells of a device beyond its memory: MIG mode, processes, health.
    ///
    /// # Errors
    /// [`Silence`].
    pub fn facts(&self, uuid: &str) -> Result<Hardware, Silence> {
        self.ask_of(uuid, |asked, uuid| asked.facts(uuid))
    }

    /// The active NVLinks of each GPU.
    ///
    /// # Errors
    /// [`Silence`].
    pub fn links(&self) -> Result<Nvlinks, Silence> {
        self.ask(|asked| asked.links())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_nvml_has_no_devices_and_says_why() {
        let report = Nvidia::open().report().expect("it answers");
        assert!(!report.devices.is_empty() || !report.notes.is_empty());
    }
}
