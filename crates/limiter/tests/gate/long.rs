//! Long launches, launches of unknown length, and what is known of a length.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use divvy_abi::*;
use divvy_ledger::monotonic_ns;
use divvy_limiter::TABLE;

use crate::MS;
use crate::device::{Did, with};
use crate::kit::{Over, activity, alone, beating, kernels, launch, lease, stream, wait_for};
use crate::support::Slice;

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

/// Events of ours in the program's streams.
fn events() -> usize {
    let is_event = |(_, did): &&(u64, Did)| matches!(did, Did::Event { .. });
    with(|device| device.did.iter().filter(is_event).count())
}

#[test]
fn what_is_known_of_kernels_is_measured_again_under_another_clock() {
    alone(
        "what_is_known_of_kernels_is_measured_again_under_another_clock",
        |slice| {
            slice.pages.grant.close_gate();
            slice.pages.grant.set_clock_mhz(1980);
            let stream = stream();
            beating(slice, || {
                lease(slice, 1, 0, 0);
                // An event stands before each launch that is measured. Of kernels that are known, that is one now and then.
                let is_measured = || {
                    let before = events();
                    launch(stream, 1000);
                    wait_for("idle", || !activity(slice).busy);
                    events() > before
                };
                let several = |wanted: bool| {
                    let mut on_end = 0;
                    wait_for("several on end", || {
                        on_end = if is_measured() == wanted { on_end + 1 } else { 0 };
                        on_end == 3
                    });
                };
                several(false);
                // A device changes its clock a little all the time.
                slice.pages.grant.set_clock_mhz(1965);
                let measured = (0..60).filter(|_| is_measured()).count();
                assert!(measured < 20, "{measured} of 60");
                slice.pages.grant.set_clock_mhz(990);
                several(true);
                several(false);
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

#[test]
fn the_stream_with_the_highest_priority_goes_first_and_none_starves() {
    alone(
        "the_stream_with_the_highest_priority_goes_first_and_none_starves",
        |slice| {
            slice.pages.grant.close_gate();
            let prioritised = |priority| {
                let mut stream = std::ptr::null_mut();
                // SAFETY: a valid out-parameter.
                let result = unsafe { (TABLE.cuStreamCreateWithPriority)(&raw mut stream, 1, priority) };
                assert!(result.is_success());
                stream as usize
            };
            let streams = [prioritised(0), prioritised(-5), prioritised(0)];
            let launched = || {
                let of = |wanted: usize| {
                    let kernel = |(_, did): &&(u64, Did)| matches!(did, Did::Kernel { stream, .. } if *stream == wanted);
                    with(|device| device.did.iter().filter(kernel).count())
                };
                streams.map(of)
            };
            let over = &AtomicBool::new(false);
            beating(slice, || {
                lease(slice, 1, 0, 2);
                // It is known to be long.
                for _ in 0..3 {
                    launch(streams[0] as CUstream, 40_000);
                    wait_for("idle", || !activity(slice).busy);
                }
                let before = launched();
                std::thread::scope(|scope| {
                    let _over = Over(over, slice);
                    for stream in streams {
                        scope.spawn(move || {
                            while !over.load(Ordering::Relaxed) {
                                launch(stream as CUstream, 40_000);
                            }
                        });
                    }
                    // Those of lower priority have a launch in nine.
                    let mut more = [0; 3];
                    wait_for("each has launched twice", || {
                        more = launched();
                        more.iter_mut()
                            .zip(before)
                            .for_each(|(more, before)| *more -= before);
                        more.iter().all(|more| *more >= 2)
                    });
                    let others = more[0] + more[2];
                    assert!(more[1] >= 2 * others, "{more:?}");
                });
            });
        },
    );
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
