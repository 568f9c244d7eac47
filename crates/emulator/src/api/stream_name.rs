//! Streams as calls name them: handles, and the default streams that have none of their own.

use super::current;
use crate::Result;
use crate::driver::driver;
use crate::graph::capture::Target;
use crate::order::{LEGACY, StreamKind};
use crate::stream::{Queue, Stream};
use divvy_abi::*;
use std::sync::{Arc, Weak};

/// A stream as an API call names it: the raw handle, with 0 replaced by what the call's variant means by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamName(pub u64);

/// CU_STREAM_LEGACY.
pub const LEGACY_STREAM: u64 = 1;
/// CU_STREAM_PER_THREAD.
pub const PER_THREAD_STREAM: u64 = 2;

impl StreamName {
    /// The stream this names, in a context that has not failed, for work that cannot be captured.
    pub fn queue(self) -> Result<Queue> {
        let queue = self.queue_even_failed()?;
        queue.context.check()?;
        driver()?.graphs.captures.refuse(&queue)?;
        Ok(queue)
    }

    /// Where work that can be captured goes: the stream this names, or the graph it is captured into.
    pub fn target(self) -> Result<Target<'static>> {
        let queue = self.queue_even_failed()?;
        queue.context.check()?;
        driver()?.graphs.captures.target(queue)
    }

    /// The stream this names, whatever state its context is in.
    pub fn queue_even_failed(self) -> Result<Queue> {
        if self.0 > PER_THREAD_STREAM {
            let stream = driver()?.streams.get(self.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            let kind = if stream.flags & CU_STREAM_NON_BLOCKING.0 != 0 {
                StreamKind::NonBlocking
            } else {
                StreamKind::Blocking
            };
            return Ok(Queue {
                context: Arc::clone(&stream.context),
                id: stream.id,
                stream: stream.handle,
                kind,
                flags: stream.flags,
                priority: stream.priority,
            });
        }
        let context = current::context()?;
        let (id, kind) = if self.0 == PER_THREAD_STREAM {
            (current::own_stream(&context)?, StreamKind::Blocking)
        } else {
            (LEGACY, StreamKind::Legacy)
        };
        Ok(Queue {
            context,
            id,
            stream: 0,
            kind,
            flags: 0,
            priority: 0,
        })
    }
}

/// The stream a queue belongs to; the default streams are none.
pub fn stream_of(queue: &Queue) -> Result<Option<Weak<Stream>>> {
    if queue.stream == 0 {
        return Ok(None);
    }
    Ok(driver()?.streams.get(queue.stream).as_ref().map(Arc::downgrade))
}
