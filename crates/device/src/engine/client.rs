//! This process's part in an engine.
//!
//! A kernel is executed as soon as the work before it has been executed, ahead of the clock. The time it takes goes on
//! the shared timeline as a job, and its end is signalled when the clock has come there. A kernel that follows another
//! one has its job before the length of that one is known. So the timeline never runs past it because a thread was
//! late.

use super::mps::Client;
use super::page::{OwnPlace, Page};
use super::schedule::{JOBS, Job, State, WHOLE};
use crate::exec::pool::{Pool, block_signals};
use crate::exec::task::{Task, Work};
use crate::page_file::PageFile;
use crate::product::spec::Timing;
use crate::{clock, log};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Engine time that is executed ahead, in nanoseconds; at least one kernel besides the one that runs.
const AHEAD: u64 = 4_000_000;
/// The thread that signals ends leaves when it had nothing to do for this long.
const IDLE: Duration = Duration::from_secs(5);
/// How often to look where the timeline waits for another process.
const LOOK: Duration = Duration::from_micros(200);
/// How often to look for dead processes, in nanoseconds.
const REAP_EVERY: u64 = 5_000_000;

/// What a task does on the engine: it executes, and returns how long that lasts, in nanoseconds.
pub type Run = Box<dyn FnOnce(&Running<'_>) -> u64 + Send>;

/// Finds the page of an engine. If the argument is true, this process is about to use the engine, and the page is that
/// of the device it uses. Otherwise the page is only looked at.
pub type Source = Box<dyn Fn(bool) -> Result<PageFile, rustix::io::Errno> + Send + Sync>;

/// The engine of a device, for this process.
pub struct EngineClient {
    /// How its time passes.
    pub timing: Timing,
    slice: Option<u64>,
    mps: Option<Client>,
    page: Source,
    joined: OnceLock<Option<(Page, OwnPlace)>>,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Kernels that run where time is not modelled.
    active: Mutex<usize>,
    /// What the last kernel saw of the clock at its end.
    seen_ns: AtomicU64,
}

#[derive(Default)]
struct Inner {
    /// Tasks whose turn it is to be executed.
    queue: VecDeque<(Arc<Task>, Run)>,
    /// Those on the timeline.
    jobs: Vec<Scheduled>,
    next: u64,
    thread: bool,
    reaped: u64,
}

struct Scheduled {
    number: u64,
    task: Arc<Task>,
    /// Its work, until it is started.
    run: Option<Run>,
    /// Unknown until it has been executed.
    length: Option<u64>,
    /// Device time from which it could run.
    ready: u64,
}

/// A kernel that is being executed.
pub struct Running<'a> {
    client: &'a EngineClient,
    /// Its job; None where time is not modelled.
    number: Option<u64>,
    /// What the device clock shows when it begins.
    pub start_ns: u64,
    width: AtomicU32,
}

impl EngineClient {
    /// The engine whose page `page` finds. Takes no place in it.
    pub fn new(timing: Timing, slice: Option<u64>, mps: Option<Client>, page: Source) -> Arc<EngineClient> {
        Arc::new(EngineClient {
            timing,
            slice,
            mps,
            page,
            joined: OnceLock::new(),
            inner: Mutex::default(),
            changed: Condvar::new(),
            active: Mutex::default(),
            seen_ns: AtomicU64::new(0),
        })
    }

    /// The page, and this process's place in it. None if there is no page, which is logged.
    pub fn join(&self) -> Option<&(Page, OwnPlace)> {
        let join = || {
            let page = Page::open(&(self.page)(true)?)?;
            let place = page.join()?;
            if let Some(slice) = self.slice {
                page.lock().suggest_slice(slice);
            }
            if let Some(client) = self.mps {
                page.enrol(&place, &client);
            }
            Ok::<_, rustix::io::Errno>((page, place))
        };
        self.joined
            .get_or_init(|| {
                join()
                    .inspect_err(|why| {
                        log::once(
                            "engine",
                            format_args!(
                                "the page of the device's engine: {why}; how busy this process keeps it is not visible. Remove the file if it is damaged",
                            ),
                        );
                    })
                    .ok()
            })
            .as_ref()
    }

    /// Whether the device is what was asked for only with its engine's page.
    pub fn is_needed(&self) -> bool {
        self.timing != Timing::Free || self.mps.is_some()
    }

    /// Whether this process would be a client of an MPS server that does not accept it. A server that has failed
    /// accepts no client until its former clients are gone. One with static partitions accepts none without a
    /// partition.
    pub fn is_refused(&self) -> bool {
        let Some(client) = self.mps else { return false };
        client.astray
            || self.joined.get().is_none()
                && (self.page)(false)
                    .and_then(|file| Page::open(&file))
                    .is_ok_and(|page| page.has_failed(client.server))
    }

    /// What failed at this process's MPS server, as a CUresult.
    pub fn server_fault(&self) -> Option<u32> {
        self.mps?;
        let (page, place) = self.joined.get()?.as_ref()?;
        Some(page.fault(place)).filter(|fault| *fault != 0)
    }

    /// Something fatal happened: where there is an MPS server, to all its clients.
    pub fn fail(&self, code: u32) {
        if let (Some(client), Some(Some((page, _)))) = (self.mps, self.joined.get()) {
            page.fail(client.server, code);
        }
    }

    /// A task's work that takes the engine.
    pub fn work(self: &Arc<EngineClient>, run: impl FnOnce(&Running<'_>) -> u64 + Send + 'static) -> Work {
        if self.timing != Timing::Free && self.join().is_some() {
            let client = Arc::clone(self);
            return Work::Engine(Box::new(move |task| client.ready(task, Box::new(run))));
        }
        let client = Arc::clone(self);
        Work::Brief(Box::new(move || {
            client.mark(true);
            run(&Running {
                client: &client,
                number: None,
                start_ns: 0,
                width: AtomicU32::new(WHOLE),
            });
            client.mark(false);
        }))
    }

    /// Where time is not modelled: a kernel begins or ends.
    fn mark(&self, begins: bool) {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *active;
        *active = if begins {
            before + 1
        } else {
            before.saturating_sub(1)
        };
        if (before == 0 || *active == 0)
            && let Some((page, place)) = self.join()
        {
            page.mark(place, begins);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The work before this task has been executed.
    fn ready(self: &Arc<EngineClient>, task: Arc<Task>, run: Run) {
        let mut inner = self.lock();
        inner.queue.push_back((task, run));
        self.admit(&mut inner);
    }

    /// Starts tasks, as far ahead as is allowed, and puts the next one on the timeline: its place there is kept while
    /// it waits.
    fn admit(self: &Arc<EngineClient>, inner: &mut Inner) {
        let Some((page, place)) = self.join() else { return };
        loop {
            let room = inner.jobs.len() < JOBS;
            let ahead: u64 = inner.jobs.iter().filter_map(|job| job.length).sum();
            let started = inner.jobs.iter().filter(|job| job.run.is_none()).count();
            let announced = inner.jobs.iter_mut().find(|job| job.run.is_some());
            let more = started < JOBS && (started < 2 || ahead < AHEAD);
            match announced {
                Some(job) if more => {
                    let (task, number) = (Arc::clone(&job.task), job.number);
                    let Some(run) = job.run.take() else { return };
                    let start_ns = self.begin(page, place, number).max(task.floor_ns());
                    let client = Arc::clone(self);
                    Pool::global().push(Box::new(move || client.execute(&task, run, number, start_ns)));
                }
                None if room => {
                    let Some((task, run)) = inner.queue.pop_front() else {
                        return;
                    };
                    let (number, ready) = (inner.next + 1, task.floor_ns());
                    if !announce(page, place, number, ready) {
                        inner.queue.push_front((task, run));
                        return;
                    }
                    inner.next = number;
                    inner.jobs.push(Scheduled {
                        number,
                        task,
                        run: Some(run),
                        length: None,
                        ready,
                    });
                }
                _ => return,
            }
        }
    }

    /// A job's kernel is about to be executed; what the device clock will show when it begins, as far as is known.
    fn begin(&self, page: &Page, place: &OwnPlace, number: u64) -> u64 {
        let locked = page.lock();
        let schedule = locked.load();
        let own = schedule.places.iter().find(|own| own.index == place.index);
        let earlier = own.into_iter().flat_map(|own| &own.jobs);
        let rest = earlier
            .filter(|job| job.waits() && job.number < number)
            .map(Job::rest);
        schedule
            .cursor
            .saturating_add(rest.fold(0, u64::saturating_add))
            .max(self.seen_ns.load(Ordering::Relaxed))
    }

    fn execute(self: &Arc<EngineClient>, task: &Arc<Task>, run: Run, number: u64, start_ns: u64) {
        let running = Running {
            client: self,
            number: Some(number),
            start_ns,
            width: AtomicU32::new(WHOLE),
        };
        let length = run(&running);
        self.seen_ns
            .fetch_max(start_ns.saturating_add(length), Ordering::Relaxed);
        // The job that follows comes on the timeline before this one's length is known.
        task.executed();
        self.change(number, |job| {
            job.state = State::Closed;
            job.extent = length.max(job.consumed);
            job.width = running.width.load(Ordering::Relaxed);
        });
        let mut inner = self.lock();
        for job in inner.jobs.iter_mut().filter(|job| job.number == number) {
            job.length = Some(length);
        }
        self.admit(&mut inner);
        if !inner.thread {
            inner.thread = true;
            let client = Arc::clone(self);
            let spawned = std::thread::Builder::new()
                .name("divvy-engine".into())
                .spawn(move || client.serve());
            if spawned.is_err() {
                // No other thread would: this thread does it, for as long as there is something to do.
                drop(inner);
                self.serve();
                return;
            }
        }
        drop(inner);
        self.changed.notify_all();
    }

    /// Changes a job of this process's.
    fn change(&self, number: u64, change: impl FnOnce(&mut Job)) {
        let Some((page, place)) = self.join() else { return };
        let locked = page.lock();
        let mut schedule = locked.load();
        let now = page.now();
        schedule.advance(now);
        let own = schedule.places.iter_mut().find(|own| own.index == place.index);
        let job = own.and_then(|own| {
            own.jobs
                .iter_mut()
                .find(|job| job.waits() && job.number == number)
        });
        if let Some(job) = job {
            job.touched = now.real;
            change(job);
        }
        locked.store(&schedule, Some(place.index));
    }

    /// Signals the end of each job on the timeline when the clock is there, until no job is left.
    fn serve(self: &Arc<EngineClient>) {
        block_signals();
        // SAFETY: this changes how exact this thread's own sleep is, and touches no memory.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
        let mut inner = self.lock();
        loop {
            if inner.jobs.is_empty() && inner.queue.is_empty() {
                let (woken, timeout) = self
                    .changed
                    .wait_timeout(inner, IDLE)
                    .unwrap_or_else(PoisonError::into_inner);
                inner = woken;
                if timeout.timed_out() && inner.jobs.is_empty() && inner.queue.is_empty() {
                    inner.thread = false;
                    return;
                }
                continue;
            }
            let (ended, wake) = self.look(&mut inner);
            self.admit(&mut inner);
            if !ended.is_empty() {
                drop(inner);
                for (task, end) in ended {
                    task.ended(end);
                }
                inner = self.lock();
                continue;
            }
            if wake.is_zero() {
                continue;
            }
            inner = self
                .changed
                .wait_timeout(inner, wake)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Advances the timeline. Returns the tasks whose end has come, in order, with their ends, and when to look again.
    fn look(&self, inner: &mut Inner) -> (Vec<(Arc<Task>, u64)>, Duration) {
        let Some((page, place)) = self.join() else {
            return (Vec::new(), LOOK);
        };
        let real = clock::real_ns();
        if real.saturating_sub(inner.reaped) > REAP_EVERY {
            inner.reaped = real;
            if page.processes() > 1 {
                page.reap();
            }
        }
        let locked = page.lock();
        let mut schedule = locked.load();
        let now = page.now();
        schedule.advance(now);
        let mut ended = Vec::new();
        let at = schedule.places.iter().position(|own| own.index == place.index);
        if let Some(at) = at {
            let own = &mut schedule.places[at];
            for job in &mut own.jobs {
                let known = inner.jobs.iter().position(|known| known.number == job.number);
                match (job.state, known) {
                    (State::Free, _) => {}
                    (State::Done, Some(known)) => {
                        ended.push((inner.jobs.swap_remove(known).task, job.end));
                        job.state = State::Free;
                    }
                    (_, Some(known)) => {
                        job.touched = now.real;
                        restore(job, &inner.jobs[known]);
                    }
                    // Not ours: another process overwrote the page.
                    (_, None) => job.state = State::Free,
                }
            }
            // A task whose job the page has lost ends here: nothing hangs.
            inner.jobs.retain(|known| {
                let there = |job: &Job| job.number == known.number && job.waits();
                let lost = known.length.is_some() && !own.jobs.iter().any(there);
                if lost {
                    ended.push((Arc::clone(&known.task), now.device));
                }
                !lost
            });
        }
        if at.is_none() {
            page.restore(place);
        }
        ended.sort_by_key(|(_, end)| *end);
        for (_, end) in &mut ended {
            // An end in the future is rubbish.
            *end = (*end).min(now.device);
        }
        locked.store(&schedule, Some(place.index));
        locked.sample(now.device);
        drop(locked);
        if !ended.is_empty() {
            return (ended, Duration::ZERO);
        }
        let wake = match schedule.predict(place.index, now) {
            Ok(end) if self.timing.leaps() => {
                page.leap_to(end);
                Duration::ZERO
            }
            Ok(end) => Duration::from_nanos(end.saturating_sub(now.device)),
            Err(_) if inner.jobs.iter().all(|job| job.length.is_none()) => Duration::from_millis(2),
            Err(certain) => Duration::from_nanos(certain.saturating_sub(now.device)).max(LOOK),
        };
        (ended, wake.min(Duration::from_millis(5)))
    }
}

/// Puts a job of unknown length on the timeline; false if there is no room.
fn announce(page: &Page, place: &OwnPlace, number: u64, ready: u64) -> bool {
    let locked = page.lock();
    let mut schedule = locked.load();
    let now = page.now();
    schedule.advance(now);
    let own = schedule.places.iter_mut().find(|own| own.index == place.index);
    let free = own.and_then(|own| own.jobs.iter_mut().find(|job| job.state == State::Free));
    let found = free.is_some();
    if let Some(free) = free {
        *free = Job {
            number,
            state: State::Open,
            ready,
            touched: now.real,
            width: WHOLE,
            ..Job::default()
        };
    }
    locked.store(&schedule, Some(place.index));
    found
}

/// Writes what this process knows of its job, in case another process overwrote it: no program may hang because of
/// that.
fn restore(job: &mut Job, known: &Scheduled) {
    job.ready = known.ready;
    if let Some(length) = known.length
        && (job.state != State::Closed || job.extent > length.max(job.consumed))
    {
        job.state = State::Closed;
        job.extent = length;
    }
}

impl Running<'_> {
    /// Whether time is modelled.
    pub fn is_modelled(&self) -> bool {
        self.number.is_some()
    }

    /// Multiprocessors that the kernel can keep busy, of [`WHOLE`].
    pub fn set_width(&self, width: u32) {
        self.width.store(width, Ordering::Relaxed);
    }

    /// The kernel is known to need at least this long, in nanoseconds, or waits for something from outside.
    pub fn progress(&self, at_least: u64, polling: bool) {
        let Some(number) = self.number else { return };
        let width = self.width.load(Ordering::Relaxed);
        self.client.change(number, |job| {
            job.width = width;
            job.extent = job.extent.max(at_least);
            if polling {
                job.state = State::Polling;
            }
        });
    }
}
