//! The card and the emulated device held against each other. Each difference is a bug of ours, or a line of
//! docs/emulated-device.md.

mod driver;
mod isa;

use crate::finding::Failure;
use crate::kit::Kit;

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    isa::run(kit)?;
    driver::run(kit)
}
