//! External memory: what comes as a descriptor, from a device or from elsewhere.

mod common;

use common::{alone, code, cu, download, get, held, memory_info, start};
use divvy_abi::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

const PAGE: usize = 2 << 20;

fn description(fd: i32, bytes: usize) -> CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
        type_: CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
        handle: CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1_handle { fd },
        size: bytes as u64,
        ..CUDA_EXTERNAL_MEMORY_HANDLE_DESC::default()
    }
}

fn import(fd: i32, bytes: usize) -> CUexternalMemory {
    get!(cuImportExternalMemory(&description(fd, bytes)))
}

fn buffer(memory: CUexternalMemory, offset: u64, size: u64) -> Result<CUdeviceptr, CUresult> {
    let description = CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
        offset,
        size,
        ..CUDA_EXTERNAL_MEMORY_BUFFER_DESC::default()
    };
    let mut pointer = 0;
    match code!(cuExternalMemoryGetMappedBuffer(
        &raw mut pointer,
        memory,
        &raw const description
    )) {
        CUDA_SUCCESS => Ok(pointer),
        code => Err(code),
    }
}

fn memory_file(bytes: i64, flags: u32) -> OwnedFd {
    // SAFETY: a new descriptor, owned by the result.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | flags);
        assert_eq!(libc::ftruncate(fd, bytes), 0);
        OwnedFd::from_raw_fd(fd)
    }
}

/// A descriptor of new device memory, and its handle.
fn exported() -> (CUmemGenericAllocationHandle, i32) {
    let properties = CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation {
            type_: CU_MEM_LOCATION_TYPE_DEVICE,
            anonymous1: CUmemLocation_v1_anonymous1 { id: 0 },
        },
        ..CUmemAllocationProp::default()
    };
    let handle: CUmemGenericAllocationHandle = get!(cuMemCreate(PAGE, &raw const properties, 0));
    let mut fd = -1i32;
    cu!(cuMemExportToShareableHandle(
        (&raw mut fd).cast(),
        handle,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        0
    ));
    (handle, fd)
}

#[test]
fn a_memory_file_of_another_process() {
    alone("a_memory_file_of_another_process", &[], || {
        start(0);
        let (free, _) = memory_info();
        let file = memory_file(64 << 10, libc::MFD_ALLOW_SEALING);
        let other = file.try_clone().unwrap();
        rustix::io::pwrite(&other, &[1, 2, 3, 4, 5], 5000).unwrap();
        let number = file.as_raw_fd();
        let memory = import(number, 64 << 10);
        std::mem::forget(file);
        // SAFETY: asks about a number.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        assert_eq!(flags, -1, "it is the driver's now");
        // Where it starts need not be a page's start.
        let pointer = buffer(memory, 5001, 3).unwrap();
        assert_eq!(download::<u8>(pointer, 3), [2, 3, 4]);
        assert_eq!(
            code!(cuMemsetD8_v2(pointer, 0, 4)),
            CUDA_ERROR_INVALID_VALUE,
            "nothing beyond"
        );
        let whole = buffer(memory, 0, 64 << 10).unwrap();
        cu!(cuMemsetD8_v2(whole + 5000, 9, 1));
        let mut byte = [0];
        rustix::io::pread(&other, &mut byte, 5000).unwrap();
        assert_eq!(byte, [9], "the other side sees it");
        assert_eq!(memory_info().0, free, "another owner is charged for it");
        assert!(
            rustix::fs::ftruncate(&other, 0).is_err(),
            "and cannot take it away under the device"
        );
        cu!(cuDestroyExternalMemory(memory));
        assert_eq!(code!(cuDestroyExternalMemory(memory)), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(download::<u8>(whole + 5000, 1), [9], "mapped until freed");
        assert_eq!(code!(cuMemFreeAsync(whole, null_mut())), CUDA_ERROR_INVALID_VALUE);
        for pointer in [pointer, whole] {
            cu!(cuMemFree_v2(pointer));
            assert_eq!(code!(cuMemFree_v2(pointer)), CUDA_ERROR_INVALID_VALUE);
        }
    });
}

#[test]
fn memory_of_the_device_counts_once() {
    alone("memory_of_the_device_counts_once", &[], || {
        start(0);
        let (free, _) = memory_info();
        let (handle, fd) = exported();
        let memory = import(fd, PAGE);
        assert_eq!(memory_info().0, free - PAGE);
        let pointer = buffer(memory, 0, PAGE as u64).unwrap();
        cu!(cuMemsetD32_v2(pointer, 4, 1));
        cu!(cuMemRelease(handle));
        cu!(cuDestroyExternalMemory(memory));
        assert_eq!(held(0).0, PAGE as u64, "mapped still");
        assert_eq!(download::<u32>(pointer, 1), [4]);
        cu!(cuMemFree_v2(pointer));
        assert_eq!(memory_info().0, free);
    });
}

#[test]
fn arrays_in_external_memory() {
    alone("arrays_in_external_memory", &[], || {
        start(0);
        let (free, _) = memory_info();
        let (handle, fd) = exported();
        let memory = import(fd, PAGE);
        cu!(cuMemRelease(handle));
        let mut description = CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
            offset: 4096,
            numLevels: 2,
            ..CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC::default()
        };
        description.arrayDesc.Width = 64;
        description.arrayDesc.Height = 8;
        description.arrayDesc.Format = CU_AD_FORMAT_UNSIGNED_INT8;
        description.arrayDesc.NumChannels = 1;
        let mipmap: CUmipmappedArray = get!(cuExternalMemoryGetMappedMipmappedArray(
            memory,
            &raw const description
        ));
        let level: CUarray = get!(cuMipmappedArrayGetLevel(mipmap, 0));
        let picture = [7u8; 512];
        cu!(cuMemcpyHtoA_v2(level, 0, picture.as_ptr().cast(), 512));
        let pointer = buffer(memory, 4096, 512).unwrap();
        assert_eq!(download::<u8>(pointer, 512), picture);
        for bad in [
            CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
                numLevels: 0,
                ..description
            },
            CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
                numLevels: 8,
                ..description
            },
            CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
                offset: PAGE as u64 - 512,
                ..description
            },
            CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
                offset: u64::MAX,
                ..description
            },
        ] {
            assert_eq!(
                code!(cuExternalMemoryGetMappedMipmappedArray(
                    &mut null_mut(),
                    memory,
                    &raw const bad
                )),
                CUDA_ERROR_INVALID_VALUE
            );
        }
        cu!(cuMipmappedArrayDestroy(mipmap));
        cu!(cuDestroyExternalMemory(memory));
        cu!(cuMemFree_v2(pointer));
        assert_eq!(memory_info().0, free);
    });
}

#[test]
fn memory_is_imported_on_the_device_that_it_is_on() {
    let test = "memory_is_imported_on_the_device_that_it_is_on";
    alone(test, &[("DIVVY_EMULATED", "h100*2")], || {
        start(0);
        let (handle, fd) = exported();
        start(1);
        assert_eq!(
            code!(cuImportExternalMemory(&mut null_mut(), &description(fd, PAGE))),
            CUDA_ERROR_INVALID_HANDLE
        );
        start(0);
        let memory = import(fd, PAGE);
        cu!(cuMemRelease(handle));
        cu!(cuDestroyExternalMemory(memory));
        assert_eq!(held(0), (0, 0));
    });
}

#[test]
fn what_cannot_be_imported() {
    alone("what_cannot_be_imported", &[], || {
        start(0);
        let try_import = |description: CUDA_EXTERNAL_MEMORY_HANDLE_DESC| {
            code!(cuImportExternalMemory(&mut null_mut(), &raw const description))
        };
        let good = memory_file(8192, libc::MFD_ALLOW_SEALING);
        let unsealable = memory_file(8192, 0);
        let disk = tempfile::tempfile().unwrap();
        disk.set_len(8192).unwrap();
        for (fd, bytes) in [
            (-1, 8192),
            (1 << 20, 8192),
            (disk.as_raw_fd(), 8192),
            (unsealable.as_raw_fd(), 8192),
            (good.as_raw_fd(), 8193),
            (good.as_raw_fd(), usize::MAX),
        ] {
            assert_eq!(
                try_import(description(fd, bytes)),
                CUDA_ERROR_INVALID_HANDLE,
                "{fd} {bytes}"
            );
        }
        let fine = description(good.as_raw_fd(), 8192);
        for (change, expected) in [
            (
                CUDA_EXTERNAL_MEMORY_HANDLE_DESC { size: 0, ..fine },
                CUDA_ERROR_INVALID_VALUE,
            ),
            (
                CUDA_EXTERNAL_MEMORY_HANDLE_DESC { flags: 8, ..fine },
                CUDA_ERROR_INVALID_VALUE,
            ),
            (
                CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                    type_: CUexternalMemoryHandleType(77),
                    ..fine
                },
                CUDA_ERROR_INVALID_VALUE,
            ),
            (
                CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                    type_: CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD,
                    ..fine
                },
                CUDA_ERROR_NOT_SUPPORTED,
            ),
        ] {
            assert_eq!(try_import(change), expected);
        }
        // A refusal leaves the descriptor to the program.
        // SAFETY: asks about a number.
        assert!(unsafe { libc::fcntl(good.as_raw_fd(), libc::F_GETFD) } >= 0);
        let memory = import(
            good.try_clone().map(std::os::fd::IntoRawFd::into_raw_fd).unwrap(),
            8192,
        );
        for (offset, bytes) in [(0, 0), (0, 8193), (8192, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(buffer(memory, offset, bytes), Err(CUDA_ERROR_INVALID_VALUE));
        }
        for bogus in [null_mut(), 7 as CUexternalMemory, usize::MAX as CUexternalMemory] {
            assert_eq!(buffer(bogus, 0, 1), Err(CUDA_ERROR_INVALID_HANDLE));
            assert_eq!(code!(cuDestroyExternalMemory(bogus)), CUDA_ERROR_INVALID_HANDLE);
        }
    });
}
