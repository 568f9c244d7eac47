//! Allocations that several processes hold: inside a slice one process is charged; the importer is charged for memory
//! from outside.

mod address_reuse;
mod emulated;
mod members;
mod support;

use std::os::fd::IntoRawFd as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use divvy_abi::*;
use divvy_ledger::Terms;
use emulated::{Gate, alone_on, code, context, cu, get, held};
use members::{Member, is_member, obey, obey_on, one_gib_of_two_devices};
use support::Slice;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TEST: &str = "one_process_pays_for_what_a_slice_shares";

fn spelled(handle: &CUipcMemHandle) -> String {
    let bytes = handle.reserved.iter().map(|byte| (*byte as u8).to_string());
    bytes.collect::<Vec<_>>().join(" ")
}

fn handle(spelled: &str) -> CUipcMemHandle {
    let mut handle = CUipcMemHandle::default();
    for (to, from) in handle.reserved.iter_mut().zip(spelled.split(' ')) {
        *to = from.parse::<u8>().expect("a byte") as _;
    }
    handle
}

/// A member's actions: it allocates and exports, opens, closes, frees.
fn member() {
    let (mut own, mut opened, mut pool) = (0, 0, null_mut());
    let mut passing = null_mut();
    obey(|word, rest| match word {
        "export" => {
            own = get!(cuMemAlloc_v2(rest.parse().expect("a number")));
            let handle: CUipcMemHandle = get!(cuIpcGetMemHandle(own));
            let bytes: Vec<String> = handle
                .reserved
                .iter()
                .map(|byte| (*byte as u8).to_string())
                .collect();
            bytes.join(" ")
        }
        "pool" => {
            let mut properties = CUmemPoolProps {
                allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
                handleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                ..Default::default()
            };
            properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
            pool = get!(cuMemPoolCreate(&raw const properties));
            let mut descriptor = -1i32;
            let (out, kind) = (&raw mut descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
            cu!(cuMemPoolExportToShareableHandle(out.cast(), pool, kind, 0));
            let bytes = rest.parse().expect("a number");
            own = get!(cuMemAllocFromPoolAsync(bytes, pool, null_mut()));
            let data: CUmemPoolPtrExportData = get!(cuMemPoolExportPointer(own));
            let bytes: Vec<String> = data.reserved.iter().map(u8::to_string).collect();
            format!("/proc/{}/fd/{descriptor} {}", std::process::id(), bytes.join(" "))
        }
        "join" => {
            let (path, rest) = rest.split_once(' ').expect("two parts");
            let options = std::fs::OpenOptions::new().read(true).write(true).open(path);
            let descriptor = options.expect("a descriptor").into_raw_fd() as isize as *mut c_void;
            let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            let pool: CUmemoryPool = get!(cuMemPoolImportFromShareableHandle(descriptor, kind, 0));
            let mut data = CUmemPoolPtrExportData::default();
            for (to, from) in data.reserved.iter_mut().zip(rest.split(' ')) {
                *to = from.parse::<u8>().expect("a byte") as _;
            }
            format!(
                "{:?}",
                code!(cuMemPoolImportPointer(&raw mut opened, pool, &raw mut data))
            )
        }
        "leave" => format!("{:?}", code!(cuMemFree_v2(opened))),
        "destroy" => {
            cu!(cuMemFreeAsync(own, null_mut()));
            cu!(cuMemPoolDestroy(pool));
            format!("{:?}", code!(cuCtxSynchronize()))
        }
        "open" => {
            let mut handle = CUipcMemHandle::default();
            for (to, from) in handle.reserved.iter_mut().zip(rest.split(' ')) {
                *to = from.parse::<u8>().expect("a byte") as _;
            }
            format!("{:?}", code!(cuIpcOpenMemHandle_v2(&raw mut opened, handle, 1)))
        }
        "begin" => {
            passing = get!(cuCtxCreate_v2(0, 0));
            "begun".to_owned()
        }
        "end" => format!("{:?}", code!(cuCtxDestroy_v2(passing))),
        "used" => {
            let (mut free, mut total) = (0, 0);
            cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
            (total - free).to_string()
        }
        "alloc" => {
            let mut pointer = 0;
            format!(
                "{:?}",
                code!(cuMemAlloc_v2(&raw mut pointer, rest.parse().expect("a number")))
            )
        }
        "close" => format!("{:?}", code!(cuIpcCloseMemHandle(opened))),
        "free" => format!("{:?}", code!(cuMemFree_v2(own))),
        other => panic!("{other}"),
    });
}

#[test]
fn one_process_pays_for_what_a_slice_shares() {
    if is_member() {
        return member();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let uuid = emulated::uuid_in(folder.path());
    let slice = Slice::with(&[(GIB, uuid)], Terms::default());
    let other = Slice::with(&[(GIB, uuid)], Terms::default());
    let [mut first, mut second, mut foreign, mut fourth] =
        [&slice, &slice, &other, &other].map(|slice| Member::new(slice, folder.path(), TEST));
    let handle = first.tell(&format!("export {}", 600 << 20));
    assert_eq!(slice.used(), 600 * MIB);
    // Inside the slice no byte is charged twice; it would not fit twice.
    assert_eq!(second.tell(&format!("open {handle}")), "CUDA_SUCCESS");
    assert_eq!(slice.used(), 600 * MIB);
    // From another slice it is charged there once, however many processes open it.
    assert_eq!(foreign.tell(&format!("open {handle}")), "CUDA_SUCCESS");
    assert_eq!(other.used(), 600 * MIB);
    assert_eq!(fourth.tell(&format!("open {handle}")), "CUDA_SUCCESS");
    assert_eq!(other.used(), 600 * MIB);
    assert_eq!(second.tell("close"), "CUDA_SUCCESS");
    assert_eq!(slice.used(), 600 * MIB);
    // The charged process in the other slice closes first, and stays charged while the other has it open.
    assert_eq!(foreign.tell("close"), "CUDA_SUCCESS");
    assert_eq!(other.used(), 600 * MIB);
    assert_eq!(fourth.tell("close"), "CUDA_SUCCESS");
    assert_ne!(foreign.tell("close"), "CUDA_SUCCESS", "closed twice");
    foreign.tell(&format!("open {}", "0 ".repeat(64).trim_end()));
    assert_eq!(first.tell("free"), "CUDA_SUCCESS");
    assert_eq!(slice.used(), 0);
    // The owner frees first, and stays charged while another process has it open: the device still has it.
    let handle = first.tell(&format!("export {}", 600 << 20));
    assert_eq!(second.tell(&format!("open {handle}")), "CUDA_SUCCESS");
    assert_eq!(first.tell("free"), "CUDA_SUCCESS");
    assert_eq!(slice.used(), 600 * MIB);
    assert_eq!(second.tell("close"), "CUDA_SUCCESS");
    assert_eq!(first.tell("used"), "0");
    assert_eq!(slice.used(), 0);
    // And its address is handed out again. The next allocation there lies in other pages, the last of which it does not
    // fill.
    let bytes = (100 << 20) - 5;
    let handle = first.tell(&format!("export {bytes}"));
    assert_eq!(second.tell(&format!("open {handle}")), "CUDA_SUCCESS");
    assert_eq!(first.tell("free"), "CUDA_SUCCESS");
    first.tell(&format!("export {bytes}"));
    assert_eq!(slice.used(), 200 * MIB);
    assert_eq!(second.tell("close"), "CUDA_SUCCESS");
    assert_eq!(first.tell("used"), (100 * MIB).to_string());
    assert_eq!(first.tell("free"), "CUDA_SUCCESS");
    assert_eq!(slice.used(), 0);
    // A page that small allocations share stays for the one of them that another process has open.
    first.tell("export 1000");
    let handle = first.tell("export 2000");
    assert_eq!(second.tell(&format!("open {handle}")), "CUDA_SUCCESS");
    assert_eq!(first.tell("free"), "CUDA_SUCCESS");
    assert_eq!(slice.used(), 2 * MIB);
    assert_eq!(second.tell("close"), "CUDA_SUCCESS");
    assert_eq!(first.tell("used"), (2 * MIB).to_string(), "the other one");
    // So it does if it ended with its context.
    first.tell("begin");
    let handle = first.tell(&format!("export {bytes}"));
    assert_eq!(second.tell(&format!("open {handle}")), "CUDA_SUCCESS");
    assert_eq!(first.tell("end"), "CUDA_SUCCESS");
    first.tell("begin");
    assert_eq!(slice.used(), 102 * MIB);
    assert_eq!(second.tell("close"), "CUDA_SUCCESS");
    assert_eq!(first.tell("used"), (2 * MIB).to_string());
    // So it does if its pool was charged, and is gone.
    let shared = first.tell(&format!("pool {}", 600 << 20));
    assert_eq!(second.tell(&format!("join {shared}")), "CUDA_SUCCESS");
    assert_eq!(slice.used(), 602 * MIB);
    assert_eq!(first.tell("destroy"), "CUDA_SUCCESS");
    assert_eq!(first.tell("used"), (602 * MIB).to_string());
    assert_eq!(second.tell("leave"), "CUDA_SUCCESS");
    assert_eq!(first.tell("used"), (2 * MIB).to_string());
    // A slice without headroom for it cannot open it, and is charged nothing.
    other.pages.grant.set_memory_limit_bytes(100 << 20);
    let handle = first.tell(&format!("export {}", 600 << 20));
    assert_eq!(fourth.tell(&format!("open {handle}")), "CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(slice.used(), 602 * MIB);
    assert_eq!(first.tell("free"), "CUDA_SUCCESS");
    for member in [first, second, foreign, fourth] {
        member.end();
    }
    assert_eq!(slice.used(), 2 * MIB, "the small one that is not freed");
    slice.pages.ledger.reap().expect("a sound ledger");
    assert_eq!(slice.used(), 0);
}

/// Device memory that the processes below `folder` hold or that no process has returned to the device, in bytes.
fn on_device(folder: &std::path::Path, uuid: &str) -> u64 {
    let usage = divvy_device::usage_in(folder, uuid).expect("a device page");
    usage.used_bytes
}

#[test]
fn what_a_dead_process_paid_for_stays_charged_while_others_have_it() {
    if is_member() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let uuid = emulated::uuid_in(folder.path());
    let slice = Slice::with(&[(GIB, uuid)], Terms::default());
    let reaped = || {
        slice.pages.ledger.reap().expect("a sound ledger");
        slice.used()
    };
    let member = || Member::new(&slice, folder.path(), TEST);
    for pool in [false, true] {
        // The owner dies by SIGKILL, and the importer is idle.
        let (mut owner, mut holder) = (member(), member());
        let word = if pool { "pool" } else { "export" };
        let shared = owner.tell(&format!("{word} {}", 600 << 20));
        let open = if pool { "join" } else { "open" };
        assert_eq!(holder.tell(&format!("{open} {shared}")), "CUDA_SUCCESS");
        owner.kill();
        assert_eq!(reaped(), 600 * MIB);
        for _ in 0..12 {
            // Every time, whichever process reaps: this one's reservation, or the test.
            let mut next = member();
            assert_eq!(
                next.tell(&format!("alloc {}", 600 << 20)),
                "CUDA_ERROR_OUT_OF_MEMORY"
            );
            assert_eq!(next.tell(&format!("alloc {}", 100 << 20)), "CUDA_SUCCESS");
            next.kill();
            assert_eq!(reaped(), 600 * MIB);
            assert!(on_device(folder.path(), &divvy_device::Uuid(uuid).to_string()) <= GIB);
        }
        assert_eq!(
            slice
                .pages
                .ledger
                .processes()
                .filter(|process| process.alive)
                .count(),
            1
        );
        if pool {
            // The importer dies as well.
            holder.kill();
            assert_eq!(reaped(), 0);
        } else {
            assert_eq!(holder.tell("close"), "CUDA_SUCCESS");
            assert_eq!(reaped(), 0);
            holder.end();
        }
    }
    assert_eq!(reaped(), 0);
    assert_eq!(slice.pages.ledger.processes().count(), 0);
}

/// Pairs of neighbours, each with a page to itself.
const PAIRS: usize = 16;

/// Frees the second of two neighbours in a stream that waits, then the first, which another process has open. Then the
/// stream continues, the page is empty, and another allocation comes to its address, before any process has looked.
/// This repeats for all pairs.
fn neighbours() {
    static GATE: Gate = Gate::new();
    let (mut own, mut opened) = (Vec::new(), Vec::new());
    obey(|word, rest| match word {
        "export" => {
            own = (0..2 * PAIRS).map(|_| get!(cuMemAlloc_v2(1 << 20))).collect();
            let firsts = own.iter().step_by(2);
            let handles = firsts.map(|pointer| spelled(&get!(cuIpcGetMemHandle(*pointer))));
            handles.collect::<Vec<_>>().join(",")
        }
        "open" => {
            opened.extend(rest.split(',').map(|spelled| -> CUdeviceptr {
                get!(cuIpcOpenMemHandle_v2(
                    handle(spelled),
                    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0
                ))
            }));
            "opened".to_owned()
        }
        "close" => {
            opened
                .iter()
                .for_each(|pointer| cu!(cuIpcCloseMemHandle(*pointer)));
            "closed".to_owned()
        }
        "small" => {
            own = vec![get!(cuMemAlloc_v2(1000))];
            spelled(&get!(cuIpcGetMemHandle(own[0])))
        }
        // Another allocation comes to the page while the first waits for its stream.
        "swap" => {
            GATE.block(null_mut());
            cu!(cuMemFreeAsync(own[0], null_mut()));
            let _beside: CUdeviceptr = get!(cuMemAlloc_v2(1000));
            GATE.open();
            format!("{:?}", code!(cuCtxSynchronize()))
        }
        "free" => {
            let streams: [CUstream; 2] = [(); 2].map(|()| get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0)));
            GATE.block(streams[1]);
            for pair in own.chunks(2) {
                cu!(cuMemFreeAsync(pair[1], streams[1]));
                cu!(cuMemFreeAsync(pair[0], streams[0]));
            }
            cu!(cuStreamSynchronize(streams[0]));
            GATE.open();
            // SAFETY: a live stream; past the limiter, which does not look then.
            unsafe { assert!((divvy_emulator::TABLE.cuStreamSynchronize)(streams[1]).is_success()) };
            // They are not small, so that each has a page, but not all of it.
            let next: Vec<CUdeviceptr> = own.iter().map(|_| get!(cuMemAlloc_v2(3 << 19))).collect();
            let page = |pointer: &CUdeviceptr| pointer / (2 * MIB);
            let again = next
                .iter()
                .filter(|next| own.iter().any(|own| page(own) == page(next)));
            again.count().to_string()
        }
        other => panic!("{other}"),
    });
}

#[test]
fn a_page_that_has_emptied_unseen_is_another_when_its_address_comes_back() {
    if is_member() {
        return neighbours();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let uuid = emulated::uuid_in(folder.path());
    let slice = Slice::with(&[(GIB, uuid)], Terms::default());
    let test = "a_page_that_has_emptied_unseen_is_another_when_its_address_comes_back";
    let [mut owner, mut importer] = [(); 2].map(|()| Member::new(&slice, folder.path(), test));
    let figures = || {
        let device = on_device(folder.path(), &divvy_device::Uuid(uuid).to_string());
        (slice.used() / (2 * MIB), device / (2 * MIB))
    };
    let handles = owner.tell("export");
    importer.tell(&format!("open {handles}"));
    assert_eq!(figures(), (16, 16));
    assert_ne!(owner.tell("free"), "0", "addresses come back");
    assert_eq!(figures(), (48, 48));
    importer.tell("close");
    importer.end();
    owner.end();
}

#[test]
fn a_page_is_one_for_what_waits_in_it_and_what_comes_to_it() {
    if is_member() {
        return neighbours();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let uuid = emulated::uuid_in(folder.path());
    let slice = Slice::with(&[(GIB, uuid)], Terms::default());
    let test = "a_page_is_one_for_what_waits_in_it_and_what_comes_to_it";
    let [mut owner, mut importer] = [(); 2].map(|()| Member::new(&slice, folder.path(), test));
    let handle = owner.tell("small");
    importer.tell(&format!("open {handle}"));
    assert_eq!(owner.tell("swap"), "CUDA_SUCCESS");
    assert_eq!(slice.used(), 2 * MIB);
    importer.tell("close");
    importer.end();
    owner.end();
}

/// Opens exported memory in a context that ends, and whose addresses are taken as soon as it has ended.
fn passing() {
    let mut own = 0;
    obey_on(&address_reuse::TABLE, |word, rest| match word {
        "export" => {
            own = get!(cuMemAlloc_v2(20 << 20));
            spelled(&get!(cuIpcGetMemHandle(own)))
        }
        "free" => format!("{:?}", code!(cuMemFree_v2(own))),
        "open" => {
            let context: CUcontext = get!(cuCtxCreate_v2(0, 0));
            let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
            address_reuse::at(get!(cuIpcOpenMemHandle_v2(handle(rest), flags)));
            format!("{:?}", code!(cuCtxDestroy_v2(context)))
        }
        "look" => {
            let (mut free, mut total) = (0, 0);
            format!("{:?}", code!(cuMemGetInfo_v2(&raw mut free, &raw mut total)))
        }
        other => panic!("{other}"),
    });
}

#[test]
fn what_was_open_in_a_context_is_closed_though_its_address_is_in_use_again() {
    if is_member() {
        return passing();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let slice = Slice::with(&[(GIB, emulated::uuid_in(folder.path()))], Terms::default());
    let test = "what_was_open_in_a_context_is_closed_though_its_address_is_in_use_again";
    let [mut owner, mut importer] = [(); 2].map(|()| Member::new(&slice, folder.path(), test));
    let handle = owner.tell("export");
    assert_eq!(slice.used(), 20 * MIB);
    assert_eq!(importer.tell(&format!("open {handle}")), "CUDA_SUCCESS");
    assert_eq!(owner.tell("free"), "CUDA_SUCCESS");
    assert_eq!(owner.tell("look"), "CUDA_SUCCESS");
    assert_eq!(slice.used(), 0);
    importer.end();
    owner.end();
}

/// The most bytes that the device held when an import returned.
static MOST: AtomicU64 = AtomicU64::new(0);

unsafe extern "C-unwind" fn watched_import(
    out: *mut CUmemGenericAllocationHandle,
    shared: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    // SAFETY: the arguments are handed on as they came.
    let result = unsafe { (divvy_emulator::TABLE.cuMemImportFromShareableHandle)(out, shared, kind) };
    MOST.fetch_max(held(), Ordering::Relaxed);
    result
}

static WATCHED: Table = Table {
    cuMemImportFromShareableHandle: watched_import,
    ..divvy_emulator::TABLE
};

#[test]
fn what_only_a_descriptor_keeps_is_paid_for_before_it_is_imported() {
    let test = "what_only_a_descriptor_keeps_is_paid_for_before_it_is_imported";
    alone_on(&WATCHED, test, GIB, |slice| {
        context();
        let mut properties = CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            ..Default::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let made: CUmemGenericAllocationHandle = get!(cuMemCreate(900 << 20, &raw const properties, 0));
        let mut descriptor = -1i32;
        cu!(cuMemExportToShareableHandle(
            (&raw mut descriptor).cast(),
            made,
            kind,
            0
        ));
        cu!(cuMemRelease(made));
        assert_eq!((slice.used(), held()), (0, 0));
        let import = || {
            let mut handle = 0;
            let shared = descriptor as isize as *mut c_void;
            code!(cuMemImportFromShareableHandle(&raw mut handle, shared, kind)).ok()?;
            Ok::<_, CUresult>(handle)
        };
        // Without headroom for it the device never holds it, not even for a moment.
        let full: CUdeviceptr = get!(cuMemAlloc_v2(900 << 20));
        assert_eq!(import(), Err(CUDA_ERROR_OUT_OF_MEMORY));
        assert!(MOST.load(Ordering::Relaxed) <= GIB);
        assert_eq!((slice.used(), held()), (900 * MIB, 900 * MIB));
        cu!(cuMemFree_v2(full));
        // With headroom it is charged once, however often it is imported, and only with its own bytes.
        let first = import().expect("there is room");
        let second = import().expect("it is here");
        assert_eq!((slice.used(), held()), (900 * MIB, 900 * MIB));
        cu!(cuMemRelease(first));
        assert_eq!((slice.used(), held()), (900 * MIB, 900 * MIB));
        cu!(cuMemRelease(second));
        assert_eq!((slice.used(), held()), (0, 0));
        // An import that the driver refuses costs nothing.
        let none = code!(cuMemImportFromShareableHandle(
            null_mut(),
            descriptor as isize as *mut c_void,
            kind
        ));
        assert_eq!((none, slice.used()), (CUDA_ERROR_INVALID_VALUE, 0));
    });
}

/// The descriptor that another thread puts behind the number of the imported one, or -1.
static SWAPPED: AtomicI32 = AtomicI32::new(-1);
static GIVEN: AtomicI32 = AtomicI32::new(-1);

fn swap() {
    let (from, to) = (SWAPPED.load(Ordering::Relaxed), GIVEN.load(Ordering::Relaxed));
    // SAFETY: two descriptors of the test's own.
    assert_eq!(unsafe { libc::dup2(from, to) }, to);
}

unsafe extern "C-unwind" fn swapped_import(
    out: *mut CUmemGenericAllocationHandle,
    shared: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    swap();
    // SAFETY: the arguments are handed on as they came.
    unsafe { (divvy_emulator::TABLE.cuMemImportFromShareableHandle)(out, shared, kind) }
}

unsafe extern "C-unwind" fn swapped_external(
    out: *mut CUexternalMemory,
    description: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> CUresult {
    swap();
    // SAFETY: the arguments are handed on as they came.
    unsafe { (divvy_emulator::TABLE.cuImportExternalMemory)(out, description) }
}

static SWAPPING: Table = Table {
    cuMemImportFromShareableHandle: swapped_import,
    cuImportExternalMemory: swapped_external,
    ..divvy_emulator::TABLE
};

#[test]
fn a_descriptor_that_is_swapped_during_the_call_is_imported_as_it_was_looked_at() {
    let test = "a_descriptor_that_is_swapped_during_the_call_is_imported_as_it_was_looked_at";
    alone_on(&SWAPPING, test, GIB, |slice| {
        context();
        let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let parked = |bytes: usize| {
            let mut properties = CUmemAllocationProp {
                type_: CU_MEM_ALLOCATION_TYPE_PINNED,
                requestedHandleTypes: kind,
                ..Default::default()
            };
            properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
            let made: CUmemGenericAllocationHandle = get!(cuMemCreate(bytes, &raw const properties, 0));
            let mut descriptor = -1i32;
            cu!(cuMemExportToShareableHandle(
                (&raw mut descriptor).cast(),
                made,
                kind,
                0
            ));
            cu!(cuMemRelease(made));
            descriptor
        };
        SWAPPED.store(parked(900 << 20), Ordering::Relaxed);
        let small = parked(2 << 20);
        GIVEN.store(small, Ordering::Relaxed);
        let shared = small as isize as *mut c_void;
        let imported: CUmemGenericAllocationHandle = get!(cuMemImportFromShareableHandle(shared, kind));
        assert_eq!((slice.used(), held()), (2 * MIB, 2 * MIB));
        cu!(cuMemRelease(imported));
        assert_eq!((slice.used(), held()), (0, 0));
        // As external memory, whose descriptor the driver takes over: the number is free after that.
        let small = parked(2 << 20);
        GIVEN.store(small, Ordering::Relaxed);
        let described = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
            type_: CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
            handle: CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1_handle { fd: small },
            size: 2 << 20,
            ..Default::default()
        };
        let external: CUexternalMemory = get!(cuImportExternalMemory(&raw const described));
        assert_eq!((slice.used(), held()), (2 * MIB, 2 * MIB));
        // SAFETY: asks about a number.
        assert_eq!(unsafe { libc::fcntl(small, libc::F_GETFD) }, -1);
        cu!(cuDestroyExternalMemory(external));
        assert_eq!((slice.used(), held()), (0, 0));
    });
}

/// Exports an address inside an allocation on the first device, and opens it with another device current. Does the same
/// with physical memory, which it imports as external memory with any device current.
fn two_devices() {
    let mut external = null_mut();
    obey(|word, rest| match word {
        "create" => {
            let mut properties = CUmemAllocationProp {
                type_: CU_MEM_ALLOCATION_TYPE_PINNED,
                requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                ..Default::default()
            };
            properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
            let made: CUmemGenericAllocationHandle = get!(cuMemCreate(300 << 20, &raw const properties, 0));
            let (mut descriptor, kind) = (-1i32, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
            let out = (&raw mut descriptor).cast();
            cu!(cuMemExportToShareableHandle(out, made, kind, 0));
            if rest == "parked" {
                cu!(cuMemRelease(made));
            }
            format!("/proc/{}/fd/{descriptor}", std::process::id())
        }
        "import" => {
            let (device, path) = rest.split_once(' ').expect("two words");
            let _current: CUcontext = get!(cuCtxCreate_v2(0, device.parse().expect("a number")));
            let file = std::fs::File::options().read(true).write(true).open(path);
            let described = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                type_: CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
                handle: CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1_handle {
                    fd: file.expect("a descriptor").into_raw_fd(),
                },
                size: 300 << 20,
                ..Default::default()
            };
            format!(
                "{:?}",
                code!(cuImportExternalMemory(&raw mut external, &raw const described))
            )
        }
        "drop" => format!("{:?}", code!(cuDestroyExternalMemory(external))),
        "export" => {
            let own: CUdeviceptr = get!(cuMemAlloc_v2(600 << 20));
            spelled(&get!(cuIpcGetMemHandle(
                own + rest.parse::<u64>().expect("a number")
            )))
        }
        "open" => {
            let _other: CUcontext = get!(cuCtxCreate_v2(0, 1));
            let (mut opened, flags) = (0, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0);
            format!(
                "{:?}",
                code!(cuIpcOpenMemHandle_v2(&raw mut opened, handle(rest), flags))
            )
        }
        other => panic!("{other}"),
    });
}

#[test]
fn what_is_opened_is_paid_for_on_the_device_that_it_is_on() {
    if is_member() {
        return two_devices();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let uuids = one_gib_of_two_devices(folder.path());
    let [slice, other] = [(); 2].map(|()| Slice::with(&uuids, Terms::default()));
    let test = "what_is_opened_is_paid_for_on_the_device_that_it_is_on";
    let [mut owner, mut importer, mut foreign] =
        [&slice, &slice, &other].map(|slice| Member::new(slice, folder.path(), test));
    let used = |slice: &Slice| (slice.used(), slice.more[0].ledger.total_used());
    let handle = owner.tell("export 4096");
    // Inside the slice its owner is charged.
    assert_eq!(importer.tell(&format!("open {handle}")), "CUDA_SUCCESS");
    assert_eq!(used(&slice), (600 * MIB, 0));
    assert_eq!(foreign.tell(&format!("open {handle}")), "CUDA_SUCCESS");
    assert_eq!(used(&other), (600 * MIB, 0));
    // And the charge stays there when the owner dies.
    owner.kill();
    slice.pages.ledger.reap().expect("a sound ledger");
    assert_eq!(used(&slice), (600 * MIB, 0));
    importer.end();
    foreign.end();
}

#[test]
fn external_memory_is_paid_for_on_the_device_that_it_is_on() {
    if is_member() {
        return two_devices();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let found = divvy_device::devices("h100*2", folder.path()).expect("two devices");
    let uuids = [(GIB, found[0].uuid.0), (GIB, found[1].uuid.0)];
    let slice = Slice::with(&uuids, Terms::default());
    let test = "external_memory_is_paid_for_on_the_device_that_it_is_on";
    let [mut owner, mut importer] = [(); 2].map(|()| Member::new(&slice, folder.path(), test));
    let used = || {
        let device = |at: usize| on_device(folder.path(), &found[at].uuid.to_string());
        (
            (slice.used(), device(0)),
            (slice.more[0].ledger.total_used(), device(1)),
        )
    };
    let here = (300 * MIB, 300 * MIB);
    // Memory that only its descriptor keeps cannot be imported with another device current.
    let parked = owner.tell("create parked");
    assert_eq!(
        importer.tell(&format!("import 1 {parked}")),
        "CUDA_ERROR_INVALID_HANDLE"
    );
    assert_eq!(used(), ((0, 0), (0, 0)));
    assert_eq!(importer.tell(&format!("import 0 {parked}")), "CUDA_SUCCESS");
    assert_eq!(used(), (here, (0, 0)));
    assert_eq!(importer.tell("drop"), "CUDA_SUCCESS");
    assert_eq!(used(), ((0, 0), (0, 0)));
    // Another process's memory is charged once, and nothing is left after a refusal.
    let shared = owner.tell("create");
    assert_eq!(importer.tell(&format!("import 0 {shared}")), "CUDA_SUCCESS");
    assert_eq!(
        importer.tell(&format!("import 1 {shared}")),
        "CUDA_ERROR_INVALID_HANDLE"
    );
    assert_eq!(used(), (here, (0, 0)));
    importer.end();
    owner.end();
}
