//! Calls that roles cannot say: functions of the program, graphs' nodes, copies of boxes, attributes, and what a launch may
//! ask for.

mod common;

use std::ffi::{CStr, CString};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{VECTOR_ADD, alone, code, connect_shared, cu, get, start};
use divvy_abi::*;
use divvy_remote::server::Quota;

fn shared() -> (
    std::sync::Arc<divvy_remote::server::Server>,
    std::sync::Arc<common::Counts>,
) {
    connect_shared(Quota {
        message: 1 << 16,
        area: 1 << 26,
        ..Quota::default()
    })
}

fn add() -> CUfunction {
    let text = CString::new(VECTOR_ADD).unwrap();
    let module: CUmodule = get!(cuModuleLoadData(text.as_ptr().cast()));
    get!(cuModuleGetFunction(module, c"add".as_ptr()))
}

fn param<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

fn launch(add: CUfunction, sizes: [u32; 7], stream: CUstream) -> CUresult {
    let [x, y, z, width, height, depth, shared] = sizes;
    let (address, count) = (0_u64, 0_u32);
    let mut params = [param(&address), param(&address), param(&address), param(&count)];
    let (params, extra) = (params.as_mut_ptr(), std::ptr::null_mut());
    code!(cuLaunchKernel(
        add, x, y, z, width, height, depth, shared, stream, params, extra
    ))
}

/// What a test's functions were called with.
static CALLED: Mutex<Vec<(u64, u32)>> = Mutex::new(Vec::new());

unsafe extern "C" fn note(data: *mut c_void) {
    let mut free = 0_usize;
    let mut total = 0_usize;
    let inside = code!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
    CALLED.lock().unwrap().push((data.addr() as u64, inside.0));
}

unsafe extern "C" fn note_stream(stream: CUstream, status: CUresult, data: *mut c_void) {
    CALLED
        .lock()
        .unwrap()
        .push((stream.addr() as u64 ^ data.addr() as u64, status.0));
}

fn number(value: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(value)
}

#[test]
fn a_launch_that_the_device_refuses_is_told_at_once() {
    alone("a_launch_that_the_device_refuses_is_told_at_once", || {
        let (_, counts) = shared();
        start(0);
        let add = add();
        let none = std::ptr::null_mut();
        assert_eq!(launch(add, [1, 1, 1, 1, 1, 1, 0], none), CUDA_SUCCESS);
        let before = counts.calls.load(Ordering::Relaxed);
        for sizes in [
            [0, 1, 1, 1, 1, 1, 0],
            [1, 65_536, 1, 1, 1, 1, 0],
            [1, 1, 1, 1025, 1, 1, 0],
            [1, 1, 1, 64, 64, 1, 0],
            [1, 1, 1, 1, 1, 65, 0],
            [1, 1, 1, 1, 1, 1, 49_153],
        ] {
            assert_eq!(launch(add, sizes, none), CUDA_ERROR_INVALID_VALUE, "{sizes:?}");
        }
        let event: CUevent = get!(cuEventCreate(0));
        assert_eq!(
            launch(add, [1, 1, 1, 1, 1, 1, 0], event.cast()),
            CUDA_ERROR_INVALID_HANDLE,
            "no stream"
        );
        assert_eq!(
            counts.calls.load(Ordering::Relaxed),
            before,
            "without a round trip"
        );
        cu!(cuFuncSetAttribute(
            add,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            60_000
        ));
        assert_eq!(launch(add, [1, 1, 1, 1, 1, 1, 60_000], none), CUDA_SUCCESS);
        cu!(cuCtxSynchronize());
    });
}

#[test]
fn a_devices_attributes_come_in_one_answer() {
    alone("a_devices_attributes_come_in_one_answer", || {
        let (_, counts) = shared();
        let mut value = 0;
        assert_eq!(
            code!(cuDeviceGetAttribute(
                &raw mut value,
                CU_DEVICE_ATTRIBUTE_WARP_SIZE,
                0
            )),
            CUDA_ERROR_NOT_INITIALIZED
        );
        start(0);
        let before = counts.calls.load(Ordering::Relaxed);
        for _ in 0..10 {
            let warp: i32 = get!(cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
            let major: i32 = get!(cuDeviceGetAttribute(
                CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                0
            ));
            assert_eq!((warp, major), (32, 9));
        }
        assert_eq!(
            counts.calls.load(Ordering::Relaxed),
            before,
            "they came at the start"
        );
        for (attribute, device) in [(u32::MAX, 0), (0, 0)] {
            let code = code!(cuDeviceGetAttribute(
                &raw mut value,
                CUdevice_attribute(attribute),
                device
            ));
            assert_eq!(code, CUDA_ERROR_INVALID_VALUE, "{attribute}");
        }
        assert_eq!(
            code!(cuDeviceGetAttribute(
                &raw mut value,
                CU_DEVICE_ATTRIBUTE_WARP_SIZE,
                7
            )),
            CUDA_ERROR_INVALID_DEVICE
        );
    });
}

#[test]
fn functions_of_the_program_run_in_the_streams_order() {
    alone("functions_of_the_program_run_in_the_streams_order", || {
        shared();
        start(0);
        let stream: CUstream = get!(cuStreamCreate(0));
        for value in 1..=50 {
            cu!(cuLaunchHostFunc(stream, Some(note), number(value)));
        }
        cu!(cuStreamAddCallback(stream, Some(note_stream), number(7), 0));
        cu!(cuStreamSynchronize(stream));
        let mut called = std::mem::take(&mut *CALLED.lock().unwrap());
        assert_eq!(called.pop(), Some((stream.addr() as u64 ^ 7, 0)));
        // CUDA does not permit calls from such a function.
        let refused = CUDA_ERROR_NOT_PERMITTED.0;
        let expected: Vec<_> = (1..=50).map(|value| (value, refused)).collect();
        assert_eq!(called, expected);
        assert_eq!(
            code!(cuLaunchHostFunc(stream, None, number(1))),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuStreamAddCallback(stream, Some(note_stream), number(1), 1)),
            CUDA_ERROR_INVALID_VALUE
        );
    });
}

#[test]
fn graphs_of_every_kind_of_node_compute() {
    alone("graphs_of_every_kind_of_node_compute", || {
        static DESTROYED: AtomicU32 = AtomicU32::new(0);
        unsafe extern "C" fn destroy(data: *mut c_void) {
            DESTROYED.fetch_add(data.addr() as u32, Ordering::SeqCst);
        }
        let (server, _) = shared();
        start(0);
        let (add, count) = (add(), 256_u32);
        let bytes = 4 * count as usize;
        let held = server.held().0;
        let context: CUcontext = get!(cuCtxGetCurrent());
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(bytes));
        let host: *mut c_void = get!(cuMemHostAlloc(bytes, 0));
        let graph: CUgraph = get!(cuGraphCreate(0));

        let object: CUuserObject = get!(cuUserObjectCreate(number(3), Some(destroy), 1, 1));
        cu!(cuGraphRetainUserObject(graph, object, 1, 1));
        let fill = CUDA_MEMSET_NODE_PARAMS {
            dst: memory,
            value: 0x3f80_0000,
            elementSize: 4,
            width: count as usize,
            height: 1,
            ..CUDA_MEMSET_NODE_PARAMS::default()
        };
        let first: CUgraphNode = get!(cuGraphAddMemsetNode(
            graph,
            std::ptr::null(),
            0,
            &raw const fill,
            context
        ));
        let mut params = [param(&memory), param(&memory), param(&memory), param(&count)];
        let kernel = CUDA_KERNEL_NODE_PARAMS {
            func: add,
            gridDimX: 4,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 64,
            blockDimY: 1,
            blockDimZ: 1,
            kernelParams: params.as_mut_ptr(),
            ..CUDA_KERNEL_NODE_PARAMS::default()
        };
        let second: CUgraphNode = get!(cuGraphAddKernelNode_v2(
            graph,
            &raw const first,
            1,
            &raw const kernel
        ));
        let copy = CUDA_MEMCPY3D {
            srcMemoryType: CU_MEMORYTYPE_DEVICE,
            srcDevice: memory,
            dstMemoryType: CU_MEMORYTYPE_HOST,
            dstHost: host,
            WidthInBytes: bytes,
            Height: 1,
            Depth: 1,
            ..CUDA_MEMCPY3D::default()
        };
        let third: CUgraphNode = get!(cuGraphAddMemcpyNode(
            graph,
            &raw const second,
            1,
            &raw const copy,
            context
        ));
        let mut own = [0_u8; 16];
        let elsewhere = CUDA_MEMCPY3D {
            dstHost: own.as_mut_ptr().cast(),
            WidthInBytes: 16,
            ..copy
        };
        let mut node = std::ptr::null_mut();
        assert_eq!(
            code!(cuGraphAddMemcpyNode(
                &raw mut node,
                graph,
                std::ptr::null(),
                0,
                &raw const elsewhere,
                context
            )),
            CUDA_ERROR_NOT_SUPPORTED,
            "the graph would read it at each launch"
        );
        let function = CUDA_HOST_NODE_PARAMS {
            fn_: Some(note),
            userData: number(9),
        };
        let fourth: CUgraphNode = get!(cuGraphAddHostNode(
            graph,
            &raw const third,
            1,
            &raw const function
        ));

        let known: CUDA_KERNEL_NODE_PARAMS = get_node(|to| code!(cuGraphKernelNodeGetParams_v2(second, to)));
        assert_eq!((known.func, known.gridDimX, known.blockDimX), (add, 4, 64));
        // SAFETY: the fourth parameter is a count of four bytes.
        let fourth_value = unsafe { known.kernelParams.add(3).read().cast::<u32>().read() };
        assert_eq!(fourth_value, count);
        let known: CUDA_HOST_NODE_PARAMS = get_node(|to| code!(cuGraphHostNodeGetParams(fourth, to)));
        assert_eq!(known.userData, number(9));
        let known: CUDA_MEMSET_NODE_PARAMS = get_node(|to| code!(cuGraphMemsetNodeGetParams(first, to)));
        assert_eq!(
            (known.dst, known.value, known.width),
            (memory, 0x3f80_0000, count as usize)
        );

        let mut how = CUDA_GRAPH_INSTANTIATE_PARAMS::default();
        let exec: CUgraphExec = get!(cuGraphInstantiateWithParams(graph, &raw mut how));
        assert_eq!(how.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
        let floats = || {
            cu!(cuGraphLaunch(exec, std::ptr::null_mut()));
            cu!(cuCtxSynchronize());
            // SAFETY: pinned memory of so many bytes, which the device is done with.
            unsafe { std::slice::from_raw_parts(host.cast::<f32>(), count as usize) }.to_vec()
        };
        assert!(floats().iter().all(|value| *value == 2.0));
        let three = CUDA_MEMSET_NODE_PARAMS {
            value: 0x4040_0000,
            ..fill
        };
        cu!(cuGraphExecMemsetNodeSetParams(
            exec,
            first,
            &raw const three,
            context
        ));
        assert!(floats().iter().all(|value| *value == 6.0));
        assert_eq!(CALLED.lock().unwrap().len(), 2);

        cu!(cuGraphExecDestroy(exec));
        assert_eq!(DESTROYED.load(Ordering::SeqCst), 0);
        cu!(cuGraphDestroy(graph));
        // Its destructor may run a little later.
        while DESTROYED.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(DESTROYED.load(Ordering::SeqCst), 3);
        cu!(cuMemFreeHost(host));
        cu!(cuMemFree_v2(memory));
        assert!(server.held().0 <= held + 1, "the user object's name alone stays");
    });
}

fn get_node<T: Default>(ask: impl FnOnce(*mut T) -> CUresult) -> T {
    let mut value = T::default();
    assert_eq!(ask(&raw mut value), CUDA_SUCCESS);
    value
}

#[test]
fn a_capture_tells_what_the_next_work_follows() {
    alone("a_capture_tells_what_the_next_work_follows", || {
        shared();
        start(0);
        let add = add();
        let stream: CUstream = get!(cuStreamCreate(0));
        assert_eq!(launch(add, [1, 1, 1, 1, 1, 1, 0], stream), CUDA_SUCCESS);
        cu!(cuStreamSynchronize(stream));
        cu!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        assert_eq!(launch(add, [1, 1, 1, 1, 1, 1, 0], stream), CUDA_SUCCESS);
        cu!(cuLaunchHostFunc(stream, Some(note), number(4)));
        let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut count) = (0, 0);
        let (mut graph, mut nodes) = (std::ptr::null_mut(), std::ptr::null());
        cu!(cuStreamGetCaptureInfo_v2(
            stream,
            &raw mut status,
            &raw mut id,
            &raw mut graph,
            &raw mut nodes,
            &raw mut count
        ));
        assert_eq!((status, count), (CU_STREAM_CAPTURE_STATUS_ACTIVE, 1));
        // SAFETY: the list has one node.
        let last = unsafe { nodes.read() };
        let mut sort = CU_GRAPH_NODE_TYPE_EMPTY;
        cu!(cuGraphNodeGetType(last, &raw mut sort));
        assert_eq!(sort, CU_GRAPH_NODE_TYPE_HOST);
        let captured: CUgraph = get_graph(stream);
        assert_eq!(captured, graph);
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        for _ in 0..3 {
            cu!(cuGraphLaunch(exec, stream));
        }
        cu!(cuStreamSynchronize(stream));
        assert_eq!(CALLED.lock().unwrap().len(), 3);
    });
}

fn get_graph(stream: CUstream) -> CUgraph {
    let mut graph = std::ptr::null_mut();
    cu!(cuStreamEndCapture(stream, &raw mut graph));
    graph
}

#[test]
fn rows_and_boxes_are_copied_from_anywhere_to_anywhere() {
    alone("rows_and_boxes_are_copied_from_anywhere_to_anywhere", || {
        shared();
        start(0);
        let (width, height, depth) = (300_usize, 70, 5);
        let (pitch, rows) = (512, 80);
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(pitch * rows * depth));
        cu!(cuMemsetD8_v2(memory, 0, pitch * rows * depth));
        let from: Vec<u8> = (0..width * height * depth)
            .map(|at| (at * 13 + at / 300) as u8)
            .collect();
        let mut to = vec![0; from.len()];
        let there = CUDA_MEMCPY3D {
            srcMemoryType: CU_MEMORYTYPE_HOST,
            srcHost: from.as_ptr().cast(),
            srcPitch: width,
            srcHeight: height,
            dstMemoryType: CU_MEMORYTYPE_DEVICE,
            dstDevice: memory,
            dstXInBytes: 12,
            dstY: 3,
            dstPitch: pitch,
            dstHeight: rows,
            WidthInBytes: width,
            Height: height,
            Depth: depth,
            ..CUDA_MEMCPY3D::default()
        };
        cu!(cuMemcpy3D_v2(&raw const there));
        let back = |host: *mut c_void| CUDA_MEMCPY3D {
            srcMemoryType: CU_MEMORYTYPE_DEVICE,
            srcDevice: memory,
            srcXInBytes: 12,
            srcY: 3,
            srcPitch: pitch,
            srcHeight: rows,
            dstMemoryType: CU_MEMORYTYPE_HOST,
            dstHost: host,
            dstPitch: width,
            dstHeight: height,
            WidthInBytes: width,
            Height: height,
            Depth: depth,
            ..CUDA_MEMCPY3D::default()
        };
        cu!(cuMemcpy3D_v2(&back(to.as_mut_ptr().cast())));
        assert!(to == from);
        let stream: CUstream = get!(cuStreamCreate(0));
        let pinned: *mut c_void = get!(cuMemHostAlloc(from.len(), 0));
        cu!(cuMemcpy3DAsync_v2(&back(pinned), stream));
        cu!(cuStreamSynchronize(stream));
        // SAFETY: pinned memory of so many bytes, which the device is done with.
        let came = unsafe { std::slice::from_raw_parts(pinned.cast::<u8>(), from.len()) };
        assert!(came == from);
        let beyond = CUDA_MEMCPY3D {
            Depth: depth + 1,
            ..back(pinned)
        };
        assert_eq!(code!(cuMemcpy3D_v2(&raw const beyond)), CUDA_ERROR_INVALID_VALUE);

        let square = CUDA_ARRAY_DESCRIPTOR {
            Width: 64,
            Height: 32,
            Format: CU_AD_FORMAT_UNSIGNED_INT8,
            NumChannels: 1,
        };
        let array: CUarray = get!(cuArrayCreate_v2(&raw const square));
        let into = CUDA_MEMCPY2D {
            srcMemoryType: CU_MEMORYTYPE_HOST,
            srcHost: from.as_ptr().cast(),
            srcPitch: 64,
            dstMemoryType: CU_MEMORYTYPE_ARRAY,
            dstArray: array,
            WidthInBytes: 64,
            Height: 32,
            ..CUDA_MEMCPY2D::default()
        };
        cu!(cuMemcpy2D_v2(&raw const into));
        to.fill(0);
        let out = CUDA_MEMCPY2D {
            srcMemoryType: CU_MEMORYTYPE_ARRAY,
            srcArray: array,
            dstMemoryType: CU_MEMORYTYPE_HOST,
            dstHost: to.as_mut_ptr().cast(),
            dstPitch: 64,
            WidthInBytes: 64,
            Height: 32,
            ..CUDA_MEMCPY2D::default()
        };
        cu!(cuMemcpy2DUnaligned_v2(&raw const out));
        assert!(to[..64 * 32] == from[..64 * 32]);
    });
}

#[test]
fn attributes_and_names_are_those_of_the_device() {
    alone("attributes_and_names_are_those_of_the_device", || {
        shared();
        let context = start(0);
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(1000));
        let host: *mut c_void = get!(cuMemHostAlloc(1000, 0));
        let host_address = host.addr() as u64;
        fn of<T: Default>(address: u64, attribute: CUpointer_attribute) -> T {
            let mut value = T::default();
            cu!(cuPointerGetAttribute((&raw mut value).cast(), attribute, address));
            value
        }
        assert_eq!(
            of::<u32>(memory + 5, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
            CU_MEMORYTYPE_DEVICE.0
        );
        assert_eq!(
            of::<u64>(memory + 5, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR),
            memory
        );
        assert_eq!(
            of::<u64>(memory, CU_POINTER_ATTRIBUTE_CONTEXT),
            context.addr() as u64
        );
        assert_eq!(
            of::<u32>(host_address + 5, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
            CU_MEMORYTYPE_HOST.0
        );
        assert_eq!(
            of::<u64>(host_address + 5, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR),
            host_address
        );
        assert_eq!(
            of::<u64>(host_address + 5, CU_POINTER_ATTRIBUTE_HOST_POINTER),
            host_address + 5
        );
        let mut word = 0_u64;
        let to = (&raw mut word).cast();
        let own = (&raw const context).addr() as u64;
        assert_eq!(
            code!(cuPointerGetAttribute(to, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, own)),
            CUDA_ERROR_INVALID_VALUE
        );
        let (mut kind, mut device) = (7_u32, 7_i32);
        let mut asked = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ];
        let mut places = [(&raw mut kind).cast(), (&raw mut device).cast()];
        cu!(cuPointerGetAttributes(
            2,
            asked.as_mut_ptr(),
            places.as_mut_ptr(),
            own
        ));
        assert_eq!((kind, device), (0, -2));

        let pool: CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
        let mut threshold = 1_u64 << 20;
        let attribute = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        cu!(cuMemPoolSetAttribute(
            pool,
            attribute,
            (&raw mut threshold).cast()
        ));
        threshold = 0;
        cu!(cuMemPoolGetAttribute(
            pool,
            attribute,
            (&raw mut threshold).cast()
        ));
        assert_eq!(threshold, 1 << 20);
        let name: *const c_char = get!(cuFuncGetName(add()));
        // SAFETY: the driver's string.
        let name = unsafe { CStr::from_ptr(name) };
        assert_eq!(name, c"add");
    });
}

/// Shared memory for a block of so many threads: with more than 128, none fits.
unsafe extern "C" fn shared_for(threads: i32) -> usize {
    CALLED.lock().unwrap().push((threads as u64, 0));
    if threads > 128 { 1 << 30 } else { 1 << 10 }
}

#[test]
fn the_best_size_of_blocks_may_follow_a_function_of_the_program() {
    alone(
        "the_best_size_of_blocks_may_follow_a_function_of_the_program",
        || {
            let _server = shared();
            start(0);
            let add = add();
            let best = |shared_for: CUoccupancyB2DSize, shared: usize, limit: i32| {
                let (mut grid, mut block) = (0, 0);
                cu!(cuOccupancyMaxPotentialBlockSize(
                    &raw mut grid,
                    &raw mut block,
                    add,
                    shared_for,
                    shared,
                    limit
                ));
                (grid, block)
            };
            let fitting = |threads: i32, shared: usize| -> i32 {
                get!(cuOccupancyMaxActiveBlocksPerMultiprocessor(add, threads, shared))
            };
            // The emulated H100 has 132 multiprocessors with 2048 threads each.
            assert_eq!(best(None, 0, 0), (2 * 132, 1024));
            assert_eq!(
                best(None, 0, 100),
                (132 * fitting(64, 0), 64),
                "more fit than of 96"
            );
            assert_eq!(best(None, 0, 20), (132 * fitting(20, 0), 20), "less than one");
            assert_eq!(best(Some(shared_for), 0, 0), (132 * fitting(128, 1 << 10), 128));
            let asked: Vec<u64> = CALLED
                .lock()
                .unwrap()
                .iter()
                .map(|(threads, _)| *threads)
                .collect();
            let expected: Vec<u64> = (1..=32).rev().map(|warps| warps * 32).collect();
            assert_eq!(asked, expected, "each size once, the largest first");
            assert_eq!(best(None, 1 << 30, 0), (0, 0), "none fits");
            let (mut grid, mut block) = (0, 0);
            let flags = |flags: u32, grid: *mut i32, block: *mut i32, function: CUfunction| {
                code!(cuOccupancyMaxPotentialBlockSizeWithFlags(
                    grid, block, function, None, 0, 0, flags
                ))
            };
            let (at_grid, at_block) = (&raw mut grid, &raw mut block);
            assert_eq!(flags(1, at_grid, at_block, add), CUDA_SUCCESS);
            assert_eq!(flags(2, at_grid, at_block, add), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(
                flags(0, std::ptr::null_mut(), at_block, add),
                CUDA_ERROR_INVALID_VALUE
            );
            assert_eq!(
                flags(0, at_grid, at_block, number(1).cast()),
                CUDA_ERROR_INVALID_HANDLE
            );
        },
    );
}
