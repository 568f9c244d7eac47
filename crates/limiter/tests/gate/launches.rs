//! Every way to launch, from every thread; captures and graphs.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use divvy_abi::*;
use divvy_ledger::monotonic_ns;
use divvy_limiter::TABLE;

use crate::device::with;
use crate::kit::{Over, activity, alone, beating, kernels, launch, lease, stream, wait_for};
use crate::{AHEAD_NS, MS};

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
