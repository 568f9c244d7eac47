//! The gate: whether this process may launch now, and which work it has in flight.
//!
//! The agent leases the device (docs/adr/0014). Its words reach this process in the grant, and the process's words
//! reach the agent in the ledger (docs/adr/0023). A launch compares one word; under a lease it takes its estimate out
//! of the stream's credit. All other tasks are in these modules:
//!
//! - `budget`: the credit of each stream. `estimates`: how long a kernel should take. `admission`: may it go now?
//! - `wait`: a launch that cannot go at once. `ranks`: which of several long ones goes first. `bucket`: the slice's share without an agent.
//! - `in_flight`: the work believed to be in flight. `mark`: our events in the program's streams. `watch`: which work
//!   is over.
//! - `pauses`: how long a lease that is not used is kept.
//! - `thread`: the gate thread, which finds out which work is over and tells the agent.
//! - `capture`: stream captures, which are not disturbed.
//!
//! Copies and memsets pass: they use other engines than kernels do, and mostly wait for kernels anyway.

mod admission;
mod bucket;
mod budget;
mod capture;
mod estimates;
mod graphs;
mod in_flight;
mod launch;
mod mark;
mod pauses;
mod ranks;
mod slept;
mod stream;
mod thread;
mod wait;
mod watch;

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, OnceLock};

use divvy_abi::{CUDA_LAUNCH_PARAMS, CUcontext, CUresult};
use divvy_ledger::attach::Attached;
use divvy_ledger::{Gate as Says, GateWord, MAX_ACCOUNTS};

use crate::account;
use crate::below::ask;
use crate::devices::{self, DeviceAccount};
use crate::leave::Leaving;
use crate::tenant::{self, Membership, Tenant};

use budget::{STREAMS, StreamBudget};
use estimates::Estimates;
pub(crate) use graphs::{Contents, ended as graph_ended};
use in_flight::InFlight;
pub(crate) use launch::Launch;
pub(crate) use stream::Stream;
use thread::Thread;

/// This process's gate to the device of one account.
#[derive(Debug)]
pub(crate) struct Gate {
    account: u8,
    /// The word that was last read, as bits. Its meaning still holds while the grant has the same word.
    seen: AtomicU32,
    budgets: [StreamBudget; STREAMS],
    /// The device's clock under which the estimates were made, in MHz; 0 until it is known.
    clock_mhz: AtomicU32,
    /// Created when the first launch is counted.
    estimates: OnceLock<Estimates>,
    in_flight: Mutex<InFlight>,
    /// Work was launched while the gate was open, so the work in flight is unknown.
    uncounted: AtomicBool,
    /// Futex word: raised when work has completed, or when it is time for a waiting thread to wake.
    progress: AtomicU32,
    /// Threads that wait at the gate.
    waiting: AtomicU32,
    thread: Thread,
}

/// By account; each is created at its first use.
static GATES: [OnceLock<Box<Gate>>; MAX_ACCOUNTS as usize] =
    [const { OnceLock::new() }; MAX_ACCOUNTS as usize];

/// The gate to the device of the account with this index.
#[inline]
fn of(account: u8) -> Option<&'static Gate> {
    let gate = GATES.get(usize::from(account))?;
    Some(gate.get_or_init(|| Box::new(Gate::new(account))))
}

/// A word that no agent writes: it means closed.
const NOTHING_SEEN: u32 = 3;

impl Gate {
    pub fn new(account: u8) -> Self {
        Self {
            account,
            seen: AtomicU32::new(NOTHING_SEEN),
            budgets: [const { StreamBudget::new() }; STREAMS],
            clock_mhz: AtomicU32::new(0),
            estimates: OnceLock::new(),
            in_flight: Mutex::new(InFlight::new()),
            uncounted: AtomicBool::new(false),
            progress: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            thread: Thread::new(),
        }
    }

    /// Notes the device's clock. Where it is another one, each estimate has to be measured again. The agent tells the
    /// clock each second, and the gate thread reads it: launches do not.
    fn note_clock(&self, mhz: u32) {
        let before = self.clock_mhz.load(Relaxed);
        if mhz == 0 || (before != 0 && !estimates::is_other_clock(before, mhz)) {
            return;
        }
        self.clock_mhz.store(mhz, Relaxed);
        if let (Some(known), true) = (self.estimates.get(), before != 0) {
            known.doubt(before, mhz);
        }
    }

    fn estimates(&self) -> &Estimates {
        self.estimates.get_or_init(Estimates::new)
    }

    /// Whether the gate was open when it was last read, and still is.
    #[inline]
    fn is_seen_open(&self, word: GateWord) -> bool {
        word.bits() == self.seen.load(Relaxed) && matches!(word.gate(), Says::Open)
    }

    /// Whether a launch may go on the fast path; then its stream's position, if it is counted.
    #[inline]
    fn quick(&self, word: GateWord, launch: &Launch) -> Quick {
        if word.bits() != self.seen.load(Relaxed) {
            return Quick::Look;
        }
        match word.gate() {
            Says::Leased if !capture::any() => {
                let index = budget::find(&self.budgets, launch.stream.name());
                let estimates = self.estimates.get();
                match (index, estimates.and_then(|known| known.quick(launch.key))) {
                    (Some(index), Some(ns)) if self.budgets[index].spend(ns) => Quick::Counted(index),
                    _ => Quick::Look,
                }
            }
            _ => Quick::Look,
        }
    }
}

enum Quick {
    Counted(usize),
    Look,
}

/// Launches by `call`, as soon as the gate allows it.
#[inline]
pub(crate) fn launching(
    launch: impl FnOnce() -> Option<Launch>,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(Tenant::Member(member)) = tenant::known() else {
        return call();
    };
    let Some((gate, attached)) = of_current(member) else {
        return call();
    };
    let word = attached.gate();
    // Alone on its device: launches need no accounting.
    if gate.is_seen_open(word) {
        return call();
    }
    // If this is not a valid launch, the driver reports it.
    let Some(launch) = launch() else { return call() };
    match gate.quick(word, &launch) {
        Quick::Counted(index) => {
            let result = call();
            gate.budgets[index].came_back();
            result
        }
        Quick::Look => slowly(gate, attached, &launch, call),
    }
}

#[cold]
fn slowly(
    gate: &'static Gate,
    attached: &'static Attached,
    launch: &Launch,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    if !attached.is_ours() || capture::takes(launch.stream) {
        return call();
    }
    match gate.pass(attached, launch) {
        None => call(),
        Some(passed) => {
            let result = call();
            gate.launched(attached, launch, passed);
            result
        }
    }
}

/// The gate to the current context's device. `None` if the launch is not counted, or if the driver has to report an
/// error.
#[inline]
fn of_current(member: &'static Membership) -> Option<(&'static Gate, &'static Attached)> {
    if !member.is_by_device() {
        return Some((of(0)?, member.first()));
    }
    match devices::current(member) {
        Ok(DeviceAccount::Account(index)) => Some((of(index)?, member.account(index)?)),
        _ => None,
    }
}

/// Launches on several devices at once by `call`, as soon as all their gates allow it.
pub(crate) fn launching_together(
    parameters: &[CUDA_LAUNCH_PARAMS],
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(Tenant::Member(member)) = tenant::known() else {
        return call();
    };
    if !account::keeps_charges() {
        return call();
    }
    let mut passed = Vec::with_capacity(parameters.len());
    for one in parameters {
        let launch = Launch::one_of(one);
        let found = ask::in_context(launch.stream.context(), || {
            Ok(of_current(member).map(|(gate, attached)| {
                let pass = (!capture::takes(launch.stream)).then(|| gate.pass(attached, &launch));
                (gate, attached, launch, pass.flatten())
            }))
        });
        if let Ok(Some((gate, attached, launch, Some(pass)))) = found {
            passed.push((gate, attached, launch, pass));
        }
    }
    let result = call();
    for (gate, attached, launch, pass) in passed {
        // An event for it alone could only be recorded in the launch's context.
        let _context = ask::in_context(launch.stream.context(), || {
            gate.launched(attached, &launch, pass);
            Ok(())
        });
    }
    result
}

/// All gates of this process, with their accounts; none if nothing is counted.
fn all() -> impl Iterator<Item = (&'static Gate, &'static Attached)> {
    let member = match tenant::known() {
        Some(Tenant::Member(member)) if member.first().is_ours() => Some(member),
        _ => None,
    };
    member.into_iter().flat_map(|member| {
        (0..member.count()).filter_map(|index| {
            let index = u8::try_from(index).ok()?;
            Some((of(index)?, member.account(index)?))
        })
    })
}

/// Begins a capture by `call`.
pub(crate) fn capturing(stream: Stream, call: impl FnOnce() -> CUresult) -> CUresult {
    if account::keeps_charges() {
        capture::begin(stream, call)
    } else {
        call()
    }
}

/// Ends a capture by `call`.
pub(crate) fn captured(stream: Stream, call: impl FnOnce() -> CUresult) -> CUresult {
    if account::keeps_charges() {
        capture::end(stream, call)
    } else {
        call()
    }
}

/// A stream is about to be destroyed.
pub(crate) fn stream_ends(stream: Stream) {
    for (gate, _) in all() {
        gate.seal(stream);
    }
    capture::stream_ends(stream.handle as usize);
}

/// A context may be about to end: until the returned value is dropped, the gate thread does not use it.
pub(crate) fn context_leaves(context: CUcontext) -> Option<Leaving> {
    account::keeps_charges().then(|| Leaving::begin(context as usize))
}

/// A context has ended.
pub(crate) fn context_ended(context: CUcontext) {
    let context = context as usize;
    capture::context_ended(context);
    for (gate, _) in all() {
        gate.forget(context);
    }
}
