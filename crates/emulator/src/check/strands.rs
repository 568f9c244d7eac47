//! Which launches come before which: by their streams, by events, and by what the host has waited for.
//!
//! Each task of a stream has a clock: of each stream the last launch that is over when the task begins. A task has the clocks
//! of those that it is submitted behind, and the host's. The host's goes on when it waits for a task, or asks and hears that
//! it is done. One clock for all threads of the host orders too much, and so finds too little and reports nothing wrong.

use divvy_device::exec::task::{Observer, Task};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Of each stream the number of the last launch that is over.
type Clock = BTreeMap<Stream, u32>;
/// A stream, by its context and its id there.
pub type Stream = (u64, u64);

/// Tasks beyond which those that are gone are looked for.
const PRUNE_ABOVE: usize = 4096;

/// A launch that was submitted.
#[derive(Clone, Default)]
pub struct Submitted {
    stream: Stream,
    /// Its number: later launches have larger ones. 0 is none.
    pub number: u32,
    before: Arc<Clock>,
}

impl Submitted {
    /// Whether another launch was over before this one began.
    pub fn is_after(&self, stream: Stream, number: u32) -> bool {
        self.before.get(&stream).is_some_and(|known| *known >= number)
    }

    pub fn stream(&self) -> Stream {
        self.stream
    }
}

/// The order of all tasks of this process.
#[derive(Default)]
pub struct Strands {
    inner: Mutex<Inner>,
    /// Something orders work in a way that is not seen here: a word of memory, another process.
    is_unknown: AtomicBool,
}

#[derive(Default)]
struct Inner {
    tasks: HashMap<usize, (Weak<Task>, Arc<Clock>)>,
    host: Arc<Clock>,
    launches: u32,
    submitted: HashMap<u32, Submitted>,
    /// Clocks of functions of the host that were put into streams.
    functions: HashMap<u32, Arc<Clock>>,
}

/// What the task that this thread submits next is.
#[derive(Clone, Copy)]
enum Next {
    Launch(Stream, u32),
    Function(u32),
}

thread_local! {
    static NEXT: Cell<Option<Next>> = const { Cell::new(None) };
}

fn join(into: &mut Arc<Clock>, other: &Arc<Clock>) {
    if Arc::ptr_eq(into, other)
        || other
            .iter()
            .all(|(stream, n)| into.get(stream).is_some_and(|known| known >= n))
    {
        return;
    }
    let clock = Arc::make_mut(into);
    for (stream, number) in &**other {
        let known = clock.entry(*stream).or_default();
        *known = (*known).max(*number);
    }
}

impl Strands {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task that this thread submits next is a launch in a stream; its number.
    pub fn launch(&self, stream: Stream) -> u32 {
        let mut inner = self.inner();
        inner.launches += 1;
        NEXT.set(Some(Next::Launch(stream, inner.launches)));
        inner.launches
    }

    /// A launch begins.
    pub fn begin(&self, number: u32) -> Submitted {
        self.inner().submitted.remove(&number).unwrap_or_default()
    }

    /// The task that this thread submits next is a function of the host; its number.
    pub fn function(&self) -> u32 {
        let mut inner = self.inner();
        inner.launches += 1;
        NEXT.set(Some(Next::Function(inner.launches)));
        inner.launches
    }

    /// That function runs: it may tell other threads that all before it is over.
    pub fn runs(&self, function: u32) {
        let mut inner = self.inner();
        if let Some(clock) = inner.functions.remove(&function) {
            join(&mut inner.host, &clock);
        }
    }

    /// From here on nothing is known to be without order.
    pub fn unknown(&self) {
        self.is_unknown.store(true, Ordering::Relaxed);
    }

    pub fn is_unknown(&self) -> bool {
        self.is_unknown.load(Ordering::Relaxed)
    }
}

impl Observer for Strands {
    fn submitted(&self, before: &[Arc<Task>], task: &Arc<Task>) {
        let mut inner = self.inner();
        let mut clock = Arc::clone(&inner.host);
        for earlier in before {
            if let Some((_, known)) = inner.tasks.get(&(Arc::as_ptr(earlier) as usize)) {
                join(&mut clock, known);
            }
        }
        match NEXT.take() {
            Some(Next::Launch(stream, number)) => {
                let before = Arc::clone(&clock);
                inner.submitted.insert(
                    number,
                    Submitted {
                        stream,
                        number,
                        before,
                    },
                );
                Arc::make_mut(&mut clock).insert(stream, number);
            }
            Some(Next::Function(number)) => drop(inner.functions.insert(number, Arc::clone(&clock))),
            None => {}
        }
        if inner.tasks.len() > PRUNE_ABOVE {
            inner.tasks.retain(|_, (task, _)| task.strong_count() > 0);
        }
        // One that was at this address before is gone.
        inner
            .tasks
            .insert(Arc::as_ptr(task) as usize, (Arc::downgrade(task), clock));
    }

    fn waited(&self, task: &Task) {
        let mut inner = self.inner();
        let known = inner.tasks.get(&(std::ptr::from_ref(task) as usize));
        if let Some((_, clock)) = known {
            let clock = Arc::clone(clock);
            join(&mut inner.host, &clock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_device::exec::task::Work;

    fn task(strands: &Strands, before: &[Arc<Task>]) -> Arc<Task> {
        let task = Task::submit(before, Work::Marker);
        strands.submitted(before, &task);
        task
    }

    fn launch(strands: &Strands, stream: u64, before: &[Arc<Task>]) -> (Submitted, Arc<Task>) {
        let number = strands.launch((1, stream));
        let task = task(strands, before);
        (strands.begin(number), task)
    }

    #[test]
    fn streams_events_and_waits_order_launches() {
        let strands = Strands::default();
        let (one, first) = launch(&strands, 1, &[]);
        let after = |later: &Submitted, earlier: &Submitted| later.is_after(earlier.stream(), earlier.number);
        let (two, _) = launch(&strands, 1, std::slice::from_ref(&first));
        let (aside, other) = launch(&strands, 2, &[]);
        assert!(after(&two, &one) && !after(&aside, &one) && !after(&one, &two));
        // An event of the first stream, which the second waits for.
        let mark = task(&strands, &[task(&strands, &[first]), other]);
        let (behind, last) = launch(&strands, 2, &[mark]);
        assert!(after(&behind, &one) && !after(&behind, &two));
        // The host waits for the second stream, and launches in a third.
        strands.waited(&last);
        let (third, _) = launch(&strands, 3, &[]);
        assert!(after(&third, &behind) && after(&third, &one) && !after(&third, &two));
        // A function in a stream may wake a thread that launches.
        let function = strands.function();
        let (four, _) = launch(&strands, 4, &[]);
        strands.runs(function);
        assert!(!after(&four, &two));
    }
}
