//! Messages over a stream of bytes, as TCP has it: no memory is shared, and all bytes travel in messages.
//!
//! A message goes as a *frame*: its length in four bytes, little endian, then its bytes. One stream is one thread's: its
//! order is the order of calls, and a thread that waits holds up no other one.
//!
//! * [`Frames`]: frames over any [`Stream`];
//! * [`StreamTransport`]: a thread's way to the server over frames;
//! * [`emulated`]: the delay and the bandwidth of a network, for tests and measurements.

pub mod emulated;
mod frames;
mod transport;

pub use frames::{Frames, Stream};
pub use transport::StreamTransport;
