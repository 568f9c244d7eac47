//! Whole programs of the driver API through stubs, bytes and dispatch, over the emulated driver.

mod common;

use std::ffi::CString;
use std::sync::atomic::Ordering;

use common::{EMULATED, VECTOR_ADD, alone, code, connect, connect_to, cu, get, start};
use divvy_abi::*;
use divvy_remote::server::{Quota, Server};

fn module() -> CUmodule {
    let text = CString::new(VECTOR_ADD).unwrap();
    get!(cuModuleLoadData(text.as_ptr().cast()))
}

fn param<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

fn upload(values: &[f32]) -> CUdeviceptr {
    let bytes = size_of_val(values);
    let pointer: CUdeviceptr = get!(cuMemAlloc_v2(bytes));
    cu!(cuMemcpyHtoD_v2(pointer, values.as_ptr().cast(), bytes));
    pointer
}

fn download(pointer: CUdeviceptr, count: usize) -> Vec<f32> {
    let mut values = vec![0.0_f32; count];
    cu!(cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), pointer, 4 * count));
    values
}

fn launch(add: CUfunction, addresses: [CUdeviceptr; 3], count: u32, stream: CUstream) -> CUresult {
    let [a, b, c] = addresses;
    let mut params = [param(&a), param(&b), param(&c), param(&count)];
    code!(cuLaunchKernel(
        add,
        count.div_ceil(64),
        1,
        1,
        64,
        1,
        1,
        0,
        stream,
        params.as_mut_ptr(),
        std::ptr::null_mut()
    ))
}

#[test]
fn a_program_loads_copies_launches_and_reads_back() {
    alone("a_program_loads_copies_launches_and_reads_back", || {
        // Smaller than the image and the copies: both travel in parts.
        let (server, counts) = connect(1000);
        start(0);
        let module = module();
        let add: CUfunction = get!(cuModuleGetFunction(module, c"add".as_ptr()));
        let count = 3000_u32;
        let a: Vec<f32> = (0..count).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..count).map(|i| 2.0 * i as f32).collect();
        let (at_a, at_b) = (upload(&a), upload(&b));
        let at_c: CUdeviceptr = get!(cuMemAlloc_v2(4 * count as usize));
        let stream: CUstream = get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0));
        assert_eq!(launch(add, [at_a, at_b, at_c], count, stream), CUDA_SUCCESS);
        cu!(cuStreamSynchronize(stream));
        let sums = download(at_c, count as usize);
        assert!(sums.iter().enumerate().all(|(i, sum)| *sum == 3.0 * i as f32));

        cu!(cuStreamDestroy_v2(stream));
        cu!(cuModuleUnload(module));
        for pointer in [at_a, at_b, at_c] {
            cu!(cuMemFree_v2(pointer));
        }
        cu!(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(server.held(), (0, 0), "every object and all memory is given back");
        let log = counts.log.lock().unwrap();
        let said = |text: &str| assert!(log.iter().any(|line| line.contains(text)), "{text}: {log:#?}");
        said("module.function/1");
        said("cuMemAlloc_v2(dptr=?, bytesize=12000)");
        said("cuStreamSynchronize(hStream=Stream#");
        said("kernel.launch/1");
    });
}

#[test]
fn the_first_kernel_takes_three_round_trips() {
    alone("the_first_kernel_takes_three_round_trips", || {
        let (_, counts) = connect(1 << 16);
        let (mut version, mut none) = (0, std::ptr::null_mut());
        assert_eq!(code!(cuCtxGetCurrent(&raw mut none)), CUDA_ERROR_NOT_INITIALIZED);
        cu!(cuDriverGetVersion(&raw mut version));
        assert!(version >= 12_000, "{version}");
        cu!(cuInit(0));
        let devices: i32 = get!(cuDeviceGetCount());
        let device: CUdevice = get!(cuDeviceGet(devices - 1));
        let major: i32 = get!(cuDeviceGetAttribute(
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            device
        ));
        assert_eq!((devices, major), (2, 9));
        assert_eq!(
            code!(cuDeviceGet(&raw mut version, devices)),
            CUDA_ERROR_INVALID_DEVICE
        );
        let trips = || counts.trips.load(Ordering::Relaxed);
        assert_eq!(trips(), 1, "greeting and first questions");
        let context: CUcontext = get!(cuDevicePrimaryCtxRetain(0));
        cu!(cuCtxSetCurrent(context));
        assert_eq!(
            code!(cuCtxSetCurrent(std::ptr::without_provenance_mut(77))),
            CUDA_ERROR_INVALID_CONTEXT
        );
        let module = module();
        let add: CUfunction = get!(cuModuleGetFunction(module, c"add".as_ptr()));
        assert_eq!(
            launch(add, [0; 3], 0, std::ptr::null_mut()),
            CUDA_ERROR_INVALID_VALUE
        );
        let memory: CUdeviceptr = 0;
        assert_eq!(launch(add, [memory; 3], 1, std::ptr::null_mut()), CUDA_SUCCESS);
        assert_eq!(trips(), 3, "{:#?}", counts.log.lock().unwrap());
        let mut other = std::ptr::null_mut();
        assert_eq!(
            code!(cuModuleGetFunction(&raw mut other, module, c"ad".as_ptr())),
            CUDA_ERROR_NOT_FOUND
        );
    });
}

#[test]
fn a_function_of_a_module_that_is_gone_is_told_of() {
    alone("a_function_of_a_module_that_is_gone_is_told_of", || {
        connect(1 << 16);
        start(0);
        let module = module();
        cu!(cuCtxSynchronize());
        cu!(cuModuleUnload(module));
        let mut function = std::ptr::null_mut();
        let at_once = code!(cuModuleGetFunction(&raw mut function, module, c"add".as_ptr()));
        let later = code!(cuCtxSynchronize());
        assert_eq!((at_once, later), (CUDA_SUCCESS, CUDA_ERROR_INVALID_HANDLE));
    });
}

#[test]
fn what_one_thread_submitted_comes_before_what_another_does_then() {
    alone(
        "what_one_thread_submitted_comes_before_what_another_does_then",
        || {
            connect(1 << 16);
            start(0);
            let context: CUcontext = get!(cuCtxGetCurrent());
            let (context, memory): (usize, CUdeviceptr) =
                (context.expose_provenance(), get!(cuMemAlloc_v2(4)));
            let (tell, told) = std::sync::mpsc::channel::<u8>();
            let (answer, answered) = std::sync::mpsc::channel::<()>();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    cu!(cuCtxSetCurrent(std::ptr::with_exposed_provenance_mut(context)));
                    for value in told {
                        let mut bytes = [0_u8; 4];
                        cu!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), memory, 4));
                        assert_eq!(bytes, [value; 4]);
                        answer.send(()).unwrap();
                    }
                });
                for value in 0..=250 {
                    cu!(cuMemsetD8Async(memory, value, 4, std::ptr::null_mut()));
                    tell.send(value).unwrap();
                    answered.recv().unwrap();
                }
                drop(tell);
            });
        },
    );
}

#[test]
fn a_thousand_launches_wait_once() {
    alone("a_thousand_launches_wait_once", || {
        let (_, counts) = connect(1 << 16);
        start(0);
        let add: CUfunction = get!(cuModuleGetFunction(module(), c"add".as_ptr()));
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(4));
        let first = launch(add, [memory; 3], 1, std::ptr::null_mut());
        assert_eq!(first, CUDA_SUCCESS);
        let before = counts.calls.load(Ordering::Relaxed);
        for _ in 0..1000 {
            assert_eq!(launch(add, [memory; 3], 1, std::ptr::null_mut()), CUDA_SUCCESS);
        }
        assert_eq!(counts.calls.load(Ordering::Relaxed) - before, 0);
        cu!(cuCtxSynchronize());
        assert_eq!(counts.calls.load(Ordering::Relaxed) - before, 1);
    });
}

#[test]
fn the_failure_of_a_submitted_call_is_told_once_by_the_next_that_waits() {
    alone(
        "the_failure_of_a_submitted_call_is_told_once_by_the_next_that_waits",
        || {
            connect(1 << 16);
            start(0);
            let add: CUfunction = get!(cuModuleGetFunction(module(), c"add".as_ptr()));
            let stream: CUstream = get!(cuStreamCreate(0));
            cu!(cuStreamDestroy_v2(stream));
            assert_eq!(launch(add, [0; 3], 1, stream), CUDA_SUCCESS, "it was submitted");
            assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_INVALID_HANDLE);
            cu!(cuCtxSynchronize());
        },
    );
}

#[test]
fn handles_and_addresses_of_others_are_refused() {
    alone("handles_and_addresses_of_others_are_refused", || {
        connect(1 << 16);
        let context = start(0);
        let event: CUevent = get!(cuEventCreate(0));
        cu!(cuEventRecord(event, std::ptr::null_mut()));
        cu!(cuEventSynchronize(event));
        assert_eq!(
            code!(cuEventQuery(context.cast())),
            CUDA_ERROR_INVALID_HANDLE,
            "another kind"
        );
        let here = std::ptr::from_ref(&context).cast_mut();
        assert_eq!(
            code!(cuEventQuery(here.cast())),
            CUDA_ERROR_INVALID_HANDLE,
            "an address"
        );
        assert_eq!(code!(cuCtxSetCurrent(event.cast())), CUDA_ERROR_INVALID_CONTEXT);
        cu!(cuEventDestroy_v2(event));
        assert_eq!(
            code!(cuEventQuery(event)),
            CUDA_ERROR_INVALID_HANDLE,
            "it is gone"
        );

        // The emulated driver, as NVIDIA's, takes addresses of its process: those are the server's.
        let secret = [7_u8; 16];
        let mut stolen = [0_u8; 16];
        let address = secret.as_ptr().addr() as u64;
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(16));
        assert_eq!(
            code!(cuMemcpyDtoH_v2(stolen.as_mut_ptr().cast(), address, 16)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuMemcpyDtoD_v2(memory, address, 16)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(code!(cuMemsetD8_v2(address, 0, 16)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(
            code!(cuMemsetD8_v2(memory, 0, 17)),
            CUDA_ERROR_INVALID_VALUE,
            "one byte beyond"
        );
        assert_eq!(code!(cuMemFree_v2(memory + 8)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!((secret, stolen), ([7; 16], [0; 16]));
        cu!(cuMemFree_v2(memory));
        assert_eq!(
            code!(cuMemsetD8_v2(memory, 0, 1)),
            CUDA_ERROR_INVALID_VALUE,
            "freed"
        );
    });
}

#[test]
fn each_thread_has_its_own_current_context() {
    alone("each_thread_has_its_own_current_context", || {
        connect(1 << 16);
        let first = start(0);
        let address = first.addr();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let none: CUcontext = get!(cuCtxGetCurrent());
                assert!(none.is_null());
                let second = start(1);
                assert_ne!(second.addr(), address);
                assert_eq!(get!(cuCtxGetCurrent()), second);
                let device: CUdevice = get!(cuCtxGetDevice());
                assert_eq!(device, 1);
            });
        });
        assert_eq!(get!(cuCtxGetCurrent()), first);
        let device: CUdevice = get!(cuCtxGetDevice());
        assert_eq!(device, 0);
    });
}

#[test]
fn properties_texts_and_lists_come_as_they_are() {
    alone("properties_texts_and_lists_come_as_they_are", || {
        connect(1 << 16);
        start(0);
        let count: i32 = get!(cuDeviceGetCount());
        assert_eq!(count, 2);
        let mut name = [1 as c_char; 100];
        cu!(cuDeviceGetName(name.as_mut_ptr(), 100, 0));
        // SAFETY: the driver ended the text.
        let name = unsafe { std::ffi::CStr::from_ptr(name.as_ptr()) };
        assert!(name.to_str().unwrap().contains("H100"), "{name:?}");
        let threads: i32 = get!(cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0));
        assert_eq!(threads, 1024);
        let uuid: CUuuid = get!(cuDeviceGetUuid_v2(0));
        let other: CUuuid = get!(cuDeviceGetUuid_v2(1));
        assert_ne!(uuid.bytes, other.bytes);
        let mut functions = [std::ptr::null_mut(); 1];
        let module = module();
        cu!(cuModuleEnumerateFunctions(functions.as_mut_ptr(), 1, module));
        assert_eq!(functions[0], get!(cuModuleGetFunction(module, c"add".as_ptr())));
        assert_eq!(
            code!(cuModuleGetFunction(
                functions.as_mut_ptr(),
                module,
                c"none".as_ptr()
            )),
            CUDA_ERROR_NOT_FOUND
        );
        let missing = code!(cuDeviceGetCount(std::ptr::null_mut()));
        assert_eq!(
            missing, CUDA_ERROR_INVALID_VALUE,
            "the driver below sees the null pointer"
        );
        let status = code!(cuIpcCloseMemHandle(0));
        assert_eq!(status, CUDA_ERROR_NOT_SUPPORTED);
    });
}

#[test]
fn graphs_and_their_nodes_go_together() {
    alone("graphs_and_their_nodes_go_together", || {
        let (server, _) = connect(1 << 16);
        start(0);
        let held = server.held().0;
        let graph: CUgraph = get!(cuGraphCreate(0));
        let first: CUgraphNode = get!(cuGraphAddEmptyNode(graph, std::ptr::null(), 0));
        let second: CUgraphNode = get!(cuGraphAddEmptyNode(graph, &raw const first, 1));
        let mut count = 0;
        cu!(cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut count));
        assert_eq!(count, 2);
        let mut nodes = [std::ptr::null_mut(); 4];
        count = 4;
        cu!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count));
        assert_eq!(count, 2);
        assert!(nodes[..2].contains(&first) && nodes[..2].contains(&second) && nodes[2].is_null());
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        cu!(cuGraphLaunch(exec, std::ptr::null_mut()));
        cu!(cuCtxSynchronize());
        cu!(cuGraphExecDestroy(exec));
        cu!(cuGraphDestroy(graph));
        let mut sort = CU_GRAPH_NODE_TYPE_EMPTY;
        assert_eq!(
            code!(cuGraphNodeGetType(first, &raw mut sort)),
            CUDA_ERROR_INVALID_HANDLE
        );
        assert_eq!(server.held().0, held);
    });
}

#[test]
fn virtual_memory_is_mapped_and_used() {
    alone("virtual_memory_is_mapped_and_used", || {
        let (server, _) = connect(1 << 16);
        start(0);
        let property = CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            location: CUmemLocation {
                type_: CU_MEM_LOCATION_TYPE_DEVICE,
                ..CUmemLocation::default()
            },
            // A pointer of the program means nothing to the server, and is not sent.
            win32HandleMetaData: std::ptr::dangling_mut(),
            ..CUmemAllocationProp::default()
        };
        let granularity: usize = get!(cuMemGetAllocationGranularity(
            &raw const property,
            CU_MEM_ALLOC_GRANULARITY_MINIMUM
        ));
        let memory: CUmemGenericAllocationHandle = get!(cuMemCreate(granularity, &raw const property, 0));
        let address: CUdeviceptr = get!(cuMemAddressReserve(granularity, 0, 0, 0));
        cu!(cuMemMap(address, granularity, 0, memory, 0));
        let access = CUmemAccessDesc {
            location: property.location,
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        cu!(cuMemSetAccess(address, granularity, &raw const access, 1));
        cu!(cuMemsetD32_v2(address, 0x3f80_0000, 16));
        assert_eq!(download(address, 16), [1.0; 16]);
        cu!(cuMemUnmap(address, granularity));
        cu!(cuMemRelease(memory));
        assert_eq!(code!(cuMemRelease(memory)), CUDA_ERROR_INVALID_HANDLE);
        cu!(cuMemAddressFree(address, granularity));
        assert_eq!(server.held().1, 0);
    });
}

#[test]
fn a_connection_that_is_not_there_is_an_unavailable_device() {
    alone("a_connection_that_is_not_there_is_an_unavailable_device", || {
        let mut count = 7;
        assert_eq!(code!(cuInit(0)), CUDA_ERROR_DEVICE_UNAVAILABLE);
        assert_eq!(
            code!(cuDeviceGetCount(&raw mut count)),
            CUDA_ERROR_DEVICE_UNAVAILABLE
        );
        assert_eq!(count, 7);
    });
}

/// The worker has two devices, and the program shows itself the second one alone, after its first question.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "programs set the variable between their first question and cuInit"
)]
fn a_program_counts_the_devices_that_it_shows_itself_from_0() {
    alone("a_program_counts_the_devices_that_it_shows_itself_from_0", || {
        connect(1 << 16);
        let version: i32 = get!(cuDriverGetVersion());
        assert!(version > 0);
        // SAFETY: no other thread of this process looks at the environment now.
        unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", "1") };
        cu!(cuInit(0));
        let count: i32 = get!(cuDeviceGetCount());
        let device: CUdevice = get!(cuDeviceGet(0));
        assert_eq!((count, device), (1, 0));
        let bus: i32 = get!(cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0));
        let mut name = [0; 32];
        cu!(cuDeviceGetPCIBusId(name.as_mut_ptr(), 32, 0));
        // SAFETY: the driver wrote a C string.
        let name = unsafe { std::ffi::CStr::from_ptr(name.as_ptr()) };
        let shown = name.to_string_lossy();
        assert!(
            shown.contains(&format!(":{bus:02x}:")),
            "{shown} and bus {bus}: one device"
        );
        let found: CUdevice = get!(cuDeviceGetByPCIBusId(name.as_ptr()));
        assert_eq!(found, 0, "by the program's number");
        // The other device is there, and not the program's.
        let mut hidden = [0_i8; 32];
        for (to, from) in hidden.iter_mut().zip(name.to_bytes_with_nul()) {
            *to = from.cast_signed();
        }
        let at = name.to_bytes().iter().position(|byte| *byte == b':').unwrap();
        // Bus numbers of emulated devices: each has one of its own.
        let mut others = 0;
        for number in 0..=255_u8 {
            for (place, digit) in format!("{number:02x}").bytes().enumerate() {
                hidden[at + 1 + place] = digit.cast_signed();
            }
            let mut found: CUdevice = 7;
            let code = code!(cuDeviceGetByPCIBusId(&raw mut found, hidden.as_ptr()));
            if i32::from(number) == bus {
                assert_eq!((code, found), (CUDA_SUCCESS, 0));
                continue;
            }
            assert_ne!(code, CUDA_SUCCESS, "bus {number}: {found}");
            others += u32::from(code == CUDA_ERROR_INVALID_DEVICE);
        }
        assert!(others > 0);
        for absent in [1, -2] {
            let mut context: CUcontext = std::ptr::null_mut();
            let code = code!(cuDevicePrimaryCtxRetain(&raw mut context, absent));
            assert_eq!(code, CUDA_ERROR_INVALID_DEVICE, "{absent}");
        }
        let context: CUcontext = get!(cuDevicePrimaryCtxRetain(0));
        cu!(cuCtxSetCurrent(context));
        let current: CUdevice = get!(cuCtxGetDevice());
        assert_eq!(current, 0);
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
        let mut ordinal = -1_i32;
        cu!(cuPointerGetAttribute(
            (&raw mut ordinal).cast(),
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            memory
        ));
        assert_eq!(ordinal, 0);
        let mut properties = CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            ..CUmemAllocationProp::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        let allocation: CUmemGenericAllocationHandle = get!(cuMemCreate(2 << 20, &raw const properties, 0));
        let mut back = CUmemAllocationProp::default();
        cu!(cuMemGetAllocationPropertiesFromHandle(&raw mut back, allocation));
        // SAFETY: any bits are a number.
        assert_eq!(unsafe { back.location.anonymous1.id }, 0);
        // SAFETY: as above.
        properties.location.anonymous1.id = 1;
        let mut none: CUmemGenericAllocationHandle = 0;
        assert_ne!(
            code!(cuMemCreate(&raw mut none, 2 << 20, &raw const properties, 0)),
            CUDA_SUCCESS
        );
    });
}

/// Tells of more nodes than the list has room for.
unsafe extern "C-unwind" fn many_nodes(
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: *mut usize,
) -> CUresult {
    // SAFETY: the caller's arguments are passed on.
    unsafe {
        let code = (EMULATED.cuGraphGetNodes)(graph, nodes, count);
        *count = 1_000_000;
        code
    }
}

/// Fills the whole buffer.
unsafe extern "C-unwind" fn endless_name(name: *mut c_char, length: i32, _: CUdevice) -> CUresult {
    // SAFETY: the caller's buffer is as long as it says.
    unsafe { name.write_bytes(b'x', length as usize) };
    CUDA_SUCCESS
}

static LYING: Table = Table {
    cuGraphGetNodes: many_nodes,
    cuDeviceGetName: endless_name,
    ..divvy_emulator::TABLE
};

#[test]
fn a_program_reads_within_its_own_lists_whatever_the_other_side_tells() {
    alone(
        "a_program_reads_within_its_own_lists_whatever_the_other_side_tells",
        || {
            connect_to(Server::new(&LYING, Quota::default()), Quota::default().message);
            start(0);
            let graph: CUgraph = get!(cuGraphCreate(0));
            let _node: CUgraphNode = get!(cuGraphAddEmptyNode(graph, std::ptr::null(), 0));
            let mut count = 0;
            cu!(cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut count));
            assert_eq!(count, 1_000_000, "there is no list yet");
            let mut nodes = [std::ptr::null_mut(); 4];
            count = nodes.len();
            cu!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count));
            assert_eq!(count, nodes.len());
            let mut name = [0 as c_char; 8];
            cu!(cuDeviceGetName(name.as_mut_ptr(), 8, 0));
            assert_eq!(name.map(|byte| byte as u8), *b"xxxxxxx\0");
        },
    );
}
