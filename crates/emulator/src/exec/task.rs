//! One piece of ordered work, and the graph that orders it.
//!
//! A stream is a chain of tasks, an event a task without work, a wait an edge between two chains. A task starts
//! when everything before it is done; there are only edges from older to newer tasks, so the graph has no cycle.

use super::pool::Pool;
use crate::clock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What a task does when its turn comes.
pub enum Work {
    /// Nothing: it only marks a place in a stream.
    Marker,
    /// Runs on a thread of the pool.
    Pool(Box<dyn FnOnce() + Send>),
    /// Runs on the thread that waits for its turn with [`Task::wait_turn`] and then calls [`Task::finish`].
    Caller,
}

/// A node of the graph.
pub struct Task {
    /// Tasks before this one that are not done, plus one while it is being submitted.
    pending: AtomicUsize,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    work: Option<Work>,
    state: State,
    waiters: usize,
    dependents: Vec<Arc<Task>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// Its turn: a caller may run it.
    Turn,
    /// When it ended, by the device clock.
    Done {
        at_ns: u64,
    },
}

impl Task {
    /// Creates a task after all of `before`, and starts it at once if they are done.
    pub fn submit(before: &[Arc<Task>], work: Work) -> Arc<Task> {
        let task = Arc::new(Task {
            pending: AtomicUsize::new(1),
            inner: Mutex::new(Inner {
                work: Some(work),
                state: State::Waiting,
                waiters: 0,
                dependents: Vec::new(),
            }),
            changed: Condvar::new(),
        });
        for earlier in before {
            let mut inner = earlier.lock();
            if !matches!(inner.state, State::Done { .. }) {
                task.pending.fetch_add(1, Ordering::Relaxed);
                inner.dependents.push(Arc::clone(&task));
            }
        }
        release(vec![Arc::clone(&task)]);
        task
    }

    /// Blocks until it is this task's turn to run on the calling thread.
    pub fn wait_turn(&self) {
        self.wait(|state| state != State::Waiting);
    }

    /// Whether it is this task's turn to be run by somebody who then calls [`Task::finish`].
    pub fn is_turn(&self) -> bool {
        self.lock().state == State::Turn
    }

    /// Blocks until the task is done.
    pub fn wait_done(&self) {
        self.wait(|state| matches!(state, State::Done { .. }));
    }

    fn wait(&self, enough: impl Fn(State) -> bool) {
        let mut inner = self.lock();
        while !enough(inner.state) {
            inner.waiters += 1;
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
            inner.waiters -= 1;
        }
    }

    /// When the task ended by the device clock, or None while it has not.
    pub fn done_at_ns(&self) -> Option<u64> {
        match self.lock().state {
            State::Done { at_ns } => Some(at_ns),
            _ => None,
        }
    }

    /// Whether the task is done.
    pub fn is_done(&self) -> bool {
        self.done_at_ns().is_some()
    }

    /// Ends the task: those that waited for it may start.
    pub fn finish(&self) {
        release(self.mark_done());
    }

    fn mark_done(&self) -> Vec<Arc<Task>> {
        let mut inner = self.lock();
        inner.state = State::Done {
            at_ns: clock::now_ns(),
        };
        if inner.waiters > 0 {
            self.changed.notify_all();
        }
        std::mem::take(&mut inner.dependents)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes one pending count from each task and starts those that have none left. A loop, because markers end
/// where they start and a chain of them may be long.
fn release(mut tasks: Vec<Arc<Task>>) {
    while let Some(task) = tasks.pop() {
        if task.pending.fetch_sub(1, Ordering::AcqRel) != 1 {
            continue;
        }
        let mut inner = task.lock();
        match inner.work.take() {
            Some(Work::Pool(run)) => {
                drop(inner);
                let finished = Arc::clone(&task);
                Pool::global().push(Box::new(move || {
                    run();
                    finished.finish();
                }));
            }
            Some(Work::Caller) => {
                inner.state = State::Turn;
                if inner.waiters > 0 {
                    task.changed.notify_all();
                }
            }
            Some(Work::Marker) | None => {
                drop(inner);
                tasks.extend(task.mark_done());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_after_what_came_before_them() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let note = |n: u32| {
            let log = Arc::clone(&log);
            Work::Pool(Box::new(move || log.lock().unwrap().push(n)))
        };
        let gate = Task::submit(&[], Work::Caller);
        let first = Task::submit(&[Arc::clone(&gate)], note(1));
        let mark = Task::submit(&[Arc::clone(&first)], Work::Marker);
        let last = Task::submit(&[mark, Arc::clone(&first)], note(2));
        assert!(!last.is_done());
        gate.wait_turn();
        log.lock().unwrap().push(0);
        gate.finish();
        last.wait_done();
        assert_eq!(*log.lock().unwrap(), [0, 1, 2]);
        assert!(first.done_at_ns() <= last.done_at_ns());
    }

    #[test]
    fn a_long_chain_of_markers_does_not_overflow_the_stack() {
        let gate = Task::submit(&[], Work::Caller);
        let mut last = Arc::clone(&gate);
        for _ in 0..200_000 {
            last = Task::submit(&[last], Work::Marker);
        }
        gate.finish();
        last.wait_done();
    }
}
