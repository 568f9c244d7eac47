//! Which task follows which: the streams of one context.
//!
//! The legacy default stream waits for every blocking stream and every blocking stream waits for it;
//! non-blocking streams take no part. The per-thread default streams are blocking streams.

use crate::check;
use divvy_device::exec::task::{Task, Work};
use std::collections::HashMap;
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

/// The last task of each stream of a context.
#[derive(Default)]
pub struct Order {
    streams: Mutex<HashMap<StreamId, (StreamKind, Arc<Task>)>>,
}

impl Order {
    /// Appends work to a stream, after `also` as well.
    pub fn submit(&self, stream: StreamId, kind: StreamKind, also: &[Arc<Task>], work: Work) -> Arc<Task> {
        let mut streams = self.lock();
        // A stream that has nothing to wait for needs no entry; without this, streams made and dropped would add up.
        let prunes = check::on().is_none();
        if prunes && streams.len() > PRUNE_ABOVE {
            streams.retain(|_, (_, last)| !last.is_done());
        }
        let mut before = also.to_vec();
        match kind {
            StreamKind::Legacy => {
                if prunes {
                    streams.retain(|_, (_, last)| !last.is_done());
                }
                let ordered = streams
                    .values()
                    .filter(|(kind, _)| *kind != StreamKind::NonBlocking);
                before.extend(ordered.map(|(_, last)| Arc::clone(last)));
            }
            StreamKind::Blocking | StreamKind::NonBlocking => {
                before.extend(streams.get(&stream).map(|(_, last)| Arc::clone(last)));
                if kind == StreamKind::Blocking {
                    before.extend(streams.get(&LEGACY).map(|(_, last)| Arc::clone(last)));
                }
            }
        }
        let task = Task::submit(&before, work);
        streams.insert(stream, (kind, Arc::clone(&task)));
        task
    }

    /// What a wait for this stream waits for. For the legacy stream that is every stream ordered against it.
    pub fn tail(&self, stream: StreamId) -> Vec<Arc<Task>> {
        let streams = self.lock();
        if stream == LEGACY {
            let ordered = streams
                .values()
                .filter(|(kind, _)| *kind != StreamKind::NonBlocking);
            return ordered.map(|(_, last)| Arc::clone(last)).collect();
        }
        streams
            .get(&stream)
            .map(|(_, last)| Arc::clone(last))
            .into_iter()
            .collect()
    }

    /// Everything submitted to the context so far.
    pub fn everything(&self) -> Vec<Arc<Task>> {
        self.lock().values().map(|(_, last)| Arc::clone(last)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StreamId, (StreamKind, Arc<Task>)>> {
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
    fn a_stream_keeps_its_order() {
        let order = Order::default();
        let first = order.submit(7, StreamKind::NonBlocking, &[], Work::Caller);
        let second = marker(&order, 7, StreamKind::NonBlocking);
        assert!(!second.is_done());
        first.finish();
        assert!(second.is_done());
    }
}
