//! The NVML below: one pointer for each symbol, found at its first call.
//!
//! As with the CUDA driver's, each pointer leads at first to a stub. The stub opens the library if that has not been
//! done, and leaves the symbol's address for the next call.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

use divvy_abi::nvml::*;

use crate::below::library::{Driver, Loader};
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

macro_rules! slots {
    ([] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        /// The target address of each symbol.
        #[repr(C)]
        #[allow(non_snake_case)]
        struct Slots {
            $($name: AtomicPtr<c_void>,)*
        }

        static SLOTS: Slots = Slots {
            $($name: AtomicPtr::new(first_call::$name as *const c_void as *mut c_void),)*
        };

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

        #[allow(non_snake_case)]
        mod first_call {
            use super::*;
            $(
                #[cold]
                pub unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> $result {
                    let address = resolve(Symbol::$name);
                    // SAFETY: the address belongs to an NVML's function of this name, whose type is the table's.
                    let function = unsafe {
                        core::mem::transmute::<*const c_void, unsafe extern "C-unwind" fn($($of),*) -> $result>(
                            address,
                        )
                    };
                    // SAFETY: the arguments are handed on as they came.
                    unsafe { function($($parameter),*) }
                }
            )*
        }

        /// Calls into the NVML below.
        #[allow(non_snake_case)]
        pub(crate) mod forward {
            use super::*;
            $(
                #[inline]
                pub unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> $result {
                    let address = SLOTS.$name.load(Ordering::Relaxed).cast_const();
                    // SAFETY: a slot holds its first-call stub, or the function of this name from the library below or
                    // a stand-in. All have this type.
                    let function = unsafe {
                        core::mem::transmute::<*const c_void, unsafe extern "C-unwind" fn($($of),*) -> $result>(
                            address,
                        )
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

divvy_abi::nvml_functions! { [slots] }

const _: () = assert!(size_of::<Slots>() == size_of::<Table>());

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

impl Slots {
    fn of(&self, symbol: Symbol) -> &AtomicPtr<c_void> {
        let first = core::ptr::from_ref(self).cast::<AtomicPtr<c_void>>();
        // SAFETY: the slots are one pointer for each symbol, in the order of the symbols' numbers.
        unsafe { &*first.add(symbol.index()) }
    }
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
