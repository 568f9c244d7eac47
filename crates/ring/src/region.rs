//! A region: the memory that the two sides of a connection share.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use divvy_ledger::{PageError, check_page, new_page};

use crate::client::Client;
use crate::error::RingError;
use crate::layout::{ChannelWords, Header, NAME, PAGE, Shape};
use crate::link::{Link, Peer, Role};
use crate::mapping::{Mapping, system};
use crate::owner::Term;
use crate::server::Server;
use crate::sleep::Doorbell;
use crate::stream::{Consumer, Direction, Producer};

/// What a region's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A memory file whose size is sealed: no side can shrink it, and so make the other one fault.
    Sealed,
    /// A part of a file, or of a device's memory (ivshmem), that begins at this byte: a multiple of [`PAGE`]. A process
    /// that may change the file's size can make its users fault, so the caller has to trust the file's owner.
    File(u64),
}

/// A region, mapped into this process. Clones are the same mapping.
#[derive(Clone, Debug)]
pub struct Region {
    ends: Arc<Ends>,
}

impl Region {
    /// Makes a region, and the descriptor by which the other side attaches.
    ///
    /// # Errors
    /// [`PageError::Corrupted`] for a shape that is not valid; the system's reason.
    pub fn create(shape: &Shape) -> Result<(Self, OwnedFd), PageError> {
        let bytes = usable(shape)?;
        let fd = new_page(c"divvy-region", bytes, &[])?;
        let mapping = Mapping::new(fd.as_fd(), 0, bytes, away())?;
        mapping
            .header()
            .write(shape, mapping.address(0).addr().get() as u64);
        Ok((Self::of(mapping, *shape)?, fd))
    }

    /// Makes a region in a part of a file. What is there is overwritten.
    ///
    /// # Errors
    /// As of [`Region::create`], and [`PageError::Size`] where the file is too short.
    pub fn create_in(fd: BorrowedFd<'_>, at: u64, shape: &Shape) -> Result<Self, PageError> {
        let bytes = usable(shape)?;
        let found = file_bytes(fd)?.saturating_sub(at);
        if found < bytes as u64 || !at.is_multiple_of(PAGE as u64) {
            return Err(PageError::Size {
                page: NAME,
                expected: bytes as u64,
                found,
            });
        }
        let mapping = Mapping::new(fd, at, bytes, away())?;
        // Channels begin with zeros, whatever was there.
        for channel in 0..shape.channels {
            // SAFETY: the words are mapped as long as `mapping` lives, in this process.
            let words = unsafe { mapping.channel(shape, channel).as_ref() };
            Term::FIRST.reset(words);
        }
        mapping
            .header()
            .write(shape, mapping.address(0).addr().get() as u64);
        Self::of(mapping, *shape)
    }

    /// Makes a region in a part of a memory file that another process brought. Its size has to be sealed: then that
    /// process cannot make this one fault. What is there is overwritten.
    ///
    /// # Errors
    /// As of [`Region::create_in`], and [`PageError::Unsealed`].
    pub fn create_in_sealed(fd: BorrowedFd<'_>, at: u64, shape: &Shape) -> Result<Self, PageError> {
        // The seals first: without them the size may change after the look at it.
        let found = usize::try_from(file_bytes(fd)?).unwrap_or(usize::MAX);
        check_page(fd, NAME, found)?;
        Self::create_in(fd, at, shape)
    }

    /// Maps a region that the other side made. It is checked, and its sizes are copied once.
    ///
    /// # Errors
    /// [`PageError`]: what is not a region of this version, and whole.
    pub fn attach(fd: BorrowedFd<'_>, backing: Backing) -> Result<Self, PageError> {
        let found = match backing {
            // The seals first: without them the size may change after the look at it.
            Backing::Sealed => {
                let found = file_bytes(fd)?;
                check_page(fd, NAME, usize::try_from(found).unwrap_or(usize::MAX))?;
                found
            }
            Backing::File(at) => file_bytes(fd)?.saturating_sub(at),
        };
        let at = match backing {
            Backing::Sealed => 0,
            Backing::File(at) => at,
        };
        if found < PAGE as u64 || !at.is_multiple_of(PAGE as u64) {
            return Err(PageError::Size {
                page: NAME,
                expected: PAGE as u64,
                found,
            });
        }
        let first = Mapping::new(fd, at, PAGE, 0)?;
        let (shape, address) = (first.header().read(found)?, first.header().address());
        Self::of(Mapping::new(fd, at, usable(&shape)?, address)?, shape)
    }

    fn of(mapping: Mapping, shape: Shape) -> Result<Self, PageError> {
        mapping.hide(shape.data_at())?;
        let ends = (0..shape.channels).map(|_| End::default()).collect();
        let mapping = Arc::new(mapping);
        Ok(Self {
            ends: Arc::new(Ends { mapping, shape, ends }),
        })
    }

    /// The region's sizes.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.ends.shape
    }

    /// Takes a free channel for this thread. If there is none, channels of threads that ended without giving theirs
    /// back are given back for them: the server frees them soon.
    ///
    /// # Errors
    /// [`RingError::NoChannel`]: try again later. [`RingError::Forked`].
    pub fn client<D: Doorbell<AtomicU32>>(&self, peer: Peer<D>) -> Result<Client<D>, RingError> {
        let ends = &self.ends;
        if !ends.mapping.is_ours() {
            return Err(RingError::Forked);
        }
        let mut channels = 0..ends.shape.channels;
        let Some((channel, term)) =
            channels.find_map(|channel| Some((channel, Term::claim(ends.words(channel)?)?)))
        else {
            ends.give_back_of_dead(&peer.doorbell);
            return Err(RingError::NoChannel);
        };
        ends.ends[channel as usize].note_client(term);
        let (requests, replies) = ends.streams(channel);
        let link = ends.link(channel, Role::Client, peer, term);
        Ok(Client::new(
            link,
            Producer::new(requests, ends.shape.request_bytes, Direction::Requests),
            Consumer::new(replies, ends.shape.reply_bytes, Direction::Replies),
            Arc::clone(ends),
            channel,
        ))
    }

    /// Opens the server's side of a channel. `None` if this process has it open already, or is a forked child, or if
    /// there is no such channel.
    #[must_use]
    pub fn server<D: Doorbell<AtomicU32>>(&self, channel: u32, peer: Peer<D>) -> Option<Server<D>> {
        let ends = &self.ends;
        let words = ends.words(channel)?;
        let end = &ends.ends[channel as usize];
        if end.serving.swap(OPEN, AcqRel) == OPEN {
            return None;
        }
        // Closed by an earlier server: its term is over.
        let mut term = Term::of_number(end.term.load(Relaxed));
        if end.served.swap(1, Relaxed) == 1 {
            term = term.next();
            end.term.store(term.number(), Relaxed);
            term.reset(words);
        }
        let link = ends.link(channel, Role::Server, peer, term);
        let (requests, replies) = ends.server_streams(channel);
        Some(Server::new(link, requests, replies, Arc::clone(ends), channel))
    }

    /// The data area: its first byte, and its length in bytes. It stays mapped as long as a clone of this region
    /// lives. The other side may write it at any time, so no Rust reference into it may be made.
    #[must_use]
    pub fn data(&self) -> (NonNull<u8>, u64) {
        let Ends { mapping, shape, .. } = &*self.ends;
        (mapping.address(shape.data_at()), shape.data_bytes)
    }
}

/// An address for a new region that is likely to be free in the other process too: far from where the kernel puts
/// programs, libraries and stacks. It differs from process to process as much as the stack's does.
fn away() -> u64 {
    const START: u64 = 0x2000_0000_0000;
    let stack = 0_u8;
    let random = core::ptr::from_ref(&stack).addr() as u64 / PAGE as u64;
    START + (random & 0x3f_ffff) * (1 << 22)
}

fn usable(shape: &Shape) -> Result<usize, PageError> {
    match usize::try_from(shape.bytes()) {
        Ok(bytes) if shape.is_valid() => Ok(bytes),
        _ => Err(PageError::Corrupted { page: NAME }),
    }
}

fn file_bytes(fd: BorrowedFd<'_>) -> Result<u64, PageError> {
    let file = rustix::fs::fstat(fd).map_err(system("fstat of a region"))?;
    Ok(u64::try_from(file.st_size).unwrap_or(0))
}

/// [`End::serving`] of a channel whose server's side is open.
const OPEN: u32 = 1;

/// What this process knows of its end of one channel. It is private memory: the other side cannot change it.
#[derive(Debug, Default)]
struct End {
    /// The client thread's number, or 0.
    thread: AtomicU32,
    /// The client's or the server's term.
    term: AtomicU32,
    /// Whether the server's side is open.
    serving: AtomicU32,
    /// Whether it ever was.
    served: AtomicU32,
}

impl End {
    fn note_client(&self, term: Term) {
        self.term.store(term.number(), Relaxed);
        self.thread.store(
            rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(),
            Release,
        );
    }
}

/// A region's mapping, and this process's ends of its channels.
#[derive(Debug)]
pub(crate) struct Ends {
    mapping: Arc<Mapping>,
    shape: Shape,
    ends: Vec<End>,
}

impl Ends {
    /// The words of a channel, if there is such a channel and it is mapped in this process.
    fn words(&self, channel: u32) -> Option<&ChannelWords<AtomicU32>> {
        let there = channel < self.shape.channels && self.mapping.is_ours();
        // SAFETY: the words are mapped as long as the mapping, which `self` holds, and this process made it.
        there.then(|| unsafe { self.mapping.channel(&self.shape, channel).as_ref() })
    }

    fn streams(&self, channel: u32) -> (crate::bytes::SharedBytes, crate::bytes::SharedBytes) {
        let Self { mapping, shape, .. } = self;
        (
            mapping.ring(shape.requests_at(channel), shape.request_bytes),
            mapping.ring(shape.replies_at(channel), shape.reply_bytes),
        )
    }

    /// The server's streams, with both rings empty.
    pub fn server_streams(&self, channel: u32) -> (Consumer, Producer) {
        let (requests, replies) = self.streams(channel);
        (
            Consumer::new(requests, self.shape.request_bytes, Direction::Requests),
            Producer::new(replies, self.shape.reply_bytes, Direction::Replies),
        )
    }

    fn link<D: Doorbell<AtomicU32>>(&self, channel: u32, role: Role, peer: Peer<D>, term: Term) -> Link<D> {
        let words = self.mapping.channel(&self.shape, channel);
        let most = self.shape.message_bytes as usize;
        Link::new(Arc::clone(&self.mapping), words, role, peer, most, term)
    }

    /// Notes the term of the server of a channel.
    pub fn note_term(&self, channel: u32, term: Term) {
        self.ends[channel as usize].term.store(term.number(), Relaxed);
    }

    /// Notes that this process no longer serves a channel.
    pub fn forget_server(&self, channel: u32) {
        self.ends[channel as usize].serving.store(0, Release);
    }

    /// Notes that no thread of this process has a channel.
    pub fn forget_client(&self, channel: u32) {
        self.ends[channel as usize].thread.store(0, Release);
    }

    /// Gives back the channels of threads of this process that have ended.
    fn give_back_of_dead(&self, doorbell: &impl Doorbell<AtomicU32>) {
        for (channel, end) in (0..).zip(&self.ends) {
            let thread = end.thread.load(Acquire);
            if thread == 0 || thread_lives(thread) {
                continue;
            }
            let term = Term::of_number(end.term.load(Relaxed));
            // Another thread may be doing the same.
            let ours = end.thread.compare_exchange(thread, 0, AcqRel, Relaxed).is_ok();
            if let Some(words) = self.words(channel).filter(|words| ours && term.leave(words)) {
                words.server.call(doorbell);
            }
        }
    }
}

/// Whether this process has a thread of this number. If the number has passed to another thread, it seems to live.
fn thread_lives(thread: u32) -> bool {
    let Ok(number) = i32::try_from(thread) else {
        return false;
    };
    // SAFETY: signal 0 is none: the call only looks whether there is such a thread.
    let answer = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, 0) };
    answer == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

const _: () = assert!(size_of::<Header>() <= PAGE);
