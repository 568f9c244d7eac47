//! The gate over a device that is only a clock, with an agent that is the test.

mod device;
mod support;

use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device::{CLOCK, Did, with};
use divvy_abi::*;
use divvy_ledger::{Lease, Presence, monotonic_ns};
use divvy_limiter::{TABLE, below};
use support::Slice;

const MS: u64 = 1_000_000;
const ROLE: &str = "DIVVY_TEST_ROLE";

/// Runs `body` in a process of its own, in a slice, with a context.
fn alone(test: &str, body: impl FnOnce(&Slice)) {
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
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("DIVVY_LOG", "stderr")
        .env(ROLE, "alone")
        .output()
        .expect("this program starts again");
    assert!(
        output.status.success(),
        "{:?} {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn context() -> CUcontext {
    let mut context = null_mut();
    // SAFETY: a valid out-parameter; so below. The driver follows no other pointer.
    assert!(unsafe { (TABLE.cuCtxCreate_v2)(&raw mut context, 0, 0) }.is_success());
    context
}

fn stream() -> CUstream {
    let mut stream = null_mut();
    // SAFETY: as above.
    assert!(unsafe { (TABLE.cuStreamCreate)(&raw mut stream, 1) }.is_success());
    stream
}

/// A kernel of so many microseconds.
fn launch(stream: CUstream, us: u32) {
    let function = 0x70_0000 as CUfunction;
    // SAFETY: as above.
    let result =
        unsafe { (TABLE.cuLaunchKernel)(function, us, 1, 1, 32, 1, 1, 0, stream, null_mut(), null_mut()) };
    assert!(result.is_success());
}

/// Ends what watches it, when the test ends in any way.
struct Over<'a>(&'a AtomicBool, &'a Slice);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.pages.grant.open_gate();
    }
}

fn kernels() -> usize {
    with(|device| device.kernels())
}

/// The process as the agent sees it.
fn presence(slice: &Slice) -> Presence {
    slice.pages.ledger.presences().next().expect("it is in the slice")
}

#[track_caller]
fn wait_for(what: &str, mut until: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !until() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A lease of `ms` from now on, with `bound_ms` in flight; 0 for no end, and for any amount.
fn lease(slice: &Slice, epoch: u64, ms: u64, bound_ms: u64) {
    let or_none = |value: u64| if value == 0 { u64::MAX } else { value };
    slice.pages.grant.beat();
    slice.pages.grant.lease(Lease {
        epoch,
        until_ns: or_none((ms != 0).then(|| monotonic_ns() + ms * MS).unwrap_or(0)),
        in_flight_ns: or_none(bound_ms * MS),
    });
}

/// An agent that beats while it lives.
fn beating<T>(slice: &Slice, body: impl FnOnce() -> T) -> T {
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

#[test]
fn an_open_gate_counts_nothing_and_records_nothing() {
    alone("an_open_gate_counts_nothing_and_records_nothing", |slice| {
        for _ in 0..1000 {
            launch(null_mut(), 1);
        }
        with(|device| {
            assert_eq!(device.kernels(), 1000);
            assert_eq!(device.did.len(), 1000, "no event of ours");
        });
        assert_eq!(presence(slice).launched, 1);
    });
}

#[test]
fn a_closed_gate_lets_nothing_through_and_what_runs_is_waited_for() {
    alone(
        "a_closed_gate_lets_nothing_through_and_what_runs_is_waited_for",
        |slice| {
            launch(null_mut(), 50_000);
            let end = with(|device| device.end());
            let word = slice.pages.grant.close_gate();
            wait_for("acknowledged", || {
                let said = presence(slice);
                let over = monotonic_ns() >= end;
                let acknowledged = said.acknowledged == word && !said.busy;
                assert!(over || !acknowledged, "acknowledged while a kernel ran");
                acknowledged
            });
            beating(slice, || {
                std::thread::scope(|scope| {
                    let rung = slice.pages.ledger.rung();
                    let launcher = scope.spawn(|| launch(null_mut(), 100));
                    wait_for("it wants", || presence(slice).wants);
                    assert_ne!(slice.pages.ledger.rung(), rung, "and rang");
                    // Longer than a beat is fresh: the agent lives, so it waits.
                    std::thread::sleep(Duration::from_millis(700));
                    assert_eq!(kernels(), 1);
                    lease(slice, 1, 0, 0);
                    launcher.join().expect("it launched");
                    assert_eq!(kernels(), 2);
                    wait_for("wants no more", || !presence(slice).wants);
                });
            });
        },
    );
}

#[test]
fn under_a_lease_what_is_in_flight_keeps_to_the_bound() {
    alone("under_a_lease_what_is_in_flight_keeps_to_the_bound", |slice| {
        slice.pages.grant.close_gate();
        let stream = stream();
        beating(slice, || {
            lease(slice, 1, 0, 1);
            let mut most = 0;
            for _ in 0..400 {
                launch(stream, 100);
                // The first of them nobody knows yet.
                let (ahead, launched) = with(|device| (device.end(), device.kernels()));
                if launched > 20 {
                    most = most.max(ahead.saturating_sub(monotonic_ns()));
                }
            }
            // 1 ms, and what completes unseen meanwhile; estimates are a little high or low.
            assert!(most < 1_400_000, "{most}");
            let said = presence(slice);
            assert!(said.launched > 300, "{said:?}");
            assert!((50_000..200_000).contains(&said.kernel_ns), "{said:?}");
            wait_for("idle", || !presence(slice).busy);
            let said = presence(slice);
            assert_eq!((said.launched, said.completed), (400, 400));
            assert!(said.busy_ns >= 39 * MS, "{said:?}");
        });
    });
}

#[test]
fn one_kernel_outlasts_a_lease_and_no_more() {
    alone("one_kernel_outlasts_a_lease_and_no_more", |slice| {
        slice.pages.grant.close_gate();
        let stream = stream();
        beating(slice, || {
            let over = &AtomicBool::new(false);
            std::thread::scope(|scope| {
                let name = stream as usize;
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        launch(name as CUstream, 20_000);
                    }
                });
                let _over = Over(over, slice);
                for epoch in 1..=4 {
                    wait_for("it wants", || presence(slice).wants);
                    let before = kernels();
                    lease(slice, epoch, 5, 1);
                    let until = monotonic_ns() + 5 * MS;
                    wait_for("launched", || kernels() > before);
                    std::thread::sleep(Duration::from_millis(6));
                    let word = slice.pages.grant.close_gate();
                    let end = with(|device| device.end());
                    wait_for("released", || {
                        let said = presence(slice);
                        let released = said.acknowledged == word && !said.busy;
                        assert!(!released || monotonic_ns() >= end, "it still runs");
                        released
                    });
                    assert_eq!(kernels(), before + 1, "epoch {epoch}");
                    with(|device| {
                        assert!(
                            device
                                .did
                                .iter()
                                .all(|(at, did)| *at < until || !matches!(did, Did::Kernel { .. }))
                        )
                    });
                }
            });
        });
    });
}

#[test]
fn a_lease_that_nobody_uses_is_given_back() {
    alone("a_lease_that_nobody_uses_is_given_back", |slice| {
        slice.pages.grant.close_gate();
        beating(slice, || {
            lease(slice, 1, 0, 0);
            for round in 1..=5 {
                launch(null_mut(), 300);
                assert!(presence(slice).busy);
                let rung = slice.pages.ledger.rung();
                wait_for("idle", || !presence(slice).busy);
                assert!(monotonic_ns() >= with(|device| device.end()));
                wait_for("rang", || slice.pages.ledger.rung() != rung);
                assert_eq!(presence(slice).completed, round);
            }
        });
    });
}

#[test]
fn several_streams_are_busy_at_once() {
    alone("several_streams_are_busy_at_once", |slice| {
        slice.pages.grant.close_gate();
        beating(slice, || {
            lease(slice, 1, 0, 0);
            let streams = [stream(), stream(), stream(), null_mut()];
            // Nothing is put on top of a kernel that nobody knows.
            launch(streams[0], 30_000);
            wait_for("idle", || !presence(slice).busy);
            let before = presence(slice).busy_ns;
            for stream in streams {
                launch(stream, 30_000);
            }
            wait_for("idle", || !presence(slice).busy);
            let busy = presence(slice).busy_ns - before;
            assert!((30 * MS..60 * MS).contains(&busy), "{busy}");
        });
    });
}

fn with_attribute(stream: CUstream, us: u32, overlaps: bool) {
    let mut attribute = CUlaunchAttribute {
        id: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        ..CUlaunchAttribute::default()
    };
    attribute.value.programmaticStreamSerializationAllowed = 1;
    let config = CUlaunchConfig {
        gridDimX: us,
        blockDimX: 32,
        hStream: stream,
        attrs: &raw mut attribute,
        numAttrs: u32::from(overlaps),
        ..CUlaunchConfig::default()
    };
    // SAFETY: a configuration of ours.
    let result = unsafe { (TABLE.cuLaunchKernelEx)(&raw const config, null_mut(), null_mut(), null_mut()) };
    assert!(result.is_success());
}

#[test]
fn nothing_comes_between_kernels_that_overlap() {
    alone("nothing_comes_between_kernels_that_overlap", |slice| {
        slice.pages.grant.close_gate();
        beating(slice, || {
            lease(slice, 1, 0, 1);
            for stream in [stream(), null_mut()] {
                for round in 0..300_u32 {
                    with_attribute(stream, 50 + round % 3, round % 3 != 0);
                    if round % 50 == 0 {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            }
            wait_for("idle", || !presence(slice).busy);
        });
        with(|device| {
            let mut pairs = 0;
            for did in device.did.windows(2) {
                if let Did::Kernel {
                    overlaps: true,
                    stream,
                    ..
                } = did[1].1
                {
                    assert!(
                        matches!(did[0].1, Did::Kernel { stream: before, .. } if before == stream),
                        "{did:?}"
                    );
                    pairs += 1;
                }
            }
            assert_eq!(pairs, 400);
        });
    });
}

#[test]
fn captures_are_left_alone_and_graphs_are_charged_whole() {
    alone("captures_are_left_alone_and_graphs_are_charged_whole", |slice| {
        slice.pages.grant.close_gate();
        beating(slice, || {
            let (stream, other) = (stream(), stream());
            for mode in [
                CU_STREAM_CAPTURE_MODE_GLOBAL,
                CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                CU_STREAM_CAPTURE_MODE_RELAXED,
            ] {
                lease(slice, 1, 0, 1);
                // Work in flight whose end is to be found out meanwhile.
                launch(other, 500);
                // SAFETY: the driver's own stream.
                assert!(unsafe { (TABLE.cuStreamBeginCapture_v2)(stream, mode) }.is_success());
                slice.pages.grant.close_gate();
                let before = kernels();
                for _ in 0..100 {
                    launch(stream, 1000);
                }
                assert_eq!(
                    kernels(),
                    before,
                    "captured, not run, although the gate is closed"
                );
                std::thread::sleep(Duration::from_millis(5));
                let mut graph = null_mut();
                // SAFETY: as above; a valid out-parameter.
                assert!(unsafe { (TABLE.cuStreamEndCapture)(stream, &raw mut graph) }.is_success());
            }
            with(|device| device.graph_us = 3000);
            lease(slice, 2, 0, 1);
            let launched = presence(slice).launched;
            let exec = 0x50_0000 as CUgraphExec;
            for _ in 0..10 {
                // SAFETY: the driver follows no handle.
                assert!(unsafe { (TABLE.cuGraphLaunch)(exec, stream) }.is_success());
                let ahead = with(|device| device.end()).saturating_sub(monotonic_ns());
                assert!(
                    ahead < 6_500_000,
                    "two graphs in flight where one passes the bound: {ahead}"
                );
            }
            wait_for("idle", || !presence(slice).busy);
            let said = presence(slice);
            assert_eq!(said.launched - launched, 10);
            assert!(said.busy_ns >= 30 * MS, "{said:?}");
        });
    });
}

#[test]
fn without_an_agent_the_share_holds_and_with_a_new_one_its_word() {
    alone(
        "without_an_agent_the_share_holds_and_with_a_new_one_its_word",
        |slice| {
            slice.pages.grant.set_fallback_share(2_500);
            slice.pages.grant.close_gate();
            let stream = stream();
            let begin = Instant::now();
            launch(stream, 1000);
            assert!(
                begin.elapsed() > Duration::from_millis(300),
                "a beat is fresh for half a second"
            );
            let (busy, since) = (presence(slice).busy_ns, Instant::now());
            while since.elapsed() < Duration::from_secs(2) {
                launch(stream, 1000);
            }
            let share = (presence(slice).busy_ns - busy) as f64 / since.elapsed().as_nanos() as f64;
            assert!((0.15..0.32).contains(&share), "{share}");
            // The next agent: another grant, and it closes the gate.
            beating(slice, || {
                wait_for("idle", || !presence(slice).busy);
                let before = kernels();
                std::thread::scope(|scope| {
                    let name = stream as usize;
                    let launcher = scope.spawn(move || launch(name as CUstream, 1000));
                    wait_for("it wants", || presence(slice).wants);
                    std::thread::sleep(Duration::from_millis(50));
                    assert_eq!(kernels(), before);
                    lease(slice, 2, 0, 0);
                    launcher.join().expect("it launched");
                });
            });
        },
    );
}

#[test]
fn sixteen_threads_launch_nothing_while_it_is_closed() {
    alone("sixteen_threads_launch_nothing_while_it_is_closed", |slice| {
        slice.pages.grant.close_gate();
        let over = AtomicBool::new(false);
        beating(slice, || {
            std::thread::scope(|scope| {
                for n in 0..16 {
                    let (name, over) = (stream() as usize, &over);
                    scope.spawn(move || {
                        while !over.load(Ordering::Relaxed) {
                            launch(if n % 2 == 0 { name as CUstream } else { null_mut() }, 20 + n);
                        }
                    });
                }
                let _over = Over(&over, slice);
                for epoch in 1..=20 {
                    wait_for("it wants", || presence(slice).wants);
                    let before = kernels();
                    wait_for("launched", || {
                        lease(slice, epoch, 20, 1);
                        kernels() > before + 10
                    });
                    let word = slice.pages.grant.close_gate();
                    wait_for("released", || {
                        let said = presence(slice);
                        said.acknowledged == word && !said.busy
                    });
                    let now = kernels();
                    assert!(monotonic_ns() >= with(|device| device.end()), "it still runs");
                    std::thread::sleep(Duration::from_millis(5));
                    assert_eq!(kernels(), now, "launched while closed");
                }
            });
        });
    });
}
