//! What broker and relay say over the serial port: frames of one length.
//!
//! The first frame of each side says its version. Its layout never changes, so that the two can tell that they differ.

/// The version of what follows the first frame.
pub const VERSION: u32 = 1;

/// Bytes of a frame.
pub const BYTES: usize = 40;

/// The first four bytes of each frame.
const MARK: [u8; 4] = *b"DVYG";

/// What the guest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToHost {
    /// A broker has started. What an earlier one opened is over.
    Hello {
        /// Its [`VERSION`].
        version: u32,
        /// A number of its choice, which the answer has.
        nonce: u64,
    },
    /// A program has connected.
    Open {
        /// The broker's number for it.
        connection: u32,
    },
    /// A thread of the program uses this channel.
    Channel {
        /// The program.
        connection: u32,
        /// The channel.
        channel: u32,
    },
    /// The program has ended.
    Close {
        /// The program.
        connection: u32,
    },
}

/// What the host says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToGuest {
    /// The answer to [`ToHost::Hello`].
    Hello {
        /// The relay's [`VERSION`].
        version: u32,
        /// The broker's number.
        nonce: u64,
        /// What stands at the begin of the shared memory, see [`crate::label`].
        label: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// A worker serves the program by this part of the shared memory.
    Opened {
        /// The program.
        connection: u32,
        /// Where the part begins, in bytes.
        at: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// No worker serves the program, or no longer.
    Closed {
        /// The program.
        connection: u32,
    },
}

/// The other side sent what is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A frame's numbers.
#[derive(Default)]
struct Words {
    kind: u32,
    connection: u32,
    value: u32,
    long: [u64; 3],
}

impl Words {
    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MARK);
        bytes[4..8].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.connection.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.value.to_le_bytes());
        for (to, word) in bytes[16..].chunks_exact_mut(8).zip(self.long) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; BYTES]) -> Result<Self, Malformed> {
        if bytes[..4] != MARK {
            return Err(Malformed);
        }
        let short = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
        Ok(Self {
            kind: short(4),
            connection: short(8),
            value: short(12),
            long: [long(16), long(24), long(32)],
        })
    }
}

/// A frame of one direction.
pub trait Frame: Sized {
    /// Its bytes.
    fn encode(&self) -> [u8; BYTES];
    /// Reads it.
    ///
    /// # Errors
    /// It is none.
    fn decode(bytes: &[u8; BYTES]) -> Result<Self, Malformed>;
}

impl Frame for ToHost {
    fn encode(&self) -> [u8; BYTES] {
        let words = match *self {
            Self::Hello { version, nonce } => Words {
                kind: 1,
                value: version,
                long: [nonce, 0, 0],
                ..Words::default()
            },
            Self::Open { connection } => Words {
                kind: 2,
                connection,
                ..Words::default()
            },
            Self::Channel { connection, channel } => Words {
                kind: 3,
                connection,
                value: channel,
                ..Words::default()
            },
            Self::Close { connection } => Words {
                kind: 4,
                connection,
                ..Words::default()
            },
        };
        words.encode()
    }

    fn decode(bytes: &[u8; BYTES]) -> Result<Self, Malformed> {
        let words = Words::decode(bytes)?;
        let connection = words.connection;
        match words.kind {
            1 => Ok(Self::Hello {
                version: words.value,
                nonce: words.long[0],
            }),
            2 => Ok(Self::Open { connection }),
            3 => Ok(Self::Channel {
                connection,
                channel: words.value,
            }),
            4 => Ok(Self::Close { connection }),
            _ => Err(Malformed),
        }
    }
}

impl Frame for ToGuest {
    fn encode(&self) -> [u8; BYTES] {
        let words = match *self {
            Self::Hello {
                version,
                nonce,
                label,
                bytes,
            } => Words {
                kind: 1,
                value: version,
                long: [nonce, label, bytes],
                ..Words::default()
            },
            Self::Opened {
                connection,
                at,
                bytes,
            } => Words {
                kind: 2,
                connection,
                long: [at, bytes, 0],
                ..Words::default()
            },
            Self::Closed { connection } => Words {
                kind: 3,
                connection,
                ..Words::default()
            },
        };
        words.encode()
    }

    fn decode(bytes: &[u8; BYTES]) -> Result<Self, Malformed> {
        let words = Words::decode(bytes)?;
        let connection = words.connection;
        match words.kind {
            1 => Ok(Self::Hello {
                version: words.value,
                nonce: words.long[0],
                label: words.long[1],
                bytes: words.long[2],
            }),
            2 => Ok(Self::Opened {
                connection,
                at: words.long[0],
                bytes: words.long[1],
            }),
            3 => Ok(Self::Closed { connection }),
            _ => Err(Malformed),
        }
    }
}

/// Bytes that came, of which no whole frame was made yet.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
}

impl Incoming {
    /// More has come.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one.
    ///
    /// # Errors
    /// What is there is none.
    pub fn take<F: Frame>(&mut self) -> Result<Option<F>, Malformed> {
        let Some((frame, _)) = self.bytes.split_first_chunk::<BYTES>() else {
            return Ok(None);
        };
        let frame = F::decode(frame);
        self.bytes.drain(..BYTES);
        frame.map(Some)
    }

    /// Leaves out what is no frame's begin: a port may hold the rest of what was for an earlier reader.
    pub fn align(&mut self) {
        let begins = |at: &usize| {
            let rest = &self.bytes[*at..];
            rest.starts_with(&MARK[..rest.len().min(4)])
        };
        let skipped = (0..self.bytes.len()).find(begins).unwrap_or(self.bytes.len());
        self.bytes.drain(..skipped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_as_they_were_sent_in_parts_of_any_length() {
        let sent = [
            ToGuest::Hello {
                version: 7,
                nonce: 1 << 60,
                label: 3,
                bytes: 1 << 40,
            },
            ToGuest::Opened {
                connection: 9,
                at: 4096,
                bytes: u64::MAX,
            },
            ToGuest::Closed { connection: u32::MAX },
        ];
        let stream: Vec<u8> = sent.iter().flat_map(Frame::encode).collect();
        for length in [1, 7, 39, 40, 41, 120] {
            let (mut incoming, mut came) = (Incoming::default(), Vec::new());
            for part in stream.chunks(length) {
                incoming.add(part);
                while let Some(frame) = incoming.take::<ToGuest>().expect("frames") {
                    came.push(frame);
                }
            }
            assert_eq!(came, sent, "{length}");
        }
        for sent in [
            ToHost::Hello { version: 1, nonce: 2 },
            ToHost::Open { connection: 3 },
            ToHost::Channel {
                connection: 4,
                channel: 5,
            },
            ToHost::Close { connection: 6 },
        ] {
            assert_eq!(ToHost::decode(&sent.encode()), Ok(sent));
        }
    }

    #[test]
    fn what_is_no_frame_is_refused_or_left_out() {
        let mut wrong = ToHost::Open { connection: 1 }.encode();
        wrong[4] = 99;
        assert_eq!(ToHost::decode(&wrong), Err(Malformed));
        wrong[0] = 0;
        assert_eq!(ToGuest::decode(&wrong), Err(Malformed));
        // The rest of an earlier frame, and then one.
        let frame = ToGuest::Closed { connection: 1 };
        let mut incoming = Incoming::default();
        incoming.add(&frame.encode()[3..]);
        incoming.align();
        incoming.add(&frame.encode());
        incoming.align();
        assert_eq!(incoming.take(), Ok(Some(frame)));
        assert_eq!(incoming.take::<ToGuest>(), Ok(None));
    }
}
