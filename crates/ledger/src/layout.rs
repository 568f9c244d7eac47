//! The bytes of both pages: the page ABI. Any change here is a new [`PAGE_ABI_VERSION`].

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use crate::accounting::{Memory, RECORDS_PER_SLOT, RecordId, SLOTS};
use crate::error::PageError;

/// Version of the layout and of the rules by which the pages are used. Both sides of an attach name theirs.
pub const PAGE_ABI_VERSION: u32 = 1;
/// Size of a grant page in bytes.
pub const GRANT_BYTES: usize = size_of::<GrantPage>();
/// Size of a ledger in bytes. Sparse: a page that no process slot has touched takes no memory.
pub const LEDGER_BYTES: usize = size_of::<LedgerPage>();

/// "DVYGRANT" in memory order on a little-endian machine.
pub(crate) const GRANT_MAGIC: u64 = u64::from_le_bytes(*b"DVYGRANT");
/// "DVYLEDGR" likewise.
pub(crate) const LEDGER_MAGIC: u64 = u64::from_le_bytes(*b"DVYLEDGR");

/// What both pages begin with, in every version of the ABI.
#[repr(C)]
pub(crate) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub bytes: AtomicU32,
}

impl Header {
    /// Writes the header of a fresh page, magic last: a reader finds all of it or a foreign page.
    pub fn write(&self, magic: u64, bytes: usize) {
        self.version.store(PAGE_ABI_VERSION, Relaxed);
        self.bytes.store(bytes as u32, Relaxed);
        self.magic.store(magic, core::sync::atomic::Ordering::Release);
    }

    /// Refuses a page that is not ours, of another version, or of another size than it says.
    pub fn check(&self, page: &'static str, magic: u64, bytes: usize) -> Result<(), PageError> {
        if self.magic.load(core::sync::atomic::Ordering::Acquire) != magic {
            return Err(PageError::Foreign { page });
        }
        let theirs = self.version.load(Relaxed);
        if theirs != PAGE_ABI_VERSION {
            return Err(PageError::Version {
                page,
                ours: PAGE_ABI_VERSION,
                theirs,
            });
        }
        let found = u64::from(self.bytes.load(Relaxed));
        if found != bytes as u64 {
            return Err(PageError::Size {
                page,
                expected: bytes as u64,
                found,
            });
        }
        Ok(())
    }
}

/// What a slice may use. One page, mapped read-only by tenants.
#[repr(C, align(4096))]
pub(crate) struct GrantPage {
    pub header: Header,
    /// Which memfd of the slice's this is: a restarted agent makes the next one. Never changes within a page.
    pub generation: AtomicU32,
    /// Futex word: raised after every change of a field below.
    pub sequence: AtomicU32,
    pub memory_limit_bytes: AtomicU64,
    pub device_uuid: [AtomicU64; 2],
    pub slice_id: Text,
    pub slice_name: Text,
    /// Compute share, cap, class and lease: issue 4 gives these words their meaning. Zero until then.
    pub compute: [AtomicU64; 16],
}

/// Fixed text in UTF-8, padded with zeros.
pub(crate) type Text = [AtomicU64; TEXT_WORDS];
pub(crate) const TEXT_WORDS: usize = 16;

/// What a slice uses.
#[repr(C, align(4096))]
pub(crate) struct LedgerPage {
    pub header: Header,
    /// Generation of the newest grant. Differs from that of a tenant's: attach again for the new one. A hint.
    pub grant_generation: AtomicU32,
    /// Process slots ever claimed are all below this.
    pub high_water: AtomicU32,
    /// When a dead process's bytes were last returned: nanoseconds of CLOCK_MONOTONIC, 0 for never. A hint.
    pub returned_at_ns: AtomicU64,
    pub word: Line<AtomicU64>,
    pub slots: Slots,
}

/// The process slots, on pages of their own.
#[repr(C, align(4096))]
pub(crate) struct Slots(pub [ProcessSlot; SLOTS]);

/// One value alone in its cache line.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub T);

/// One process's place.
#[repr(C, align(64))]
pub(crate) struct ProcessSlot {
    /// 1 from claim to reap. Whether its process lives, the lock says.
    pub claimed: AtomicU32,
    /// The process's id in its own pid namespace, for display.
    pub pid: AtomicU32,
    /// The process's id as the keeper's pid namespace sees it, for display; 0 when it does not.
    pub host_pid: AtomicU32,
    pub reserved: AtomicU32,
    /// When the slot was claimed: nanoseconds since the Unix epoch.
    pub claimed_at_ns: AtomicU64,
    /// See [`crate::accounting::Memory::gathered`].
    pub gathered: AtomicU64,
    pub records: [Record; RECORDS_PER_SLOT],
}

/// See [`crate::accounting`].
#[repr(C, align(64))]
pub(crate) struct Record {
    pub busy: AtomicU64,
    pub state: AtomicU64,
    pub amount: [AtomicU64; 2],
}

const _: () = {
    assert!(GRANT_BYTES == 4096);
    assert!(size_of::<ProcessSlot>() == 64 * (1 + RECORDS_PER_SLOT));
    assert!(LEDGER_BYTES == 4096 + SLOTS * size_of::<ProcessSlot>());
    assert!(offset_of!(GrantPage, sequence) == 20);
    assert!(offset_of!(GrantPage, memory_limit_bytes) == 24);
    assert!(offset_of!(LedgerPage, word) == 64);
    assert!(offset_of!(LedgerPage, slots) == 4096);
};

impl LedgerPage {
    /// Notes that a dead process's bytes have just been returned.
    pub fn note_return(&self) {
        self.returned_at_ns.store(monotonic_ns(), Relaxed);
    }

    /// How long ago a dead process's bytes were last returned.
    pub fn since_return(&self) -> Option<Duration> {
        match self.returned_at_ns.load(Relaxed) {
            0 => None,
            then => monotonic_ns().checked_sub(then).map(Duration::from_nanos),
        }
    }

    /// Number of slots worth looking at, whatever the page says.
    pub fn slots_in_use(&self) -> usize {
        (self.high_water.load(core::sync::atomic::Ordering::Acquire) as usize).min(SLOTS)
    }

    fn record(&self, record: RecordId) -> &Record {
        &self.slots.0[record.slot()].records[record.number()]
    }
}

/// Nanoseconds of a clock that all processes of a machine share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec as u64)
}

impl Memory for LedgerPage {
    type Cell = AtomicU64;

    #[inline]
    fn word(&self) -> &AtomicU64 {
        &self.word.0
    }

    #[inline]
    fn busy(&self, record: RecordId) -> &AtomicU64 {
        &self.record(record).busy
    }

    #[inline]
    fn state(&self, record: RecordId) -> &AtomicU64 {
        &self.record(record).state
    }

    #[inline]
    fn amount(&self, record: RecordId, parity: usize) -> &AtomicU64 {
        &self.record(record).amount[parity & 1]
    }

    #[inline]
    fn gathered(&self, slot: usize) -> &AtomicU64 {
        &self.slots.0[slot % SLOTS].gathered
    }

    fn relax(&self, rounds: u32) {
        if rounds < 100 {
            rustix::thread::sched_yield();
        } else {
            let moment = rustix::thread::Timespec {
                tv_sec: 0,
                tv_nsec: 50_000,
            };
            // Woken early is as good.
            let _slept = rustix::thread::nanosleep(&moment);
        }
    }
}
