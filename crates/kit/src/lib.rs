//! The kit: shows which of Divvy's promises hold on a machine with a GPU, with figures, in as little time as such a machine
//! is at hand. `cargo xtask gpu-kit` packs it with all that it needs; `divvy selftest` is its short form.
//!
//! It changes no setting of a card. Each part ([`PARTS`]) is a process of its own with a time limit, and writes down each
//! [`Finding`] as it comes ([`Folder`]). What was written when the kit was cut off is kept, and the next run goes on there.

mod card;
mod cli;
mod conversation;
mod ended;
mod finding;
mod folder;
mod full;
pub mod gpu;
mod kit;
mod machine;
mod output;
mod part;
mod parts;
mod place;
mod processes;
mod processors;
mod report;
mod run;
mod scrub;
mod signals;
mod tenant;

pub use cli::{Inner, Words, called_by, main, main_inner};
pub use finding::{Failure, Figure, Finding, Unit, Verdict};
pub use folder::{Ending, Folder, Outcome};
pub use kit::Kit;
pub use machine::Machine;
pub use part::{PARTS, Part};
pub use place::{clear_old, private_folder};
pub use report::{PartReport, Report};
pub use run::{Options, run, try_device};
pub use scrub::Scrub;
pub use signals::Signals;
