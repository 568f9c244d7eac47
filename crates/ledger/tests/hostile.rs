//! A malicious tenant, and pages that are not ours: clear refusals, true figures for all others, no panic, no endless
//! loop.

mod support;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use divvy_ledger::attach::wire::{MESSAGE_BYTES, Malformed, Reply, Request};
use divvy_ledger::{
    Backing, Bypass, GRANT_BYTES, Grant, GrantSpec, GrantView, LEDGER_BYTES, Ledger, PAGE_ABI_VERSION,
    PageError, Slot, SlotOwner,
};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use support::{Dice, MIB, Slice};

fn grant() -> Grant {
    Grant::create(&GrantSpec {
        memory_limit_bytes: 5 * MIB,
        device_uuid: [1; 16],
        slice_id: "s",
        slice_name: "s",
        ..GrantSpec::default()
    })
    .expect("a grant")
}

fn memory_file(bytes: usize) -> OwnedFd {
    let fd = rustix::fs::memfd_create("foreign", MemfdFlags::ALLOW_SEALING).expect("a memory file");
    rustix::fs::ftruncate(&fd, bytes as u64).expect("a size");
    fd
}

fn write_at(fd: &OwnedFd, at: u64, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::from(fd.try_clone()?);
    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)
}

fn map_writable(fd: &OwnedFd) -> bool {
    use rustix::mm::{MapFlags, ProtFlags};
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping that no other code uses.
    let mapped = unsafe { rustix::mm::mmap(core::ptr::null_mut(), 4096, both, MapFlags::SHARED, fd, 0) };
    mapped.is_ok()
}

#[test]
fn a_tenant_cannot_write_its_grant() {
    let grant = grant();
    let given = grant.share().expect("/proc");
    let path = format!("/proc/self/fd/{}", given.as_raw_fd());
    let reopened = rustix::fs::open(path, OFlags::RDWR, Mode::empty()).expect("the file's mode allows it");
    for fd in [&given, &reopened] {
        assert!(!map_writable(fd));
        assert!(write_at(fd, 24, &[0xff; 8]).is_err());
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
        assert!(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE).is_err());
    }
    // The maker still can.
    grant.set_memory_limit_bytes(6 * MIB);
    assert_eq!(
        GrantView::map(given.as_fd())
            .expect("a grant")
            .memory_limit_bytes(),
        6 * MIB
    );
}

#[test]
fn a_tenant_cannot_pull_the_ledger_from_under_others() {
    let ledger = Ledger::create().expect("a ledger");
    let given = ledger.share().expect("/proc");
    assert!(rustix::fs::ftruncate(&given, 0).is_err());
    assert!(rustix::fs::ftruncate(&given, 1 << 30).is_err());
    assert!(rustix::fs::fcntl_add_seals(&given, SealFlags::WRITE).is_err());
}

#[test]
fn foreign_pages_are_refused_by_name() {
    let open = |fd: OwnedFd| Ledger::open(fd, Backing::Sealed).err();
    let seal = |fd: OwnedFd| {
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::FUTURE_WRITE).expect("seals");
        fd
    };

    // An unsealed page is refused for that first: its size may change during the check.
    let short = seal(memory_file(4096));
    let expected = LEDGER_BYTES as u64;
    assert_eq!(
        open(short),
        Some(PageError::Size {
            page: "ledger",
            expected,
            found: 4096
        })
    );
    assert_eq!(
        open(memory_file(LEDGER_BYTES)),
        Some(PageError::Unsealed { page: "ledger" })
    );
    let zeros = memory_file(LEDGER_BYTES);
    rustix::fs::fcntl_add_seals(&zeros, SealFlags::SHRINK).expect("seals");
    assert_eq!(open(zeros), Some(PageError::Foreign { page: "ledger" }));
    let folder = File::open("/").expect("the root").into();
    assert!(matches!(
        open(folder),
        Some(PageError::Size { .. } | PageError::Unsealed { .. })
    ));

    let zeros = seal(memory_file(GRANT_BYTES));
    assert_eq!(
        GrantView::map(zeros.as_fd()).err(),
        Some(PageError::Foreign { page: "grant" })
    );
    let ledger = Ledger::create().expect("a ledger").share().expect("/proc");
    assert!(matches!(
        GrantView::map(ledger.as_fd()),
        Err(PageError::Unsealed { page: "grant" })
    ));

    // A page of a future version, made by a process that holds a ledger and overwrites the header.
    let future = Ledger::create().expect("a ledger").share().expect("/proc");
    write_at(&future, 8, &9_u32.to_ne_bytes()).expect("it is writable");
    let error = Ledger::open(future, Backing::Sealed).expect_err("refused");
    assert_eq!(
        error,
        PageError::Version {
            page: "ledger",
            ours: PAGE_ABI_VERSION,
            theirs: 9
        }
    );
    let text = error.to_string();
    assert!(
        text.contains("version 9") && text.contains(&format!("version {PAGE_ABI_VERSION}")),
        "{text}"
    );
    let resized = Ledger::create().expect("a ledger").share().expect("/proc");
    write_at(&resized, 12, &1_u32.to_ne_bytes()).expect("it is writable");
    assert_eq!(
        Slot::claim(resized, Backing::Sealed, SlotOwner::default()).err(),
        Some(PageError::Size {
            page: "ledger",
            expected,
            found: 1
        })
    );

    let long = "x".repeat(129);
    let spec = GrantSpec {
        memory_limit_bytes: 1,
        device_uuid: [0; 16],
        slice_id: &long,
        slice_name: "",
        ..GrantSpec::default()
    };
    assert_eq!(
        Grant::create(&spec).err(),
        Some(PageError::TextTooLong { bytes: 129 })
    );
}

/// Every operation that agent and tenant make on a ledger, once. Any result is fine.
fn use_everything(ledger: &Ledger, slot: &Slot) {
    for bytes in [1, 5 * MIB, u64::MAX] {
        if slot.reserve(bytes, 100 * MIB).is_ok() {
            let _released = slot.release(bytes);
        }
        let _released = slot.release(bytes);
        if slot.reserve_spill(bytes, 100 * MIB).is_ok() {
            let _released = slot.release_spill(bytes);
        }
    }
    slot.note_thrash(1, true);
    slot.count(Bypass::Codec);
    let _used = (
        slot.used(),
        slot.total_used(),
        slot.grant_generation(),
        ledger.total_used(),
        slot.spilled(),
        slot.total_spilled(),
        slot.thrash(),
        ledger.waiting(),
    );
    let _sum = ledger
        .processes()
        .fold(0_u64, |sum, process| sum.wrapping_add(process.used_bytes));
    let _reaped = ledger.reap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_page_written_over_stops_no_process(
        strokes in proptest::collection::vec((0..LEDGER_BYTES as u64 - 64, any::<[u8; 32]>()), 1..20),
        header in any::<[u8; 16]>(),
        words in proptest::collection::vec((0..20_u64, any::<u64>()), 0..8),
    ) {
        let ledger = Ledger::create().expect("a ledger");
        let slot = Slot::claim(ledger.share().expect("/proc"), Backing::Sealed, SlotOwner::default()).expect("a slot");
        slot.reserve(MIB, 100 * MIB).expect("it fits");
        let fd = ledger.share().expect("/proc");
        for (at, bytes) in strokes {
            write_at(&fd, at, &bytes).expect("it is writable");
        }
        // The sensitive places: the hints, the word, and this slot's own records.
        write_at(&fd, 16, &header).expect("it is writable");
        for (word, value) in words {
            write_at(&fd, 64 + word % 4 * 64, &value.to_ne_bytes()).expect("it is writable");
            write_at(&fd, 4096 + word * 8, &value.to_ne_bytes()).expect("it is writable");
        }
        use_everything(&ledger, &slot);
        let _another = Slot::claim(fd, Backing::Sealed, SlotOwner::default());
        drop(slot);
        let _reaped = ledger.reap();
    }

    #[test]
    fn any_bytes_are_a_message_or_refused(bytes in any::<[u8; MESSAGE_BYTES]>(), code in 0..9_u32) {
        prop_assert_eq!(Request::decode(&bytes), Err(Malformed::Foreign));
        let mut near = Request { kind: divvy_ledger::attach::wire::Kind::Attach, pid: 5, account: 0 }.encode();
        near[12..16].copy_from_slice(&code.to_ne_bytes());
        near[20..].copy_from_slice(&bytes[20..]);
        prop_assert_eq!(Request::decode(&near).is_ok(), (1..=6).contains(&code));
        prop_assert_eq!(Reply::decode(&near).is_ok(), code <= 6);
    }
}

#[test]
fn a_page_that_is_being_written_over_stops_no_process_and_concerns_no_other_page() {
    let slice = Slice::new(100 * MIB);
    let neighbour = Slice::new(100 * MIB);
    let theirs = neighbour.attach();
    theirs.reserve(60 * MIB).expect("it fits");
    let tenant = slice.attach();
    let fd = slice.pages.ledger.share().expect("/proc");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice(9);
            while !done.load(Ordering::Relaxed) {
                let at = [16, 64, 4096 + dice.below(120) * 8][dice.below(3) as usize];
                let value = dice.below(u64::MAX) << 33 | dice.below(u64::MAX);
                write_at(&fd, at, &value.to_ne_bytes()).expect("it is writable");
            }
        });
        let began = std::time::Instant::now();
        while began.elapsed() < std::time::Duration::from_secs(2) {
            use_everything(&slice.pages.ledger, tenant.slot());
            let _answer = tenant.reserve(MIB);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(neighbour.pages.ledger.total_used(), 60 * MIB);
    assert!(theirs.reserve(41 * MIB).is_err());
    theirs.reserve(40 * MIB).expect("it fits");
    assert_eq!(tenant.memory_limit_bytes(), 100 * MIB);
}

#[test]
fn a_hint_written_over_does_not_take_the_grant_away() {
    let slice = Slice::new(100 * MIB);
    let tenant = slice.attach();
    for generation in [0, 2, 77, u32::MAX] {
        slice.pages.ledger.set_grant_generation(generation);
        for _ in 0..1000 {
            tenant.reserve(MIB).expect("it fits");
            tenant.release(MIB).expect("release");
        }
        assert_eq!(tenant.memory_limit_bytes(), 100 * MIB);
        assert!(tenant.reserve(101 * MIB).is_err());
    }
}
