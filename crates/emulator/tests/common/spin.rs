//! Kernels of a known length, and what the engine's page says of them.

use super::peer::{listen, say};
use super::{code, cu, function, get, launch, module, param, start};
use divvy_abi::*;
use divvy_device::{EngineUsage, devices, engine_usage};
use std::ptr::null_mut;
use std::time::Duration;

/// A millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;

/// Waits for `ns` nanoseconds of its own time, as benchmarks do.
pub const SPIN: &str = r"
.version 7.0
.target sm_75
.address_size 64

.visible .entry spin(.param .u64 ns)
{
    .reg .pred %p;
    .reg .b64 %start, %now, %gone, %ns;
    ld.param.u64 %ns, [ns];
    mov.u64 %start, %globaltimer;
LOOP:
    mov.u64 %now, %globaltimer;
    sub.u64 %gone, %now, %start;
    setp.lt.u64 %p, %gone, %ns;
    @%p bra LOOP;
    ret;
}
";

pub fn spin() -> CUfunction {
    function(module(SPIN), c"spin")
}

pub fn go(spin: CUfunction, ns: u64, stream: CUstream) {
    assert_eq!(launch(spin, 1, 32, stream, &mut [param(&ns)]), CUDA_SUCCESS);
}

pub fn event() -> CUevent {
    get!(cuEventCreate(0))
}

/// Milliseconds between two events.
pub fn between(first: CUevent, last: CUevent) -> f64 {
    let mut ms = 0f32;
    cu!(cuEventElapsedTime(&raw mut ms, first, last));
    f64::from(ms)
}

pub fn usage() -> EngineUsage {
    let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
    engine_usage(devices("h100", directory.as_ref()).unwrap()[0].uuid).unwrap()
}

pub fn busy_of(pid: u32) -> u64 {
    let usage = usage();
    usage
        .processes
        .iter()
        .find(|one| one.pid == pid)
        .map_or(0, |one| one.busy_ns)
}

/// The part of a kernel's length that is its own instructions, in nanoseconds.
pub const SLACK: u64 = 200;

/// The peer's part: keeps kernels queued until it is told to stop.
pub fn keep_busy(ns: u64) {
    start(0);
    let spin = spin();
    let mut events: Vec<CUevent> = (0..64).map(|_| event()).collect();
    for event in &events {
        go(spin, ns, null_mut());
        cu!(cuEventRecord(*event, null_mut()));
    }
    say("busy");
    let (stop, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = listen();
        let _ = stop.send(());
    });
    while told.try_recv().is_err() {
        cu!(cuEventSynchronize(events[0]));
        events.rotate_left(1);
        go(spin, ns, null_mut());
        cu!(cuEventRecord(events[63], null_mut()));
    }
    cu!(cuCtxSynchronize());
    say(busy_of(std::process::id()));
}

/// Waits until the device clock is there, by looking.
pub fn wait_until(mut enough: impl FnMut(&EngineUsage) -> bool) -> EngineUsage {
    loop {
        let usage = usage();
        if enough(&usage) {
            return usage;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
