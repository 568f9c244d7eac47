//! Functions of the program that the device's work calls: the server asks for them, and a thread here runs them.
//!
//! The thread starts with the first such function. It takes no signals, which are the program's. A server can only name
//! functions that the program has given it.
#![allow(non_snake_case)]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Mutex, Once, PoisonError};

use divvy_abi::*;

use super::arguments::write_name;
use super::{new_name, start, thread};
use crate::fork::OfProcess;
use crate::handle::{Kind, Word};
use crate::wire::by_hand::{
    CALLBACK_DESTROY, CALLBACK_FUNCTION, CALLBACK_STREAM, CALLBACK_WAIT, HOST_FUNCTION, PER_THREAD,
    USER_OBJECT,
};

/// Addresses of the functions that a server may name.
static KNOWN: OfProcess<Mutex<BTreeSet<usize>>> = OfProcess::new();

thread_local! {
    /// Whether this thread runs such a function: CUDA does not permit calls from there.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a function for the device's work.
pub fn runs() -> bool {
    RUNS.try_with(Cell::get).unwrap_or(false)
}

/// Makes a function one that the server may name, and has a thread wait for that. Gives what the server is told.
pub fn announce(function: *const c_void) -> u64 {
    static STARTED: Once = Once::new();
    let address = function.expose_provenance();
    if start::require_here().is_err() {
        // The call is refused, and a thread that begins now would end at once.
        return address as u64;
    }
    KNOWN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(address);
    STARTED.call_once(|| {
        let thread = std::thread::Builder::new().name("divvy-callback".to_owned());
        // Without the thread the device's work waits, and the program's next synchronisation with it.
        let _started = spawned_quietly(|| thread.spawn(serve));
    });
    address as u64
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
        let address = self.function as usize;
        if !KNOWN
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&address)
        {
            return;
        }
        let function = std::ptr::with_exposed_provenance::<c_void>(address);
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
    let function = announce(function);
    let data = data.expose_provenance() as u64;
    thread::call(
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
        |_, _| Ok(()),
    )
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
    let (name, function) = (new_name(Kind::UserObject), announce(address(destroy)));
    let data = ptr.expose_provenance() as u64;
    thread::call(
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
            if good {
                // SAFETY: the program vouches for its pointer.
                unsafe { write_name(object_out, name) };
            }
            Ok(())
        },
    )
}
