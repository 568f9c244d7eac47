//! What messages look like: a header, then the arguments one after the other as their roles say.
//!
//! Numbers are little endian, structures are as C lays them out, and nothing is aligned. A message has no part that is
//! longer than itself: a reader takes what is there, or says [`Malformed`].

pub mod attribute;
mod header;
mod hello;
pub mod message;
mod print;
mod reader;
mod shape;
mod writer;

pub use header::{HEADER_BYTES, Header, Sort};
pub use hello::{HELLO_BYTES, Hello, VERSION};
pub use print::Printed;
pub use reader::{Malformed, Reader};
pub(crate) use shape::Pointee;
pub use shape::{Shape, shapes};
pub use writer::{Full, Writer};

/// The ids of the calls whose messages are written by hand. As with the generated ones, another meaning is another id:
/// the text before the slash names the call, and the number behind it counts the changes of its message.
pub mod by_hand {
    /// The id that a text gives, as for the generated calls.
    pub const fn id(text: &str) -> u32 {
        let bytes = text.as_bytes();
        let (mut hash, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u64).wrapping_mul(0x100_0000_01b3);
            at += 1;
        }
        (hash ^ (hash >> 32)) as u32
    }

    /// Of a copy: the call returns before it is made.
    pub const ASYNC: u8 = 1;
    /// Of a copy or a launch: the default stream is the thread's own.
    pub const PER_THREAD: u8 = 2;
    /// Of a copy between the data area and the device: to the data area.
    pub const TO_AREA: u8 = 4;
    /// Of such a copy: the bytes are on their way from or to other memory of the program.
    pub const STAGED: u8 = 8;
    /// Of a copy: the device's side is an array, as one run of bytes. Its name follows the offset.
    pub const ARRAY: u8 = 16;
    /// What a function of the program is: the work of a stream or of a graph's node.
    pub const CALLBACK_FUNCTION: u8 = 0;
    /// The same, told of the stream and its status.
    pub const CALLBACK_STREAM: u8 = 1;
    /// The destructor of a user object: nothing waits for it.
    pub const CALLBACK_DESTROY: u8 = 2;
    /// Where one side of a copy lies: at an address of the device.
    pub const PLACE_DEVICE: u8 = 0;
    /// In an array.
    pub const PLACE_ARRAY: u8 = 1;
    /// At an offset in the data area.
    pub const PLACE_AREA: u8 = 2;
    /// In the message, or in the answer to it, where rows stand close together.
    pub const PLACE_MESSAGE: u8 = 3;
    /// Of a launch: all blocks run at once.
    pub const COOPERATIVE: u8 = 1;

    macro_rules! ids {
        ($($(#[$doc:meta])* $name:ident $text:literal;)*) => {
            $($(#[$doc])* pub const $name: u32 = id($text);)*
            /// Every id of this module, and its text.
            pub const ALL: &[(u32, &str)] = &[$(($name, $text)),*];
        };
    }

    ids! {
        /// Initialises the driver, and tells what programs ask first.
        START "start/2";
        /// A part of an image that is about to be loaded.
        UPLOAD "image.upload/1";
        /// Loads the image that was uploaded as a module.
        MODULE_LOAD "module.load/2";
        /// A function of a module, and what a launch of it needs.
        FUNCTION "module.function/1";
        /// Loads it as a library.
        LIBRARY_LOAD "library.load/1";
        /// A linker.
        LINK_CREATE "link.create/1";
        /// Adds what was uploaded.
        LINK_ADD "link.add/1";
        /// Links.
        LINK_COMPLETE "link.complete/1";
        /// A part of what came out.
        LINK_READ "link.read/1";
        /// Ends a linker.
        LINK_DESTROY "link.destroy/1";
        /// Where a kernel's parameters lie.
        LAYOUT "kernel.layout/2";
        /// Sets an attribute of a kernel.
        SET_ATTRIBUTE "kernel.set-attribute/1";
        /// A kernel's name.
        NAME "kernel.name/1";
        /// All attributes of a device.
        DEVICE_ATTRIBUTES "device.attributes/1";
        /// Has a stream call a function of the program.
        HOST_FUNCTION "callback.launch/1";
        /// Waits for a function of the program to run.
        CALLBACK_WAIT "callback.wait/1";
        /// A user object.
        USER_OBJECT "callback.user-object/1";
        /// Adds a node to a graph.
        NODE_ADD "graph.node-add/1";
        /// Sets a node's parameters.
        NODE_SET "graph.node-set/1";
        /// Sets them in an executable graph.
        EXEC_NODE_SET "graph.exec-node-set/1";
        /// A node's parameters.
        NODE_GET "graph.node-get/1";
        /// Makes an executable graph.
        INSTANTIATE "graph.instantiate/1";
        /// Updates an executable graph.
        EXEC_UPDATE "graph.exec-update/1";
        /// What a stream captures.
        CAPTURE "stream.capture/1";
        /// An attribute of an address.
        POINTER "pointer.attribute/1";
        /// An attribute of a memory pool.
        POOL_GET "pool.get/1";
        /// Sets one.
        POOL_SET "pool.set/1";
        /// An attribute of the memory of graphs.
        GRAPH_MEMORY_GET "graph-memory.get/1";
        /// Sets one.
        GRAPH_MEMORY_SET "graph-memory.set/1";
        /// A copy of rows or boxes.
        COPY_BOX "memory.copy-box/2";
        /// Launches a kernel.
        LAUNCH "kernel.launch/1";
        /// Bytes for device memory.
        TO_DEVICE "memory.to-device/2";
        /// Bytes of device memory.
        FROM_DEVICE "memory.from-device/2";
        /// A copy between the data area and the device.
        COPY "memory.copy/2";
        /// Which of these addresses lie in device memory of the program.
        IS_DEVICE "memory.is-device/1";
        /// Frees device memory.
        FREE "memory.free/1";
        /// Makes a part of the data area pinned memory.
        PIN "host.pin/1";
        /// Ends that.
        UNPIN "host.unpin/1";
        /// A texture or surface object.
        TEXTURE_CREATE "texture.create/1";
        /// Ends one.
        TEXTURE_DESTROY "texture.destroy/1";
        /// Makes a context the thread's current one.
        SET_CURRENT "context.set-current/1";
        /// A device's primary context.
        PRIMARY_RETAIN "primary.retain/1";
        /// Gives it back.
        PRIMARY_RELEASE "primary.release/1";
        /// Ends all that it holds.
        PRIMARY_RESET "primary.reset/1";
    }
}

/// Which symbol a generated call's id is of.
pub fn symbol(id: u32) -> Option<divvy_abi::Symbol> {
    macro_rules! symbols {
        ([] $($name:ident $id:literal $how:tt $arguments:tt;)*) => {
            match id {
                $($id => Some(divvy_abi::Symbol::$name),)*
                _ => None,
            }
        };
    }
    divvy_abi::driver_roles! { [symbols] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_calls_have_one_id() {
        let mut seen: Vec<u32> = shapes().iter().map(|(_, id, _)| *id).collect();
        seen.extend(by_hand::ALL.iter().map(|(id, _)| *id));
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }
}
