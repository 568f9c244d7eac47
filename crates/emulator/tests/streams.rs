//! Streams and events: order, what waits for what, callbacks, and time.

pub(crate) mod common;

use common::{alone, code, cu, download, get, start, upload};
use divvy_abi::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Work that blocks its stream until the other end is dropped or written to.
unsafe extern "C" fn wait_for_gate(data: *mut c_void) {
    // SAFETY: each test passes a boxed receiver that lives until the stream is done.
    let gate = unsafe { &*data.cast::<Receiver<()>>() };
    let _ = gate.recv_timeout(Duration::from_secs(60));
}

/// Blocks a stream; dropping the sender opens it.
fn block(stream: CUstream) -> Sender<()> {
    let (open, gate) = channel();
    let gate = Box::leak(Box::new(gate));
    cu!(cuLaunchHostFunc(
        stream,
        Some(wait_for_gate),
        std::ptr::from_mut(gate).cast()
    ));
    open
}

fn stream(flags: CUstream_flags) -> CUstream {
    get!(cuStreamCreate(flags.0))
}

fn is_idle(stream: CUstream) -> bool {
    match code!(cuStreamQuery(stream)) {
        CUDA_SUCCESS => true,
        busy => {
            assert_eq!(busy, CUDA_ERROR_NOT_READY);
            false
        }
    }
}

#[test]
fn a_stream_runs_in_order_and_does_not_hold_up_the_host() {
    alone(
        "a_stream_runs_in_order_and_does_not_hold_up_the_host",
        &[],
        || {
            start(0);
            let stream = stream(CU_STREAM_NON_BLOCKING);
            let memory = upload(&[0u8; 4]);
            let open = block(stream);
            cu!(cuMemsetD8Async(memory, 1, 4, stream));
            cu!(cuMemsetD8Async(memory, 2, 2, stream));
            let source = [9u8];
            cu!(cuMemcpyHtoDAsync_v2(
                memory + 3,
                source.as_ptr().cast(),
                1,
                stream
            ));
            assert!(!is_idle(stream));
            assert_eq!(
                download::<u8>(memory, 4),
                [0; 4],
                "nothing has happened yet, for other streams"
            );
            drop(open);
            cu!(cuStreamSynchronize(stream));
            assert!(is_idle(stream));
            assert_eq!(download::<u8>(memory, 4), [2, 2, 1, 9]);
        },
    );
}

unsafe extern "C" fn does_nothing(_: *mut c_void) {}

/// Whether a thread of this process sleeps.
fn sleeps(thread: &std::path::Path) -> bool {
    let stat = std::fs::read_to_string(std::path::Path::new("/proc").join(thread).join("stat"));
    stat.is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('S'))
    })
}

/// As on hardware, a program that submits and never waits is held up once its stream is full. Other streams are not.
#[test]
fn a_full_stream_holds_its_submitter_up() {
    alone("a_full_stream_holds_its_submitter_up", &[], || {
        const MOST: usize = 1024;
        let context = start(0) as usize;
        let memory = upload(&[0u8; 4]);
        let event: CUevent = get!(cuEventCreate(0));
        let event = event as usize;
        let submit: [fn(CUstream, CUdeviceptr, usize); 4] = [
            |stream, memory, _| cu!(cuMemsetD8Async(memory, 7, 4, stream)),
            |stream, _, _| cu!(cuLaunchHostFunc(stream, Some(does_nothing), null_mut())),
            |stream, _, event| cu!(cuEventRecord(event as CUevent, stream)),
            |stream, _, event| cu!(cuStreamWaitEvent(stream, event as CUevent, 0)),
        ];
        for submit in submit {
            let (stream, other) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
            let (open, address) = (block(stream), stream as usize);
            // What is waited for is not over, so that a wait for it is work.
            cu!(cuEventRecord(event as CUevent, stream));
            let (told, tells) = channel();
            let submitted = std::sync::Arc::new(AtomicUsize::new(0));
            let counts = std::sync::Arc::clone(&submitted);
            let thread = std::thread::spawn(move || {
                told.send(std::fs::read_link("/proc/thread-self").unwrap())
                    .unwrap();
                cu!(cuCtxSetCurrent(context as CUcontext));
                for _ in 0..2 * MOST {
                    submit(address as CUstream, memory, event);
                    counts.fetch_add(1, Ordering::SeqCst);
                }
            });
            let name = tells.recv().unwrap();
            let is_held_up = || submitted.load(Ordering::SeqCst) >= MOST - 2 && sleeps(&name);
            while !thread.is_finished() {
                if is_held_up() {
                    break;
                }
                std::thread::yield_now();
            }
            assert!(!thread.is_finished() && submitted.load(Ordering::SeqCst) <= MOST);
            // Work of another stream comes in and is done.
            cu!(cuMemsetD8Async(memory, 1, 4, other));
            cu!(cuStreamSynchronize(other));
            assert_eq!(download::<u8>(memory, 4), [1; 4]);
            drop(open);
            thread.join().unwrap();
            assert_eq!(submitted.load(Ordering::SeqCst), 2 * MOST);
            cu!(cuCtxSynchronize());
            cu!(cuStreamDestroy_v2(stream));
            cu!(cuStreamDestroy_v2(other));
        }
    });
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    alone("the_legacy_stream_waits_for_blocking_streams_only", &[], || {
        start(0);
        let legacy: CUstream = null_mut();
        let (blocking, free) = (stream(CU_STREAM_DEFAULT), stream(CU_STREAM_NON_BLOCKING));
        let memory = upload(&[0u8; 4]);
        let open = block(blocking);
        cu!(cuMemsetD8Async(memory, 1, 1, legacy));
        cu!(cuMemsetD8Async(memory + 1, 1, 1, free));
        cu!(cuStreamSynchronize(free));
        assert!(!is_idle(legacy));
        let other = stream(CU_STREAM_DEFAULT);
        cu!(cuMemsetD8Async(memory + 2, 1, 1, other));
        assert!(
            !is_idle(other),
            "a blocking stream waits for the legacy stream in its turn"
        );
        assert!(!is_idle(CU_STREAM_LEGACY));
        cu!(cuMemsetD8Async_ptsz(memory + 3, 1, 1, null_mut()));
        assert!(!is_idle(CU_STREAM_PER_THREAD), "and so does the thread's own");
        drop(open);
        cu!(cuCtxSynchronize());
        assert_eq!(download::<u8>(memory, 4), [1; 4]);
    });
}

#[test]
fn each_thread_has_a_stream_of_its_own() {
    alone("each_thread_has_a_stream_of_its_own", &[], || {
        let context = start(0) as usize;
        let open = block(CU_STREAM_PER_THREAD);
        let idle = std::thread::spawn(move || {
            cu!(cuCtxSetCurrent(context as CUcontext));
            is_idle(CU_STREAM_PER_THREAD)
        });
        assert!(idle.join().unwrap());
        assert!(!is_idle(CU_STREAM_PER_THREAD));
        drop(open);
        cu!(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    });
}

#[test]
fn events_order_streams_and_tell_time() {
    alone("events_order_streams_and_tell_time", &[], || {
        start(0);
        let (first, second) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
        let (begin, end): (CUevent, CUevent) = (get!(cuEventCreate(0)), get!(cuEventCreate(0)));
        cu!(cuEventQuery(begin));
        assert_eq!(
            code!(cuEventElapsedTime(&mut 0.0, begin, end)),
            CUDA_ERROR_INVALID_HANDLE,
            "not recorded"
        );
        cu!(cuEventRecord(begin, first));
        let open = block(first);
        cu!(cuEventRecord(end, first));
        assert_eq!(code!(cuEventQuery(end)), CUDA_ERROR_NOT_READY);
        assert_eq!(
            code!(cuEventElapsedTime(&mut 0.0, begin, end)),
            CUDA_ERROR_NOT_READY
        );
        let memory = upload(&[0u8]);
        cu!(cuStreamWaitEvent(second, end, 0));
        cu!(cuMemsetD8Async(memory, 1, 1, second));
        assert!(!is_idle(second));
        // Recording again does not move what was waited for.
        cu!(cuEventRecord(end, stream(CU_STREAM_NON_BLOCKING)));
        assert!(!is_idle(second));
        drop(open);
        cu!(cuStreamSynchronize(second));
        assert_eq!(download::<u8>(memory, 1), [1]);
        cu!(cuEventRecord(end, second));
        cu!(cuEventSynchronize(end));
        let milliseconds: f32 = get!(cuEventElapsedTime(begin, end));
        let back: f32 = get!(cuEventElapsedTime(end, begin));
        assert!(
            milliseconds > 0.0 && back == -milliseconds,
            "{milliseconds} {back}"
        );
        let untimed: CUevent = get!(cuEventCreate(CU_EVENT_DISABLE_TIMING.0));
        cu!(cuEventRecord(untimed, second));
        assert_eq!(
            code!(cuEventElapsedTime(&mut 0.0, begin, untimed)),
            CUDA_ERROR_INVALID_HANDLE
        );
    });
}

unsafe extern "C" fn note(stream: CUstream, status: CUresult, data: *mut c_void) {
    // SAFETY: the test passes a sender that outlives the stream's work.
    let notes = unsafe { &*data.cast::<Sender<(usize, CUresult)>>() };
    notes.send((stream as usize, status)).unwrap();
}

#[test]
fn callbacks_and_stream_facts() {
    alone(
        "callbacks_and_stream_facts",
        &[("DIVVY_EMULATED", "t4*2")],
        || {
            let context = start(1);
            let (send, receive) = channel::<(usize, CUresult)>();
            let data: *mut c_void = std::ptr::from_ref(&send).cast_mut().cast();
            let mut stream = null_mut();
            cu!(cuStreamCreateWithPriority(
                &raw mut stream,
                CU_STREAM_NON_BLOCKING.0,
                -100
            ));
            cu!(cuStreamAddCallback(stream, Some(note), data, 0));
            cu!(cuStreamSynchronize(stream));
            assert_eq!(receive.try_recv(), Ok((stream as usize, CUDA_SUCCESS)));
            let (mut least, mut greatest) = (9, 9);
            cu!(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest));
            let priority = {
                let mut priority = 9;
                cu!(cuStreamGetPriority(stream, &raw mut priority));
                priority
            };
            assert_eq!((least, priority), (0, greatest), "clamped to the range");
            let mut flags = 9;
            cu!(cuStreamGetFlags(stream, &raw mut flags));
            assert_eq!(flags, CU_STREAM_NON_BLOCKING.0);
            let mut found = null_mut();
            cu!(cuStreamGetCtx(stream, &raw mut found));
            assert_eq!(found, context);
            let mut device = 9;
            cu!(cuStreamGetDevice(stream, &raw mut device));
            assert_eq!(device, 1);
            let mut status = CUstreamCaptureStatus(9);
            cu!(cuStreamIsCapturing(stream, &raw mut status));
            assert_eq!(status, CU_STREAM_CAPTURE_STATUS_NONE);
            let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
            cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
            assert_eq!(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
        },
    );
}

#[test]
fn many_streams_at_once() {
    alone("many_streams_at_once", &[], || {
        start(0);
        let memory = upload(&[0u8; 256]);
        // More than there are threads: all blocked, then all opened.
        let streams: Vec<CUstream> = (0..200).map(|_| stream(CU_STREAM_NON_BLOCKING)).collect();
        let gates: Vec<Sender<()>> = streams.iter().map(|&stream| block(stream)).collect();
        for (at, &stream) in streams.iter().enumerate() {
            cu!(cuMemsetD8Async(memory + at as u64, 1, 1, stream));
            cu!(cuStreamDestroy_v2(stream));
        }
        drop(gates);
        cu!(cuCtxSynchronize());
        assert_eq!(download::<u8>(memory, 201), [[1; 200].as_slice(), &[0]].concat());
    });
}
