//! Names of the server's objects: numbers that mean nothing to the driver below.
//!
//! The program sees such a name in the place of a handle. The client makes the names of objects that a call creates, so
//! that the call need not wait; the server makes those of objects that a call finds.

use core::fmt;

/// What kind of object a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    Allocation = 1,
    Array,
    Context,
    Event,
    ExternalMemory,
    ExternalSemaphore,
    Function,
    Graph,
    GraphExec,
    GraphNode,
    GraphicsResource,
    GreenContext,
    Kernel,
    Library,
    Linker,
    MipmappedArray,
    Module,
    Pool,
    Stream,
    Surface,
    SurfaceReference,
    Texture,
    TextureReference,
    UserObject,
}

impl Kind {
    const ALL: &[Kind] = &[
        Kind::Allocation,
        Kind::Array,
        Kind::Context,
        Kind::Event,
        Kind::ExternalMemory,
        Kind::ExternalSemaphore,
        Kind::Function,
        Kind::Graph,
        Kind::GraphExec,
        Kind::GraphNode,
        Kind::GraphicsResource,
        Kind::GreenContext,
        Kind::Kernel,
        Kind::Library,
        Kind::Linker,
        Kind::MipmappedArray,
        Kind::Module,
        Kind::Pool,
        Kind::Stream,
        Kind::Surface,
        Kind::SurfaceReference,
        Kind::Texture,
        Kind::TextureReference,
        Kind::UserObject,
    ];

    /// Whether an object of `other` may stand where one of this kind is asked for: the runtime passes a CUkernel as a
    /// CUfunction.
    pub fn accepts(self, other: Kind) -> bool {
        self == other || (self == Kind::Function && other == Kind::Kernel)
    }

    /// Whether a value of this kind is a constant of the interface, and no object: null, and the default streams.
    pub fn is_constant(self, bits: u64) -> bool {
        bits == 0 || (self == Kind::Stream && bits <= 2)
    }
}

/// Which side made a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client, for an object that a call creates.
    Client,
    /// The server, for an object that a call finds.
    Server,
}

/// A name: a mark, the kind, the side that made it, and a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u64);

/// The highest byte of each name. No address of a program on x86-64 or AArch64 begins so.
const MARK: u64 = 0x5d;
const SERIAL_BITS: u32 = 47;

impl Id {
    /// The name with this number.
    pub fn new(kind: Kind, origin: Origin, serial: u64) -> Self {
        let side = u64::from(origin == Origin::Server);
        let serial = serial & ((1 << SERIAL_BITS) - 1);
        Self(MARK << 56 | u64::from(kind as u8) << 48 | side << SERIAL_BITS | serial)
    }

    /// The name that these bits are, if they are one.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let id = Self(bits);
        (bits >> 56 == MARK && Kind::ALL.iter().any(|kind| *kind as u8 == id.kind_number())).then_some(id)
    }

    /// The bits that a program holds as a handle.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// What kind of object it names.
    pub fn kind(self) -> Kind {
        // An Id is made by `new` or checked by `from_bits`, so the number is one of a kind.
        Kind::ALL[usize::from(self.kind_number()) - 1]
    }

    /// Which side made it.
    pub fn origin(self) -> Origin {
        match self.0 >> SERIAL_BITS & 1 {
            0 => Origin::Client,
            _ => Origin::Server,
        }
    }

    fn kind_number(self) -> u8 {
        (self.0 >> 48) as u8
    }

    fn serial(self) -> u64 {
        self.0 & ((1 << SERIAL_BITS) - 1)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.origin() {
            Origin::Client => "",
            Origin::Server => "s",
        };
        write!(f, "{:?}#{side}{}", self.kind(), self.serial())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A C type that holds a handle or an address: a pointer, or a number of 64 bits.
pub trait Word: Copy {
    /// Its bits.
    fn bits(self) -> u64;
    /// The value with these bits.
    fn from_bits(bits: u64) -> Self;
}

impl Word for u64 {
    fn bits(self) -> u64 {
        self
    }

    fn from_bits(bits: u64) -> Self {
        bits
    }
}

impl<T> Word for *mut T {
    fn bits(self) -> u64 {
        self.addr() as u64
    }

    fn from_bits(bits: u64) -> Self {
        core::ptr::without_provenance_mut(bits as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_kind_and_its_side() {
        for (at, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, at + 1);
            for origin in [Origin::Client, Origin::Server] {
                let id = Id::new(*kind, origin, 77);
                assert_eq!(Id::from_bits(id.bits()), Some(id));
                assert_eq!((id.kind(), id.origin()), (*kind, origin));
            }
        }
        assert_eq!(Id::new(Kind::Stream, Origin::Client, 3).to_string(), "Stream#3");
        assert_eq!(
            Id::new(Kind::Context, Origin::Server, 4).to_string(),
            "Context#s4"
        );
    }

    #[test]
    fn other_bits_are_no_name() {
        for bits in [
            0,
            1,
            2,
            0x7fff_1234_5678,
            u64::MAX,
            MARK << 56,
            MARK << 56 | 0xff << 48,
        ] {
            assert_eq!(Id::from_bits(bits), None, "{bits:#x}");
        }
    }
}
