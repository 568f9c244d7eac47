//! Pointers of pools that other processes have open when the exporting process frees them. The manual wants the
//! importers to free first. Whatever a program does, the slice is charged for exactly what the device holds, after
//! every step.

mod emulated;
mod members;
mod support;

use std::collections::HashMap;
use std::os::fd::IntoRawFd as _;
use std::path::Path;
use std::ptr::null_mut;

use divvy_abi::*;
use divvy_ledger::Terms;
use emulated::{cu, get};
use members::{Member, is_member, obey};
use support::Slice;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 256 * MIB;

/// A member's state: a pool of its own, and pointers by the names that the test gives them.
struct Hands {
    pool: CUmemoryPool,
    descriptor: i32,
    pointers: HashMap<String, CUdeviceptr>,
}

impl Hands {
    fn new() -> Self {
        let mut properties = CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            ..Default::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        let pool = get!(cuMemPoolCreate(&raw const properties));
        let mut descriptor = -1i32;
        let (out, kind) = (&raw mut descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        cu!(cuMemPoolExportToShareableHandle(out.cast(), pool, kind, 0));
        Self {
            pool,
            descriptor,
            pointers: HashMap::new(),
        }
    }

    /// Does one action; no work waits in a stream afterwards.
    fn act(&mut self, word: &str, rest: &str) -> String {
        let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "alloc" => {
                let bytes = rest.parse().expect("a number");
                let pointer = get!(cuMemAllocFromPoolAsync(bytes, self.pool, null_mut()));
                self.pointers.insert(name.to_owned(), pointer);
            }
            "export" => {
                let data: CUmemPoolPtrExportData = get!(cuMemPoolExportPointer(self.pointers[name]));
                let digits: String = data.reserved.iter().map(|byte| format!("{byte:02x}")).collect();
                return format!("/proc/{}/fd/{} {digits}", std::process::id(), self.descriptor);
            }
            "import" => {
                let pointer = import(rest);
                self.pointers.insert(name.to_owned(), pointer);
            }
            "free" => {
                let pointer = self.pointers.remove(name).expect("known");
                cu!(cuMemFreeAsync(pointer, null_mut()));
            }
            "keep" => {
                let mut bytes: u64 = name.parse().expect("a number");
                let which = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                cu!(cuMemPoolSetAttribute(self.pool, which, (&raw mut bytes).cast()));
            }
            "trim" => cu!(cuMemPoolTrimTo(self.pool, name.parse().expect("a number"))),
            "destroy" => cu!(cuMemPoolDestroy(self.pool)),
            "look" => {}
            other => panic!("{other}"),
        }
        cu!(cuCtxSynchronize());
        let (mut free, mut total) = (0, 0);
        cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        (total - free).to_string()
    }
}

fn import(what: &str) -> CUdeviceptr {
    let (path, digits) = what.split_once(' ').expect("two parts");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
    let descriptor = file.expect("a descriptor").into_raw_fd() as isize as *mut c_void;
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let pool: CUmemoryPool = get!(cuMemPoolImportFromShareableHandle(descriptor, kind, 0));
    let mut data = CUmemPoolPtrExportData {
        reserved: std::array::from_fn(|at| {
            u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("digits")
        }),
    };
    get!(cuMemPoolImportPointer(pool, &raw mut data))
}

/// Two processes of a slice, and the device below them.
struct Pair<'a> {
    slice: &'a Slice,
    folder: &'a Path,
    owner: Member,
    importer: Member,
}

impl Pair<'_> {
    /// Has a member do something, and then both look. Asserts that the slice is charged for exactly what the device
    /// holds: `mib`.
    fn then(&mut self, who: char, what: &str, mib: u64) -> String {
        let answer = match who {
            'o' => self.owner.tell(what),
            _ => self.importer.tell(what),
        };
        for _ in 0..2 {
            self.importer.tell("look");
            self.owner.tell("look");
        }
        let uuid = divvy_device::Uuid(emulated::uuid_in(self.folder)).to_string();
        let device = divvy_device::usage_in(self.folder, &uuid).expect("a device page");
        let figures = (self.slice.used() / MIB, device.used_bytes / MIB);
        assert_eq!(figures, (mib, mib), "charged and held after {who}: {what}");
        answer
    }

    /// The importer opens a pointer of the owner's.
    fn pass(&mut self, name: &str, mib: u64) {
        let exported = self.then('o', &format!("export {name}"), mib);
        self.then('g', &format!("import {name} {exported}"), mib);
    }
}

fn with_pair(test: &str, story: impl FnOnce(&mut Pair<'_>)) {
    if is_member() {
        let mut hands: Option<Hands> = None;
        return obey(|word, rest| hands.get_or_insert_with(Hands::new).act(word, rest));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let slice = Slice::with(&[(LIMIT, emulated::uuid_in(folder.path()))], Terms::default());
    let member = || Member::new(&slice, folder.path(), test);
    let mut pair = Pair {
        slice: &slice,
        folder: folder.path(),
        owner: member(),
        importer: member(),
    };
    story(&mut pair);
    pair.importer.end();
    pair.owner.end();
    slice.pages.ledger.reap().expect("a sound ledger");
    assert_eq!(slice.used(), 0);
}

#[test]
fn what_a_pool_keeps_is_charged_once_and_handed_out_to_no_other_allocation() {
    with_pair(
        "what_a_pool_keeps_is_charged_once_and_handed_out_to_no_other_allocation",
        |pair| {
            pair.then('o', &format!("keep {}", 200 * MIB), 0);
            pair.then('o', &format!("alloc a {}", 20 * MIB), 20);
            pair.pass("a", 20);
            // The pool keeps it, and no other allocation gets it while the importer has it.
            pair.then('o', "free a", 20);
            pair.then('o', &format!("alloc b {}", 20 * MIB), 40);
            pair.then('o', "free b", 40);
            pair.then('o', &format!("alloc c {}", 20 * MIB), 40);
            // It stays even after a trim, since a process has it open.
            pair.then('o', "trim 0", 40);
            // After that the pool may keep it, hand it out or release it.
            pair.then('g', "free a", 40);
            pair.then('o', &format!("alloc d {}", 20 * MIB), 40);
            pair.then('o', "free d", 40);
            pair.then('o', "trim 0", 20);
            pair.then('o', "free c", 20);
            pair.then('o', "trim 0", 0);
        },
    );
}

#[test]
fn memory_that_lies_idle_does_not_hide_what_others_have_open() {
    with_pair(
        "memory_that_lies_idle_does_not_hide_what_others_have_open",
        |pair| {
            pair.then('o', &format!("keep {}", 200 * MIB), 0);
            pair.then('o', &format!("alloc idle {}", 50 * MIB), 50);
            pair.then('o', &format!("alloc a {}", 20 * MIB), 70);
            pair.pass("a", 70);
            pair.then('o', "free idle", 70);
            pair.then('o', "free a", 70);
            pair.then('o', "trim 0", 20);
            // The same in the other order, and with no threshold.
            pair.then('o', &format!("alloc idle {}", 50 * MIB), 70);
            pair.then('o', "keep 0", 70);
            pair.then('o', "free idle", 20);
            pair.then('g', "free a", 0);
        },
    );
}

#[test]
fn a_page_of_small_allocations_stays_for_the_one_that_is_open() {
    with_pair(
        "a_page_of_small_allocations_stays_for_the_one_that_is_open",
        |pair| {
            pair.then('o', "alloc a 1000", 2);
            pair.then('o', "alloc b 1000", 2);
            pair.pass("a", 2);
            pair.then('o', "free a", 2);
            pair.then('o', "free b", 2);
            // In the page that the importer has open.
            pair.then('o', "alloc c 1000", 2);
            pair.then('o', "trim 0", 2);
            pair.then('o', "free c", 2);
            pair.then('o', "alloc d 1000", 2);
            pair.then('g', "free a", 2);
            pair.then('o', "free d", 0);
        },
    );
}

#[test]
fn what_is_open_outlives_its_pool() {
    with_pair("what_is_open_outlives_its_pool", |pair| {
        pair.then('o', &format!("keep {}", 200 * MIB), 0);
        pair.then('o', &format!("alloc a {}", 20 * MIB), 20);
        pair.then('o', &format!("alloc b {}", 10 * MIB), 30);
        pair.then('o', "alloc small 1000", 32);
        pair.then('o', "alloc beside 1000", 32);
        pair.then('o', &format!("alloc idle {}", 50 * MIB), 82);
        for name in ["a", "b", "small"] {
            pair.pass(name, 82);
        }
        pair.then('o', "free idle", 82);
        pair.then('o', "free a", 82);
        pair.then('o', "free small", 82);
        // Idle memory ends with the pool, and memory in use stays.
        pair.then('o', "destroy", 32);
        pair.then('o', "free b", 32);
        pair.then('g', "free b", 22);
        pair.then('g', "free a", 2);
        pair.then('g', "free small", 2);
        pair.then('o', "free beside", 0);
    });
}
