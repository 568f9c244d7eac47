//! A driver below with a device that is only a clock. A kernel of grid x lasts x microseconds; kernels run one after
//! the other in their stream, and streams run in parallel. The calls to it are recorded in order.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::time::Duration;

use divvy_abi::*;
use divvy_ledger::monotonic_ns;

/// The calls that a device would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    Kernel { stream: usize, us: u32, overlaps: bool },
    Graph { exec: usize },
    Event { stream: usize },
    ContextSynchronized,
}

#[derive(Default)]
pub struct Device {
    pub did: Vec<(u64, Did)>,
    /// When each stream will have finished its work.
    streams: BTreeMap<usize, u64>,
    priorities: BTreeMap<usize, i32>,
    events: BTreeMap<usize, u64>,
    next: usize,
    contexts: Vec<usize>,
    pub captured: Vec<usize>,
    /// Queries that would have spoiled a capture, or that concerned a destroyed object.
    pub wrongs: Vec<String>,
    pub graph_us: u32,
}

/// The driver's library has ended: no call may follow.
pub static ENDED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

static DEVICE: Mutex<Option<Device>> = Mutex::new(None);

pub fn with<T>(look: impl FnOnce(&mut Device) -> T) -> T {
    if ENDED.load(std::sync::atomic::Ordering::SeqCst) {
        std::process::abort();
    }
    let mut device = DEVICE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    look(device.get_or_insert_with(Device::default))
}

thread_local! {
    static CURRENT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Device {
    fn run(&mut self, stream: usize, us: u32, did: Did) -> CUresult {
        let now = monotonic_ns();
        if !self.captured.contains(&stream) {
            let end = self.streams.entry(stream).or_default();
            *end = (*end).max(now) + u64::from(us) * 1000;
            self.did.push((now, did));
        }
        CUDA_SUCCESS
    }

    /// When all work will be finished.
    pub fn end(&self) -> u64 {
        self.streams.values().copied().max().unwrap_or(0)
    }

    pub fn kernels(&self) -> usize {
        let kernel = |did: &&(u64, Did)| matches!(did.1, Did::Kernel { .. } | Did::Graph { .. });
        self.did.iter().filter(kernel).count()
    }

    pub fn any_context(&self) -> usize {
        self.contexts.last().copied().unwrap_or(0)
    }

    fn fresh(&mut self) -> usize {
        self.next += 16;
        0x10_0000 + self.next
    }

    fn asks(&mut self, what: &str) {
        if !self.captured.is_empty() {
            self.wrongs.push(format!("{what} while something is captured"));
        }
    }
}

/// Ready or not.
fn by(end: u64) -> CUresult {
    if monotonic_ns() >= end {
        CUDA_SUCCESS
    } else {
        CUDA_ERROR_NOT_READY
    }
}

/// The stream as the device knows it: the legacy default stream has two names.
fn id(stream: CUstream) -> usize {
    (stream as usize).max(1)
}

/// A default stream of each thread's own.
fn own(stream: CUstream) -> usize {
    match stream as usize {
        // SAFETY: always callable.
        0 | 2 => unsafe { libc::pthread_self() as usize },
        other => other,
    }
}

unsafe extern "C-unwind" fn launch(
    _: CUfunction,
    us: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    stream: CUstream,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> CUresult {
    let stream = id(stream);
    with(|device| {
        device.run(
            stream,
            us,
            Did::Kernel {
                stream,
                us,
                overlaps: false,
            },
        )
    })
}

unsafe extern "C-unwind" fn launch_ptsz(
    _: CUfunction,
    us: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    stream: CUstream,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> CUresult {
    let stream = own(stream);
    with(|device| {
        device.run(
            stream,
            us,
            Did::Kernel {
                stream,
                us,
                overlaps: false,
            },
        )
    })
}

unsafe extern "C-unwind" fn launch_ex(
    config: *const CUlaunchConfig,
    _: CUfunction,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> CUresult {
    // SAFETY: as the test calls it.
    let config = unsafe { &*config };
    let stream = id(config.hStream);
    let (us, overlaps) = (config.gridDimX, config.numAttrs > 0);
    with(|device| device.run(stream, us, Did::Kernel { stream, us, overlaps }))
}

unsafe extern "C-unwind" fn launch_grid(_: CUfunction, us: i32, _: i32, stream: CUstream) -> CUresult {
    let (stream, us) = (id(stream), us as u32);
    with(|device| {
        device.run(
            stream,
            us,
            Did::Kernel {
                stream,
                us,
                overlaps: false,
            },
        )
    })
}

unsafe extern "C-unwind" fn cooperative(
    _: CUfunction,
    us: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    stream: CUstream,
    _: *mut *mut c_void,
) -> CUresult {
    let stream = id(stream);
    with(|device| {
        device.run(
            stream,
            us,
            Did::Kernel {
                stream,
                us,
                overlaps: false,
            },
        )
    })
}

unsafe extern "C-unwind" fn launch_old(_: CUfunction) -> CUresult {
    with(|device| {
        device.run(
            1,
            100,
            Did::Kernel {
                stream: 1,
                us: 100,
                overlaps: false,
            },
        )
    })
}

unsafe extern "C-unwind" fn launch_wide(function: CUfunction, us: i32, high: i32) -> CUresult {
    // SAFETY: follows nothing.
    unsafe { launch_grid(function, us, high, std::ptr::null_mut()) }
}

unsafe extern "C-unwind" fn together(list: *mut CUDA_LAUNCH_PARAMS, count: u32, _: u32) -> CUresult {
    // SAFETY: as the test calls it.
    for one in unsafe { std::slice::from_raw_parts(list, count as usize) } {
        let (stream, us) = (id(one.hStream), one.gridDimX);
        with(|device| {
            device.run(
                stream,
                us,
                Did::Kernel {
                    stream,
                    us,
                    overlaps: false,
                },
            )
        });
    }
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn graph_launch(exec: CUgraphExec, stream: CUstream) -> CUresult {
    let exec = exec as usize;
    with(|device| {
        let us = device.graph_us;
        device.run(id(stream), us, Did::Graph { exec })
    })
}

unsafe extern "C-unwind" fn event_create(out: *mut CUevent, _: u32) -> CUresult {
    let event = with(Device::fresh);
    // SAFETY: the callers give valid out-parameters; so below.
    unsafe { out.write(event as CUevent) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn event_record(event: CUevent, stream: CUstream) -> CUresult {
    record(event, id(stream))
}

unsafe extern "C-unwind" fn event_record_ptsz(event: CUevent, stream: CUstream) -> CUresult {
    record(event, own(stream))
}

fn record(event: CUevent, stream: usize) -> CUresult {
    with(|device| {
        if device.captured.contains(&stream) {
            device.wrongs.push("an event recorded into a capture".to_owned());
        }
        let now = monotonic_ns();
        let end = device.streams.get(&stream).copied().unwrap_or(0).max(now);
        device.events.insert(event as usize, end);
        device.did.push((now, Did::Event { stream }));
    });
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn event_query(event: CUevent) -> CUresult {
    with(|device| match device.events.get(&(event as usize)) {
        Some(end) => by(*end),
        None => {
            device.wrongs.push("a question about no event".to_owned());
            CUDA_ERROR_INVALID_HANDLE
        }
    })
}

unsafe extern "C-unwind" fn elapsed(out: *mut f32, from: CUevent, to: CUevent) -> CUresult {
    with(|device| {
        let of = |event: CUevent| device.events[&(event as usize)] as f64;
        // SAFETY: as above.
        unsafe { out.write(((of(to) - of(from)) / 1e6) as f32) };
        CUDA_SUCCESS
    })
}

unsafe extern "C-unwind" fn stream_query(stream: CUstream) -> CUresult {
    with(|device| {
        device.asks("cuStreamQuery");
        match device.streams.get(&id(stream)) {
            Some(end) => by(*end),
            None => {
                device.wrongs.push("a question about no stream".to_owned());
                CUDA_ERROR_INVALID_HANDLE
            }
        }
    })
}

unsafe extern "C-unwind" fn stream_create(out: *mut CUstream, _: u32) -> CUresult {
    let stream = with(|device| {
        let stream = device.fresh();
        device.streams.insert(stream, 0);
        stream
    });
    // SAFETY: as above.
    unsafe { out.write(stream as CUstream) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn stream_with_priority(out: *mut CUstream, flags: u32, priority: i32) -> CUresult {
    // SAFETY: the caller's promise.
    let result = unsafe { stream_create(out, flags) };
    // SAFETY: as above: it has just been written.
    let stream = id(unsafe { out.read() });
    with(|device| device.priorities.insert(stream, priority));
    result
}

unsafe extern "C-unwind" fn stream_priority(stream: CUstream, out: *mut i32) -> CUresult {
    let priority = with(|device| device.priorities.get(&id(stream)).copied().unwrap_or(0));
    // SAFETY: the caller's promise.
    unsafe { out.write(priority) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn stream_destroy(stream: CUstream) -> CUresult {
    with(|device| device.streams.remove(&id(stream)));
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn stream_synchronize(stream: CUstream) -> CUresult {
    let end = with(|device| device.streams.get(&id(stream)).copied().unwrap_or(0));
    sleep_until(end);
    CUDA_SUCCESS
}

fn sleep_until(end: u64) {
    std::thread::sleep(Duration::from_nanos(end.saturating_sub(monotonic_ns())));
}

unsafe extern "C-unwind" fn context_synchronize() -> CUresult {
    let end = with(|device| {
        device.asks("cuCtxSynchronize");
        device.end()
    });
    sleep_until(end);
    with(|device| device.did.push((monotonic_ns(), Did::ContextSynchronized)));
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn context_create(out: *mut CUcontext, _: u32, _: CUdevice) -> CUresult {
    let context = with(|device| {
        let context = device.fresh();
        device.contexts.push(context);
        context
    });
    CURRENT.set(context);
    // SAFETY: as above.
    unsafe { out.write(context as CUcontext) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn context_destroy(context: CUcontext) -> CUresult {
    sleep_until(with(|device| device.end()));
    with(|device| {
        device.contexts.retain(|known| *known != context as usize);
        device.events.clear();
        device.streams.clear();
    });
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn context_get(out: *mut CUcontext) -> CUresult {
    // SAFETY: as above.
    unsafe { out.write(CURRENT.get() as CUcontext) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn context_set(context: CUcontext) -> CUresult {
    let context = context as usize;
    let known = with(|device| {
        let known = context == 0 || device.contexts.contains(&context);
        if !known {
            device.wrongs.push("a context that has ended".to_owned());
        }
        known
    });
    CURRENT.set(context);
    if known {
        CUDA_SUCCESS
    } else {
        CUDA_ERROR_CONTEXT_IS_DESTROYED
    }
}

unsafe extern "C-unwind" fn stream_context(_: CUstream, out: *mut CUcontext) -> CUresult {
    // SAFETY: as above.
    unsafe { context_get(out) }
}

unsafe extern "C-unwind" fn device_get(out: *mut CUdevice) -> CUresult {
    // SAFETY: as above.
    unsafe { out.write(0) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn is_capturing(stream: CUstream, out: *mut CUstreamCaptureStatus) -> CUresult {
    let captured = with(|device| device.captured.contains(&id(stream)));
    // SAFETY: as above.
    unsafe {
        out.write(if captured {
            CU_STREAM_CAPTURE_STATUS_ACTIVE
        } else {
            CU_STREAM_CAPTURE_STATUS_NONE
        });
    }
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn begin_capture(stream: CUstream, _: CUstreamCaptureMode) -> CUresult {
    with(|device| device.captured.push(id(stream)));
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn end_capture(stream: CUstream, _: *mut CUgraph) -> CUresult {
    with(|device| device.captured.retain(|captured| *captured != id(stream)));
    CUDA_SUCCESS
}

/// The driver.
pub static CLOCK: Table = Table {
    cuLaunchKernel: launch,
    cuLaunchKernel_ptsz: launch_ptsz,
    cuLaunchKernelEx: launch_ex,
    cuLaunchKernelEx_ptsz: launch_ex,
    cuLaunchCooperativeKernel: cooperative,
    cuLaunchCooperativeKernel_ptsz: cooperative,
    cuLaunchGridAsync: launch_grid,
    cuLaunch: launch_old,
    cuLaunchGrid: launch_wide,
    cuLaunchCooperativeKernelMultiDevice: together,
    cuGraphLaunch: graph_launch,
    cuGraphLaunch_ptsz: graph_launch,
    cuEventCreate: event_create,
    cuEventRecord: event_record,
    cuEventRecord_ptsz: event_record_ptsz,
    cuEventQuery: event_query,
    cuEventElapsedTime: elapsed,
    cuStreamCreate: stream_create,
    cuStreamCreateWithPriority: stream_with_priority,
    cuStreamGetPriority: stream_priority,
    cuStreamDestroy_v2: stream_destroy,
    cuStreamQuery: stream_query,
    cuStreamSynchronize: stream_synchronize,
    cuStreamGetCtx: stream_context,
    cuStreamIsCapturing: is_capturing,
    cuStreamIsCapturing_ptsz: is_capturing,
    cuStreamBeginCapture_v2: begin_capture,
    cuStreamEndCapture: end_capture,
    cuCtxCreate_v2: context_create,
    cuCtxDestroy_v2: context_destroy,
    cuCtxGetCurrent: context_get,
    cuCtxSetCurrent: context_set,
    cuCtxGetDevice: device_get,
    cuCtxSynchronize: context_synchronize,
    ..Table::UNSUPPORTED
};
