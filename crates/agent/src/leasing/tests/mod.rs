//! The loop over real pages, with tenants that behave as the gate does, on a device and a clock of the test's own.

mod agents;
mod clock;
mod hostile;
mod shares;
mod threads;
mod uncharged;
mod world;
