//! Messages in one ring: the two ends of one direction.
//!
//! A message goes as one or several *frames*: a header of 8 bytes, the payload, and padding up to a multiple of 8. The
//! header says how long the payload is, whether more of the message follows, and whether it asks for a reply. A frame
//! is published whole. One frame takes a quarter of the ring at most: while the consumer copies one, the producer
//! writes the next.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::bytes::SharedBytes;
use crate::error::{RingError, hostile};
use crate::index::{ALIGN, ConsumerIndex, ProducerIndex, RingWords};
use crate::layout::ChannelWords;
use crate::link::{Deadline, Link};
use crate::sleep::{Doorbell, Waiting};

/// Bytes of a frame's header.
const HEADER: u32 = 8;
/// In a header: more of the message follows.
const MORE: u64 = 1 << 32;
/// In a header: the message asks for a reply.
const CALL: u64 = 1 << 33;
/// In a header: the payload's bytes.
const LENGTH: u64 = u32::MAX as u64;

/// Which of a channel's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Requests,
    Replies,
}

impl Direction {
    #[inline]
    fn of(self, words: &ChannelWords<AtomicU32>) -> &RingWords<AtomicU32> {
        match self {
            Self::Requests => &words.requests,
            Self::Replies => &words.replies,
        }
    }
}

/// Writes messages into a ring.
#[derive(Debug)]
pub(crate) struct Producer {
    bytes: SharedBytes,
    index: ProducerIndex,
    direction: Direction,
    /// Most payload bytes of one frame.
    fragment: usize,
    /// Whether a part of a message was sent, and not yet the rest.
    pub in_message: bool,
}

impl Producer {
    /// Of an empty ring.
    pub fn new(bytes: SharedBytes, capacity: u32, direction: Direction) -> Self {
        Self {
            bytes,
            index: ProducerIndex::new(capacity),
            direction,
            fragment: (capacity / 4 - HEADER) as usize,
            in_message: false,
        }
    }

    /// Sends a message, and wakes the other side if it sleeps.
    ///
    /// # Errors
    /// [`RingError::TooLong`], [`RingError::Full`], [`RingError::Gone`], [`RingError::Hostile`].
    pub fn send<D: Doorbell<AtomicU32>>(
        &mut self,
        link: &mut Link<D>,
        message: &[u8],
        is_call: bool,
    ) -> Result<(), RingError> {
        if message.len() > link.message_bytes {
            return Err(RingError::TooLong {
                bytes: message.len(),
                most: link.message_bytes,
            });
        }
        let mut deadline = Deadline::after(Some(link.limits.stall));
        let mut rest = message;
        loop {
            let (fragment, after) = rest.split_at(rest.len().min(self.fragment));
            self.send_frame(link, fragment, !after.is_empty(), is_call, &mut deadline)?;
            self.in_message = !after.is_empty();
            rest = after;
            if rest.is_empty() {
                link.counts.sent += 1;
                return Ok(());
            }
        }
    }

    #[inline]
    fn send_frame<D: Doorbell<AtomicU32>>(
        &mut self,
        link: &mut Link<D>,
        payload: &[u8],
        more: bool,
        is_call: bool,
        deadline: &mut Deadline,
    ) -> Result<(), RingError> {
        let frame = HEADER + (payload.len() as u32).next_multiple_of(ALIGN);
        if !self.index.has_room(frame) {
            self.wait_for_room(link, frame, deadline)?;
        }
        let tail = self.index.tail();
        let header = payload.len() as u64 | if more { MORE } else { 0 } | if is_call { CALL } else { 0 };
        self.bytes.word(tail).store(header, Relaxed);
        self.bytes.write(tail.wrapping_add(HEADER), payload);
        self.index.publish(self.direction.of(link.words()), frame);
        link.notify(Waiting::Message);
        Ok(())
    }

    #[cold]
    fn wait_for_room<D: Doorbell<AtomicU32>>(
        &mut self,
        link: &mut Link<D>,
        frame: u32,
        deadline: &mut Deadline,
    ) -> Result<(), RingError> {
        let Self { index, direction, .. } = self;
        link.wait(Waiting::Room, deadline, |words| {
            index.look(direction.of(words), frame)
        })
    }
}

/// Reads messages from a ring.
#[derive(Debug)]
pub(crate) struct Consumer {
    bytes: SharedBytes,
    index: ConsumerIndex,
    direction: Direction,
}

impl Consumer {
    /// Of an empty ring.
    pub fn new(bytes: SharedBytes, capacity: u32, direction: Direction) -> Self {
        Self {
            bytes,
            index: ConsumerIndex::new(capacity),
            direction,
        }
    }

    /// Copies the next message out, over what `message` held. Waits for its beginning until `deadline`. Whether the
    /// message asks for a reply.
    ///
    /// # Errors
    /// [`RingError::TimedOut`], [`RingError::Gone`], [`RingError::Hostile`].
    pub fn receive<D: Doorbell<AtomicU32>>(
        &mut self,
        link: &mut Link<D>,
        message: &mut Vec<u8>,
        mut deadline: Deadline,
    ) -> Result<bool, RingError> {
        message.clear();
        loop {
            if self.index.available() == 0 && self.index.look(self.direction.of(link.words()))? == 0 {
                self.wait_for_message(link, &mut deadline)
                    .map_err(|error| match error {
                        // A message without its end will not be continued.
                        RingError::TimedOut if !message.is_empty() => RingError::Gone,
                        error => error,
                    })?;
            }
            let header = self.read_frame(link.message_bytes, message)?;
            if self.index.should_publish() {
                self.publish(link);
            }
            if header & MORE == 0 {
                link.counts.received += 1;
                return Ok(header & CALL != 0);
            }
            if message.len() as u64 == header & LENGTH {
                // The first fragment: the others have to follow soon.
                deadline = Deadline::after(Some(link.limits.stall));
            }
        }
    }

    /// Appends the payload of the frame at the head, of which 8 bytes or more are there. Returns its header.
    #[inline]
    fn read_frame(&mut self, most: usize, message: &mut Vec<u8>) -> Result<u64, RingError> {
        let (head, available) = (self.index.head(), self.index.available());
        // Read once: from here on only this copy counts.
        let header = self.bytes.word(head).load(Relaxed);
        if header & !(LENGTH | MORE | CALL) != 0 {
            return Err(hostile("a frame has unknown flags"));
        }
        let length = (header & LENGTH) as u32;
        // Indices are multiples of 8, so a ring that is not empty has a header, and padding fits where the payload does.
        if length > available - HEADER {
            return Err(hostile("a frame is longer than what was published"));
        }
        if length == 0 && header & MORE != 0 {
            return Err(hostile("a part of a message is empty"));
        }
        if length as usize > most.saturating_sub(message.len()) {
            return Err(hostile("a message is longer than the region allows"));
        }
        self.bytes
            .read(head.wrapping_add(HEADER), length as usize, message);
        self.index.advance(HEADER + length.next_multiple_of(ALIGN));
        Ok(header)
    }

    /// Publishes how far this side has read, and wakes a producer that waits for that.
    fn publish<D: Doorbell<AtomicU32>>(&mut self, link: &mut Link<D>) {
        self.index.publish(self.direction.of(link.words()));
        link.notify(Waiting::Room);
    }

    fn wait_for_message<D: Doorbell<AtomicU32>>(
        &mut self,
        link: &mut Link<D>,
        deadline: &mut Deadline,
    ) -> Result<(), RingError> {
        let Self { index, direction, .. } = self;
        link.wait(Waiting::Message, deadline, |words| {
            Ok(index.look(direction.of(words))? != 0)
        })
    }
}
