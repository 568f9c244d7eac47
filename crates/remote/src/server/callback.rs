//! Functions of the program that the driver below calls: it calls one of ours, which has a thread of the program run the
//! program's own. Work on the device goes on when that has returned.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use divvy_abi::*;

use super::{Call, Stop};
use crate::handle::{Id, Kind, Word};
use crate::wire::Malformed;
use crate::wire::by_hand::{CALLBACK_DESTROY, CALLBACK_FUNCTION, CALLBACK_STREAM, PER_THREAD};

/// What is to be run in the program, and what of it has returned.
#[derive(Default)]
pub struct Callbacks {
    state: Mutex<State>,
    changed: Condvar,
    /// Functions that are called once, and that the program was not told to run yet.
    queued: AtomicUsize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: HashSet<u64>,
    next: u64,
    /// Threads of the program that wait for a function to run.
    waiters: usize,
    /// Functions that graphs call, any number of times: they stay as long as the process, which is the connection's.
    kept: HashMap<(u8, u64, u64), &'static Target>,
}

struct Job {
    ticket: u64,
    target: Facts,
    status: u32,
    /// It counts as queued until the program has been told.
    counts: bool,
}

/// What the driver below is given in the place of the program's function and its data.
pub struct Target {
    callbacks: Arc<Callbacks>,
    facts: Facts,
    /// It is called once, and then it goes.
    once: bool,
}

/// The program's function and its data: numbers here.
#[derive(Clone, Copy)]
struct Facts {
    kind: u8,
    function: u64,
    data: u64,
    stream: u64,
}

impl Callbacks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the program run a function. Gives the ticket by which its return is known.
    fn ask(&self, target: Facts, status: u32, counts: bool) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let ticket = state.next;
        state.running.insert(ticket);
        state.waiting.push_back(Job {
            ticket,
            target,
            status,
            counts,
        });
        self.changed.notify_all();
        ticket
    }

    fn wait_for(&self, ticket: u64) {
        let mut state = self.state();
        while state.running.contains(&ticket) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.once {
            self.callbacks.queued.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// # Safety
/// `data` is a [`Target`] that the driver below was given. One that is called once is not used after this.
unsafe fn called(data: *mut c_void, status: u32) {
    let target: *mut Target = data.cast();
    // SAFETY: promised by the caller.
    let (callbacks, facts, once) =
        unsafe { (Arc::clone(&(*target).callbacks), (*target).facts, (*target).once) };
    if once {
        // SAFETY: it was made as a box, and nothing else has it.
        let mut target = unsafe { Box::from_raw(target) };
        // The job counts in its place: a program that does not wait for its functions has no more of them.
        target.once = false;
    }
    let ticket = callbacks.ask(facts, status, once);
    if facts.kind != CALLBACK_DESTROY {
        callbacks.wait_for(ticket);
    }
}

unsafe extern "C" fn function(data: *mut c_void) {
    // SAFETY: the driver below passes on what it was given.
    unsafe { called(data, 0) };
}

unsafe extern "C" fn stream_callback(_: CUstream, status: CUresult, data: *mut c_void) {
    // SAFETY: as above.
    unsafe { called(data, status.0) };
}

impl Call<'_> {
    /// The program's function in the form that the driver below calls, once.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where as many wait as may.
    fn once(&self, kind: u8, function: u64, data: u64, stream: u64) -> Result<*mut Target, Stop> {
        let callbacks = &self.server.callbacks;
        let queued = callbacks.queued.fetch_add(1, Ordering::Relaxed);
        let target = Box::new(Target {
            callbacks: Arc::clone(callbacks),
            facts: Facts {
                kind,
                function,
                data,
                stream,
            },
            once: true,
        });
        match queued < self.server.quota.queued {
            true => Ok(Box::into_raw(target)),
            false => Err(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY)),
        }
    }

    /// The same, for a graph: any number of times.
    fn kept(&self, kind: u8, function: u64, data: u64, stream: u64) -> Result<*mut Target, Stop> {
        let callbacks = &self.server.callbacks;
        let mut state = callbacks.state();
        if state.kept.len() >= self.server.quota.objects {
            return Err(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY));
        }
        let target = state.kept.entry((kind, function, data)).or_insert_with(|| {
            Box::leak(Box::new(Target {
                callbacks: Arc::clone(callbacks),
                facts: Facts {
                    kind,
                    function,
                    data,
                    stream,
                },
                once: false,
            }))
        });
        Ok(std::ptr::from_ref(*target).cast_mut())
    }

    /// A host node's function and data, as the driver below is given them.
    pub fn host_node(&self, function_: u64, data: u64) -> Result<(CUhostFn, *mut c_void), Stop> {
        let target = self.kept(CALLBACK_FUNCTION, function_, data, 0)?;
        Ok((Some(function), target.cast()))
    }

    /// The program's own function and data of a host node, where it is one that a program has set.
    pub fn of_host_node(&self, called: CUhostFn, data: *mut c_void) -> Option<(u64, u64)> {
        let ours =
            called.is_some_and(|called| std::ptr::fn_addr_eq(called, function as unsafe extern "C" fn(_)));
        let state = self.server.callbacks.state();
        let known = state
            .kept
            .values()
            .find(|target| std::ptr::eq(**target, data.cast()));
        known
            .filter(|_| ours)
            .map(|target| (target.facts.function, target.facts.data))
    }
}

/// Has a stream call a function of the program: flags, stream, kind, function, data, mode.
pub fn launch(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let flags: u8 = call.message.plain()?;
    let stream = call.handle(Kind::Stream)?;
    let kind: u8 = call.message.plain()?;
    let (program, data): (u64, u64) = (call.message.plain()?, call.message.plain()?);
    let mode: u32 = call.message.plain()?;
    call.message.end()?;
    if flags & !PER_THREAD != 0 || !matches!(kind, CALLBACK_FUNCTION | CALLBACK_STREAM) {
        return Err(Stop::Malformed);
    }
    call.begin_part(Symbol::cuLaunchHostFunc)?;
    let (driver, bits) = (call.driver, stream.id().map_or(stream.real, Id::bits));
    let stream: CUstream = Word::from_bits(stream.real);
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    let ask = match flags {
        0 => driver.cuStreamIsCapturing,
        _ => driver.cuStreamIsCapturing_ptsz,
    };
    // SAFETY: the stream is one of the driver's, and it writes one number to memory of ours.
    unsafe { ask(stream, &raw mut status) };
    let captured = status != CU_STREAM_CAPTURE_STATUS_NONE;
    let target = match captured {
        true => call.kept(kind, program, data, bits)?,
        false => call.once(kind, program, data, bits)?,
    };
    // SAFETY: the driver below calls our function with the target, which lives until then.
    let code = unsafe {
        let data = target.cast();
        match (kind, flags, mode) {
            (CALLBACK_STREAM, 0, _) => (driver.cuStreamAddCallback)(stream, Some(stream_callback), data, 0),
            (CALLBACK_STREAM, ..) => {
                (driver.cuStreamAddCallback_ptsz)(stream, Some(stream_callback), data, 0)
            }
            (_, 0, 0) => (driver.cuLaunchHostFunc)(stream, Some(function), data),
            (_, _, 0) => (driver.cuLaunchHostFunc_ptsz)(stream, Some(function), data),
            (_, 0, mode) => (driver.cuLaunchHostFunc_v2)(stream, Some(function), data, mode),
            (_, _, mode) => (driver.cuLaunchHostFunc_v2_ptsz)(stream, Some(function), data, mode),
        }
    };
    if code != CUDA_SUCCESS && !captured {
        // SAFETY: the driver below has refused it, so nothing else has it.
        drop(unsafe { Box::from_raw(target) });
    }
    call.end_part(code);
    Ok(code)
}

/// A thread of the program waits for a function to run: the ticket of the one that has returned, or 0. The answer is the
/// ticket of the next one, its kind, function, data, stream and status.
pub fn wait(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let finished: u64 = call.message.plain()?;
    call.message.end()?;
    let callbacks = &call.server.callbacks;
    let mut state = callbacks.state();
    if finished != 0 && state.running.remove(&finished) {
        callbacks.changed.notify_all();
    }
    if state.waiters >= call.server.quota.callbacks {
        return Ok(CUDA_ERROR_OUT_OF_MEMORY);
    }
    state.waiters += 1;
    loop {
        if let Some(job) = state.waiting.pop_front() {
            state.waiters -= 1;
            if job.counts {
                callbacks.queued.fetch_sub(1, Ordering::Relaxed);
            }
            if job.target.kind == CALLBACK_DESTROY {
                state.running.remove(&job.ticket);
            }
            call.answer.plain(job.ticket);
            call.answer.plain(job.target.kind);
            call.answer.plain(job.target.function);
            call.answer.plain(job.target.data);
            call.answer.plain(job.target.stream);
            call.answer.plain(job.status);
            return Ok(CUDA_SUCCESS);
        }
        state = callbacks
            .changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// Makes a user object: its name, the kind, function and data of its destructor, references, flags.
pub fn user_object(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let made = call.made(Kind::UserObject)?;
    let kind: u8 = call.message.plain()?;
    let (program, data): (u64, u64) = (call.message.plain()?, call.message.plain()?);
    let (references, flags): (u32, u32) = (call.message.plain()?, call.message.plain()?);
    call.message.end()?;
    if kind != CALLBACK_DESTROY || made.id().is_none() {
        return Err(Malformed.into());
    }
    let target = call.once(kind, program, data, 0)?;
    let to = made.spot.pointer(call.arena.base());
    // SAFETY: the driver writes one handle to the arena, and calls our function with the target once.
    let code =
        unsafe { (call.driver.cuUserObjectCreate)(to, target.cast(), Some(function), references, flags) };
    if code == CUDA_SUCCESS {
        call.enter(made, None);
    } else {
        // SAFETY: the driver below has refused it, so nothing else has it.
        drop(unsafe { Box::from_raw(target) });
    }
    Ok(code)
}
