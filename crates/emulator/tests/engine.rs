//! The engine under the timing model: kernels last what they say, and processes share it by turns.

mod common;

use common::peer::{Peer, listen, say};
use common::{alone, code, cu, function, get, launch, module, param, role, start};
use divvy_abi::*;
use divvy_emulator::{EngineUsage, devices, engine_usage};
use std::ptr::null_mut;
use std::time::Duration;

const MODEL: (&str, &str) = ("DIVVY_EMULATED", "h100,timing=model");
const MS: u64 = 1_000_000;

/// Waits for `ns` nanoseconds of its own time, as benchmarks do.
const SPIN: &str = r"
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

fn spin() -> CUfunction {
    function(module(SPIN), c"spin")
}

fn go(spin: CUfunction, ns: u64, stream: CUstream) {
    assert_eq!(launch(spin, 1, 32, stream, &mut [param(&ns)]), CUDA_SUCCESS);
}

fn event() -> CUevent {
    get!(cuEventCreate(0))
}

/// Milliseconds between two events.
fn between(first: CUevent, last: CUevent) -> f64 {
    let mut ms = 0f32;
    cu!(cuEventElapsedTime(&raw mut ms, first, last));
    f64::from(ms)
}

fn usage() -> EngineUsage {
    let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
    engine_usage(devices("h100", directory.as_ref()).unwrap()[0].uuid).unwrap()
}

fn busy_of(pid: u32) -> u64 {
    let usage = usage();
    usage
        .processes
        .iter()
        .find(|one| one.pid == pid)
        .map_or(0, |one| one.busy_ns)
}

/// What of a kernel's length is its own instructions, in nanoseconds.
const SLACK: u64 = 200;

#[test]
fn a_kernel_lasts_what_it_says_and_events_tell() {
    alone("a_kernel_lasts_what_it_says_and_events_tell", &[MODEL], || {
        start(0);
        let spin = spin();
        let (first, last) = (event(), event());
        cu!(cuEventRecord(first, null_mut()));
        for _ in 0..20 {
            go(spin, 5 * MS, null_mut());
        }
        cu!(cuEventRecord(last, null_mut()));
        cu!(cuEventSynchronize(last));
        // The first event was there before the first kernel; between kernels there is nothing.
        let took = between(first, last);
        let busy = busy_of(std::process::id());
        assert!((100 * MS..100 * MS + 20 * SLACK).contains(&busy), "{busy}");
        assert!(took * 1e6 >= busy as f64 * 0.999, "{took} ms for {busy} ns");
    });
}

/// The peer's part: keeps kernels queued until it is told to stop.
fn keep_busy(ns: u64) {
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
fn wait_until(mut enough: impl FnMut(&EngineUsage) -> bool) -> EngineUsage {
    loop {
        let usage = usage();
        if enough(&usage) {
            return usage;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn two_processes_get_half_each_and_nothing_is_lost() {
    let test = "two_processes_get_half_each_and_nothing_is_lost";
    if role().as_deref() == Some("busy") {
        return keep_busy(MS);
    }
    alone(test, &[MODEL], || {
        let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
        let mut peers: Vec<Peer> = (0..2)
            .map(|_| Peer::start(test, "busy", &directory, &[MODEL]))
            .collect();
        for peer in &mut peers {
            assert_eq!(peer.hear(), "busy");
        }
        let before = usage();
        let after = wait_until(|usage| usage.now_ns > before.now_ns + 1000 * MS);
        let of = |usage: &EngineUsage, pid| {
            let one = usage.processes.iter().find(|one| one.pid == pid);
            one.map_or(0, |one| one.busy_ns)
        };
        let shares: Vec<f64> = peers
            .iter()
            .map(|peer| (of(&after, peer.pid()) - of(&before, peer.pid())) as f64)
            .collect();
        let (both, window) = (shares[0] + shares[1], (after.now_ns - before.now_ns) as f64);
        println!("shares {shares:?} of {window}: {}", both / window);
        assert!((shares[0] / both - 0.5).abs() < 0.01, "{shares:?}");
        assert!(both / window > 0.99, "idle while wanted: {shares:?} of {window}");
        for peer in &mut peers {
            peer.ask("stop");
        }
        for peer in peers {
            peer.end();
        }
    });
}
