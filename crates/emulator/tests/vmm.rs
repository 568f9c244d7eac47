//! Virtual memory management: addresses, physical memory and access, each with its rules.

mod common;

use common::{
    POKE, VECTOR_ADD, alone, code, cu, download, function, get, launch, memory_info, module, param, start,
};
use divvy_abi::*;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;
const PAGE: usize = 2 * MIB;

fn on(kind: CUmemLocationType, id: i32) -> CUmemLocation {
    CUmemLocation {
        type_: kind,
        anonymous1: CUmemLocation_v1_anonymous1 { id },
    }
}

fn properties(kind: CUmemLocationType) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        location: on(kind, 0),
        ..CUmemAllocationProp::default()
    }
}

fn on_device() -> CUmemAllocationProp {
    properties(CU_MEM_LOCATION_TYPE_DEVICE)
}

fn read_write(device: i32) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: on(CU_MEM_LOCATION_TYPE_DEVICE, device),
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

fn create(bytes: usize) -> CUmemGenericAllocationHandle {
    get!(cuMemCreate(bytes, &on_device(), 0))
}

fn reserve(bytes: usize) -> CUdeviceptr {
    get!(cuMemAddressReserve(bytes, 0, 0, 0))
}

fn access(pointer: CUdeviceptr, device: i32) -> u64 {
    get!(cuMemGetAccess(&on(CU_MEM_LOCATION_TYPE_DEVICE, device), pointer))
}

#[test]
fn the_same_memory_at_two_addresses_is_the_same_bytes() {
    alone("the_same_memory_at_two_addresses_is_the_same_bytes", &[], || {
        start(0);
        let (free, _) = memory_info();
        let granularity: usize = get!(cuMemGetAllocationGranularity(
            &on_device(),
            CU_MEM_ALLOC_GRANULARITY_MINIMUM
        ));
        assert_eq!(granularity, PAGE);
        let handle = create(2 * PAGE);
        assert_eq!(memory_info().0, free - 2 * PAGE, "physical memory costs at once");
        let range = reserve(16 * PAGE);
        assert_eq!(memory_info().0, free - 2 * PAGE, "addresses cost nothing");
        let (first, second) = (range, range + 8 * PAGE as u64);
        for address in [first, second] {
            cu!(cuMemMap(address, 2 * PAGE, 0, handle, 0));
            cu!(cuMemSetAccess(address, 2 * PAGE, &read_write(0), 1));
        }
        cu!(cuMemsetD32_v2(first, 7, 2 * PAGE / 4));
        assert_eq!(download::<u32>(second + 2 * PAGE as u64 - 4, 1), [7]);
        // A kernel sees it at both addresses as well.
        let poke = function(module(POKE), c"poke");
        assert_eq!(
            launch(poke, 1, 1, null_mut(), &mut [param(&second)]),
            CUDA_SUCCESS
        );
        cu!(cuCtxSynchronize());
        assert_eq!(download::<u32>(first, 2), [1, 7]);
        // The handle goes first; the memory with the last mapping.
        cu!(cuMemRelease(handle));
        assert_eq!(code!(cuMemRelease(handle)), CUDA_ERROR_INVALID_VALUE);
        cu!(cuMemUnmap(first, 2 * PAGE));
        assert_eq!(memory_info().0, free - 2 * PAGE, "still mapped");
        assert_eq!(download::<u32>(second, 1), [1]);
        cu!(cuMemUnmap(second, 2 * PAGE));
        assert_eq!(memory_info().0, free);
        cu!(cuMemAddressFree(range, 16 * PAGE));
        assert_eq!(
            code!(cuMemAddressFree(range, 16 * PAGE)),
            CUDA_ERROR_INVALID_VALUE,
            "freed already"
        );
    });
}

#[test]
fn without_access_nothing_can_be_touched() {
    alone("without_access_nothing_can_be_touched", &[], || {
        start(0);
        let (handle, range) = (create(PAGE), reserve(2 * PAGE));
        cu!(cuMemMap(range, PAGE, 0, handle, 0));
        assert_eq!(access(range, 0), 0);
        assert_eq!(code!(cuMemsetD8_v2(range, 1, 1)), CUDA_ERROR_INVALID_VALUE);
        let mut byte = 0u8;
        let read = |byte: &mut u8| code!(cuMemcpyDtoH_v2(std::ptr::from_mut(byte).cast(), range, 1));
        assert_eq!(read(&mut byte), CUDA_ERROR_INVALID_VALUE);
        cu!(cuMemSetAccess(range, PAGE, &read_write(0), 1));
        assert_eq!(access(range + 5, 0), 3);
        assert_eq!(read(&mut byte), CUDA_SUCCESS);
        let none = CUmemAccessDesc {
            flags: CU_MEM_ACCESS_FLAGS_PROT_NONE,
            ..read_write(0)
        };
        cu!(cuMemSetAccess(range, PAGE, &raw const none, 1));
        assert_eq!((access(range, 0), read(&mut byte)), (0, CUDA_ERROR_INVALID_VALUE));
        assert_eq!(
            code!(cuMemGetAccess(
                &mut 0,
                &on(CU_MEM_LOCATION_TYPE_DEVICE, 0),
                range + PAGE as u64
            )),
            CUDA_ERROR_INVALID_VALUE,
            "reserved, not mapped"
        );
        let poke = function(module(POKE), c"poke");
        assert_eq!(launch(poke, 1, 1, null_mut(), &mut [param(&range)]), CUDA_SUCCESS);
        assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn neighbouring_mappings_are_one_range() {
    alone("neighbouring_mappings_are_one_range", &[], || {
        start(0);
        let (free, _) = memory_info();
        let range = reserve(64 * PAGE);
        // A segment that grows, as PyTorch's expandable segments do.
        for step in 0..8 {
            let at = range + (step * PAGE) as u64;
            let handle = create(PAGE);
            cu!(cuMemMap(at, PAGE, 0, handle, 0));
            cu!(cuMemRelease(handle));
        }
        cu!(cuMemSetAccess(range, 8 * PAGE, &read_write(0), 1));
        let values: Vec<f32> = (0..4 * PAGE / 4).map(|at| at as f32).collect();
        let bytes = 4 * PAGE;
        let (a, b) = (range + 1024, range + (4 * PAGE - 4096) as u64);
        cu!(cuMemcpyHtoD_v2(a, values.as_ptr().cast(), bytes - 8192));
        cu!(cuMemcpyDtoD_v2(b, a, PAGE));
        assert_eq!(download::<f32>(b + 8, 3), [2.0, 3.0, 4.0]);
        assert_eq!(download::<f32>(b + PAGE as u64 - 4, 1), [(PAGE / 4 - 1) as f32]);
        let n = (3 * PAGE / 4) as u32;
        let (add, a) = (function(module(VECTOR_ADD), c"add"), range);
        let b = range + (4 * PAGE) as u64;
        cu!(cuMemsetD8_v2(range, 0, 8 * PAGE));
        cu!(cuMemsetD32_v2(a, 1f32.to_bits(), n as usize));
        assert_eq!(
            launch(
                add,
                n.div_ceil(256),
                256,
                null_mut(),
                &mut [param(&a), param(&a), param(&b), param(&n)]
            ),
            CUDA_SUCCESS
        );
        assert!(download::<f32>(b, n as usize).iter().all(|&value| value == 2.0));
        // Beyond the last mapping, and over a hole.
        assert_eq!(
            code!(cuMemsetD8_v2(range, 0, 8 * PAGE + 1)),
            CUDA_ERROR_INVALID_VALUE
        );
        cu!(cuMemUnmap(range + 3 * PAGE as u64, PAGE));
        assert_eq!(code!(cuMemsetD8_v2(range, 0, 5 * PAGE)), CUDA_ERROR_INVALID_VALUE);
        cu!(cuMemsetD8_v2(range, 0, 3 * PAGE));
        // A range of several mappings may be unmapped in one call.
        cu!(cuMemUnmap(range, 3 * PAGE));
        assert_eq!(memory_info().0, free - 4 * PAGE);
        cu!(cuMemUnmap(range + 4 * PAGE as u64, 4 * PAGE));
        assert_eq!(memory_info().0, free);
    });
}

#[test]
fn addresses_as_asked_for() {
    alone("addresses_as_asked_for", &[], || {
        start(0);
        let range = reserve(64 * PAGE);
        cu!(cuMemAddressFree(range, 64 * PAGE));
        let again: CUdeviceptr = get!(cuMemAddressReserve(4 * PAGE, 0, range, 0));
        assert_eq!(again, range, "the hint was free");
        let other: CUdeviceptr = get!(cuMemAddressReserve(4 * PAGE, 0, range, 0));
        assert_ne!(other, range, "it is a hint only");
        let aligned: CUdeviceptr = get!(cuMemAddressReserve(PAGE, 1 << 30, 0, 0));
        assert_eq!(aligned % (1 << 30), 0);
        for (bytes, align, hint, flags) in [
            (0, 0, 0, 0),
            (PAGE + 1, 0, 0, 0),
            (PAGE, 3, 0, 0),
            (PAGE, 0, 1, 0),
            (PAGE, 0, 0, 1),
        ] {
            assert_eq!(
                code!(cuMemAddressReserve(&mut 0, bytes, align, hint, flags)),
                CUDA_ERROR_INVALID_VALUE
            );
        }
        assert_eq!(
            code!(cuMemAddressReserve(&mut 0, usize::MAX / PAGE * PAGE, 0, 0, 0)),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        assert_eq!(
            code!(cuMemAddressFree(again, PAGE)),
            CUDA_ERROR_INVALID_VALUE,
            "not its size"
        );
        assert_eq!(
            code!(cuMemAddressFree(again + PAGE as u64, PAGE)),
            CUDA_ERROR_INVALID_VALUE
        );
    });
}

#[test]
fn bad_input_is_refused_and_costs_nothing() {
    alone("bad_input_is_refused_and_costs_nothing", &[], || {
        start(0);
        let (free, total) = memory_info();
        let huge = usize::MAX / PAGE * PAGE;
        for (bytes, expected) in [
            (0, CUDA_ERROR_INVALID_VALUE),
            (1, CUDA_ERROR_INVALID_VALUE),
            (PAGE - 1, CUDA_ERROR_INVALID_VALUE),
            (total.next_multiple_of(PAGE) + PAGE, CUDA_ERROR_OUT_OF_MEMORY),
            (huge, CUDA_ERROR_OUT_OF_MEMORY),
        ] {
            assert_eq!(
                code!(cuMemCreate(&mut 0, bytes, &on_device(), 0)),
                expected,
                "{bytes}"
            );
        }
        let with = |change: fn(&mut CUmemAllocationProp)| {
            let mut properties = on_device();
            change(&mut properties);
            code!(cuMemCreate(&mut 0, PAGE, &raw const properties, 0))
        };
        assert_eq!(
            with(|p| p.type_ = CU_MEM_ALLOCATION_TYPE_INVALID),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            with(|p| p.location = on(CU_MEM_LOCATION_TYPE_DEVICE, 9)),
            CUDA_ERROR_INVALID_DEVICE
        );
        assert_eq!(
            with(|p| p.location = on(CU_MEM_LOCATION_TYPE_DEVICE, -1)),
            CUDA_ERROR_INVALID_DEVICE
        );
        assert_eq!(
            with(|p| p.location = on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 99)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            with(|p| p.location = on(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            with(|p| p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC),
            CUDA_ERROR_NOT_SUPPORTED
        );
        assert_eq!(
            with(|p| p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_WIN32),
            CUDA_ERROR_NOT_SUPPORTED
        );
        assert_eq!(
            code!(cuMemCreate(&mut 0, PAGE, &on_device(), 1)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuMemCreate(&mut 0, PAGE, std::ptr::null(), 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(memory_info().0, free);

        let (handle, range) = (create(2 * PAGE), reserve(4 * PAGE));
        let map = |address: u64, bytes, offset, handle, flags| {
            code!(cuMemMap(address, bytes, offset, handle, flags))
        };
        for (address, bytes, offset, which, flags) in [
            (range, 2 * PAGE, PAGE, handle, 0),
            (range, 3 * PAGE, 0, handle, 0),
            (range, PAGE + 1, 0, handle, 0),
            (range, 0, 0, handle, 0),
            (range + 4096, PAGE, 0, handle, 0),
            (range + 3 * PAGE as u64, 2 * PAGE, 0, handle, 0),
            (range, 2 * PAGE, 0, handle, 1),
            (range, 2 * PAGE, 0, 0, 0),
            (range, 2 * PAGE, 0, 0xdead_beef, 0),
            (range, 2 * PAGE, 0, u64::MAX, 0),
            (1 << 40, 2 * PAGE, 0, handle, 0),
            (u64::MAX / PAGE as u64 * PAGE as u64, PAGE, 0, handle, 0),
        ] {
            assert_eq!(
                map(address, bytes, offset, which, flags),
                CUDA_ERROR_INVALID_VALUE
            );
        }
        assert_eq!(map(range, 2 * PAGE, 0, handle, 0), CUDA_SUCCESS);
        assert_eq!(
            map(range + PAGE as u64, PAGE, 0, handle, 0),
            CUDA_ERROR_INVALID_VALUE,
            "mapped already"
        );
        assert_eq!(
            code!(cuMemAddressFree(range, 4 * PAGE)),
            CUDA_ERROR_INVALID_VALUE,
            "in use"
        );
        for (address, bytes) in [
            (range, PAGE),
            (range + PAGE as u64, PAGE),
            (range, 3 * PAGE),
            (range, 0),
            (0, PAGE),
        ] {
            assert_eq!(code!(cuMemUnmap(address, bytes)), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(
                code!(cuMemSetAccess(address, bytes, &read_write(0), 1)),
                CUDA_ERROR_INVALID_VALUE
            );
        }
        let set =
            |entry: CUmemAccessDesc, count| code!(cuMemSetAccess(range, 2 * PAGE, &raw const entry, count));
        assert_eq!(set(read_write(5), 1), CUDA_ERROR_INVALID_DEVICE);
        assert_eq!(set(read_write(0), 0), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(set(read_write(0), usize::MAX), CUDA_ERROR_INVALID_VALUE);
        let host = CUmemAccessDesc {
            location: on(CU_MEM_LOCATION_TYPE_HOST, 0),
            ..read_write(0)
        };
        assert_eq!(
            set(host, 1),
            CUDA_ERROR_NOT_SUPPORTED,
            "the host does not reach device memory"
        );
        assert_eq!(
            code!(cuMemFree_v2(range)),
            CUDA_ERROR_INVALID_VALUE,
            "not cuMemAlloc's"
        );
        assert_eq!(
            code!(cuMemRetainAllocationHandle(&mut 0, 64 as *mut c_void)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(code!(cuMemRelease(12345)), CUDA_ERROR_INVALID_VALUE);
        cu!(cuMemUnmap(range, 2 * PAGE));
        cu!(cuMemRelease(handle));
        assert_eq!(memory_info().0, free);
    });
}

#[test]
fn handles_count_references() {
    alone("handles_count_references", &[], || {
        start(0);
        let (free, _) = memory_info();
        let (handle, range) = (create(PAGE), reserve(PAGE));
        cu!(cuMemMap(range, PAGE, 0, handle, 0));
        let same: CUmemGenericAllocationHandle =
            get!(cuMemRetainAllocationHandle((range + 9) as *mut c_void));
        assert_eq!(same, handle);
        let facts: CUmemAllocationProp = get!(cuMemGetAllocationPropertiesFromHandle(handle));
        assert_eq!(facts.location.type_, CU_MEM_LOCATION_TYPE_DEVICE);
        cu!(cuMemRelease(handle));
        cu!(cuMemRelease(handle));
        assert_eq!(code!(cuMemRelease(handle)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(
            code!(cuMemGetAllocationPropertiesFromHandle(
                &mut CUmemAllocationProp::default(),
                handle
            )),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(memory_info().0, free - PAGE);
        let back: CUmemGenericAllocationHandle = get!(cuMemRetainAllocationHandle(range as *mut c_void));
        cu!(cuMemUnmap(range, PAGE));
        assert_eq!(memory_info().0, free - PAGE);
        cu!(cuMemRelease(back));
        assert_eq!(memory_info().0, free);
    });
}

#[test]
fn host_memory_costs_the_device_nothing() {
    alone("host_memory_costs_the_device_nothing", &[], || {
        start(0);
        let (free, _) = memory_info();
        let host = properties(CU_MEM_LOCATION_TYPE_HOST);
        let handle: CUmemGenericAllocationHandle = get!(cuMemCreate(PAGE, &raw const host, 0));
        let range = reserve(PAGE);
        cu!(cuMemMap(range, PAGE, 0, handle, 0));
        let both = [
            read_write(0),
            CUmemAccessDesc {
                location: on(CU_MEM_LOCATION_TYPE_HOST, 0),
                ..read_write(0)
            },
        ];
        cu!(cuMemSetAccess(range, PAGE, both.as_ptr(), 2));
        assert_eq!(memory_info().0, free);
        cu!(cuMemsetD32_v2(range, 5, 1));
        // SAFETY: the host was given access to the mapping.
        assert_eq!(unsafe { (range as *const u32).read() }, 5);
        let mut kind = CUmemorytype(0);
        cu!(cuPointerGetAttribute(
            (&raw mut kind).cast(),
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            range
        ));
        assert_eq!(kind, CU_MEMORYTYPE_HOST);
    });
}

#[test]
fn each_device_has_access_of_its_own() {
    alone(
        "each_device_has_access_of_its_own",
        &[("DIVVY_EMULATED", "h100*2")],
        || {
            let first = start(0);
            let handle = create(PAGE);
            let (free, total) = memory_info();
            assert_eq!(total - free, PAGE);
            let range = reserve(PAGE);
            cu!(cuMemMap(range, PAGE, 0, handle, 0));
            // The memory is on device 0, and device 1 alone may use it.
            cu!(cuMemSetAccess(range, PAGE, &read_write(1), 1));
            assert_eq!((access(range, 0), access(range, 1)), (0, 3));
            start(1);
            let poke = function(module(POKE), c"poke");
            assert_eq!(launch(poke, 1, 1, null_mut(), &mut [param(&range)]), CUDA_SUCCESS);
            cu!(cuCtxSynchronize());
            assert_eq!(download::<u32>(range, 1), [1]);
            assert_eq!(memory_info().0, total, "nothing on device 1");
            cu!(cuCtxSetCurrent(first));
            let poke = function(module(POKE), c"poke");
            assert_eq!(launch(poke, 1, 1, null_mut(), &mut [param(&range)]), CUDA_SUCCESS);
            assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
        },
    );
}

#[test]
fn memory_that_is_used_again_is_zero() {
    alone("memory_that_is_used_again_is_zero", &[], || {
        start(0);
        let range = reserve(PAGE);
        for _ in 0..3 {
            let handle = create(PAGE);
            cu!(cuMemMap(range, PAGE, 0, handle, 0));
            cu!(cuMemSetAccess(range, PAGE, &read_write(0), 1));
            assert!(download::<u8>(range, PAGE).iter().all(|&byte| byte == 0));
            cu!(cuMemsetD8_v2(range, 9, PAGE));
            cu!(cuMemUnmap(range, PAGE));
            cu!(cuMemRelease(handle));
        }
    });
}

#[test]
fn closed_descriptors_do_no_harm() {
    alone("closed_descriptors_do_no_harm", &[], || {
        start(0);
        let (free, _) = memory_info();
        let (mapped, waiting) = (create(PAGE), create(PAGE));
        let range = reserve(4 * PAGE);
        cu!(cuMemMap(range, PAGE, 0, mapped, 0));
        cu!(cuMemSetAccess(range, PAGE, &read_write(0), 1));
        cu!(cuMemsetD32_v2(range, 1, 1));
        // SAFETY: as daemons do; nothing above the standard streams is needed here any more.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
        // The numbers are the program's now.
        let own: Vec<_> = (0..600).map(|_| tempfile::tempfile().unwrap()).collect();
        for file in &own {
            file.set_len(8192).unwrap();
        }
        assert_eq!(download::<u32>(range, 1), [1], "what is mapped stays mapped");
        let later = range + PAGE as u64;
        assert_eq!(
            code!(cuMemMap(later, PAGE, 0, waiting, 0)),
            CUDA_ERROR_OUT_OF_MEMORY,
            "what was not mapped cannot be any more"
        );
        let fresh = create(PAGE);
        cu!(cuMemMap(later, PAGE, 0, fresh, 0));
        cu!(cuMemSetAccess(later, PAGE, &read_write(0), 1));
        cu!(cuMemsetD8_v2(later, 7, PAGE));
        let large: CUdeviceptr = get!(cuMemAlloc_v2(2 * PAGE));
        cu!(cuMemcpyDtoD_v2(large, range, 2 * PAGE));
        cu!(cuMemFree_v2(large));
        for handle in [mapped, waiting, fresh] {
            cu!(cuMemRelease(handle));
        }
        cu!(cuMemUnmap(range, 2 * PAGE));
        assert_eq!(memory_info().0, free);
        for mut file in own {
            assert_eq!(file.metadata().unwrap().len(), 8192);
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
            assert!(
                bytes.iter().all(|&byte| byte == 0),
                "the program's file was written to"
            );
        }
    });
}
