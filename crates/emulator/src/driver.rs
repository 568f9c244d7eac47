//! The driver's state in this process: made by cuInit, found by every call after it.

use crate::array::{Array, Mipmap};
use crate::context::Context;
use crate::event::Event;
use crate::graph::Graphs;
use crate::handle::{self, Handles};
use crate::library::{Kernel, Library};
use crate::link::Link;
use crate::memory::external::External;
use crate::memory::physical::PhysicalHandles;
use crate::memory::registry::Registry;
use crate::memory::virtual_range::Reservations;
use crate::module::{Function, Instance};
use crate::pool::MemoryPool;
use crate::stream::Stream;
use crate::visible::{Present, visible};
use crate::{Result, fork};
use divvy_abi::*;
use divvy_device::engine::line::Line;
use divvy_device::engine::mps;
use divvy_device::hardware::{Hardware, HardwareError};
use divvy_device::inventory::{self, DeviceFacts};
use divvy_device::memory::heap::{Charge, Charged, Heap};
use divvy_device::{hardware, log, mig};
use divvy_ptx::Engine;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// One visible device.
pub struct Device {
    /// Its CUdevice.
    pub ordinal: usize,
    /// What it is.
    pub facts: DeviceFacts,
    /// The page it shares with every process that uses it.
    pub hardware: Arc<Hardware>,
    /// Its engine in this process.
    pub engine: Arc<Line>,
    /// Its memory in this process.
    pub heap: Arc<Heap>,
    /// The same for arrays, whose order of elements is a matter of the page: they share none with other memory.
    pub array_heap: Arc<Heap>,
    /// Handle of its primary context, whatever life that is in.
    pub primary_handle: u64,
    /// The primary context's references and flags.
    pub primary: Mutex<Primary>,
    /// Handle of the pool it starts with.
    pub default_pool: u64,
    /// Handle of the pool cuMemAllocAsync uses.
    pub current_pool: Mutex<u64>,
}

/// Who holds a device's primary context.
#[derive(Default)]
pub struct Primary {
    /// References by cuDevicePrimaryCtxRetain.
    pub references: u32,
    /// CU_CTX_* for its next life.
    pub flags: u32,
}

/// Everything behind the handles.
pub struct Driver {
    /// Visible devices, by ordinal.
    pub devices: Vec<Arc<Device>>,
    /// Every address a device may touch.
    pub registry: Registry,
    /// Runs kernels.
    pub engine: Engine,
    /// Threads that it runs them on.
    pub workers: u64,
    /// Live contexts.
    pub contexts: Handles<Context>,
    /// Live streams; the default streams are not among them.
    pub streams: Handles<Stream>,
    /// Live events.
    pub events: Handles<Event>,
    /// Live modules.
    pub modules: Handles<Instance>,
    /// Functions handed out.
    pub functions: Handles<Function>,
    /// Live libraries.
    pub libraries: Handles<Library>,
    /// Kernels of live libraries.
    pub kernels: Handles<Kernel>,
    /// Open linkers.
    pub links: Handles<Link>,
    /// Live memory pools.
    pub pools: Handles<MemoryPool>,
    /// Graphs, and what belongs to them.
    pub graphs: Graphs,
    /// Live CUDA arrays, the levels of mipmaps among them.
    pub arrays: Handles<Array>,
    /// Live mipmaps.
    pub mipmaps: Handles<Mipmap>,
    /// Live imports of external memory.
    pub external: Handles<External>,
    /// Physical memory that has a handle.
    pub physical: PhysicalHandles,
    /// Reserved address ranges and what is mapped there.
    pub reservations: Reservations,
}

/// cuCtxGetApiVersion of a primary context: the API as of CUDA 3.2, as NVIDIA's driver says.
const PRIMARY_API_VERSION: u32 = 3020;

static DRIVER: OnceLock<Driver> = OnceLock::new();

/// The driver, once cuInit has succeeded.
pub fn driver() -> Result<&'static Driver> {
    DRIVER.get().ok_or(CUDA_ERROR_NOT_INITIALIZED)
}

/// cuInit: finds the devices and joins their pages. A failure may be repaired and cuInit called again.
pub fn initialise() -> Result {
    static INITIALISING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INITIALISING.lock().unwrap_or_else(PoisonError::into_inner);
    if DRIVER.get().is_some() {
        return Ok(());
    }
    divvy_abi::on_unsupported(|symbol| {
        log::once(
            symbol.name(),
            format_args!("{symbol} is not supported by the emulated device"),
        );
    });
    let visible = visible_devices()?;
    let pools = Handles::default();
    let mut devices = Vec::new();
    for (ordinal, facts) in visible.into_iter().enumerate() {
        devices.push(open_device(ordinal, facts, &pools)?);
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let driver = Driver {
        devices,
        registry: Registry::default(),
        engine: Engine::new(workers),
        workers: workers as u64,
        contexts: Handles::default(),
        streams: Handles::default(),
        events: Handles::default(),
        modules: Handles::default(),
        functions: Handles::default(),
        libraries: Handles::default(),
        kernels: Handles::default(),
        links: Handles::default(),
        pools,
        graphs: Graphs::default(),
        arrays: Handles::default(),
        mipmaps: Handles::default(),
        external: Handles::default(),
        physical: PhysicalHandles::default(),
        reservations: Reservations::default(),
    };
    fork::watch();
    let _ = DRIVER.set(driver);
    Ok(())
}

fn visible_devices() -> Result<Vec<DeviceFacts>> {
    let present = inventory::devices_from_env().map_err(|why| {
        log::line(format_args!("DIVVY_EMULATED: {why}"));
        CUDA_ERROR_NO_DEVICE
    })?;
    let setting = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let mut divided = Vec::new();
    for gpu in present {
        let state = gpu.division(&hardware::run_directory()).map_err(|why| {
            log::line(format_args!("cannot use the emulated device {}: {why}", gpu.uuid));
            CUDA_ERROR_OPERATING_SYSTEM
        })?;
        let state = state.filter(|state| state.on);
        divided.push(Present {
            gpu,
            instances: state.map(|state| mig::compute_instances(&gpu, &state)),
        });
    }
    let chosen = visible(setting.as_deref(), &divided);
    if chosen.is_empty() {
        match setting {
            Some(setting) => log::line(format_args!(
                "CUDA_VISIBLE_DEVICES={setting} leaves no device of {}",
                divided.len()
            )),
            None => log::line(format_args!(
                "every GPU is in MIG mode and has no compute instance"
            )),
        }
        return Err(CUDA_ERROR_NO_DEVICE);
    }
    Ok(chosen)
}

fn open_device(ordinal: usize, facts: DeviceFacts, pools: &Handles<MemoryPool>) -> Result<Arc<Device>> {
    let client = mps::client(&facts, ordinal);
    let limit = client.and_then(|client| client.memory_bytes);
    let hardware = Hardware::open(&facts, limit).map_err(|why| {
        log::line(format_args!(
            "cannot use the emulated device {}: {why}",
            facts.uuid
        ));
        CUDA_ERROR_OPERATING_SYSTEM
    })?;
    let hardware = Arc::new(hardware);
    let heap = Heap::new(Arc::clone(&hardware) as Arc<dyn Charge>);
    let default_pool = handle::fresh();
    pools.insert(
        default_pool,
        MemoryPool::new(default_pool, ordinal, Arc::clone(&heap), 0),
    );
    let of_engine = Arc::clone(&hardware);
    let engine = Box::new(move |joins| of_engine.engine(joins));
    Ok(Arc::new(Device {
        ordinal,
        facts,
        engine: Line::new(facts.timing, facts.timeslice_ns, client, engine),
        hardware,
        array_heap: heap.apart(),
        heap,
        primary_handle: handle::fresh(),
        primary: Mutex::default(),
        default_pool,
        current_pool: Mutex::new(default_pool),
    }))
}

impl Driver {
    /// The device of a CUdevice.
    pub fn device(&self, ordinal: CUdevice) -> Result<&Arc<Device>> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.devices.get(ordinal))
            .ok_or(CUDA_ERROR_INVALID_DEVICE)
    }
}

impl Device {
    /// Its CUdevice.
    pub fn number(&self) -> CUdevice {
        self.ordinal as CUdevice
    }

    /// Shows this process among the device's users: it has a context from here on.
    pub fn show(&self) -> Result {
        if self.engine.is_refused() {
            log::line(
                "the MPS server takes no client now: it failed and waits until those it had are gone, or it has static \
                 partitions and CUDA_MPS_SM_PARTITION names none of them",
            );
            return Err(CUDA_ERROR_MPS_SERVER_NOT_READY);
        }
        if self.engine.join().is_none() && self.engine.is_needed() {
            return Err(CUDA_ERROR_OPERATING_SYSTEM);
        }
        self.hardware.join().map(drop).map_err(|why| {
            log::line(format_args!(
                "cannot use the emulated device {}: {why}",
                self.facts.id()
            ));
            match why {
                HardwareError::Gone(_) => CUDA_ERROR_DEVICE_UNAVAILABLE,
                _ => CUDA_ERROR_OPERATING_SYSTEM,
            }
        })
    }

    /// The memory of a new context; None where contexts take none. What pools keep without use makes room.
    pub fn take_for_context(&self) -> Result<Option<Charged>> {
        let bytes = self.facts.context_bytes;
        if bytes == 0 {
            return Ok(None);
        }
        let take = || Charged::take(self.heap.charge(), bytes);
        let taken = take().or_else(|full| {
            crate::pool::trim_all(driver().map_err(|_| full)?, self.ordinal);
            take()
        });
        taken.map(Some).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// One more reference to the primary context, which is made if it does not live.
    pub fn retain_primary(self: &Arc<Device>) -> Result<Arc<Context>> {
        let driver = driver()?;
        self.show()?;
        let mut primary = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = driver.contexts.get(self.primary_handle) {
            primary.references += 1;
            return Ok(context);
        }
        let context = Context::new(
            Arc::clone(self),
            self.primary_handle,
            true,
            primary.flags,
            PRIMARY_API_VERSION,
        )?;
        driver.contexts.insert(self.primary_handle, Arc::clone(&context));
        primary.references = 1;
        Ok(context)
    }

    /// One reference less; the last one, or `all` at once, ends the primary context.
    pub fn release_primary(&self, all: bool) -> Result {
        let driver = driver()?;
        let mut primary = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        if primary.references == 0 {
            return if all {
                Ok(())
            } else {
                Err(CUDA_ERROR_INVALID_CONTEXT)
            };
        }
        primary.references -= 1;
        if all {
            primary.references = 0;
        }
        if primary.references == 0
            && let Some(context) = driver.contexts.remove(self.primary_handle)
        {
            context.destroy()?;
        }
        Ok(())
    }
}
