//! One task of ordered work, and the graph that orders it.
//!
//! A stream is a chain of tasks, an event a task without work, a wait an edge between two chains. There are only edges
//! from older to newer tasks, so the graph has no cycle.
//!
//! A task is *done* when the device clock has come to its end, and starts when everything before it is done. Work of an
//! engine whose time is modelled is *executed* before it is done. The next such work may then execute too.

use super::pool::Pool;
use crate::clock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// What a task does when its turn comes.
pub enum Work {
    /// Nothing: it only marks a place in a stream.
    Marker,
    /// Runs on a thread of the pool.
    Pool(Box<dyn FnOnce() + Send>),
    /// The same, or on a thread that waits for its end: it takes two switches of threads less. It runs no code of the
    /// program's, and waits for nothing that this thread would do.
    Brief(Box<dyn FnOnce() + Send>),
    /// Is given its task when its turn comes: an engine whose time is modelled executes it, and says when it is done.
    Engine(Box<dyn FnOnce(Arc<Task>) + Send>),
    /// Runs on the thread that waits for its turn with [`Task::wait_turn`] and then calls [`Task::finish`].
    Caller,
}

/// What is told of tasks, where their order matters.
pub trait Observer: Sync {
    /// A task is submitted behind others, and has not begun.
    fn submitted(&self, before: &[Arc<Task>], task: &Arc<Task>);
    /// A thread has waited for a task, or asked and heard that it is done.
    fn waited(&self, task: &Task);
}

static OBSERVER: OnceLock<&'static dyn Observer> = OnceLock::new();

/// Has an observer told of all tasks from here on. There is one in a process.
pub fn observe(observer: &'static dyn Observer) {
    let _first = OBSERVER.set(observer);
}

/// A node of the graph.
pub struct Task {
    /// Tasks before this one that are not executed, plus one while it is being submitted.
    early: AtomicUsize,
    /// Tasks before this one that are not done, plus one while it is being submitted, plus one where an engine will say
    /// when it ends.
    late: AtomicUsize,
    /// It ends no earlier, by the device clock.
    floor: AtomicU64,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    work: Option<Work>,
    state: State,
    executed: bool,
    waiters: usize,
    after_executed: Vec<Arc<Task>>,
    after_done: Vec<Arc<Task>>,
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

/// One task that another waited for is no longer in its way.
enum Step {
    Executed(Arc<Task>),
    Done(Arc<Task>),
}

impl Task {
    /// Creates a task after all of `before`, and starts it at once if they are done.
    pub fn submit(before: &[Arc<Task>], work: Work) -> Arc<Task> {
        let own_end = usize::from(matches!(work, Work::Engine(_)));
        let task = Arc::new(Task {
            early: AtomicUsize::new(1),
            late: AtomicUsize::new(1 + own_end),
            floor: AtomicU64::new(clock::now_ns()),
            inner: Mutex::new(Inner {
                work: Some(work),
                state: State::Waiting,
                executed: false,
                waiters: 0,
                after_executed: Vec::new(),
                after_done: Vec::new(),
            }),
            changed: Condvar::new(),
        });
        for earlier in before {
            let mut inner = earlier.lock();
            if !inner.executed {
                task.early.fetch_add(1, Ordering::Relaxed);
                inner.after_executed.push(Arc::clone(&task));
            }
            if let State::Done { at_ns } = inner.state {
                task.floor.fetch_max(at_ns, Ordering::Relaxed);
            } else {
                task.late.fetch_add(1, Ordering::Relaxed);
                inner.after_done.push(Arc::clone(&task));
            }
        }
        if let Some(observer) = OBSERVER.get() {
            observer.submitted(before, &task);
        }
        release(vec![
            Step::Done(Arc::clone(&task)),
            Step::Executed(Arc::clone(&task)),
        ]);
        task
    }

    /// Tells the observer that the program knows what was before this task to be over.
    pub fn is_heard_of(&self) {
        if let Some(observer) = OBSERVER.get() {
            observer.waited(self);
        }
    }

    /// Blocks until it is this task's turn to run on the calling thread.
    pub fn wait_turn(&self) {
        self.wait(|state| state != State::Waiting);
        self.is_heard_of();
    }

    /// Whether it is this task's turn to be run by a caller that then calls [`Task::finish`].
    pub fn is_turn(&self) -> bool {
        self.lock().state == State::Turn
    }

    /// Blocks until the task is done.
    pub fn wait_done(&self) {
        self.wait_over();
        self.is_heard_of();
    }

    /// The same where the program learns nothing by it, so its order holds up no more than without the wait.
    pub fn wait_over(&self) {
        if !self.is_done() {
            Pool::global().help(self.name());
        }
        self.wait(|state| matches!(state, State::Done { .. }));
    }

    /// Blocks until the task is done, or until `deadline`; whether it is done.
    pub fn wait_done_until(&self, deadline: Instant) -> bool {
        let mut inner = self.lock();
        while !matches!(inner.state, State::Done { .. }) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            inner.waiters += 1;
            let woken = self.changed.wait_timeout(inner, left);
            inner = woken.unwrap_or_else(PoisonError::into_inner).0;
            inner.waiters -= 1;
        }
        true
    }

    /// What its job is called in the pool, which holds the task meanwhile.
    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
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

    /// The device time before which it cannot begin, as far as is known.
    pub fn floor_ns(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }

    /// Whether the task is done.
    pub fn is_done(&self) -> bool {
        self.done_at_ns().is_some()
    }

    /// Ends the task: those that waited for it may start.
    pub fn finish(&self) {
        self.floor.fetch_max(clock::now_ns(), Ordering::Relaxed);
        release(self.mark_done());
    }

    /// Work of an engine has been executed, and will be done later.
    pub fn executed(&self) {
        release(self.mark_executed());
    }

    /// Work of an engine ended at this time of the device clock.
    pub fn ended(self: &Arc<Task>, at_ns: u64) {
        self.floor.fetch_max(at_ns, Ordering::Relaxed);
        release(vec![Step::Done(Arc::clone(self))]);
    }

    fn mark_executed(&self) -> Vec<Step> {
        let mut inner = self.lock();
        inner.executed = true;
        std::mem::take(&mut inner.after_executed)
            .into_iter()
            .map(Step::Executed)
            .collect()
    }

    fn mark_done(&self) -> Vec<Step> {
        let mut steps = self.mark_executed();
        let mut inner = self.lock();
        let at_ns = self.floor_ns();
        inner.state = State::Done { at_ns };
        if inner.waiters > 0 {
            self.changed.notify_all();
        }
        let after = std::mem::take(&mut inner.after_done);
        drop(inner);
        steps.extend(after.into_iter().map(|task| {
            task.floor.fetch_max(at_ns, Ordering::Relaxed);
            Step::Done(task)
        }));
        steps
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes these steps, and starts the tasks that wait for nothing any more. A loop, because markers end where they start
/// and a chain of them may be long.
fn release(mut steps: Vec<Step>) {
    while let Some(step) = steps.pop() {
        match step {
            Step::Executed(task) => {
                if task.early.fetch_sub(1, Ordering::AcqRel) == 1 {
                    steps.extend(all_before_executed(&task));
                }
            }
            Step::Done(task) => {
                if task.late.fetch_sub(1, Ordering::AcqRel) == 1 {
                    steps.extend(all_before_done(&task));
                }
            }
        }
    }
}

fn all_before_executed(task: &Arc<Task>) -> Vec<Step> {
    let mut inner = task.lock();
    match inner.work.take() {
        Some(Work::Engine(work)) => {
            drop(inner);
            work(Arc::clone(task));
            Vec::new()
        }
        Some(Work::Marker) => {
            // It stays: it is done when all before it is.
            inner.work = Some(Work::Marker);
            drop(inner);
            task.mark_executed()
        }
        other => {
            inner.work = other;
            Vec::new()
        }
    }
}

fn all_before_done(task: &Arc<Task>) -> Vec<Step> {
    let mut inner = task.lock();
    match inner.work.take() {
        Some(Work::Pool(run)) => {
            drop(inner);
            give(task, 0, run)
        }
        Some(Work::Brief(run)) => {
            drop(inner);
            give(task, task.name(), run)
        }
        Some(Work::Caller) => {
            inner.state = State::Turn;
            if inner.waiters > 0 {
                task.changed.notify_all();
            }
            Vec::new()
        }
        Some(Work::Marker | Work::Engine(_)) | None => {
            drop(inner);
            task.mark_done()
        }
    }
}

/// Has the pool run a task, which ends then.
fn give(task: &Arc<Task>, name: usize, run: Box<dyn FnOnce() + Send>) -> Vec<Step> {
    let finished = Arc::clone(task);
    let job = move || {
        run();
        finished.finish();
    };
    Pool::global().push_named(name, Box::new(job));
    Vec::new()
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
    fn brief_work_is_run_by_the_thread_that_waits_unless_another_has_begun_it() {
        // All threads of the pool are busy, so none begins what follows.
        let busy: Vec<_> = (0..64).map(|_| Task::submit(&[], Work::Caller)).collect();
        let held: Vec<_> = (busy.iter())
            .map(|gate| {
                let gate = Arc::clone(gate);
                Task::submit(&[], Work::Pool(Box::new(move || gate.wait_done())))
            })
            .collect();
        let ran = Arc::new(Mutex::new(Vec::new()));
        let note = || {
            let ran = Arc::clone(&ran);
            Box::new(move || ran.lock().unwrap().push(std::thread::current().id()))
        };
        let brief = Task::submit(&[], Work::Brief(note()));
        let not = Task::submit(&[], Work::Pool(note()));
        brief.wait_done();
        assert_eq!(*ran.lock().unwrap(), [std::thread::current().id()]);
        busy.iter().for_each(|gate| gate.finish());
        not.wait_done();
        held.iter().for_each(|task| task.wait_done());
        assert_ne!(ran.lock().unwrap()[1], std::thread::current().id());
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
