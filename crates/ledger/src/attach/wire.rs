//! The messages of the attach protocol: 32 bytes each way, in the machine's byte order (it never leaves the machine).
//!
//! The first 12 bytes, magic and version, stay the same in every version, so that any two versions can refuse each
//! other.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::layout::PAGE_ABI_VERSION;

/// Size of a request and of a reply, in bytes.
pub const MESSAGE_BYTES: usize = 32;
/// "DVYATTCH".
const MAGIC: u64 = u64::from_le_bytes(*b"DVYATTCH");

/// The kinds of requests to the page server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tenant asks for the pages.
    Attach,
    /// A restarted agent asks for the pages.
    Recall,
    /// The agent brings pages; two descriptors travel with the request.
    Deliver,
    /// A process of the slice asks to read the pages, and takes no slot in them.
    Observe,
    /// The agent asks which attached processes are alive. They follow the reply, whose `accounts` is their number.
    List,
    /// A `divvy run` asks the agent for a slice's sockets. The slice's id, eight hexadecimal digits, is in `account`.
    Keep,
}

/// The result in a page server's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The request was fulfilled.
    Done,
    /// The request has another page-ABI version; the reply's version is one that works.
    Version,
    /// The page server has no pages yet.
    NoPages,
    /// The peer may not make this request.
    NotAllowed,
    /// The delivered pages are unfit, or the request is not understood.
    Unfit,
    /// A system call of the page server failed.
    Failed,
    /// The slice has fewer accounts than that.
    NoSuchAccount,
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// They are not of this protocol.
    Foreign,
    /// They are of this protocol, in another version.
    Version {
        /// The version of the message.
        theirs: u32,
    },
    /// They are of this version, but have no meaning.
    Meaning,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Message {
    magic: u64,
    version: u32,
    /// [`Kind`] or [`Status`].
    code: u32,
    /// In a request: the sender's id in its own pid namespace. In a reply: the peer's id in the page server's.
    pid: u32,
    /// In a request: the account of the pages. In the reply to it: how many accounts the slice has, 0 while unknown.
    account: u32,
    reserved: [u32; 2],
}

impl Message {
    fn bytes(code: u32, pid: u32, account: u32) -> [u8; MESSAGE_BYTES] {
        let message = Self {
            magic: MAGIC,
            version: PAGE_ABI_VERSION,
            code,
            pid,
            account,
            reserved: [0; 2],
        };
        zerocopy::transmute!(message)
    }

    fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Result<Self, Malformed> {
        let message: Self = zerocopy::transmute!(*bytes);
        if message.magic != MAGIC {
            Err(Malformed::Foreign)
        } else if message.version != PAGE_ABI_VERSION {
            Err(Malformed::Version {
                theirs: message.version,
            })
        } else {
            Ok(message)
        }
    }
}

/// A request by a tenant or the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The kind of request.
    pub kind: Kind,
    /// The sender's id in its own pid namespace.
    pub pid: u32,
    /// Which of the slice's accounts it concerns, from 0.
    pub account: u32,
}

impl Request {
    /// The request's bytes.
    #[must_use]
    pub fn encode(self) -> [u8; MESSAGE_BYTES] {
        let code = match self.kind {
            Kind::Attach => 1,
            Kind::Recall => 2,
            Kind::Deliver => 3,
            Kind::Observe => 4,
            Kind::List => 5,
            Kind::Keep => 6,
        };
        Message::bytes(code, self.pid, self.account)
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Result<Self, Malformed> {
        let message = Message::parse(bytes)?;
        let kind = match message.code {
            1 => Kind::Attach,
            2 => Kind::Recall,
            3 => Kind::Deliver,
            4 => Kind::Observe,
            5 => Kind::List,
            6 => Kind::Keep,
            _ => return Err(Malformed::Meaning),
        };
        Ok(Self {
            kind,
            pid: message.pid,
            account: message.account,
        })
    }
}

/// A request to the holder of emulated devices' pages, for those of one device. It knows no other request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The UUID of the device, of a MIG instance, or of a GPU instance's memory.
    pub uuid: [u8; 16],
}

/// A message whose last 16 bytes are a UUID.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DeviceMessage {
    magic: u64,
    version: u32,
    code: u32,
    uuid: [u8; 16],
}

/// The code of a [`DeviceRequest`], beside those of [`Kind`].
const DEVICE: u32 = 7;

impl DeviceRequest {
    /// The request's bytes.
    #[must_use]
    pub fn encode(self) -> [u8; MESSAGE_BYTES] {
        let message = DeviceMessage {
            magic: MAGIC,
            version: PAGE_ABI_VERSION,
            code: DEVICE,
            uuid: self.uuid,
        };
        zerocopy::transmute!(message)
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Result<Self, Malformed> {
        let head = Message::parse(bytes)?;
        let message: DeviceMessage = zerocopy::transmute!(*bytes);
        match head.code {
            DEVICE => Ok(Self { uuid: message.uuid }),
            _ => Err(Malformed::Meaning),
        }
    }
}

/// The page server's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The result.
    pub status: Status,
    /// The peer's id in the page server's pid namespace, or 0 if it has none there.
    pub pid: u32,
    /// How many accounts the slice has; 0 while the page server does not know.
    pub accounts: u32,
}

impl Reply {
    /// The reply's bytes.
    #[must_use]
    pub fn encode(self) -> [u8; MESSAGE_BYTES] {
        let code = match self.status {
            Status::Done => 0,
            Status::Version => 1,
            Status::NoPages => 2,
            Status::NotAllowed => 3,
            Status::Unfit => 4,
            Status::Failed => 5,
            Status::NoSuchAccount => 6,
        };
        Message::bytes(code, self.pid, self.accounts)
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Result<Self, Malformed> {
        let message = Message::parse(bytes)?;
        let status = match message.code {
            0 => Status::Done,
            1 => Status::Version,
            2 => Status::NoPages,
            3 => Status::NotAllowed,
            4 => Status::Unfit,
            5 => Status::Failed,
            6 => Status::NoSuchAccount,
            _ => return Err(Malformed::Meaning),
        };
        Ok(Self {
            status,
            pid: message.pid,
            accounts: message.account,
        })
    }
}
