//! What moves messages between a program's thread and its server.

use core::fmt;

use divvy_ring::Region;

/// The server does not answer any more: its process ended, or the connection was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server of this device is gone")
    }
}

impl std::error::Error for Lost {}

/// Why a thread has no way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// The server is gone.
    Lost,
    /// The server serves no more threads of this program at once.
    Full,
    /// The server serves no more programs at once.
    Busy,
}

impl From<Lost> for NotOpened {
    fn from(_: Lost) -> Self {
        NotOpened::Lost
    }
}

/// One thread's way to the server. Messages arrive in the order in which they were sent.
pub trait Transport {
    /// Bytes of the largest message, in either direction.
    fn capacity(&self) -> usize;

    /// Sends a message, and returns when the other side has room for it, not when it has been read.
    ///
    /// # Errors
    /// The server is gone.
    fn submit(&mut self, message: &[u8]) -> Result<(), Lost>;

    /// Sends a message that has an answer, without waiting for it. [`Transport::take`] does, in the order of the messages.
    ///
    /// # Errors
    /// The server is gone.
    fn post(&mut self, message: &[u8]) -> Result<(), Lost>;

    /// Waits for the answer to the first posted message whose answer was not taken. It replaces what `answer` held.
    ///
    /// # Errors
    /// The server is gone.
    fn take(&mut self, answer: &mut Vec<u8>) -> Result<(), Lost>;

    /// Sends a message and waits for the answer, which replaces what `answer` held.
    ///
    /// # Errors
    /// The server is gone.
    fn call(&mut self, message: &[u8], answer: &mut Vec<u8>) -> Result<(), Lost> {
        self.post(message)?;
        self.take(answer)
    }
}

/// Opens a way to the server for each thread of the program that makes calls.
pub trait Connector: Send + Sync {
    /// A transport for the thread with this number, from 0.
    ///
    /// # Errors
    /// The server is gone, or serves no more threads.
    fn open(&self, thread: u32) -> Result<Box<dyn Transport>, NotOpened>;

    /// The memory that program and server share, where there is such memory. Its data area holds pinned memory, and the
    /// bytes of large copies.
    fn region(&self) -> Option<Region> {
        None
    }
}
