//! The other side writes what it likes into the shared memory: errors, in time, and nothing else.

#[path = "../../../fuzz/src/ring.rs"]
mod drive;
#[path = "../../../fuzz/src/ring_steps.rs"]
mod ring_steps;
mod support;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use divvy_ledger::PageError;
use divvy_ring::{Backing, Limits, PAGE, Region, RingError, Shape};
use rustix::fs::{MemfdFlags, SealFlags};
use support::{Dice, SMALL, client, regions, server, soon};

/// Where things lie in the control page of channel 0.
const CONTROL: u64 = PAGE as u64;
const REQUEST_TAIL: u64 = CONTROL + 128;
const REQUEST_HEAD: u64 = CONTROL + 256;
const REPLY_TAIL: u64 = CONTROL + 384;
const REPLY_HEAD: u64 = CONTROL + 512;
/// Where the rings of channel 0 of [`SMALL`] begin.
const REQUESTS: u64 = 2 * PAGE as u64;
const REPLIES: u64 = 3 * PAGE as u64;

fn overwrite(memory: &File, at: u64, bytes: &[u8]) {
    memory.write_all_at(bytes, at).expect("a memory file");
}

#[test]
fn frames_that_no_honest_client_writes_end_the_connection() {
    let more = 1_u64 << 32;
    for (tail, header) in [
        (8_u32, 8_u64),
        (8, 1),
        (16, 9),
        (4096, 4089),
        (4096, u64::from(u32::MAX)),
        (4096, u64::from(u32::MAX) - 7),
        (16, 1 << 34),
        (16, 1 << 63),
        (8, more),
        (4104, 8),
        (12, 4),
        (u32::MAX - 7, 8),
    ] {
        let (ours, theirs, fd) = regions(&SMALL);
        let memory = File::from(fd);
        let mut server = server(&ours, soon());
        let client = client(&theirs, soon());
        overwrite(&memory, REQUESTS, &header.to_ne_bytes());
        overwrite(&memory, REQUEST_TAIL, &tail.to_ne_bytes());
        let mut handled = 0;
        let end = server.serve(|_, _| handled += 1);
        assert!(
            matches!(end, RingError::Hostile { .. }),
            "{tail} {header:#x}: {end}"
        );
        assert_eq!(handled, 0);
        // It stays so until the reset; then the channel is as new.
        assert_eq!(server.serve(|_, _| ()), end);
        drop(client);
        server.reset();
        let mut client = support::client(&theirs, soon());
        client.submit(b"again").expect("room");
        server
            .serve_one(None, |message, _| assert_eq!(message, b"again"))
            .expect("it is there");
    }
}

#[test]
fn a_server_that_lies_is_found_by_its_client() {
    for (at, value) in [
        (REPLY_TAIL, 4104_u32),
        (REPLY_TAIL, 3),
        (REPLY_TAIL, u32::MAX - 7),
    ] {
        let (ours, theirs, fd) = regions(&SMALL);
        let memory = File::from(fd);
        let _server = server(&ours, soon());
        let mut client = client(&theirs, soon());
        overwrite(&memory, at, &value.to_ne_bytes());
        let mut reply = Vec::new();
        let error = client.call(b"?", &mut reply).expect_err("a lie");
        assert!(matches!(error, RingError::Hostile { .. }), "{error}");
        assert_eq!(client.submit(b"!"), Err(error));
    }
}

#[test]
fn a_message_grows_no_further_than_the_region_allows() {
    let (ours, theirs, fd) = regions(&SMALL);
    let memory = File::from(fd);
    let mut server = server(&ours, soon());
    let _client = client(&theirs, soon());
    // Fragment after fragment, without an end.
    let header = (1_u64 << 32) | 1016;
    let hostile = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut tail, mut head) = (0_u32, [0; 4]);
            while hostile.load(Ordering::Relaxed) {
                memory
                    .read_exact_at(&mut head, REQUEST_HEAD)
                    .expect("a memory file");
                // No index of its lies.
                if tail.wrapping_sub(u32::from_ne_bytes(head)) < 4096 {
                    overwrite(&memory, REQUESTS + u64::from(tail % 4096), &header.to_ne_bytes());
                    tail = tail.wrapping_add(1024);
                    overwrite(&memory, REQUEST_TAIL, &tail.to_ne_bytes());
                }
                thread::yield_now();
            }
        });
        let end = server.serve(|_, _| panic!("no message ended"));
        hostile.store(false, Ordering::Relaxed);
        let found = "a message is longer than the region allows";
        assert_eq!(end, RingError::Hostile { found });
    });
}

/// A header that is short when it is checked and long when it is used: a copy of that length would leave the ring.
#[test]
fn a_header_is_read_once() {
    use rustix::mm::{MapFlags, ProtFlags};
    let (ours, theirs, fd) = regions(&SMALL);
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    let bytes = SMALL.bytes() as usize;
    // SAFETY: a fresh mapping, which stays until the process ends.
    let first = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, flags, MapFlags::SHARED, &fd, 0) };
    let first: *mut u8 = first.expect("a mapping").cast();
    // SAFETY: both words lie inside the mapping and are aligned; they are only accessed as atomics.
    let (header, tail) = unsafe {
        let header = &*first.add(REQUESTS as usize).cast::<AtomicU64>();
        (header, &*first.add(REQUEST_TAIL as usize).cast::<AtomicU32>())
    };
    let _client = client(&theirs, soon());
    let mut server = server(&ours, soon());
    header.store(8, Ordering::Relaxed);
    let began = Instant::now();
    let going = || began.elapsed() < Duration::from_secs(1);
    let (mut handled, mut refused) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while going() {
                for _ in 0..1000 {
                    header.store(8, Ordering::Relaxed);
                    header.store(u64::from(u32::MAX), Ordering::Relaxed);
                }
            }
        });
        while going() {
            tail.store(16, Ordering::Release);
            match server.serve_one(None, |message, _| assert_eq!(message.len(), 8)) {
                Ok(()) => handled += 1,
                Err(RingError::Hostile { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            server.reset();
        }
    });
    assert!(
        handled > 10 && refused > 10,
        "{handled} handled, {refused} refused"
    );
}

#[test]
fn a_message_that_changes_after_the_copy_does_not_change() {
    let (ours, theirs, fd) = regions(&SMALL);
    let memory = File::from(fd);
    let mut server = server(&ours, soon());
    let mut client = client(&theirs, soon());
    client.submit(&[1; 500]).expect("room");
    let handled = server.serve_one(None, |message, _| {
        overwrite(&memory, REQUESTS, &[9; PAGE]);
        assert_eq!(message, [1; 500]);
    });
    assert_eq!(handled, Ok(()));
    overwrite(&memory, REPLIES, &[9; PAGE]);
    overwrite(&memory, REPLY_HEAD, &4_u32.to_ne_bytes());
}

/// Writes random words all over the memory while both sides work: no panic, no wait beyond the limits. An access outside
/// the region would fault, for the pages around it cannot be accessed.
#[test]
fn both_sides_survive_random_words_everywhere() {
    const FOR: Duration = Duration::from_secs(2);
    let limit = Duration::from_millis(20);
    let limits = Limits {
        spin: Duration::from_micros(5),
        look: Duration::from_millis(2),
        stall: limit,
        reply: Some(limit),
    };
    // On a busy machine a thread waits for its processor as well.
    let bound = Duration::from_secs(20);
    let (ours, theirs, fd) = regions(&SMALL);
    let memory = File::from(fd);
    let bytes = SMALL.bytes();
    let ends = [const { AtomicU64::new(0) }; 4];
    let count = |error: RingError| {
        let kind = match error {
            RingError::Hostile { .. } => 0,
            RingError::Gone => 1,
            RingError::TimedOut | RingError::Full => 2,
            _ => 3,
        };
        ends[kind].fetch_add(1, Ordering::Relaxed);
    };
    let began = Instant::now();
    let going = || began.elapsed() < FOR;
    let calls = thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice(5);
            while going() {
                // Mostly indices and headers near those that are true, now and then anything.
                let at = match dice.below(3) {
                    0 => CONTROL + dice.below(9) * 128,
                    1 => REQUESTS + dice.below(2 * PAGE as u64 / 8) * 8,
                    _ => dice.below(bytes / 8) * 8,
                };
                let word = match dice.below(4) {
                    0 => dice.below(1 << 13) & !7,
                    1 => dice.below(8),
                    2 => dice.below(1 << 34),
                    _ => dice.below(u64::MAX >> 1),
                };
                overwrite(&memory, at, &word.to_ne_bytes());
                if dice.below(4) == 0 {
                    thread::sleep(Duration::from_micros(dice.below(300)));
                }
            }
        });
        scope.spawn(|| {
            let mut server = server(&ours, limits);
            let mut most = 0;
            while going() {
                let start = Instant::now();
                let served = server.serve_one(Some(limit), |message, reply| {
                    most = most.max(message.len());
                    reply.extend_from_slice(message);
                });
                assert!(start.elapsed() < bound);
                if let Err(error) = served {
                    count(error);
                    server.reset();
                }
            }
            assert!(most <= SMALL.message_bytes as usize);
        });
        let caller = scope.spawn(|| {
            let (mut calls, mut dice, mut reply) = (0, Dice(9), Vec::new());
            while going() {
                let Ok(mut client) = theirs.client(support::peer(limits)) else {
                    thread::yield_now();
                    continue;
                };
                loop {
                    let start = Instant::now();
                    let called = client.call(&vec![3; dice.below(3000) as usize], &mut reply);
                    assert!(start.elapsed() < bound);
                    assert!(reply.len() <= SMALL.message_bytes as usize);
                    match called {
                        Ok(()) => calls += 1,
                        Err(error) => {
                            count(error);
                            break;
                        }
                    }
                    if !going() {
                        break;
                    }
                }
            }
            calls
        });
        caller.join().expect("no panic")
    });
    let ends = ends.map(AtomicU64::into_inner);
    assert!(calls > 10 && ends[0] > 10, "{calls} calls; {ends:?}");
    assert_eq!(ends[3], 0);
}

fn memory_file(bytes: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("foreign", MemfdFlags::ALLOW_SEALING).expect("a memory file");
    rustix::fs::ftruncate(&fd, bytes).expect("a size");
    fd
}

#[test]
fn what_is_no_region_is_refused_by_name() {
    let attach = |fd: &OwnedFd| Region::attach(fd.as_fd(), Backing::Sealed).map(|_| ());
    let seal =
        |fd: &OwnedFd| rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
    let page = "region";

    let unsealed = memory_file(SMALL.bytes());
    assert_eq!(attach(&unsealed), Err(PageError::Unsealed { page }));
    seal(&unsealed);
    assert_eq!(attach(&unsealed), Err(PageError::Foreign { page }));
    let short = memory_file(0);
    seal(&short);
    assert!(matches!(attach(&short), Err(PageError::Size { found: 0, .. })));

    // Each word of the header, changed in an otherwise true region.
    for (at, value, refused) in [
        (0, 7_u32, PageError::Foreign { page }),
        (
            8,
            3,
            PageError::Version {
                page,
                ours: 2,
                theirs: 3,
            },
        ),
        (12, 0, PageError::Corrupted { page }),
        (12, u32::MAX, PageError::Corrupted { page }),
        (16, 4095, PageError::Corrupted { page }),
        (16, 1 << 27, PageError::Corrupted { page }),
        (20, 0, PageError::Corrupted { page }),
        (24, 0, PageError::Corrupted { page }),
        (24, u32::MAX, PageError::Corrupted { page }),
        (32, 1, PageError::Corrupted { page }),
        (36, 1 << 31, PageError::Corrupted { page }),
        (
            12,
            2,
            PageError::Size {
                page,
                expected: 7 * 4096,
                found: 4 * 4096,
            },
        ),
        (
            32,
            4096,
            PageError::Size {
                page,
                expected: 5 * 4096,
                found: 4 * 4096,
            },
        ),
    ] {
        let (_ours, _theirs, fd) = regions(&SMALL);
        let memory = File::from(fd.try_clone().expect("a copy"));
        overwrite(&memory, at, &value.to_ne_bytes());
        assert_eq!(attach(&fd), Err(refused), "{value} at {at}");
    }
}

#[test]
fn sizes_are_sealed() {
    let (_ours, _theirs, fd) = regions(&SMALL);
    assert!(rustix::fs::ftruncate(&fd, 0).is_err());
    assert!(rustix::fs::ftruncate(&fd, 1 << 20).is_err());
    assert!(rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE).is_err());
}

#[test]
fn shapes_out_of_range_are_refused() {
    for shape in [
        Shape { channels: 0, ..SMALL },
        Shape {
            channels: 1025,
            ..SMALL
        },
        Shape {
            request_bytes: 2048,
            ..SMALL
        },
        Shape {
            reply_bytes: 1 << 27,
            ..SMALL
        },
        Shape {
            reply_bytes: 12288,
            ..SMALL
        },
        Shape {
            message_bytes: 0,
            ..SMALL
        },
        Shape {
            data_bytes: 100,
            ..SMALL
        },
        Shape {
            data_bytes: (1 << 40) + 4096,
            ..SMALL
        },
    ] {
        let refused = Region::create(&shape).map(|_| ());
        assert_eq!(refused, Err(PageError::Corrupted { page: "region" }), "{shape:?}");
    }
}

#[test]
fn a_region_lies_in_a_part_of_a_file() {
    let file = tempfile::tempfile().expect("a file");
    let at = 3 * PAGE as u64;
    let short = at + SMALL.bytes() - 1;
    file.set_len(short).expect("a size");
    assert!(matches!(
        Region::create_in(file.as_fd(), at, &SMALL),
        Err(PageError::Size { .. })
    ));
    // Rubbish, as an earlier user left it.
    file.write_all_at(&vec![0xa5; short as usize + 1], 0)
        .expect("bytes");
    let ours = Region::create_in(file.as_fd(), at, &SMALL).expect("a region");
    let theirs = Region::attach(file.as_fd(), Backing::File(at)).expect("the region");
    assert!(Region::attach(file.as_fd(), Backing::File(at + PAGE as u64)).is_err());
    assert!(Region::attach(file.as_fd(), Backing::File(at + 8)).is_err());
    let mut server = server(&ours, soon());
    let mut client = client(&theirs, soon());
    client.submit(b"there").expect("room");
    server
        .serve_one(None, |message, _| assert_eq!(message, b"there"))
        .expect("it is there");
    let mut before = vec![0; at as usize];
    file.read_exact_at(&mut before, 0).expect("bytes");
    assert!(
        before.iter().all(|byte| *byte == 0xa5),
        "nothing outside was written"
    );
}

/// A worker takes memory that its program brings. A program that could shorten it would make the worker fault.
#[test]
fn memory_that_another_process_brought_has_to_be_sealed() {
    let (_region, sealed) = Region::create(&SMALL).expect("a region");
    Region::create_in_sealed(sealed.as_fd(), 0, &SMALL).expect("its size is sealed");
    assert!(matches!(
        Region::create_in_sealed(sealed.as_fd(), PAGE as u64, &SMALL),
        Err(PageError::Size { .. })
    ));
    let file = tempfile::tempfile().expect("a file");
    file.set_len(SMALL.bytes()).expect("a size");
    assert_eq!(
        Region::create_in_sealed(file.as_fd(), 0, &SMALL).map(|_| ()),
        Err(PageError::Unsealed { page: "region" })
    );
}

#[test]
fn a_region_within_so_many_bytes_has_no_more() {
    for bytes in [
        0,
        4096,
        100_000,
        200_000,
        1 << 20,
        (1 << 20) + 1,
        1 << 24,
        1 << 28,
        1 << 34,
    ] {
        let Some(shape) = Shape::within(bytes, 1 << 20) else {
            assert!(bytes < 150_000, "{bytes}");
            continue;
        };
        assert!(shape.is_valid() && shape.bytes() <= bytes, "{bytes}: {shape:?}");
        assert!(shape.bytes() + PAGE as u64 > bytes, "{bytes}: {shape:?}");
        assert!(
            bytes < 1 << 20 || shape.data_bytes > bytes / 4 * 3,
            "{bytes}: {shape:?}"
        );
    }
    assert_eq!(Shape::within(u64::MAX, 1 << 20), None, "more than a region has");
}

/// The corpus of a fuzz target on stable Rust, each input unchanged and mutated so often.
fn replay(name: &str, mutants: usize, mut run: impl FnMut(&[u8])) {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", name]
        .iter()
        .collect();
    let entries = std::fs::read_dir(folder).expect("a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() > 5);
    let mut dice = Dice(23);
    for path in paths {
        let input = std::fs::read(&path).expect("an input");
        for round in 0..mutants {
            let mut mutant = input.clone();
            for _ in 0..if round == 0 { 0 } else { 1 + dice.below(4) } {
                let length = mutant.len() as u64;
                let at = dice.below(length + 1) as usize;
                match dice.below(4) {
                    0 if length > 0 => mutant[dice.below(length) as usize] ^= 1 << dice.below(8),
                    1 => mutant.insert(at, dice.below(256) as u8),
                    2 => mutant.truncate(at.max(8)),
                    _ => mutant.extend_from_within(..at.min(64)),
                }
            }
            run(&mutant);
        }
    }
}

#[test]
fn any_memory_is_read_or_refused() {
    let (mut handled, mut refused) = (0, 0);
    replay("ring", 400, |input| {
        let outcome = drive::memory(input);
        handled += outcome.handled;
        refused += usize::from(outcome.refused);
    });
    assert!(
        handled > 1000 && refused > 1000,
        "{handled} handled, {refused} refused"
    );
}

#[test]
fn honest_sides_are_served_whatever_a_third_writes_before() {
    if std::env::var_os("DIVVY_WRITE_CORPUS").is_some() {
        let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus/ring_steps"]
            .iter()
            .collect();
        std::fs::create_dir_all(&folder).expect("a folder");
        for (number, (name, actions)) in (1..).zip(CONVERSATIONS) {
            let mut dice = Dice(number);
            let step = |what: &u8| {
                [
                    *what,
                    dice.below(256) as u8,
                    dice.below(24) as u8,
                    dice.below(256) as u8,
                    dice.below(256) as u8,
                ]
            };
            let input: Vec<u8> = actions.iter().cycle().take(60).flat_map(step).collect();
            std::fs::write(folder.join(name), input).expect("written");
        }
    }
    let (mut steps, mut received, mut refused) = (0, 0, 0);
    replay("ring_steps", 200, |input| {
        let outcome = ring_steps::steps(input);
        steps += outcome.steps;
        received += outcome.received;
        refused += outcome.refused;
    });
    println!("{steps} steps, {received} received, {refused} refused");
    assert!(
        received > 10_000 && refused > 100,
        "{steps} steps, {received} received, {refused} refused"
    );
}

/// Seeds of the fuzz target `ring_steps`, by what is done in turns.
const CONVERSATIONS: [(&str, &[u8]); 7] = [
    ("calls", &[4, 7, 10, 11]),
    ("submits", &[0, 0, 3, 7, 7, 7]),
    ("long_calls", &[6, 7, 10, 11, 3]),
    ("full", &[3, 3, 6, 6, 7]),
    ("comes_and_goes", &[4, 12, 7, 7, 12, 0, 7]),
    ("words", &[4, 13, 7, 10, 13, 11]),
    ("frames", &[0, 14, 7, 15, 11, 4, 7]),
];
