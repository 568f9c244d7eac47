//! The way in which a slice shares its devices, as its record says.

use divvy_model::{Cap, Isolation, Mode, ModeTerms, SliceRecord};

/// What a slice says of the way in which its device is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldMode {
    /// The way, and what belongs to it.
    pub terms: ModeTerms,
    /// Under MPS: whether multiprocessors are set apart for each slice.
    pub partitioned: bool,
}

impl HeldMode {
    /// Of a record.
    #[must_use]
    pub fn of(record: &SliceRecord) -> Self {
        Self {
            terms: record.mode_terms(),
            partitioned: is_partitioned(record.share_mode, record.compute_cap),
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
    record.isolation != Isolation::Env && !record.whole && record.share_mode == Mode::Lease
}
