//! A device as this process has it open: what it is, its memory and its engine.

use crate::engine::client::EngineClient;
use crate::engine::mps;
use crate::error::HardwareError;
use crate::hardware::Hardware;
use crate::inventory::DeviceFacts;
use crate::memory::charge::Charge;
use crate::memory::heap::Heap;
use std::fmt;
use std::sync::Arc;

/// One device that this process has open. It takes no place among the device's users before [`Device::join`].
pub struct Device {
    /// Its place among the devices that the process sees: its CUdevice.
    pub ordinal: usize,
    /// What it is.
    pub facts: DeviceFacts,
    /// The page it shares with every process that uses it.
    pub hardware: Arc<Hardware>,
    /// This process as a client of its engine.
    pub engine: Arc<EngineClient>,
    /// Its memory in this process.
    pub heap: Arc<Heap>,
    /// The same for arrays. The order of their elements depends on the page, so they share no page with other memory.
    pub array_heap: Arc<Heap>,
}

/// Why a process cannot join the users of a device.
#[derive(Debug)]
pub enum JoinError {
    /// The MPS server takes no client: it failed, or it has static partitions and the process names none.
    MpsServerNotReady,
    /// The engine's page is needed and cannot be used; the engine has logged why.
    NoEngine,
    /// The device's page refuses.
    Hardware(HardwareError),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::MpsServerNotReady => f.write_str(
                "the MPS server takes no client now: it failed and waits until those it had are gone, or it has static \
                 partitions and CUDA_MPS_SM_PARTITION names none of them",
            ),
            JoinError::NoEngine => f.write_str("its engine's page cannot be used"),
            JoinError::Hardware(why) => why.fmt(f),
        }
    }
}

impl Device {
    /// Opens a device that will have this ordinal.
    ///
    /// # Errors
    /// The device's page cannot be found, made or mapped, or is damaged.
    pub fn open(ordinal: usize, facts: DeviceFacts) -> Result<Device, HardwareError> {
        let client = mps::client(&facts, ordinal);
        let limit = client.and_then(|client| client.memory_bytes);
        let hardware = Arc::new(Hardware::open(&facts, limit)?);
        let heap = Heap::new(Arc::clone(&hardware) as Arc<dyn Charge>);
        let of_engine = Arc::clone(&hardware);
        let engine = Box::new(move |joins| of_engine.engine(joins));
        Ok(Device {
            ordinal,
            facts,
            engine: EngineClient::new(facts.timing, facts.timeslice_ns, client, engine),
            hardware,
            array_heap: heap.apart(),
            heap,
        })
    }

    /// Shows this process among the device's users: it has a context from here on.
    ///
    /// # Errors
    /// The MPS server takes no client, the engine's page is needed and missing, or the device's page refuses.
    pub fn join(&self) -> Result<(), JoinError> {
        if self.engine.is_refused() {
            return Err(JoinError::MpsServerNotReady);
        }
        if self.engine.join().is_none() && self.engine.is_needed() {
            return Err(JoinError::NoEngine);
        }
        self.hardware.join().map(drop).map_err(JoinError::Hardware)
    }
}
