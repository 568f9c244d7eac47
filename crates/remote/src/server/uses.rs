//! Calls in progress that use an object or a range of memory: a call that destroys it waits for them.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Weak};

/// What the uses of one object have in common.
#[derive(Debug, Default)]
pub struct UseCount {
    /// A call that destroys it has begun.
    closed: AtomicBool,
}

/// A call's use of an object, for as long as it is there. The table of objects has one, too.
pub type Use = Arc<UseCount>;

impl UseCount {
    /// No use begins from now on by [`enter`].
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Uses may begin again.
    pub fn open(&self) {
        self.closed.store(false, Ordering::Relaxed);
    }
}

/// Begins a use without the table's lock. None where the object is gone, or a call destroys it.
pub fn enter(use_count: &Weak<UseCount>) -> Option<Use> {
    let used = use_count.upgrade()?;
    // The other side closes first and then counts the uses. With a fence on each side, it counts this one, or this one
    // sees that it is closed.
    fence(Ordering::SeqCst);
    (!used.closed.load(Ordering::Relaxed)).then_some(used)
}

/// What a call that destroys an object waits for: the uses of all that goes with it.
pub struct Uses {
    own: Weak<UseCount>,
    others: Vec<Weak<UseCount>>,
}

impl Uses {
    /// The uses of this object alone.
    pub fn new(own: &Use) -> Self {
        Self {
            own: Arc::downgrade(own),
            others: Vec::new(),
        }
    }

    /// And those of this one, which goes with it.
    pub fn add(&mut self, other: &Use) {
        if !std::ptr::eq(self.own.as_ptr(), Arc::as_ptr(other)) {
            self.others.push(Arc::downgrade(other));
        }
    }

    /// Whether no other call uses any of it. The caller has so many uses of the object itself.
    pub fn are_over(&self, own: usize) -> bool {
        // One more is the table's.
        self.own.strong_count() <= own + 1 && self.others.iter().all(|uses| uses.strong_count() <= 1)
    }

    /// Waits until then. No call begins to use it meanwhile.
    pub fn wait(&self, own: usize) {
        // See `enter`.
        fence(Ordering::SeqCst);
        let mut looks = 0_u32;
        while !self.are_over(own) {
            looks += 1;
            match looks {
                0..100 => std::thread::yield_now(),
                // The other call waits for the device.
                _ => std::thread::sleep(std::time::Duration::from_micros(200)),
            }
        }
        // What the other calls did is done before ours begins: each gave its use back by a release.
        fence(Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_begins_only_where_no_call_destroys_the_object() {
        let own = Use::default();
        let weak = Arc::downgrade(&own);
        let used = enter(&weak).expect("it is there");
        own.close();
        let uses = Uses::new(&own);
        assert!(enter(&weak).is_none(), "it goes");
        assert!(!uses.are_over(0));
        drop(used);
        assert!(uses.are_over(0));
        own.open();
        assert!(enter(&weak).is_some(), "it stayed");
        drop(own);
        assert!(enter(&weak).is_none(), "it is gone");
    }

    #[test]
    fn a_call_that_destroys_meets_no_use() {
        use std::sync::atomic::AtomicUsize;
        for _ in 0..200 {
            let own = Use::default();
            let weak = Arc::downgrade(&own);
            let (inside, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while let Some(used) = enter(&weak) {
                            inside.fetch_add(1, Ordering::SeqCst);
                            assert!(!ended.load(Ordering::SeqCst), "destroyed while it is used");
                            inside.fetch_sub(1, Ordering::SeqCst);
                            drop(used);
                        }
                    });
                }
                own.close();
                Uses::new(&own).wait(0);
                ended.store(true, Ordering::SeqCst);
                assert_eq!(inside.load(Ordering::SeqCst), 0);
            });
        }
    }
}
