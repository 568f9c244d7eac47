//! Why an attach, a delivery or a recall failed.

use core::fmt;

use rustix::io::Errno;

use super::wire::{Malformed, Status};
use crate::error::PageError;
use crate::layout::PAGE_ABI_VERSION;

/// Why an attach, a delivery or a recall failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// The other side speaks another version of the page ABI.
    Version {
        /// The version this program speaks.
        ours: u32,
        /// The version of the other side.
        theirs: u32,
    },
    /// The page server refused the request.
    Declined(Status),
    /// The reply is not of this protocol.
    Protocol,
    /// The other side did not answer in time.
    TimedOut,
    /// The pages in the reply cannot be used.
    Page(PageError),
    /// The system refused a step. A missing or dead page server is found here, and so is a path that is too long for a
    /// socket.
    System {
        /// The call and what it was for.
        step: &'static str,
        /// The system's reason.
        errno: Errno,
    },
}

impl AttachError {
    pub(super) fn system(step: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| match errno {
            Errno::AGAIN | Errno::TIMEDOUT => Self::TimedOut,
            errno => Self::System { step, errno },
        }
    }
}

impl From<PageError> for AttachError {
    fn from(error: PageError) -> Self {
        Self::Page(error)
    }
}

impl From<Malformed> for AttachError {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Version { theirs } => Self::Version {
                ours: PAGE_ABI_VERSION,
                theirs,
            },
            Malformed::Foreign | Malformed::Meaning => Self::Protocol,
        }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { ours, theirs } => write!(
                out,
                "This program speaks page-ABI version {ours}, the slice's page server version {theirs}"
            ),
            Self::Declined(Status::NoPages) => write!(out, "The slice's page server has no pages yet"),
            Self::Declined(Status::NotAllowed) => write!(out, "The slice's page server does not allow this"),
            Self::Declined(Status::Unfit) => write!(out, "The slice's page server finds the pages unfit"),
            Self::Declined(_) => write!(out, "The slice's page server could not do it"),
            Self::Protocol => write!(out, "What listens on the slice's socket is not its page server"),
            Self::TimedOut => write!(out, "The slice's page server did not answer in time"),
            Self::Page(error) => error.fmt(out),
            Self::System { step, errno } => write!(out, "{step}: {errno}"),
        }
    }
}

impl core::error::Error for AttachError {}
