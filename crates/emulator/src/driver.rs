//! The driver's state in this process: made by cuInit, found by every call after it.

use crate::array::{Array, Mipmap};
use crate::context::Context;
use crate::event::Event;
use crate::external::External;
use crate::graph::Graphs;
use crate::handle::{self, Handles};
use crate::launch::{Launcher, Visible};
use crate::library::{Kernel, Library};
use crate::link::Link;
use crate::memory::physical::PhysicalHandles;
use crate::memory::registry::Addresses;
use crate::memory::virtual_range::Reservations;
use crate::module::Modules;
use crate::pool::MemoryPool;
use crate::stream::Stream;
use crate::texture::Objects;
use crate::visible::{Present, visible};
use crate::{Result, check, fork, memop, pool, profile, trace};
use divvy_abi::*;
use divvy_device::inventory::{self, DeviceFacts};
use divvy_device::memory::charge::Charged;
use divvy_device::{Device, HardwareError, JoinError, log};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What the driver keeps for a device: its primary context and the pools that allocations come from by default.
pub struct Defaults {
    /// Handle of its primary context, whatever life that is in.
    pub primary_handle: u64,
    /// The primary context's references and flags.
    pub primary: Mutex<Primary>,
    /// Handle of the pool it starts with.
    pub default_pool: u64,
    /// Handle of the pool cuMemAllocAsync uses.
    pub current_pool: Mutex<u64>,
}

/// The references to a device's primary context.
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
    /// What is kept for each of them, by ordinal.
    pub defaults: Vec<Defaults>,
    /// Every address a device may touch.
    pub addresses: Arc<Addresses>,
    /// Runs kernels.
    pub launcher: Launcher,
    /// Live contexts.
    pub contexts: Arc<Handles<Context>>,
    /// Live streams; the default streams are not among them.
    pub streams: Handles<Stream>,
    /// Live events.
    pub events: Handles<Event>,
    /// Live modules, and the functions handed out.
    pub modules: Modules,
    /// Live libraries.
    pub libraries: Handles<Library>,
    /// Kernels of live libraries.
    pub kernels: Handles<Kernel>,
    /// Open linkers.
    pub links: Handles<Link>,
    /// Live memory pools.
    pub pools: Arc<Handles<MemoryPool>>,
    /// Graphs, and what belongs to them.
    pub graphs: Graphs,
    /// Live CUDA arrays, the levels of mipmaps among them.
    pub arrays: Handles<Array>,
    /// Live mipmaps.
    pub mipmaps: Handles<Mipmap>,
    /// Live texture and surface objects.
    pub objects: Arc<Objects>,
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
    check::begin();
    profile::begin();
    divvy_abi::on_unsupported(|symbol| {
        log::once(
            symbol.name(),
            format_args!("{symbol} is not supported by the emulated device"),
        );
    });
    let pools: Arc<Handles<MemoryPool>> = Arc::default();
    let (mut devices, mut defaults) = (Vec::new(), Vec::new());
    for (ordinal, facts) in visible_devices()?.into_iter().enumerate() {
        let device = Device::open(ordinal, facts).map_err(|why| {
            log::line(format_args!(
                "cannot use the emulated device {}: {why}",
                facts.uuid
            ));
            CUDA_ERROR_OPERATING_SYSTEM
        })?;
        defaults.push(Defaults::new(&device, &pools));
        devices.push(Arc::new(device));
    }
    trace::begin(&devices);
    let (addresses, contexts) = (Arc::<Addresses>::default(), Arc::<Handles<Context>>::default());
    let graphs = Graphs::new(devices.clone(), Arc::clone(&addresses), Arc::clone(&pools));
    let objects = Arc::<Objects>::default();
    let memory = Visible {
        contexts: Arc::clone(&contexts),
        pools: Arc::clone(&pools),
        graphs: Arc::clone(&graphs.memory),
        objects: Arc::clone(&objects),
    };
    let driver = Driver {
        devices,
        defaults,
        addresses,
        launcher: Launcher::new(memory),
        contexts,
        streams: Handles::default(),
        events: Handles::default(),
        modules: Modules::default(),
        libraries: Handles::default(),
        kernels: Handles::default(),
        links: Handles::default(),
        pools,
        graphs,
        arrays: Handles::default(),
        mipmaps: Handles::default(),
        objects,
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
        let state = gpu.division(&divvy_device::run_directory()).map_err(|why| {
            log::line(format_args!("cannot use the emulated device {}: {why}", gpu.uuid));
            CUDA_ERROR_OPERATING_SYSTEM
        })?;
        let state = state.filter(|state| state.on);
        divided.push(Present {
            gpu,
            instances: state.map(|state| inventory::compute_instances(&gpu, &state)),
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

impl Defaults {
    fn new(device: &Device, pools: &Handles<MemoryPool>) -> Defaults {
        let default_pool = handle::fresh();
        pools.insert(
            default_pool,
            MemoryPool::new(default_pool, device.ordinal, Arc::clone(&device.heap), 0),
        );
        Defaults {
            primary_handle: handle::fresh(),
            primary: Mutex::default(),
            default_pool,
            current_pool: Mutex::new(default_pool),
        }
    }
}

impl Driver {
    /// The device of a CUdevice.
    pub fn device(&self, ordinal: CUdevice) -> Result<&Arc<Device>> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.devices.get(ordinal))
            .ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    /// The event of a handle.
    pub fn event(&self, handle: u64) -> Result<Arc<Event>> {
        self.events.get(handle).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// What is kept for the device of a CUdevice.
    pub fn defaults(&self, ordinal: CUdevice) -> Result<&Defaults> {
        Ok(&self.defaults[self.device(ordinal)?.ordinal])
    }

    /// A new context on a device, under the given handle. It takes the memory that the device's specification says a
    /// context takes. Memory that pools keep without use is released for it.
    pub fn new_context(
        &self,
        device: &Arc<Device>,
        handle: u64,
        primary: bool,
        flags: u32,
        api_version: u32,
    ) -> Result<Arc<Context>> {
        let take = || Charged::take(device.heap.charge(), device.facts.context_bytes);
        let memory = match device.facts.context_bytes {
            0 => None,
            _ => {
                let taken = take().or_else(|_| {
                    pool::trim_all(&self.pools, device.ordinal);
                    take()
                });
                Some(taken.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?)
            }
        };
        let (device, addresses) = (Arc::clone(device), Arc::clone(&self.addresses));
        Ok(Context::new(
            device,
            addresses,
            memory,
            handle,
            primary,
            flags,
            api_version,
        ))
    }

    /// Ends a context: waits for its work, then forgets every object and allocation that belongs to it.
    pub fn destroy_context(&self, context: &Context) {
        self.graphs.captures.forget(|stream| stream.0 == context.id);
        memop::abandon(context.id);
        context.end_work();
        let mine = |other: &Arc<Context>| other.id == context.id;
        self.streams.remove_all(|stream| mine(&stream.context));
        self.events.remove_all(|event| mine(&event.context));
        self.modules.forget_context(context.id);
        self.arrays.remove_all(|array| mine(&array.context));
        self.mipmaps.remove_all(|mipmap| mine(&mipmap.context));
        self.objects.forget_context(context.id);
        self.external.remove_all(|external| mine(&external.context));
        for library in self.libraries.all() {
            library.forget_context(context.id);
        }
        let left = self
            .addresses
            .live
            .remove_all(|allocation| allocation.context == context.handle);
        if let Some(checker) = check::on() {
            checker.left_in_context(&left);
        }
        context.give_memory();
    }

    /// One more reference to a device's primary context, which is made if it does not live.
    pub fn retain_primary(&self, device: &Arc<Device>) -> Result<Arc<Context>> {
        show(device)?;
        let defaults = &self.defaults[device.ordinal];
        let mut primary = defaults.primary.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = self.contexts.get(defaults.primary_handle) {
            primary.references += 1;
            return Ok(context);
        }
        let handle = defaults.primary_handle;
        let context = self.new_context(device, handle, true, primary.flags, PRIMARY_API_VERSION)?;
        self.contexts.insert(handle, Arc::clone(&context));
        primary.references = 1;
        Ok(context)
    }

    /// One reference less; the last one, or `all` at once, ends the primary context.
    pub fn release_primary(&self, device: &Device, all: bool) -> Result {
        let defaults = &self.defaults[device.ordinal];
        let mut primary = defaults.primary.lock().unwrap_or_else(PoisonError::into_inner);
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
            && let Some(context) = self.contexts.remove(defaults.primary_handle)
        {
            self.destroy_context(&context);
        }
        Ok(())
    }
}

/// Shows this process among a device's users: it has a context from here on.
pub fn show(device: &Device) -> Result {
    device.join().map_err(|why| {
        match &why {
            JoinError::MpsServerNotReady => log::line(&why),
            // The engine has said why.
            JoinError::NoEngine => {}
            JoinError::Hardware(_) => log::line(format_args!(
                "cannot use the emulated device {}: {why}",
                device.facts.id()
            )),
        }
        match why {
            JoinError::MpsServerNotReady => CUDA_ERROR_MPS_SERVER_NOT_READY,
            JoinError::Hardware(HardwareError::Gone(_)) => CUDA_ERROR_DEVICE_UNAVAILABLE,
            JoinError::NoEngine | JoinError::Hardware(_) => CUDA_ERROR_OPERATING_SYSTEM,
        }
    })
}
