//! The grant: what a slice may use. The agent writes it, its tenants read it.

use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, SealFlags};
use rustix::thread::futex;

use crate::error::PageError;
use crate::layout::{GRANT_BYTES, GRANT_MAGIC, GrantPage, monotonic_ns};
use crate::lease::{Gate, GateWord, Lease};
use crate::mapping::{Access, Mapping};
use crate::memfd;
use crate::terms::{Cap, Class, ComputeTerms, MAX_ACCOUNTS, MAX_ON_OOM_WAIT, Policy, Terms};
use crate::text::{self, GrantText};

/// How the UUID of PoCL begins, where a host shares its processors as an OpenCL device. A tenant recognises the account of
/// that device by it: PoCL itself tells no UUID.
pub const POCL_UUID: [u8; 4] = *b"PoCL";

/// The contents of a new grant. By default it is strict, holds no memory, and is the only account of its slice.
#[derive(Clone, Copy, Debug)]
pub struct GrantSpec<'a> {
    /// Device memory that the slice may use, in bytes.
    pub memory_limit_bytes: u64,
    /// UUID of the device, as the driver below reports it.
    pub device_uuid: [u8; 16],
    /// The slice's id, at most [`crate::TEXT_BYTES`] bytes.
    pub slice_id: &'a str,
    /// The slice's name, at most [`crate::TEXT_BYTES`] bytes.
    pub slice_name: &'a str,
    /// Which of the slice's accounts this is: 0 for its first device, 1 for the next.
    pub account: u32,
    /// How many devices, and so accounts, the slice has: 1 to [`MAX_ACCOUNTS`].
    pub accounts: u32,
    /// Everything else.
    pub terms: Terms,
}

impl Default for GrantSpec<'_> {
    fn default() -> Self {
        Self {
            memory_limit_bytes: 0,
            device_uuid: [0; 16],
            slice_id: "",
            slice_name: "",
            account: 0,
            accounts: 1,
            terms: Terms::default(),
        }
    }
}

impl GrantPage {
    pub(crate) fn memory_limit_bytes(&self) -> u64 {
        self.memory_limit_bytes.load(Relaxed)
    }

    /// The part of the limit that is left for memory that calls show.
    pub(crate) fn memory_ceiling_bytes(&self) -> u64 {
        self.memory_limit_bytes()
            .saturating_sub(self.overhead_bytes.load(Relaxed))
    }

    pub(crate) fn spill_limit_bytes(&self) -> u64 {
        self.spill_limit_bytes.load(Relaxed)
    }

    pub(crate) fn on_oom_wait(&self) -> Duration {
        Duration::from_nanos(self.on_oom_wait_ns.load(Relaxed)).min(MAX_ON_OOM_WAIT)
    }

    pub(crate) fn policy(&self) -> Policy {
        Policy::of_code(self.policy.load(Relaxed))
    }

    fn terms(&self) -> Terms {
        Terms {
            policy: self.policy(),
            on_oom_wait: self.on_oom_wait(),
            context_bytes: self.context_bytes.load(Relaxed),
            spill_limit_bytes: self.spill_limit_bytes(),
            compute: ComputeTerms {
                share: self.compute_share.load(Relaxed),
                cap: Cap::of_code(self.compute_cap.load(Relaxed)),
                class: Class::of_code(self.compute_class.load(Relaxed)),
            },
        }
    }

    fn write_terms(&self, terms: &Terms) {
        let wait = terms.on_oom_wait.min(MAX_ON_OOM_WAIT).as_nanos() as u64;
        self.policy.store(terms.policy.code(), Relaxed);
        self.on_oom_wait_ns.store(wait, Relaxed);
        self.context_bytes.store(terms.context_bytes, Relaxed);
        self.spill_limit_bytes.store(terms.spill_limit_bytes, Relaxed);
        self.compute_share.store(terms.compute.share, Relaxed);
        self.compute_cap.store(terms.compute.cap.code(), Relaxed);
        self.compute_class.store(terms.compute.class.code(), Relaxed);
    }

    fn device_uuid(&self) -> [u8; 16] {
        let mut uuid = [0; 16];
        for (chunk, word) in uuid.chunks_exact_mut(8).zip(&self.device_uuid) {
            chunk.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        uuid
    }

    fn set_device_uuid(&self, uuid: [u8; 16]) {
        for (chunk, word) in uuid.chunks_exact(8).zip(&self.device_uuid) {
            let mut value = [0; 8];
            value.copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(value), Relaxed);
        }
    }
}

/// A grant that this process made and may change.
#[derive(Debug)]
pub struct Grant {
    mapping: Mapping<GrantPage>,
    fd: OwnedFd,
    /// The previous grant, which tenants use until they fetch this one.
    predecessor: Option<GrantView>,
}

impl Grant {
    /// Makes the first grant of a slice, generation 1.
    ///
    /// # Errors
    /// [`PageError::TextTooLong`], [`PageError::NoSuchAccount`], or the system's reason.
    pub fn create(spec: &GrantSpec<'_>) -> Result<Self, PageError> {
        Self::with_generation(spec, 1)
    }

    /// Makes the grant that follows `old`, with the same content, except that a leased gate becomes closed. A sealed
    /// grant cannot be mapped writable again, so a restarted agent makes its own and has tenants follow.
    ///
    /// # Errors
    /// The system's reason.
    pub fn succeed(old: &GrantView) -> Result<Self, PageError> {
        let (id, name) = (old.slice_id(), old.slice_name());
        let spec = GrantSpec {
            memory_limit_bytes: old.memory_limit_bytes(),
            device_uuid: old.device_uuid(),
            slice_id: id.as_str(),
            slice_name: name.as_str(),
            account: old.account(),
            accounts: old.accounts(),
            terms: old.terms(),
        };
        let new = Self::with_generation(&spec, old.generation().wrapping_add(1).max(1))?;
        new.mapping
            .page()
            .overhead_bytes
            .store(old.overhead_bytes(), Relaxed);
        new.mapping.page().lease.succeed(&old.mapping.page().lease);
        Ok(new)
    }

    fn with_generation(spec: &GrantSpec<'_>, generation: u32) -> Result<Self, PageError> {
        if spec.account >= spec.accounts || spec.accounts > MAX_ACCOUNTS {
            return Err(PageError::NoSuchAccount {
                account: spec.account,
                accounts: spec.accounts,
            });
        }
        let fd = memfd::create(c"divvy-grant", GRANT_BYTES)?;
        let mapping = Mapping::<GrantPage>::new(fd.as_fd(), Access::ReadWrite, "mmap of a new grant")?;
        let page = mapping.page();
        text::write(&page.slice_id, spec.slice_id)?;
        text::write(&page.slice_name, spec.slice_name)?;
        page.set_device_uuid(spec.device_uuid);
        page.memory_limit_bytes.store(spec.memory_limit_bytes, Relaxed);
        page.account.store(spec.account, Relaxed);
        page.accounts.store(spec.accounts, Relaxed);
        page.write_terms(&spec.terms);
        page.generation.store(generation, Relaxed);
        page.header.write(GRANT_MAGIC, GRANT_BYTES);
        // From here on no other writable mapping can be made: a tenant of the same user could open the file again.
        memfd::seal(fd.as_fd(), SealFlags::FUTURE_WRITE)?;
        Ok(Self {
            mapping,
            fd,
            predecessor: None,
        })
    }

    /// Keeps the previous grant, whose waiters have to be told.
    pub(crate) fn follows(&mut self, old: GrantView) {
        self.predecessor = Some(old);
    }

    /// Wakes tenants that sleep on the previous grant, so that they look again and find this one.
    pub(crate) fn wake_followers(&self) {
        self.predecessor.iter().for_each(GrantView::wake_gate);
    }

    /// Changes the memory limit, in bytes. It may be below the present use: then no more is granted until use has
    /// fallen.
    pub fn set_memory_limit_bytes(&self, bytes: u64) {
        self.mapping.page().memory_limit_bytes.store(bytes, Relaxed);
        self.tell();
    }

    /// Sets how many bytes the driver holds for the slice that no call showed. The limit has that much less left. An
    /// unchanged value is not written.
    pub fn set_overhead_bytes(&self, bytes: u64) {
        if self.mapping.page().overhead_bytes.swap(bytes, Relaxed) != bytes {
            self.tell();
        }
    }

    /// Changes the terms.
    pub fn set_terms(&self, terms: &Terms) {
        self.mapping.page().write_terms(terms);
        self.tell();
    }

    /// The page, for this crate's own use of it.
    pub(crate) fn page(&self) -> &GrantPage {
        self.mapping.page()
    }

    /// Announces a change.
    fn tell(&self) {
        let page = self.mapping.page();
        page.sequence.fetch_add(1, Release);
        // It is not an error that no thread waits.
        let _woken = futex::wake(&page.sequence, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Lets the slice launch without limit. Returns the new gate word.
    pub fn open_gate(&self) -> GateWord {
        self.mapping.page().lease.set(Gate::Open, None)
    }

    /// Stops further launches of the slice. Returns the new gate word.
    pub fn close_gate(&self) -> GateWord {
        self.mapping.page().lease.set(Gate::Closed, None)
    }

    /// Leases the device to the slice, or changes its present lease. Returns the new gate word.
    pub fn lease(&self, lease: Lease) -> GateWord {
        self.mapping.page().lease.set(Gate::Leased, Some(lease))
    }

    /// The state of the gate, as this agent wrote it.
    #[must_use]
    pub fn gate(&self) -> GateWord {
        self.mapping.page().lease.word()
    }

    /// Shows tenants that the agent is alive.
    pub fn beat(&self) {
        self.mapping.page().lease.beat_ns.store(monotonic_ns(), Relaxed);
    }

    /// Sets the clock of the device's multiprocessors under load, in MHz.
    pub fn set_clock_mhz(&self, mhz: u32) {
        self.mapping.page().lease.clock_mhz.store(mhz, Relaxed);
    }

    /// Sets the slice's part of the device's time while no agent leases it, in parts of 10,000.
    pub fn set_fallback_share(&self, share: u32) {
        self.mapping.page().lease.fallback_share.store(share, Relaxed);
    }

    /// The terms.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.mapping.page().terms()
    }

    /// Bytes that the driver holds for the slice and that no call showed.
    #[must_use]
    pub fn overhead_bytes(&self) -> u64 {
        self.mapping.page().overhead_bytes.load(Relaxed)
    }

    /// Which of its slice's accounts this is.
    #[must_use]
    pub fn account(&self) -> u32 {
        self.mapping.page().account.load(Relaxed)
    }

    /// The memory limit in bytes.
    #[must_use]
    pub fn memory_limit_bytes(&self) -> u64 {
        self.mapping.page().memory_limit_bytes()
    }

    /// The generation of this grant: 1, and one more for each successor.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.mapping.page().generation.load(Relaxed)
    }

    /// A read-only descriptor of the page, for a page server or a tenant.
    ///
    /// # Errors
    /// The system's reason; /proc must be mounted.
    pub fn share(&self) -> Result<OwnedFd, PageError> {
        memfd::reopen(self.fd.as_fd(), OFlags::RDONLY)
    }
}

/// A grant mapped read-only.
#[derive(Debug)]
pub struct GrantView {
    mapping: Mapping<GrantPage>,
}

impl GrantView {
    /// Maps a grant. The descriptor is no longer needed afterwards.
    ///
    /// # Errors
    /// [`PageError`] when it is not a sealed grant page of our version.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, PageError> {
        // The order matters: an unsealed file could change its size between two checks.
        memfd::require_seals(fd, "grant", SealFlags::FUTURE_WRITE)?;
        memfd::require_size(fd, "grant", GRANT_BYTES)?;
        let mapping = Mapping::<GrantPage>::new(fd, Access::Read, "mmap of the grant")?;
        mapping.page().header.check("grant", GRANT_MAGIC, GRANT_BYTES)?;
        Ok(Self { mapping })
    }

    /// Keeps the mapping for as long as the process lives.
    pub(crate) fn leak(self) -> *mut GrantPage {
        self.mapping.leak()
    }

    /// A view of a mapping that [`GrantView::leak`] has kept.
    pub(crate) fn of_leaked(page: &'static GrantPage) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Self {
            mapping: Mapping::of_leaked(page),
        })
    }

    /// Device memory that the slice may use, in bytes.
    #[must_use]
    pub fn memory_limit_bytes(&self) -> u64 {
        self.mapping.page().memory_limit_bytes()
    }

    /// Bytes that the driver holds for the slice and that no call showed. The limit covers them.
    #[must_use]
    pub fn overhead_bytes(&self) -> u64 {
        self.mapping.page().overhead_bytes.load(Relaxed)
    }

    /// The terms besides the memory limit.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.mapping.page().terms()
    }

    /// Which of its slice's accounts this is, from 0.
    #[must_use]
    pub fn account(&self) -> u32 {
        self.mapping.page().account.load(Relaxed)
    }

    /// How many accounts the slice has.
    #[must_use]
    pub fn accounts(&self) -> u32 {
        self.mapping.page().accounts.load(Relaxed).clamp(1, MAX_ACCOUNTS)
    }

    /// The state of the gate: one load.
    #[inline]
    #[must_use]
    pub fn gate(&self) -> GateWord {
        self.mapping.page().lease.word()
    }

    /// The lease, if the gate word says that there is one.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.mapping.page().lease.lease()
    }

    /// Waits until the gate word differs from `seen`, or for `limit`. Returns the present word.
    #[must_use]
    pub fn wait_gate(&self, seen: GateWord, limit: Duration) -> GateWord {
        self.mapping.page().lease.wait(seen, limit)
    }

    /// Wakes all threads that wait in [`GrantView::wait_gate`], in every process of the slice, so that they check
    /// again.
    pub fn wake_gate(&self) {
        self.mapping.page().lease.wake();
    }

    /// When the agent last showed that it is alive: nanoseconds of CLOCK_MONOTONIC, or 0 for never.
    #[must_use]
    pub fn beat_ns(&self) -> u64 {
        self.mapping.page().lease.beat_ns.load(Relaxed)
    }

    /// The clock of the device's multiprocessors under load, in MHz, or 0 if it is unknown.
    #[must_use]
    pub fn clock_mhz(&self) -> u32 {
        self.mapping.page().lease.clock_mhz.load(Relaxed)
    }

    /// The slice's part of the device's time while no agent leases it, in parts of 10,000; 0 if none was set.
    #[must_use]
    pub fn fallback_share(&self) -> u32 {
        self.mapping.page().lease.fallback_share.load(Relaxed)
    }

    /// UUID of the device, as the driver below reports it.
    #[must_use]
    pub fn device_uuid(&self) -> [u8; 16] {
        self.mapping.page().device_uuid()
    }

    /// The slice's id.
    #[must_use]
    pub fn slice_id(&self) -> GrantText {
        GrantText::read(&self.mapping.page().slice_id)
    }

    /// The slice's name.
    #[must_use]
    pub fn slice_name(&self) -> GrantText {
        GrantText::read(&self.mapping.page().slice_name)
    }

    /// The generation of this grant: 1, and one more for each successor.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.mapping.page().generation.load(Relaxed)
    }

    /// A number that changes with every change of the grant.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.mapping.page().sequence.load(Acquire)
    }

    /// Waits until the grant's sequence differs from `sequence`, or for `limit`. Returns the present sequence.
    #[must_use]
    pub fn wait(&self, sequence: u32, limit: Duration) -> u32 {
        let limit = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()) as _,
        };
        // Woken, too late, or timed out: the word itself tells which.
        let _why = futex::wait(
            &self.mapping.page().sequence,
            futex::Flags::empty(),
            sequence,
            Some(&limit),
        );
        self.sequence()
    }
}
