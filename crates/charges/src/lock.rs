//! Locks of tables.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock whose holders never panic.
pub fn locked<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
