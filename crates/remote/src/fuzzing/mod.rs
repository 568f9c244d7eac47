//! What the fuzz targets `wire` and `nvml` and the tests call; not for use.
#![allow(missing_docs)]

mod fake;
mod generate;
mod nvml;

use std::sync::{Arc, OnceLock};

use divvy_ring::Region;

use crate::server::{Quota, Server, Session};
use crate::wire::{HEADER_BYTES, Header, Hello, Malformed, Sort, Writer, by_hand, message, shapes};

pub use fake::{FAKE, issued};
pub use generate::{Source, generate};
pub use nvml::queries;

/// A connection's quota that an input can use up.
pub const QUOTA: Quota = Quota {
    objects: 64,
    message: 1 << 12,
    image: 1 << 14,
    area: 1 << 16,
    pinned: 1 << 15,
    // An input that waits would wait for ever.
    callbacks: 0,
    order: std::time::Duration::ZERO,
    queued: 8,
    modules: 16,
    images: 1 << 16,
    nodes: 32,
};

/// What an input did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Messages that were answered or submitted.
    pub made: usize,
    /// Messages that ended a connection.
    pub refused: usize,
    /// Calls that the driver below got.
    pub calls: u64,
}

/// Sends the messages that these bytes stand for to a server over a driver that touches all that it is given.
///
/// Each message begins with a byte that says how it is made and a byte of its length. Then come, by the first byte: a body
/// as it is, for the call whose number the next two bytes are; a source of arguments for that call; or a whole message.
///
/// # Panics
/// The driver below was given a handle that it never gave, or the quota was passed.
pub fn messages(bytes: &[u8]) -> Done {
    fake::reset();
    let server = Server::new(&FAKE, QUOTA);
    if let Some(region) = region() {
        server.share(region);
    }
    let mut done = Done::default();
    let mut session = greeted(&server);
    let mut sequence = 1;
    let mut rest = bytes;
    while let [how, length, tail @ ..] = rest {
        let (part, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = tail;
        let message = match (how % 4, part) {
            (3, part) => part.to_vec(),
            (how, [low, high, part @ ..]) => {
                let sort = if how & 1 == 0 { Sort::Call } else { Sort::Submit };
                body(
                    usize::from(*low) | usize::from(*high) << 8,
                    how == 2,
                    sequence,
                    sort,
                    part,
                )
            }
            _ => continue,
        };
        match session.receive(&message) {
            Ok(_) => {
                done.made += 1;
                sequence += 1;
            }
            Err(Malformed) => {
                // Another thread of the same program.
                done.refused += 1;
                session = greeted(&server);
                sequence = 1;
            }
        }
        let (objects, ranges) = server.held();
        assert!(objects <= QUOTA.objects && ranges <= QUOTA.objects);
    }
    done.calls = issued();
    done
}

/// The memory that is shared with the server: one for all inputs.
fn region() -> Option<&'static Region> {
    static REGION: OnceLock<Option<Region>> = OnceLock::new();
    let shape = divvy_ring::Shape {
        channels: 1,
        data_bytes: QUOTA.area,
        ..divvy_ring::Shape::default()
    };
    let made = || Region::create(&shape).ok().map(|(region, _)| region);
    REGION.get_or_init(made).as_ref()
}

fn greeted(server: &Arc<Server>) -> Session {
    let mut session = server.session();
    let hello = Hello::ours(0, QUOTA.message as u32).encode();
    assert!(matches!(session.receive(&hello), Ok(Some(_))));
    session
}

/// A message for the call with this number, generated ones first.
fn body(call: usize, raw: bool, sequence: u64, sort: Sort, part: &[u8]) -> Vec<u8> {
    let all = shapes();
    let call = call % (all.len() + by_hand::ALL.len());
    let mut bytes = vec![0; QUOTA.message];
    let mut to = Writer::new(&mut bytes[HEADER_BYTES..]);
    let id = match all.get(call) {
        Some((_, id, arguments)) if !raw => {
            message::encode(arguments, &generate(arguments, &mut Source(part)), &mut to);
            *id
        }
        Some((_, id, _)) => {
            to.bytes(part);
            *id
        }
        None => {
            to.bytes(part);
            by_hand::ALL[call - all.len()].0
        }
    };
    let length = HEADER_BYTES + to.finish().unwrap_or(0);
    bytes.truncate(length);
    let header = Header {
        length: length as u32,
        id,
        sequence,
        order: 0,
        sort,
    };
    header.write(&mut Writer::new(&mut bytes));
    bytes
}
