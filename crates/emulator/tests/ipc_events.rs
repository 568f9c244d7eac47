//! Events of one process in another: order across processes.

mod common;

use common::peer::{Peer, listen, say};
use common::{alone, code, cu, get, role, start};
use divvy_abi::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

const SHARED: u32 = CU_EVENT_INTERPROCESS.0 | CU_EVENT_DISABLE_TIMING.0;

fn export(event: CUevent) -> String {
    let handle: CUipcEventHandle = get!(cuIpcGetEventHandle(event));
    handle
        .reserved
        .iter()
        .map(|&byte| format!("{:02x}", byte as u8))
        .collect()
}

fn open(text: &str) -> Result<CUevent, CUresult> {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap() as c_char;
    let handle = CUipcEventHandle {
        reserved: std::array::from_fn(byte),
    };
    let mut event = null_mut();
    match code!(cuIpcOpenEventHandle(&raw mut event, handle)) {
        CUDA_SUCCESS => Ok(event),
        code => Err(code),
    }
}

static GATE: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn wait_for_gate(_: *mut c_void) {
    while !GATE.load(Ordering::Acquire) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Work that ends when the gate is opened.
fn gated(stream: CUstream) {
    cu!(cuLaunchHostFunc(stream, Some(wait_for_gate), null_mut()));
}

/// The other process: opens what it is told, and says what it sees.
fn watcher() {
    start(0);
    let stream: CUstream = get!(cuStreamCreate(0));
    let mut event = null_mut();
    while let Some(order) = listen() {
        match order.split_once(' ').unwrap_or((&order, "")) {
            ("open", handle) => {
                event = open(handle).unwrap();
                say("opened");
            }
            ("query", _) => say(code!(cuEventQuery(event)) == CUDA_SUCCESS),
            ("follow", _) => {
                cu!(cuStreamWaitEvent(stream, event, 0));
                say(code!(cuStreamQuery(stream)) == CUDA_SUCCESS);
            }
            ("followed", _) => {
                cu!(cuStreamSynchronize(stream));
                say("done");
            }
            ("synchronize", _) => {
                cu!(cuEventSynchronize(event));
                say("done");
            }
            ("record", _) => {
                cu!(cuEventRecord(event, stream));
                say("recorded");
            }
            other => unreachable!("{other:?}"),
        }
    }
}

#[test]
fn a_stream_of_one_process_waits_for_one_of_another() {
    let test = "a_stream_of_one_process_waits_for_one_of_another";
    if role().as_deref() == Some("watcher") {
        return watcher();
    }
    alone(test, &[], || {
        let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
        start(0);
        let mut peer = Peer::start(test, "watcher", &directory, &[]);
        let stream: CUstream = get!(cuStreamCreate(0));
        let event: CUevent = get!(cuEventCreate(SHARED));
        assert_eq!(peer.ask(&format!("open {}", export(event))), "opened");
        assert_eq!(peer.ask("query"), "true", "nothing recorded is done");
        gated(stream);
        cu!(cuEventRecord(event, stream));
        assert_eq!(code!(cuEventQuery(event)), CUDA_ERROR_NOT_READY);
        assert_eq!(peer.ask("query"), "false");
        assert_eq!(peer.ask("follow"), "false");
        GATE.store(true, Ordering::Release);
        assert_eq!(peer.ask("followed"), "done");
        assert_eq!(peer.ask("synchronize"), "done");
        cu!(cuEventSynchronize(event));
        // The other way round.
        assert_eq!(peer.ask("record"), "recorded");
        cu!(cuStreamWaitEvent(stream, event, 0));
        cu!(cuStreamSynchronize(stream));
        cu!(cuEventDestroy_v2(event));
        assert_eq!(peer.ask("query"), "true");
        peer.end();
    });
}

#[test]
fn a_dead_recorder_delays_no_process() {
    let test = "a_dead_recorder_delays_no_process";
    if role().as_deref() == Some("recorder") {
        start(0);
        let event: CUevent = get!(cuEventCreate(SHARED));
        let stream: CUstream = get!(cuStreamCreate(0));
        gated(stream);
        cu!(cuEventRecord(event, stream));
        say(export(event));
        let _ = listen();
        return;
    }
    alone(test, &[], || {
        let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
        start(0);
        let mut peer = Peer::start(test, "recorder", &directory, &[]);
        let event = open(&peer.hear()).unwrap();
        assert_eq!(code!(cuEventQuery(event)), CUDA_ERROR_NOT_READY);
        cu!(cuStreamWaitEvent(null_mut(), event, 0));
        peer.kill();
        cu!(cuCtxSynchronize());
        cu!(cuEventSynchronize(event));
    });
}

#[test]
fn events_that_are_not_shared() {
    alone("events_that_are_not_shared", &[], || {
        start(0);
        assert_eq!(
            code!(cuEventCreate(&mut null_mut(), CU_EVENT_INTERPROCESS.0)),
            CUDA_ERROR_INVALID_VALUE,
            "with timing"
        );
        let own: CUevent = get!(cuEventCreate(0));
        let handle = &mut CUipcEventHandle { reserved: [0; 64] };
        assert_eq!(code!(cuIpcGetEventHandle(handle, own)), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(
            code!(cuIpcGetEventHandle(handle, null_mut())),
            CUDA_ERROR_INVALID_HANDLE
        );
        let shared: CUevent = get!(cuEventCreate(SHARED));
        let name = export(shared);
        assert_eq!(open(&"00".repeat(64)), Err(CUDA_ERROR_INVALID_HANDLE));
        let changed = format!("{}{}", "f".repeat(40), &name[40..]);
        assert_eq!(open(&changed), Err(CUDA_ERROR_INVALID_HANDLE));
        cu!(cuEventDestroy_v2(shared));
        assert_eq!(
            open(&name),
            Err(CUDA_ERROR_INVALID_HANDLE),
            "no process has it any more"
        );
        let mut milliseconds = 0f32;
        let shared: CUevent = get!(cuEventCreate(SHARED));
        assert_eq!(
            code!(cuEventElapsedTime(&raw mut milliseconds, shared, shared)),
            CUDA_ERROR_INVALID_HANDLE
        );
    });
}
