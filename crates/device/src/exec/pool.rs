//! The threads that run what streams hold: none before the first asynchronous work, gone again when idle.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// A host function may block its stream for as long as it likes, so each needs a thread of its own. Beyond this number
/// they wait for one another.
const MAX_THREADS: usize = 64;
/// A thread with nothing to do leaves after this long.
const IDLE: Duration = Duration::from_secs(5);
/// Host functions of the program run on these stacks.
const STACK_BYTES: usize = 4 << 20;

/// A queue of jobs and the threads that take from it.
pub struct Pool {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// Jobs, with names by which a thread may ask for one.
    queue: VecDeque<(usize, Job)>,
    idle: usize,
    threads: usize,
}

impl Pool {
    /// The pool of this process.
    pub fn global() -> &'static Pool {
        static POOL: OnceLock<Pool> = OnceLock::new();
        POOL.get_or_init(|| Pool {
            state: Mutex::default(),
            arrived: Condvar::new(),
        })
    }

    /// Runs the job soon, on a thread of the pool.
    pub fn push(&'static self, job: Job) {
        self.push_named(0, job);
    }

    /// The same, unless a thread asks for it first ([`Pool::help`]). A name that is not 0 names one job.
    pub fn push_named(&'static self, name: usize, job: Job) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.queue.push_back((name, job));
        if state.queue.len() <= state.idle || state.threads >= MAX_THREADS {
            self.arrived.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let spawned = std::thread::Builder::new()
            .name("divvy-stream".into())
            .stack_size(STACK_BYTES)
            .spawn(move || self.serve());
        if spawned.is_err() {
            self.without_thread();
        }
    }

    /// Runs the job of this name on the calling thread, if no thread has begun it.
    pub fn help(&self, name: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let job = (state.queue.iter().position(|(queued, _)| *queued == name))
            .and_then(|at| state.queue.remove(at));
        drop(state);
        if let Some((_, job)) = job {
            run(job);
        }
    }

    /// The system refused a thread. The other threads will take the job; without any, the submitter must.
    fn without_thread(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.threads -= 1;
        while state.threads == 0
            && let Some((_, job)) = state.queue.pop_front()
        {
            drop(state);
            run(job);
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn serve(&self) {
        block_signals();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((_, job)) = state.queue.pop_front() {
                drop(state);
                run(job);
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.idle += 1;
            let (woken, timeout) = self
                .arrived
                .wait_timeout(state, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// A job that panics must not take its thread with it. Its task never ends then. That is a defect of ours, but the
/// program goes on.
fn run(job: Job) {
    let _ = catch_unwind(AssertUnwindSafe(job));
}

/// The program's signals are for the program's threads.
pub fn block_signals() {
    // SAFETY: sigfillset writes the set it is given before pthread_sigmask reads it; both are ours alone.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}
