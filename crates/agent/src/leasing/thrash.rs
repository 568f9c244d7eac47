//! The cost of a change of holder where slices page their memory to and fro.

use divvy_arbiter::{Nanos, SECOND};

use super::account::Account;

/// The bytes that return in a second: about the rate of managed memory over PCIe 4.
const REFILL_PER_SECOND: u64 = 12_000_000_000;

/// How long it takes to bring back what other slices pushed out; zero where the slice does not thrash. Its processes'
/// figure counts only up to what it may have beyond its share. So a slice that may not spill cannot make leases longer.
pub(super) fn refill(account: &Account) -> Nanos {
    let ledger = account.ledger();
    if ledger.thrash().lasting.is_none() {
        return 0;
    }
    let spilled = ledger
        .total_spilled()
        .min(account.grant().terms().spill_limit_bytes);
    (u128::from(spilled) * u128::from(SECOND) / u128::from(REFILL_PER_SECOND)) as Nanos
}
