//! Worker threads and the launches they share.
//!
//! A worker takes a block of a launch, runs it for a slice of time, and puts it back if it is not done. Blocks that
//! spin therefore do not keep others from starting, whichever of them they wait for.

use super::block::{Block, Ran};
use super::ctx::{Ctx, Stop};
use super::launch::LaunchState;
use super::request::Stats;
use super::timing::{Progress as TimingProgress, Times};
use super::warp::Issued;
use crate::error::{Fault, Unsupported};
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Warp instructions a block runs before others get the worker: a fraction of a millisecond.
const SLICE: u64 = 32 * 1024;
/// Blocks that a worker takes at once, at most.
const MAX_BATCH: u64 = 64;
/// Warp instructions a warp runs before the next warp of its block.
const TURN: u64 = 4 * 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    workers: usize,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: Vec<Arc<Job>>,
    next: usize,
    stop: bool,
}

/// A launch under way.
struct Job {
    launch: LaunchState<'static>,
    /// Threads that may work on it.
    workers: u64,
    state: Mutex<Progress>,
    done: Condvar,
}

#[derive(Default)]
struct Progress {
    /// Next block of the grid to start.
    next: u64,
    /// Blocks of a batch that its worker did not come to, to be started before the next ones.
    left: Vec<Range<u64>>,
    finished: u64,
    /// Workers that run one of its blocks.
    running: u64,
    /// Places of finished blocks, to be used again.
    free: Vec<Block>,
    suspended: VecDeque<Block>,
    /// Blocks that wait at the grid's barrier.
    at_grid: Vec<Block>,
    /// Which of the two to take next.
    prefer_suspended: bool,
    issued: Issued,
    times: Times,
    fault: Option<Fault>,
    /// Slices in a row in which blocks only polled.
    idle: u64,
}

impl Progress {
    fn over(&self, blocks: u64) -> bool {
        self.running == 0 && (self.finished == blocks || self.fault.is_some())
    }

    fn has_work(&self, blocks: u64) -> bool {
        self.fault.is_none() && (self.has_fresh(blocks) || !self.suspended.is_empty())
    }

    fn has_fresh(&self, blocks: u64) -> bool {
        self.next < blocks || !self.left.is_empty()
    }

    fn resident(&self) -> u64 {
        self.running + (self.suspended.len() + self.at_grid.len()) as u64
    }

    /// Opens the grid's barrier if every block is there; `Err` with a waiting block's line if some never can be.
    /// True where blocks can run again.
    fn check_grid(&mut self, launch: &LaunchState<'static>) -> Result<bool, u32> {
        let waiting = self.at_grid.len() as u64;
        if waiting == 0 || waiting + self.finished < launch.blocks {
            return Ok(false);
        }
        if self.finished > 0 {
            return Err(self.at_grid[0].waiting_line(launch));
        }
        if let Some(watch) = launch.watch {
            watch.open_grid();
        }
        let last = self.at_grid.iter().map(Block::time_ps).max().unwrap_or(0);
        for mut block in self.at_grid.drain(..) {
            block.leave_grid_barrier();
            block.wait_until(last);
            self.suspended.push_back(block);
        }
        Ok(true)
    }
}

impl Pool {
    pub fn new(workers: usize) -> Pool {
        Pool {
            shared: Arc::new(Shared {
                queue: Mutex::default(),
                wake: Condvar::new(),
            }),
            threads: Mutex::default(),
            workers,
        }
    }

    pub fn run(&self, launch: LaunchState<'_>) -> Result<Stats, Fault> {
        // SAFETY: only the lifetime changes. Workers read the launch while `running` counts them; this function
        // returns only when no worker is counted and none can be again, because the job has left the queue.
        let launch: LaunchState<'static> = unsafe { std::mem::transmute(launch) };
        let blocks = launch.blocks;
        let job = Arc::new(Job {
            launch,
            workers: self.workers as u64,
            state: Mutex::default(),
            done: Condvar::new(),
        });
        // A single block is begun here: most are over sooner than a worker is awake. A block that takes longer goes on
        // there.
        if blocks == 1
            && let Some(block) = job.take()
        {
            job.work(&self.shared, block);
        }
        if !lock(&job.state).over(blocks) {
            self.start_threads();
            lock(&self.shared.queue).jobs.push(job.clone());
            self.shared.wake.notify_all();
        }
        let mut state = lock(&job.state);
        while !state.over(blocks) {
            // A cancelled launch ends even if no worker is free to notice.
            let (next, _) = job
                .done
                .wait_timeout(state, Duration::from_millis(20))
                .unwrap_or_else(PoisonError::into_inner);
            state = next;
            if state.fault.is_none() && state.finished < blocks && job.launch.cancel.load(Ordering::Relaxed) {
                state.fault = Some(Fault::Cancelled);
            }
        }
        drop(state);
        lock(&self.shared.queue).jobs.retain(|j| !Arc::ptr_eq(j, &job));
        // A worker may have looked at the job after it was over, but takes nothing from it then.
        let mut state = lock(&job.state);
        match state.fault.take() {
            Some(fault) => {
                // No worker may start again.
                state.fault = Some(Fault::Cancelled);
                Err(fault)
            }
            None => Ok(Stats {
                warp_instructions: state.issued.warp,
                lane_instructions: state.issued.lane,
                times: state.times,
            }),
        }
    }

    fn start_threads(&self) {
        let mut threads = lock(&self.threads);
        while threads.len() < self.workers {
            let shared = self.shared.clone();
            let name = format!("divvy-sm{}", threads.len());
            match std::thread::Builder::new()
                .name(name)
                .spawn(move || work(&shared))
            {
                Ok(thread) => threads.push(thread),
                // Fewer workers still get everything done, unless there is none.
                Err(_) if !threads.is_empty() => break,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.queue).stop = true;
        self.shared.wake.notify_all();
        for thread in lock(&self.threads).drain(..) {
            // A worker that panicked has nothing left to clean up.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    let mut queue = lock(&shared.queue);
    loop {
        if queue.stop {
            return;
        }
        let count = queue.jobs.len();
        let mut found = None;
        for n in 0..count {
            let at = (queue.next + n) % count;
            let job = queue.jobs[at].clone();
            if let Some(block) = job.take() {
                queue.next = at + 1;
                found = Some((job, block));
                break;
            }
        }
        match found {
            Some((job, block)) => {
                drop(queue);
                job.work(shared, block);
                queue = lock(&shared.queue);
            }
            None => queue = shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// What a worker was given to run.
enum Taken {
    /// Blocks that have not begun, one after the other in the same place.
    Fresh(Option<Block>, Range<u64>),
    Again(Block),
}

/// What became of it.
struct Outcome {
    /// The place, with the block that ran last.
    block: Block,
    /// How that one ended.
    ran: Ran,
    /// Blocks before it that are done, and their times.
    done: u64,
    longest_ps: u64,
    sum_ps: u64,
    /// Blocks that have not begun.
    left: Range<u64>,
}

impl Job {
    /// A block to run; counts the caller as running.
    fn take(&self) -> Option<Taken> {
        let mut state = lock(&self.state);
        self.take_from(&mut state)
    }

    fn take_from(&self, state: &mut Progress) -> Option<Taken> {
        if !state.has_work(self.launch.blocks) {
            return None;
        }
        // As many blocks as the device's multiprocessors would hold are resident at most; all, if the launch asks.
        let per_sm = u64::from(2048 / self.launch.threads.max(64));
        let room = self.launch.cooperative || state.resident() < per_sm * u64::from(self.launch.sm_count);
        let fresh = state.has_fresh(self.launch.blocks) && room;
        let again = !state.suspended.is_empty();
        let take_again = again && (!fresh || state.prefer_suspended && !self.launch.cooperative);
        if !take_again && !fresh {
            return None;
        }
        state.running += 1;
        state.prefer_suspended = !take_again;
        if take_again {
            return state.suspended.pop_front().map(Taken::Again);
        }
        let blocks = match state.left.pop() {
            Some(left) => left,
            None => {
                let count = self.batch(state);
                state.next += count;
                state.next - count..state.next
            }
        };
        Some(Taken::Fresh(state.free.pop(), blocks))
    }

    /// How many blocks a worker starts without looking at the launch in between, so that small blocks do not wait for
    /// its lock. Few enough that the workers end together, and one where blocks are to be seen singly.
    fn batch(&self, state: &Progress) -> u64 {
        if self.launch.cooperative || self.launch.timing.is_some() || !state.suspended.is_empty() {
            return 1;
        }
        ((self.launch.blocks - state.next) / (8 * self.workers)).clamp(1, MAX_BATCH)
    }

    /// Runs what was taken: a batch until a block is not done, or until its slice of time is over.
    fn run(&self, work: Taken, c: &mut Ctx, issued: &mut Issued) -> Outcome {
        let launch = &self.launch;
        let (mut block, mut left, mut fresh) = match work {
            Taken::Again(block) => (block, 0..0, false),
            Taken::Fresh(place, blocks) => (place.unwrap_or_else(|| Block::new(launch)), blocks, true),
        };
        let (mut done, mut longest_ps, mut sum_ps) = (0, 0u64, 0u64);
        loop {
            if fresh {
                block.start(launch, left.start);
                left.start += 1;
            }
            fresh = true;
            let ran = block.run(c, launch, SLICE, TURN, issued);
            if ran == Ran::Done {
                longest_ps = longest_ps.max(block.time_ps());
                sum_ps = sum_ps.saturating_add(block.time_ps());
                done += 1;
            }
            let stops = left.is_empty() || issued.warp >= SLICE || launch.cancel.load(Ordering::Relaxed);
            if ran != Ran::Done || stops {
                return Outcome {
                    block,
                    ran,
                    done,
                    longest_ps,
                    sum_ps,
                    left,
                };
            }
        }
    }

    /// Runs blocks of this launch for a while, beginning with `taken`.
    fn work(&self, shared: &Shared, taken: Taken) {
        let launch = &self.launch;
        let mut taken = Some(taken);
        let mut budget = 16 * SLICE;
        let mut c = Ctx::new(launch);
        let mut since = launch.timing.map_or(0, |timing| (timing.cpu_ns)());
        let mut unsaid = 0;
        while let Some(work) = taken.take() {
            let mut issued = Issued::default();
            let outcome = catch_unwind(AssertUnwindSafe(|| self.run(work, &mut c, &mut issued)));
            if let Some(timing) = launch.timing {
                // While this worker counts as running the launch, and with it the callback, is there.
                let now = (timing.cpu_ns)();
                let mut state = lock(&self.state);
                state.times.cpu_ns += now.saturating_sub(since);
                since = now;
                let told = TimingProgress {
                    cpu_ns: state.times.cpu_ns,
                    polling: state.times.polled,
                };
                drop(state);
                unsaid += issued.warp;
                if unsaid >= SLICE || told.polling {
                    unsaid = 0;
                    (timing.progress)(told);
                }
            }
            let mut state = lock(&self.state);
            state.running -= 1;
            state.issued.warp += issued.warp;
            state.issued.lane += issued.lane;
            let mut pause = false;
            let ran = outcome.map(|outcome| {
                state.finished += outcome.done;
                if outcome.done > 0 {
                    state.idle = 0;
                }
                state.times.longest_ps = state.times.longest_ps.max(outcome.longest_ps);
                state.times.sum_ps = state.times.sum_ps.saturating_add(outcome.sum_ps);
                if !outcome.left.is_empty() {
                    state.left.push(outcome.left);
                    // Another worker may have found nothing to do meanwhile.
                    shared.wake.notify_one();
                }
                (outcome.block, outcome.ran)
            });
            match ran {
                Ok((block, Ran::Done)) => state.free.push(block),
                Ok((block, Ran::Slice)) => {
                    state.idle = 0;
                    state.suspended.push_back(block);
                }
                Ok((block, Ran::AtGrid)) => {
                    state.idle = 0;
                    state.at_grid.push(block);
                }
                Ok((block, Ran::Idle)) => {
                    state.suspended.push_back(block);
                    state.idle += 1;
                    // Every block polls: what they wait for comes from outside, if at all.
                    pause = state.idle > 4 * state.resident() && !state.has_fresh(launch.blocks);
                    state.times.polled |= pause;
                }
                Ok((_, Ran::Fault { line })) => {
                    let fault = self.fault(c.fault.take(), line);
                    state.fault.get_or_insert(fault);
                }
                Err(_) => {
                    state
                        .fault
                        .get_or_insert(Fault::BadLaunch("the engine failed: this is a defect".into()));
                }
            }
            match state.check_grid(launch) {
                // There is work for every worker again.
                Ok(true) => shared.wake.notify_all(),
                Ok(false) => {}
                Err(line) => {
                    let fault = self.fault(Some(Stop::Deadlock), line);
                    state.fault.get_or_insert(fault);
                }
            }
            if launch.cancel.load(Ordering::Relaxed) && state.finished < launch.blocks {
                state.fault.get_or_insert(Fault::Cancelled);
            }
            if state.over(launch.blocks) {
                drop(state);
                self.done.notify_all();
                return;
            }
            budget = budget.saturating_sub(issued.warp.max(SLICE / 64));
            if pause {
                drop(state);
                std::thread::sleep(Duration::from_micros(50));
                state = lock(&self.state);
            }
            if budget == 0 {
                // Others' launches get their turn.
                drop(state);
                break;
            }
            taken = self.take_from(&mut state);
        }
        shared.wake.notify_one();
    }

    fn fault(&self, stop: Option<Stop>, line: u32) -> Fault {
        let kernel = self.launch.kernel.clone();
        match stop {
            Some(Stop::Illegal { address, access }) => Fault::IllegalAddress {
                kernel,
                line,
                address,
                access,
            },
            Some(Stop::Misaligned { address, access }) => Fault::MisalignedAddress {
                kernel,
                line,
                address,
                access,
            },
            Some(Stop::Deadlock) => Fault::Deadlock { kernel, line },
            Some(Stop::Unsupported) => Fault::Unsupported(Unsupported {
                instruction: "an instruction".into(),
                kernel,
                line,
            }),
            Some(Stop::Assert) => Fault::Assert { kernel, line },
            Some(Stop::Trap) | None => Fault::Trap { kernel, line },
        }
    }
}
