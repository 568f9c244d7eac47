//! What this machine has: its devices, and the driver below each.
#![forbid(unsafe_code)]
