//! Streams of a context, and the queues that work goes to.

use crate::Result;
use crate::context::Context;
use crate::order::{StreamId, StreamKind};
use crate::trace::{self, Place, Traced};
use divvy_device::engine::client::Running;
use divvy_device::exec::task::{Task, Work};
use std::sync::Arc;

/// A stream the program created.
pub struct Stream {
    /// What the program holds.
    pub handle: u64,
    /// The context it belongs to.
    pub context: Arc<Context>,
    /// CU_STREAM_*.
    pub flags: u32,
    /// As granted, within the context's range.
    pub priority: i32,
    /// Its id in the context.
    pub id: StreamId,
}

impl Stream {
    /// A new stream of a context.
    pub fn new(handle: u64, context: Arc<Context>, flags: u32, priority: i32) -> Arc<Stream> {
        let id = context.new_stream_id();
        Arc::new(Stream {
            handle,
            context,
            flags,
            priority,
            id,
        })
    }
}

/// Where work goes: one stream of one context.
#[derive(Clone)]
pub struct Queue {
    /// The context.
    pub context: Arc<Context>,
    /// The stream's id in the context.
    pub id: StreamId,
    /// Handle of the stream; 0 for the default streams.
    pub stream: u64,
    /// How it relates to the legacy default stream.
    pub kind: StreamKind,
    /// CU_STREAM_*.
    pub flags: u32,
    /// As granted.
    pub priority: i32,
}

/// Work that takes the engine of a context's device, unless the context has failed by then.
pub fn engine_work(
    context: &Arc<Context>,
    traced: Traced,
    run: impl FnOnce(&Running<'_>) -> u64 + Send + 'static,
) -> Work {
    let context = Arc::clone(context);
    let engine = Arc::clone(&context.device.engine);
    engine.work(move |running| {
        if context.check().is_err() {
            return 0;
        }
        let start_ns = running.is_modelled().then_some(running.start_ns);
        trace::run_on_engine(traced, start_ns, || run(running), || context.check().is_err())
    })
}

impl Queue {
    /// Waits until the queue has room for more work that nothing waits for. See [`Order::wait_for_room`].
    ///
    /// [`Order::wait_for_room`]: crate::order::Order::wait_for_room
    pub fn wait_for_room(&self) {
        self.context.order.wait_for_room(self.id);
    }

    /// Appends work that runs on a thread of the pool, unless the context has failed by then. Waits for room.
    pub fn run_later(&self, run: impl FnOnce() + Send + 'static) -> Arc<Task> {
        self.wait_for_room();
        let context = Arc::clone(&self.context);
        let traced = trace::work(self.place());
        self.submit(Work::Pool(Box::new(move || {
            if context.check().is_ok() {
                trace::run(traced, run);
            }
        })))
    }

    /// Appends work that takes the device's engine, unless the context has failed by then. It gives the engine time it
    /// takes, in nanoseconds. Waits for room.
    pub fn run_on_engine(&self, run: impl FnOnce(&Running<'_>) -> u64 + Send + 'static) -> Arc<Task> {
        self.wait_for_room();
        self.submit(engine_work(&self.context, trace::work(self.place()), run))
    }

    /// The same for a kernel.
    pub fn run_kernel(
        &self,
        traced: Traced,
        run: impl FnOnce(&Running<'_>) -> u64 + Send + 'static,
    ) -> Arc<Task> {
        self.wait_for_room();
        self.submit(engine_work(&self.context, traced, run))
    }

    /// It, for records.
    pub fn place(&self) -> Place {
        Place {
            device: self.context.device.ordinal as u32,
            context: self.context.id,
            stream: self.id,
            handle: self.stream,
        }
    }

    /// Waits for the queue's turn and runs on the calling thread.
    pub fn run_now<T>(&self, run: impl FnOnce() -> T) -> Result<T> {
        struct Finish(Arc<Task>);
        impl Drop for Finish {
            fn drop(&mut self) {
                self.0.finish();
            }
        }
        let task = Finish(self.submit(Work::Caller));
        task.0.wait_turn();
        self.context.printed.show();
        self.context.check()?;
        Ok(trace::run(trace::work(self.place()), run))
    }

    /// Appends a mark.
    pub fn mark(&self, also: &[Arc<Task>]) -> Arc<Task> {
        self.context.submit(self.id, self.kind, also, Work::Marker)
    }

    /// Appends work as it is.
    pub fn submit(&self, work: Work) -> Arc<Task> {
        self.context.submit(self.id, self.kind, &[], work)
    }

    /// Appends work that takes several tasks. They start behind the work that is there, and later work waits for the last
    /// of them. Waits for room.
    pub fn submit_behind(&self, start: impl FnOnce(&[Arc<Task>]) -> Arc<Task>) {
        self.wait_for_room();
        let before = self.mark(&[]);
        self.mark(&[start(&[before])]);
    }

    /// Waits for everything in the queue.
    pub fn synchronize(&self) -> Result {
        for task in self.context.order.tail(self.id) {
            task.wait_done();
        }
        self.context.printed.show();
        self.context.check()
    }

    /// Whether everything in the queue is done.
    pub fn is_idle(&self) -> bool {
        let tail = self.context.order.tail(self.id);
        let is_idle = tail.iter().all(|task| task.is_done());
        if is_idle {
            tail.iter().for_each(|task| task.is_heard_of());
        }
        is_idle
    }
}
