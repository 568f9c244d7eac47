//! Threads of the limiter in other programs' processes: small, and with the program's signals blocked.

use std::io;

/// Enough for a driver's own frames.
const STACK_BYTES: usize = 256 << 10;

/// Starts a thread.
///
/// # Errors
/// The system's reason.
pub(crate) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES);
    without_signals(|| thread.spawn(run)).map(drop)
}

/// Runs `make` with all signals blocked: threads that it starts never handle any of the program's signals.
fn without_signals<T>(make: impl FnOnce() -> T) -> T {
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: valid out-parameters, filled in before they are used; the mask is this thread's own, and set back below.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let made = make();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    made
}
