//! Launching kernels: limits checked at the call, parameters gathered, failures made sticky.

use crate::Result;
use crate::array::Array;
use crate::check::{self, Launched};
use crate::context::Context;
use crate::graph::memory::GraphMemory;
use crate::handle::Handles;
use crate::kernel_time;
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::virtual_range::Accessor;
use crate::module::Function;
use crate::occupancy;
use crate::pool::{self, MemoryPool};
use crate::profile::{self, Counted};
use crate::stream::Queue;
use crate::texture::{self, Object, Objects};
use crate::trace::{self, Place, Traced};
use divvy_abi::*;
use divvy_device::engine::client::Running;
use divvy_device::product::profile::{BLOCK_MAX, GRID_MAX, SHARED_PER_BLOCK, THREADS_PER_BLOCK};
use divvy_device::{clock, log, notice};
use divvy_ptx::{AddressSpace, Engine, Fault, Image, Launch, Progress, Texture, Timing};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// A launch as the program asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks, per dimension.
    pub grid: [u32; 3],
    /// Threads of a block, per dimension.
    pub block: [u32; 3],
    /// Shared memory of a block besides the kernel's own, in bytes.
    pub shared_bytes: u32,
    /// All blocks must be resident at once.
    pub cooperative: bool,
}

/// CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
pub const MAX_DYNAMIC_SHARED: u32 = 8;

/// Checks a launch against the device's and the kernel's limits.
pub fn check(function: &Function, geometry: &Geometry) -> Result {
    let kernel = function.kernel();
    if let Some(unsupported) = &kernel.unsupported {
        log::line(format_args!("cannot launch: {unsupported}"));
        notice::instruction(unsupported);
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let outside =
        |sizes: [u32; 3], most: [u32; 3]| (0..3).any(|axis| sizes[axis] == 0 || sizes[axis] > most[axis]);
    let threads: u64 = geometry.block.iter().map(|&size| u64::from(size)).product();
    if outside(geometry.grid, GRID_MAX)
        || outside(geometry.block, BLOCK_MAX)
        || threads > u64::from(THREADS_PER_BLOCK)
    {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if threads > u64::from(max_threads(kernel)) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if u64::from(geometry.shared_bytes) > max_dynamic_shared(function) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if geometry.cooperative {
        let profile = function.instance.context.device.facts.profile;
        let per_sm =
            occupancy::blocks_per_sm(profile, kernel, threads as u32, u64::from(geometry.shared_bytes));
        let blocks: u64 = geometry.grid.iter().map(|&size| u64::from(size)).product();
        if blocks > u64::from(per_sm) * u64::from(profile.sm_count) {
            return Err(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    Ok(())
}

/// Threads of a block that this kernel allows (CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK).
pub fn max_threads(kernel: &divvy_ptx::Kernel) -> u32 {
    let declared = kernel.max_threads.map_or(u64::from(THREADS_PER_BLOCK), |sizes| {
        sizes.iter().map(|&size| u64::from(size.max(1))).product()
    });
    declared.min(u64::from(THREADS_PER_BLOCK)) as u32
}

/// Dynamic shared memory a launch may ask for, in bytes: what is left of the default, or what was opted in to.
fn max_dynamic_shared(function: &Function) -> u64 {
    let of_default = SHARED_PER_BLOCK.saturating_sub(function.kernel().static_shared_bytes);
    let opted_in = function.settings.get(MAX_DYNAMIC_SHARED).unwrap_or(0).max(0) as u32;
    u64::from(of_default.max(opted_in))
}

/// What runs kernels.
pub struct Launcher {
    engine: Engine,
    /// Threads that it runs them on.
    workers: u64,
    visible: Visible,
}

/// What decides which memory a launch may touch beside its own device's.
pub struct Visible {
    /// Live contexts, of which some are peers.
    pub contexts: Arc<Handles<Context>>,
    /// Live memory pools, which may let other devices in.
    pub pools: Arc<Handles<MemoryPool>>,
    /// Memory of graphs, which may do so too.
    pub graphs: Arc<GraphMemory>,
    /// Texture and surface objects.
    pub objects: Arc<Objects>,
}

impl Launcher {
    /// Runs kernels on as many threads as the process may use processors.
    pub fn new(visible: Visible) -> Launcher {
        // Blocks of a kernel that is looked at run one after the other, so that what is found is the same in each run.
        let workers = match check::on().is_some() || profile::on().is_some() {
            true => 1,
            false => std::thread::available_parallelism().map_or(1, usize::from),
        };
        Launcher {
            engine: Engine::new(workers),
            workers: workers as u64,
            visible,
        }
    }
}

/// Puts a checked launch in a stream. `params` are laid out as the kernel declares them.
pub fn submit(
    launcher: &'static Launcher,
    function: Arc<Function>,
    geometry: Geometry,
    params: Vec<u8>,
    queue: &Queue,
) -> Result {
    if function.instance.context.id != queue.context.id {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    check(&function, &geometry)?;
    let traced = traced(launcher, queue.place(), &function, &geometry, &params);
    let number = check::launch((queue.context.id, queue.id));
    queue.run_kernel(traced, move |running| {
        run(launcher, &function, &geometry, &params, running, number)
    });
    Ok(())
}

/// What is recorded of a launch. `params` are laid out as the kernel declares them.
pub fn traced(
    launcher: &Launcher,
    place: Place,
    function: &Function,
    geometry: &Geometry,
    params: &[u8],
) -> Traced {
    trace::kernel(place, || {
        let view = View::new(launcher, &function.instance.context);
        let kernel = function.kernel();
        divvy_trace::Kernel {
            name: kernel.name.clone(),
            grid: geometry.grid,
            block: geometry.block,
            shared: geometry.shared_bytes,
            cooperative: geometry.cooperative,
            arguments: trace::arguments(&kernel.params, params, |address| view.range(address).is_some()),
        }
    })
}

/// Executes a checked launch on the calling thread; a failure stays with the context. The engine time it takes, in
/// nanoseconds. `number` is what [`check::launch`] gave it.
pub fn run(
    launcher: &Launcher,
    function: &Function,
    geometry: &Geometry,
    params: &[u8],
    running: &Running<'_>,
    number: u32,
) -> u64 {
    let context = &function.instance.context;
    let view = View::new(launcher, context);
    let profile = context.device.facts.profile;
    let dilation = context.device.facts.timing.dilation();
    let blocks: u64 = geometry.grid.iter().map(|&size| u64::from(size)).product();
    let shape = kernel_time::Shape {
        blocks,
        threads: geometry.block.iter().product(),
        shared_bytes: u64::from(geometry.shared_bytes),
        sms: context.device.facts.sm_count(),
    };
    let workers = launcher.workers.min(blocks).max(1);
    let progress = |progress: Progress| {
        running.progress(progress.cpu_ns / workers, progress.polling);
        if context.device.engine.server_fault().is_some() {
            context.cancel.store(true, Ordering::Relaxed);
        }
    };
    running.set_width(kernel_time::width(profile, function.kernel(), shape));
    let timing = Timing {
        start_ns: running.start_ns,
        instruction_ps: kernel_time::instruction_ps(profile, dilation),
        cpu_ns: &clock::thread_cpu_ns,
        progress: &progress,
    };
    let launch = Launch {
        kernel: &function.kernel().name,
        grid: geometry.grid,
        block: geometry.block,
        dynamic_shared_bytes: geometry.shared_bytes,
        params,
        memory: &view,
        cooperative: geometry.cooperative,
        clock_ns: &clock::now_ns,
        print: &|bytes| context.printed.append(bytes),
        cancel: &context.cancel,
        sm_count: context.device.facts.sm_count(),
        clock_khz: context.device.facts.profile.clock_khz,
        timing: running.is_modelled().then_some(timing),
        compile: context.device.facts.compile,
    };
    let program = &function.instance.program;
    let ended = if let Some(checker) = check::on() {
        let watch = Launched::new(checker, program, &launch, number);
        let ended = launcher.engine.run_watched(program, &launch, &watch);
        watch.ended(ended.as_ref().err());
        ended
    } else if let Some(profiler) = profile::on() {
        let watch = Counted::new(profiler, program.module(), launch.kernel, launch.grid);
        let ended = launcher.engine.run_watched(program, &launch, &watch);
        watch.ended();
        ended
    } else {
        launcher.engine.run(program, &launch)
    };
    match ended {
        Ok(stats) => kernel_time::length_ns(profile, function.kernel(), shape, &stats, dilation, workers),
        Err(fault) => {
            context.fail(code(&fault), &fault);
            kernel_time::SHORTEST
        }
    }
}

/// What CUDA calls a fault.
fn code(fault: &Fault) -> CUresult {
    match fault {
        Fault::IllegalAddress { .. } => CUDA_ERROR_ILLEGAL_ADDRESS,
        Fault::Assert { .. } => CUDA_ERROR_ASSERT,
        Fault::MisalignedAddress { .. } => CUDA_ERROR_MISALIGNED_ADDRESS,
        Fault::Trap { .. } | Fault::Cancelled | Fault::BadLaunch(_) => CUDA_ERROR_LAUNCH_FAILED,
        Fault::Unsupported(_) => CUDA_ERROR_NOT_SUPPORTED,
        Fault::Deadlock { .. } => CUDA_ERROR_LAUNCH_TIMEOUT,
    }
}

/// The memory a launch sees.
struct View<'a> {
    visible: &'a Visible,
    context: &'a Context,
    /// Memory that the engine was shown stays mapped until the launch ends, even if it is freed meanwhile.
    held: Mutex<HashMap<u64, Arc<Allocation>>>,
    /// So do the arrays of the objects that it was shown.
    arrays: Mutex<Vec<Arc<Array>>>,
}

impl<'a> View<'a> {
    fn new(launcher: &'a Launcher, context: &'a Context) -> View<'a> {
        View {
            visible: &launcher.visible,
            context,
            held: Mutex::default(),
            arrays: Mutex::default(),
        }
    }

    /// The texels of an object of the kernel's context, if they are all there.
    fn image(&self, object: &Object) -> Option<Image> {
        if object.context.id != self.context.id {
            return None;
        }
        let (image, array) = object.image()?;
        match array {
            Some(array) => self
                .arrays
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(array),
            None => {
                let range = self.range(image.address)?;
                if image.address + texture::reach(&image) > range.end {
                    return None;
                }
            }
        }
        Some(image)
    }
}

impl AddressSpace for View<'_> {
    fn range(&self, address: u64) -> Option<Range<u64>> {
        let allocation = self.context.addresses.live.find(address)?;
        if !self.visible.to(self.context, &allocation) {
            return None;
        }
        let range = allocation.base..allocation.end();
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(allocation.buffer_id, allocation);
        Some(range)
    }

    fn texture(&self, object: u64) -> Option<Texture> {
        let object = self.visible.objects.textures.get(object)?;
        object.texture(self.image(&object)?)
    }

    fn surface(&self, object: u64) -> Option<Image> {
        self.image(&*self.visible.objects.surfaces.get(object)?)
    }

    fn allocate(&self, bytes: u64) -> Option<u64> {
        let address = self.context.allocate(bytes)?;
        if let Some(checker) = check::on() {
            checker.given(address, bytes);
        }
        Some(address)
    }

    fn free(&self, address: u64) -> bool {
        self.context.heap.free(address)
    }
}

impl Visible {
    /// Whether a context's kernels may touch an allocation: its own device's, the host's, and that of peers it enabled.
    fn to(&self, context: &Context, allocation: &Allocation) -> bool {
        if let Some(mapped) = allocation.mapped() {
            return mapped.allows(Accessor::Device(context.device.ordinal));
        }
        if !allocation.kind.is_device() || allocation.device == context.device.ordinal {
            return true;
        }
        let peers = context.peers.read().unwrap_or_else(PoisonError::into_inner);
        let by_peer = peers.iter().any(|&peer| {
            self.contexts
                .get(peer)
                .is_some_and(|peer| peer.device.ordinal == allocation.device)
        });
        by_peer || self.granted(allocation, context.device.ordinal)
    }

    /// Whether the pool or the graph that an allocation came from lets another device use it.
    fn granted(&self, allocation: &Allocation, device: usize) -> bool {
        match allocation.kind {
            Kind::Graph => self
                .graphs
                .find(allocation.base)
                .is_ok_and(|reserved| reserved.grants(device)),
            Kind::Pooled { pool } => pool::grants_access(&self.pools, pool, device),
            _ => false,
        }
    }
}
