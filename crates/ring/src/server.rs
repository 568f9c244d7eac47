//! The server's side of a channel.

use core::fmt;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::sync::Arc;

use crate::error::RingError;
use crate::link::{Counts, Deadline, Link};
use crate::region::Ends;
use crate::sleep::Doorbell;
use crate::stream::{Consumer, Producer};

/// Buffers that have grown beyond this are given back before the next message, in bytes.
const KEPT: usize = 1 << 22;

/// The server's side of a channel. The channel is closed when this is dropped.
pub struct Server<D: Doorbell<AtomicU32>> {
    link: Link<D>,
    requests: Consumer,
    replies: Producer,
    message: Vec<u8>,
    reply: Vec<u8>,
    /// After this error the channel has to be reset.
    failed: Option<RingError>,
    ends: Arc<Ends>,
    channel: u32,
}

impl<D: Doorbell<AtomicU32>> Server<D> {
    pub(crate) fn new(
        link: Link<D>,
        requests: Consumer,
        replies: Producer,
        ends: Arc<Ends>,
        channel: u32,
    ) -> Self {
        Self {
            link,
            requests,
            replies,
            message: Vec::new(),
            reply: Vec::new(),
            failed: None,
            ends,
            channel,
        }
    }

    /// Waits for one message, for `limit` or for ever, and handles it. `handle` gets a private copy of the message, and
    /// an empty buffer for the reply. The reply is sent if the client asked for one.
    ///
    /// # Errors
    /// [`RingError::TimedOut`] where no message came: the next try goes on. After each other error the channel has
    /// ended, and returns the same error until it is [reset](Server::reset): [`RingError::Gone`] is the usual end,
    /// [`RingError::Full`] a client that does not read, [`RingError::Hostile`] one that breaks the protocol.
    /// [`RingError::TooLong`] is a reply that the region does not allow.
    #[inline]
    pub fn serve_one(
        &mut self,
        limit: Option<Duration>,
        handle: impl FnOnce(&[u8], &mut Vec<u8>),
    ) -> Result<(), RingError> {
        self.link.check_process()?;
        if let Some(error) = self.failed {
            return Err(error);
        }
        match self.handle_one(limit, handle) {
            Ok(()) => Ok(()),
            Err(RingError::TimedOut) => Err(RingError::TimedOut),
            Err(error) => {
                self.failed = Some(error);
                Err(error)
            }
        }
    }

    #[inline]
    fn handle_one(
        &mut self,
        limit: Option<Duration>,
        handle: impl FnOnce(&[u8], &mut Vec<u8>),
    ) -> Result<(), RingError> {
        if self.message.capacity().max(self.reply.capacity()) > KEPT {
            self.message = Vec::new();
            self.reply = Vec::new();
        }
        let deadline = Deadline::after(limit);
        let is_call = self
            .requests
            .receive(&mut self.link, &mut self.message, deadline)?;
        self.reply.clear();
        handle(&self.message, &mut self.reply);
        if is_call {
            self.replies.send(&mut self.link, &self.reply, false)?;
        }
        Ok(())
    }

    /// Waits for one message, for `limit` or for ever, which replaces what `message` held. Whether the client waits for a
    /// reply: [`Server::reply`] sends it, in the order of the messages. So several calls may be under way.
    ///
    /// # Errors
    /// Those of [`Server::serve_one`].
    pub fn receive(&mut self, limit: Option<Duration>, message: &mut Vec<u8>) -> Result<bool, RingError> {
        self.link.check_process()?;
        if let Some(error) = self.failed {
            return Err(error);
        }
        let deadline = Deadline::after(limit);
        let received = self.requests.receive(&mut self.link, message, deadline);
        received.map_err(|error| self.note(error))
    }

    /// Sends the reply to the first message of [`Server::receive`] that waits for one.
    ///
    /// # Errors
    /// Those of [`Server::serve_one`].
    pub fn reply(&mut self, reply: &[u8]) -> Result<(), RingError> {
        self.link.check_process()?;
        if let Some(error) = self.failed {
            return Err(error);
        }
        let sent = self.replies.send(&mut self.link, reply, false);
        sent.map_err(|error| self.note(error))
    }

    /// After an error the channel has ended, but for a message that did not come in time.
    fn note(&mut self, error: RingError) -> RingError {
        if error != RingError::TimedOut {
            self.failed = Some(error);
        }
        error
    }

    /// Handles messages until the client is gone or the channel fails. Returns why it ended.
    pub fn serve(&mut self, mut handle: impl FnMut(&[u8], &mut Vec<u8>)) -> RingError {
        loop {
            if let Err(error) = self.serve_one(None, &mut handle) {
                return error;
            }
        }
    }

    /// Takes the channel back and frees it for the next client thread. What the last one left in the rings is lost.
    /// Does nothing in a forked child.
    pub fn reset(&mut self) {
        if self.link.check_process().is_err() {
            return;
        }
        (self.requests, self.replies) = self.ends.server_streams(self.channel);
        self.failed = None;
        self.link.term = self.link.term.next();
        self.ends.note_term(self.channel, self.link.term);
        self.link.term.reset(self.link.words());
        // A client that still believed the channel its own looks now.
        self.link.call();
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

impl<D: Doorbell<AtomicU32>> Drop for Server<D> {
    fn drop(&mut self) {
        if self.link.check_process().is_ok() {
            self.link.term.close(self.link.words());
            self.link.call();
            self.ends.forget_server(self.channel);
        }
    }
}

impl<D: Doorbell<AtomicU32>> fmt::Debug for Server<D> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Server({}, {:?})", self.channel, self.failed)
    }
}
