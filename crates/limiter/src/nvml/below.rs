//! The NVML below: one pointer for each symbol, found at its first call.
//!
//! As with the CUDA driver's, each pointer leads at first to a stub. The stub opens the library if that has not been
//! done, and leaves the symbol's address for the next call.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use divvy_abi::nvml::*;

use crate::below::library::{Driver, Loader};
use crate::below::slots::slots;
use crate::environment;

static NVML: Loader = Loader::new(
    "libnvidia-ml.so.1",
    "DIVVY_NVML",
    environment::nvml,
    c"nvmlInit_v2",
);

/// A function's result without a library below: the same as on a machine without NVIDIA's.
trait Absent {
    const ABSENT: Self;
}

impl Absent for nvmlReturn_t {
    const ABSENT: Self = NVML_ERROR_UNINITIALIZED;
}

impl Absent for *const c_char {
    const ABSENT: Self = c"Unknown Error".as_ptr();
}

macro_rules! rows {
    ([] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        slots! { $($name ($($parameter: $of),*) -> $result;)* }

        const FIRST_CALLS: Table = Table { $($name: first_call::$name,)* };

        const UNINITIALIZED: Table = Table { $($name: absent::$name,)* };

        #[allow(non_snake_case)]
        mod absent {
            use super::*;
            $(
                pub unsafe extern "C-unwind" fn $name($(_: $of),*) -> $result {
                    <$result as Absent>::ABSENT
                }
            )*
        }
    };
}

divvy_abi::nvml_functions! { [rows] }

/// The NVML of a machine that has none.
const ABSENT: Table = Table {
    nvmlInit: not_found,
    nvmlInit_v2: not_found,
    nvmlInitWithFlags: not_found_with_flags,
    nvmlErrorString: error_string,
    ..UNINITIALIZED
};

unsafe extern "C-unwind" fn not_found() -> nvmlReturn_t {
    NVML_ERROR_LIBRARY_NOT_FOUND
}

unsafe extern "C-unwind" fn not_found_with_flags(_flags: u32) -> nvmlReturn_t {
    NVML_ERROR_LIBRARY_NOT_FOUND
}

unsafe extern "C-unwind" fn error_string(result: nvmlReturn_t) -> *const c_char {
    result.description().as_ptr()
}

/// The address to call for a symbol. It is remembered for the next call, unless this very thread is just opening the
/// library.
fn resolve(symbol: Symbol) -> *const c_void {
    let slot = SLOTS.of(symbol);
    let present = slot.load(Ordering::Relaxed).cast_const();
    if !core::ptr::eq(present, FIRST_CALLS.address(symbol)) {
        return present;
    }
    let address = match NVML.driver() {
        // A library older than our table lacks the name: the caller gets "not supported".
        Driver::Open(library) => library
            .symbol(Symbol::C_NAMES[symbol.index()])
            .unwrap_or(Table::UNSUPPORTED.address(symbol)),
        Driver::Absent => ABSENT.address(symbol),
        Driver::Opening => return ABSENT.address(symbol),
    };
    slot.store(address.cast_mut(), Ordering::Relaxed);
    address
}

/// Installs a table of functions below instead of a library; for tests in one process.
#[doc(hidden)]
pub fn stand_on(table: &Table) {
    for symbol in Symbol::ALL {
        SLOTS
            .of(*symbol)
            .store(table.address(*symbol).cast_mut(), Ordering::Relaxed);
    }
}
