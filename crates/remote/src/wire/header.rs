//! The beginning of each message.

use super::{Malformed, Reader, Writer};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 24;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sort {
    /// A call whose answer is waited for.
    Call = 1,
    /// A call without an answer.
    Submit = 2,
    /// The answer to a call.
    Answer = 3,
    /// The first message of a thread, and its answer.
    Hello = 4,
}

/// Length, call and place in the order of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the message, the header included.
    pub length: u32,
    /// Which call: made from its name and its roles.
    pub id: u32,
    /// Counts the messages of a thread, from 0; an answer has its call's.
    pub sequence: u64,
    /// Of a call or a submitted call: how many calls all threads of the program had submitted, this one included; 0 for
    /// one that keeps to no other thread's. Of a hello: the thread's number.
    pub order: u32,
    /// What the message is.
    pub sort: Sort,
}

impl Header {
    /// Writes it.
    pub fn write(&self, to: &mut Writer<'_>) {
        let Some(room) = to
            .room(HEADER_BYTES)
            .and_then(|room| room.first_chunk_mut::<HEADER_BYTES>())
        else {
            return;
        };
        let [length, id] = [self.length, self.id].map(u32::to_le_bytes);
        let [order, sort] = [self.order, self.sort as u32].map(u32::to_le_bytes);
        room[..4].copy_from_slice(&length);
        room[4..8].copy_from_slice(&id);
        room[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        room[16..20].copy_from_slice(&order);
        room[20..].copy_from_slice(&sort);
    }

    /// Splits a message into its header and the rest.
    ///
    /// # Errors
    /// There is no header, or the message has another length than its header says.
    pub fn read(message: &[u8]) -> Result<(Self, Reader<'_>), Malformed> {
        let mut reader = Reader::new(message);
        let header = Self {
            length: reader.plain()?,
            id: reader.plain()?,
            sequence: reader.plain()?,
            order: reader.plain()?,
            sort: match reader.plain::<u32>()? {
                1 => Sort::Call,
                2 => Sort::Submit,
                3 => Sort::Answer,
                4 => Sort::Hello,
                _ => return Err(Malformed),
            },
        };
        if header.length as usize != message.len() {
            return Err(Malformed);
        }
        Ok((header, reader))
    }
}
