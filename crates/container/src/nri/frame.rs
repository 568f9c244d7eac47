//! How messages travel: NRI lays two connections into one socket (github.com/containerd/nri, pkg/net/multiplex), and
//! each carries ttrpc (github.com/containerd/ttrpc, PROTOCOL.md). On the plugin's connection the runtime asks and we
//! answer; on the runtime's connection it is the other way round.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};

/// The connection on which the runtime asks.
pub const PLUGIN: u32 = 1;
/// The connection on which we ask.
pub const RUNTIME: u32 = 2;

/// Kinds of messages.
pub const REQUEST: u8 = 1;
/// See [`REQUEST`].
pub const RESPONSE: u8 = 2;

/// The most that a message holds, by ttrpc.
pub const MOST: usize = 4 << 20;
/// Length, stream, kind, flags.
const HEAD: usize = 10;
/// The most that we put into one frame. The runtime's reader has a buffer of this size, and fails on a frame that is
/// larger than the space it has left for it.
const FRAME_MOST: usize = 4096;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Which of the two connections.
    pub connection: u32,
    /// The call: a response has its request's.
    pub stream: u32,
    /// [`REQUEST`] or [`RESPONSE`]; others are of streams, which NRI has not.
    pub kind: u8,
    /// Zero for calls of one request and one response.
    pub flags: u8,
    /// The ttrpc request or response.
    pub data: Vec<u8>,
}

/// The socket.
#[derive(Debug)]
pub struct Trunk<S> {
    socket: S,
    /// The bytes of messages that are not whole yet.
    connections: BTreeMap<u32, Vec<u8>>,
}

impl<S> Trunk<S> {
    /// Messages over this socket.
    pub fn new(socket: S) -> Self {
        Self {
            socket,
            connections: [PLUGIN, RUNTIME]
                .map(|connection| (connection, Vec::new()))
                .into(),
        }
    }
}

fn malformed(reason: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

fn word(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .take(4)
        .fold(0, |word, byte| word << 8 | u32::from(*byte))
}

impl<S: Read> Trunk<S> {
    /// The next message; none where the other side has closed the socket.
    ///
    /// # Errors
    /// The socket's, and [`ErrorKind::InvalidData`] for what is no frame and no message.
    pub fn receive(&mut self) -> io::Result<Option<Message>> {
        loop {
            for (connection, bytes) in &mut self.connections {
                if let Some(message) = message(*connection, bytes)? {
                    return Ok(Some(message));
                }
            }
            if !self.frame()? {
                return Ok(None);
            }
        }
    }

    /// Reads one frame; whether there was one.
    fn frame(&mut self) -> io::Result<bool> {
        let mut head = [0; 8];
        let begun = loop {
            match self.socket.read(&mut head) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if begun == 0 {
            return Ok(false);
        }
        self.socket.read_exact(&mut head[begun..])?;
        let (connection, length) = (word(&head[..4]), word(&head[4..]));
        if length as usize > HEAD + MOST {
            return Err(malformed("a frame is too large"));
        }
        let mut rest = (&mut self.socket).take(u64::from(length));
        // Connections that neither side has opened lead nowhere.
        let read = match self.connections.get_mut(&connection) {
            Some(bytes) => rest.read_to_end(bytes)? as u64,
            None => io::copy(&mut rest, &mut io::sink())?,
        };
        match read == u64::from(length) {
            true => Ok(true),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Takes the first message off a connection's bytes, if it is whole.
fn message(connection: u32, bytes: &mut Vec<u8>) -> io::Result<Option<Message>> {
    let Some(head) = bytes.first_chunk::<HEAD>() else {
        return Ok(None);
    };
    let (length, stream, kind, flags) = (word(&head[..4]) as usize, word(&head[4..8]), head[8], head[9]);
    if length > MOST {
        return Err(malformed("a message is too large"));
    }
    if bytes.len() < HEAD + length {
        return Ok(None);
    }
    let rest = bytes.split_off(HEAD + length);
    let mut data = std::mem::replace(bytes, rest);
    data.drain(..HEAD);
    Ok(Some(Message {
        connection,
        stream,
        kind,
        flags,
        data,
    }))
}

impl<S: Write> Trunk<S> {
    /// Sends a message.
    ///
    /// # Errors
    /// The socket's, and [`ErrorKind::InvalidData`] for one that no reader would accept.
    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        let length = u32::try_from(message.data.len()).unwrap_or(u32::MAX);
        if length as usize > MOST {
            return Err(malformed("a message is too large"));
        }
        let mut bytes = Vec::with_capacity(HEAD + message.data.len());
        bytes.extend(length.to_be_bytes());
        bytes.extend(message.stream.to_be_bytes());
        bytes.extend([message.kind, message.flags]);
        bytes.extend(&message.data);
        for part in bytes.chunks(FRAME_MOST) {
            let mut frame = Vec::with_capacity(8 + FRAME_MOST);
            frame.extend(message.connection.to_be_bytes());
            frame.extend(u32::try_from(part.len()).unwrap_or(0).to_be_bytes());
            frame.extend(part);
            self.socket.write_all(&frame)?;
        }
        self.socket.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(connection: u32, stream: u32, data: Vec<u8>) -> Message {
        Message {
            connection,
            stream,
            kind: REQUEST,
            flags: 0,
            data,
        }
    }

    fn sent(messages: &[Message]) -> Vec<u8> {
        let mut trunk = Trunk::new(Vec::new());
        for message in messages {
            trunk.send(message).expect("sent");
        }
        trunk.socket
    }

    #[test]
    fn what_is_sent_arrives_in_parts_and_whole() {
        let messages = [
            message_of(RUNTIME, 1, vec![1; 3]),
            message_of(PLUGIN, 3, (0..=255).cycle().take(100_000).collect()),
            message_of(PLUGIN, 5, Vec::new()),
        ];
        let bytes = sent(&messages);
        let mut trunk = Trunk::new(&bytes[..]);
        for message in messages {
            assert_eq!(trunk.receive().expect("read"), Some(message));
        }
        assert_eq!(trunk.receive().expect("the end"), None);
    }

    #[test]
    fn connections_do_not_mix() {
        let (one, two) = (
            message_of(PLUGIN, 1, vec![1; 6000]),
            message_of(RUNTIME, 1, vec![2; 6000]),
        );
        // The first frame of each, then the second of each.
        let (first, second) = (sent(std::slice::from_ref(&one)), sent(std::slice::from_ref(&two)));
        let cut = 8 + FRAME_MOST;
        let bytes = [&first[..cut], &second[..cut], &first[cut..], &second[cut..]].concat();
        let mut trunk = Trunk::new(&bytes[..]);
        assert_eq!(trunk.receive().expect("read"), Some(one));
        assert_eq!(trunk.receive().expect("read"), Some(two));
        // A connection that neither side opened, and one frame with two messages.
        let both = [
            &[0, 0, 0, 9, 0, 0, 0, 2, 7, 7][..],
            &[0, 0, 0, 1, 0, 0, 0, 20],
            &[0, 0, 0, 0, 0, 0, 0, 1, 1, 0],
            &[0, 0, 0, 0, 0, 0, 0, 3, 1, 0],
        ]
        .concat();
        let mut trunk = Trunk::new(&both[..]);
        for stream in [1, 3] {
            let message = trunk.receive().expect("read").expect("a message");
            assert_eq!((message.connection, message.stream), (PLUGIN, stream));
        }
    }

    #[test]
    fn what_is_too_large_or_cut_off_is_an_error() {
        let kind = |bytes: &[u8]| Trunk::new(bytes).receive().map_err(|error| error.kind());
        assert_eq!(
            kind(&[0, 0, 0, 1, 0, 0x40, 0, 11, 0]),
            Err(ErrorKind::InvalidData)
        );
        assert_eq!(
            kind(&[0, 0, 0, 1, 0, 0, 0, 10, 0, 0x40, 0, 1, 0, 0, 0, 1, 1, 0]),
            Err(ErrorKind::InvalidData)
        );
        assert_eq!(kind(&[0, 0, 0]), Err(ErrorKind::UnexpectedEof));
        assert_eq!(kind(&[0, 0, 0, 1, 0, 0, 0, 4, 1]), Err(ErrorKind::UnexpectedEof));
        let large = message_of(PLUGIN, 1, vec![0; MOST + 1]);
        assert!(Trunk::new(Vec::new()).send(&large).is_err());
    }
}
