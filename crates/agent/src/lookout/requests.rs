//! Looks that tenants ask for: before a request is refused for what the driver was last found to hold, the agent looks anew.
//! [`divvy_ledger::fresh`] has the words.
//!
//! The doorbells' threads hear who asks, and may not wait: a driver takes its time. So they note the device, and a thread of its
//! own looks, at each device once in [`divvy_ledger::fresh::BETWEEN_LOOKS`] at most, however many ask and however often. One look answers all who
//! asked before it.

use std::sync::{Arc, Weak};

use crate::decide::overhead::Why;
use crate::lookout::audit::MemoryAudit;
use crate::lookout::wanted::Wanted;
use crate::state::Shared;

/// Starts the thread that looks.
///
/// # Errors
/// The system's reason.
pub(crate) fn start(wanted: &Arc<Wanted>, audit: &Arc<MemoryAudit>, state: &Shared) -> std::io::Result<()> {
    let (wanted, audit, state) = (wanted.clone(), Arc::downgrade(audit), state.clone());
    let thread = std::thread::Builder::new().name("looks".into());
    thread.spawn(move || serve(&wanted, &audit, &state)).map(drop)
}

fn serve(wanted: &Wanted, audit: &Weak<MemoryAudit>, state: &Shared) {
    while let Some(uuid) = wanted.next()
        && let Some(audit) = audit.upgrade()
    {
        let mut state = state.lock();
        if let Ok(device) = state.device(&uuid) {
            audit.audit_device(&mut state, &device, Why::Asked);
        }
    }
}
