//! Copies between programs without a device and the device, by the path that they took. A worker counts its program's in
//! the slice's ledger.

use core::sync::atomic::Ordering::Relaxed;

use crate::layout::LedgerPage;

/// The way of bytes between the memory of a program without a device and the device's. Its number is its index in the
/// page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyPath {
    /// In messages: four copies of each byte.
    Message = 0,
    /// Through memory that program and worker share: two copies.
    Staged = 1,
    /// From memory of the program that is shared: one copy.
    Shared = 2,
    /// From such memory that is pinned: none.
    Pinned = 3,
}

impl CopyPath {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Message, Self::Staged, Self::Shared, Self::Pinned];

    /// Its name in metrics and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Staged => "staged",
            Self::Shared => "shared",
            Self::Pinned => "pinned",
        }
    }

    /// How often a processor copies each byte.
    #[must_use]
    pub const fn copies(self) -> u64 {
        match self {
            Self::Message => 4,
            Self::Staged => 2,
            Self::Shared => 1,
            Self::Pinned => 0,
        }
    }
}

impl LedgerPage {
    pub(crate) fn count_copied(&self, path: CopyPath, bytes: u64) {
        self.copied.0[path as usize].fetch_add(bytes, Relaxed);
    }

    pub(crate) fn copied(&self, path: CopyPath) -> u64 {
        self.copied.0[path as usize].load(Relaxed)
    }
}
