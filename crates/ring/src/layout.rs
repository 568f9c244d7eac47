//! The bytes of a region. Any change here needs a new [`REGION_VERSION`].
//!
//! ```text
//!   0       header: what lies where
//!   4096    control page of channel 0, of channel 1, …: a page each
//!           requests of channel 0, replies of channel 0, requests of channel 1, …
//!           data area, for bulk transfers
//! ```
//!
//! The offsets follow from the four numbers of a [`Shape`]. A side computes them once, from its own copy of the numbers.

use core::mem::{offset_of, size_of};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use divvy_ledger::PageError;

use crate::index::RingWords;
use crate::sleep::SideWords;

/// Version of the layout and of the rules for using a region. Both sides have to have the same.
pub const REGION_VERSION: u32 = 2;
/// A unit of the layout, in bytes: the header, a control page, and the least size of a ring.
pub const PAGE: usize = 4096;
/// Most channels of a region.
pub const MAX_CHANNELS: u32 = 1024;
/// Largest ring, in bytes. Indices count bytes modulo 2^32, so it is far below half of that.
pub const MAX_RING_BYTES: u32 = 1 << 26;
/// Largest data area, in bytes.
pub const MAX_DATA_BYTES: u64 = 1 << 40;

/// "DVYRINGS" in memory order on a little-endian machine.
const MAGIC: u64 = u64::from_le_bytes(*b"DVYRINGS");
/// The region's name in errors.
pub(crate) const NAME: &str = "region";

/// The start of a region.
#[repr(C)]
pub(crate) struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    channels: AtomicU32,
    request_bytes: AtomicU32,
    reply_bytes: AtomicU32,
    message_bytes: AtomicU32,
    reserved: AtomicU32,
    data_bytes: AtomicU64,
    /// Where the side that made the region has it mapped. The other side tries the same address: then an address of
    /// the data area means the same in both processes.
    address: AtomicU64,
}

/// What the two sides of one channel share, beside the rings' bytes. Words that different sides write lie 128 bytes
/// apart: processors fetch lines of 64 bytes, and some fetch pairs of them.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ChannelWords<W> {
    /// See [`crate::owner`].
    pub owner: Line<W>,
    /// From the client to the server.
    pub requests: RingWords<W>,
    /// From the server to the client.
    pub replies: RingWords<W>,
    /// How the client sleeps.
    pub client: SideWords<W>,
    /// How the server sleeps.
    pub server: SideWords<W>,
}

/// A word with lines of its own.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Line<W>(pub W);

const _: () = {
    assert!(size_of::<Header>() == 48);
    assert!(offset_of!(Header, data_bytes) == 32);
    assert!(size_of::<ChannelWords<AtomicU32>>() == 9 * 128);
    assert!(size_of::<ChannelWords<AtomicU32>>() <= PAGE);
    assert!(offset_of!(ChannelWords<AtomicU32>, requests) == 128);
    assert!(offset_of!(ChannelWords<AtomicU32>, replies) == 384);
    assert!(offset_of!(ChannelWords<AtomicU32>, client) == 640);
    assert!(offset_of!(ChannelWords<AtomicU32>, server) == 896);
    assert!(MAX_RING_BYTES.is_power_of_two());
};

/// The sizes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of channels, 1 to [`MAX_CHANNELS`]: each client thread takes one.
    pub channels: u32,
    /// Bytes of a ring of requests: a power of two from [`PAGE`] to [`MAX_RING_BYTES`].
    pub request_bytes: u32,
    /// Bytes of a ring of replies, likewise.
    pub reply_bytes: u32,
    /// Longest message in bytes, at least 1. It may be longer than a ring: then it goes in fragments.
    pub message_bytes: u32,
    /// Bytes of the data area: a multiple of [`PAGE`], at most [`MAX_DATA_BYTES`].
    pub data_bytes: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            channels: 64,
            request_bytes: 1 << 18,
            reply_bytes: 1 << 18,
            message_bytes: 1 << 26,
            data_bytes: 0,
        }
    }
}

impl Shape {
    /// Whether each number is in its range.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let ring = |bytes: u32| bytes.is_power_of_two() && (PAGE as u32..=MAX_RING_BYTES).contains(&bytes);
        (1..=MAX_CHANNELS).contains(&self.channels)
            && ring(self.request_bytes)
            && ring(self.reply_bytes)
            && (1..=u32::MAX >> 1).contains(&self.message_bytes)
            && self.data_bytes <= MAX_DATA_BYTES
            && self.data_bytes.is_multiple_of(PAGE as u64)
    }

    /// A region of at most so many bytes, as a part of a larger file: an eighth of it is for rings of 64 KiB, as far as
    /// 64 channels need it, and the rest is the data area. `None` where there is no room for one channel and some data.
    #[must_use]
    pub fn within(bytes: u64, message_bytes: u32) -> Option<Self> {
        const RING: u32 = 1 << 16;
        let most = Self::default().channels;
        let mut shape = Self {
            channels: u32::try_from(bytes / 8 / u64::from(2 * RING))
                .map_or(most, |count| count.clamp(1, most)),
            request_bytes: RING,
            reply_bytes: RING,
            message_bytes,
            data_bytes: 0,
        };
        let left = bytes.checked_sub(shape.data_at() as u64)?;
        shape.data_bytes = left / PAGE as u64 * PAGE as u64;
        (shape.data_bytes > 0 && shape.is_valid()).then_some(shape)
    }

    /// Bytes of the region. No sum here can overflow, by the ranges of the numbers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.data_at() as u64 + self.data_bytes
    }

    /// Where the data area begins, in bytes.
    #[must_use]
    pub fn data_at(&self) -> usize {
        self.rings_at() + self.channels as usize * self.channel_rings()
    }

    /// Where the control page of a channel is.
    pub(crate) fn control_at(channel: u32) -> usize {
        PAGE * (1 + channel as usize)
    }

    /// Where the ring of requests of a channel is.
    pub(crate) fn requests_at(&self, channel: u32) -> usize {
        self.rings_at() + channel as usize * self.channel_rings()
    }

    /// Where the ring of replies of a channel is.
    pub(crate) fn replies_at(&self, channel: u32) -> usize {
        self.requests_at(channel) + self.request_bytes as usize
    }

    fn rings_at(&self) -> usize {
        Self::control_at(self.channels)
    }

    fn channel_rings(&self) -> usize {
        self.request_bytes as usize + self.reply_bytes as usize
    }
}

impl Header {
    /// Writes the header of a fresh region, magic last: a reader finds all of it, or no region.
    pub fn write(&self, shape: &Shape, address: u64) {
        self.version.store(REGION_VERSION, Relaxed);
        self.channels.store(shape.channels, Relaxed);
        self.request_bytes.store(shape.request_bytes, Relaxed);
        self.reply_bytes.store(shape.reply_bytes, Relaxed);
        self.message_bytes.store(shape.message_bytes, Relaxed);
        self.reserved.store(0, Relaxed);
        self.data_bytes.store(shape.data_bytes, Relaxed);
        self.address.store(address, Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// Where the side that made the region has it. It is a request to the other side: any number may stand here.
    pub fn address(&self) -> u64 {
        self.address.load(Relaxed)
    }

    /// A private copy of the region's sizes, checked against the `found` bytes that are there.
    pub fn read(&self, found: u64) -> Result<Shape, PageError> {
        if self.magic.load(Acquire) != MAGIC {
            return Err(PageError::Foreign { page: NAME });
        }
        let theirs = self.version.load(Relaxed);
        if theirs != REGION_VERSION {
            return Err(PageError::Version {
                page: NAME,
                ours: REGION_VERSION,
                theirs,
            });
        }
        let shape = Shape {
            channels: self.channels.load(Relaxed),
            request_bytes: self.request_bytes.load(Relaxed),
            reply_bytes: self.reply_bytes.load(Relaxed),
            message_bytes: self.message_bytes.load(Relaxed),
            data_bytes: self.data_bytes.load(Relaxed),
        };
        if !shape.is_valid() {
            return Err(PageError::Corrupted { page: NAME });
        }
        if shape.bytes() > found {
            return Err(PageError::Size {
                page: NAME,
                expected: shape.bytes(),
                found,
            });
        }
        Ok(shape)
    }
}
