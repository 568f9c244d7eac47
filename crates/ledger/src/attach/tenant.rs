//! The tenant's half: a process joins its slice, follows its grant, and has dead processes reaped when it runs short.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use core::time::Duration;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::channel::{self, Deadline, Descriptors};
use super::error::AttachError;
use super::wire::{Kind, Reply};
use crate::error::ReserveError;
use crate::grant::GrantView;
use crate::layout::{self, GrantPage};
use crate::lease::GateWord;
use crate::ledger::{Backing, Ledger};
use crate::memfd;
use crate::slot::{Slot, SlotOwner};
use crate::terms::Policy;

/// How long the first attach may take: many processes may start at once.
const ATTACH_LIMIT: Duration = Duration::from_secs(5);
/// How long the page server may hold up a running program, in the rare moments that need it.
const ERRAND_LIMIT: Duration = Duration::from_millis(500);
/// How long to wait before the next try, after a grant could not be followed.
const FOLLOW_AGAIN_NS: u64 = 100_000_000;
/// Longest socket path that the system allows.
const PATH_BYTES: usize = 108;

/// This process's membership in a slice: its grant, and its slot in the ledger. It keeps no descriptor.
#[derive(Debug)]
pub struct Attached {
    slot: Slot,
    /// The mapping in use. Earlier mappings stay: another thread may be reading them.
    grant: AtomicPtr<GrantPage>,
    grant_generation: AtomicU32,
    following: AtomicBool,
    follow_again_ns: AtomicU64,
    /// Until when the agent is not asked to measure: see [`crate::fresh`].
    pub(crate) rests_until_ns: AtomicU64,
    account: u32,
    path: [u8; PATH_BYTES],
    path_length: usize,
}

/// Joins the slice whose page server listens on `path` (the value of `DIVVY_SLICE`), as a user of its account
/// `account`. The grant of the first account tells how many there are: [`GrantView::accounts`].
///
/// # Errors
/// [`AttachError`]; neither a descriptor nor a mapping is left behind.
pub fn connect(path: &Path, account: u32) -> Result<Attached, AttachError> {
    let bytes = path.as_os_str().as_bytes();
    let mut kept = [0; PATH_BYTES];
    let Some(room) = kept.get_mut(..bytes.len()) else {
        return Err(AttachError::System {
            step: "address of the slice's attach socket",
            errno: Errno::NAMETOOLONG,
        });
    };
    room.copy_from_slice(bytes);
    let (reply, (grant, ledger)) = fetch(path, account, ATTACH_LIMIT)?;
    let grant = GrantView::map(grant.as_fd())?;
    let slot = Slot::claim(ledger, Backing::Sealed, SlotOwner { host_pid: reply.pid })?;
    Ok(Attached {
        slot,
        grant_generation: AtomicU32::new(grant.generation()),
        grant: AtomicPtr::new(grant.leak()),
        following: AtomicBool::new(false),
        follow_again_ns: AtomicU64::new(0),
        rests_until_ns: AtomicU64::new(0),
        account,
        path: kept,
        path_length: bytes.len(),
    })
}

impl Attached {
    /// Takes `bytes`, rounded up to whole units of 512, unless the slice's total and overhead would pass its limit.
    /// Before a refusal, the memory of the slice's dead processes is returned.
    ///
    /// # Errors
    /// [`ReserveError::Refused`] if it does not fit; [`ReserveError::Forked`] in a child of the process that attached:
    /// the child has to attach itself first.
    #[inline]
    pub fn reserve(&self, bytes: u64) -> Result<(), ReserveError> {
        self.follow_grant();
        let answer = self.slot.reserve(bytes, self.page().memory_ceiling_bytes());
        match answer {
            Err(ReserveError::Refused { limit_bytes, .. }) if bytes <= limit_bytes => {
                self.reap_and_reserve(bytes, answer)
            }
            _ => answer,
        }
    }

    /// Gives back `bytes` that this process reserved in one call.
    ///
    /// # Errors
    /// As [`Slot::release`].
    #[inline]
    pub fn release(&self, bytes: u64) -> Result<(), ReserveError> {
        self.slot.release(bytes)
    }

    /// Device memory that the slice may use, in bytes.
    #[inline]
    #[must_use]
    pub fn memory_limit_bytes(&self) -> u64 {
        self.page().memory_limit_bytes()
    }

    /// The rest of the limit, in bytes: neither in use nor held by the driver itself. `None` in a forked child.
    #[inline]
    #[must_use]
    pub fn room_bytes(&self) -> Option<u64> {
        let used = self.slot.total_used()?;
        Some(self.page().memory_ceiling_bytes().saturating_sub(used))
    }

    /// What happens to a use that cannot be limited.
    #[inline]
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.page().policy()
    }

    /// How long an allocation waits for memory before it is refused.
    #[must_use]
    pub fn on_oom_wait(&self) -> Duration {
        self.page().on_oom_wait()
    }

    /// Bytes that the slice may allocate beyond its limit, in managed memory.
    #[inline]
    #[must_use]
    pub fn spill_limit_bytes(&self) -> u64 {
        self.page().spill_limit_bytes()
    }

    /// Bytes in use by the whole slice, or `None` in a forked child.
    #[inline]
    #[must_use]
    pub fn total_used(&self) -> Option<u64> {
        self.slot.total_used()
    }

    /// How long ago a dead process's bytes were last returned to the slice, or `None` if never. The driver below may
    /// still hold them for a moment. If it is out of memory within some 100 ms of this, another try is worthwhile.
    #[must_use]
    pub fn since_return(&self) -> Option<Duration> {
        self.slot.since_return()
    }

    /// This process's slot in the ledger.
    #[must_use]
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The slice's grant.
    #[must_use]
    pub fn grant(&self) -> GrantRef<'_> {
        GrantRef {
            view: GrantView::of_leaked(self.page()),
            _attached: PhantomData,
        }
    }

    /// The state of the gate: two loads, and a third to check that the grant is the newest.
    #[inline]
    #[must_use]
    pub fn gate(&self) -> GateWord {
        self.follow_grant();
        self.page().lease.word()
    }

    /// Whether this process is the one that attached, and not a forked child of it.
    #[inline]
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.slot.is_ours()
    }

    #[inline]
    pub(crate) fn page(&self) -> &'static GrantPage {
        // SAFETY: stored there by `connect` or `follow`, from a mapping that is never undone, not even in children.
        unsafe { &*self.grant.load(Acquire) }
    }

    /// Makes sure that the grant is the newest: one relaxed load, as long as it is.
    #[inline]
    pub fn follow_grant(&self) {
        if let Some(newest) = self.slot.grant_generation()
            && newest != self.grant_generation.load(Relaxed)
        {
            self.follow();
        }
    }

    /// Whether a thread of this process fetches a newer grant at this moment. What the old one says is then soon of no
    /// meaning.
    #[must_use]
    pub fn is_following(&self) -> bool {
        self.following.load(Acquire)
    }

    #[cold]
    fn follow(&self) {
        let now = layout::monotonic_ns();
        if now < self.follow_again_ns.load(Relaxed) || self.following.swap(true, AcqRel) {
            return;
        }
        // The hint is in a page that tenants can write, and the page server may be gone: then the old grant stays in
        // use.
        let followed = fetch(self.path(), self.account, ERRAND_LIMIT)
            .ok()
            .and_then(|(_, (grant, _))| {
                let view = GrantView::map(grant.as_fd()).ok()?;
                (view.generation() > self.grant_generation.load(Relaxed)).then_some(view)
            });
        match followed {
            Some(view) => {
                let before = self.page();
                self.grant_generation.store(view.generation(), Relaxed);
                self.grant.store(view.leak(), Release);
                // Other threads of this process came meanwhile, found this one at work, and went back to sleep at the
                // old grant's word.
                before.lease.wake();
            }
            None => self
                .follow_again_ns
                .store(now.saturating_add(FOLLOW_AGAIN_NS), Relaxed),
        }
        self.following.store(false, Release);
    }

    #[cold]
    fn reap_and_reserve(&self, bytes: u64, refused: Result<(), ReserveError>) -> Result<(), ReserveError> {
        // No other process holds anything, so no dead process does.
        if self.slot.total_used() <= self.slot.used() {
            return refused;
        }
        let Ok((_, (_, ledger))) = fetch(self.path(), self.account, ERRAND_LIMIT) else {
            return refused;
        };
        if let Ok(ledger) = Ledger::open(ledger, Backing::Sealed) {
            // Memory that could not be returned stays charged: the result below shows it.
            let _reaped = ledger.reap_all();
        }
        self.slot.reserve(bytes, self.page().memory_ceiling_bytes())
    }

    fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path[..self.path_length]))
    }
}

/// A view of the grant of an [`Attached`].
#[derive(Debug)]
pub struct GrantRef<'a> {
    view: ManuallyDrop<GrantView>,
    _attached: PhantomData<&'a Attached>,
}

impl Deref for GrantRef<'_> {
    type Target = GrantView;

    fn deref(&self) -> &GrantView {
        &self.view
    }
}

fn fetch(path: &Path, account: u32, limit: Duration) -> Result<(Reply, Descriptors), AttachError> {
    let deadline = Deadline::after(limit);
    let socket = channel::connect(path, deadline)?;
    let (reply, fds) = channel::ask(socket.as_fd(), Kind::Attach, account, None, deadline)?;
    let (grant, ledger) = fds.ok_or(AttachError::Protocol)?;
    // The page server has yet to close its own copy, and locks last until the last copy is closed. So a description
    // that the server never had is better. Without /proc the server's copy will do, and its lock ends a little later.
    let own = memfd::reopen(ledger.as_fd(), OFlags::RDWR).unwrap_or(ledger);
    Ok((reply, (grant, own)))
}
