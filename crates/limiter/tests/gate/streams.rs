//! Several streams at once, and kernels that overlap.

use std::ptr::null_mut;
use std::time::Duration;

use divvy_abi::*;
use divvy_ledger::monotonic_ns;
use divvy_limiter::TABLE;

use crate::MS;
use crate::device::{Did, with};
use crate::kit::{activity, alone, beating, launch, lease, stream, wait_for};

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
