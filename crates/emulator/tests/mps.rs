//! MPS on an emulated device: clients of a server run together and fail together, which processes without a server do
//! not.

mod common;

use common::peer::{Peer, listen, say};
use common::spin::{MS, busy_of, go, keep_busy, spin, usage, wait_until};
use common::{POKE, alone, code, cu, function, get, launch, memory_info, module, param, role, start};
use divvy_abi::*;
use std::path::PathBuf;
use std::ptr::null_mut;

const MODEL: (&str, &str) = ("DIVVY_EMULATED", "h100,timing=model");

/// The folder of a server's pipes, with the daemon's file in it.
fn server() -> (PathBuf, String) {
    let directory = PathBuf::from(std::env::var("DIVVY_RUN_DIR").unwrap());
    let pipes = directory.join("pipe");
    std::fs::create_dir_all(&pipes).unwrap();
    let device = divvy_device::devices("h100", &directory).unwrap()[0].uuid;
    std::fs::write(pipes.join("control"), device.to_string()).unwrap();
    let name = pipes.to_str().unwrap().to_owned();
    (pipes, name)
}

fn start_peer(test: &str, role: &str, settings: &[(&str, &str)]) -> Peer {
    let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
    let mut all = vec![MODEL];
    all.extend(settings);
    Peer::start(test, role, &directory, &all)
}

/// Says how a launch of a small kernel went, whenever it is asked.
fn victim() {
    start(0);
    let spin = spin();
    say("ready");
    while listen().is_some_and(|line| line == "launch") {
        let ns = MS;
        let launched = launch(spin, 1, 32, null_mut(), &mut [param(&ns)]);
        let done = code!(cuCtxSynchronize());
        say(if launched == CUDA_SUCCESS {
            done.0
        } else {
            launched.0
        });
    }
}

/// Touches memory that is not there.
fn fault() {
    start(0);
    let poke = function(module(POKE), c"poke");
    let nowhere = 64u64;
    let _ = launch(poke, 1, 1, null_mut(), &mut [param(&nowhere)]);
    say(code!(cuCtxSynchronize()).0);
    let _ = listen();
}

/// Whether a process can have a context.
fn newcomer() {
    cu!(cuInit(0));
    let mut context = null_mut();
    say(code!(cuDevicePrimaryCtxRetain(&raw mut context, 0)).0);
}

#[test]
fn a_fault_is_one_of_all_clients_and_of_no_other_process() {
    let test = "a_fault_is_one_of_all_clients_and_of_no_other_process";
    match role().as_deref() {
        Some("victim") => return victim(),
        Some("fault") => return fault(),
        Some("newcomer") => return newcomer(),
        _ => {}
    }
    alone(test, &[MODEL], || {
        let (_, pipes) = server();
        let mps = &[("CUDA_MPS_PIPE_DIRECTORY", pipes.as_str())];
        let (illegal, ok) = (
            CUDA_ERROR_ILLEGAL_ADDRESS.0.to_string(),
            CUDA_SUCCESS.0.to_string(),
        );
        let newcomer = |settings| start_peer(test, "newcomer", settings).hear();
        // Without a server: the failure is the failing process's alone.
        let mut beside = start_peer(test, "victim", &[]);
        beside.hear();
        let mut bad = start_peer(test, "fault", &[]);
        assert_eq!(bad.hear(), illegal);
        assert_eq!(beside.ask("launch"), ok);
        // With one server: the failure is every client's, and new ones are refused until the last of them is gone.
        let mut client = start_peer(test, "victim", mps);
        client.hear();
        assert_eq!(client.ask("launch"), ok);
        let mut bad = start_peer(test, "fault", mps);
        assert_eq!(bad.hear(), illegal);
        assert_eq!(client.ask("launch"), illegal);
        assert_eq!(client.ask("launch"), illegal, "it stays");
        assert_eq!(newcomer(mps), CUDA_ERROR_MPS_SERVER_NOT_READY.0.to_string());
        assert_eq!(newcomer(&[]), ok);
        assert_eq!(
            beside.ask("launch"),
            ok,
            "who is no client has nothing to do with it"
        );
        bad.kill();
        assert_eq!(newcomer(mps), CUDA_ERROR_MPS_SERVER_NOT_READY.0.to_string());
        client.kill();
        assert_eq!(newcomer(mps), ok);
    });
}

#[test]
fn clients_run_at_once_within_their_percentage() {
    let test = "clients_run_at_once_within_their_percentage";
    match role().as_deref() {
        Some("narrow") => return keep_busy(MS),
        Some("rest") => {
            start(0);
            say("ready");
            let _ = listen();
            return;
        }
        _ => {}
    }
    alone(test, &[MODEL], || {
        let (_, pipes) = server();
        let mps = &[
            ("CUDA_MPS_PIPE_DIRECTORY", pipes.as_str()),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=64M"),
        ];
        let mut clients = [start_peer(test, "narrow", mps), start_peer(test, "narrow", mps)];
        for client in &mut clients {
            client.hear();
        }
        // A kernel of one block keeps one of 132 multiprocessors busy; both run all the time.
        let before = usage();
        let after = wait_until(|usage| usage.now_ns > before.now_ns + 400 * MS);
        let window = (after.now_ns - before.now_ns) as f64;
        for client in &mut clients {
            let pid = client.pid();
            let had = |usage: &divvy_device::EngineUsage| {
                let one = usage.processes.iter().find(|one| one.pid == pid);
                one.map_or(0, |one| one.busy_ns)
            };
            let part = (had(&after) - had(&before)) as f64 / window * 132.0;
            assert!((0.95..1.05).contains(&part), "{part} of a multiprocessor");
            client.ask("stop");
        }
    });
}

#[test]
fn a_clients_memory_is_limited() {
    let test = "a_clients_memory_is_limited";
    if role().as_deref() == Some("client") {
        start(0);
        let within: CUdeviceptr = get!(cuMemAlloc_v2(60 << 20));
        assert_eq!(code!(cuMemAlloc_v2(&mut 0, 8 << 20)), CUDA_ERROR_OUT_OF_MEMORY);
        cu!(cuMemFree_v2(within));
        let _again: CUdeviceptr = get!(cuMemAlloc_v2(64 << 20));
        return say("done");
    }
    alone(test, &[MODEL], || {
        let (_, pipes) = server();
        let mps = &[
            ("CUDA_MPS_PIPE_DIRECTORY", pipes.as_str()),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=64M"),
        ];
        assert_eq!(start_peer(test, "client", mps).hear(), "done");
        start(0);
        let (free, total) = memory_info();
        assert_eq!(free, total);
        let _more: CUdeviceptr = get!(cuMemAlloc_v2(80 << 20));
        let spin = spin();
        go(spin, MS, null_mut());
        cu!(cuCtxSynchronize());
        assert!(busy_of(std::process::id()) >= MS);
    });
}
