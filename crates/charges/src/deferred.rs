//! Frees in stream order: their bytes come back when the stream reaches them, not at the call.
//!
//! Behind each free an event of ours is recorded in the stream, and the freed memory waits under it as a mark. A stream
//! has at most [`MARKS_OF_A_STREAM`] marks for one owner; with more frees than that, the newest mark moves along.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use divvy_abi::CUDA_ERROR_NOT_SUPPORTED;

use crate::environment::{Environment, Progress, Stream, StreamId};
use crate::lock::locked;
use crate::owner::{Extent, Owned, Owner};
use crate::release::{Live, Releasing};

const MARKS_OF_A_STREAM: usize = 4;
/// Events kept for later marks.
const SPARE_EVENTS: usize = 64;

/// A free in stream order.
#[derive(Debug)]
pub(crate) enum Freed {
    /// An allocation that only this process holds.
    Owned(Owned),
    /// Memory that reaches beyond this process.
    Releasing(Box<Releasing>),
}

struct Mark {
    stream: StreamId,
    owner: Owner,
    load: Load,
    /// Our event behind the free. 0 if none was available: then it waits until the context is synchronised.
    event: usize,
    /// It stands behind later frees than its first: some of the memory may be free long before.
    moved: bool,
    /// Its stream is destroyed: a new stream with the same handle is another stream.
    sealed: bool,
}

/// The memory that a mark waits with.
#[derive(Default)]
struct Load {
    extents: Vec<Extent>,
    releasing: Vec<Releasing>,
    /// Bytes of all of them.
    bytes: u64,
}

/// Frees that their streams have yet to reach, over live memory.
pub(crate) struct Deferred<E> {
    pub live: Live<E>,
    waiting: Mutex<Waiting>,
    marks: AtomicUsize,
}

struct Waiting {
    marks: Vec<Mark>,
    /// Events to reuse, by context.
    spare: Vec<(usize, usize)>,
}

impl<E> Deferred<E> {
    pub const fn new(env: E) -> Self {
        Self {
            live: Live::new(env),
            waiting: Mutex::new(Waiting {
                marks: Vec::new(),
                spare: Vec::new(),
            }),
            marks: AtomicUsize::new(0),
        }
    }
}

impl<E: Environment> Deferred<E> {
    fn env(&self) -> &E {
        self.live.charged().env()
    }

    /// Whether any free is pending.
    #[inline]
    pub fn any(&self) -> bool {
        self.marks.load(Ordering::Relaxed) != 0
    }

    fn count(&self, waiting: &Waiting) {
        self.marks.store(waiting.marks.len(), Ordering::Relaxed);
    }

    /// Records a free in stream order that the driver has accepted.
    pub fn add(&self, stream: Stream, freed: Freed) {
        let env = self.env();
        let _quiet = env.quiet();
        let id = env.stream_id(stream);
        let owner = match &freed {
            Freed::Owned(owned) => owned.owner,
            Freed::Releasing(releasing) => releasing.owner(),
        };
        let (event, mut load) = self.room_for_a_mark(id, owner);
        let moved = load.bytes > 0;
        match freed {
            Freed::Owned(owned) => {
                load.bytes += owned.extent.bytes;
                load.extents.push(owned.extent);
            }
            Freed::Releasing(releasing) => {
                load.bytes += releasing.bytes();
                load.releasing.push(*releasing);
            }
        }
        let event = match event.map_or_else(|| env.new_event(id.context), Ok) {
            Ok(event) => event,
            // A driver without events cannot be asked how far a stream is.
            Err(CUDA_ERROR_NOT_SUPPORTED) => return load.arrived(&self.live, owner),
            Err(_) => 0,
        };
        let recorded = event != 0 && env.record(event, stream);
        let mut waiting = locked(&self.waiting);
        if event != 0 && !recorded {
            waiting.spare.push((id.context, event));
        }
        waiting.marks.push(Mark {
            stream: id,
            owner,
            load,
            event: if recorded { event } else { 0 },
            moved,
            sealed: false,
        });
        self.count(&waiting);
    }

    /// An event to record if one is at hand, and the memory of the mark it was taken from.
    fn room_for_a_mark(&self, stream: StreamId, owner: Owner) -> (Option<usize>, Load) {
        let mut waiting = locked(&self.waiting);
        let same =
            |mark: &Mark| mark.stream == stream && mark.owner == owner && !mark.sealed && mark.event != 0;
        if waiting.marks.iter().filter(|mark| same(mark)).count() >= MARKS_OF_A_STREAM
            && let Some(newest) = waiting.marks.iter().rposition(same)
        {
            let newest = waiting.marks.remove(newest);
            return (Some(newest.event), newest.load);
        }
        let mut spare = waiting.spare.iter();
        let spare = spare.position(|(context, _)| *context == stream.context);
        let event = spare.map(|at| waiting.spare.swap_remove(at).1);
        (event, Load::default())
    }

    /// Bytes of a pool whose frees certainly wait in this stream: memory that the driver may reuse in the same stream.
    pub fn waiting_in(&self, stream: Stream, owner: Owner) -> u64 {
        if !self.any() {
            return 0;
        }
        let stream = self.env().stream_id(stream);
        let waiting = locked(&self.waiting);
        let marks = waiting.marks.iter();
        marks
            .filter(|mark| mark.stream == stream && mark.owner == owner && !mark.moved)
            .map(|mark| mark.load.bytes)
            .sum()
    }

    /// All bytes that wait for a stream.
    pub fn waiting_bytes(&self) -> u64 {
        locked(&self.waiting)
            .marks
            .iter()
            .map(|mark| mark.load.bytes)
            .sum()
    }

    /// Gives back the memory that the streams have reached.
    pub fn settle(&self) {
        if !self.any() {
            return;
        }
        let env = self.env();
        let _quiet = env.quiet();
        let mut waiting = locked(&self.waiting);
        let Waiting { marks, spare } = &mut *waiting;
        let mut behind: Vec<StreamId> = Vec::new();
        let reached = |mark: &mut Mark| {
            if mark.event == 0 || behind.contains(&mark.stream) {
                return false;
            }
            match env.query(mark.event) {
                Progress::Reached => spare.push((mark.stream.context, mark.event)),
                Progress::Gone => {}
                // If the context has failed, it keeps its memory until it ends.
                Progress::Pending => {
                    behind.push(mark.stream);
                    return false;
                }
            }
            true
        };
        let done: Vec<Mark> = marks.extract_if(.., reached).collect();
        let surplus = spare.len().saturating_sub(SPARE_EVENTS);
        for (_, event) in spare.drain(..surplus) {
            env.destroy_event(event);
        }
        self.count(&waiting);
        drop(waiting);
        for mark in done {
            mark.load.arrived(&self.live, mark.owner);
        }
    }

    /// The current context's work is all finished.
    pub fn context_synchronized(&self) {
        let context = self.env().current_context();
        self.take_out(|mark| mark.event == 0 && mark.stream.context == context);
    }

    /// A stream is destroyed, or about to be: its pending frees still happen.
    pub fn seal(&self, stream: usize) {
        for mark in &mut locked(&self.waiting).marks {
            mark.sealed |= mark.stream.handle == stream;
        }
    }

    /// A context has ended, with its streams and events, after all their work.
    pub fn context_ended(&self, ended: usize) {
        locked(&self.waiting)
            .spare
            .retain(|(context, _)| *context != ended);
        self.take_out(|mark| mark.stream.context == ended);
    }

    fn take_out(&self, which: impl Fn(&Mark) -> bool) {
        let mut waiting = locked(&self.waiting);
        let out: Vec<Mark> = waiting.marks.extract_if(.., |mark| which(mark)).collect();
        self.count(&waiting);
        drop(waiting);
        for mark in out {
            mark.load.arrived(&self.live, mark.owner);
        }
    }
}

impl Load {
    /// The stream has reached these frees. No lock is held.
    fn arrived<E: Environment>(self, live: &Live<E>, owner: Owner) {
        let charged = live.charged();
        match owner {
            Owner::Pool(pool) if !self.extents.is_empty() => {
                charged.pools.freed(pool, &self.extents, true);
            }
            Owner::Pool(_) => {}
            owner => {
                for extent in self.extents {
                    charged.give_back(Owned { owner, extent });
                }
            }
        }
        for releasing in self.releasing {
            live.released(releasing, true);
        }
    }
}
