//! A lock for each name: work on one slice delays no other.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    held: Mutex<HashSet<String>>,
    freed: Condvar,
}

/// A locked name, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held<'locks> {
    locks: &'locks Locks,
    name: String,
}

impl Locks {
    /// Waits for a name to be free, and locks it.
    pub fn hold(&self, name: &str) -> Held<'_> {
        let waited = self.freed.wait_while(self.held(), |held| held.contains(name));
        let mut held = waited.unwrap_or_else(PoisonError::into_inner);
        held.insert(name.to_owned());
        Held {
            locks: self,
            name: name.to_owned(),
        }
    }

    fn held(&self) -> MutexGuard<'_, HashSet<String>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.locks.held().remove(&self.name);
        self.locks.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_name_waits_for_itself_and_for_no_other() {
        let locks = Locks::default();
        let first = locks.hold("a");
        drop(locks.hold("b"));
        let (sender, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _second = locks.hold("a");
                sender.send(()).expect("heard");
            });
            assert!(
                told.recv_timeout(Duration::from_millis(50)).is_err(),
                "it is held"
            );
            drop(first);
            told.recv_timeout(Duration::from_secs(60)).expect("it is free");
        });
    }
}
