//! Units of a charge, and rounding to them.

/// Bytes in which the ledger counts; a driver's own granularity is a multiple.
pub const UNIT: u64 = divvy_ledger::accounting::UNIT;

/// The largest charge that can be requested: every limit refuses it.
pub(crate) const MOST: u64 = u64::MAX - UNIT + 1;

/// `bytes` as the ledger counts them. Saturates below the top, where every limit refuses.
///
/// ```
/// use divvy_charges::{UNIT, rounded};
///
/// assert_eq!(rounded(1), UNIT);
/// assert_eq!(rounded(UNIT), UNIT);
/// ```
#[inline]
#[must_use]
pub fn rounded(bytes: u64) -> u64 {
    rounded_to(bytes, UNIT)
}

/// `bytes` in whole pages of `page` bytes, a power of two. Saturates as [`rounded`] does.
#[inline]
pub(crate) fn rounded_to(bytes: u64, page: u64) -> u64 {
    match bytes.checked_add(page - 1) {
        Some(beyond) => begin_of_page(beyond, page),
        None => MOST,
    }
}

/// The begin of the page of `page` bytes, a power of two, that contains an address. It avoids a division, which would
/// be a tenth of the cost of an allocation.
#[inline]
pub(crate) fn begin_of_page(address: u64, page: u64) -> u64 {
    debug_assert!(page.is_power_of_two());
    address & !(page - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_up_and_never_wrap() {
        assert_eq!(rounded(0), 0);
        assert_eq!(rounded(1), 512);
        assert_eq!(rounded(512), 512);
        assert_eq!(rounded(u64::MAX), u64::MAX - 511);
        assert_eq!(rounded(u64::MAX) % UNIT, 0);
        assert_eq!(rounded(u64::MAX - 511), u64::MAX - 511);
        assert_eq!(rounded_to((2 << 20) + 1, 2 << 20), 4 << 20);
        assert_eq!(rounded_to(4 << 20, 2 << 20), 4 << 20);
        assert_eq!(begin_of_page((2 << 20) - 1, 2 << 20), 0);
    }
}
