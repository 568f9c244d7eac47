//! The table of NVML's function pointers: one typed field for each exported symbol.
//!
//! As with the CUDA driver's table the calling convention is `C-unwind`, so that a panic of an implementation travels
//! as far as the export's guard and ends there.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use super::{NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_UNKNOWN, Symbol, nvmlReturn_t};

/// The result of a function of NVML: a code, or a text for nvmlErrorString alone.
pub trait Answer {
    /// The result of a function that is not implemented.
    const NOT_SUPPORTED: Self;
    /// The result of a function whose implementation panicked.
    const UNKNOWN: Self;
}

impl Answer for nvmlReturn_t {
    const NOT_SUPPORTED: Self = NVML_ERROR_NOT_SUPPORTED;
    const UNKNOWN: Self = NVML_ERROR_UNKNOWN;
}

impl Answer for *const c_char {
    const NOT_SUPPORTED: Self = c"Not Supported".as_ptr();
    const UNKNOWN: Self = c"Unknown Error".as_ptr();
}

macro_rules! table {
    ([] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        /// An NVML: a function for every symbol of libnvidia-ml.so.1, in the order of [`Symbol::ALL`].
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct Table {
            $(pub $name: unsafe extern "C-unwind" fn($($parameter: $of),*) -> $result,)*
        }

        mod unsupported {
            use super::*;
            $(
                pub unsafe extern "C-unwind" fn $name($(_: $of),*) -> $result {
                    report(Symbol::$name);
                    <$result as Answer>::NOT_SUPPORTED
                }
            )*
        }

        impl Table {
            /// Answers every call with `NVML_ERROR_NOT_SUPPORTED`, after telling [`on_unsupported`]'s listener.
            pub const UNSUPPORTED: Table = Table { $($name: unsupported::$name,)* };
        }
    };
}

crate::nvml_functions! { [table] }

// One pointer for each symbol and nothing else: a table can be read as an array by symbol number.
const _: () = assert!(size_of::<Table>() == Symbol::COUNT * size_of::<*const ()>());

impl Table {
    /// Address of a symbol's function.
    pub fn address(&self, symbol: Symbol) -> *const c_void {
        let base = core::ptr::from_ref(self).cast::<*const c_void>();
        // SAFETY: the table is COUNT pointers in the order of the symbols' numbers (asserted above; both come from one
        // macro), and a function pointer may be read as a data pointer on every platform NVML runs on.
        unsafe { base.add(symbol.index()).read() }
    }

    /// Whether this table has a function of its own for a symbol.
    pub fn implements(&self, symbol: Symbol) -> bool {
        !core::ptr::eq(self.address(symbol), Self::UNSUPPORTED.address(symbol))
    }
}

static LISTENER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Has `listener` told of every call that [`Table::UNSUPPORTED`] answers, so that a library can log the name.
pub fn on_unsupported(listener: fn(Symbol)) {
    LISTENER.store(listener as *mut (), Ordering::Release);
}

#[cold]
fn report(symbol: Symbol) {
    let listener = LISTENER.load(Ordering::Acquire);
    if !listener.is_null() {
        // SAFETY: only `on_unsupported` stores here, and what it stores is a `fn(Symbol)`.
        let listener: fn(Symbol) = unsafe { core::mem::transmute(listener) };
        listener(symbol);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    static LAST: AtomicUsize = AtomicUsize::new(usize::MAX);

    #[test]
    fn unsupported_functions_say_so_and_tell_the_listener() {
        on_unsupported(|symbol| LAST.store(symbol.index(), Ordering::Relaxed));
        // SAFETY: an unsupported function touches none of its arguments.
        let result = unsafe { (Table::UNSUPPORTED.nvmlDeviceGetCount_v2)(core::ptr::null_mut()) };
        assert_eq!(result, NVML_ERROR_NOT_SUPPORTED);
        assert_eq!(
            LAST.load(Ordering::Relaxed),
            Symbol::nvmlDeviceGetCount_v2.index()
        );
    }

    #[test]
    fn a_table_knows_what_it_implements() {
        unsafe extern "C-unwind" fn init() -> nvmlReturn_t {
            nvmlReturn_t(0)
        }
        let table = Table {
            nvmlInit_v2: init,
            ..Table::UNSUPPORTED
        };
        assert!(table.implements(Symbol::nvmlInit_v2));
        assert!(!table.implements(Symbol::nvmlInit));
        assert_eq!(table.address(Symbol::nvmlInit_v2), init as *const c_void);
    }
}
