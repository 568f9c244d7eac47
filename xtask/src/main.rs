//! The developer's front door: `cargo xtask <task>`, one file per task.
#![forbid(unsafe_code)]

fn main() {}
