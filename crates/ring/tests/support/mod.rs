//! Shared parts of the suites.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use divvy_ring::doorbell::Futex;
use divvy_ring::{Backing, Client, Limits, Peer, Region, Server, Shape};

/// A region of one channel with the smallest rings.
pub const SMALL: Shape = Shape {
    channels: 1,
    request_bytes: 4096,
    reply_bytes: 4096,
    message_bytes: 1 << 16,
    data_bytes: 0,
};

/// A peer that always lives, with limits that a test may run into.
pub fn peer(limits: Limits) -> Peer<Futex> {
    Peer::new(Futex, || true).with(limits)
}

/// Limits that end a hanging test.
pub fn soon() -> Limits {
    Limits {
        spin: Duration::ZERO,
        look: Duration::from_millis(5),
        stall: Duration::from_secs(20),
        reply: Some(Duration::from_secs(20)),
    }
}

/// A region as its two sides have it: two mappings of one memory.
pub fn regions(shape: &Shape) -> (Region, Region, OwnedFd) {
    let (ours, fd) = Region::create(shape).expect("a region");
    let theirs = Region::attach(fd.as_fd(), Backing::Sealed).expect("the region");
    (ours, theirs, fd)
}

/// The server's side of channel 0.
pub fn server(region: &Region, limits: Limits) -> Server<Futex> {
    region.server(0, peer(limits)).expect("it is not open yet")
}

/// The client's side of the first free channel.
pub fn client(region: &Region, limits: Limits) -> Client<Futex> {
    region.client(peer(limits)).expect("a free channel")
}

/// Whether the process behind a pidfd lives.
pub fn lives(pidfd: &OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fds, Some(&now)) == Ok(0)
}

/// This process's open descriptors, and its mappings of regions.
pub fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    (descriptors, maps.matches("divvy-region").count())
}

/// A copy of a descriptor's number for a message.
pub fn number(fd: &OwnedFd) -> i32 {
    fd.as_raw_fd()
}

/// Numbers that look random: xorshift64*.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}
