//! Two sides of a channel in turns, and a third that writes over their memory between any two steps. The stable replay in
//! crates/ring/tests/hostile.rs includes this file.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use divvy_ring::doorbell::Futex;
use divvy_ring::{Client, Limits, PAGE, Peer, Region, RingError, Server, Shape};

const SHAPE: Shape = Shape {
    channels: 1,
    request_bytes: 4096,
    reply_bytes: 4096,
    message_bytes: 6000,
    data_bytes: 0,
};

/// Payload bytes of the longest frame: a longer message goes as several.
const FRAGMENT: usize = 4096 / 4 - 8;

/// What became of an input.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Steps that were made.
    pub steps: usize,
    /// Messages that a side got.
    pub received: usize,
    /// How often a side called the memory overwritten.
    pub refused: usize,
}

/// The channel, and what has to be in it as long as no third has written there.
struct Play {
    region: Region,
    memory: File,
    server: Server<Futex>,
    client: Option<Client<Futex>>,
    /// Messages on their way to the server, and whether each waits for a reply.
    sent: VecDeque<(Vec<u8>, bool)>,
    /// Calls that the server has, and has not answered.
    owed: usize,
    replies: VecDeque<Vec<u8>>,
    /// No third has written since the last reset.
    is_honest: bool,
    number: u8,
    outcome: Outcome,
}

fn peer() -> Peer<Futex> {
    let limits = Limits {
        spin: Duration::ZERO,
        look: Duration::from_micros(1),
        stall: Duration::ZERO,
        reply: Some(Duration::ZERO),
    };
    Peer::new(Futex, || true).with(limits)
}

/// Makes the steps that these bytes stand for: one byte for what is done, and up to four that say how.
///
/// # Panics
/// A side got what was not sent, called an honest side hostile, or a message is longer than the region allows; or the next
/// client is not served after a reset, whatever was written before it.
pub fn steps(data: &[u8]) -> Outcome {
    let Ok((region, fd)) = Region::create(&SHAPE) else {
        return Outcome::default();
    };
    let (Some(server), Ok(client)) = (region.server(0, peer()), region.client(peer())) else {
        return Outcome::default();
    };
    let mut play = Play {
        region,
        memory: File::from(fd),
        server,
        client: Some(client),
        sent: VecDeque::new(),
        owed: 0,
        replies: VecDeque::new(),
        is_honest: true,
        number: 0,
        outcome: Outcome::default(),
    };
    let (steps, rest) = data.as_chunks::<5>();
    for [what, how @ ..] in steps.iter().take(512) {
        play.step(*what, *how);
    }
    let mut last = [0; 5];
    last[..rest.len()].copy_from_slice(rest);
    play.step(last[0], [last[1], last[2], last[3], last[4]]);
    play.serves_the_next();
    play.outcome
}

impl Play {
    fn step(&mut self, what: u8, how: [u8; 4]) {
        self.outcome.steps += 1;
        let length = usize::from(u16::from_le_bytes([how[0], how[1]])) % 6100;
        match what % 16 {
            0..=2 => self.send(length.min(64), false),
            3 => self.send(length, false),
            4 | 5 => self.send(length.min(64), true),
            6 => self.send(length, true),
            7..=9 => self.receive(),
            10 => self.reply(if how[3] & 1 == 0 { length.min(64) } else { length }),
            11 => self.take(how[3] & 7 == 0),
            12 => match how[3] % 4 {
                // The client's thread ends, or another one wants the channel.
                0 => self.client = None,
                1 => self.reset(),
                _ => self.claim(),
            },
            13 => self.write(how[2] % 9, how),
            14 => {
                let at = (2 + u64::from(how[2] & 1)) * PAGE as u64 + (length as u64 & 0xff8);
                self.overwrite(at, &frame(how).to_ne_bytes());
            }
            _ => {
                let at = u64::from(u16::from_le_bytes([how[2], how[3]])) % (3 * PAGE as u64);
                self.overwrite(PAGE as u64 + at, &how[..2]);
            }
        }
    }

    fn message(&mut self, length: usize) -> Vec<u8> {
        self.number = self.number.wrapping_add(1);
        (0..length).map(|at| self.number.wrapping_add(at as u8)).collect()
    }

    fn send(&mut self, length: usize, is_call: bool) {
        let message = self.message(length);
        let Some(client) = &mut self.client else { return };
        let outcome = match is_call {
            true => client.post(&message),
            false => client.submit(&message),
        };
        match outcome {
            Ok(()) => self.sent.push_back((message, is_call)),
            Err(RingError::TooLong { .. }) => assert!(length > SHAPE.message_bytes as usize),
            // A part of a long message may have gone: nothing follows it.
            Err(RingError::Full) if length > FRAGMENT => self.client = None,
            Err(RingError::Full) => {}
            Err(error) => self.ends(error),
        }
    }

    /// A side does not go on: that is the other one's doing, or a third's.
    fn ends(&mut self, error: RingError) {
        self.outcome.refused += usize::from(matches!(error, RingError::Hostile { .. }));
        assert!(!self.is_honest, "an honest side was refused: {error}");
    }

    fn receive(&mut self) {
        let mut message = Vec::new();
        let received = self.server.receive(Some(Duration::ZERO), &mut message);
        assert!(message.len() <= SHAPE.message_bytes as usize);
        let expected = self.sent.pop_front();
        match received {
            Ok(is_call) => {
                self.outcome.received += 1;
                self.owed += usize::from(is_call);
                if self.is_honest {
                    assert_eq!(
                        Some((message, is_call)),
                        expected,
                        "another message than was sent"
                    );
                }
            }
            Err(RingError::TimedOut) => {
                assert!(!self.is_honest || expected.is_none() && self.client.is_some());
            }
            Err(RingError::Gone) if self.is_honest => {
                assert!(expected.is_none() && self.client.is_none(), "messages were lost");
                self.reset();
            }
            Err(error) => {
                self.ends(error);
                self.reset();
            }
        }
    }

    fn reply(&mut self, length: usize) {
        if self.owed == 0 && self.is_honest {
            return;
        }
        let reply = self.message(length);
        match self.server.reply(&reply) {
            Ok(()) => {
                self.owed = self.owed.saturating_sub(1);
                self.replies.push_back(reply);
            }
            // What was refused is answered with what fits, or the channel ends.
            Err(RingError::TooLong { .. } | RingError::Full) => self.reset(),
            // A client that is gone reads nothing.
            Err(RingError::Gone) if self.client.is_none() => self.reset(),
            Err(error) => {
                self.ends(error);
                self.reset();
            }
        }
    }

    fn take(&mut self, even_if_there_is_none: bool) {
        let Some(client) = &mut self.client else { return };
        if self.is_honest && self.replies.is_empty() && !even_if_there_is_none {
            return;
        }
        let mut reply = Vec::new();
        let taken = client.take(&mut reply);
        assert!(reply.len() <= SHAPE.message_bytes as usize);
        let expected = self.replies.pop_front();
        match taken {
            Ok(()) => {
                self.outcome.received += 1;
                if self.is_honest {
                    assert_eq!(Some(reply), expected, "another reply than was sent");
                }
            }
            // Its reply may still come, so the channel has ended.
            Err(RingError::TimedOut) => {
                assert!(!self.is_honest || expected.is_none());
                self.client = None;
            }
            Err(error) => {
                self.ends(error);
                self.client = None;
            }
        }
    }

    /// The server takes the channel back, and the client that had it is told.
    fn reset(&mut self) {
        self.server.reset();
        if let Some(mut client) = self.client.take() {
            assert!(client.submit(&[1]).is_err(), "its channel was taken back");
        }
        self.sent.clear();
        self.replies.clear();
        self.owed = 0;
        self.is_honest = true;
        self.claim();
        assert!(self.client.is_some(), "a channel that was reset is free");
    }

    /// A thread wants the channel.
    fn claim(&mut self) {
        if self.client.is_some() {
            let another = self.region.client(peer());
            assert!(!self.is_honest || another.is_err(), "two clients on one channel");
            return;
        }
        self.client = self.region.client(peer()).ok();
        // A client that left has to be noticed by the server first.
        assert!(!self.is_honest || self.client.is_none() || self.sent.is_empty());
    }

    fn write(&mut self, word: u8, how: [u8; 4]) {
        // Small numbers are mostly frames' ends; the rest reaches over all of 32 bits.
        let small = u32::from(u16::from_le_bytes([how[0], how[1]]));
        let value = match how[3] % 4 {
            0 => small & 0x1ff8,
            1 => small & 7,
            2 => small.rotate_left(17),
            _ => u32::MAX - small,
        };
        self.overwrite(PAGE as u64 + u64::from(word) * 128, &value.to_ne_bytes());
    }

    fn overwrite(&mut self, at: u64, bytes: &[u8]) {
        self.is_honest = false;
        let _written = self.memory.write_all_at(bytes, at);
    }

    /// Whatever was written: the next client's call is answered.
    fn serves_the_next(&mut self) {
        self.reset();
        for length in [0, 100, 3000] {
            self.send(length, true);
            let before = self.outcome.received;
            self.receive();
            self.reply(length);
            self.take(false);
            assert_eq!(self.outcome.received, before + 2, "the next client is not served");
        }
    }
}

/// A frame's header: lengths near those of honest ones, flags that there are, and now and then any bits.
fn frame(how: [u8; 4]) -> u64 {
    let length = u64::from(u16::from_le_bytes([how[0], how[1]]));
    let flags = u64::from(how[3] & 3) << 32;
    match how[3] >> 6 {
        0 | 1 => (length & 0x7ff) | flags,
        2 => length | flags,
        _ => u64::from_le_bytes([how[0], how[1], how[2], how[3], how[0], how[1], how[2], how[3]]),
    }
}
