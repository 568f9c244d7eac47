//! Device, host and managed memory, and what every kind of copy and fill does to it.

mod common;

use common::{alone, code, cu, download, get, memory_info, start, upload};
use divvy_abi::*;

const MIB: usize = 1 << 20;

#[test]
fn allocations_cost_pages_and_come_back() {
    alone("allocations_cost_pages_and_come_back", &[], || {
        start(0);
        let (free, total) = memory_info();
        assert_eq!((free, total), (81_559 * MIB, 81_559 * MIB));
        let small: CUdeviceptr = get!(cuMemAlloc_v2(1));
        assert_eq!(
            memory_info().0,
            total - 2 * MIB,
            "a small allocation costs a page"
        );
        let other: CUdeviceptr = get!(cuMemAlloc_v2(1000));
        assert_eq!(memory_info().0, total - 2 * MIB, "which the next shares");
        assert_eq!((small % 512, other % 512), (0, 0));
        let large: CUdeviceptr = get!(cuMemAlloc_v2(5 * MIB));
        assert_eq!(memory_info().0, total - 8 * MIB);
        assert_eq!(code!(cuMemAlloc_v2(&mut 0, total)), CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(code!(cuMemAlloc_v2(&mut 0, usize::MAX)), CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(code!(cuMemAlloc_v2(&mut 0, 0)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(
            code!(cuMemAlloc_v2(std::ptr::null_mut(), 1)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuMemFree_v2(large + 512)),
            CUDA_ERROR_INVALID_VALUE,
            "not where it starts"
        );
        for pointer in [small, other, large] {
            cu!(cuMemFree_v2(pointer));
            assert_eq!(
                code!(cuMemFree_v2(pointer)),
                CUDA_ERROR_INVALID_VALUE,
                "freed already"
            );
        }
        cu!(cuMemFree_v2(0));
        assert_eq!(memory_info().0, total);
    });
}

#[test]
fn most_of_a_device_larger_than_the_host_can_be_had() {
    alone(
        "most_of_a_device_larger_than_the_host_can_be_had",
        &[("DIVVY_EMULATED", "h200")],
        || {
            start(0);
            let free = memory_info().0 / (2 * MIB) * (2 * MIB);
            let pointer: CUdeviceptr = get!(cuMemAlloc_v2(free));
            assert!(memory_info().0 < 2 * MIB);
            cu!(cuMemsetD8_v2(pointer + free as u64 - 4, 7, 4));
            assert_eq!(download::<u32>(pointer + free as u64 - 4, 1), [0x0707_0707]);
            cu!(cuMemFree_v2(pointer));
        },
    );
}

#[test]
fn address_ranges_and_pointer_attributes() {
    alone("address_ranges_and_pointer_attributes", &[], || {
        let context = start(0);
        let pointer: CUdeviceptr = get!(cuMemAlloc_v2(1000));
        let (mut base, mut bytes) = (0, 0);
        cu!(cuMemGetAddressRange_v2(
            &raw mut base,
            &raw mut bytes,
            pointer + 999
        ));
        assert_eq!((base, bytes), (pointer, 1000));
        assert_eq!(
            code!(cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, 64)),
            CUDA_ERROR_NOT_FOUND
        );
        let ask = |attribute, pointer| {
            let mut value = 0u64;
            cu!(cuPointerGetAttribute((&raw mut value).cast(), attribute, pointer));
            value
        };
        assert_eq!(
            ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer),
            u64::from(CU_MEMORYTYPE_DEVICE.0)
        );
        assert_eq!(ask(CU_POINTER_ATTRIBUTE_CONTEXT, pointer), context as u64);
        assert_eq!(ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, pointer + 5), pointer + 5);
        let host: *mut c_void = get!(cuMemHostAlloc(100, 0));
        assert_eq!(
            ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host as u64),
            u64::from(CU_MEMORYTYPE_HOST.0)
        );
        let device: CUdeviceptr = get!(cuMemHostGetDevicePointer_v2(host, 0));
        assert_eq!(device, host as u64);
        let local = 1;
        let mut value = 0u64;
        let unknown = code!(cuPointerGetAttribute(
            (&raw mut value).cast(),
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            &raw const local as u64
        ));
        assert_eq!(unknown, CUDA_ERROR_INVALID_VALUE);
        // Asked for several attributes, the driver answers for any address.
        let (mut kind, mut ordinal) = (9u32, 9i32);
        let mut places: [*mut c_void; 2] = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
        let mut attributes = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ];
        let local = &raw const local as u64;
        cu!(cuPointerGetAttributes(
            2,
            attributes.as_mut_ptr(),
            places.as_mut_ptr(),
            local
        ));
        assert_eq!((kind, ordinal), (0, CU_DEVICE_INVALID));
    });
}

#[test]
fn fills_of_every_width() {
    alone("fills_of_every_width", &[], || {
        start(0);
        let pointer = upload(&[0u8; 64]);
        cu!(cuMemsetD8_v2(pointer, 0x11, 64));
        cu!(cuMemsetD16_v2(pointer + 2, 0x2222, 3));
        cu!(cuMemsetD32_v2(pointer + 8, 0x3333_3333, 2));
        let bytes = download::<u8>(pointer, 64);
        assert_eq!(
            bytes[..18],
            *b"\x11\x11\x22\x22\x22\x22\x22\x22\x33\x33\x33\x33\x33\x33\x33\x33\x11\x11"
        );
        assert_eq!(
            code!(cuMemsetD32_v2(pointer + 2, 0, 1)),
            CUDA_ERROR_INVALID_VALUE,
            "misaligned"
        );
        assert_eq!(
            code!(cuMemsetD8_v2(pointer, 0, 513)),
            CUDA_ERROR_INVALID_VALUE,
            "beyond the granule"
        );
        assert_eq!(
            code!(cuMemsetD8_v2(1 << 40, 0, 1)),
            CUDA_ERROR_INVALID_VALUE,
            "not device memory"
        );
        let (mut pitched, mut pitch) = (0, 0);
        cu!(cuMemAllocPitch_v2(&raw mut pitched, &raw mut pitch, 20, 3, 4));
        assert_eq!(pitch, 512);
        cu!(cuMemsetD8_v2(pitched, 0, 3 * 512));
        cu!(cuMemsetD2D16_v2(pitched, pitch, 0xabcd, 10, 3));
        let bytes = download::<u16>(pitched, 3 * 256);
        for (at, &value) in bytes.iter().enumerate() {
            assert_eq!(value, if at % 256 < 10 { 0xabcd } else { 0 });
        }
    });
}

#[test]
fn copies_of_one_two_and_three_dimensions() {
    alone("copies_of_one_two_and_three_dimensions", &[], || {
        start(0);
        let data: Vec<u8> = (0..=255).collect();
        let first = upload(&data);
        let second: CUdeviceptr = get!(cuMemAlloc_v2(256));
        cu!(cuMemcpyDtoD_v2(second, first, 256));
        assert_eq!(download::<u8>(second, 256), data);
        let mut back = [0u8; 4];
        cu!(cuMemcpy(back.as_mut_ptr() as u64, second + 100, 4));
        assert_eq!(
            back,
            [100, 101, 102, 103],
            "the direction is told from the addresses"
        );
        assert_eq!(
            code!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), second + 510, 4)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuMemcpyHtoD_v2(0, back.as_ptr().cast(), 4)),
            CUDA_ERROR_INVALID_VALUE
        );
        cu!(cuMemcpyHtoD_v2(0, back.as_ptr().cast(), 0));

        // Rows 1 and 2, columns 2 to 4, of an 8 x 8 image, into the corner of a host image of 3 columns.
        let mut corner = [0u8; 6];
        let copy = CUDA_MEMCPY2D {
            srcMemoryType: CU_MEMORYTYPE_DEVICE,
            srcDevice: first,
            srcPitch: 8,
            srcXInBytes: 2,
            srcY: 1,
            dstMemoryType: CU_MEMORYTYPE_HOST,
            dstHost: corner.as_mut_ptr().cast(),
            dstPitch: 3,
            WidthInBytes: 3,
            Height: 2,
            ..CUDA_MEMCPY2D::default()
        };
        cu!(cuMemcpy2D_v2(&raw const copy));
        assert_eq!(corner, [10, 11, 12, 18, 19, 20]);
        let beyond = CUDA_MEMCPY2D { Height: 70, ..copy };
        assert_eq!(code!(cuMemcpy2D_v2(&raw const beyond)), CUDA_ERROR_INVALID_VALUE);
        let array = CUDA_MEMCPY2D {
            srcMemoryType: CU_MEMORYTYPE_ARRAY,
            ..copy
        };
        assert_eq!(
            code!(cuMemcpy2D_v2(&raw const array)),
            CUDA_ERROR_INVALID_VALUE,
            "no such array"
        );

        // The middle 2 x 2 x 2 of a 4 x 4 x 4 cube.
        let mut cube = [0u8; 8];
        let copy = CUDA_MEMCPY3D {
            srcMemoryType: CU_MEMORYTYPE_DEVICE,
            srcDevice: first,
            srcPitch: 4,
            srcHeight: 4,
            srcXInBytes: 1,
            srcY: 1,
            srcZ: 1,
            dstMemoryType: CU_MEMORYTYPE_HOST,
            dstHost: cube.as_mut_ptr().cast(),
            WidthInBytes: 2,
            Height: 2,
            Depth: 2,
            ..CUDA_MEMCPY3D::default()
        };
        cu!(cuMemcpy3D_v2(&raw const copy));
        assert_eq!(cube, [21, 22, 25, 26, 37, 38, 41, 42]);
    });
}

#[test]
fn host_memory_is_registered_once_and_reachable() {
    alone("host_memory_is_registered_once_and_reachable", &[], || {
        start(0);
        let mut memory = vec![1u8; 8192];
        let pointer = memory.as_mut_ptr().cast();
        cu!(cuMemHostRegister_v2(pointer, 8192, CU_MEMHOSTREGISTER_DEVICEMAP));
        assert_eq!(
            code!(cuMemHostRegister_v2(pointer, 10, 0)),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        );
        let flags: u32 = get!(cuMemHostGetFlags(pointer));
        assert_eq!(flags, CU_MEMHOSTREGISTER_DEVICEMAP);
        cu!(cuMemHostUnregister(pointer));
        assert_eq!(
            code!(cuMemHostUnregister(pointer)),
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
        );
        let pinned: *mut c_void = get!(cuMemHostAlloc(1, CU_MEMHOSTALLOC_PORTABLE));
        cu!(cuMemFreeHost(pinned));
        assert_eq!(code!(cuMemFreeHost(pinned)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(
            code!(cuMemHostAlloc(&mut std::ptr::null_mut(), 0, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
    });
}

#[test]
fn managed_memory_remembers_advice() {
    alone("managed_memory_remembers_advice", &[], || {
        start(0);
        let pointer: CUdeviceptr = get!(cuMemAllocManaged(4096, CU_MEM_ATTACH_GLOBAL.0));
        // SAFETY: managed memory is the host's as well.
        unsafe { (pointer as *mut u32).write(77) };
        assert_eq!(download::<u32>(pointer, 1), [77]);
        cu!(cuMemAdvise(pointer, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
        let mut value = 0;
        let ask = |value: &mut i32| {
            let value = std::ptr::from_mut(value).cast();
            code!(cuMemRangeGetAttribute(
                value,
                4,
                CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                pointer,
                4096
            ))
        };
        assert_eq!((ask(&mut value), value), (CUDA_SUCCESS, 1));
        let device: CUdeviceptr = get!(cuMemAlloc_v2(10));
        assert_eq!(
            code!(cuMemAdvise(device, 10, CU_MEM_ADVISE_SET_READ_MOSTLY, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        cu!(cuMemFree_v2(pointer));
        assert_eq!(ask(&mut value), CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn managed_memory_tells_several_attributes_at_once() {
    alone("managed_memory_tells_several_attributes_at_once", &[], || {
        start(0);
        let pointer: CUdeviceptr = get!(cuMemAllocManaged(4096, CU_MEM_ATTACH_GLOBAL.0));
        cu!(cuMemAdvise(pointer, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
        cu!(cuMemAdvise(pointer, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, 0));
        let (mut read_mostly, mut accessed_by, mut preferred) = (7, [7; 2], 7);
        let ask = |places: &[*mut c_void], sizes: &[usize], attributes: &[CUmem_range_attribute], pointer| {
            code!(cuMemRangeGetAttributes(
                places.as_ptr().cast_mut(),
                sizes.as_ptr().cast_mut(),
                attributes.as_ptr().cast_mut(),
                attributes.len(),
                pointer,
                4096,
            ))
        };
        let places = [
            (&raw mut read_mostly).cast(),
            (&raw mut accessed_by).cast(),
            (&raw mut preferred).cast(),
        ];
        let attributes = [
            CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
            CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
            CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
        ];
        assert_eq!(ask(&places, &[4, 8, 4], &attributes, pointer), CUDA_SUCCESS);
        let nowhere = CU_DEVICE_INVALID;
        assert_eq!(
            (read_mostly, accessed_by, preferred),
            (1, [0, nowhere], nowhere),
            "each result has the size that was asked for"
        );
        // One that is wrong is the error of all, wherever it stands.
        let unknown = [attributes[0], attributes[1], CUmem_range_attribute(99)];
        let bad = CUDA_ERROR_INVALID_VALUE;
        assert_eq!(ask(&places, &[4, 8, 4], &unknown, pointer), bad);
        assert_eq!(ask(&places, &[4, 7, 4], &attributes, pointer), bad);
        let nothing = [places[0], places[1], std::ptr::null_mut()];
        assert_eq!(ask(&nothing, &[4, 8, 4], &attributes, pointer), bad);
        let device: CUdeviceptr = get!(cuMemAlloc_v2(4096));
        assert_eq!(ask(&places, &[4, 8, 4], &attributes, device), bad);
        assert_eq!(
            code!(cuMemRangeGetAttributes(
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                1,
                pointer,
                4096
            )),
            bad
        );
    });
}

#[test]
fn pools_hand_out_and_keep() {
    alone("pools_hand_out_and_keep", &[], || {
        start(0);
        let (_, total) = memory_info();
        let stream: CUstream = get!(cuStreamCreate(0));
        let pool: CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
        let figure = |attribute| {
            let mut value = 0u64;
            cu!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
            value
        };
        let keep_all = u64::MAX;
        let keep = std::ptr::from_ref(&keep_all).cast_mut().cast();
        cu!(cuMemPoolSetAttribute(
            pool,
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            keep
        ));
        let pointer: CUdeviceptr = get!(cuMemAllocAsync(4 * MIB, stream));
        cu!(cuMemsetD8Async(pointer, 3, 4 * MIB, stream));
        let mut byte = 0u8;
        cu!(cuMemcpyDtoHAsync_v2((&raw mut byte).cast(), pointer, 1, stream));
        cu!(cuMemFreeAsync(pointer, stream));
        cu!(cuStreamSynchronize(stream));
        assert_eq!((byte, figure(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)), (3, 0));
        assert_eq!(
            figure(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
            4 * MIB as u64,
            "the pool keeps it"
        );
        assert_eq!(memory_info().0, total - 4 * MIB);
        let again: CUdeviceptr = get!(cuMemAllocAsync(4 * MIB, stream));
        assert_eq!(again, pointer);
        cu!(cuMemFree_v2(again));
        cu!(cuMemPoolTrimTo(pool, 0));
        assert_eq!(memory_info().0, total);
        // Kept memory makes way for others.
        let most: CUdeviceptr = get!(cuMemAllocAsync(total / 2, stream));
        cu!(cuMemFreeAsync(most, stream));
        cu!(cuStreamSynchronize(stream));
        let whole: CUdeviceptr = get!(cuMemAlloc_v2(total - 2 * MIB));
        cu!(cuMemFree_v2(whole));
        assert_eq!(
            code!(cuMemPoolDestroy(pool)),
            CUDA_ERROR_INVALID_VALUE,
            "the default pool stays"
        );
    });
}

#[test]
fn a_context_takes_its_memory_with_it() {
    alone("a_context_takes_its_memory_with_it", &[], || {
        start(0);
        let (_, total) = memory_info();
        let own: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let _pointer: CUdeviceptr = get!(cuMemAlloc_v2(10 * MIB));
        cu!(cuCtxDestroy_v2(own));
        assert_eq!(memory_info().0, total);
    });
}

/// numba-cuda does so when it resets a device, and its own tests pass on GPUs.
#[test]
fn memory_is_freed_without_a_current_context() {
    alone("memory_is_freed_without_a_current_context", &[], || {
        let context = start(0);
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(5 * MIB));
        let total = memory_info().1;
        cu!(cuCtxSetCurrent(std::ptr::null_mut()));
        cu!(cuMemFree_v2(memory));
        let no_owner = [memory, memory + 512, 0];
        for pointer in no_owner {
            assert_eq!(code!(cuMemFree_v2(pointer)), CUDA_ERROR_INVALID_CONTEXT);
        }
        cu!(cuCtxSetCurrent(context));
        assert_eq!(memory_info().0, total);
    });
}
