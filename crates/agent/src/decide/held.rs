//! How a slice shares its devices, by its record.

use divvy_model::{Cap, Isolation, Mode, ModeTerms, SliceRecord};

/// What a slice's record says of how its device is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldMode {
    /// The sharing mode, and its parameters.
    pub terms: ModeTerms,
    /// Under MPS: whether each slice has multiprocessors of its own (static partitions).
    pub partitioned: bool,
}

impl HeldMode {
    /// Reads it from a record.
    #[must_use]
    pub fn of(record: &SliceRecord) -> Self {
        Self {
            terms: record.terms.sharing,
            partitioned: is_partitioned(record.terms.sharing.mode, record.terms.compute.cap),
        }
    }
}

/// Under MPS a hard cap means multiprocessors of its own.
#[must_use]
pub fn is_partitioned(mode: Mode, cap: Cap) -> bool {
    mode == Mode::Mps && cap == Cap::Hard
}

/// Whether the agent hands out leases to it.
#[must_use]
pub fn is_leased(record: &SliceRecord) -> bool {
    record.terms.isolation != Isolation::Env
        && !record.terms.whole
        && record.terms.sharing.mode == Mode::Lease
}
