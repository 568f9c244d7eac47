//! The engine under the timing model: kernels last what they say, and processes share it by turns.

mod common;

use common::peer::{Peer, listen, say};
use common::spin::{MS, SLACK, between, busy_of, event, go, keep_busy, spin, usage, wait_until};
use common::{alone, code, cu, download, get, memory_info, module, param, role, start, upload};
use divvy_abi::*;
use divvy_device::{EngineUsage, set_time_slice};
use std::ptr::null_mut;

const MODEL: (&str, &str) = ("DIVVY_EMULATED", "h100,timing=model");
const FAST: (&str, &str) = ("DIVVY_EMULATED", "h100,timing=model,fast-forward");

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

#[test]
fn events_between_kernels_are_exact() {
    alone("events_between_kernels_are_exact", &[MODEL], || {
        start(0);
        let spin = spin();
        let events: Vec<CUevent> = (0..6).map(|_| event()).collect();
        // The first one occupies the engine while the others are submitted.
        go(spin, 20 * MS, null_mut());
        for (n, event) in events.iter().enumerate() {
            cu!(cuEventRecord(*event, null_mut()));
            go(spin, (n as u64 + 1) * MS, null_mut());
        }
        cu!(cuCtxSynchronize());
        for n in 0..5 {
            let took = between(events[n], events[n + 1]);
            let kernel = n as f64 + 1.0;
            assert!(
                (took - kernel).abs() < 0.001,
                "{took} ms for a kernel of {kernel} ms"
            );
        }
    });
}

#[test]
fn kernels_of_several_streams_take_turns_and_copies_do_not_wait() {
    alone(
        "kernels_of_several_streams_take_turns_and_copies_do_not_wait",
        &[MODEL],
        || {
            start(0);
            let spin = spin();
            let streams: Vec<CUstream> = (0..3)
                .map(|_| get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0)))
                .collect();
            let (first, last) = (event(), event());
            go(spin, MS, streams[0]);
            cu!(cuEventRecord(first, streams[0]));
            for _ in 0..4 {
                for stream in &streams {
                    go(spin, 5 * MS, *stream);
                }
            }
            // While twelve kernels are queued: 60 ms.
            let memory = upload(&[1u32, 2, 3]);
            assert_eq!(code!(cuEventQuery(last)), CUDA_SUCCESS, "nothing recorded");
            assert_eq!(download::<u32>(memory, 3), [1, 2, 3]);
            cu!(cuStreamQuery(null_mut()));
            assert_eq!(code!(cuStreamQuery(streams[2])), CUDA_ERROR_NOT_READY);
            cu!(cuStreamSynchronize(streams[0]));
            cu!(cuStreamSynchronize(streams[1]));
            cu!(cuEventRecord(last, streams[2]));
            cu!(cuCtxSynchronize());
            let took = between(first, last);
            assert!(took > 59.9, "{took} ms for 60 ms of kernels");
            let busy = busy_of(std::process::id());
            assert!((61 * MS..61 * MS + 13 * SLACK).contains(&busy), "{busy}");
        },
    );
}

#[test]
fn a_fill_takes_the_engine_as_long_as_the_memory_is_fast() {
    alone(
        "a_fill_takes_the_engine_as_long_as_the_memory_is_fast",
        &[MODEL],
        || {
            start(0);
            let memory: CUdeviceptr = get!(cuMemAlloc_v2(64 << 20));
            // 64 MiB at 3352 GB/s are 20 us; the CPU may be slower.
            cu!(cuMemsetD8_v2(memory, 7, 64 << 20));
            let busy = busy_of(std::process::id());
            assert!(busy >= 20_000, "{busy}");
            assert_eq!(download::<u8>(memory + (64 << 20) - 2, 2), [7, 7]);
        },
    );
}

fn of(usage: &EngineUsage, pid: u32) -> u64 {
    let one = usage.processes.iter().find(|one| one.pid == pid);
    one.map_or(0, |one| one.busy_ns)
}

fn two(test: &str, roles: [&str; 2]) -> Vec<Peer> {
    let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
    let start = |role| Peer::start(test, role, &directory, &[MODEL]);
    let mut peers: Vec<Peer> = roles.into_iter().map(start).collect();
    for peer in &mut peers {
        assert_eq!(peer.hear(), "busy");
    }
    peers
}

/// What each had of the next second of the device clock, and how much of it no process had.
fn next_second(peers: &[Peer]) -> (Vec<f64>, f64) {
    let before = usage();
    let after = wait_until(|usage| usage.now_ns > before.now_ns + 1000 * MS);
    let window = (after.now_ns - before.now_ns) as f64;
    let had: Vec<f64> = peers
        .iter()
        .map(|peer| (of(&after, peer.pid()) - of(&before, peer.pid())) as f64 / window)
        .collect();
    let idle = 1.0 - had.iter().sum::<f64>();
    (had, idle)
}

#[test]
fn two_processes_get_half_each_and_nothing_is_lost() {
    let test = "two_processes_get_half_each_and_nothing_is_lost";
    if role().as_deref() == Some("busy") {
        return keep_busy(MS);
    }
    alone(test, &[MODEL], || {
        let mut peers = two(test, ["busy"; 2]);
        let (had, idle) = next_second(&peers);
        assert!((had[0] - had[1]).abs() < 0.02, "{had:?}");
        assert!(idle < 0.01, "idle while wanted: {idle}");
        for peer in &mut peers {
            peer.ask("stop");
        }
        for peer in peers {
            peer.end();
        }
    });
}

#[test]
fn long_kernels_are_interrupted_and_the_slice_can_be_set() {
    let test = "long_kernels_are_interrupted_and_the_slice_can_be_set";
    match role().as_deref() {
        Some("long") => return keep_busy(20 * MS),
        Some("short") => return keep_busy(MS / 2),
        _ => {}
    }
    alone(test, &[MODEL], || {
        let mut peers = two(test, ["long", "short"]);
        let (had, idle) = next_second(&peers);
        assert!((had[0] - had[1]).abs() < 0.05, "{had:?}");
        assert!(idle < 0.05, "idle while wanted: {idle}");
        // The driver's long slices: 30 ms.
        let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
        let device = divvy_device::devices("h100", directory.as_ref()).unwrap()[0].uuid;
        set_time_slice(directory.as_ref(), device, 3).unwrap();
        // Some 30 turns a second: where the machine is busy, short launches come too late for some of them.
        let (had, _) = next_second(&peers);
        assert!((had[0] - had[1]).abs() < 0.2, "{had:?}");
        for peer in &mut peers {
            peer.ask("stop");
        }
    });
}

#[test]
fn the_killed_and_the_stopped_do_not_keep_the_engine() {
    let test = "the_killed_and_the_stopped_do_not_keep_the_engine";
    if role().as_deref() == Some("busy") {
        return keep_busy(MS);
    }
    alone(test, &[MODEL], || {
        let mut peers = two(test, ["busy"; 2]);
        let signal = |peer: &Peer, signal: i32| {
            let pid = peer.pid() as libc::pid_t;
            // SAFETY: a signal for a child of ours that lives.
            assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        };
        signal(&peers[0], libc::SIGSTOP);
        // It has the work that was executed ahead, and then no more.
        let stopped = wait_until(|usage| usage.idle_wanted_ns > 0 || of(usage, peers[1].pid()) > 200 * MS);
        let (had, _) = next_second(&peers);
        assert!(had[0] < 0.02 && had[1] > 0.95, "{had:?} after {stopped:?}");
        signal(&peers[0], libc::SIGCONT);
        let came_back = of(&usage(), peers[0].pid());
        wait_until(|usage| of(usage, peers[0].pid()) > came_back + 20 * MS);
        let (had, idle) = next_second(&peers);
        assert!((had[0] - had[1]).abs() < 0.02 && idle < 0.01, "{had:?}");
        let busy = usage().busy_ns;
        peers[0].kill();
        let pid = peers[0].pid();
        let after = wait_until(|usage| usage.processes.iter().all(|one| one.pid != pid));
        assert!(after.busy_ns >= busy, "what the dead had stays in the total");
        let (had, idle) = next_second(&peers[1..]);
        assert!(had[0] > 0.99, "{had:?} {idle}");
        peers[1].ask("stop");
    });
}

#[test]
fn a_thousand_long_kernels_in_no_time() {
    alone("a_thousand_long_kernels_in_no_time", &[FAST], || {
        let begun = std::time::Instant::now();
        start(0);
        let spin = spin();
        let (first, last) = (event(), event());
        cu!(cuEventRecord(first, null_mut()));
        for _ in 0..1000 {
            go(spin, 20 * MS, null_mut());
        }
        cu!(cuEventRecord(last, null_mut()));
        cu!(cuEventSynchronize(last));
        let took = between(first, last);
        assert!((20_000.0..20_500.0).contains(&took), "{took} ms");
        // On no machine do they take the twenty seconds.
        assert!(begun.elapsed().as_secs() < 15);
        let after = usage();
        assert!(
            (20_000 * MS..20_001 * MS).contains(&after.busy_ns),
            "{}",
            after.busy_ns
        );
    });
}

#[test]
fn simulated_processes_share_as_real_ones() {
    let test = "simulated_processes_share_as_real_ones";
    if let Some(kind @ ("first" | "second")) = role().as_deref() {
        start(0);
        let spin = spin();
        say(kind);
        let _ = listen();
        for _ in 0..2000 {
            go(spin, 5 * MS, null_mut());
        }
        cu!(cuCtxSynchronize());
        return say(busy_of(std::process::id()));
    }
    alone(test, &[FAST], || {
        let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
        let start = |role| Peer::start(test, role, &directory, &[FAST]);
        let mut peers: Vec<Peer> = ["first", "second"].into_iter().map(start).collect();
        for peer in &mut peers {
            peer.hear();
        }
        for peer in &mut peers {
            peer.tell("go");
        }
        for peer in &mut peers {
            let busy: u64 = peer.hear().parse().unwrap();
            // A process that loses the processor between two kernels is seen to end the first a little late.
            assert!((10_000 * MS..10_100 * MS).contains(&busy), "{busy}");
        }
    });
}

/// Adds up until it is told to stop, which the model makes short and the CPU long.
const COMPUTE: &str = r"
.version 7.0
.target sm_75
.address_size 64

.visible .entry compute(.param .u64 out, .param .u32 turns)
{
    .reg .pred %p;
    .reg .b64 %out;
    .reg .b32 %n, %turns, %sum;
    ld.param.u64 %out, [out];
    ld.param.u32 %turns, [turns];
    mov.u32 %n, 0;
    mov.u32 %sum, 0;
LOOP:
    add.u32 %sum, %sum, %n;
    add.u32 %n, %n, 1;
    setp.lt.u32 %p, %n, %turns;
    @%p bra LOOP;
    st.global.u32 [%out], %sum;
    ret;
}
";

fn compute(setting: &'static str, turns: u32) -> u64 {
    start(0);
    let out = upload(&[0u32]);
    let compute = common::function(module(COMPUTE), c"compute");
    let before = busy_of(std::process::id());
    let params = &mut [param(&out), param(&turns)];
    assert_eq!(common::launch(compute, 1, 32, null_mut(), params), CUDA_SUCCESS);
    cu!(cuCtxSynchronize());
    let sum = (0..turns).fold(0u32, u32::wrapping_add);
    assert_eq!(download::<u32>(out, 1), [sum], "{setting}");
    busy_of(std::process::id()) - before
}

#[test]
fn what_really_computes_is_charged_the_model_or_the_cpu() {
    let test = "what_really_computes_is_charged_the_model_or_the_cpu";
    for setting in ["h100,timing=model", "h100,timing=model/10000", "h100"] {
        alone(test, &[("DIVVY_EMULATED", setting), ("CASE", setting)], || {
            let turns = 20_000;
            let busy = compute(setting, turns);
            // Four instructions a turn, four cycles each, at 1.98 GHz.
            let model = u64::from(turns) * 16 * 1000 / 1980;
            match setting {
                "h100" => assert!(busy > 0),
                "h100,timing=model" => assert!(busy >= model, "{busy} for {model}"),
                _ => {
                    let slower = model * 10_000;
                    assert!(
                        (slower..slower + slower / 100).contains(&busy),
                        "{busy} for {slower}"
                    );
                }
            }
        });
    }
}

#[test]
fn a_kernel_that_waits_for_the_host_lets_others_pass() {
    alone(
        "a_kernel_that_waits_for_the_host_lets_others_pass",
        &[MODEL],
        || {
            start(0);
            let spin = spin();
            let wait = common::function(module(WAIT), c"wait");
            let mut flag: *mut c_void = get!(cuMemHostAlloc(4, 0));
            let word = flag.cast::<u32>();
            // SAFETY: pinned memory of four bytes, which the kernel reads.
            unsafe { word.write_volatile(0) };
            let address = std::ptr::from_mut(&mut flag);
            let (one, other): (CUstream, CUstream) = (
                get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0)),
                get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0)),
            );
            assert_eq!(
                common::launch(wait, 1, 32, one, &mut [address.cast()]),
                CUDA_SUCCESS
            );
            go(spin, MS, other);
            cu!(cuStreamSynchronize(other));
            assert_eq!(code!(cuStreamQuery(one)), CUDA_ERROR_NOT_READY);
            // SAFETY: as above.
            unsafe { word.write_volatile(1) };
            cu!(cuStreamSynchronize(one));
        },
    );
}

/// Polls a word until it is not 0.
const WAIT: &str = r"
.version 7.0
.target sm_75
.address_size 64

.visible .entry wait(.param .u64 flag)
{
    .reg .pred %p;
    .reg .b64 %flag;
    .reg .b32 %r;
    ld.param.u64 %flag, [flag];
LOOP:
    ld.volatile.global.u32 %r, [%flag];
    setp.eq.u32 %p, %r, 0;
    @%p bra LOOP;
    ret;
}
";

#[test]
fn rubbish_on_the_page_stops_no_process() {
    let test = "rubbish_on_the_page_stops_no_process";
    if role().as_deref() == Some("busy") {
        return keep_busy(MS);
    }
    alone(test, &[MODEL], || {
        let mut peers = two(test, ["busy"; 2]);
        let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
        let directory = std::path::Path::new(&directory).join("emulated");
        let page = std::fs::read_dir(directory).unwrap().flatten();
        let page = page
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "engine"));
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(page.unwrap())
            .unwrap();
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state >> 16
        };
        for round in 0..20_000u64 {
            // Words of the head and of the first places, the magic number aside.
            let at = 16 + random() % (4096 + 4 * 1024) / 8 * 8;
            let value = match round % 4 {
                0 => random() % 8,
                1 => u64::MAX - random() % 8,
                2 => random(),
                _ => random() << 20,
            };
            // The clock's leap is left alone: it would be the year 2100.
            if at != 56 {
                std::os::unix::fs::FileExt::write_at(&file, &value.to_le_bytes(), at).unwrap();
            }
            let _ = usage();
        }
        let (free, total) = memory_info_of(&mut peers[0]);
        assert!(free <= total);
        for mut peer in peers {
            peer.ask("stop");
            peer.end();
        }
    });
}

#[test]
fn a_damaged_page_is_an_error_where_time_is_modelled() {
    let test = "a_damaged_page_is_an_error_where_time_is_modelled";
    for (setting, result) in [
        ("h100,timing=model", CUDA_ERROR_OPERATING_SYSTEM),
        ("h100", CUDA_SUCCESS),
    ] {
        alone(test, &[("DIVVY_EMULATED", setting), ("CASE", setting)], || {
            let directory = std::path::PathBuf::from(std::env::var("DIVVY_RUN_DIR").unwrap());
            let device = divvy_device::devices("h100", &directory).unwrap()[0].uuid;
            let pages = directory.join("emulated");
            std::fs::create_dir_all(&pages).unwrap();
            std::fs::write(pages.join(format!("emulated-{device}.1.engine")), "rubbish").unwrap();
            cu!(cuInit(0));
            let mut context = null_mut();
            assert_eq!(code!(cuDevicePrimaryCtxRetain(&raw mut context, 0)), result);
            assert!(divvy_device::engine_usage(device).is_err());
        });
    }
}

/// The device answers a new process, too.
fn memory_info_of(_peer: &mut Peer) -> (usize, usize) {
    start(0);
    let spin = spin();
    go(spin, MS, null_mut());
    cu!(cuCtxSynchronize());
    memory_info()
}
