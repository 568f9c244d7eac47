//! The driver below: one pointer for each symbol, found at its first call.
//!
//! A forwarded call is one load and one jump. At first each pointer leads to a stub. The stub opens the driver if that
//! has not been done, looks its symbol up, leaves the address for the next call, and continues there.

mod absent;
pub(crate) mod ask;
pub(crate) mod find;
pub(crate) mod library;

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use divvy_abi::{Symbol, Table};

macro_rules! slots {
    ([] $($name:ident ($public:literal, $since:literal, $stream:ident) ($($parameter:ident: $of:ty),*);)*) => {
        /// The target address of each symbol.
        #[repr(C)]
        #[allow(non_snake_case)]
        struct Slots {
            $($name: AtomicPtr<c_void>,)*
        }

        static SLOTS: Slots = Slots {
            $($name: AtomicPtr::new(first_call::$name as *const c_void as *mut c_void),)*
        };

        #[allow(non_snake_case)]
        mod first_call {
            $(
                #[cold]
                pub unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> divvy_abi::CUresult {
                    let address = super::resolve(divvy_abi::Symbol::$name);
                    // SAFETY: the address belongs to a driver's function of this name, whose type is the table's.
                    let function = unsafe {
                        core::mem::transmute::<
                            *const core::ffi::c_void,
                            unsafe extern "C-unwind" fn($($of),*) -> divvy_abi::CUresult,
                        >(address)
                    };
                    // SAFETY: the arguments are handed on as they came.
                    unsafe { function($($parameter),*) }
                }
            )*
        }

        /// Calls into the driver below.
        #[allow(non_snake_case)]
        pub(crate) mod forward {
            $(
                #[inline]
                pub unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> divvy_abi::CUresult {
                    let address = super::SLOTS.$name.load(core::sync::atomic::Ordering::Relaxed).cast_const();
                    // SAFETY: a slot holds its first-call stub, or the function of this name from the driver below or a
                    // stand-in. All have this type.
                    let function = unsafe {
                        core::mem::transmute::<
                            *const core::ffi::c_void,
                            unsafe extern "C-unwind" fn($($of),*) -> divvy_abi::CUresult,
                        >(address)
                    };
                    // SAFETY: the arguments are handed on as they came.
                    unsafe { function($($parameter),*) }
                }
            )*
        }

        /// Every symbol passed through.
        pub(crate) const FORWARD: Table = Table { $($name: forward::$name,)* };
    };
}

divvy_abi::driver_functions! { [slots] }

const _: () = assert!(size_of::<Slots>() == size_of::<Table>());

impl Slots {
    fn of(&self, symbol: Symbol) -> &AtomicPtr<c_void> {
        let first = core::ptr::from_ref(self).cast::<AtomicPtr<c_void>>();
        // SAFETY: the slots are one pointer for each symbol, in the order of the symbols' numbers.
        unsafe { &*first.add(symbol.index()) }
    }
}

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
