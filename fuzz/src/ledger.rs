//! What the ledger's targets do with one input; the stable replay in crates/ledger/tests/corpus.rs includes this file.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use divvy_ledger::attach::wire::{DeviceRequest, MESSAGE_BYTES, Reply, Request, Status};
use divvy_ledger::attach::{Door, PageServer, serve_device};
use divvy_ledger::{Backing, Bypass, LEDGER_BYTES, Ledger, Slot, SlotOwner};

const LIMIT: u64 = 1 << 30;
/// Bytes of one stroke: where, in two; what, in eight.
const STROKE: usize = 10;

/// Overwrites a ledger in use, stroke by stroke, and goes on using it. Figures may be wrong, but everything ends.
pub fn page(data: &[u8]) {
    let Ok(ledger) = Ledger::create() else { return };
    let (Ok(mine), Ok(writable)) = (ledger.share(), ledger.share()) else {
        return;
    };
    let Ok(slot) = Slot::claim(mine, Backing::Sealed, SlotOwner::default()) else {
        return;
    };
    let writable = File::from(writable);
    // A page whose records all look busy costs a tenth of a second at each touch.
    for stroke in data.chunks_exact(STROKE).take(16) {
        let word = u64::from(stroke[1]) * 8;
        let at = match stroke[0] % 4 {
            0 => word % 256,
            1 => 4096 + word % 576,
            2 => 4096 + word,
            _ => (word << 9 | u64::from(stroke[0] & 0xf8)) % (LEDGER_BYTES as u64 - 8),
        };
        let _written = writable.write_all_at(&stroke[2..], at);
        let bytes = 512 << (stroke[2] % 40);
        let answer = slot.reserve(bytes, LIMIT);
        if stroke[0] & 0x80 != 0 || answer.is_ok() {
            let _released = slot.release(bytes);
        }
        if slot.reserve_spill(bytes, LIMIT).is_ok() {
            let _released = slot.release_spill(bytes);
        }
        slot.count(Bypass::OpenCl);
        slot.note_thrash(u32::from(stroke[2]) << 8, stroke[2] & 1 == 0);
        let _figures = (
            slot.used(),
            slot.total_used(),
            slot.since_return(),
            slot.spilled(),
            slot.total_spilled(),
            slot.thrash(),
            ledger.total_used(),
            ledger.total_spilled(),
            ledger.waiting(),
            ledger.bypasses(Bypass::OpenCl),
        );
    }
    let listed = ledger.processes().count();
    assert!(listed <= divvy_ledger::accounting::SLOTS);
    let _reaped = ledger.reap();
    if let Ok(fd) = ledger.share() {
        let _newcomer = Slot::claim(fd, Backing::Sealed, SlotOwner::default());
    }
    drop(slot);
    let _reaped = ledger.reap();
}

/// Any bytes as a message, and as a peer's message to a page server. Returns how many bytes the page server replied.
pub fn message(data: &[u8]) -> usize {
    if let Some(head) = data.first_chunk::<MESSAGE_BYTES>() {
        if let Ok(request) = Request::decode(head) {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        if let Ok(reply) = Reply::decode(head) {
            assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
        }
        if let Ok(request) = DeviceRequest::decode(head) {
            assert_eq!(request.encode(), *head);
            assert!(Request::decode(head).is_err(), "no message means two things");
        }
    }
    device(data);
    let page_server = PageServer::new();
    let Ok((mut peer, served)) = UnixStream::pair() else {
        return 0;
    };
    if peer.write_all(data).is_err() || peer.shutdown(Shutdown::Write).is_err() {
        return 0;
    }
    let _outcome = page_server.serve(&served, Door::Agent);
    assert!(!page_server.has_pages(), "no descriptors came");
    drop(served);
    let mut replied = Vec::new();
    let _ended = peer.read_to_end(&mut replied);
    if let Some(reply) = replied.first_chunk::<MESSAGE_BYTES>() {
        assert!(Reply::decode(reply).is_ok());
    }
    replied.len()
}

/// Any bytes as a process's message to the holder of emulated devices' pages.
fn device(data: &[u8]) {
    let Ok((mut peer, served)) = UnixStream::pair() else {
        return;
    };
    if peer.write_all(data).is_err() || peer.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut asked = None;
    let _outcome = serve_device(&served, |_user, uuid| {
        asked = Some(uuid);
        let null = || File::open("/dev/null").map_err(|_| Status::Failed);
        match uuid[0] {
            0 => Err(Status::NotAllowed),
            _ => Ok((null()?.into(), null()?.into())),
        }
    });
    drop(served);
    let mut replied = Vec::new();
    let _ended = peer.read_to_end(&mut replied);
    let head = data.first_chunk::<MESSAGE_BYTES>();
    let request = head.and_then(|head| DeviceRequest::decode(head).ok());
    assert_eq!(asked, request.map(|request| request.uuid));
    if let Some(reply) = replied.first_chunk::<MESSAGE_BYTES>() {
        let done = Reply::decode(reply).map(|reply| reply.status) == Ok(Status::Done);
        assert_eq!(done, asked.is_some_and(|uuid| uuid[0] != 0));
    }
}
