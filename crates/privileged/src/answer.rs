//! What root answers: numbers, a tool's words, or why not. A descriptor travels beside [`Answer::Opened`].

use std::fmt;

use rustix::io::Errno;

use crate::request::{MOST_PROCESSES, Malformed};
use crate::wire::{LONGEST, Reader, Writer};

/// So much of a tool's words is passed on, in bytes.
pub const MOST_WORDS: usize = 16 << 10;

const _: () = assert!(MOST_WORDS + 64 < LONGEST);

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is so, or it was done.
    Yes,
    /// It is not so.
    No,
    /// There is no such process any more.
    Gone,
    /// The rules forbid it.
    Refused(Refusal),
    /// The system did not do it.
    Failed(Errno),
    /// As many as were asked about.
    Numbers(Vec<u64>),
    /// What a vendor's tool said.
    Words(String),
    /// A vendor's tool failed, and said this.
    ToolFailed(String),
    /// The descriptor that came along.
    Opened,
}

/// Why root does not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The message is not understood.
    Malformed,
    /// The first process, the kernel's, the helper itself or its agent.
    Protected,
    /// Another user's than was said.
    Owner,
    /// A process of root's outside every slice.
    Root,
    /// A process of the host, where one of a container was meant.
    NoContainer,
    /// What stands there is not what we made.
    Foreign,
    /// No user can have this id.
    User,
    /// Too much to look through.
    TooMuch,
    /// A daemon of root's would write in folders of the agent's.
    RootsDaemon,
    /// The program to start is not root's alone to change.
    Program,
}

impl Refusal {
    const ALL: [Self; 10] = [
        Self::Malformed,
        Self::Protected,
        Self::Owner,
        Self::Root,
        Self::NoContainer,
        Self::Foreign,
        Self::User,
        Self::TooMuch,
        Self::RootsDaemon,
        Self::Program,
    ];
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Malformed => "the request is not understood",
            Self::Protected => "the process is the system's or Divvy's own",
            Self::Owner => "the process belongs to another user",
            Self::Root => "the process is root's, and in no slice of this agent",
            Self::NoContainer => "the process is in no container",
            Self::Foreign => "what stands there is not what Divvy made",
            Self::User => "no user can have this id",
            Self::TooMuch => "there is too much to look through",
            Self::RootsDaemon => "an MPS daemon of root's would write where the agent's user can put links",
            Self::Program => "divvy-worker is missing beside divvy, or other users than root can change it",
        })
    }
}

impl Answer {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self, number: u64) -> Vec<u8> {
        let kind = match self {
            Self::Yes => 1,
            Self::No => 2,
            Self::Gone => 3,
            Self::Refused(_) => 4,
            Self::Failed(_) => 5,
            Self::Numbers(_) => 6,
            Self::Words(_) => 7,
            Self::ToolFailed(_) => 8,
            Self::Opened => 9,
        };
        let mut out = Writer::new(kind, number);
        match self {
            Self::Yes | Self::No | Self::Gone | Self::Opened => {}
            Self::Refused(why) => {
                let place = Refusal::ALL.iter().position(|one| one == why);
                out.u8(place.and_then(|place| u8::try_from(place).ok()).unwrap_or(0));
            }
            Self::Failed(error) => out.u32(error.raw_os_error().unsigned_abs()),
            Self::Numbers(numbers) => {
                out.u16(u16::try_from(numbers.len()).unwrap_or(u16::MAX));
                numbers.iter().for_each(|number| out.u64(*number));
            }
            Self::Words(words) | Self::ToolFailed(words) => out.bytes(cut(words).as_bytes()),
        }
        out.done()
    }

    /// Reads a message: its number and what it answers.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<(u64, Self), Malformed> {
        let (mut read, head) = Reader::new(bytes)?;
        let answer = match head.kind {
            1 => Self::Yes,
            2 => Self::No,
            3 => Self::Gone,
            4 => {
                let place = usize::from(read.u8()?);
                Self::Refused(*Refusal::ALL.get(place).ok_or(Malformed::Meaning)?)
            }
            5 => {
                let error = i32::try_from(read.u32()?)
                    .ok()
                    .filter(|raw| (1..4096).contains(raw));
                Self::Failed(Errno::from_raw_os_error(error.ok_or(Malformed::Meaning)?))
            }
            6 => Self::Numbers(read.list(MOST_PROCESSES, Reader::u64)?),
            7 => Self::Words(text(read.bytes(MOST_WORDS)?)),
            8 => Self::ToolFailed(text(read.bytes(MOST_WORDS)?)),
            9 => Self::Opened,
            _ => return Err(Malformed::Meaning),
        };
        read.end()?;
        Ok((head.number, answer))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// As much as fits, whole characters.
fn cut(words: &str) -> &str {
    let mut end = words.len().min(MOST_WORDS);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    &words[..end]
}
