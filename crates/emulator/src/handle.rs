//! Handles: what a program holds for an object of ours, checked at every use.
//!
//! A handle is a number that is never used twice, not an address: a bogus, stale or mistyped one is found out and
//! nothing is dereferenced.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The next handle of any kind. They start above the special streams 1 and 2 and look like aligned pointers.
static NEXT: AtomicU64 = AtomicU64::new(0xd1d1_0010);

/// A handle that nothing has yet.
pub fn fresh() -> u64 {
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// The live objects of one kind.
pub struct Handles<T>(RwLock<HashMap<u64, Arc<T>>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles(RwLock::default())
    }
}

impl<T> Handles<T> {
    /// Adds an object that knows its own handle.
    pub fn insert(&self, handle: u64, object: Arc<T>) {
        self.write().insert(handle, object);
    }

    /// The object, or None if the handle names none of this kind.
    pub fn get(&self, handle: u64) -> Option<Arc<T>> {
        self.read().get(&handle).cloned()
    }

    /// Takes the object out: its handle is dead.
    pub fn remove(&self, handle: u64) -> Option<Arc<T>> {
        self.write().remove(&handle)
    }

    /// Takes out all that satisfy `unwanted`.
    pub fn remove_all(&self, unwanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.write()
            .extract_if(|_, object| unwanted(object))
            .map(|(_, object)| object)
            .collect()
    }

    /// All live objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.read().values().cloned().collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<u64, Arc<T>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u64, Arc<T>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_and_foreign_handles_name_nothing() {
        let numbers = Handles::<u32>::default();
        let texts = Handles::<String>::default();
        let (number, text) = (fresh(), fresh());
        numbers.insert(number, Arc::new(1));
        texts.insert(text, Arc::new("a".into()));
        assert_eq!(numbers.get(number).as_deref(), Some(&1));
        assert!(numbers.get(text).is_none() && numbers.get(0).is_none() && numbers.get(u64::MAX).is_none());
        numbers.remove(number);
        assert!(numbers.get(number).is_none());
    }
}
