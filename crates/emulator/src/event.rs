//! Events: marks in streams, with the device clock's time at which they were reached.

use crate::Result;
use crate::check;
use crate::context::Context;
use crate::graph::edge::Before;
use divvy_abi::*;
use divvy_device::exec::task::{Task, Work};
use divvy_device::shared::event::SharedEvent;
use std::sync::{Arc, Mutex, PoisonError};

/// An event.
pub struct Event {
    /// What the program holds.
    pub handle: u64,
    /// The context it belongs to.
    pub context: Arc<Context>,
    /// CU_EVENT_*.
    pub flags: u32,
    /// What it is to other processes.
    pub shared: Option<Arc<SharedEvent>>,
    mark: Mutex<Mark>,
}

/// What was recorded last.
#[derive(Clone, Default)]
pub enum Mark {
    /// Nothing so far.
    #[default]
    Nothing,
    /// A place in a stream.
    Task(Arc<Task>),
    /// A place in a captured stream: the capture's id, and the nodes it comes after.
    Captured {
        /// The capture's id.
        capture: u64,
        /// The nodes it comes after.
        nodes: Vec<Before>,
    },
}

impl Event {
    /// An event that marks nothing yet.
    pub fn new(handle: u64, context: Arc<Context>, flags: u32) -> Arc<Event> {
        Event::with(handle, context, flags, None)
    }

    /// An event of several processes.
    pub fn interprocess(
        handle: u64,
        context: Arc<Context>,
        flags: u32,
        shared: Arc<SharedEvent>,
    ) -> Arc<Event> {
        if let Some(checker) = check::on() {
            checker.strands.unknown();
        }
        Event::with(handle, context, flags, Some(shared))
    }

    fn with(handle: u64, context: Arc<Context>, flags: u32, shared: Option<Arc<SharedEvent>>) -> Arc<Event> {
        Arc::new(Event {
            handle,
            context,
            flags,
            shared,
            mark: Mutex::default(),
        })
    }

    /// Marks a place; forgets the one before.
    pub fn record(&self, mark: Arc<Task>) {
        if let Some(shared) = &self.shared {
            let (shared, number) = (Arc::clone(shared), shared.record());
            let reach = Work::Pool(Box::new(move || shared.reach(number)));
            // What is recorded is reached even if this process never looks again.
            self.set(Mark::Task(Task::submit(&[mark], reach)));
            return;
        }
        self.set(Mark::Task(mark));
    }

    /// Marks a place in a captured stream.
    pub fn captured(&self, capture: u64, nodes: Vec<Before>) {
        self.set(Mark::Captured { capture, nodes });
    }

    /// The place it marks now, among work that runs.
    pub fn mark(&self) -> Option<Arc<Task>> {
        if let Some(shared) = &self.shared {
            let (shared, number) = (Arc::clone(shared), shared.newest());
            return (!shared.is_done(number))
                .then(|| Task::submit(&[], Work::Pool(Box::new(move || shared.wait(number)))));
        }
        match self.place() {
            Mark::Task(task) => Some(task),
            Mark::Nothing | Mark::Captured { .. } => None,
        }
    }

    /// The place it marks now.
    pub fn place(&self) -> Mark {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, mark: Mark) {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = mark;
    }

    /// Whether what was recorded is done; nothing recorded is done.
    pub fn is_done(&self) -> bool {
        match &self.shared {
            Some(shared) => shared.is_done(shared.newest()),
            None => self.mark().is_none_or(|mark| {
                let is_done = mark.is_done();
                if is_done {
                    mark.is_heard_of();
                }
                is_done
            }),
        }
    }

    /// Waits for what was recorded.
    pub fn synchronize(&self) -> Result {
        match &self.shared {
            Some(shared) => shared.wait(shared.newest()),
            None => {
                if let Some(mark) = self.mark() {
                    mark.wait_done();
                }
            }
        }
        self.context.printed.show();
        self.context.check()
    }

    /// Nanoseconds of the device clock between two recorded events.
    pub fn elapsed_ns(&self, end: &Event) -> Result<i64> {
        if (self.flags | end.flags) & CU_EVENT_DISABLE_TIMING.0 != 0 {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let (Some(first), Some(last)) = (self.mark(), end.mark()) else {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        };
        let (Some(first), Some(last)) = (first.done_at_ns(), last.done_at_ns()) else {
            return Err(CUDA_ERROR_NOT_READY);
        };
        Ok(last.wrapping_sub(first) as i64)
    }
}
