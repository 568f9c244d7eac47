//! Memory and pools of one process in another.

mod common;

use common::peer::{Peer, listen, say};
use common::{alone, code, cu, download, get, held, held_by, memory_info, role, start, upload};
use divvy_abi::*;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const PAGE: usize = 2 * MIB;
const LAZY: u32 = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 64] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

fn export(pointer: CUdeviceptr) -> String {
    let handle: CUipcMemHandle = get!(cuIpcGetMemHandle(pointer));
    hex(&handle.reserved.map(|byte| byte as u8))
}

fn open(handle: &str) -> Result<CUdeviceptr, CUresult> {
    let handle = CUipcMemHandle {
        reserved: unhex(handle).map(|byte| byte as c_char),
    };
    let mut pointer = 0;
    match code!(cuIpcOpenMemHandle_v2(&raw mut pointer, handle, LAZY)) {
        CUDA_SUCCESS => Ok(pointer),
        code => Err(code),
    }
}

/// The other process: opens handles and does as it is told with the memory.
fn opener() {
    start(0);
    let mut pointer = 0;
    while let Some(order) = listen() {
        let (verb, rest) = order.split_once(' ').unwrap_or((&order, ""));
        match verb {
            "open" => match open(rest) {
                Ok(at) => {
                    pointer = at;
                    say(download::<u32>(at, 1)[0]);
                }
                Err(code) => say(named(code)),
            },
            "again" => say(open(rest) == Ok(pointer)),
            "write" => {
                cu!(cuMemsetD32_v2(pointer, rest.parse().unwrap(), 1));
                say("done");
            }
            "read" => say(download::<u32>(pointer, 1)[0]),
            "beyond" => say(named(code!(cuMemsetD8_v2(pointer, 0, rest.parse().unwrap())))),
            "race" => say(race(rest)),
            "free" => say(named(code!(cuMemFree_v2(pointer)))),
            "close" => say(named(code!(cuIpcCloseMemHandle(pointer)))),
            "held" => {
                let _settles = memory_info();
                say(held(0).0);
            }
            _ => unreachable!("{order}"),
        }
    }
}

/// Holds its stream up until another thread has opened the handle again, or for a bounded time.
static REOPENED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn until_reopened(closing: *mut c_void) {
    // SAFETY: the caller's flag, which outlives the stream's work.
    let closing = unsafe { &*closing.cast::<AtomicBool>() };
    closing.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    while !REOPENED.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
}

/// Two threads of one process, many times: one closes the last mapping of a handle, and while it waits for the device's
/// work the other opens the same handle. The opened memory must be there after the closing, and must close.
fn race(handle: &str) -> String {
    let working = AtomicBool::new(false);
    for round in 0..200 {
        let first = open(handle).expect("it opens");
        working.store(false, Ordering::SeqCst);
        REOPENED.store(false, Ordering::SeqCst);
        let flag = (&raw const working).cast_mut().cast();
        cu!(cuLaunchHostFunc(null_mut(), Some(until_reopened), flag));
        let context: CUcontext = get!(cuCtxGetCurrent());
        let context = context as usize;
        let second = std::thread::scope(|scope| {
            let opener = scope.spawn(|| {
                cu!(cuCtxSetCurrent(context as CUcontext));
                while !working.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                // Now early, now late in the closing.
                (0..round).for_each(|_| std::thread::yield_now());
                let opened = open(handle);
                REOPENED.store(true, Ordering::SeqCst);
                opened
            });
            cu!(cuIpcCloseMemHandle(first));
            opener.join().expect("the thread ends")
        });
        let Ok(second) = second else {
            return format!("round {round}: not opened: {second:?}");
        };
        let mut value = 0_u32;
        let read = code!(cuMemcpyDtoH_v2((&raw mut value).cast(), second, 4));
        if (read, value) != (CUDA_SUCCESS, 5) {
            return format!("round {round}: {} {value}", named(read));
        }
        let closed = code!(cuIpcCloseMemHandle(second));
        if closed != CUDA_SUCCESS {
            return format!("round {round}: closing it: {}", named(closed));
        }
        if code!(cuIpcCloseMemHandle(second)) != CUDA_ERROR_INVALID_VALUE {
            return format!("round {round}: closed once too often");
        }
    }
    "sound".into()
}

fn named(code: CUresult) -> &'static str {
    code.label().unwrap_or("?")
}

fn with_opener(test: &str, body: impl FnOnce(&mut Peer)) {
    if role().as_deref() == Some("opener") {
        return opener();
    }
    alone(test, &[], || {
        let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
        start(0);
        body(&mut Peer::start(test, "opener", &directory, &[]));
    });
}

#[test]
fn one_allocation_in_two_processes() {
    with_opener("one_allocation_in_two_processes", |peer| {
        let (_, total) = memory_info();
        let neighbour = upload(&[1u32; 100]);
        let memory = upload(&[5u32; 100]);
        let handle = export(memory + 8);
        assert_eq!(handle, export(memory), "of the allocation, not of the address");
        assert_eq!(peer.ask(&format!("open {handle}")), "5");
        assert_eq!(peer.ask("write 6"), "done");
        assert_eq!(download::<u32>(memory, 2), [6, 5]);
        assert_eq!(download::<u32>(neighbour, 1), [1]);
        assert_eq!(
            peer.ask("beyond 513"),
            "CUDA_ERROR_INVALID_VALUE",
            "not the neighbours"
        );
        assert_eq!(
            peer.ask("free"),
            "CUDA_ERROR_INVALID_VALUE",
            "it is not the opener's to free"
        );
        assert_eq!(memory_info().0, total - PAGE, "it counts once");
        assert_eq!(peer.ask("held"), "0");
        // Opened twice, closed twice.
        assert_eq!(peer.ask(&format!("again {handle}")), "true");
        assert_eq!(peer.ask("close"), "CUDA_SUCCESS");
        assert_eq!(peer.ask("read"), "6");
        assert_eq!(peer.ask("close"), "CUDA_SUCCESS");
        assert_eq!(peer.ask("close"), "CUDA_ERROR_INVALID_VALUE");
        assert_eq!(peer.ask(&format!("open {handle}")), "6");
        // A large allocation has pages of its own.
        let large: CUdeviceptr = get!(cuMemAlloc_v2(3 * PAGE));
        cu!(cuMemsetD32_v2(large, 9, 1));
        assert_eq!(peer.ask(&format!("open {}", export(large))), "9");
    });
}

#[test]
fn a_handle_opened_while_its_last_mapping_closes_stays_open() {
    with_opener(
        "a_handle_opened_while_its_last_mapping_closes_stays_open",
        |peer| {
            let memory = upload(&[5u32; 100]);
            let handle = export(memory);
            assert_eq!(peer.ask(&format!("race {handle}")), "sound");
            assert_eq!(peer.ask("held"), "0");
        },
    );
}

#[test]
fn what_is_freed_cannot_be_opened() {
    with_opener("what_is_freed_cannot_be_opened", |peer| {
        let (_, total) = memory_info();
        let keeps_the_page = upload(&[1u32; 4]);
        let memory = upload(&[2u32; 4]);
        let handle = export(memory);
        cu!(cuMemFree_v2(memory));
        assert_eq!(peer.ask(&format!("open {handle}")), "CUDA_ERROR_INVALID_HANDLE");
        let reused = upload(&[3u32; 4]);
        assert_eq!(reused, memory, "the same place");
        assert_eq!(
            peer.ask(&format!("open {handle}")),
            "CUDA_ERROR_INVALID_HANDLE",
            "and not the same memory"
        );
        assert_eq!(peer.ask(&format!("open {}", export(reused))), "3");
        assert_eq!(peer.ask("close"), "CUDA_SUCCESS");
        for pointer in [keeps_the_page, reused] {
            cu!(cuMemFree_v2(pointer));
        }
        assert_eq!(memory_info().0, total);

        // Freed while another has it open: undefined on hardware, and here the bytes stay until it is closed.
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(PAGE));
        cu!(cuMemsetD32_v2(memory, 7, 1));
        assert_eq!(peer.ask(&format!("open {}", export(memory))), "7");
        cu!(cuMemFree_v2(memory));
        assert_eq!(memory_info().0, total - PAGE);
        assert_eq!(peer.ask("held"), PAGE.to_string());
        let other: CUdeviceptr = get!(cuMemAlloc_v2(PAGE));
        cu!(cuMemsetD32_v2(other, 8, 1));
        assert_eq!(peer.ask("read"), "7");
        assert_eq!(peer.ask("close"), "CUDA_SUCCESS");
        assert_eq!(memory_info().0, total - PAGE);
        cu!(cuMemFree_v2(other));
        assert_eq!(memory_info().0, total);
    });
}

#[test]
fn a_killed_owner_leaves_memory_that_still_counts() {
    let test = "a_killed_owner_leaves_memory_that_still_counts";
    match role().as_deref() {
        Some("opener") => return opener(),
        Some("owner") => {
            start(0);
            say(export(upload(&[4u32; 4])));
            let _ = listen();
            return;
        }
        Some(_) => {}
        None => return alone(test, &[], || {}),
    }
    let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
    start(0);
    let (_, total) = memory_info();
    let mut owner = Peer::start(test, "owner", &directory, &[]);
    let mut opener = Peer::start(test, "opener", &directory, &[]);
    let handle = owner.hear();
    assert_eq!(opener.ask(&format!("open {handle}")), "4");
    assert_eq!(held_by(0, owner.pid()).0, PAGE as u64);
    owner.kill();
    assert_eq!(memory_info().0, total - PAGE);
    assert_eq!(opener.ask("read"), "4");
    assert_eq!(opener.ask("held"), PAGE.to_string());
    assert_eq!(
        open(&handle),
        Err(CUDA_ERROR_INVALID_HANDLE),
        "there is no process to have it from"
    );
    opener.kill();
    assert_eq!(memory_info().0, total);
}

#[test]
fn handles_that_open_nothing() {
    alone("handles_that_open_nothing", &[], || {
        start(0);
        let (free, _) = memory_info();
        let memory = upload(&[1u32; 4]);
        let good = export(memory);
        assert_eq!(open(&good), Err(CUDA_ERROR_INVALID_CONTEXT), "one's own");
        assert_eq!(open(&"00".repeat(64)), Err(CUDA_ERROR_INVALID_HANDLE));
        assert_eq!(open(&"ff".repeat(64)), Err(CUDA_ERROR_INVALID_HANDLE));
        let changed = format!("{}{}", &good[..60], "0".repeat(68));
        assert_eq!(open(&changed), Err(CUDA_ERROR_INVALID_HANDLE));
        let raw = CUipcMemHandle {
            reserved: unhex(&good).map(|byte| byte as c_char),
        };
        for flags in [0, 2, u32::MAX] {
            assert_eq!(
                code!(cuIpcOpenMemHandle_v2(&mut 0, raw, flags)),
                CUDA_ERROR_INVALID_VALUE
            );
        }
        assert_eq!(
            code!(cuIpcOpenMemHandle_v2(null_mut(), raw, LAZY)),
            CUDA_ERROR_INVALID_VALUE
        );
        let host: *mut c_void = get!(cuMemHostAlloc(100, 0));
        let managed: CUdeviceptr = get!(cuMemAllocManaged(100, CU_MEM_ATTACH_GLOBAL.0));
        let pooled: CUdeviceptr = get!(cuMemAllocAsync(100, null_mut()));
        for pointer in [0, 64, host as u64, managed, pooled, u64::MAX] {
            let mut handle = raw;
            assert_eq!(
                code!(cuIpcGetMemHandle(&raw mut handle, pointer)),
                CUDA_ERROR_INVALID_VALUE
            );
        }
        for pointer in [0, memory, u64::MAX] {
            assert_eq!(code!(cuIpcCloseMemHandle(pointer)), CUDA_ERROR_INVALID_VALUE);
        }
        cu!(cuMemFree_v2(memory));
        cu!(cuMemFree_v2(pooled));
        assert_eq!(memory_info().0, free);
    });
}

fn shareable_pool() -> CUmemoryPool {
    let properties = CUmemPoolProps {
        allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation {
            type_: CU_MEM_LOCATION_TYPE_DEVICE,
            anonymous1: CUmemLocation_v1_anonymous1 { id: 0 },
        },
        ..CUmemPoolProps::default()
    };
    get!(cuMemPoolCreate(&raw const properties))
}

fn import_pool(fd: i32) -> Result<CUmemoryPool, CUresult> {
    let mut pool = null_mut();
    let code = code!(cuMemPoolImportFromShareableHandle(
        &raw mut pool,
        fd as usize as *mut c_void,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        0
    ));
    if code == CUDA_SUCCESS { Ok(pool) } else { Err(code) }
}

#[test]
fn pools_are_shared_pointer_by_pointer() {
    let test = "pools_are_shared_pointer_by_pointer";
    if role().as_deref() == Some("importer") {
        start(0);
        let file = std::env::var("PASSED").unwrap();
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(file)
            .unwrap();
        let pool = import_pool(file.as_raw_fd()).unwrap();
        assert_eq!(
            code!(cuMemAllocFromPoolAsync(&mut 0, 64, pool, null_mut())),
            CUDA_ERROR_INVALID_VALUE,
            "nothing can be allocated from it"
        );
        assert_eq!(code!(cuDeviceSetMemPool(0, pool)), CUDA_ERROR_INVALID_VALUE);
        say("ready");
        while let Some(data) = listen() {
            let mut data = CUmemPoolPtrExportData {
                reserved: unhex(&data),
            };
            let mut pointer = 0;
            let code = code!(cuMemPoolImportPointer(&raw mut pointer, pool, &raw mut data));
            if code != CUDA_SUCCESS {
                say(named(code));
                continue;
            }
            let value = download::<u32>(pointer, 1)[0];
            cu!(cuMemsetD32_v2(pointer, value + 1, 1));
            cu!(cuMemFreeAsync(pointer, null_mut()));
            cu!(cuCtxSynchronize());
            assert_eq!(
                code!(cuMemFree_v2(pointer)),
                CUDA_ERROR_INVALID_VALUE,
                "freed already"
            );
            say(format_args!("{value} {}", held(0).0));
        }
        return;
    }
    alone(test, &[], || {
        let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
        start(0);
        let (_, total) = memory_info();
        let pool = shareable_pool();
        let mut fd = -1i32;
        cu!(cuMemPoolExportToShareableHandle(
            (&raw mut fd).cast(),
            pool,
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            0
        ));
        let passed = format!("/proc/{}/fd/{fd}", std::process::id());
        let mut peer = Peer::start(test, "importer", &directory, &[("PASSED", &passed)]);
        assert_eq!(peer.hear(), "ready");
        let pointer: CUdeviceptr = get!(cuMemAllocFromPoolAsync(1000, pool, null_mut()));
        cu!(cuMemsetD32_v2(pointer, 5, 1));
        let data: CUmemPoolPtrExportData = get!(cuMemPoolExportPointer(pointer));
        let data = hex(&data.reserved);
        assert_eq!(peer.ask(&data), "5 0");
        assert_eq!(download::<u32>(pointer, 1), [6]);
        assert_eq!(peer.ask(&data), "6 0", "imported once more");
        cu!(cuMemFreeAsync(pointer, null_mut()));
        cu!(cuCtxSynchronize());
        assert_eq!(peer.ask(&data), "CUDA_ERROR_INVALID_VALUE", "freed");
        // Another pool's memory is not this one's.
        let other: CUdeviceptr = get!(cuMemAllocFromPoolAsync(1000, shareable_pool(), null_mut()));
        let data: CUmemPoolPtrExportData = get!(cuMemPoolExportPointer(other));
        assert_eq!(peer.ask(&hex(&data.reserved)), "CUDA_ERROR_INVALID_VALUE");
        assert_eq!(peer.ask(&"00".repeat(64)), "CUDA_ERROR_INVALID_VALUE");
        cu!(cuMemFree_v2(other));
        assert_eq!(memory_info().0, total);
    });
}

#[test]
fn pools_that_are_not_shared() {
    alone("pools_that_are_not_shared", &[], || {
        start(0);
        let private: CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
        let mut fd = -1i32;
        let mut export_as = |pool, kind, flags| {
            code!(cuMemPoolExportToShareableHandle(
                (&raw mut fd).cast(),
                pool,
                kind,
                flags
            ))
        };
        let posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        assert_eq!(export_as(private, posix, 0), CUDA_ERROR_INVALID_VALUE);
        let shared = shareable_pool();
        assert_eq!(
            export_as(shared, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_NOT_SUPPORTED
        );
        assert_eq!(export_as(shared, posix, 9), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(export_as(null_mut(), posix, 0), CUDA_ERROR_INVALID_HANDLE);
        let pointer: CUdeviceptr = get!(cuMemAllocAsync(100, null_mut()));
        let own: CUdeviceptr = get!(cuMemAlloc_v2(100));
        for pointer in [pointer, own, 0, 64] {
            assert_eq!(
                code!(cuMemPoolExportPointer(
                    &mut CUmemPoolPtrExportData::default(),
                    pointer
                )),
                CUDA_ERROR_INVALID_VALUE
            );
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        for bad in [-1, 1 << 20, null.as_raw_fd()] {
            assert_eq!(import_pool(bad), Err(CUDA_ERROR_INVALID_VALUE));
        }
        assert_eq!(
            code!(cuMemPoolImportPointer(
                &mut 0,
                shared,
                &mut CUmemPoolPtrExportData::default()
            )),
            CUDA_ERROR_INVALID_VALUE,
            "not an imported pool"
        );
    });
}

#[test]
fn a_program_that_closes_what_it_does_not_know() {
    with_opener("a_program_that_closes_what_it_does_not_know", |peer| {
        let (_, total) = memory_info();
        let memory = upload(&[5u32; 4]);
        let handle = export(memory);
        // SAFETY: as daemons do; all that is open above the three standard streams and the pipes of this test's peer is
        // the driver's.
        unsafe { libc::syscall(libc::SYS_close_range, 256, u32::MAX, 0) };
        assert_eq!(download::<u32>(memory, 1), [5], "memory stays");
        assert_eq!(
            peer.ask(&format!("open {handle}")),
            "CUDA_ERROR_INVALID_HANDLE",
            "and is out of reach of others"
        );
        // The present owner of its descriptors does not matter here.
        let files: Vec<_> = (0..600)
            .map(|_| std::fs::File::open("/dev/null").unwrap())
            .collect();
        cu!(cuMemFree_v2(memory));
        assert_eq!(memory_info().0, total);
        let again = upload(&[6u32; 4]);
        assert_eq!(
            peer.ask(&format!("open {}", export(again))),
            "6",
            "new memory is in reach"
        );
        cu!(cuMemFree_v2(again));
        for file in &files {
            assert!(file.metadata().is_ok(), "still the program's");
        }
    });
}
