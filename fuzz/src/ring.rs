//! What the ring's target does with one input; the stable replay in crates/ring/tests/hostile.rs includes this file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use divvy_ring::doorbell::Futex;
use divvy_ring::{Limits, PAGE, Peer, Region, RingError, Shape};

const SHAPE: Shape = Shape {
    channels: 1,
    request_bytes: 4096,
    reply_bytes: 4096,
    message_bytes: 6000,
    data_bytes: 0,
};

/// What became of an input.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Messages that both sides together took for messages.
    pub handled: usize,
    /// Whether a side refused what it found.
    pub refused: bool,
}

/// The bytes are what the other side has left in the shared memory: eight words of the control page (the owner, two
/// indices of each ring, how the sides sleep), and then both rings, from the same bytes. A server reads all that is
/// there, then a client calls. Every step ends.
///
/// # Panics
/// A message is longer than the region allows.
pub fn memory(data: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    let Ok((region, fd)) = Region::create(&SHAPE) else {
        return outcome;
    };
    let memory = File::from(fd);
    let limits = Limits {
        spin: Duration::ZERO,
        look: Duration::from_micros(1),
        stall: Duration::ZERO,
        reply: Some(Duration::ZERO),
    };
    let peer = || Peer::new(Futex, || true).with(limits);
    let (Some(mut server), Ok(mut client)) = (region.server(0, peer()), region.client(peer())) else {
        return outcome;
    };
    let (words, rings) = data.split_at(data.len().min(16));
    for (number, word) in words.chunks_exact(2).enumerate() {
        // Small numbers are mostly frames' ends; the rest reaches over all of 32 bits.
        let small = u32::from(u16::from_le_bytes([word[0], word[1]]));
        let value = if small & 0x8000 == 0 {
            small
        } else {
            small.rotate_left(17)
        };
        if value != 0 {
            let at = PAGE as u64 + number as u64 * 128;
            let _written = memory.write_all_at(&value.to_ne_bytes(), at);
        }
    }
    let rings = &rings[..rings.len().min(PAGE)];
    for ring in [2, 3] {
        let _written = memory.write_all_at(rings, ring * PAGE as u64);
    }
    loop {
        let served = server.serve_one(Some(Duration::ZERO), |message, reply| {
            assert!(message.len() <= SHAPE.message_bytes as usize);
            reply.extend_from_slice(&message[..message.len() / 2]);
            outcome.handled += 1;
        });
        outcome.refused |= matches!(served, Err(RingError::Hostile { .. }));
        if served.is_err() {
            break;
        }
    }
    let mut reply = Vec::new();
    for _ in 0..4 {
        let called = client.call(rings, &mut reply);
        assert!(reply.len() <= SHAPE.message_bytes as usize);
        outcome.handled += usize::from(called.is_ok());
        outcome.refused |= matches!(called, Err(RingError::Hostile { .. }));
    }
    outcome
}
