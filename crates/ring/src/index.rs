//! The indices of one ring, over any atomics: loom checks the same code that runs in shared memory.
//!
//! An index counts bytes since the ring was reset, modulo 2^32. The producer moves the *tail*, the consumer the *head*.
//! Each side keeps its own index in private memory and publishes a copy. Of the other side's index it believes only
//! what can follow from the values before it: an index moves forward, in whole words, and never past the other one.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, Ordering, fence};

use crate::error::{RingError, hostile};
use crate::layout::Line;

/// Frames begin at multiples of this, in bytes.
pub const ALIGN: u32 = 8;

/// An atomic word of 32 bits: the machine's, or a model's.
pub trait Word {
    /// Atomic load.
    fn load(&self, order: Ordering) -> u32;
    /// Atomic store.
    fn store(&self, value: u32, order: Ordering);
    /// Atomic compare-and-swap. Whether it took place.
    fn replace(&self, current: u32, new: u32) -> bool;
    /// Adds 1, with release ordering.
    fn raise(&self);
    /// A sequentially consistent fence.
    fn fence();
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn replace(&self, current: u32, new: u32) -> bool {
        self.compare_exchange(current, new, Ordering::AcqRel, Relaxed)
            .is_ok()
    }

    #[inline]
    fn raise(&self) {
        self.fetch_add(1, Ordering::AcqRel);
    }

    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// The published indices of one ring.
#[repr(C)]
#[derive(Debug, Default)]
pub struct RingWords<W> {
    /// How far the producer has written.
    pub tail: Line<W>,
    /// How far the consumer has read.
    pub head: Line<W>,
}

impl<W: Word> RingWords<W> {
    /// Empties the ring. No side may be using it.
    pub fn reset(&self) {
        self.tail.0.store(0, Relaxed);
        self.head.0.store(0, Relaxed);
    }
}

/// What the producer of a ring knows.
#[derive(Debug)]
pub struct ProducerIndex {
    tail: u32,
    /// The head when last looked at.
    head: u32,
    capacity: u32,
}

impl ProducerIndex {
    /// Of an empty ring of `capacity` bytes: a power of two.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self {
            tail: 0,
            head: 0,
            capacity,
        }
    }

    /// Where the next frame begins.
    #[must_use]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Whether `bytes` are free, as far as this side knows without a look.
    #[must_use]
    pub fn has_room(&self, bytes: u32) -> bool {
        self.capacity - self.tail.wrapping_sub(self.head) >= bytes
    }

    /// Looks how far the consumer is, and then whether `bytes` are free.
    ///
    /// # Errors
    /// [`RingError::Hostile`].
    pub fn look<W: Word>(&mut self, ring: &RingWords<W>, bytes: u32) -> Result<bool, RingError> {
        // Acquire: the consumer has read the bytes before it published this.
        let head = ring.head.0.load(Acquire);
        // It lies between the head that was seen before and the tail. So what is in use can only have shrunk.
        if self.tail.wrapping_sub(head) > self.tail.wrapping_sub(self.head) || !head.is_multiple_of(ALIGN) {
            return Err(hostile("the head of a ring is not where a consumer can be"));
        }
        self.head = head;
        Ok(self.has_room(bytes))
    }

    /// Publishes `bytes` that were written from the tail on.
    #[inline]
    pub fn publish<W: Word>(&mut self, ring: &RingWords<W>, bytes: u32) {
        self.tail = self.tail.wrapping_add(bytes);
        // Release: the bytes come before the index.
        ring.tail.0.store(self.tail, Release);
    }
}

/// What the consumer of a ring knows.
#[derive(Debug)]
pub struct ConsumerIndex {
    head: u32,
    /// The head as published.
    published: u32,
    /// The tail when last looked at.
    tail: u32,
    capacity: u32,
}

impl ConsumerIndex {
    /// Of an empty ring of `capacity` bytes: a power of two.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self {
            head: 0,
            published: 0,
            tail: 0,
            capacity,
        }
    }

    /// Where the next frame begins.
    #[must_use]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Bytes to read, as far as this side knows without a look.
    #[inline]
    #[must_use]
    pub fn available(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Looks how far the producer is, and returns the bytes to read.
    ///
    /// # Errors
    /// [`RingError::Hostile`].
    #[inline]
    pub fn look<W: Word>(&mut self, ring: &RingWords<W>) -> Result<u32, RingError> {
        // Acquire: what was written before the index is seen after it.
        let tail = ring.tail.0.load(Acquire);
        let available = tail.wrapping_sub(self.head);
        // A tail that went back would leave less than before.
        if available > self.capacity || available < self.available() || !tail.is_multiple_of(ALIGN) {
            return Err(hostile("the tail of a ring is not where a producer can be"));
        }
        self.tail = tail;
        Ok(available)
    }

    /// Notes that `bytes` from the head on were read: at most those available. The producer learns of it by
    /// [`ConsumerIndex::publish`].
    #[inline]
    pub fn advance(&mut self, bytes: u32) {
        self.head = self.head.wrapping_add(bytes);
    }

    /// Whether so much was read since the last publication that a waiting producer should learn of it. Less than this
    /// quarter may stay unpublished for ever: a producer waits for a quarter at most, which is free then once the rest
    /// is read.
    #[inline]
    #[must_use]
    pub fn should_publish(&self) -> bool {
        self.head.wrapping_sub(self.published) >= self.capacity / 4
    }

    /// Publishes how far this side has read.
    pub fn publish<W: Word>(&mut self, ring: &RingWords<W>) {
        self.published = self.head;
        // Release: the bytes were read before the index moves.
        ring.head.0.store(self.head, Release);
    }
}
