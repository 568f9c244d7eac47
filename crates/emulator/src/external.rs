//! External memory as the program holds it: a handle, in a context.

use crate::context::Context;
use crate::handle;
use crate::memory::external::ExternalMemory;
use std::sync::Arc;

/// Imported memory.
pub struct External {
    /// What the program holds.
    pub handle: u64,
    /// The context it was imported in.
    pub context: Arc<Context>,
    /// The memory itself.
    pub memory: ExternalMemory,
}

impl External {
    /// Imported memory under a handle of its own.
    pub fn new(context: Arc<Context>, memory: ExternalMemory) -> Arc<External> {
        Arc::new(External {
            handle: handle::fresh(),
            context,
            memory,
        })
    }
}
