//! Calls that are under way, by claim. The kubelet's calls may be served in another order than they came in, and a call that
//! it gave up still runs here: neither may make a slice after its claim was taken back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use divvy_model::Fault;

use crate::claim::refused;

#[derive(Default)]
pub(super) struct Calls {
    under_way: Mutex<BTreeMap<String, Vec<Weak<AtomicBool>>>>,
}

/// A call to prepare a claim, good until the claim is taken back or the ticket is ended.
#[derive(Clone, Debug)]
pub struct Ticket {
    ended: Arc<AtomicBool>,
}

impl Ticket {
    /// Nothing is made for this call any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        match self.ended.load(Ordering::Acquire) {
            true => Err(
                refused("the claim was taken back, or the call given up, meanwhile")
                    .hint("the kubelet asks again where it still wants the claim"),
            ),
            false => Ok(()),
        }
    }
}

impl Calls {
    pub fn arrive(&self, uid: &str) -> Ticket {
        let ticket = Ticket {
            ended: Arc::default(),
        };
        let mut calls = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        calls.retain(|_, calls| {
            calls.retain(|call| call.strong_count() > 0);
            !calls.is_empty()
        });
        calls
            .entry(uid.to_owned())
            .or_default()
            .push(Arc::downgrade(&ticket.ended));
        ticket
    }

    pub fn end(&self, uid: &str) {
        let mut calls = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        for call in calls.remove(uid).into_iter().flatten() {
            if let Some(ended) = call.upgrade() {
                ended.store(true, Ordering::Release);
            }
        }
    }
}
