//! Looks at a tenant's request. Before a request is refused for the driver's last figure, the agent looks again.
//! [`divvy_ledger::fresh`] has the words.
//!
//! The doorbells' threads take the requests, and may not wait for a slow driver. So they note the device, and a
//! separate thread looks. It looks at each device once in [`divvy_ledger::fresh::BETWEEN_LOOKS`] at most, however many
//! requests come. One look answers all requests before it.

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
