//! Words and quantities of Divvy, one name each: bytes, shares, devices, slices, selectors. No I/O.
//!
//! Text is parsed into these types once, at the edge (the command's grammar, the configuration), and printed from
//! them once, at the other edge. Between the edges everything is a number with a unit.
#![forbid(unsafe_code)]

mod bytes;
mod code;
mod compute;
mod device;
pub mod exposition;
mod fault;
mod hardware;
mod isolation;
mod mig;
mod mode;
mod selector;
mod slice;
pub mod spank;
mod terms;
mod words;

pub use bytes::{Bytes, MemoryAmount, QuantityError};
pub use code::Code;
pub use compute::Compute;
pub use device::{DeviceKind, DeviceRecord, POCL, Sharing};
pub use fault::Fault;
pub use hardware::{DeviceProcess, Hardware, MemorySlices, MigPlace, PartitionState, PcieLink, Vendor};
pub use isolation::Isolation;
pub use mig::{MIG_PRODUCTS, MigProduct, MigProfile, compute_parts, compute_starts};
pub use mode::{Mode, ModeTerms, TimeSlice};
pub use selector::{Selector, SelectorError};
pub use slice::{
    ANY_POD, Condition, ContainerRecord, CopiedRecord, DeviceShare, JobRecord, LifetimeAnchor, ProcessRecord,
    RunRecord, Shares, SliceRecord, SliceRequest, SliceState, UnmanagedRecord, WorkerRecord,
};
pub use terms::{Cap, Class, ComputeTerms, OnOveruse, Policy, SliceTerms, Weight};
#[doc(hidden)]
pub use words::NoSuchWord;
