//! The arguments of each generated call as data, for what looks at messages and does not make the calls.

use divvy_abi::Symbol;

use crate::handle::Kind;

/// How an argument lies in a call's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// So many bytes.
    Value(usize),
    /// A flag, then so many bytes where it is set.
    Optional(usize),
    /// A count, then elements of so many bytes.
    List(usize),
    /// A flag: whether the answer is wanted.
    Wanted,
    /// A C string: a count, then its bytes.
    String,
    /// An object of a kind.
    Handle(Kind),
    /// The name of an object that the call creates.
    Created(Kind),
    /// A count, then objects of a kind.
    Handles(Kind),
    /// An address of device memory.
    Address,
    /// Nothing.
    Nothing,
}

/// What a pointer type points to.
pub(crate) trait Pointee {
    type To;
}

impl<T> Pointee for *const T {
    type To = T;
}

impl<T> Pointee for *mut T {
    type To = T;
}

macro_rules! shape {
    (value $of:ty, $needs:tt) => {
        Shape::Value(size_of::<$of>())
    };
    (device $of:ty, $needs:tt) => {
        Shape::Value(size_of::<$of>())
    };
    (input $of:ty, $needs:tt) => {
        Shape::Optional(size_of::<<$of as Pointee>::To>())
    };
    (inout $of:ty, $needs:tt) => {
        Shape::Optional(size_of::<<$of as Pointee>::To>())
    };
    (inputs $of:ty, $needs:tt) => {
        Shape::List(size_of::<<$of as Pointee>::To>())
    };
    (string $of:ty, $needs:tt) => {
        Shape::String
    };
    (handle $of:ty, [$kind:ident]) => {
        Shape::Handle(Kind::$kind)
    };
    (destroy $of:ty, [$kind:ident]) => {
        Shape::Handle(Kind::$kind)
    };
    (create $of:ty, [$kind:ident $($parent:tt)*]) => {
        Shape::Created(Kind::$kind)
    };
    (handles $of:ty, [$kind:ident; $($count:tt)*]) => {
        Shape::Handles(Kind::$kind)
    };
    (memory $of:ty, $needs:tt) => {
        Shape::Address
    };
    (rows $of:ty, $needs:tt) => {
        Shape::Address
    };
    (free_memory $of:ty, $needs:tt) => {
        Shape::Address
    };
    (null $of:ty, $needs:tt) => {
        Shape::Nothing
    };
    // output, outputs, find, finds, find_device, new_memory
    ($answer:ident $of:ty, $needs:tt) => {
        Shape::Wanted
    };
}

macro_rules! list {
    ([] $($name:ident $id:literal [$how:ident] ($($p:ident: $of:ty = $role:ident $needs:tt),*);)*) => {
        &[$((Symbol::$name, $id, &[$((stringify!($p), shape!($role $of, $needs))),*])),*]
    };
}

/// A generated call: its symbol, its id, and its arguments' names and shapes.
pub type Call = (Symbol, u32, &'static [(&'static str, Shape)]);

/// Every generated call.
pub fn shapes() -> &'static [Call] {
    const ALL: &[Call] = divvy_abi::driver_roles! { [list] };
    ALL
}
