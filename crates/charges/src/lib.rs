//! How much an allocation of device memory costs, which account is charged, and for how long.
//!
//! The crate makes no CUDA call and has no state of its own. [`Charges`] holds all charges of one process, over an
//! [`Environment`] that asks the driver and the ledger. The limiter has one over the real ones; a test makes its own.
//!
//! One allocation goes through these states:
//!
//! ```text
//! reserve ──► Reserved ──► Live ─────────────────► free
//!               │ refused    │ free in a stream      ▲
//!               ▼            ▼                       │
//!             free         FreeingInStream ──────────┤ the stream gets there
//!                            │                       │
//!             export ──► Exported ─ freed ► Residual ┘ the last importer leaves
//! ```
//!
//! - [`environment`]: the traits by which a charge asks the accounts and the driver.
//! - `pointers`, `pages`, `page_numbers`, `detached`: tables; `owner`, `units`, `table`, `lock`: their building blocks.
//! - `granularity`, `small`, `growth`, [`arrays`], [`images`]: how many bytes of the device an object takes.
//! - `extents`, `pools`, `spilled`, `charged`: Live. `deferred`: FreeingInStream. `shared`, `key`, `imports`,
//!   `release`: Exported and Residual. `physical`, `objects`, `contexts`, `graphs`: memory that is known by a handle.
//! - `reserve`: Reserved, and the search for free memory before a refusal.
//! - `charges`: all of that. `allocate`, `free`, `share`, `context`, `object`: the functions that hooks call.
#![forbid(unsafe_code)]

mod allocate;
pub mod arrays;
mod charged;
mod charges;
mod context;
mod contexts;
mod deferred;
mod detached;
pub mod environment;
mod extents;
mod free;
mod granularity;
mod graphs;
mod growth;
pub mod images;
mod imports;
mod key;
mod lock;
mod object;
mod objects;
mod owner;
mod page_numbers;
mod pages;
mod physical;
mod pointers;
mod pools;
mod release;
mod reserve;
mod share;
mod shared;
mod small;
mod spilled;
mod table;
mod units;

pub use charges::Charges;
pub use contexts::HeapSize;
pub use environment::Environment;
pub use graphs::{Need, Needs};
pub use key::Key;
pub use lock::locked;
pub use object::Kind;
pub use physical::Identity;
pub use units::{UNIT, rounded};
