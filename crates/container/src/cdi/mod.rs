//! The Container Device Interface: one file for each kind of device, which any engine reads.

mod amd;
mod directory;
mod emulated;
mod generate;
mod libraries;
mod name;
mod nodes;
mod nvidia;
mod slice;
mod spec;
mod validate;
mod version;

pub use directory::{DYNAMIC, Found, STANDARD, read_all, remove, write};
pub use emulated::Emulated;
pub use generate::{Generated, Options, generate};
pub use libraries::{Capabilities, Capability};
pub use name::{device_name, is_device_name, is_kind};
pub use slice::{SLICE_KIND, SliceNodes, nodes_of, slice_file, slice_name, slice_spec};
pub use spec::{Device, DeviceNode, Edits, Hook, IntelRdt, Mount, NetDevice, Spec, parse};
pub use validate::{Finding, Level, validate};
pub use version::Version;
