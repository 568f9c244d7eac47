//! What a traced program may have written, read: for the fuzz target `trace` and its replay.

use crate::chunk::{CHUNK, records};
use crate::event::Event;

/// Reads the beginning of a chunk, in two steps as a chunk that grows is read; how many events it has.
///
/// # Panics
/// A record lies outside the chunk, the second step reads other records than the first would, or an event that was read
/// does not mean the same when it is written again.
pub fn chunk(data: &[u8]) -> usize {
    let mut bytes = data[..data.len().min(CHUNK)].to_vec();
    bytes.resize(CHUNK, 0);
    let (whole, end) = records(&bytes, 0);
    assert!(end <= CHUNK);
    let first = whole.first().map_or(0, |record| record.len() + 4);
    let (rest, same) = records(&bytes, first);
    assert_eq!((&whole[whole.len().min(1)..], end), (&rest[..], same));
    let events: Vec<Event> = whole.into_iter().filter_map(Event::decode).collect();
    for event in &events {
        let mut written = Vec::new();
        event.encode(&mut written);
        assert_eq!(Event::decode(&written).as_ref(), Some(event));
    }
    events.len()
}

/// The chunk that begins with these events.
pub fn written(events: &[Event]) -> Vec<u8> {
    let mut chunk = Vec::new();
    for event in events {
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        let length = (4 + bytes.len()).next_multiple_of(8);
        chunk.extend((length as u32).to_le_bytes());
        chunk.extend(bytes);
        chunk.resize(chunk.len().next_multiple_of(8), 0);
    }
    chunk
}
