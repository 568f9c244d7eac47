//! Stream-ordered frees: their bytes come back when the stream gets there, not at the call.
//!
//! Behind each free an event of our own is recorded in the stream, and what was freed waits under it as a mark. A stream has
//! at most [`MARKS_OF_A_STREAM`] marks for one payer; with more frees than that, the newest mark moves along.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use divvy_abi::{
    CU_EVENT_DISABLE_TIMING, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUcontext,
    CUevent, CUstream,
};

use super::held::Piece;
use super::parting::Parting;
use super::{is_pool, locked, pools, returned_piece};
use crate::account;
use crate::below::ask::{self, Quiet};
use crate::below::forward;

const MARKS_OF_A_STREAM: usize = 4;
/// Events kept for later marks.
const SPARE_EVENTS: usize = 64;

/// A stream as a call names it.
#[derive(Clone, Copy)]
pub(crate) struct StreamName {
    pub stream: CUstream,
    /// The call's default stream is each thread's own.
    pub per_thread: bool,
}

/// What is freed in stream order.
pub(crate) enum Freed {
    /// A piece that a payer has paid for.
    Piece(u16, Piece),
    /// What reaches beyond this process.
    Parting(Box<Parting>),
}

/// Which lane of the device a free stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lane {
    context: usize,
    stream: usize,
    /// The thread whose default stream it is, else 0.
    thread: usize,
}

struct Mark {
    lane: Lane,
    payer: u16,
    what: Load,
    /// Our event behind the free; 0 where none could be had: then it waits for the context to be synchronised.
    event: usize,
    /// It stands behind later frees than its first: some of it may be free long before.
    moved: bool,
    /// Its stream is destroyed: a new one of the same handle is another.
    sealed: bool,
}

/// What a mark waits with.
#[derive(Default)]
struct Load {
    pieces: Vec<Piece>,
    partings: Vec<Parting>,
    /// Bytes of all of them.
    bytes: u64,
}

struct Waiting {
    marks: Vec<Mark>,
    /// Events to use again, by context.
    spare: Vec<(usize, usize)>,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting {
    marks: Vec::new(),
    spare: Vec::new(),
});
static MARKS: AtomicUsize = AtomicUsize::new(0);

/// Whether any free is waited for.
#[inline]
pub(crate) fn any() -> bool {
    MARKS.load(Ordering::Relaxed) != 0
}

impl StreamName {
    fn lane(self) -> Lane {
        let name = self.stream as usize;
        let own = name == CU_STREAM_PER_THREAD as usize || (name == 0 && self.per_thread);
        let default = name <= CU_STREAM_PER_THREAD as usize;
        Lane {
            context: if default {
                ask::current_context()
            } else {
                ask::context_of(self.stream)
            },
            stream: if default && !own {
                CU_STREAM_LEGACY as usize
            } else {
                name
            },
            thread: if own { this_thread() } else { 0 },
        }
    }

    /// Records an event here.
    fn record(self, event: usize) -> divvy_abi::CUresult {
        let event = event as CUevent;
        // SAFETY: our own event, in a stream that the program has just used with success.
        unsafe {
            if self.per_thread {
                forward::cuEventRecord_ptsz(event, self.stream)
            } else {
                forward::cuEventRecord(event, self.stream)
            }
        }
    }
}

fn this_thread() -> usize {
    // SAFETY: always callable.
    unsafe { libc::pthread_self() as usize }
}

/// Notes a free in stream order that the driver has accepted.
pub(crate) fn defer(name: StreamName, freed: Freed) {
    let _quiet = Quiet::begin();
    let lane = name.lane();
    let payer = match &freed {
        Freed::Piece(payer, _) => *payer,
        Freed::Parting(parting) => parting.payer(),
    };
    let (event, mut what) = room_for_a_mark(lane, payer);
    let moved = what.bytes > 0;
    match freed {
        Freed::Piece(_, piece) => {
            what.bytes += piece.bytes;
            what.pieces.push(piece);
        }
        Freed::Parting(parting) => {
            what.bytes += parting.bytes();
            what.partings.push(*parting);
        }
    }
    let event = match event.map_or_else(|| ask::in_context(lane.context, new_event), Ok) {
        Ok(event) => event,
        // A driver without events cannot be asked when a stream gets anywhere.
        Err(CUDA_ERROR_NOT_SUPPORTED) => return what.arrived(payer),
        Err(_) => 0,
    };
    let recorded = event != 0 && name.record(event) == CUDA_SUCCESS;
    let mut waiting = locked(&WAITING);
    if event != 0 && !recorded {
        waiting.spare.push((lane.context, event));
    }
    waiting.marks.push(Mark {
        lane,
        payer,
        what,
        event: if recorded { event } else { 0 },
        moved,
        sealed: false,
    });
    MARKS.store(waiting.marks.len(), Ordering::Relaxed);
}

/// An event to record if one is at hand, and what the mark it was taken from waits with.
fn room_for_a_mark(lane: Lane, payer: u16) -> (Option<usize>, Load) {
    let mut waiting = locked(&WAITING);
    let same = |mark: &Mark| mark.lane == lane && mark.payer == payer && !mark.sealed && mark.event != 0;
    if waiting.marks.iter().filter(|mark| same(mark)).count() >= MARKS_OF_A_STREAM
        && let Some(newest) = waiting.marks.iter().rposition(same)
    {
        let newest = waiting.marks.remove(newest);
        return (Some(newest.event), newest.what);
    }
    let spare = waiting
        .spare
        .iter()
        .position(|(context, _)| *context == lane.context);
    (spare.map(|at| waiting.spare.swap_remove(at).1), Load::default())
}

fn new_event() -> Result<usize, divvy_abi::CUresult> {
    let mut event: CUevent = core::ptr::null_mut();
    // SAFETY: a valid out-parameter.
    unsafe { forward::cuEventCreate(&raw mut event, CU_EVENT_DISABLE_TIMING.0) }.ok()?;
    Ok(event as usize)
}

/// Bytes of `pool` whose frees wait in this stream for certain: what the driver may hand out again in the same stream.
pub(crate) fn waiting_in(name: StreamName, pool: u16) -> u64 {
    if !any() {
        return 0;
    }
    let lane = name.lane();
    let waiting = locked(&WAITING);
    let same = waiting
        .marks
        .iter()
        .filter(|mark| mark.lane == lane && mark.payer == pool && !mark.moved);
    same.map(|mark| mark.what.bytes).sum()
}

/// All bytes that wait for a stream.
pub(crate) fn waiting_bytes() -> u64 {
    locked(&WAITING).marks.iter().map(|mark| mark.what.bytes).sum()
}

/// Gives back what the streams have come to. Answers whether anything came back.
pub(crate) fn settle() -> bool {
    if !any() {
        return false;
    }
    let _quiet = Quiet::begin();
    let mut waiting = locked(&WAITING);
    let Waiting { marks, spare } = &mut *waiting;
    let mut behind: Vec<Lane> = Vec::new();
    let reached = |mark: &mut Mark| {
        if mark.event == 0 || behind.contains(&mark.lane) {
            return false;
        }
        // SAFETY: our own event; what became of it the driver says.
        match unsafe { forward::cuEventQuery(mark.event as CUevent) } {
            CUDA_SUCCESS => spare.push((mark.lane.context, mark.event)),
            // It went with its context, and so did the stream.
            CUDA_ERROR_INVALID_HANDLE | CUDA_ERROR_CONTEXT_IS_DESTROYED | CUDA_ERROR_DEINITIALIZED => {}
            // Not there yet; or the context has failed, and keeps its memory until it ends.
            _ => {
                behind.push(mark.lane);
                return false;
            }
        }
        true
    };
    let done: Vec<Mark> = marks.extract_if(.., reached).collect();
    MARKS.store(marks.len(), Ordering::Relaxed);
    let surplus = spare.len().saturating_sub(SPARE_EVENTS);
    for (_, event) in spare.drain(..surplus) {
        // SAFETY: our own event, and nobody waits for it.
        let _destroyed = unsafe { forward::cuEventDestroy_v2(event as CUevent) };
    }
    drop(waiting);
    let any = !done.is_empty();
    for mark in done {
        mark.what.arrived(mark.payer);
    }
    any
}

/// The current context's work is all done.
pub(crate) fn context_synchronized() {
    if any() && account::keeps_books() {
        let context = ask::current_context();
        take_out(|mark| mark.event == 0 && mark.lane.context == context);
    }
}

/// A stream is destroyed, or about to be: what waits in it still does.
pub(crate) fn seal(stream: CUstream) {
    if any() && account::keeps_books() {
        for mark in &mut locked(&WAITING).marks {
            mark.sealed |= mark.lane.stream == stream as usize;
        }
    }
}

/// A context has ended, with its streams and events, and all their work was done before.
pub(crate) fn context_ended(context: CUcontext) {
    if account::keeps_books() {
        let ended = context as usize;
        locked(&WAITING).spare.retain(|(context, _)| *context != ended);
        take_out(|mark| mark.lane.context == ended);
    }
}

fn take_out(which: impl Fn(&Mark) -> bool) {
    let mut waiting = locked(&WAITING);
    let out: Vec<Mark> = waiting.marks.extract_if(.., |mark| which(mark)).collect();
    MARKS.store(waiting.marks.len(), Ordering::Relaxed);
    drop(waiting);
    for mark in out {
        mark.what.arrived(mark.payer);
    }
}

impl Load {
    /// The stream has come to these frees. No lock is held.
    fn arrived(self, payer: u16) {
        if is_pool(payer) {
            if !self.pieces.is_empty() {
                pools::arrived(payer, &self.pieces);
            }
        } else {
            for piece in self.pieces {
                returned_piece(payer, piece);
            }
        }
        for parting in self.partings {
            parting.arrived();
        }
    }
}
