//! The driver below: one pointer for each symbol, found at its first call.
//!
//! A forwarded call is one load and one jump. At first each pointer leads to a stub. The stub opens the driver if that
//! has not been done, looks its symbol up, leaves the address for the next call, and continues there.

mod absent;
pub(crate) mod ask;
pub(crate) mod find;
pub(crate) mod library;
pub(crate) mod slots;

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

use divvy_abi::{Symbol, Table};

macro_rules! rows {
    ([] $($name:ident ($public:literal, $since:literal, $stream:ident) ($($parameter:ident: $of:ty),*);)*) => {
        slots::slots! { $($name ($($parameter: $of),*) -> divvy_abi::CUresult;)* }
    };
}

divvy_abi::driver_functions! { [rows] }

/// Which slots have an address: the library's, or a replacement.
static FOUND: [AtomicBool; Symbol::COUNT] = [const { AtomicBool::new(false) }; Symbol::COUNT];

/// The target of calls to a name that the driver below lacks. It is static, and so is the next table: each use of a
/// constant table would be a copy, which the loader relocates in every process.
static UNSUPPORTED: Table = Table::UNSUPPORTED;
static ABSENT: Table = absent::TABLE;

/// The address to call for a symbol. It is remembered for the next call, unless this very thread is just opening the
/// driver.
pub(crate) fn resolve(symbol: Symbol) -> *const c_void {
    let slot = SLOTS.of(symbol);
    if FOUND[symbol.index()].load(Ordering::Acquire) {
        return slot.load(Ordering::Relaxed).cast_const();
    }
    let address = match library::CUDA.driver() {
        // A driver older than our table lacks the name: the caller gets "not supported".
        library::Driver::Open(library) => library
            .symbol(symbol.c_name())
            .unwrap_or(UNSUPPORTED.address(symbol)),
        library::Driver::Absent => ABSENT.address(symbol),
        library::Driver::Opening => return ABSENT.address(symbol),
    };
    put(symbol, address);
    address
}

fn put(symbol: Symbol, address: *const c_void) {
    SLOTS.of(symbol).store(address.cast_mut(), Ordering::Relaxed);
    FOUND[symbol.index()].store(true, Ordering::Release);
}

/// The file of the driver below, for a report. Opens the driver if that has not been done.
pub fn path() -> Option<std::path::PathBuf> {
    library::CUDA.path()
}

/// An address within the driver below, or 0 until the driver is opened.
pub(crate) fn address_if_open() -> usize {
    library::CUDA.address_if_open()
}

/// Whether the driver below has a function of its own under this name.
pub(crate) fn has(symbol: Symbol) -> bool {
    let address = resolve(symbol);
    !core::ptr::eq(address, UNSUPPORTED.address(symbol)) && !core::ptr::eq(address, ABSENT.address(symbol))
}

/// Installs a table of functions below instead of a library; for tests and benches in one process.
#[doc(hidden)]
pub fn stand_on(table: &Table) {
    for symbol in Symbol::ALL {
        put(*symbol, table.address(*symbol));
    }
}
