//! One side of a channel: its words, its doorbell, and how long it waits.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use crate::error::RingError;
use crate::layout::ChannelWords;
use crate::mapping::Mapping;
use crate::owner::Term;
use crate::sleep::{After, Doorbell, SideWords, Waiting};

/// How long a side waits for the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// It looks again and again for so long, and then sleeps.
    pub spin: Duration,
    /// It sleeps no longer than this without looking whether the other side lives. Not 0.
    pub look: Duration,
    /// It waits so long for room in a full ring, and for the rest of a message.
    pub stall: Duration,
    /// A client waits so long for a reply, or for ever: then only the other side's end ends the wait.
    pub reply: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            spin: Duration::from_micros(20),
            look: Duration::from_millis(100),
            stall: Duration::from_secs(10),
            reply: None,
        }
    }
}

/// Whether the other side's process lives. The shared memory cannot tell: it comes from a pidfd or a socket.
pub type Liveness = Box<dyn Fn() -> bool + Send>;

/// What a side has done, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often it rang the other side's doorbell: a system call each.
    pub rings: u64,
    /// How often it went to sleep.
    pub sleeps: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
}

/// When a wait has to end. The clock starts with the first wait.
#[derive(Debug)]
pub(crate) struct Deadline {
    limit: Option<Duration>,
    began: Option<Instant>,
}

impl Deadline {
    pub fn after(limit: Option<Duration>) -> Self {
        Self { limit, began: None }
    }

    /// What is left, from now on.
    fn left(&mut self) -> Duration {
        let elapsed = self.began.get_or_insert_with(Instant::now).elapsed();
        self.limit
            .map_or(Duration::MAX, |limit| limit.saturating_sub(elapsed))
    }
}

/// Which side of a channel this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// What both directions of one side need.
pub(crate) struct Link<D> {
    mapping: Arc<Mapping>,
    words: NonNull<ChannelWords<AtomicU32>>,
    role: Role,
    doorbell: D,
    alive: Liveness,
    /// Longest message in bytes.
    pub message_bytes: usize,
    pub limits: Limits,
    pub counts: Counts,
    /// Which client's time it is.
    pub term: Term,
}

// SAFETY: the pointer leads into `mapping`, which may be used from any thread; what else is there is `Send`.
unsafe impl<D: Send> Send for Link<D> {}

impl<D: Doorbell<AtomicU32>> Link<D> {
    /// `words` is of a channel of `mapping`.
    pub fn new(
        mapping: Arc<Mapping>,
        words: NonNull<ChannelWords<AtomicU32>>,
        role: Role,
        peer: Peer<D>,
        message_bytes: usize,
        term: Term,
    ) -> Self {
        Self {
            mapping,
            words,
            role,
            doorbell: peer.doorbell,
            alive: peer.alive,
            message_bytes,
            limits: peer.limits,
            counts: Counts::default(),
            term,
        }
    }

    /// An operation begins.
    ///
    /// # Errors
    /// [`RingError::Forked`]: the rings are not there.
    #[inline]
    pub fn check_process(&self) -> Result<(), RingError> {
        match self.mapping.is_ours() {
            true => Ok(()),
            false => Err(RingError::Forked),
        }
    }

    /// The channel's words. Only after [`Link::check_process`].
    #[inline]
    pub fn words(&self) -> &ChannelWords<AtomicU32> {
        // SAFETY: they are mapped as long as `mapping` is held, in the process that made it, and the callers have made
        // sure that this is it. They are atomics: any bytes are valid, and others may write them at any time.
        unsafe { self.words.as_ref() }
    }

    fn sides(&self) -> [&SideWords<AtomicU32>; 2] {
        let words = self.words();
        match self.role {
            Role::Client => [&words.client, &words.server],
            Role::Server => [&words.server, &words.client],
        }
    }

    /// Wakes the other side if it waits for `what`, which has been published.
    #[inline]
    pub fn notify(&mut self, what: Waiting) {
        let [_, theirs] = self.sides();
        if theirs.notify(what, &self.doorbell) {
            self.counts.rings += 1;
        }
    }

    /// Wakes the other side, whatever it waits for.
    pub fn call(&self) {
        let [_, theirs] = self.sides();
        theirs.call(&self.doorbell);
    }

    /// Whether the other side has ended the use of the channel.
    fn is_over(&self) -> bool {
        match self.role {
            Role::Client => !self.term.is_held(self.words()),
            Role::Server => self.term.is_over(self.words()),
        }
    }

    /// Waits until `ready`: first awake, then asleep.
    ///
    /// # Errors
    /// Those of `ready`; [`RingError::Gone`]; after the time limit [`RingError::TimedOut`], or [`RingError::Full`] for
    /// room.
    pub fn wait(
        &mut self,
        what: Waiting,
        deadline: &mut Deadline,
        mut ready: impl FnMut(&ChannelWords<AtomicU32>) -> Result<bool, RingError>,
    ) -> Result<(), RingError> {
        if self.spin(deadline, &mut ready)? {
            return Ok(());
        }
        let began = Instant::now();
        let mut looked = began;
        loop {
            // In this order: what the other side wrote before it left is still read.
            let over =
                self.is_over() || (looked.elapsed() >= self.limits.look && !self.is_alive(&mut looked));
            if ready(self.words())? {
                return Ok(());
            }
            if over {
                return Err(RingError::Gone);
            }
            let left = deadline.left();
            if left.is_zero() {
                return Err(match what {
                    Waiting::Message => RingError::TimedOut,
                    Waiting::Room => RingError::Full,
                });
            }
            self.counts.sleeps += 1;
            let words = self.words();
            let [mine, _] = self.sides();
            let doorbell = After {
                doorbell: &self.doorbell,
                waited: began.elapsed(),
            };
            mine.sleep(what, &doorbell, left.min(self.limits.look), || {
                Ok(!ready(words)? && !self.is_over())
            })?;
        }
    }

    fn is_alive(&self, looked: &mut Instant) -> bool {
        *looked = Instant::now();
        (self.alive)()
    }

    /// Looks for as long as this side spins. Whether it is ready.
    fn spin(
        &self,
        deadline: &mut Deadline,
        ready: &mut impl FnMut(&ChannelWords<AtomicU32>) -> Result<bool, RingError>,
    ) -> Result<bool, RingError> {
        /// Looks between two readings of the clock.
        const BUNCH: u32 = 32;
        let words = self.words();
        if self.limits.spin.is_zero() {
            return ready(words);
        }
        let mut until = None;
        loop {
            for _ in 0..BUNCH {
                if ready(words)? {
                    return Ok(true);
                }
                core::hint::spin_loop();
            }
            let now = Instant::now();
            let spin = self.limits.spin.min(deadline.left());
            if now >= *until.get_or_insert_with(|| now + spin) {
                return Ok(false);
            }
        }
    }
}

/// What a side knows of the other one, and how long it waits for it.
pub struct Peer<D> {
    /// How it is woken, and how this side sleeps.
    pub doorbell: D,
    /// Whether its process lives.
    pub alive: Liveness,
    /// How long to wait for it.
    pub limits: Limits,
}

impl<D> Peer<D> {
    /// With the default limits.
    pub fn new(doorbell: D, alive: impl Fn() -> bool + Send + 'static) -> Self {
        Self {
            doorbell,
            alive: Box::new(alive),
            limits: Limits::default(),
        }
    }

    /// With these limits.
    #[must_use]
    pub fn with(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }
}

impl<D> fmt::Debug for Link<D> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} of {:p}", self.role, self.words)
    }
}
