//! Physical memory as a descriptor: the same bytes in two processes, counted once, alive until the last lets go.

mod common;

use common::peer::{Peer, listen, say};
use common::{alone, code, cu, download, get, held, held_by, memory_info, role, start};
use divvy_abi::*;
use std::os::fd::AsRawFd;

const PAGE: usize = 2 << 20;
const MINE: u64 = PAGE as u64;

fn shareable() -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation {
            type_: CU_MEM_LOCATION_TYPE_DEVICE,
            anonymous1: CUmemLocation_v1_anonymous1 { id: 0 },
        },
        ..CUmemAllocationProp::default()
    }
}

fn create() -> CUmemGenericAllocationHandle {
    get!(cuMemCreate(PAGE, &shareable(), 0))
}

fn export(handle: CUmemGenericAllocationHandle) -> i32 {
    let mut fd = -1i32;
    cu!(cuMemExportToShareableHandle(
        (&raw mut fd).cast(),
        handle,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        0
    ));
    fd
}

fn import(fd: i32) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let mut handle = 0;
    let code = code!(cuMemImportFromShareableHandle(
        &raw mut handle,
        fd as usize as *mut c_void,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    ));
    if code == CUDA_SUCCESS {
        Ok(handle)
    } else {
        Err(code)
    }
}

/// Maps it somewhere, with access.
fn map(handle: CUmemGenericAllocationHandle) -> CUdeviceptr {
    let at: CUdeviceptr = get!(cuMemAddressReserve(PAGE, 0, 0, 0));
    cu!(cuMemMap(at, PAGE, 0, handle, 0));
    let access = CUmemAccessDesc {
        location: shareable().location,
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    cu!(cuMemSetAccess(at, PAGE, &raw const access, 1));
    at
}

/// The other process: imports what `PASSED` names, then does as it is told.
fn importer() {
    start(0);
    let passed = std::env::var("PASSED").unwrap();
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(passed)
        .unwrap();
    let handle = import(file.as_raw_fd()).unwrap();
    drop(file);
    let at = map(handle);
    cu!(cuMemRelease(handle));
    say(download::<u32>(at, 1)[0]);
    while let Some(order) = listen() {
        match order.as_str() {
            "write" => cu!(cuMemsetD32_v2(at, 77, 1)),
            "read" => {}
            "free" => cu!(cuMemUnmap(at, PAGE)),
            _ => unreachable!("{order}"),
        }
        let value = if order == "free" {
            0
        } else {
            download::<u32>(at, 1)[0]
        };
        let _room = memory_info();
        let (own, all) = held(0);
        say(format_args!("{value} {own} {all}"));
    }
}

fn passed(fd: i32) -> String {
    format!("/proc/{}/fd/{fd}", std::process::id())
}

/// Runs `body` as the exporter, and [`importer`] in processes that ask for it.
fn pair(test: &str, body: impl FnOnce(&str)) {
    if role().as_deref() == Some("importer") {
        return importer();
    }
    alone(test, &[], || body(&std::env::var("DIVVY_RUN_DIR").unwrap()));
}

#[test]
fn two_processes_see_the_same_bytes_and_pay_once() {
    let test = "two_processes_see_the_same_bytes_and_pay_once";
    pair(test, |directory| {
        start(0);
        let (_, total) = memory_info();
        let handle = create();
        let at = map(handle);
        cu!(cuMemsetD32_v2(at, 5, 1));
        let fd = export(handle);
        let mut peer = Peer::start(test, "importer", directory, &[("PASSED", &passed(fd))]);
        assert_eq!(peer.hear(), "5");
        assert_eq!(peer.ask("write"), format!("77 0 {MINE}"), "the exporter pays");
        assert_eq!(download::<u32>(at, 1), [77]);
        assert_eq!(held(0), (MINE, MINE));
        assert_eq!(memory_info().0, total - PAGE);

        // The exporter lets go: the memory is the importer's from here on.
        cu!(cuMemRelease(handle));
        cu!(cuMemUnmap(at, PAGE));
        assert_eq!(held(0), (0, MINE));
        assert_eq!(memory_info().0, total - PAGE);
        assert_eq!(peer.ask("read"), format!("77 {MINE} {MINE}"));
        assert_eq!(held(0), (0, MINE));
        assert_eq!(peer.ask("free"), "0 0 0");
        assert_eq!(memory_info().0, total);
        // SAFETY: closes the descriptor that the export made.
        unsafe { libc::close(fd) };
        peer.end();
    });
}

#[test]
fn a_killed_exporter_leaves_the_memory_to_the_importer() {
    let test = "a_killed_exporter_leaves_the_memory_to_the_importer";
    match role().as_deref() {
        Some("importer") => return importer(),
        Some("exporter") => {
            start(0);
            let handle = create();
            cu!(cuMemsetD32_v2(map(handle), 9, 1));
            say(passed(export(handle)));
            let _ = listen();
            return;
        }
        Some(_) => {}
        None => return alone(test, &[], || {}),
    }
    let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
    start(0);
    let (_, total) = memory_info();
    let mut exporter = Peer::start(test, "exporter", &directory, &[]);
    let passed = exporter.hear();
    let mut importer = Peer::start(test, "importer", &directory, &[("PASSED", &passed)]);
    assert_eq!(importer.hear(), "9");
    assert_eq!(held_by(0, exporter.pid()), (MINE, MINE));
    exporter.kill();
    // No message has reached the importer yet, and nothing is lost.
    assert_eq!(memory_info().0, total - PAGE);
    assert_eq!(
        code!(cuMemAlloc_v2(&mut 0, total / PAGE * PAGE)),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    assert_eq!(importer.ask("read"), format!("9 {MINE} {MINE}"));
    assert_eq!(held_by(0, importer.pid()), (MINE, MINE));
    importer.kill();
    assert_eq!(memory_info().0, total, "the last one is dead");
    let whole: CUdeviceptr = get!(cuMemAlloc_v2(total / PAGE * PAGE));
    cu!(cuMemFree_v2(whole));
    let left: Vec<_> = std::fs::read_dir(&directory)
        .unwrap()
        .flatten()
        // The device's own pages stay.
        .filter(|entry| entry.path().is_dir() && entry.file_name() != "emulated")
        .flat_map(|shared| std::fs::read_dir(shared.path()).unwrap())
        .collect();
    assert!(left.is_empty(), "no ownership records are left: {left:?}");
}

#[test]
fn the_same_process_may_import_what_it_exports() {
    alone("the_same_process_may_import_what_it_exports", &[], || {
        start(0);
        let (free, _) = memory_info();
        let handle = create();
        let fd = export(handle);
        let again = import(fd).unwrap();
        assert_eq!(memory_info().0, free - PAGE, "once");
        let (first, second) = (map(handle), map(again));
        cu!(cuMemsetD32_v2(first, 3, 1));
        assert_eq!(download::<u32>(second, 1), [3]);
        for handle in [handle, again] {
            cu!(cuMemRelease(handle));
        }
        cu!(cuMemUnmap(first, PAGE));
        assert_eq!(memory_info().0, free - PAGE);
        cu!(cuMemUnmap(second, PAGE));
        assert_eq!(memory_info().0, free);
        // The descriptor still has the bytes; a process that imports it now is charged for them.
        let back = import(fd).unwrap();
        assert_eq!(memory_info().0, free - PAGE);
        assert_eq!(download::<u32>(map(back), 1), [3]);
        let facts: CUmemAllocationProp = get!(cuMemGetAllocationPropertiesFromHandle(back));
        assert_eq!(
            facts.requestedHandleTypes,
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        );
    });
}

#[test]
fn what_is_no_shareable_memory_is_refused() {
    alone("what_is_no_shareable_memory_is_refused", &[], || {
        start(0);
        let (free, _) = memory_info();
        let mut fd = -1i32;
        let mut export_as = |handle, kind, flags| {
            code!(cuMemExportToShareableHandle(
                (&raw mut fd).cast(),
                handle,
                kind,
                flags
            ))
        };
        let posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let handle = create();
        assert_eq!(
            export_as(handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_NOT_SUPPORTED
        );
        assert_eq!(
            export_as(handle, CU_MEM_HANDLE_TYPE_NONE, 0),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(export_as(handle, posix, 1), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(export_as(0xdead_beef, posix, 0), CUDA_ERROR_INVALID_VALUE);
        let private = CUmemAllocationProp {
            requestedHandleTypes: CU_MEM_HANDLE_TYPE_NONE,
            ..shareable()
        };
        let private: CUmemGenericAllocationHandle = get!(cuMemCreate(PAGE, &raw const private, 0));
        assert_eq!(
            export_as(private, posix, 0),
            CUDA_ERROR_INVALID_VALUE,
            "not asked for"
        );

        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * PAGE as u64).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for bad in [-1, 1 << 20, file.as_raw_fd(), null.as_raw_fd()] {
            assert_eq!(import(bad), Err(CUDA_ERROR_INVALID_VALUE), "{bad}");
        }
        let exported = export(handle);
        let mut imported = 0;
        assert_eq!(
            code!(cuMemImportFromShareableHandle(
                &raw mut imported,
                exported as usize as *mut c_void,
                CU_MEM_HANDLE_TYPE_FABRIC
            )),
            CUDA_ERROR_NOT_SUPPORTED
        );
        assert_eq!(
            code!(cuMemImportFromShareableHandle(
                std::ptr::null_mut(),
                exported as usize as *mut c_void,
                posix
            )),
            CUDA_ERROR_INVALID_VALUE
        );
        // No process can cut the memory off under the device.
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::ftruncate(exported, 0) }, -1);
        cu!(cuMemRelease(private));
        cu!(cuMemRelease(handle));
        assert_eq!(memory_info().0, free);
    });
}

#[test]
fn an_import_that_does_not_fit_is_out_of_memory() {
    alone("an_import_that_does_not_fit_is_out_of_memory", &[], || {
        start(0);
        let handle = create();
        let fd = export(handle);
        cu!(cuMemRelease(handle));
        let rest = memory_info().0 / PAGE * PAGE;
        let all: CUdeviceptr = get!(cuMemAlloc_v2(rest));
        assert_eq!(import(fd), Err(CUDA_ERROR_OUT_OF_MEMORY));
        cu!(cuMemFree_v2(all));
        assert!(import(fd).is_ok());
    });
}
