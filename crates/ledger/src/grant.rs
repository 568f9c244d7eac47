//! The grant: what a slice may use. The agent writes it, its tenants read it.

use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, SealFlags};
use rustix::thread::futex;

use crate::error::PageError;
use crate::layout::{GRANT_BYTES, GRANT_MAGIC, GrantPage, TEXT_WORDS, Text};
use crate::mapping::{Access, Mapping};
use crate::memfd;

/// Longest slice id or name in a grant, in bytes of UTF-8.
pub const TEXT_BYTES: usize = TEXT_WORDS * 8;

/// What a new grant says.
#[derive(Clone, Copy, Debug)]
pub struct GrantSpec<'a> {
    /// Device memory that the slice may use, in bytes.
    pub memory_limit_bytes: u64,
    /// UUID of the device, as the driver below reports it.
    pub device_uuid: [u8; 16],
    /// The slice's id, at most [`TEXT_BYTES`] bytes.
    pub slice_id: &'a str,
    /// The slice's name, at most [`TEXT_BYTES`] bytes.
    pub slice_name: &'a str,
}

/// A text out of a grant.
#[derive(Clone, Copy)]
pub struct GrantText {
    bytes: [u8; TEXT_BYTES],
    length: usize,
}

impl GrantText {
    fn read(words: &Text) -> Self {
        let mut bytes = [0; TEXT_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(TEXT_BYTES);
        Self { bytes, length }
    }

    /// The text; as much of it as is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..self.length];
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
        }
    }
}

impl fmt::Debug for GrantText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(out)
    }
}

fn write_text(words: &Text, text: &str) -> Result<(), PageError> {
    if text.len() > TEXT_BYTES {
        return Err(PageError::TextTooLong { bytes: text.len() });
    }
    let mut bytes = [0; TEXT_BYTES];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    for (chunk, word) in bytes.chunks_exact(8).zip(words) {
        let mut value = [0; 8];
        value.copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(value), Relaxed);
    }
    Ok(())
}

impl GrantPage {
    pub(crate) fn memory_limit_bytes(&self) -> u64 {
        self.memory_limit_bytes.load(Relaxed)
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

/// A grant that this process made, and may change.
#[derive(Debug)]
pub struct Grant {
    mapping: Mapping<GrantPage>,
    fd: OwnedFd,
}

impl Grant {
    /// Makes the first grant of a slice, generation 1.
    ///
    /// # Errors
    /// [`PageError::TextTooLong`], or the system's reason.
    pub fn create(spec: &GrantSpec<'_>) -> Result<Self, PageError> {
        Self::with_generation(spec, 1)
    }

    /// Makes the grant that follows `old`, of the same content. A sealed grant cannot be mapped writable again, so
    /// a restarted agent makes its own and has tenants follow.
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
        };
        Self::with_generation(&spec, old.generation().wrapping_add(1).max(1))
    }

    fn with_generation(spec: &GrantSpec<'_>, generation: u32) -> Result<Self, PageError> {
        let fd = memfd::create(c"divvy-grant", GRANT_BYTES)?;
        let mapping = Mapping::<GrantPage>::new(fd.as_fd(), Access::ReadWrite, "mmap of a new grant")?;
        let page = mapping.page();
        write_text(&page.slice_id, spec.slice_id)?;
        write_text(&page.slice_name, spec.slice_name)?;
        page.set_device_uuid(spec.device_uuid);
        page.memory_limit_bytes.store(spec.memory_limit_bytes, Relaxed);
        page.generation.store(generation, Relaxed);
        page.header.write(GRANT_MAGIC, GRANT_BYTES);
        // From here on nobody gets another writable mapping: a tenant of the same user could open the file again.
        memfd::seal(fd.as_fd(), SealFlags::FUTURE_WRITE)?;
        Ok(Self { mapping, fd })
    }

    /// Changes the memory limit, in bytes. It may be below what is in use: then nothing more is granted until use
    /// has fallen.
    pub fn set_memory_limit_bytes(&self, bytes: u64) {
        let page = self.mapping.page();
        page.memory_limit_bytes.store(bytes, Relaxed);
        page.sequence.fetch_add(1, Release);
        // Nobody waiting is not an error.
        let _woken = futex::wake(&page.sequence, futex::Flags::empty(), i32::MAX as u32);
    }

    /// The memory limit in bytes.
    #[must_use]
    pub fn memory_limit_bytes(&self) -> u64 {
        self.mapping.page().memory_limit_bytes()
    }

    /// Which grant of its slice this is: 1, and one more for each successor.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.mapping.page().generation.load(Relaxed)
    }

    /// A read-only descriptor of the page, for a keeper or a tenant.
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
        memfd::require_size(fd, "grant", GRANT_BYTES)?;
        memfd::require_seals(fd, "grant", SealFlags::FUTURE_WRITE)?;
        let mapping = Mapping::<GrantPage>::new(fd, Access::Read, "mmap of the grant")?;
        mapping.page().header.check("grant", GRANT_MAGIC, GRANT_BYTES)?;
        Ok(Self { mapping })
    }

    /// Keeps the mapping for as long as the process lives.
    pub(crate) fn leak(self) -> *mut GrantPage {
        self.mapping.leak()
    }

    /// A view of a mapping that is kept by [`GrantView::leak`].
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

    /// Which grant of its slice this is: 1, and one more for each successor.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.mapping.page().generation.load(Relaxed)
    }

    /// A number that changes with every change of the grant.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.mapping.page().sequence.load(Acquire)
    }

    /// Waits until the grant's sequence is no longer `sequence`, or for `limit`. Answers the present sequence.
    #[must_use]
    pub fn wait(&self, sequence: u32, limit: Duration) -> u32 {
        let limit = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()) as _,
        };
        // Woken, too late, or timed out: the word itself says which.
        let _why = futex::wait(
            &self.mapping.page().sequence,
            futex::Flags::empty(),
            sequence,
            Some(&limit),
        );
        self.sequence()
    }
}
