//! What one connection may use: each quota is a code that CUDA has for it, and what is given back counts no more.

mod common;

use std::collections::HashSet;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use common::{EMULATED, VECTOR_ADD, alone, code, connect_to, cu, get, start};
use divvy_abi::*;
use divvy_remote::server::{Quota, Server};

const MESSAGE: usize = 1 << 16;

fn with(quota: Quota) -> Arc<Server> {
    let quota = Quota {
        message: MESSAGE,
        ..quota
    };
    let (server, _) = connect_to(Server::new(&EMULATED, quota), MESSAGE);
    start(0);
    server
}

fn load() -> Result<CUmodule, CUresult> {
    let text = CString::new(VECTOR_ADD).unwrap();
    let mut module: CUmodule = std::ptr::null_mut();
    match code!(cuModuleLoadData(&raw mut module, text.as_ptr().cast())) {
        CUDA_SUCCESS => Ok(module),
        code => Err(code),
    }
}

#[test]
fn modules_are_counted() {
    alone("modules_are_counted", || {
        with(Quota {
            modules: 2,
            ..Quota::default()
        });
        let first = load().expect("the first");
        load().expect("the second");
        assert_eq!(load(), Err(CUDA_ERROR_OUT_OF_MEMORY));
        cu!(cuModuleUnload(first));
        load().expect("in its place");
        let mut linker: CUlinkState = std::ptr::null_mut();
        let none = std::ptr::null_mut();
        assert_eq!(
            code!(cuLinkCreate_v2(0, none, none.cast(), &raw mut linker)),
            CUDA_ERROR_OUT_OF_MEMORY
        );
    });
}

#[test]
fn bytes_of_images_are_counted_while_they_are_loaded() {
    alone("bytes_of_images_are_counted_while_they_are_loaded", || {
        let bytes = VECTOR_ADD.len() as u64;
        let server = with(Quota {
            images: 2 * bytes + 64,
            ..Quota::default()
        });
        let first = load().expect("the first");
        load().expect("the second");
        assert_eq!(load(), Err(CUDA_ERROR_OUT_OF_MEMORY));
        assert!(server.loads().1 >= 2 * bytes);
        assert_eq!(server.loads().0, 0, "nothing is on its way");
        cu!(cuModuleUnload(first));
        load().expect("in its place");
    });
}

/// The ring and its messages are 64 KiB, and the program's whole region little more: images go through it in parts.
#[test]
fn a_module_larger_than_the_region_is_loaded_in_parts() {
    alone("a_module_larger_than_the_region_is_loaded_in_parts", || {
        let server = with(Quota::default());
        let comment = format!("// {}\n", "x".repeat(100)).repeat(40_000);
        let text = CString::new(format!("{VECTOR_ADD}\n{comment}")).unwrap();
        assert!(text.count_bytes() > 50 * MESSAGE);
        let module: CUmodule = get!(cuModuleLoadData(text.as_ptr().cast()));
        let add: CUfunction = get!(cuModuleGetFunction(module, c"add".as_ptr()));
        assert!(!add.is_null());
        cu!(cuModuleUnload(module));
        assert_eq!(server.loads().1, 0, "the server keeps none of its bytes");
    });
}

#[test]
fn an_image_that_grows_when_it_is_decompressed_counts_as_what_it_becomes() {
    alone(
        "an_image_that_grows_when_it_is_decompressed_counts_as_what_it_becomes",
        || {
            with(Quota {
                images: 1 << 20,
                ..Quota::default()
            });
            // A container with one file that says it becomes 2 MiB.
            let mut image = 0xba55_ed50_u32.to_le_bytes().to_vec();
            image.extend_from_slice(&[1, 0, 16, 0]);
            image.extend_from_slice(&80_u64.to_le_bytes());
            let mut head = [0; 64];
            head[0] = 1;
            head[4] = 64;
            head[8] = 16;
            head[40..48].copy_from_slice(&0x2000_u64.to_le_bytes());
            head[56..64].copy_from_slice(&(2_u64 << 20).to_le_bytes());
            image.extend_from_slice(&head);
            image.extend_from_slice(&[0; 16]);
            let mut module: CUmodule = std::ptr::null_mut();
            let code = code!(cuModuleLoadData(&raw mut module, image.as_ptr().cast()));
            assert_eq!(code, CUDA_ERROR_OUT_OF_MEMORY);
        },
    );
}

#[test]
fn nodes_of_graphs_are_counted_with_those_of_copies() {
    alone("nodes_of_graphs_are_counted_with_those_of_copies", || {
        let server = with(Quota {
            nodes: 12,
            ..Quota::default()
        });
        let add = |graph: CUgraph| {
            let mut node: CUgraphNode = std::ptr::null_mut();
            code!(cuGraphAddEmptyNode(&raw mut node, graph, std::ptr::null(), 0))
        };
        let graph: CUgraph = get!(cuGraphCreate(0));
        for _ in 0..4 {
            assert_eq!(add(graph), CUDA_SUCCESS);
        }
        let copy: CUgraph = get!(cuGraphClone(graph));
        assert_eq!(server.loads().2, 8, "the copy's count too");
        let outer: CUgraph = get!(cuGraphCreate(0));
        let node: CUgraphNode = get!(cuGraphAddChildGraphNode(outer, std::ptr::null(), 0, copy));
        assert!(!node.is_null());
        assert_eq!(server.loads().2, 13, "one more, and those of the graph in it");
        assert_eq!(add(graph), CUDA_ERROR_OUT_OF_MEMORY);
        let mut other: CUgraph = std::ptr::null_mut();
        assert_eq!(
            code!(cuGraphClone(&raw mut other, graph)),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        cu!(cuGraphDestroy(outer));
        assert_eq!(server.loads().2, 8);
        assert_eq!(add(graph), CUDA_SUCCESS);
    });
}

#[test]
fn what_a_stream_captures_is_counted_from_the_first_call() {
    alone("what_a_stream_captures_is_counted_from_the_first_call", || {
        let server = with(Quota {
            nodes: 5,
            ..Quota::default()
        });
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
        let stream: CUstream = get!(cuStreamCreate(1));
        let other: CUstream = get!(cuStreamCreate(1));
        cu!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        // A submitted call's failure is the result of the next call that waits.
        let fill = |stream| {
            cu!(cuMemsetD8Async(memory, 1, 64, stream));
            let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
            code!(cuStreamIsCapturing(stream, &raw mut status))
        };
        for count in 1..=5 {
            assert_eq!(fill(stream), CUDA_SUCCESS);
            assert_eq!(server.loads().2, count, "before there is a graph");
        }
        assert_eq!(fill(stream), CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(fill(other), CUDA_SUCCESS, "it captures nothing");
        let mut graph: CUgraph = std::ptr::null_mut();
        cu!(cuStreamEndCapture(stream, &raw mut graph));
        assert_eq!(server.loads().2, 5, "the graph has them");
        let mut node: CUgraphNode = std::ptr::null_mut();
        assert_eq!(
            code!(cuGraphAddEmptyNode(&raw mut node, graph, std::ptr::null(), 0)),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        cu!(cuGraphDestroy(graph));
        assert_eq!(server.loads().2, 0);
        // A stream that is destroyed takes its capture along.
        cu!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        assert_eq!(fill(stream), CUDA_SUCCESS);
        assert_eq!(server.loads().2, 1);
        cu!(cuStreamDestroy_v2(stream));
        assert_eq!(server.loads().2, 0);
    });
}

/// Graphs that the driver below was told to destroy.
static GRAPHS_DESTROYED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn counted_destroy(graph: CUgraph) -> CUresult {
    GRAPHS_DESTROYED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the arguments are the caller's.
    unsafe { (EMULATED.cuGraphDestroy)(graph) }
}

static COUNTED: Table = Table {
    cuGraphDestroy: counted_destroy,
    ..divvy_emulator::TABLE
};

#[test]
fn a_captured_graph_for_which_there_is_no_name_is_destroyed() {
    alone("a_captured_graph_for_which_there_is_no_name_is_destroyed", || {
        let quota = Quota {
            objects: 8,
            message: MESSAGE,
            ..Quota::default()
        };
        let (server, _) = connect_to(Server::new(&COUNTED, quota), MESSAGE);
        start(0);
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
        let stream: CUstream = get!(cuStreamCreate(1));
        cu!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        cu!(cuMemsetD8Async(memory, 1, 64, stream));
        let mut other: CUstream = std::ptr::null_mut();
        let mut made = Vec::new();
        while code!(cuStreamCreate(&raw mut other, 1)) == CUDA_SUCCESS {
            made.push(other);
        }
        assert_eq!(server.loads().2, 1, "the capture has a node");
        let mut graph: CUgraph = std::ptr::null_mut();
        assert_eq!(
            code!(cuStreamEndCapture(stream, &raw mut graph)),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        assert!(graph.is_null());
        assert_eq!(
            GRAPHS_DESTROYED.load(Ordering::Relaxed),
            1,
            "it is not left behind"
        );
        assert_eq!(server.loads().2, 0, "the capture is over");
        // The next one has room, and its graph is the program's.
        cu!(cuStreamDestroy_v2(made[0]));
        cu!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        cu!(cuStreamEndCapture(stream, &raw mut graph));
        assert_eq!(GRAPHS_DESTROYED.load(Ordering::Relaxed), 1);
        cu!(cuGraphDestroy(graph));
        assert_eq!(GRAPHS_DESTROYED.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn the_logs_of_a_linker_are_counted_and_go_with_its_context() {
    alone("the_logs_of_a_linker_are_counted_and_go_with_its_context", || {
        let server = with(Quota {
            images: 100_000,
            ..Quota::default()
        });
        let context: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let mut log = vec![0_u8; 60_000];
        let make = |log: &mut Vec<u8>| {
            let mut keys = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
            let size = std::ptr::without_provenance_mut(log.len());
            let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), size];
            let mut linker: CUlinkState = std::ptr::null_mut();
            let (keys, values) = (keys.as_mut_ptr(), values.as_mut_ptr());
            code!(cuLinkCreate_v2(2, keys, values, &raw mut linker))
        };
        assert_eq!(make(&mut log), CUDA_SUCCESS);
        assert_eq!(server.loads().1, 60_000);
        assert_eq!(make(&mut log), CUDA_ERROR_OUT_OF_MEMORY);
        cu!(cuCtxDestroy_v2(context));
        assert_eq!(server.loads().1, 0, "the server keeps none of it");
    });
}

static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
static CALLED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn waits(_: *mut c_void) {
    let mut open = GATE.0.lock().unwrap();
    while !*open {
        open = GATE.1.wait(open).unwrap();
    }
    CALLED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn functions_that_wait_to_be_called_are_counted() {
    alone("functions_that_wait_to_be_called_are_counted", || {
        with(Quota {
            queued: 3,
            ..Quota::default()
        });
        let stream: CUstream = get!(cuStreamCreate(1));
        let launch = || code!(cuLaunchHostFunc(stream, Some(waits), std::ptr::null_mut()));
        // The first may run already, and counts no more then: one more than the quota are taken at most.
        let taken = (0..8).take_while(|_| launch() == CUDA_SUCCESS).count();
        assert!((3..=4).contains(&taken), "{taken}");
        assert_eq!(launch(), CUDA_ERROR_OUT_OF_MEMORY);
        *GATE.0.lock().unwrap() = true;
        GATE.1.notify_all();
        cu!(cuStreamSynchronize(stream));
        assert_eq!(CALLED.load(Ordering::Relaxed), taken as u32);
        assert_eq!(launch(), CUDA_SUCCESS);
        cu!(cuStreamSynchronize(stream));
    });
}

/// A program that makes and releases such objects, and never runs what it is asked to, does not fill the worker's memory.
#[test]
fn destructors_that_wait_to_be_called_are_counted() {
    alone("destructors_that_wait_to_be_called_are_counted", || {
        with(Quota {
            queued: 3,
            ..Quota::default()
        });
        let make = || {
            let mut object: CUuserObject = std::ptr::null_mut();
            let to = &raw mut object;
            let code = code!(cuUserObjectCreate(to, std::ptr::null_mut(), Some(waits), 1, 1));
            if code == CUDA_SUCCESS {
                cu!(cuUserObjectRelease(object, 1));
            }
            code
        };
        // The first may run already, and counts no more then.
        let taken = (0..8).take_while(|_| make() == CUDA_SUCCESS).count();
        assert!((3..=4).contains(&taken), "{taken}");
        *GATE.0.lock().unwrap() = true;
        GATE.1.notify_all();
        while CALLED.load(Ordering::Relaxed) < taken as u32 {
            std::thread::yield_now();
        }
        assert_eq!(make(), CUDA_SUCCESS);
    });
}

#[test]
fn objects_are_counted() {
    alone("objects_are_counted", || {
        let server = with(Quota {
            objects: 8,
            ..Quota::default()
        });
        let stream = || {
            let mut stream: CUstream = std::ptr::null_mut();
            let code = code!(cuStreamCreate(&raw mut stream, 1));
            if code == CUDA_SUCCESS {
                Ok(stream)
            } else {
                Err(code)
            }
        };
        let mut made = Vec::new();
        let full = loop {
            match stream() {
                Ok(stream) => made.push(stream),
                Err(code) => break code,
            }
        };
        assert_eq!(full, CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(server.held().0, 8);
        cu!(cuStreamDestroy_v2(made[0]));
        stream().expect("in its place");
    });
}

/// A driver whose streams are numbers, and which notes the use of one that is gone.
static LIVE: Mutex<Option<HashSet<usize>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);
static STRANGE: AtomicU32 = AtomicU32::new(0);
static USED: AtomicU32 = AtomicU32::new(0);

fn live<R>(body: impl FnOnce(&mut HashSet<usize>) -> R) -> R {
    body(LIVE.lock().unwrap().get_or_insert_default())
}

unsafe extern "C-unwind" fn ready(_: u32) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn make(stream: *mut CUstream, _: u32) -> CUresult {
    let number = 16 * NEXT.fetch_add(1, Ordering::Relaxed) as usize;
    live(|live| live.insert(number));
    // SAFETY: the server vouches for the place.
    unsafe { stream.write(std::ptr::without_provenance_mut(number)) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn end(stream: CUstream) -> CUresult {
    if !live(|live| live.remove(&stream.addr())) {
        STRANGE.fetch_add(1, Ordering::Relaxed);
    }
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn query(stream: CUstream) -> CUresult {
    // It is there as long as the call goes on.
    for _ in 0..20 {
        if !live(|live| live.contains(&stream.addr())) {
            STRANGE.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::yield_now();
    }
    USED.fetch_add(1, Ordering::Relaxed);
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn no_devices(count: *mut i32) -> CUresult {
    // SAFETY: the server vouches for the place.
    unsafe { count.write(0) };
    CUDA_SUCCESS
}

static STREAMS: Table = Table {
    cuInit: ready,
    cuDeviceGetCount: no_devices,
    cuStreamCreate: make,
    cuStreamDestroy_v2: end,
    cuStreamQuery: query,
    ..Table::UNSUPPORTED
};

#[test]
fn what_one_thread_destroys_another_ones_call_has_not_in_use() {
    alone(
        "what_one_thread_destroys_another_ones_call_has_not_in_use",
        || {
            connect_to(Server::new(&STREAMS, Quota::default()), MESSAGE);
            cu!(cuInit(0));
            // The first is there before it is used: null is the default stream.
            let first: CUstream = get!(cuStreamCreate(1));
            let newest = AtomicU64::new(first.addr() as u64);
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            let stream =
                                std::ptr::without_provenance_mut(newest.load(Ordering::Acquire) as usize);
                            let code = code!(cuStreamQuery(stream));
                            assert!(
                                matches!(code, CUDA_SUCCESS | CUDA_ERROR_INVALID_HANDLE),
                                "{code:?}"
                            );
                        }
                    });
                }
                // Two threads destroy each stream, and one of them does.
                for _ in 0..60 {
                    let stream: CUstream = get!(cuStreamCreate(1));
                    newest.store(stream.addr() as u64, Ordering::Release);
                    std::thread::yield_now();
                    let number = stream.addr();
                    let other = scope
                        .spawn(move || code!(cuStreamDestroy_v2(std::ptr::without_provenance_mut(number))));
                    let both = [code!(cuStreamDestroy_v2(stream)), other.join().unwrap()];
                    let ended = both.iter().filter(|code| **code == CUDA_SUCCESS).count();
                    assert_eq!(ended, 1, "{both:?}");
                }
                over.store(true, Ordering::Relaxed);
            });
            assert_eq!(STRANGE.load(Ordering::Relaxed), 0);
            assert!(USED.load(Ordering::Relaxed) > 0);
            assert_eq!(live(|live| live.len()), 1, "the first");
        },
    );
}
