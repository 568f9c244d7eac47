//! What can go wrong between two sides of a channel.

use core::fmt;

/// Why a message was not sent, or none came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// The shared memory holds what the protocol does not allow: the connection has to end.
    Hostile {
        /// What was found.
        found: &'static str,
    },
    /// The other side has let go of the channel, or its process is dead.
    Gone,
    /// The other side does not read: the ring was full for the whole time limit.
    Full,
    /// No message came, or not all of one, within the time limit.
    TimedOut,
    /// The message is longer than the region allows. Nothing was sent.
    TooLong {
        /// Length of the message in bytes.
        bytes: usize,
        /// The most that the region allows, in bytes.
        most: usize,
    },
    /// All channels of the region are taken.
    NoChannel,
    /// This process is a forked child of the one that has the region. It has to connect by itself.
    Forked,
}

impl fmt::Display for RingError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hostile { found } => write!(out, "The shared memory was overwritten: {found}"),
            Self::Gone => write!(out, "The other side has ended the connection"),
            Self::Full => write!(out, "The other side does not read its messages"),
            Self::TimedOut => write!(out, "The other side did not answer in time"),
            Self::TooLong { bytes, most } => {
                write!(out, "A message of {bytes} bytes is longer than {most} bytes")
            }
            Self::NoChannel => write!(out, "All channels of the region are taken"),
            Self::Forked => write!(out, "The connection belongs to the parent process"),
        }
    }
}

impl core::error::Error for RingError {}

pub(crate) const fn hostile(found: &'static str) -> RingError {
    RingError::Hostile { found }
}
