//! What the two sides say beside CUDA calls: JSON in frames.

use std::io;

use divvy_model::Fault;
use divvy_remote::stream::{Frames, Stream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Counts the changes of what is said here. The messages of CUDA calls have a version of their own.
pub const PROTOCOL: u32 = 1;
/// Bytes of the longest of these messages.
pub(crate) const MOST: usize = 1 << 16;

/// The server's first words, after the handshake of TLS. It speaks first, so a client that is not accepted hears why.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Greeting {
    /// Its version of [`PROTOCOL`].
    pub protocol: u32,
    /// The version of its program, for people.
    pub version: String,
}

impl Greeting {
    pub fn ours() -> Self {
        Self {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

/// The slice that a client asks for, in the words of `divvy run`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The device at the server; empty for one with room.
    pub device: String,
    /// Its memory.
    pub memory: Option<String>,
    /// Its share of the compute time.
    pub compute: Option<String>,
    /// For how many seconds to wait in the queue at most; 0 for as long as it takes, None for not at all.
    pub wait: Option<u64>,
    /// The client's process.
    pub pid: u32,
}

/// What a connection is for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Ask {
    /// To tell the devices.
    Devices,
    /// To have a slice, as long as the connection lasts.
    Open(Wanted),
    /// A thread of a program in the slice of another connection.
    Thread {
        /// The slice's session.
        session: String,
        /// The program's number in it.
        program: u64,
    },
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The devices, as `divvy devices -o json` gives them.
    Devices {
        /// A list of records.
        devices: serde_json::Value,
    },
    /// The slice is not there yet.
    Waiting,
    /// It is there.
    Ready {
        /// Its session.
        session: String,
    },
    /// CUDA calls may follow.
    Thread {
        /// Bytes of the largest message.
        capacity: u32,
    },
    /// No.
    Refused {
        /// Why.
        fault: Fault,
    },
}

/// What goes over the connection of a slice. The server answers each with [`Word::Beat`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub(crate) enum Word {
    /// The client lives.
    Beat,
    /// A program has ended.
    End {
        /// Its number.
        program: u64,
    },
}

pub(crate) fn say<S: Stream>(frames: &mut Frames<S>, words: &impl Serialize) -> io::Result<()> {
    frames.put(&serde_json::to_vec(words)?)?;
    frames.flush()
}

pub(crate) fn hear<S: Stream, T: DeserializeOwned>(frames: &mut Frames<S>) -> io::Result<T> {
    let mut words = Vec::new();
    frames.take(&mut words)?;
    Ok(serde_json::from_slice(&words)?)
}

/// Any bytes as each of the messages, for the fuzz target: nothing may panic.
#[doc(hidden)]
pub fn read_any(bytes: &[u8]) {
    let _greeting: Result<Greeting, _> = serde_json::from_slice(bytes);
    let _ask: Result<Ask, _> = serde_json::from_slice(bytes);
    let _answer: Result<Answer, _> = serde_json::from_slice(bytes);
    let _word: Result<Word, _> = serde_json::from_slice(bytes);
}
