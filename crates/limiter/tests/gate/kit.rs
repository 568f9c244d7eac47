//! What the scenarios have in common: a process and a slice of their own, launches, and the agent's words.

use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use divvy_abi::*;
use divvy_ledger::{Activity, Lease, monotonic_ns};
use divvy_limiter::{TABLE, below};

use crate::device::{CLOCK, with};
use crate::support::Slice;
use crate::{MS, ROLE};

/// Runs `body` in a process of its own, in a slice, with a context.
pub fn alone(test: &str, body: impl FnOnce(&Slice)) {
    if std::env::var_os(ROLE).is_some() {
        below::stand_on(&CLOCK);
        let slice = Slice::with(&[(1 << 30, [0; 16])], divvy_ledger::Terms::default());
        slice.pages.grant.beat();
        slice.enter();
        context();
        body(&slice);
        with(|device| assert!(device.wrongs.is_empty(), "{:?}", device.wrongs));
        return;
    }
    ends_with(test, 0);
}

/// Runs the test in a process of its own, which must end with this code.
pub fn ends_with(test: &str, code: i32) {
    let output = again(test).output().expect("this program starts again");
    divvy_own_process::assert_ran(test, &output);
    assert!(
        output.status.code() == Some(code),
        "{:?} {}",
        output.status,
        divvy_own_process::both(&output)
    );
}

pub fn again(test: &str) -> Command {
    let mut command = divvy_own_process::command(test);
    command.env("DIVVY_LOG", "stderr").env(ROLE, "alone");
    command
}

pub fn context() -> CUcontext {
    let mut context = null_mut();
    // SAFETY: a valid out-parameter; so below. The driver follows no other pointer.
    assert!(unsafe { (TABLE.cuCtxCreate_v2)(&raw mut context, 0, 0) }.is_success());
    context
}

pub fn stream() -> CUstream {
    let mut stream = null_mut();
    // SAFETY: as above.
    assert!(unsafe { (TABLE.cuStreamCreate)(&raw mut stream, 1) }.is_success());
    stream
}

/// A kernel of so many microseconds.
pub fn launch(stream: CUstream, us: u32) {
    let function = 0x70_0000 as CUfunction;
    // SAFETY: as above.
    let result =
        unsafe { (TABLE.cuLaunchKernel)(function, us, 1, 1, 32, 1, 1, 0, stream, null_mut(), null_mut()) };
    assert!(result.is_success());
}

/// Ends the watching thread, however the test ends.
pub struct Over<'a>(pub &'a AtomicBool, pub &'a Slice);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.pages.grant.open_gate();
    }
}

pub fn kernels() -> usize {
    with(|device| device.kernels())
}

/// The process as the agent sees it.
pub fn activity(slice: &Slice) -> Activity {
    slice
        .pages
        .ledger
        .activities()
        .next()
        .expect("it is in the slice")
}

#[track_caller]
pub fn wait_for(what: &str, mut until: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !until() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A lease of `ms` from now on, with `bound_ms` in flight. 0 means no end, or any amount.
pub fn lease(slice: &Slice, epoch: u64, ms: u64, bound_ms: u64) {
    let or_none = |value: u64| if value == 0 { u64::MAX } else { value };
    slice.pages.grant.beat();
    slice.pages.grant.lease(Lease {
        epoch,
        until_ns: or_none(if ms == 0 { 0 } else { monotonic_ns() + ms * MS }),
        in_flight_ns: or_none(bound_ms * MS),
    });
}

/// An agent that sends heartbeats while it lives.
pub fn beating<T>(slice: &Slice, body: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                slice.pages.grant.beat();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let value = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        over.store(true, Ordering::Relaxed);
        value.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
