//! A thread's way to the server over a stream.

use super::{Frames, Stream};
use crate::{Lost, Transport};

/// A [`Transport`] over a stream of the thread's own.
#[derive(Debug)]
pub struct StreamTransport<S> {
    frames: Frames<S>,
    capacity: usize,
}

impl<S: Stream> StreamTransport<S> {
    /// Over a stream, with messages of so many bytes at most.
    pub fn new(stream: S, capacity: usize) -> Self {
        Self::over(Frames::new(stream, capacity), capacity)
    }

    /// Over frames that carried something else before.
    pub fn over(mut frames: Frames<S>, capacity: usize) -> Self {
        frames.set_most(capacity);
        Self { frames, capacity }
    }

    /// Sends a message, which may lie in a buffer until [`StreamTransport::flush`].
    ///
    /// # Errors
    /// The server is gone.
    pub fn put(&mut self, message: &[u8]) -> Result<(), Lost> {
        self.frames.put(message).map_err(|_| Lost)
    }

    /// Sends what lies in the buffer.
    ///
    /// # Errors
    /// The server is gone.
    pub fn flush(&mut self) -> Result<(), Lost> {
        self.frames.flush().map_err(|_| Lost)
    }

    /// Whether an answer has begun to come, or the stream has ended.
    pub fn has_more(&mut self) -> bool {
        self.frames.has_more()
    }

    /// The stream below.
    pub fn stream(&self) -> &S {
        self.frames.stream()
    }
}

impl<S: Stream> Transport for StreamTransport<S> {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn submit(&mut self, message: &[u8]) -> Result<(), Lost> {
        // Another thread's call may have to come after it.
        self.put(message)?;
        self.flush()
    }

    fn post(&mut self, message: &[u8]) -> Result<(), Lost> {
        self.submit(message)
    }

    fn take(&mut self, answer: &mut Vec<u8>) -> Result<(), Lost> {
        self.frames.take(answer).map_err(|_| Lost)
    }
}
