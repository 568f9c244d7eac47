//! Stream capture: work put into a stream becomes nodes of a graph instead of running.
//!
//! The rules are those of the CUDA programming guide ("Creating a Graph Using Stream Capture": cross-stream
//! dependencies and events; prohibited and unhandled operations; invalidation) and of the driver API's reference
//! (cuStreamBeginCapture, cuThreadExchangeStreamCaptureMode). An invalid call during a capture invalidates it. From
//! then on its streams and events give errors, until cuStreamEndCapture, which gives one more.

use super::edge::{Before, EdgeData, PROGRAMMATIC};
use super::memory::GraphMemory;
use super::physical::StreamKey;
use super::topology::{Graph, GraphHandles};
use super::work::Work;
use crate::event::{Event, Mark};
use crate::order::StreamKind;
use crate::stream::Queue;
use crate::{Result, handle};
use divvy_abi::*;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// The streams that are captured.
pub struct Captures {
    /// The live graphs, which new ones join.
    graphs: Arc<GraphHandles>,
    /// How many captures there are. A program without any needs one load to know.
    active: AtomicUsize,
    streams: Mutex<HashMap<StreamKey, CapturedStream>>,
}

/// A capture sequence, over all its streams.
struct Capture {
    id: u64,
    graph: Arc<Graph>,
    /// The graph is the program's: it stays if the capture fails.
    given: bool,
    mode: CUstreamCaptureMode,
    thread: ThreadId,
    origin: StreamKey,
    invalid: AtomicBool,
}

/// A captured stream.
struct CapturedStream {
    capture: Arc<Capture>,
    /// What its next node comes after.
    before: Vec<Before>,
    /// The legacy default stream would wait for it.
    blocking: bool,
    /// What cuStreamGetCaptureInfo lent out last.
    lent: Lent,
}

#[derive(Default)]
struct Lent {
    nodes: Box<[u64]>,
    edges: Box<[CUgraphEdgeData]>,
}

/// What cuStreamGetCaptureInfo tells of a captured stream.
pub struct Info {
    /// CU_STREAM_CAPTURE_STATUS_*.
    pub status: CUstreamCaptureStatus,
    /// Unique in the process.
    pub id: u64,
    /// The graph captured into.
    pub graph: u64,
    /// What its next node comes after, valid until the stream's next call.
    pub nodes: *const CUgraphNode,
    /// The edges from them.
    pub edges: *const CUgraphEdgeData,
    /// How many there are.
    pub count: usize,
    /// Whether some edge says more than the default.
    pub annotated: bool,
}

/// Where the work of a call goes.
pub enum Target<'a> {
    /// It runs.
    Queue(Queue),
    /// It becomes a node.
    Capture(Recorder<'a>),
}

/// A captured stream to add nodes to.
pub struct Recorder<'a> {
    captures: &'a Captures,
    /// The stream.
    pub queue: Queue,
}

thread_local! {
    /// cuThreadExchangeStreamCaptureMode.
    static MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

/// Sets the calling thread's mode; the one before.
pub fn exchange_mode(new: CUstreamCaptureMode) -> Result<CUstreamCaptureMode> {
    if new > CU_STREAM_CAPTURE_MODE_RELAXED {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    MODE.try_with(|mode| mode.replace(new))
        .map_err(|_| CUDA_ERROR_DEINITIALIZED)
}

impl Capture {
    fn invalidate(&self) {
        self.invalid.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result {
        if self.invalid.load(Ordering::Relaxed) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        Ok(())
    }

    /// Gives up its graph.
    fn abandon(&self) {
        self.graph.lock().captures -= 1;
        if !self.given {
            let _ = self.graph.destroy();
        }
    }
}

fn key(queue: &Queue) -> StreamKey {
    (queue.context.id, queue.id)
}

impl Captures {
    /// No stream is captured. Captures add to these graphs.
    pub fn new(graphs: Arc<GraphHandles>) -> Captures {
        Captures {
            graphs,
            active: AtomicUsize::new(0),
            streams: Mutex::default(),
        }
    }

    /// Refuses a call that a capture would not see and that may be unsafe meanwhile, such as cuMemAlloc. It is refused
    /// in a thread that captures, and while another thread captures in global mode, unless the thread's mode or the
    /// capture's says otherwise.
    pub fn unsafe_call(&self) -> Result {
        if self.active.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mode = MODE.try_with(Cell::get).unwrap_or(CU_STREAM_CAPTURE_MODE_RELAXED);
        let me = std::thread::current().id();
        self.refuse_if(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, |_, captured| {
            let capture = &captured.capture;
            let own = capture.thread == me && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
            let global =
                mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
            mode != CU_STREAM_CAPTURE_MODE_RELAXED && (own || global)
        })
    }

    /// Whether a stream is captured. The legacy stream is free as long as no stream it would wait for is captured.
    fn captures(&self, queue: &Queue) -> Result<bool> {
        if self.active.load(Ordering::Relaxed) == 0 {
            return Ok(false);
        }
        if let Some(captured) = self.lock().get(&key(queue)) {
            return captured.capture.check().map(|()| true);
        }
        if queue.kind == StreamKind::Legacy {
            self.refuse_if(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, |stream, captured| {
                stream.0 == queue.context.id && captured.blocking
            })?;
        }
        Ok(false)
    }

    /// Refuses a stream that is captured, for calls that cannot be.
    pub fn refuse(&self, queue: &Queue) -> Result {
        if self.captures(queue)? {
            let own = key(queue);
            return self.refuse_if(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, |stream, _| *stream == own);
        }
        Ok(())
    }

    /// Where the work of a call in this stream goes.
    pub fn target(&self, queue: Queue) -> Result<Target<'_>> {
        Ok(if self.captures(&queue)? {
            Target::Capture(Recorder {
                captures: self,
                queue,
            })
        } else {
            Target::Queue(queue)
        })
    }

    /// Refuses a wait for all streams of a context while one is captured.
    pub fn refuse_context(&self, context: u64) -> Result {
        if self.active.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.refuse_if(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, |stream, _| {
            stream.0 == context
        })
    }

    /// Refuses an event that was recorded in a captured stream, for calls that need work that runs.
    pub fn refuse_event(&self, event: &Event) -> Result {
        let Mark::Captured { capture, .. } = event.place() else {
            return Ok(());
        };
        self.refuse_if(CUDA_ERROR_CAPTURED_EVENT, |_, captured| {
            captured.capture.id == capture
        })?;
        Err(CUDA_ERROR_CAPTURED_EVENT)
    }

    /// Begins a capture, into a new graph or after nodes of a given one.
    pub fn begin(
        &self,
        queue: &Queue,
        mode: CUstreamCaptureMode,
        into: Option<(Arc<Graph>, Vec<Before>)>,
    ) -> Result {
        if mode > CU_STREAM_CAPTURE_MODE_RELAXED {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if queue.kind == StreamKind::Legacy {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut streams = self.lock();
        if streams.contains_key(&key(queue)) {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        let given = into.is_some();
        let (graph, before) = match into {
            Some(into) => into,
            None => (Graph::create(&self.graphs), Vec::new()),
        };
        {
            let mut inner = graph.lock();
            check_nodes(&mut inner, &before)?;
            inner.captures += 1;
        }
        let capture = Arc::new(Capture {
            id: handle::fresh(),
            graph,
            given,
            mode,
            thread: std::thread::current().id(),
            origin: key(queue),
            invalid: AtomicBool::new(false),
        });
        streams.insert(key(queue), CapturedStream::new(queue, capture, before));
        self.active.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the capture that began in this stream; its graph.
    pub fn end(&self, queue: &Queue) -> Result<Arc<Graph>> {
        let mut streams = self.lock();
        let captured = streams.get(&key(queue)).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = Arc::clone(&captured.capture);
        if capture.origin != key(queue) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture.thread != std::thread::current().id() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        let ended = self.remove(&mut streams, &capture);
        drop(streams);
        let outcome = capture.check().and_then(|()| joined(&capture, &ended));
        match outcome {
            Ok(()) => {
                capture.graph.lock().captures -= 1;
                Ok(Arc::clone(&capture.graph))
            }
            Err(why) => {
                capture.abandon();
                Err(why)
            }
        }
    }

    /// What is known of a stream; None if it is not captured.
    pub fn info(&self, queue: &Queue) -> Result<Option<Info>> {
        if self.active.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        let mut streams = self.lock();
        if queue.kind == StreamKind::Legacy {
            // A query alone spoils nothing.
            let blocked = streams
                .iter()
                .any(|(stream, captured)| stream.0 == queue.context.id && captured.blocking);
            return if blocked {
                Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
            } else {
                Ok(None)
            };
        }
        Ok(streams.get_mut(&key(queue)).map(CapturedStream::info))
    }

    /// Replaces or extends what a captured stream's next node comes after.
    pub fn update(&self, queue: &Queue, nodes: Vec<Before>, replace: bool) -> Result {
        let mut streams = self.lock();
        let captured = streams.get_mut(&key(queue)).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        captured.capture.check()?;
        check_nodes(&mut captured.capture.graph.lock(), &nodes)?;
        if replace {
            captured.before = nodes;
        } else {
            merge(&mut captured.before, &nodes);
        }
        Ok(())
    }

    /// Makes a stream wait for an event, where a capture is involved; false where none is.
    pub fn wait(&self, queue: &Queue, event: &Arc<Event>, external: bool) -> Result<bool> {
        let captured = self.captures(queue)?;
        if external {
            if !captured {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            self.add(queue, Work::Wait(Arc::clone(event)))?;
            return Ok(true);
        }
        match event.place() {
            Mark::Captured { capture, nodes } => self.join(queue, capture, &nodes).map(|()| true),
            // A recording of another process is no part of any capture here.
            place if captured && (matches!(place, Mark::Task(_)) || event.shared.is_some()) => {
                let own = key(queue);
                self.refuse_if(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, |stream, _| *stream == own)?;
                Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
            }
            // Without a recording there is nothing to wait for.
            Mark::Nothing => Ok(captured),
            _ => Ok(false),
        }
    }

    /// A stream waits for what was captured: it takes part in that capture from here on.
    fn join(&self, queue: &Queue, id: u64, nodes: &[Before]) -> Result {
        let mut streams = self.lock();
        let other = streams.values().find(|captured| captured.capture.id == id);
        let other = other.map(|captured| Arc::clone(&captured.capture));
        let own = streams
            .get(&key(queue))
            .map(|captured| Arc::clone(&captured.capture));
        let Some(capture) = other else {
            // That capture is over.
            if let Some(own) = own {
                own.invalidate();
            }
            return Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        };
        capture.check()?;
        match own {
            Some(own) if own.id != id => {
                own.invalidate();
                capture.invalidate();
                Err(CUDA_ERROR_STREAM_CAPTURE_MERGE)
            }
            None if queue.kind == StreamKind::Legacy => {
                capture.invalidate();
                Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
            }
            _ => {
                let captured = streams
                    .entry(key(queue))
                    .or_insert_with(|| CapturedStream::new(queue, capture, Vec::new()));
                merge(&mut captured.before, nodes);
                Ok(())
            }
        }
    }

    /// Records an event, where the stream is captured; false where it is not.
    pub fn record(&self, queue: &Queue, event: &Arc<Event>, external: bool) -> Result<bool> {
        if !self.captures(queue)? {
            return if external {
                Err(CUDA_ERROR_INVALID_VALUE)
            } else {
                Ok(false)
            };
        }
        if external {
            self.add(queue, Work::Record(Arc::clone(event)))?;
            return Ok(true);
        }
        let streams = self.lock();
        let captured = streams.get(&key(queue)).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        event.captured(captured.capture.id, captured.before.clone());
        Ok(true)
    }

    fn add(&self, queue: &Queue, work: Work) -> Result<u64> {
        let mut streams = self.lock();
        let captured = streams.get_mut(&key(queue)).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        captured.capture.check()?;
        let graph = &captured.capture.graph;
        let mut before = captured.before.clone();
        if let Work::Kernel(kernel) = &work
            && kernel.attributes.is_programmatic()
        {
            let mut inner = graph.lock();
            for (earlier, data) in &mut before {
                if inner.node(*earlier)?.work.is_kernel() {
                    *data = PROGRAMMATIC;
                }
            }
        }
        let node = graph.add(work, &before)?;
        captured.before = vec![(node, EdgeData::default())];
        Ok(node)
    }

    /// A stream is destroyed: a capture that began in it is over. A capture that it only takes part in goes on, and the
    /// stream's work still has to be joined (cuda-core destroys the streams of a fork once it has joined them).
    pub fn forget_stream(&self, gone: &Queue) {
        let began = self
            .lock()
            .get(&key(gone))
            .is_some_and(|captured| captured.capture.origin == key(gone));
        if began {
            self.forget(|stream| *stream == key(gone));
        }
    }

    /// Streams are gone, and with them the captures that began in one of them. Other captures with these streams are
    /// spoilt.
    pub fn forget(&self, gone: impl Fn(&StreamKey) -> bool) {
        if self.active.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut streams = self.lock();
        let lost: Vec<_> = streams
            .iter()
            .filter(|(stream, _)| gone(stream))
            .map(|(stream, captured)| (*stream, Arc::clone(&captured.capture)))
            .collect();
        let mut over = Vec::new();
        for (stream, capture) in lost {
            capture.invalidate();
            if capture.origin == stream {
                self.remove(&mut streams, &capture);
                over.push(capture);
            } else {
                streams.remove(&stream);
            }
        }
        drop(streams);
        for capture in over {
            capture.abandon();
        }
    }

    /// Invalidates the captures whose streams satisfy `wrong`, and fails if there are any.
    fn refuse_if(&self, code: CUresult, wrong: impl Fn(&StreamKey, &CapturedStream) -> bool) -> Result {
        let mut any = false;
        for (stream, captured) in &*self.lock() {
            if wrong(stream, captured) {
                captured.capture.invalidate();
                any = true;
            }
        }
        if any { Err(code) } else { Ok(()) }
    }

    fn remove(
        &self,
        streams: &mut HashMap<StreamKey, CapturedStream>,
        capture: &Capture,
    ) -> HashMap<StreamKey, CapturedStream> {
        self.active.fetch_sub(1, Ordering::Relaxed);
        streams
            .extract_if(|_, captured| captured.capture.id == capture.id)
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StreamKey, CapturedStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether all that was captured in other streams comes before the end of the first.
fn joined(capture: &Capture, ended: &HashMap<StreamKey, CapturedStream>) -> Result {
    let Some(origin) = ended.get(&capture.origin) else {
        return Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    };
    let inner = capture.graph.lock();
    let reached = inner.ancestors(origin.before.iter().map(|(node, _)| *node));
    let left = ended
        .values()
        .flat_map(|captured| &captured.before)
        .any(|(node, _)| !reached.contains(node));
    if left {
        Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
    } else {
        Ok(())
    }
}

/// Refuses nodes of other graphs.
fn check_nodes(inner: &mut super::topology::Inner, nodes: &[Before]) -> Result {
    nodes.iter().try_for_each(|(node, _)| inner.node(*node).map(drop))
}

fn merge(into: &mut Vec<Before>, nodes: &[Before]) {
    for (node, data) in nodes {
        if into.iter().all(|(other, _)| other != node) {
            into.push((*node, *data));
        }
    }
}

impl CapturedStream {
    fn new(queue: &Queue, capture: Arc<Capture>, before: Vec<Before>) -> CapturedStream {
        CapturedStream {
            capture,
            before,
            blocking: queue.kind == StreamKind::Blocking,
            lent: Lent::default(),
        }
    }

    fn info(&mut self) -> Info {
        self.lent = Lent {
            nodes: self.before.iter().map(|(node, _)| *node).collect(),
            edges: self.before.iter().map(|(_, data)| data.write()).collect(),
        };
        let active = self.capture.check().is_ok();
        Info {
            status: if active {
                CU_STREAM_CAPTURE_STATUS_ACTIVE
            } else {
                CU_STREAM_CAPTURE_STATUS_INVALIDATED
            },
            id: self.capture.id,
            graph: self.capture.graph.handle,
            nodes: self.lent.nodes.as_ptr().cast(),
            edges: self.lent.edges.as_ptr(),
            count: self.before.len(),
            annotated: self.before.iter().any(|(_, data)| *data != EdgeData::default()),
        }
    }
}

impl Recorder<'_> {
    /// Adds a node after what the stream holds.
    pub fn add(&self, work: Work) -> Result<u64> {
        self.captures.add(&self.queue, work)
    }

    /// Adds an allocation node on a device that others may use as `access` says; its address.
    pub fn allocate(
        &self,
        memory: &Arc<GraphMemory>,
        device: CUdevice,
        access: &[(CUdevice, u32)],
        bytes: usize,
    ) -> Result<u64> {
        let on = |id| CUmemLocation {
            type_: CU_MEM_LOCATION_TYPE_DEVICE,
            anonymous1: CUmemLocation_v1_anonymous1 { id },
        };
        let properties = CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            location: on(device),
            ..CUmemPoolProps::default()
        };
        let access = access.iter().map(|&(device, flags)| CUmemAccessDesc {
            location: on(device),
            flags: CUmemAccess_flags(flags as _),
        });
        let reserved = memory.reserve(properties, access.collect(), bytes)?;
        reserved.own(self.graph()?);
        let address = reserved.base();
        self.add(Work::Alloc(reserved))?;
        Ok(address)
    }

    /// Adds a free node for memory of an allocation node.
    pub fn free(&self, memory: &GraphMemory, pointer: u64) -> Result {
        let (reserved, graph) = (memory.find(pointer)?, self.graph()?);
        reserved.free_in(graph)?;
        let added = self.add(Work::Free(Arc::clone(&reserved)));
        added.map(drop).inspect_err(|_| reserved.not_free_in(graph))
    }

    /// The graph captured into.
    fn graph(&self) -> Result<u64> {
        let streams = self.captures.lock();
        let captured = streams.get(&key(&self.queue)).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        Ok(captured.capture.graph.handle)
    }
}
