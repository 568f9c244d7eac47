//! The kit: shows which of Divvy's promises hold on a machine with a GPU, with figures, in as little time as such a machine
//! is at hand. `cargo xtask gpu-kit` packs it with all that it needs; `divvy selftest` is its short form.
//!
//! It changes no setting of a card. Each part ([`PARTS`]) is a process of its own with a time limit, and writes down each
//! [`Finding`] as it comes ([`Folder`]). What was written when the kit was cut off is kept, and the next run goes on there.

mod cli;
mod conversation;
mod finding;
mod folder;
pub mod gpu;
mod kit;
mod machine;
mod part;
mod parts;
mod report;
mod run;
mod scrub;
mod tenant;

use std::sync::OnceLock;

pub use cli::{Inner, Words, called_by, main, main_inner};
pub use finding::{Figure, Finding, Unit, Verdict};
pub use folder::{Ending, Folder, Outcome};
pub use kit::Kit;
pub use machine::Machine;
pub use part::{Failure, PARTS, Part};
pub use report::{PartReport, Report};
pub use run::{Options, run};
pub use scrub::Scrub;

/// Words that come first when this program calls itself, as it is one verb of another.
pub(crate) static OWN_WORDS: OnceLock<Vec<String>> = OnceLock::new();
