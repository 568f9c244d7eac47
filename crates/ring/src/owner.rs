//! The owner word of a channel: how client threads take channels, and how the server takes them back.
//!
//! ```text
//!            client claims            client lets go, or its thread died
//!   free(n) ──────────────> taken(n) ──────────────────────────────────> leaving(n)
//!      ^                        │                                            │
//!      └──── server resets ─────┴──── server resets: n + 1 ──────────────────┘
//! ```
//!
//! The server alone frees a channel. It empties both rings first, so that a client finds its private indices, which
//! begin at 0, in the shared memory. The number `n` changes with each reset: a client whose channel was taken from it
//! finds another number, and stops.

use core::sync::atomic::Ordering::{Acquire, Release};

use crate::index::Word;
use crate::layout::ChannelWords;

/// No thread has the channel, and its rings are empty.
const FREE: u32 = 0;
/// A client thread has it.
const TAKEN: u32 = 1;
/// Its client has let go of it: the server resets it.
const LEAVING: u32 = 2;
/// The server has ended: no reset follows.
const CLOSED: u32 = 3;
/// Bits of the state; the number of the reset lies above.
const BITS: u32 = 2;

/// Which client's time on the channel this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term(u32);

impl Term {
    /// Of a fresh region.
    pub const FIRST: Self = Self(0);

    /// The term of this number.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        Self(number & (u32::MAX >> BITS))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    fn word(self, state: u32) -> u32 {
        self.0 << BITS | state
    }

    /// The term after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1) & (u32::MAX >> BITS))
    }

    /// A client takes the channel, if it is free.
    pub fn claim<W: Word>(channel: &ChannelWords<W>) -> Option<Self> {
        let term = Self(channel.owner.0.load(Acquire) >> BITS);
        // The exchange acquires: the server's reset comes before it.
        let claimed = channel.owner.0.replace(term.word(FREE), term.word(TAKEN));
        claimed.then_some(term)
    }

    /// A client lets go. It may not touch the rings after this. Whether the channel was still its own.
    pub fn leave<W: Word>(self, channel: &ChannelWords<W>) -> bool {
        channel.owner.0.replace(self.word(TAKEN), self.word(LEAVING))
    }

    /// Whether the channel is still this client's. Where it is not, what the server sent before is seen after this.
    pub fn is_held<W: Word>(self, channel: &ChannelWords<W>) -> bool {
        channel.owner.0.load(Acquire) == self.word(TAKEN)
    }

    /// Whether the server has to take the channel back: its client has let go, or has written something else there.
    /// What the client sent before it let go is seen after this.
    pub fn is_over<W: Word>(self, channel: &ChannelWords<W>) -> bool {
        let word = channel.owner.0.load(Acquire);
        word != self.word(FREE) && word != self.word(TAKEN)
    }

    /// The server empties the channel, and frees it for this term.
    pub fn reset<W: Word>(self, channel: &ChannelWords<W>) {
        channel.requests.reset();
        channel.replies.reset();
        channel.client.reset();
        channel.server.reset();
        channel.owner.0.store(self.word(FREE), Release);
    }

    /// The server ends.
    pub fn close<W: Word>(self, channel: &ChannelWords<W>) {
        channel.owner.0.store(self.word(CLOSED), Release);
    }
}
