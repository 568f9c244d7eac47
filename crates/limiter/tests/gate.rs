//! The gate over a device that is only a clock; the test plays the agent.

mod device;
mod support;

use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device::{CLOCK, Did, with};
use divvy_abi::*;
use divvy_ledger::attach::{connect, deliver, recall};
use divvy_ledger::{Activity, Lease, monotonic_ns};
use divvy_limiter::{TABLE, below};
use support::Slice;

const MS: u64 = 1_000_000;
/// The report that no work is in flight comes at most this long before its end, so that the next process's first kernel
/// comes in time. A kernel may also be shorter than measured.
const AHEAD_NS: u64 = MS / 2;
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
    ends_with(test, 0);
}

/// Runs the test in a process of its own, which must end with this code.
fn ends_with(test: &str, code: i32) {
    let output = again(test).output().expect("this program starts again");
    divvy_own_process::assert_ran(test, &output);
    assert!(
        output.status.code() == Some(code),
        "{:?} {}",
        output.status,
        divvy_own_process::both(&output)
    );
}

fn again(test: &str) -> Command {
    let mut command = divvy_own_process::command(test);
    command.env("DIVVY_LOG", "stderr").env(ROLE, "alone");
    command
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

/// Ends the watching thread, however the test ends.
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
fn activity(slice: &Slice) -> Activity {
    slice
        .pages
        .ledger
        .activities()
        .next()
        .expect("it is in the slice")
}

#[track_caller]
fn wait_for(what: &str, mut until: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !until() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A lease of `ms` from now on, with `bound_ms` in flight. 0 means no end, or any amount.
fn lease(slice: &Slice, epoch: u64, ms: u64, bound_ms: u64) {
    let or_none = |value: u64| if value == 0 { u64::MAX } else { value };
    slice.pages.grant.beat();
    slice.pages.grant.lease(Lease {
        epoch,
        until_ns: or_none(if ms == 0 { 0 } else { monotonic_ns() + ms * MS }),
        in_flight_ns: or_none(bound_ms * MS),
    });
}

/// An agent that sends heartbeats while it lives.
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
        assert_eq!(activity(slice).launched, 1);
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
                let said = activity(slice);
                let over = monotonic_ns() >= end;
                let acknowledged = said.acknowledged == word && !said.busy;
                assert!(over || !acknowledged, "acknowledged while a kernel ran");
                acknowledged
            });
            beating(slice, || {
                std::thread::scope(|scope| {
                    let rings = slice.pages.ledger.rings();
                    let launcher = scope.spawn(|| launch(null_mut(), 100));
                    wait_for("it wants", || activity(slice).wants);
                    assert_ne!(slice.pages.ledger.rings(), rings, "and rang");
                    // Longer than a heartbeat stays fresh: the agent lives, so it waits.
                    std::thread::sleep(Duration::from_millis(700));
                    assert_eq!(kernels(), 1);
                    lease(slice, 1, 0, 0);
                    launcher.join().expect("it launched");
                    assert_eq!(kernels(), 2);
                    wait_for("wants no more", || !activity(slice).wants);
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
                // The first of them has no measurement yet.
                let (ahead, launched) = with(|device| (device.end(), device.kernels()));
                if launched > 20 {
                    most = most.max(ahead.saturating_sub(monotonic_ns()));
                }
            }
            // 1 ms, plus work whose completion is noticed late; estimates are a little high or low.
            assert!(most < 1_400_000, "{most}");
            let said = activity(slice);
            assert!(said.launched > 300, "{said:?}");
            assert!((50_000..200_000).contains(&said.kernel_ns), "{said:?}");
            wait_for("idle", || !activity(slice).busy);
            let said = activity(slice);
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
                let mut epoch = 0;
                for round in 1..=4 {
                    wait_for("it wants", || activity(slice).wants);
                    let before = kernels();
                    let mut until = 0;
                    // If a busy machine slept through a lease, another one follows.
                    wait_for("launched", || {
                        if kernels() == before && monotonic_ns() > until + MS {
                            epoch += 1;
                            lease(slice, epoch, 5, 1);
                            until = monotonic_ns() + 5 * MS;
                        }
                        kernels() > before
                    });
                    std::thread::sleep(Duration::from_millis(6));
                    let word = slice.pages.grant.close_gate();
                    let end = with(|device| device.end());
                    wait_for("released", || {
                        let said = activity(slice);
                        let released = said.acknowledged == word && !said.busy;
                        assert!(!released || monotonic_ns() + AHEAD_NS >= end, "it still runs");
                        released
                    });
                    assert_eq!(kernels(), before + 1, "round {round}");
                    with(|device| {
                        assert!(
                            device
                                .did
                                .iter()
                                .all(|(at, did)| *at < until || !matches!(did, Did::Kernel { .. }))
                        );
                    });
                }
            });
        });
    });
}

/// While others are stuck on the device, a lease may have no end.
#[test]
fn a_first_launch_of_unknown_length_is_not_queued_behind_another_one() {
    alone(
        "a_first_launch_of_unknown_length_is_not_queued_behind_another_one",
        |slice| {
            slice.pages.grant.close_gate();
            let stream = stream() as usize;
            beating(slice, || {
                lease(slice, 1, 0, 2);
                std::thread::scope(|scope| {
                    scope.spawn(move || (0..3).for_each(|_| launch(stream as CUstream, 300_000)));
                    wait_for("the third", || kernels() == 3);
                });
                let began: Vec<u64> = with(|device| {
                    let kernel = |(at, did): &(u64, Did)| matches!(did, Did::Kernel { .. }).then_some(*at);
                    device.did.iter().filter_map(kernel).collect()
                });
                for pair in began.windows(2) {
                    assert!(pair[1] >= pair[0] + 300 * MS, "{:?}", pair[1] - pair[0]);
                }
            });
        },
    );
}

/// The kernels of each of these streams that began in a second, with a thread for each that launches kernels of its
/// length without end.
fn launched_at_once(slice: &Slice, kernels: &[(usize, u32)]) -> Vec<usize> {
    let over = &AtomicBool::new(false);
    let mut from = 0;
    std::thread::scope(|scope| {
        let _over = Over(over, slice);
        for &(stream, us) in kernels {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    launch(stream as CUstream, us);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(200));
        from = monotonic_ns();
        std::thread::sleep(Duration::from_secs(1));
    });
    let in_time = |at: u64| (from..from + 1_000 * MS).contains(&at);
    let of = |wanted: usize| {
        with(|device| {
            let kernel = |(at, did): &&(u64, Did)| matches!(did, Did::Kernel { stream, .. } if *stream == wanted && in_time(*at));
            device.did.iter().filter(kernel).count()
        })
    };
    kernels.iter().map(|(stream, _)| of(*stream)).collect()
}

/// One stream has long launches and the other short ones, as a program with priorities has.
#[test]
fn streams_of_long_and_of_short_launches_do_not_wait_for_each_other() {
    alone(
        "streams_of_long_and_of_short_launches_do_not_wait_for_each_other",
        |slice| {
            slice.pages.grant.close_gate();
            let kernels = [(stream() as usize, 100_000), (stream() as usize, 1_000)];
            let launched = beating(slice, || {
                lease(slice, 1, 0, 2);
                for (stream, us) in kernels {
                    launch(stream as CUstream, us);
                    wait_for("idle", || !activity(slice).busy);
                }
                launched_at_once(slice, &kernels)
            });
            // Without a gate they are 10 and 1000. Where each waited for the other they were 10 and 49.
            assert!(launched[0] >= 3 && launched[1] >= 100, "{launched:?}");
        },
    );
}

#[test]
fn two_streams_of_long_launches_take_turns() {
    alone("two_streams_of_long_launches_take_turns", |slice| {
        slice.pages.grant.close_gate();
        let kernels = [(stream() as usize, 50_000), (stream() as usize, 50_000)];
        let launched = beating(slice, || {
            lease(slice, 1, 0, 2);
            launched_at_once(slice, &kernels)
        });
        assert!(launched.iter().all(|launched| *launched >= 5), "{launched:?}");
    });
}

/// The program may wait for that launch before it lets the first kernel end.
#[test]
fn another_launch_follows_one_that_does_not_end() {
    alone("another_launch_follows_one_that_does_not_end", |slice| {
        slice.pages.grant.close_gate();
        let stream = stream();
        beating(slice, || {
            lease(slice, 1, 0, 2);
            let began = monotonic_ns();
            launch(stream, 20_000_000);
            launch(stream, 1_000);
            let waited = monotonic_ns() - began;
            assert!(waited < 2_000 * MS, "another kernel: {waited}");
            launch(stream, 20_000_000);
            let waited = monotonic_ns() - began;
            assert!(waited < 10_000 * MS, "the same one: {waited}");
        });
    });
}

#[test]
fn an_unused_lease_is_given_back() {
    alone("an_unused_lease_is_given_back", |slice| {
        slice.pages.grant.close_gate();
        beating(slice, || {
            lease(slice, 1, 0, 0);
            for round in 1..=5 {
                // Long enough for this thread to poll while it runs, even on a busy machine.
                launch(null_mut(), 20_000);
                let busy = activity(slice).busy;
                assert!(busy || monotonic_ns() >= with(|device| device.end()));
                let rings = slice.pages.ledger.rings();
                wait_for("idle", || !activity(slice).busy);
                assert!(monotonic_ns() >= with(|device| device.end()));
                wait_for("rang", || slice.pages.ledger.rings() != rings);
                assert_eq!(activity(slice).completed, round);
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
            // No work is queued behind a kernel without a measurement.
            launch(streams[0], 30_000);
            wait_for("idle", || !activity(slice).busy);
            let before = activity(slice).busy_ns;
            let begin = monotonic_ns();
            for stream in streams {
                launch(stream, 30_000);
            }
            wait_for("idle", || !activity(slice).busy);
            let busy = activity(slice).busy_ns - before;
            let passed = monotonic_ns() - begin;
            assert!(
                (30 * MS..=passed).contains(&busy),
                "{busy} of {passed}, for 4 × 30 ms"
            );
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
            wait_for("idle", || !activity(slice).busy);
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
                // Work in flight, whose end has to be found out meanwhile.
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
            let launched = activity(slice).launched;
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
            wait_for("idle", || !activity(slice).busy);
            let said = activity(slice);
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
            let (busy, since) = (activity(slice).busy_ns, Instant::now());
            while since.elapsed() < Duration::from_secs(2) {
                launch(stream, 1000);
            }
            let share = (activity(slice).busy_ns - busy) as f64 / since.elapsed().as_nanos() as f64;
            assert!((0.15..0.32).contains(&share), "{share}");
            // The next agent: another grant, in which the gate is closed.
            wait_for("idle", || !activity(slice).busy);
            let next = recall(&slice.control, 0)
                .expect("the server has them")
                .adopt()
                .expect("pages");
            next.grant.beat();
            next.grant.close_gate();
            deliver(&slice.control, &next).expect("the server takes them");
            let before = kernels();
            std::thread::scope(|scope| {
                let name = stream as usize;
                let launcher = scope.spawn(move || launch(name as CUstream, 1000));
                wait_for("it wants", || {
                    // A machine that stalls for half a second would take the new agent for gone.
                    next.grant.beat();
                    activity(slice).wants
                });
                for _ in 0..20 {
                    next.grant.beat();
                    std::thread::sleep(Duration::from_millis(50));
                    assert_eq!(kernels(), before, "the new agent has said nothing");
                }
                next.grant.lease(Lease {
                    epoch: 1,
                    until_ns: u64::MAX,
                    in_flight_ns: u64::MAX,
                });
                launcher.join().expect("it launched");
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
                    wait_for("it wants", || activity(slice).wants);
                    let before = kernels();
                    wait_for("launched", || {
                        lease(slice, epoch, 20, 1);
                        kernels() > before + 10
                    });
                    let word = slice.pages.grant.close_gate();
                    wait_for("released", || {
                        let said = activity(slice);
                        said.acknowledged == word && !said.busy
                    });
                    let now = kernels();
                    let over_at = with(|device| device.end());
                    assert!(monotonic_ns() + AHEAD_NS >= over_at, "it still runs");
                    std::thread::sleep(Duration::from_millis(5));
                    assert_eq!(kernels(), now, "launched while closed");
                }
            });
        });
    });
}

/// Every way to launch.
const WAYS: usize = 12;

fn launch_by(way: usize) {
    let (function, none) = (0x70_0000 as CUfunction, null_mut());
    let mut together = CUDA_LAUNCH_PARAMS {
        function,
        gridDimX: 100,
        ..CUDA_LAUNCH_PARAMS::default()
    };
    let config = CUlaunchConfig {
        gridDimX: 100,
        ..CUlaunchConfig::default()
    };
    let exec = 0x50_0000 as CUgraphExec;
    // SAFETY: parameters of ours; the driver follows no handle.
    let result = unsafe {
        match way {
            0 => (TABLE.cuLaunchKernel)(function, 100, 1, 1, 1, 1, 1, 0, none, null_mut(), null_mut()),
            1 => (TABLE.cuLaunchKernel_ptsz)(function, 100, 1, 1, 1, 1, 1, 0, none, null_mut(), null_mut()),
            2 => (TABLE.cuLaunchKernelEx)(&raw const config, function, null_mut(), null_mut()),
            3 => (TABLE.cuLaunchKernelEx_ptsz)(&raw const config, function, null_mut(), null_mut()),
            4 => (TABLE.cuLaunchCooperativeKernel)(function, 100, 1, 1, 1, 1, 1, 0, none, null_mut()),
            5 => (TABLE.cuLaunchCooperativeKernel_ptsz)(function, 100, 1, 1, 1, 1, 1, 0, none, null_mut()),
            6 => (TABLE.cuLaunchCooperativeKernelMultiDevice)(&raw mut together, 1, 0),
            7 => (TABLE.cuLaunch)(function),
            8 => (TABLE.cuLaunchGrid)(function, 100, 1),
            9 => (TABLE.cuLaunchGridAsync)(function, 100, 1, none),
            10 => (TABLE.cuGraphLaunch)(exec, none),
            _ => (TABLE.cuGraphLaunch_ptsz)(exec, none),
        }
    };
    assert!(result.is_success(), "way {way}");
}

#[test]
fn every_way_to_launch_leads_through_the_gate() {
    alone("every_way_to_launch_leads_through_the_gate", |slice| {
        beating(slice, || {
            for way in 0..WAYS {
                slice.pages.grant.close_gate();
                let before = kernels();
                std::thread::scope(|scope| {
                    let launcher = scope.spawn(|| {
                        let context = with(|device| device.any_context());
                        // SAFETY: the test's own context.
                        assert!(unsafe { (TABLE.cuCtxSetCurrent)(context as CUcontext) }.is_success());
                        launch_by(way);
                    });
                    wait_for("it wants", || activity(slice).wants);
                    assert_eq!(kernels(), before, "way {way}");
                    let counted = activity(slice).launched;
                    lease(slice, way as u64 + 1, 0, 1);
                    launcher.join().expect("it launched");
                    assert_eq!(kernels(), before + 1);
                    wait_for("over", || !activity(slice).busy);
                    let said = activity(slice);
                    assert_eq!(
                        (said.launched, said.completed),
                        (counted + 1, counted + 1),
                        "way {way}"
                    );
                });
            }
        });
    });
}

#[test]
fn streams_and_contexts_end_with_work_in_flight() {
    alone("streams_and_contexts_end_with_work_in_flight", |slice| {
        slice.pages.grant.close_gate();
        beating(slice, || {
            lease(slice, 1, 0, 0);
            let mut last = with(|device| device.any_context()) as CUcontext;
            for round in 0..10 {
                for us in [100, 5_000, 200] {
                    let stream = stream();
                    launch(stream, us);
                    launch(stream, us);
                    // SAFETY: a stream of ours.
                    assert!(unsafe { (TABLE.cuStreamDestroy_v2)(stream) }.is_success());
                }
                launch(null_mut(), 3_000);
                if round % 2 == 0 {
                    // Ends while a thread waits at the gate.
                    let word = slice.pages.grant.close_gate();
                    std::thread::scope(|scope| {
                        let waits = scope.spawn(|| launch(stream(), 10));
                        wait_for("it wants", || activity(slice).wants);
                        // SAFETY: a context of ours.
                        assert!(unsafe { (TABLE.cuCtxDestroy_v2)(last) }.is_success());
                        wait_for("released", || {
                            let said = activity(slice);
                            said.acknowledged == word && !said.busy
                        });
                        last = context();
                        lease(slice, 2, 0, 0);
                        waits.join().expect("it launched");
                    });
                } else {
                    // SAFETY: a context of ours.
                    assert!(unsafe { (TABLE.cuCtxDestroy_v2)(last) }.is_success());
                    last = context();
                }
            }
            wait_for("idle", || !activity(slice).busy);
            let said = activity(slice);
            assert_eq!(said.launched, said.completed);
        });
    });
}

extern "C" fn the_driver_ends() {
    device::ENDED.store(true, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn the_process_ends_as_it_likes() {
    const NAME: &str = "the_process_ends_as_it_likes";
    if std::env::var_os(ROLE).is_none() {
        return ends_with(NAME, 7);
    }
    alone(NAME, |slice| {
        // SAFETY: a function that may be called at the end.
        assert_eq!(unsafe { libc::atexit(the_driver_ends) }, 0);
        slice.pages.grant.close_gate();
        lease(slice, 1, 0, 0);
        for _ in 0..50 {
            launch(null_mut(), 1_000);
        }
        std::process::exit(7);
    });
}

#[test]
fn a_forked_child_has_no_gate() {
    alone("a_forked_child_has_no_gate", |slice| {
        slice.pages.grant.close_gate();
        beating(slice, || {
            lease(slice, 1, 0, 0);
            launch(null_mut(), 20_000);
            let word = slice.pages.grant.close_gate();
            // With the device locked, so that the child finds it unlocked.
            // SAFETY: the child launches, which takes no lock but the device's, and ends.
            let child = with(|_| unsafe { libc::fork() });
            if child == 0 {
                launch(null_mut(), 1);
                let counted = kernels();
                // SAFETY: ends the child, handlers of the process's end included in the one below.
                unsafe { libc::_exit(if counted == 2 { 5 } else { 6 }) };
            }
            let mut status = 0;
            // SAFETY: our own child; a valid out-parameter.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(
                libc::WEXITSTATUS(status),
                5,
                "CUDA's own answer is the driver's to give"
            );
            wait_for("the parent goes on", || {
                let said = activity(slice);
                said.acknowledged == word && !said.busy
            });
        });
    });
}

#[test]
fn processes_of_a_slice_share_its_lease() {
    const NAME: &str = "processes_of_a_slice_share_its_lease";
    const SOCKET: &str = "DIVVY_TEST_SOCKET";
    if let Some(socket) = std::env::var_os(SOCKET) {
        below::stand_on(&CLOCK);
        let account = connect(std::path::Path::new(&socket), 0).expect("the server answers");
        divvy_limiter::tenant::enter(vec![account]);
        context();
        for _ in 0..200 {
            launch(null_mut(), 1_000);
        }
        return;
    }
    alone(NAME, |slice| {
        beating(slice, || {
            slice.pages.grant.close_gate();
            let mut children: Vec<_> = (0..3)
                .map(|_| again(NAME).env(SOCKET, &slice.socket).spawn().expect("it starts"))
                .collect();
            let theirs = || {
                slice
                    .pages
                    .ledger
                    .activities()
                    .filter(|said| said.slot != activity(slice).slot)
            };
            wait_for("all want", || theirs().filter(|said| said.wants).count() == 3);
            assert!(theirs().all(|said| said.launched == 0));
            let mut epoch = 0;
            wait_for("all launch", || {
                epoch += 1;
                lease(slice, epoch, 20, 1);
                std::thread::sleep(Duration::from_millis(20));
                let word = slice.pages.grant.close_gate();
                wait_for("all let go", || {
                    theirs().all(|said| said.launched == 0 || (said.acknowledged == word && !said.busy))
                });
                let launched: Vec<u64> = theirs().map(|said| said.launched).collect();
                std::thread::sleep(Duration::from_millis(5));
                assert_eq!(launched, theirs().map(|said| said.launched).collect::<Vec<_>>());
                launched.iter().all(|launched| *launched > 20)
            });
            slice.pages.grant.open_gate();
            for child in &mut children {
                assert!(child.wait().expect("it ends").success());
            }
        });
    });
}
