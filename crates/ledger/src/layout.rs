//! The bytes of both pages: the page ABI. Any change here needs a new [`PAGE_ABI_VERSION`].

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use crate::accounting::{Memory, RECORDS_PER_SLOT, RecordId, SLOTS};
use crate::error::PageError;

/// Version of the layout and of the rules for using the pages. Both sides of an attach name theirs.
pub const PAGE_ABI_VERSION: u32 = 6;
/// Size of a grant page in bytes.
pub const GRANT_BYTES: usize = size_of::<GrantPage>();
/// Size of a ledger in bytes. Sparse: a page that no process slot has touched takes no memory.
pub const LEDGER_BYTES: usize = size_of::<LedgerPage>();

/// "DVYGRANT" in memory order on a little-endian machine.
pub(crate) const GRANT_MAGIC: u64 = u64::from_le_bytes(*b"DVYGRANT");
/// "DVYLEDGR" likewise.
pub(crate) const LEDGER_MAGIC: u64 = u64::from_le_bytes(*b"DVYLEDGR");

/// The start of both pages, in every version of the ABI.
#[repr(C)]
pub(crate) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub bytes: AtomicU32,
}

impl Header {
    /// Writes the header of a fresh page, magic last: a reader finds either all of it or no page of ours.
    pub fn write(&self, magic: u64, bytes: usize) {
        self.version.store(PAGE_ABI_VERSION, Relaxed);
        self.bytes.store(bytes as u32, Relaxed);
        self.magic.store(magic, core::sync::atomic::Ordering::Release);
    }

    /// The same as the bytes of a file that is not mapped.
    pub fn bytes_of(magic: u64, bytes: usize) -> [u8; 16] {
        let mut header = [0; 16];
        header[..8].copy_from_slice(&magic.to_ne_bytes());
        header[8..12].copy_from_slice(&PAGE_ABI_VERSION.to_ne_bytes());
        header[12..].copy_from_slice(&(bytes as u32).to_ne_bytes());
        header
    }

    /// Refuses a page that is not ours, that has another version, or whose size is not the one it states.
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

/// What a slice may use of one device. One page, mapped read-only by tenants. A reservation reads its first cache line.
#[repr(C, align(4096))]
pub(crate) struct GrantPage {
    pub header: Header,
    /// Which of the slice's memory files this is: a restarted agent makes the next one. It never changes within a page.
    pub generation: AtomicU32,
    /// Futex word: raised after every change of a field below.
    pub sequence: AtomicU32,
    pub memory_limit_bytes: AtomicU64,
    pub device_uuid: [AtomicU64; 2],
    /// What the driver holds for the slice that no call showed. It is here and not in the ledger, so that a tenant
    /// cannot lower it.
    pub overhead_bytes: AtomicU64,
    pub spill_limit_bytes: AtomicU64,
    pub policy: AtomicU32,
    /// Which of its slice's accounts this is, from 0, and how many there are. Neither changes within a page.
    pub account: AtomicU32,
    pub accounts: AtomicU32,
    pub compute_share: AtomicU32,
    pub compute_cap: AtomicU32,
    pub compute_class: AtomicU32,
    pub on_oom_wait_ns: AtomicU64,
    pub context_bytes: AtomicU64,
    /// Futex word: the number up to which requested measurements are done. See [`crate::fresh`].
    pub looked: AtomicU32,
    pub reserved_word: AtomicU32,
    /// When the agent last measured what the driver holds for the slice: nanoseconds of CLOCK_MONOTONIC, 0 for never.
    pub looked_at_ns: AtomicU64,
    pub reserved: AtomicU64,
    pub slice_id: Text,
    pub slice_name: Text,
    pub lease: LeaseLine,
}

/// Whether the slice may launch now: see [`crate::Lease`]. A launch reads this line.
#[repr(C, align(64))]
pub(crate) struct LeaseLine {
    /// Futex word: see [`crate::GateWord`].
    pub gate: AtomicU32,
    /// The slice's part of the device's time while no agent leases it, in parts of 10,000.
    pub fallback_share: AtomicU32,
    pub epoch: AtomicU64,
    pub until_ns: AtomicU64,
    pub in_flight_ns: AtomicU64,
    /// When the agent last showed that it is alive: nanoseconds of CLOCK_MONOTONIC.
    pub beat_ns: AtomicU64,
    /// The clock of the device's multiprocessors in MHz, as the agent last saw it under load; 0 for unknown, as in pages of
    /// an agent that does not tell.
    pub clock_mhz: AtomicU32,
    pub reserved_word: AtomicU32,
    pub reserved: [AtomicU64; 26],
}

/// Fixed text in UTF-8, padded with zeros.
pub(crate) type Text = [AtomicU64; TEXT_WORDS];
pub(crate) const TEXT_WORDS: usize = 16;

/// What a slice uses of one device.
#[repr(C, align(4096))]
pub(crate) struct LedgerPage {
    pub header: Header,
    /// Generation of the newest grant. A tenant whose grant has another one attaches again for the new grant. A hint.
    pub grant_generation: AtomicU32,
    /// All process slots that were ever claimed are below this.
    pub high_water: AtomicU32,
    /// When a dead process's bytes were last returned: nanoseconds of CLOCK_MONOTONIC, 0 for never. A hint.
    pub returned_at_ns: AtomicU64,
    /// Device memory.
    pub usage: UsageLine,
    /// Memory that is allocated beyond the share, as managed memory.
    pub spill_usage: UsageLine,
    pub thrash: ThrashLine,
    /// Uses of the device past the limiter, by [`crate::Bypass`].
    pub bypasses: [AtomicU64; BYPASS_KINDS],
    pub doorbell: DoorbellLine,
    /// Bytes that workers copied, by [`crate::CopyPath`]. Pages of this version had padding here before, which is zero.
    pub copied: CopiedLine,
    pub slots: Slots,
    pub spilled: SpillRecords,
    /// Allocations that a process of the slice shares with other processes of it: see [`crate::shared`].
    pub shared: [AtomicU64; SHARED_WORDS],
    /// The residual charge of each: see [`crate::shared::Residual`].
    pub shared_residuals: [AtomicU64; SHARED_WORDS],
    /// Its importers, by slot.
    pub shared_importers: [[AtomicU64; SLOTS / 64]; SHARED_WORDS],
    pub activities: Activities,
}

/// How tenants call the agent.
#[repr(C, align(64))]
pub(crate) struct DoorbellLine {
    /// Futex word: raised by a process that wants the agent to look.
    pub rings: AtomicU32,
    /// How many measurements of what the driver holds were requested. See [`crate::fresh`].
    pub looks: AtomicU32,
    /// Not 0 once any process has let go of an allocation that it still owns.
    pub let_go: AtomicU32,
}

/// Bytes by the path on which they were copied.
#[repr(C, align(64))]
pub(crate) struct CopiedLine(pub [AtomicU64; 8]);

/// The activity records of the processes, by slot. They have pages of their own, which cost nothing without launches.
#[repr(C, align(4096))]
pub(crate) struct Activities(pub [ActivityLine; SLOTS]);

/// The activity record of one process: see [`crate::Activity`]. Only this process writes it, and it may write any
/// value.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ActivityLine {
    pub(crate) state: AtomicU32,
    pub(crate) acknowledged: AtomicU32,
    pub(crate) in_flight_ns: AtomicU64,
    pub(crate) busy_ns: AtomicU64,
    pub(crate) kernel_ns: AtomicU64,
    pub(crate) launched: AtomicU64,
    pub(crate) completed: AtomicU64,
    reserved: [AtomicU64; 2],
}

/// Words in which the slice's processes tell each other of shared allocations.
pub const SHARED_WORDS: usize = 2048;

/// Space for kinds of bypasses, known and future.
pub(crate) const BYPASS_KINDS: usize = 16;

/// The accounting word of one table. The word for waiters stands beside it, in a cache line that each change loads
/// anyway.
#[repr(C, align(64))]
pub(crate) struct UsageLine {
    pub word: AtomicU64,
    /// Not 0 if a process waits for a release. A process that releases memory clears it and wakes all; a waiter that
    /// continues to wait sets it again. So a waiter that was killed costs one wake.
    pub waited_for: AtomicU32,
    /// Futex word: raised by a release that found a waiter.
    pub releases: AtomicU32,
    /// The most that was in use at once, in units.
    pub peak_units: AtomicU64,
    /// Refused allocations, and the newest one's size and process: see [`crate::Refusals`].
    pub refusals: AtomicU64,
    pub refused_bytes: AtomicU64,
    pub refused_pid: AtomicU32,
}

/// What tenants find out about thrashing. Hints for the agent's display and its quantum.
#[repr(C, align(64))]
pub(crate) struct ThrashLine {
    /// How much of the memory that kernels could touch lies beyond the share, in parts of 10,000; 0 for none.
    pub pressure: AtomicU32,
    pub reserved: AtomicU32,
    /// When thrashing began: nanoseconds of CLOCK_MONOTONIC, or 0 if the slice does not thrash.
    pub since_ns: AtomicU64,
    /// How often thrashing began.
    pub episodes: AtomicU64,
    /// When a process last checked: nanoseconds of CLOCK_MONOTONIC.
    pub noted_at_ns: AtomicU64,
}

/// The process slots, on pages of their own.
#[repr(C, align(4096))]
pub(crate) struct Slots(pub [ProcessSlot; SLOTS]);

/// One process's slot.
#[repr(C, align(64))]
pub(crate) struct ProcessSlot {
    /// Not 0 from claim to reap, by [`crate::shared::claim`]. The lock tells whether its process lives.
    pub claimed: AtomicU32,
    /// The process's id in its own pid namespace, for display.
    pub pid: AtomicU32,
    /// The process's id in the page server's pid namespace, for display; 0 if it has none there.
    pub host_pid: AtomicU32,
    /// Futex word: raised by a process that may have been the last importer of an allocation that this process has let
    /// go of.
    pub calls: AtomicU32,
    /// When the slot was claimed: nanoseconds since the Unix epoch.
    pub claimed_at_ns: AtomicU64,
    /// See [`crate::accounting::Memory::gathered`].
    pub gathered: AtomicU64,
    /// The same, for memory beyond the share.
    pub spill_gathered: AtomicU64,
    /// Since when a thread of the process waits for memory: nanoseconds of CLOCK_MONOTONIC, 0 if none waits. A hint.
    pub waiting_since_ns: AtomicU64,
    pub records: [Record; RECORDS_PER_SLOT],
}

/// The records of memory beyond the share, by slot. They have pages of their own, which cost nothing if there is none.
#[repr(C, align(4096))]
pub(crate) struct SpillRecords(pub [[Record; RECORDS_PER_SLOT]; SLOTS]);

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
    assert!(size_of::<SpillRecords>() == SLOTS * RECORDS_PER_SLOT * size_of::<Record>());
    assert!(size_of::<Activities>() == SLOTS * 64);
    assert!(
        LEDGER_BYTES
            == 4096
                + size_of::<Slots>()
                + size_of::<SpillRecords>()
                + SHARED_WORDS * 8 * (2 + SLOTS / 64)
                + size_of::<Activities>()
    );
    assert!(offset_of!(GrantPage, sequence) == 20);
    assert!(offset_of!(GrantPage, memory_limit_bytes) == 24);
    assert!(offset_of!(GrantPage, policy) == 64);
    assert!(offset_of!(GrantPage, slice_id) == 128);
    assert!(offset_of!(GrantPage, lease) == 384);
    assert!(offset_of!(LedgerPage, usage) == 64);
    assert!(offset_of!(LedgerPage, spill_usage) == 128);
    assert!(offset_of!(LedgerPage, thrash) == 192);
    assert!(offset_of!(LedgerPage, bypasses) == 256);
    assert!(offset_of!(LedgerPage, doorbell) == 384);
    assert!(offset_of!(LedgerPage, copied) == 448);
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

    /// Number of slots to look at, bounded whatever the page says.
    pub fn slots_in_use(&self) -> usize {
        (self.high_water.load(core::sync::atomic::Ordering::Acquire) as usize).min(SLOTS)
    }

    fn record(&self, record: RecordId) -> &Record {
        &self.slots.0[record.slot()].records[record.number()]
    }

    /// The table of memory beyond the share.
    pub fn spill(&self) -> Spill<'_> {
        Spill(self)
    }
}

/// A ledger's second table, for memory beyond the share. It follows the same rules as the first, in records of its own.
#[derive(Clone, Copy)]
pub(crate) struct Spill<'a>(&'a LedgerPage);

impl Spill<'_> {
    fn record(&self, record: RecordId) -> &Record {
        &self.0.spilled.0[record.slot()][record.number()]
    }
}

/// Nanoseconds of a clock that all processes of a machine have in common.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec as u64)
}

impl Memory for LedgerPage {
    type Cell = AtomicU64;

    #[inline]
    fn word(&self) -> &AtomicU64 {
        &self.usage.word
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
        relax(rounds);
    }
}

impl Memory for Spill<'_> {
    type Cell = AtomicU64;

    fn word(&self) -> &AtomicU64 {
        &self.0.spill_usage.word
    }

    fn busy(&self, record: RecordId) -> &AtomicU64 {
        &self.record(record).busy
    }

    fn state(&self, record: RecordId) -> &AtomicU64 {
        &self.record(record).state
    }

    fn amount(&self, record: RecordId, parity: usize) -> &AtomicU64 {
        &self.record(record).amount[parity & 1]
    }

    fn gathered(&self, slot: usize) -> &AtomicU64 {
        &self.0.slots.0[slot % SLOTS].spill_gathered
    }

    fn relax(&self, rounds: u32) {
        relax(rounds);
    }
}

/// Lets another thread run.
fn relax(rounds: u32) {
    if rounds < 100 {
        rustix::thread::sched_yield();
    } else {
        let moment = rustix::thread::Timespec {
            tv_sec: 0,
            tv_nsec: 50_000,
        };
        // Waking early does no harm.
        let _slept = rustix::thread::nanosleep(&moment);
    }
}
