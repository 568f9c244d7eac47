//! NVML's ABI: types, and one declaration table of every entry point of libnvidia-ml.so.1.
//!
//! It is built as the CUDA driver's ABI is. From what is typed once in `generated/` come:
//!
//! * [`Table`]: one typed function pointer for each exported symbol, older versions included; [`Table::UNSUPPORTED`]
//!   answers each with `NVML_ERROR_NOT_SUPPORTED`;
//! * [`export_nvml_table!`](crate::export_nvml_table): turns a table into the exports of a drop-in library;
//! * [`Symbol`]: the symbols' numbers and names;
//! * [`nvml_functions!`](crate::nvml_functions): the table itself, for anything else that must hold for every entry
//!   point;
//! * [`nvmlReturn_t::description`]: what nvmlErrorString says.

pub use core::ffi::{c_char, c_void};

pub mod client;
mod dynamic;
mod export;
mod generated;
mod result;
mod symbol;
mod table;

pub use dynamic::{AsCode, Parameter, Word, word};
pub use generated::{aliases::*, constants::*, enumerations::*, records::*};
pub use symbol::Symbol;
pub use table::{Table, on_unsupported};
