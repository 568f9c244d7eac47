//! Memory of several processes whose owner has let go of it, or has died. It stays charged as long as any process has
//! it, and no longer, whichever process calls the driver.

mod emulated;
mod members;
mod support;

use std::os::fd::IntoRawFd as _;
use std::time::{Duration, Instant};

use divvy_abi::*;
use divvy_ledger::Terms;
use emulated::{code, cu, get};
use members::{Member, is_member, obey, one_gib_of_two_devices};
use support::Slice;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

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

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn member() {
    let mut handles: Vec<CUmemGenericAllocationHandle> = Vec::new();
    let mut opened: Vec<CUdeviceptr> = Vec::new();
    let mut own: Vec<CUdeviceptr> = Vec::new();
    let mut passing = std::ptr::null_mut();
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    obey(|word, rest| match word {
        "create" => {
            let mut properties = CUmemAllocationProp {
                type_: CU_MEM_ALLOCATION_TYPE_PINNED,
                requestedHandleTypes: kind,
                ..Default::default()
            };
            properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
            let made = get!(cuMemCreate(number(rest) as usize, &raw const properties, 0));
            handles.push(made);
            let mut descriptor = -1i32;
            cu!(cuMemExportToShareableHandle(
                (&raw mut descriptor).cast(),
                made,
                kind,
                0
            ));
            format!("/proc/{}/fd/{descriptor}", std::process::id())
        }
        "import" => {
            let file = std::fs::File::options().read(true).write(true).open(rest);
            let shared = file.expect("a descriptor").into_raw_fd() as isize as *mut c_void;
            handles.push(get!(cuMemImportFromShareableHandle(shared, kind)));
            "imported".to_owned()
        }
        "release" => {
            handles.drain(..).for_each(|handle| cu!(cuMemRelease(handle)));
            "released".to_owned()
        }
        "on" => {
            let _current: CUcontext = get!(cuCtxCreate_v2(0, number(rest) as i32));
            "there".to_owned()
        }
        "begin" => {
            passing = get!(cuCtxCreate_v2(0, 0));
            "begun".to_owned()
        }
        "finish" => format!("{:?}", code!(cuCtxDestroy_v2(passing))),
        "alloc" => {
            let mut pointer = 0;
            format!(
                "{:?}",
                code!(cuMemAlloc_v2(&raw mut pointer, number(rest) as usize))
            )
        }
        // Allocations of so many bytes, and how many of them.
        "export" => {
            let (bytes, count) = rest.split_once(' ').expect("two numbers");
            let allocations =
                (0..number(count)).map(|_| -> CUdeviceptr { get!(cuMemAlloc_v2(number(bytes) as usize)) });
            own = allocations.collect();
            let handles = own
                .iter()
                .map(|pointer| spelled(&get!(cuIpcGetMemHandle(*pointer))));
            handles.collect::<Vec<_>>().join(",")
        }
        "free" => {
            own.drain(..).for_each(|pointer| cu!(cuMemFree_v2(pointer)));
            "freed".to_owned()
        }
        "open" => {
            let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
            opened.extend(
                rest.split(',')
                    .map(|spelled| -> CUdeviceptr { get!(cuIpcOpenMemHandle_v2(handle(spelled), flags)) }),
            );
            "opened".to_owned()
        }
        "close" => {
            let count = if rest.is_empty() {
                opened.len()
            } else {
                number(rest) as usize
            };
            opened
                .drain(..count)
                .for_each(|pointer| cu!(cuIpcCloseMemHandle(pointer)));
            "closed".to_owned()
        }
        other => panic!("{other}"),
    });
}

/// Waits until the slice's ledger shows so many bytes, while no process calls the driver.
fn comes_to(slice: &Slice, bytes: u64) {
    let begin = Instant::now();
    while slice.used() != bytes {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{} charged",
            slice.used()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_all_have_left_is_charged_to_no_process_though_its_owner_is_idle() {
    if is_member() {
        return member();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let slice = Slice::with(&[(GIB, emulated::uuid_in(folder.path()))], Terms::default());
    let test = "what_all_have_left_is_charged_to_no_process_though_its_owner_is_idle";
    let member = || Member::new(&slice, folder.path(), test);
    let (mut owner, mut importer, mut third) = (member(), member(), member());
    for round in 0..50 {
        let shared = owner.tell(&format!("create {}", 600 << 20));
        importer.tell(&format!("import {shared}"));
        owner.tell("release");
        assert_eq!(slice.used(), 600 * MIB, "the importer has it");
        importer.tell("release");
        // At once, for the process that needs it.
        let asks = if round % 2 == 0 { &mut third } else { &mut importer };
        asks.tell("begin");
        assert_eq!(asks.tell(&format!("alloc {}", 600 << 20)), "CUDA_SUCCESS");
        assert_eq!(asks.tell("finish"), "CUDA_SUCCESS");
        comes_to(&slice, 0);
    }
    // The last importer is killed: it is found by a process that checks for dead ones, or that needs memory.
    let shared = owner.tell(&format!("create {}", 600 << 20));
    importer.tell(&format!("import {shared}"));
    owner.tell("release");
    importer.kill();
    slice.pages.ledger.reap().expect("a sound ledger");
    comes_to(&slice, 0);
    let mut importer = member();
    let shared = owner.tell(&format!("create {}", 600 << 20));
    importer.tell(&format!("import {shared}"));
    owner.tell("release");
    importer.kill();
    third.tell("begin");
    assert_eq!(third.tell(&format!("alloc {}", 600 << 20)), "CUDA_SUCCESS");
    assert_eq!(third.tell("finish"), "CUDA_SUCCESS");
    // It ended with its context, and shared pages with others.
    let mut importer = member();
    owner.tell("begin");
    let handles = owner.tell(&format!("export {} 40", 600 << 10));
    let charged = slice.used();
    importer.tell(&format!("open {handles}"));
    assert_eq!(owner.tell("finish"), "CUDA_SUCCESS");
    assert_eq!(slice.used(), charged);
    importer.tell("close 20");
    importer.tell("close");
    comes_to(&slice, 0);
    for member in [owner, importer, third] {
        member.end();
    }
}

#[test]
fn a_dead_owners_pages_count_once_for_all_that_lie_in_them() {
    if is_member() {
        return member();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let uuid = emulated::uuid_in(folder.path());
    let slice = Slice::with(&[(GIB, uuid)], Terms::default());
    let test = "a_dead_owners_pages_count_once_for_all_that_lie_in_them";
    let member = || Member::new(&slice, folder.path(), test);
    let device = || {
        let uuid = divvy_device::Uuid(uuid).to_string();
        divvy_device::usage_in(folder.path(), &uuid)
            .expect("a device page")
            .used_bytes
    };
    let (mut owner, mut importer) = (member(), member());
    owner.tell(&format!("alloc {}", 900 << 20));
    // A page holds 32 of them.
    let handles = owner.tell(&format!("export {} 400", 64 << 10));
    assert_eq!(slice.used(), 926 * MIB);
    importer.tell(&format!("open {handles}"));
    owner.kill();
    slice.pages.ledger.reap().expect("a sound ledger");
    assert_eq!((slice.used(), device()), (26 * MIB, 26 * MIB));
    // Each page stays until its last allocation is closed.
    importer.tell("close 33");
    slice.pages.ledger.reap().expect("a sound ledger");
    assert_eq!(slice.used(), 24 * MIB);
    // A freed page, and a new page at its address, are two pages.
    let mut owner = member();
    let first = owner.tell(&format!("export {} 1", 600 << 10));
    importer.tell(&format!("open {first}"));
    owner.tell("free");
    let second = owner.tell(&format!("export {} 1", 600 << 10));
    importer.tell(&format!("open {second}"));
    assert_eq!(slice.used(), 28 * MIB);
    owner.kill();
    slice.pages.ledger.reap().expect("a sound ledger");
    assert_eq!(slice.used(), 28 * MIB);
    importer.kill();
    slice.pages.ledger.reap().expect("a sound ledger");
    assert_eq!((slice.used(), device()), (0, 0));
}

#[test]
fn a_thousand_shared_allocations_are_paid_for_once() {
    if is_member() {
        return member();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let slice = Slice::with(&[(4 * GIB, emulated::uuid_in(folder.path()))], Terms::default());
    let test = "a_thousand_shared_allocations_are_paid_for_once";
    let [mut owner, mut importer] = [(); 2].map(|()| Member::new(&slice, folder.path(), test));
    let handles = owner.tell(&format!("export {} 1000", 2 << 20));
    importer.tell(&format!("open {handles}"));
    assert_eq!(slice.used(), 2000 * MIB);
    owner.tell("free");
    assert_eq!(slice.used(), 2000 * MIB);
    importer.tell("close");
    comes_to(&slice, 0);
    importer.end();
    owner.end();
}

#[test]
fn what_was_closed_on_one_device_is_closed_whatever_is_open_on_another() {
    if is_member() {
        return member();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let uuids = one_gib_of_two_devices(folder.path());
    let slice = Slice::with(&uuids, Terms::default());
    let test = "what_was_closed_on_one_device_is_closed_whatever_is_open_on_another";
    let [mut owner, mut other, mut importer] = [(); 3].map(|()| Member::new(&slice, folder.path(), test));
    // So many allocations that some of one device have the same entries in their table as some of the other device in
    // theirs.
    let first = owner.tell(&format!("export {} 300", 2 << 20));
    other.tell("on 1");
    let second = other.tell(&format!("export {} 300", 2 << 20));
    importer.tell(&format!("open {first}"));
    importer.tell("on 1");
    importer.tell(&format!("open {second}"));
    importer.tell("close 300");
    owner.kill();
    slice.pages.ledger.reap().expect("a sound ledger");
    let of_second = || slice.more[0].ledger.total_used();
    assert_eq!((slice.used(), of_second()), (0, 600 * MIB));
    importer.tell("close");
    other.kill();
    slice.more[0].ledger.reap().expect("a sound ledger");
    assert_eq!((slice.used(), of_second()), (0, 0));
    importer.end();
}
