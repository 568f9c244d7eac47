//! The client's side of a channel.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::AtomicU32;
use std::sync::Arc;

use crate::error::RingError;
use crate::link::{Counts, Deadline, Link};
use crate::region::Ends;
use crate::sleep::Doorbell;
use crate::stream::{Consumer, Producer};

/// A client thread's channel. It is given back when this is dropped.
///
/// It stays on its thread: a channel whose thread has ended without a drop is found by the thread's number.
pub struct Client<D: Doorbell<AtomicU32>> {
    link: Link<D>,
    requests: Producer,
    replies: Consumer,
    /// After this error the rings may hold half a message, or a reply that no call waits for.
    failed: Option<RingError>,
    ends: Arc<Ends>,
    channel: u32,
    _thread: PhantomData<*const ()>,
}

impl<D: Doorbell<AtomicU32>> Client<D> {
    pub(crate) fn new(
        link: Link<D>,
        requests: Producer,
        replies: Consumer,
        ends: Arc<Ends>,
        channel: u32,
    ) -> Self {
        Self {
            link,
            requests,
            replies,
            failed: None,
            ends,
            channel,
            _thread: PhantomData,
        }
    }

    /// Sends a message that has no reply. Returns when it is in the ring.
    ///
    /// # Errors
    /// [`RingError::Full`] where the server did not read for the time limit: if none of the message was sent, it may be
    /// sent again. [`RingError::TooLong`] and [`RingError::Forked`] likewise leave the channel as it was. After
    /// [`RingError::Gone`] or [`RingError::Hostile`] the channel has ended, and returns the same error from then on.
    #[inline]
    pub fn submit(&mut self, message: &[u8]) -> Result<(), RingError> {
        self.send(message, false)
    }

    /// Sends a message and waits for its reply, which replaces what `reply` held.
    ///
    /// # Errors
    /// Those of [`Client::submit`]. [`RingError::TimedOut`] after [`Limits::reply`](crate::Limits::reply): then the
    /// channel has ended, for its reply may still come.
    #[inline]
    pub fn call(&mut self, message: &[u8], reply: &mut Vec<u8>) -> Result<(), RingError> {
        self.post(message)?;
        self.take(reply)
    }

    /// Sends a message that has a reply, and does not wait for it: [`Client::take`] does. Replies come in the order of
    /// their messages, so several may be under way.
    ///
    /// # Errors
    /// Those of [`Client::submit`].
    #[inline]
    pub fn post(&mut self, message: &[u8]) -> Result<(), RingError> {
        self.send(message, true)
    }

    /// Waits for the reply to the first message of [`Client::post`] whose reply was not taken. It replaces what `reply`
    /// held.
    ///
    /// # Errors
    /// Those of [`Client::call`]. Without such a message it waits for the server's end.
    #[inline]
    pub fn take(&mut self, reply: &mut Vec<u8>) -> Result<(), RingError> {
        self.link.check_process()?;
        if let Some(error) = self.failed {
            return Err(error);
        }
        let deadline = Deadline::after(self.link.limits.reply);
        let received = self.replies.receive(&mut self.link, reply, deadline);
        match received {
            Ok(_) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn send(&mut self, message: &[u8], is_call: bool) -> Result<(), RingError> {
        self.link.check_process()?;
        if let Some(error) = self.failed {
            return Err(error);
        }
        // The rings may be another client's by now.
        if !self.link.term.is_held(self.link.words()) {
            return Err(self.fail(RingError::Gone));
        }
        self.requests
            .send(&mut self.link, message, is_call)
            .map_err(|error| match error {
                RingError::TooLong { .. } => error,
                RingError::Full if !self.requests.in_message => error,
                error => {
                    self.failed = Some(error);
                    error
                }
            })
    }

    #[cold]
    fn fail(&mut self, error: RingError) -> RingError {
        self.failed = Some(error);
        error
    }

    /// Which of the region's channels this is.
    #[must_use]
    pub fn channel(&self) -> u32 {
        self.channel
    }

    /// What this side has done.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.link.counts
    }
}

impl<D: Doorbell<AtomicU32>> Drop for Client<D> {
    fn drop(&mut self) {
        if self.link.check_process().is_ok() {
            self.ends.forget_client(self.channel);
            if self.link.term.leave(self.link.words()) {
                self.link.call();
            }
        }
    }
}

impl<D: Doorbell<AtomicU32>> fmt::Debug for Client<D> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Client({}, {:?})", self.channel, self.failed)
    }
}
