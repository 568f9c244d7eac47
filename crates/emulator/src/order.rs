//! Which task follows which: the streams of one context.
//!
//! The legacy default stream waits for every blocking stream and every blocking stream waits for it;
//! non-blocking streams take no part. The per-thread default streams are blocking streams.

use crate::check;
use divvy_device::exec::task::{Task, Work};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a stream relates to the legacy default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// It is the legacy default stream.
    Legacy,
    /// Ordered against it.
    Blocking,
    /// Free of it.
    NonBlocking,
}

/// Names one stream inside its context; [`LEGACY`] is the legacy default stream.
pub type StreamId = u64;
/// The legacy default stream.
pub const LEGACY: StreamId = 0;

/// Entries beyond which finished streams are looked for at every submission.
const PRUNE_ABOVE: usize = 64;

/// So much work may a stream hold that is not over. NVIDIA's driver says no number; about so many launches go into a stream there
/// before the next one waits for the first.
pub const MOST_PENDING: usize = 1024;

/// The streams of a context.
#[derive(Default)]
pub struct Order {
    streams: Mutex<HashMap<StreamId, Tail>>,
}

/// The end of a stream.
struct Tail {
    kind: StreamKind,
    last: Arc<Task>,
    /// What was not over when it was looked at, the oldest first. Work that its own submitter waits for is not among it.
    pending: VecDeque<Arc<Task>>,
}

impl Tail {
    fn is_done(&self) -> bool {
        self.last.is_done()
    }

    /// Forgets what is over. A stream ends its work in order.
    fn look(&mut self) {
        while self.pending.front().is_some_and(|task| task.is_done()) {
            drop(self.pending.pop_front());
        }
    }
}

impl Order {
    /// Appends work to a stream, after `also` as well.
    pub fn submit(&self, stream: StreamId, kind: StreamKind, also: &[Arc<Task>], work: Work) -> Arc<Task> {
        let mut streams = self.lock();
        // A stream that has nothing to wait for needs no entry; without this, streams made and dropped would add up.
        let prunes = check::on().is_none();
        if prunes && streams.len() > PRUNE_ABOVE {
            streams.retain(|_, tail| !tail.is_done());
        }
        let mut before = also.to_vec();
        match kind {
            StreamKind::Legacy => {
                if prunes {
                    streams.retain(|_, tail| !tail.is_done());
                }
                let ordered = streams
                    .values()
                    .filter(|tail| tail.kind != StreamKind::NonBlocking);
                before.extend(ordered.map(|tail| Arc::clone(&tail.last)));
            }
            StreamKind::Blocking | StreamKind::NonBlocking => {
                before.extend(streams.get(&stream).map(|tail| Arc::clone(&tail.last)));
                if kind == StreamKind::Blocking {
                    before.extend(streams.get(&LEGACY).map(|tail| Arc::clone(&tail.last)));
                }
            }
        }
        let is_waited_for = matches!(work, Work::Caller);
        let task = Task::submit(&before, work);
        let tail = streams.entry(stream).or_insert_with(|| Tail {
            kind,
            last: Arc::clone(&task),
            pending: VecDeque::new(),
        });
        tail.kind = kind;
        tail.last = Arc::clone(&task);
        tail.look();
        if !is_waited_for {
            tail.pending.push_back(Arc::clone(&task));
        }
        task
    }

    /// Waits until a stream holds less than [`MOST_PENDING`]: a program that submits and never waits does so here, as on hardware.
    /// Otherwise its work would take all memory. No lock may be held that work of the stream needs.
    pub fn wait_for_room(&self, stream: StreamId) {
        while let Some(oldest) = self.oldest_of_full(stream) {
            oldest.wait_over();
        }
    }

    fn oldest_of_full(&self, stream: StreamId) -> Option<Arc<Task>> {
        let mut streams = self.lock();
        let tail = streams.get_mut(&stream)?;
        tail.look();
        let is_full = tail.pending.len() >= MOST_PENDING;
        tail.pending.front().filter(|_| is_full).map(Arc::clone)
    }

    /// What a wait for this stream waits for. For the legacy stream that is every stream ordered against it.
    pub fn tail(&self, stream: StreamId) -> Vec<Arc<Task>> {
        let streams = self.lock();
        if stream == LEGACY {
            let ordered = streams
                .values()
                .filter(|tail| tail.kind != StreamKind::NonBlocking);
            return ordered.map(|tail| Arc::clone(&tail.last)).collect();
        }
        streams
            .get(&stream)
            .map(|tail| Arc::clone(&tail.last))
            .into_iter()
            .collect()
    }

    /// Everything submitted to the context so far.
    pub fn everything(&self) -> Vec<Arc<Task>> {
        self.lock().values().map(|tail| Arc::clone(&tail.last)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StreamId, Tail>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(order: &Order, stream: StreamId, kind: StreamKind) -> Arc<Task> {
        order.submit(stream, kind, &[], Work::Marker)
    }

    #[test]
    fn the_legacy_stream_joins_and_splits_the_blocking_ones() {
        let order = Order::default();
        let busy = order.submit(1, StreamKind::Blocking, &[], Work::Caller);
        let aside = order.submit(2, StreamKind::NonBlocking, &[], Work::Caller);
        let legacy = marker(&order, LEGACY, StreamKind::Legacy);
        let other = marker(&order, 3, StreamKind::Blocking);
        let free = marker(&order, 4, StreamKind::NonBlocking);
        assert!(!legacy.is_done(), "it waits for the busy blocking stream");
        assert!(
            !other.is_done(),
            "another blocking stream waits for the legacy stream"
        );
        assert!(free.is_done(), "a non-blocking stream waits for no other");
        busy.finish();
        assert!(
            legacy.is_done() && other.is_done(),
            "the busy non-blocking stream held no other up"
        );
        assert_eq!(
            order.everything().iter().filter(|task| !task.is_done()).count(),
            1
        );
        aside.finish();
    }

    #[test]
    fn finished_streams_leave_nothing_behind() {
        let order = Order::default();
        for stream in 1..1000 {
            marker(&order, stream, StreamKind::NonBlocking);
        }
        assert!(order.everything().len() <= PRUNE_ABOVE + 1);
    }

    #[test]
    fn a_full_stream_holds_its_submitter_up_and_no_other_stream() {
        let order = Order::default();
        let first = order.submit(1, StreamKind::NonBlocking, &[], Work::Caller);
        for _ in 0..MOST_PENDING - 1 {
            marker(&order, 1, StreamKind::NonBlocking);
        }
        assert!(order.oldest_of_full(1).is_none(), "there is room for one");
        let oldest = order.tail(1);
        marker(&order, 1, StreamKind::NonBlocking);
        assert!(order.oldest_of_full(1).is_some_and(|oldest| !oldest.is_done()));
        marker(&order, 2, StreamKind::NonBlocking);
        order.wait_for_room(2);
        order.wait_for_room(3);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                order.wait_for_room(1);
                first.is_done()
            });
            first.finish();
            assert!(waits.join().expect("no panic"), "it waited");
        });
        assert!(oldest.iter().all(|task| task.is_done()));
        assert!(order.oldest_of_full(1).is_none());
        assert!(order.lock()[&1].pending.is_empty(), "nothing of it is kept");
    }

    #[test]
    fn a_stream_keeps_its_order() {
        let order = Order::default();
        let first = order.submit(7, StreamKind::NonBlocking, &[], Work::Caller);
        let second = marker(&order, 7, StreamKind::NonBlocking);
        assert!(!second.is_done());
        first.finish();
        assert!(second.is_done());
    }
}
