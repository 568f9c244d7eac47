//! Messages between two processes that do not trust each other, through shared memory.
//!
//! A *client* is a thread of a program without a device. Its *server* is a thread of the worker that has the device.
//! They share a [`Region`]: one memory file, mapped by both processes. It has a number of *channels*, of which each client
//! thread takes one. A channel is two byte rings: requests go one way, and replies the other. A ring has one producer
//! and one consumer.
//!
//! ```text
//!      program (client)                    region                       worker (server)
//!                              ┌─────────────────────────────┐
//!   submit, call ── Producer ─>│ requests  ▒▒▒▒▓▓▓▓▓▓▒▒▒▒▒▒▒ │─> Consumer ── serve
//!     private: tail            │           head^     ^tail   │     private: head
//!                              │                             │
//!          reply <─ Consumer ──│ replies   ▒▒▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒ │<─ Producer ── reply
//!     private: head            │         head^  ^tail        │     private: tail
//!                              │                             │
//!                              │ owner    free, taken, …     │
//!                              │ asleep, signal of each side │<── doorbell: futex, eventfd or none
//!                              └─────────────────────────────┘
//! ```
//!
//! # How a message goes
//!
//! 1. The producer copies the message into the ring behind the tail: a header of 8 bytes with the length, then the bytes.
//! 2. It moves its private tail and publishes a copy of it.
//! 3. If the other side sleeps, it rings the doorbell. While the other side is awake this costs no system call: a
//!    thousand messages and a call wake it once. [`sleep`] shows why no wake is lost.
//! 4. The consumer reads the published tail and checks it. It copies the message out *once*, and works on its copy.
//! 5. It moves its private head. It publishes that once for each quarter of the ring.
//!
//! [`Client::submit`] ends with step 3. [`Client::call`] also waits for a reply, which goes the same way back.
//!
//! A message that is longer than a quarter of the ring goes in fragments, so it may be longer than the ring. The
//! alternative was to put long messages into the data area, and only name the place in the ring. The data area is for
//! bulk transfers: its buffers live as long as the program wants. A message lives until its copy is made, and with
//! fragments both sides copy at the same time. It needs no allocator that two sides have to agree on.
//!
//! # What the other side can do
//!
//! It can write anything anywhere in the region, at any time. So
//!
//! - each access to the region is an atomic load or store: a racing writer is no data race;
//! - positions in a ring are taken modulo its size, so no value of an index leads outside;
//! - a side trusts its private index only. The other one's index has to lie where an honest side could be. If it does
//!   not, the connection ends with [`RingError::Hostile`];
//! - a header is read once, and what is longer than was published, or than the region allows, is refused;
//! - a side that waits looks at least every [`Limits::look`] whether the other process lives. It takes that from a pidfd
//!   or a socket, never from the shared memory. A full ring is waited for no longer than [`Limits::stall`];
//! - the file's size is sealed, so an access cannot fault.
//!
//! A hostile side can still waste the time of the thread that serves it, and send nonsense. The latter is for the
//! reader of the message to refuse.
//!
//! # Threads and processes that end
//!
//! The owner word of a channel says whether a client has it; [`owner`] has its states. A client gives its channel back
//! when it is dropped. The region finds channels of threads that ended without that when another thread needs one. If
//! the whole process is gone, [`Server::serve`] returns [`RingError::Gone`], and [`Server::reset`] frees the channel.
//! A forked child does not have the rings at all: they are not mapped there, and each call says [`RingError::Forked`].
//!
//! # The data area
//!
//! Bulk transfers lie in the region's data area ([`Region::data`]), and messages name their place. [`data::Extents`] says
//! which parts are in use: the client keeps it in private memory. The server checks what a message names by
//! [`data::Extent::is_in`].
//!
//! # Example
//!
//! ```
//! use std::os::fd::AsFd;
//! use divvy_ring::doorbell::Futex;
//! use divvy_ring::{Backing, Peer, Region, RingError, Shape};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (worker, fd) = Region::create(&Shape { channels: 1, ..Shape::default() })?;
//! // The descriptor reaches the program by a socket.
//! let program = Region::attach(fd.as_fd(), Backing::Sealed)?;
//!
//! let mut server = worker.server(0, Peer::new(Futex, || true)).ok_or("it is open")?;
//! let worker = std::thread::spawn(move || server.serve(|message, reply| reply.extend(message.iter().rev())));
//!
//! let mut client = program.client(Peer::new(Futex, || true))?;
//! let mut reply = Vec::new();
//! client.submit(b"no reply")?;
//! client.call(b"123", &mut reply)?;
//! assert_eq!(reply, b"321");
//! drop(client);
//! assert_eq!(worker.join().map_err(|_| "a panic")?, RingError::Gone);
//! # Ok(())
//! # }
//! ```

mod bytes;
mod client;
pub mod data;
pub mod doorbell;
mod error;
pub mod index;
pub mod layout;
mod link;
mod mapping;
pub mod owner;
mod region;
mod server;
pub mod sleep;
mod stream;

pub use client::Client;
pub use error::RingError;
pub use layout::{PAGE, REGION_VERSION, Shape};
pub use link::{Counts, Limits, Liveness, Peer};
pub use region::{Backing, Region};
pub use server::Server;
