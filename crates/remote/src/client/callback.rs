//! Functions of the program that the device's work calls: the server asks for them, and a thread here runs them.
//!
//! The thread starts with the first such function. It takes no signals, which are the program's. A server can only name
//! functions that the program has given it, with the data and for the kind of call that it gave, and no more often than
//! the program may expect.
#![allow(non_snake_case)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use divvy_abi::*;

use super::arguments::write_name;
use super::{new_name, start, thread};
use crate::fork::OfProcess;
use crate::handle::{Kind, Word};
use crate::wire::by_hand::{
    CALLBACK_DESTROY, CALLBACK_FUNCTION, CALLBACK_STREAM, CALLBACK_WAIT, HOST_FUNCTION, PER_THREAD,
    USER_OBJECT,
};

/// What a program gave: the kind of the function, its address, and its data.
type Given = (u8, u64, u64);

/// Calls of a function that a graph may have: one at each launch.
const ANY: u64 = u64::MAX;

/// The calls that a server may ask for: how many are left of each.
#[derive(Default)]
struct Calls(BTreeMap<Given, u64>);

/// Captures of streams that this program has begun and not ended. Only the server knows which streams follow one, and it
/// may lie: so while there is one, each function may be a node of a graph.
static CAPTURES: AtomicU64 = AtomicU64::new(0);

/// How many calls a program expects of a function of this kind that it gives to a stream.
fn expected(kind: u8) -> u64 {
    match kind {
        CALLBACK_STREAM | CALLBACK_DESTROY => 1,
        _ if CAPTURES.load(Ordering::SeqCst) == 0 => 1,
        _ => ANY,
    }
}

fn begins_capture(symbol: Symbol) -> bool {
    matches!(
        symbol,
        Symbol::cuStreamBeginCaptureToGraph
            | Symbol::cuStreamBeginCaptureToGraph_ptsz
            | Symbol::cuStreamBeginCapture_v2
            | Symbol::cuStreamBeginCapture_v2_ptsz
    )
}

/// Before each generated call. A capture counts before the server knows of it, and so before another thread's function can
/// be a part of it.
#[inline(always)]
pub fn before(symbol: Symbol) {
    if begins_capture(symbol) {
        CAPTURES.fetch_add(1, Ordering::SeqCst);
    }
}

/// After each generated call. A capture that was invalidated counts on: that costs nothing but a bound.
#[inline(always)]
pub fn after(symbol: Symbol, code: CUresult) {
    let is_over = match symbol {
        Symbol::cuStreamEndCapture | Symbol::cuStreamEndCapture_ptsz => code == CUDA_SUCCESS,
        symbol => begins_capture(symbol) && code != CUDA_SUCCESS,
    };
    if is_over {
        let less = |count: u64| count.checked_sub(1);
        let _was_none = CAPTURES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

impl Calls {
    fn add(&mut self, given: Given, times: u64) {
        let left = self.0.entry(given).or_default();
        *left = left.saturating_add(times);
    }

    /// Uses one call up. Whether there was one.
    fn take(&mut self, given: Given) -> bool {
        let Some(left) = self.0.get_mut(&given) else {
            return false;
        };
        if *left != ANY {
            *left -= 1;
        }
        if *left == 0 {
            self.0.remove(&given);
        }
        true
    }
}

static KNOWN: OfProcess<Mutex<Calls>> = OfProcess::new();

fn known() -> MutexGuard<'static, Calls> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the program gave this function with this data for a graph's node, or to a stream that may have been captured.
pub fn is_known(function: u64, data: u64) -> bool {
    known().0.get(&(CALLBACK_FUNCTION, function, data)) == Some(&ANY)
}

thread_local! {
    /// Whether this thread runs such a function: CUDA does not permit calls from there.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a function for the device's work.
pub fn runs() -> bool {
    RUNS.try_with(Cell::get).unwrap_or(false)
}

/// Makes a function of a graph's node one that the server may name, and gives what the server is told.
pub fn announce_node(function: *const c_void, data: u64) -> u64 {
    announce(CALLBACK_FUNCTION, function, data, ANY)
}

/// Makes a function one that the server may name so often, and has a thread wait for that. Gives what the server is told.
fn announce(kind: u8, function: *const c_void, data: u64, times: u64) -> u64 {
    static STARTED: Once = Once::new();
    let address = function.expose_provenance() as u64;
    if start::require_here().is_err() {
        // The call is refused, and a thread that begins now would end at once.
        return address;
    }
    known().add((kind, address, data), times);
    STARTED.call_once(|| {
        let thread = std::thread::Builder::new().name("divvy-callback".to_owned());
        // Without the thread the device's work waits, and the program's next synchronisation with it.
        let _started = spawned_quietly(|| thread.spawn(serve));
    });
    address
}

/// Takes back what was announced for a call that failed: the program may give up its data now.
fn withdraw(kind: u8, function: u64, data: u64) {
    // A function that may run at any time was perhaps given before, too: `take` leaves it.
    known().take((kind, function, data));
}

/// Makes it one that the server may name at any time.
#[cfg(test)]
pub fn remember(function: u64, data: u64) {
    known().add((CALLBACK_FUNCTION, function, data), ANY);
}

/// Starts a thread that takes no signals: it inherits the mask that it is started with.
fn spawned_quietly<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are ours alone, and the first is filled before it is used.
    let before = unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        let mut before = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let started = start();
    // SAFETY: the mask is the one that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started
}

/// A function to run.
#[derive(Default)]
struct Job {
    ticket: u64,
    kind: u8,
    function: u64,
    data: u64,
    stream: u64,
    status: u32,
}

fn serve() {
    let mut finished = 0_u64;
    loop {
        let mut job = Job::default();
        let code = thread::call(
            CALLBACK_WAIT,
            Symbol::cuLaunchHostFunc,
            |m| m.plain(finished),
            |m, good| {
                if good {
                    job = Job {
                        ticket: m.plain()?,
                        kind: m.plain()?,
                        function: m.plain()?,
                        data: m.plain()?,
                        stream: m.plain()?,
                        status: m.plain()?,
                    };
                }
                Ok(())
            },
        );
        if code != CUDA_SUCCESS {
            return;
        }
        job.run();
        finished = job.ticket;
    }
}

impl Job {
    fn run(&self) {
        if !known().take((self.kind, self.function, self.data)) {
            return;
        }
        let function = std::ptr::with_exposed_provenance::<c_void>(self.function as usize);
        let data = std::ptr::with_exposed_provenance_mut(self.data as usize);
        RUNS.set(true);
        // SAFETY: the program gave this function, for calls of this kind with what it gave as its data.
        unsafe {
            if self.kind == CALLBACK_STREAM {
                let function: unsafe extern "C" fn(CUstream, CUresult, *mut c_void) =
                    std::mem::transmute(function);
                function(Word::from_bits(self.stream), CUresult(self.status), data);
            } else {
                let function: unsafe extern "C" fn(*mut c_void) = std::mem::transmute(function);
                function(data);
            }
        }
        RUNS.set(false);
    }
}

fn launch(
    symbol: Symbol,
    flags: u8,
    stream: CUstream,
    kind: u8,
    function: *const c_void,
    data: *mut c_void,
    mode: u32,
) -> CUresult {
    if function.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let data = data.expose_provenance() as u64;
    let times = expected(kind);
    let function = announce(kind, function, data, times);
    let mut is_given = false;
    let code = thread::call(
        HOST_FUNCTION,
        symbol,
        |m| {
            m.plain(flags);
            m.plain(stream.bits());
            m.plain(kind);
            m.plain(function);
            m.plain(data);
            m.plain(mode);
        },
        |_, good| {
            is_given = good;
            Ok(())
        },
    );
    if !is_given {
        withdraw(kind, function, data);
    } else if times != expected(kind) {
        // Another thread has begun a capture meanwhile, which this may be a part of.
        known().add((kind, function, data), ANY);
    }
    code
}

/// The address of a function of the program; null where there is none.
pub fn address(function: CUhostFn) -> *const c_void {
    function.map_or(std::ptr::null(), |function| function as *const c_void)
}

macro_rules! host_function {
    ($($name:ident $flags:expr, ($($mode:ident)?);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            hStream: CUstream,
            fn_: CUhostFn,
            userData: *mut c_void,
            $($mode: u32,)?
        ) -> CUresult {
            let mode: &[u32] = &[$($mode)?];
            let mode = mode.first().copied().unwrap_or(0);
            launch(Symbol::$name, $flags, hStream, CALLBACK_FUNCTION, address(fn_), userData, mode)
        }
    )*};
}

host_function! {
    cuLaunchHostFunc 0, ();
    cuLaunchHostFunc_ptsz PER_THREAD, ();
    cuLaunchHostFunc_v2 0, (mode);
    cuLaunchHostFunc_v2_ptsz PER_THREAD, (mode);
}

macro_rules! stream_callback {
    ($($name:ident $flags:expr;)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            hStream: CUstream,
            callback: CUstreamCallback,
            userData: *mut c_void,
            flags: u32,
        ) -> CUresult {
            if flags != 0 {
                return CUDA_ERROR_INVALID_VALUE;
            }
            let function = callback.map_or(std::ptr::null(), |function| function as *const c_void);
            launch(Symbol::$name, $flags, hStream, CALLBACK_STREAM, function, userData, 0)
        }
    )*};
}

stream_callback! {
    cuStreamAddCallback 0;
    cuStreamAddCallback_ptsz PER_THREAD;
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuUserObjectCreate(
    object_out: *mut CUuserObject,
    ptr: *mut c_void,
    destroy: CUhostFn,
    initialRefcount: u32,
    flags: u32,
) -> CUresult {
    if object_out.is_null() || destroy.is_none() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let data = ptr.expose_provenance() as u64;
    let function = announce(CALLBACK_DESTROY, address(destroy), data, 1);
    let name = new_name(Kind::UserObject);
    let mut is_given = false;
    let code = thread::call(
        USER_OBJECT,
        Symbol::cuUserObjectCreate,
        |m| {
            m.plain(name);
            m.plain(CALLBACK_DESTROY);
            m.plain(function);
            m.plain(data);
            m.plain(initialRefcount);
            m.plain(flags);
        },
        |_, good| {
            is_given = good;
            if good {
                // SAFETY: the program vouches for its pointer.
                unsafe { write_name(object_out, name) };
            }
            Ok(())
        },
    );
    if !is_given {
        withdraw(CALLBACK_DESTROY, function, data);
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static RAN: Cell<usize> = const { Cell::new(0) };
    }

    unsafe extern "C" fn counts(data: *mut c_void) {
        RAN.set(RAN.get() + data.addr());
    }

    /// How often a server that asks twice for this job has it run.
    fn ran(kind: u8, function: u64, data: u64) -> usize {
        RAN.set(0);
        for ticket in 0..2 {
            let job = Job {
                ticket,
                kind,
                function,
                data,
                ..Job::default()
            };
            job.run();
        }
        RAN.get()
    }

    #[test]
    fn a_server_has_a_function_run_as_the_program_gave_it_and_no_more_often() {
        let function = (counts as *const c_void).expose_provenance() as u64;
        let given = (CALLBACK_DESTROY, function, 1);
        assert_eq!(ran(CALLBACK_DESTROY, function, 1), 0, "before it is given");
        known().add(given, 1);
        assert_eq!(ran(CALLBACK_DESTROY, function, 2), 0, "other data");
        assert_eq!(ran(CALLBACK_FUNCTION, function, 1), 0, "another kind");
        assert_eq!(ran(CALLBACK_DESTROY, function + 1, 1), 0, "another function");
        assert_eq!(ran(CALLBACK_DESTROY, function, 1), 1, "once");
        known().add(given, 1);
        known().add(given, 1);
        assert_eq!(ran(CALLBACK_DESTROY, function, 1), 2, "given twice");
        known().add(given, 1);
        withdraw(CALLBACK_DESTROY, function, 1);
        assert_eq!(ran(CALLBACK_DESTROY, function, 1), 0, "the call failed");

        assert!(!is_known(function, 1));
        known().add((CALLBACK_FUNCTION, function, 1), ANY);
        known().add((CALLBACK_FUNCTION, function, 2), 1);
        assert!(is_known(function, 1) && !is_known(function, 2));
        assert_eq!(ran(CALLBACK_FUNCTION, function, 2), 2, "of a stream, once");
        assert_eq!(
            ran(CALLBACK_FUNCTION, function, 1),
            2,
            "as of a graph that is launched twice"
        );
    }
}
