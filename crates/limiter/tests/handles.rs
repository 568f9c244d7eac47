//! Memory behind handles: physical memory and its mappings, arrays, mipmaps, heaps.

mod emulated;
mod support;

use std::ptr::null_mut;

use divvy_abi::*;
use emulated::{agree, alone, code, context, cu, get, held};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const GRANULARITY: usize = 2 << 20;

fn on(kind: CUmemLocationType, id: i32) -> CUmemAllocationProp {
    let mut properties = CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        ..Default::default()
    };
    properties.location.type_ = kind;
    properties.location.anonymous1.id = id;
    properties
}

fn create(bytes: usize) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let mut handle = 0;
    let properties = on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    code!(cuMemCreate(&raw mut handle, bytes, &raw const properties, 0)).ok()?;
    Ok(handle)
}

#[test]
fn physical_memory_is_charged_until_the_last_handle_and_mapping_go() {
    alone(
        "physical_memory_is_charged_until_the_last_handle_and_mapping_go",
        GIB,
        |slice| {
            context();
            let block = create(64 << 20).expect("it fits");
            assert_eq!((slice.used(), held()), (64 * MIB, 64 * MIB));
            let address: CUdeviceptr = get!(cuMemAddressReserve(256 << 20, 0, 0, 0));
            cu!(cuMemMap(address, 64 << 20, 0, block, 0));
            cu!(cuMemMap(address + (64 << 20), 64 << 20, 0, block, 0));
            assert_eq!(slice.used(), 64 * MIB, "mapped twice, paid once");
            // Released while it is mapped, the memory stays.
            cu!(cuMemRelease(block));
            assert_eq!((slice.used(), held()), (64 * MIB, 64 * MIB));
            let again: CUmemGenericAllocationHandle =
                get!(cuMemRetainAllocationHandle((address + 4096) as *mut c_void));
            cu!(cuMemUnmap(address, 64 << 20));
            cu!(cuMemUnmap(address + (64 << 20), 64 << 20));
            assert_eq!((slice.used(), held()), (64 * MIB, 64 * MIB), "a handle is left");
            cu!(cuMemRelease(again));
            assert_eq!((slice.used(), held()), (0, 0));
            assert_ne!(code!(cuMemRelease(again)), CUDA_SUCCESS);
            assert_ne!(code!(cuMemUnmap(address, 64 << 20)), CUDA_SUCCESS);
            assert_eq!(slice.used(), 0);
            // Over the limit nothing is made; exactly the limit is possible.
            assert_eq!(create((1 << 30) + GRANULARITY), Err(CUDA_ERROR_OUT_OF_MEMORY));
            assert_eq!(create(usize::MAX - 1), Err(CUDA_ERROR_OUT_OF_MEMORY));
            let all = create(1 << 30).expect("exactly the limit");
            assert_eq!(create(GRANULARITY), Err(CUDA_ERROR_OUT_OF_MEMORY));
            assert_eq!((slice.used(), held()), (GIB, GIB));
            cu!(cuMemRelease(all));
            assert_eq!(create(4096), Err(CUDA_ERROR_INVALID_VALUE), "not the granularity");
            assert_eq!((slice.used(), held()), (0, 0));
            cu!(cuMemAddressFree(address, 256 << 20));
        },
    );
}

/// A driver that returns another handle for each import, and hands out descriptors of its device node. Such descriptors
/// do not identify their memory.
mod nodes {
    use super::*;
    use std::collections::BTreeMap;
    use std::os::fd::IntoRawFd as _;
    use std::sync::Mutex;

    const BELOW: &Table = &divvy_emulator::TABLE;
    /// fcntl(2): a value that belongs to an open file, whichever descriptor is used.
    const F_SETSIG: i32 = 10;
    const F_GETSIG: i32 = 11;
    /// The offset that each import adds to a handle.
    const ANOTHER: u64 = 1 << 48;
    static FILES: Mutex<BTreeMap<i32, i32>> = Mutex::new(BTreeMap::new());
    static IMPORTS: Mutex<u64> = Mutex::new(0);

    unsafe extern "C-unwind" fn export(
        out: *mut c_void,
        handle: u64,
        kind: CUmemAllocationHandleType,
        flags: u64,
    ) -> CUresult {
        let mut file = -1i32;
        // A node's descriptors tell the driver what they were opened for; here a number that belongs to the open file
        // does that.
        let mark = |node: i32, number: i32| {
            // SAFETY: the test's own descriptor.
            assert_eq!(unsafe { libc::fcntl(node, F_SETSIG, number) }, 0);
        };
        // SAFETY: a valid out-parameter.
        let result = unsafe {
            (BELOW.cuMemExportToShareableHandle)((&raw mut file).cast(), handle % ANOTHER, kind, flags)
        };
        if result.is_success() {
            let node = std::fs::File::open("/dev/null")
                .expect("a device node")
                .into_raw_fd();
            let mut files = FILES.lock().expect("no panic");
            let number = 1 + files.len() as i32;
            mark(node, number);
            files.insert(number, file);
            // SAFETY: the test's own variable.
            unsafe { out.cast::<i32>().write(node) };
        }
        result
    }

    unsafe extern "C-unwind" fn import(
        out: *mut u64,
        node: *mut c_void,
        kind: CUmemAllocationHandleType,
    ) -> CUresult {
        // SAFETY: asks about a number.
        let number = unsafe { libc::fcntl(node as isize as i32, F_GETSIG) };
        let file = FILES.lock().expect("no panic")[&number];
        // SAFETY: the test's own variable, written by the driver.
        unsafe {
            let result = (BELOW.cuMemImportFromShareableHandle)(out, file as isize as *mut c_void, kind);
            let mut imports = IMPORTS.lock().expect("no panic");
            *imports += 1;
            *out += *imports * ANOTHER;
            result
        }
    }

    unsafe extern "C-unwind" fn release(handle: u64) -> CUresult {
        // SAFETY: a number.
        unsafe { (BELOW.cuMemRelease)(handle % ANOTHER) }
    }

    unsafe extern "C-unwind" fn map(
        address: u64,
        bytes: usize,
        offset: usize,
        handle: u64,
        flags: u64,
    ) -> CUresult {
        // SAFETY: numbers.
        unsafe { (BELOW.cuMemMap)(address, bytes, offset, handle % ANOTHER, flags) }
    }

    unsafe extern "C-unwind" fn properties(out: *mut CUmemAllocationProp, handle: u64) -> CUresult {
        // SAFETY: the caller's variable.
        unsafe { (BELOW.cuMemGetAllocationPropertiesFromHandle)(out, handle % ANOTHER) }
    }

    pub static TABLE: Table = Table {
        cuMemExportToShareableHandle: export,
        cuMemImportFromShareableHandle: import,
        cuMemRelease: release,
        cuMemMap: map,
        cuMemGetAllocationPropertiesFromHandle: properties,
        ..divvy_emulator::TABLE
    };
}

/// Physical memory that may be shared, and a descriptor of it.
fn shareable(bytes: usize) -> Result<(CUmemGenericAllocationHandle, i32), CUresult> {
    let mut properties = on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let (mut handle, mut descriptor) = (0, -1);
    code!(cuMemCreate(&raw mut handle, bytes, &raw const properties, 0)).ok()?;
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    cu!(cuMemExportToShareableHandle(
        (&raw mut descriptor).cast(),
        handle,
        kind,
        0
    ));
    Ok((handle, descriptor))
}

fn import(descriptor: i32) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let mut handle = 0;
    let shared = descriptor as isize as *mut c_void;
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    code!(cuMemImportFromShareableHandle(&raw mut handle, shared, kind)).ok()?;
    Ok(handle)
}

#[test]
fn what_a_process_exports_and_imports_itself_stays_charged() {
    let test = "what_a_process_exports_and_imports_itself_stays_charged";
    alone(test, GIB, |slice| {
        context();
        let (block, descriptor) = shareable(900 << 20).expect("it fits");
        let imports = [(); 3].map(|()| import(descriptor).expect("it is there"));
        assert_eq!((slice.used(), held()), (900 * MIB, 900 * MIB));
        assert_eq!(shareable(900 << 20), Err(CUDA_ERROR_OUT_OF_MEMORY));
        cu!(cuMemRelease(block));
        for handle in imports {
            assert_eq!((slice.used(), held()), (900 * MIB, 900 * MIB));
            cu!(cuMemRelease(handle));
        }
        assert_eq!((slice.used(), held()), (0, 0));
        // Only the descriptor holds the bytes. An import of it is charged as a whole, before any of it is mapped.
        let again = import(descriptor).expect("it is there");
        assert_eq!((slice.used(), held()), (900 * MIB, 900 * MIB));
        let address: CUdeviceptr = get!(cuMemAddressReserve(1 << 30, 0, 0, 0));
        cu!(cuMemMap(address, GRANULARITY, 0, again, 0));
        assert_eq!((slice.used(), held()), (900 * MIB, 900 * MIB));
        cu!(cuMemRelease(again));
        assert_eq!((slice.used(), held()), (900 * MIB, 900 * MIB), "mapped");
        cu!(cuMemUnmap(address, GRANULARITY));
        assert_eq!((slice.used(), held()), (0, 0));
        // Without headroom for it, the import fails.
        let half = create(512 << 20).expect("it fits");
        assert_eq!(import(descriptor), Err(CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!((slice.used(), held()), (512 * MIB, 512 * MIB));
        cu!(cuMemRelease(half));
        cu!(cuMemAddressFree(address, 1 << 30));
        assert_eq!((slice.used(), held()), (0, 0));
    });
}

#[test]
fn so_it_does_with_a_driver_of_other_handles_that_tells_no_sizes() {
    let test = "so_it_does_with_a_driver_of_other_handles_that_tells_no_sizes";
    alone(test, GIB, |slice| {
        divvy_limiter::below::stand_on(&nodes::TABLE);
        context();
        let (block, descriptor) = shareable(900 << 20).expect("it fits");
        let imported = import(descriptor).expect("it is there");
        assert_ne!(block, imported);
        assert_eq!((slice.used(), held()), (900 * MIB, 900 * MIB));
        let address: CUdeviceptr = get!(cuMemAddressReserve(2 << 30, 0, 0, 0));
        let at = |part: u64| address + part * 900 * MIB;
        cu!(cuMemMap(at(0), 900 << 20, 0, imported, 0));
        assert_eq!(
            (slice.used(), held()),
            (900 * MIB, 900 * MIB),
            "of its size: the same"
        );
        cu!(cuMemRelease(block));
        assert_eq!((slice.used(), held()), (900 * MIB, 900 * MIB), "mapped");
        cu!(cuMemRelease(imported));
        cu!(cuMemUnmap(at(0), 900 << 20));
        let (mut free, mut total) = (0, 0);
        cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!((slice.used(), held()), (0, 0));
        // Its size is unknown: it counts as the largest part that was mapped of it, and at most as the slice's
        // headroom.
        let imported = import(descriptor).expect("it is there");
        cu!(cuMemMap(at(0), GRANULARITY, 0, imported, 0));
        assert_eq!(slice.used(), 2 * MIB);
        let half = create(512 << 20).expect("it fits");
        assert_eq!(
            code!(cuMemMap(at(1), 900 << 20, 0, imported, 0)),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        cu!(cuMemRelease(half));
        cu!(cuMemMap(at(1), 900 << 20, 0, imported, 0));
        assert_eq!((slice.used(), held()), (900 * MIB, 900 * MIB));
        cu!(cuMemUnmap(at(0), GRANULARITY));
        cu!(cuMemUnmap(at(1), 900 << 20));
        assert_eq!(slice.used(), 900 * MIB, "a handle is left");
        cu!(cuMemRelease(imported));
        assert_eq!((slice.used(), held()), (0, 0));
    });
}

#[test]
fn memory_of_the_host_is_no_device_memory() {
    alone("memory_of_the_host_is_no_device_memory", GIB, |slice| {
        context();
        for (kind, id) in [
            (CU_MEM_LOCATION_TYPE_HOST, 0),
            (CU_MEM_LOCATION_TYPE_HOST_NUMA, 0),
            (CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0),
            (CU_MEM_LOCATION_TYPE_INVALID, 0),
            (CU_MEM_LOCATION_TYPE_DEVICE, 99),
            (CU_MEM_LOCATION_TYPE_DEVICE, -1),
        ] {
            let properties = on(kind, id);
            let mut handle = 0;
            // Whatever the driver below decides, it is no more than that.
            let result = code!(cuMemCreate(&raw mut handle, 4 << 30, &raw const properties, 0));
            assert_eq!(slice.used(), 0, "{kind:?}");
            if result == CUDA_SUCCESS {
                cu!(cuMemRelease(handle));
            }
        }
        let mut handle = 0;
        assert_eq!(
            code!(cuMemCreate(&raw mut handle, GRANULARITY, std::ptr::null(), 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(slice.used(), 0);
    });
}

fn array(width: usize, height: usize, depth: usize, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: CU_AD_FORMAT_FLOAT,
        NumChannels: 4,
        Flags: flags,
    }
}

#[test]
fn arrays_and_mipmaps_are_charged_what_they_take() {
    alone("arrays_and_mipmaps_are_charged_what_they_take", GIB, |slice| {
        let first = context();
        for described in [
            array(1, 0, 0, 0),
            array(1000, 0, 0, 0),
            array(1000, 1000, 0, 0),
            array(100, 100, 100, 0),
            array(100, 100, 7, CUDA_ARRAY3D_LAYERED),
            array(100, 100, 6, CUDA_ARRAY3D_CUBEMAP),
        ] {
            let made: CUarray = get!(cuArray3DCreate_v2(&raw const described));
            agree(slice, &described);
            assert!(slice.used() > 0);
            cu!(cuArrayDestroy(made));
            assert_eq!((slice.used(), held()), (0, 0));
            for levels in [1, 2, 5, 100] {
                let mut mipmap = null_mut();
                if code!(cuMipmappedArrayCreate(
                    &raw mut mipmap,
                    &raw const described,
                    levels
                )) == CUDA_SUCCESS
                {
                    agree(slice, &(described, levels));
                    assert!(slice.used() > 0);
                    cu!(cuMipmappedArrayDestroy(mipmap));
                }
                assert_eq!((slice.used(), held()), (0, 0));
            }
        }
        let flat = CUDA_ARRAY_DESCRIPTOR {
            Width: 16384,
            Height: 4096,
            Format: CU_AD_FORMAT_FLOAT,
            NumChannels: 4,
        };
        let all: CUarray = get!(cuArrayCreate_v2(&raw const flat));
        assert_eq!((slice.used(), held()), (GIB, GIB));
        let (mut more, mut mipmap) = (null_mut(), null_mut());
        assert_eq!(
            code!(cuArrayCreate_v2(&raw mut more, &raw const flat)),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        assert!(more.is_null());
        cu!(cuArrayDestroy(all));
        // 64 GiB are more than the slice has; for a size that fits no number the driver's own error is returned.
        for (described, answer) in [
            (array(16384, 16384, 16, 0), CUDA_ERROR_OUT_OF_MEMORY),
            (
                array(usize::MAX, usize::MAX, usize::MAX, 0),
                CUDA_ERROR_INVALID_VALUE,
            ),
        ] {
            assert_eq!(
                code!(cuArray3DCreate_v2(&raw mut more, &raw const described)),
                answer
            );
            assert_eq!(
                code!(cuMipmappedArrayCreate(&raw mut mipmap, &raw const described, 3)),
                answer
            );
        }
        assert_eq!(
            code!(cuArrayCreate_v2(&raw mut more, std::ptr::null())),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!((slice.used(), held()), (0, 0));
        // Those that end with a context.
        let second = context();
        assert_ne!(first, second);
        let small = array(64, 64, 0, 0);
        let _left: CUarray = get!(cuArray3DCreate_v2(&raw const small));
        let _left: CUmipmappedArray = get!(cuMipmappedArrayCreate(&raw const small, 3));
        cu!(cuCtxDestroy_v2(second));
        assert_eq!((slice.used(), held()), (0, 0));
    });
}

#[test]
fn contexts_and_heaps_are_charged_what_the_grant_and_the_program_say() {
    alone(
        "contexts_and_heaps_are_charged_what_the_grant_and_the_program_say",
        GIB,
        |slice| {
            let mut terms = slice.pages.grant.terms();
            terms.context_bytes = 100 << 20;
            slice.pages.grant.set_terms(&terms);
            let first = context();
            assert_eq!(slice.used(), 100 * MIB);
            let second = context();
            let primary: CUcontext = get!(cuDevicePrimaryCtxRetain(0));
            assert_eq!(slice.used(), 300 * MIB);
            let again: CUcontext = get!(cuDevicePrimaryCtxRetain(0));
            assert_eq!((primary, slice.used()), (again, 300 * MIB));
            cu!(cuDevicePrimaryCtxRelease_v2(0));
            assert_eq!(slice.used(), 300 * MIB);
            cu!(cuDevicePrimaryCtxRelease_v2(0));
            assert_eq!(slice.used(), 200 * MIB);
            cu!(cuCtxSetCurrent(second));
            // A heap is charged beyond its first size, upwards and downwards.
            let first_size: usize = get!(cuCtxGetLimit(CU_LIMIT_MALLOC_HEAP_SIZE));
            cu!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, first_size + (64 << 20)));
            assert_eq!(slice.used(), 264 * MIB);
            assert_eq!(
                code!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 2 << 30)),
                CUDA_ERROR_OUT_OF_MEMORY
            );
            assert_eq!(slice.used(), 264 * MIB);
            cu!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, first_size + (16 << 20)));
            assert_eq!(slice.used(), 216 * MIB);
            assert_ne!(code!(cuCtxSetLimit(CUlimit(77), 1 << 40)), CUDA_SUCCESS);
            cu!(cuCtxDestroy_v2(second));
            assert_eq!(slice.used(), 100 * MIB);
            // The last use ends a context, and so do its allocations.
            let passing = context();
            let _goes_with_it: CUdeviceptr = get!(cuMemAlloc_v2(64 << 20));
            let _one_use_more: CUcontext = get!(cuCtxAttach(0));
            cu!(cuCtxDetach(passing));
            assert_eq!(slice.used(), 264 * MIB);
            cu!(cuCtxDetach(passing));
            assert_eq!(slice.used(), 100 * MIB);
            let primary: CUcontext = get!(cuDevicePrimaryCtxRetain(0));
            cu!(cuCtxSetCurrent(primary));
            assert_ne!(code!(cuCtxDetach(primary)), CUDA_SUCCESS);
            assert_eq!(slice.used(), 200 * MIB);
            cu!(cuDevicePrimaryCtxRelease_v2(0));
            let mut many = Vec::new();
            let refused = loop {
                let mut context = null_mut();
                match code!(cuCtxCreate_v2(&raw mut context, 0, 0)) {
                    CUDA_SUCCESS => many.push(context),
                    code => break code,
                }
            };
            assert_eq!((refused, many.len()), (CUDA_ERROR_OUT_OF_MEMORY, 9));
            for context in many {
                cu!(cuCtxDestroy_v2(context));
            }
            cu!(cuCtxDestroy_v2(first));
            assert_eq!(slice.used(), 0);
        },
    );
}

#[test]
fn a_modules_variables_are_charged() {
    alone("a_modules_variables_are_charged", GIB, |slice| {
        context();
        let text = |bytes: u64| {
            let text = format!(
                ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 big[{bytes}];\n\
                 .visible .entry nothing() {{ ret; }}\n"
            );
            std::ffi::CString::new(text).expect("no NUL")
        };
        let image = text(64 << 20);
        let module: CUmodule = get!(cuModuleLoadData(image.as_ptr().cast()));
        assert_eq!(slice.used(), 64 * MIB);
        let library: CUlibrary = get!(cuLibraryLoadData(
            image.as_ptr().cast(),
            null_mut(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0
        ));
        assert_eq!(slice.used(), 128 * MIB);
        let (huge, mut refused) = (text(2 << 30), null_mut());
        assert_eq!(
            code!(cuModuleLoadData(&raw mut refused, huge.as_ptr().cast())),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        assert!(refused.is_null());
        let bad = c"this is no module";
        assert_ne!(
            code!(cuModuleLoadData(&raw mut refused, bad.as_ptr().cast())),
            CUDA_SUCCESS
        );
        assert_ne!(
            code!(cuModuleLoadData(&raw mut refused, std::ptr::null())),
            CUDA_SUCCESS
        );
        cu!(cuModuleUnload(module));
        cu!(cuLibraryUnload(library));
        assert_eq!(slice.used(), 0);
    });
}
