//! Programs that connected and have not said that they have a call to make. Such a connection costs a descriptor, for a while,
//! and no process.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use divvy_privileged::workers::Asks;
use divvy_remote::local::handshake::{First, first};

/// So many are there at once. One more takes the place of the oldest: an honest program speaks as soon as it is connected.
const MOST: usize = 128;

/// They say their first word within this time.
const TIME: Duration = Duration::from_secs(10);

/// See the module. The oldest comes first.
#[derive(Debug, Default)]
pub struct Newcomers(VecDeque<Newcomer>);

#[derive(Debug)]
struct Newcomer {
    connection: OwnedFd,
    asks: Asks,
    until: Instant,
}

impl Newcomers {
    /// One more, which connected now.
    pub fn add(&mut self, connection: OwnedFd, asks: Asks, now: Instant) {
        if self.0.len() == MOST {
            drop(self.0.pop_front());
        }
        let until = now + TIME;
        self.0.push_back(Newcomer {
            connection,
            asks,
            until,
        });
    }

    /// Their sockets, to wait for a word of one.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|newcomer| newcomer.connection.as_fd())
    }

    /// Those that have said their first word. The rest stays, but for what has said another word, has gone, or has been silent for
    /// too long: those are closed.
    pub fn begun(&mut self, now: Instant) -> Vec<(OwnedFd, Asks)> {
        let mut begun = Vec::new();
        for newcomer in std::mem::take(&mut self.0) {
            match first(newcomer.connection.as_fd()) {
                First::Begun => begun.push((newcomer.connection, newcomer.asks)),
                First::Silent if now < newcomer.until => self.0.push_back(newcomer),
                First::Silent | First::Other => {}
            }
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use divvy_remote::local::handshake::{begin, is_open};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// A program's end of a connection that was taken just now.
    fn connect(newcomers: &mut Newcomers, now: Instant) -> OwnedFd {
        let kind = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (program, ours) = socketpair(AddressFamily::UNIX, kind.0, kind.1, None).expect("a pair");
        newcomers.add(ours, Asks::Calls, now);
        program
    }

    #[test]
    fn only_a_program_that_begins_is_served() {
        let (mut newcomers, now) = (Newcomers::default(), Instant::now());
        let [speaks, silent, other, gone] = [(); 4].map(|()| connect(&mut newcomers, now));
        assert!(newcomers.begun(now).is_empty());
        begin(speaks.as_fd()).expect("sent");
        rustix::net::send(&other, b"GET /", rustix::net::SendFlags::NOSIGNAL).expect("sent");
        drop(gone);
        assert_eq!(newcomers.begun(now).len(), 1);
        assert!(is_open(&silent) && !is_open(&other));
        assert_eq!(newcomers.sockets().count(), 1, "the silent one");
        // At its time it may still speak, and behind that it is closed.
        let end = now + TIME;
        assert!(newcomers.begun(end - Duration::from_nanos(1)).is_empty() && is_open(&silent));
        assert!(newcomers.begun(end).is_empty() && !is_open(&silent));
        assert_eq!(newcomers.sockets().count(), 0);
    }

    /// A thousand silent connections cost as many descriptors as there is room for, and keep no program out.
    #[test]
    fn silent_programs_are_bounded_and_keep_no_other_out() {
        let (mut newcomers, now) = (Newcomers::default(), Instant::now());
        let silent: Vec<OwnedFd> = (0..500).map(|_| connect(&mut newcomers, now)).collect();
        let honest = connect(&mut newcomers, now);
        let more: Vec<OwnedFd> = (0..MOST - 1).map(|_| connect(&mut newcomers, now)).collect();
        assert_eq!(newcomers.sockets().count(), MOST);
        assert!(silent.iter().all(|program| !is_open(program)), "the oldest went");
        begin(honest.as_fd()).expect("sent");
        assert_eq!(newcomers.begun(now).len(), 1);
        assert!(more.iter().all(is_open));
    }
}
