//! What goes wrong between the plugin and its runtime.

use divvy_model::{Code, Fault};

pub(super) fn fault(message: impl Into<String>) -> Fault {
    Fault::new(Code::Nri, message)
}
