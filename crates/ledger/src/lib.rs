//! Shared pages of a slice: the grant, which the slice may not change, and the ledger of its use.
//!
//! - [`Grant`] and [`GrantView`]: what a slice may use. Written by the agent, mapped read-only by its tenants.
//! - [`Ledger`]: what a slice uses, as the agent, the page server and a reaper see it.
//! - [`Slot`]: one process's slot in a ledger: reserve, release, and a lifetime that the kernel confirms.
//! - [`attach`]: how the pages reach a process, and how a restarted agent gets them back.
//! - [`accounting`]: the algorithm, over any atomics. docs/adr/0003 argues why it is exact after any crash.
//!
//! Everything here runs inside other programs. It starts no threads, prints nothing, does not allocate during a
//! reservation and keeps no descriptor after attach. All loops are bounded, whatever the pages contain.

pub mod accounting;
mod activity;
pub mod attach;
mod bypass;
mod copies;
mod effort;
mod error;
pub mod fork;
pub mod fresh;
mod grant;
mod layout;
mod lease;
mod ledger;
mod liveness;
mod mapping;
mod memfd;
mod peer_pidfd;
pub mod private;
mod reap_pass;
mod residual;

pub mod shared;
mod slot;
mod snapshot;
mod tally;
mod terms;
mod text;
mod thrash;
mod waiting;

pub use activity::Activity;
pub use bypass::Bypass;
pub use copies::CopyPath;
pub use effort::Effort;
pub use error::{PageError, ReserveError};
pub use grant::{Grant, GrantSpec, GrantView, POCL_UUID};
pub use layout::{ActivityLine, GRANT_BYTES, LEDGER_BYTES, PAGE_ABI_VERSION, SHARED_WORDS, monotonic_ns};
pub use lease::{Gate, GateWord, Lease};
pub use ledger::{
    Backing, DEVICE_PAGE, Ledger, Process, Reaped, is_process_id, make_file, new_device_ledger, open_file,
};
pub use liveness::check_system;
pub use memfd::{check_page, new_page, reopen_page};
pub use peer_pidfd::peer_pidfd;
pub use slot::{Slot, SlotOwner};
pub use snapshot::Snapshot;
pub use tally::Refusals;
pub use terms::{Cap, Class, ComputeTerms, MAX_ACCOUNTS, MAX_ON_OOM_WAIT, Policy, Terms, WHOLE_COMPUTE};
pub use text::{GrantText, TEXT_BYTES};
pub use thrash::Thrash;
