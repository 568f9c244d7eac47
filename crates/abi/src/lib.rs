//! The CUDA driver ABI and NVML's: types, and one declaration table of every entry point of each.
//!
//! Everything about the driver's C interface is typed once, in `generated/`, written by `cargo xtask generate-abi` from
//! NVIDIA's headers. From that one table come:
//!
//! * [`Table`]: one typed function pointer for each exported symbol, older versions and per-thread-stream variants
//!   included; [`Table::UNSUPPORTED`] answers each with `CUDA_ERROR_NOT_SUPPORTED`;
//! * [`export_table!`]: turns a table into the exports of a drop-in library, each catching panics;
//! * [`Symbol`]: the symbols' numbers and names;
//! * [`lookup()`]: what `cuGetProcAddress` answers for a public name, a CUDA version and flags;
//! * [`Call`]: a call as text, for logs; [`CUresult::name`] and [`CUresult::description`];
//! * [`driver_roles!`]: what the arguments of each entry point are for, from `roles.txt`, and [`Plain`] structures;
//! * [`driver_functions!`]: the table itself, for anything else that must hold for every entry point.
//!
//! [`nvml`] is the same for libnvidia-ml.so.1, and [`runtime`] for libcudart.so.12 and libcudart.so.13.
//!
//! Constants keep their C names and live at the crate's root ([`CUDA_SUCCESS`]); an enumeration is a transparent
//! number, so a value that a newer header added passes through unharmed.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

pub use core::ffi::{c_char, c_void};

mod call;
mod export;
mod generated;
mod lookup;
mod macros;
pub mod nvml;
mod plain;
mod probe;
mod result;
pub mod runtime;
mod symbol;
mod table;

pub use call::{Call, Parameter, parameters};
#[doc(hidden)]
pub use export::{Exports, register_exports, silence_panics};
pub use export::{exported, guard};
pub use generated::roles::{BY_HAND, ROLES_DIGEST};
pub use generated::{aliases::*, constants::*, enumerations::*, records::*};
pub use lookup::{Query, lookup, query};
pub use plain::Plain;
pub use probe::{Probe, probe};
pub use symbol::Symbol;
pub use table::{Answer, Table, on_unsupported};
