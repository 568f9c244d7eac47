//! The tables of function pointers, the driver's and NVML's: one typed field for each exported symbol.
//!
//! The calling convention is `C-unwind`, which passes arguments exactly like `C`. It lets a panic of an implementation
//! travel as far as the export's guard, where it ends. With plain `C` it would abort the program that loaded us.

use crate::{CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN, CUresult, Symbol};

/// The result of a function of a table: a code, or for nvmlErrorString alone a text.
pub trait Answer {
    /// The result of a function that is not implemented.
    const NOT_SUPPORTED: Self;
    /// The result of a function whose implementation panicked.
    const UNKNOWN: Self;
}

impl Answer for CUresult {
    const NOT_SUPPORTED: Self = CUDA_ERROR_NOT_SUPPORTED;
    const UNKNOWN: Self = CUDA_ERROR_UNKNOWN;
}

/// Defines `Table`, `on_unsupported` and what they need over the rows of one library. `Symbol` names the same rows.
macro_rules! function_table {
    ($($name:ident ($($of:ty),*) -> $result:ty;)*) => {
        /// A library: a function for every symbol that it exports, in the order of [`Symbol::ALL`].
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct Table {
            $(pub $name: unsafe extern "C-unwind" fn($($of),*) -> $result,)*
        }

        mod unsupported {
            use super::*;
            $(
                pub unsafe extern "C-unwind" fn $name($(_: $of),*) -> $result {
                    report(Symbol::$name);
                    <$result as $crate::Answer>::NOT_SUPPORTED
                }
            )*
        }

        // One pointer for each symbol and nothing else: a table can be read as an array by symbol number.
        const _: () = assert!(size_of::<Table>() == Symbol::COUNT * size_of::<*const ()>());

        impl Table {
            /// Answers every call as not supported, after telling [`on_unsupported`]'s listener.
            pub const UNSUPPORTED: Table = Table { $($name: unsupported::$name,)* };

            /// Address of a symbol's function.
            pub fn address(&self, symbol: Symbol) -> *const core::ffi::c_void {
                let base = core::ptr::from_ref(self).cast::<*const core::ffi::c_void>();
                // SAFETY: the table is COUNT pointers in the order of the symbols' numbers (asserted above; both come
                // from one macro), and a function pointer may be read as a data pointer on every platform that these
                // libraries run on.
                unsafe { base.add(symbol.index()).read() }
            }

            /// Whether this table has a function of its own for a symbol.
            pub fn implements(&self, symbol: Symbol) -> bool {
                !core::ptr::eq(self.address(symbol), Self::UNSUPPORTED.address(symbol))
            }
        }

        static LISTENER: core::sync::atomic::AtomicPtr<()> =
            core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());

        /// Has `listener` told of every call that [`Table::UNSUPPORTED`] answers, so that a library can log the name.
        pub fn on_unsupported(listener: fn(Symbol)) {
            LISTENER.store(listener as *mut (), core::sync::atomic::Ordering::Release);
        }

        #[cold]
        fn report(symbol: Symbol) {
            let listener = LISTENER.load(core::sync::atomic::Ordering::Acquire);
            if !listener.is_null() {
                // SAFETY: only `on_unsupported` stores here, and what it stores is a `fn(Symbol)`.
                let listener: fn(Symbol) = unsafe { core::mem::transmute(listener) };
                listener(symbol);
            }
        }
    };
}
pub(crate) use function_table;

macro_rules! table {
    ([] $($name:ident ($public:literal, $since:literal, $stream:ident) ($($parameter:ident: $of:ty),*);)*) => {
        function_table! { $($name ($($of),*) -> CUresult;)* }
    };
}

crate::driver_functions! { [table] }

/// A table of what is implemented, by area: `implemented! { Table { memory: cuMemAlloc_v2 cuMemFree_v2; stream:
/// cuStreamQuery; } }`.
///
/// Each name is a function of the module `memory` or `stream`, and the field of the table that it fills. All other
/// fields are those of `Table::UNSUPPORTED`, or with `Table over BASE { … }` those of `BASE`. For the tables of the driver
/// and of NVML alike.
#[macro_export]
macro_rules! implemented {
    ($table:ident { $($areas:tt)+ }) => {
        $crate::implemented! { $table over $table::UNSUPPORTED { $($areas)+ } }
    };
    ($table:ident over $base:path { $($area:ident: $($name:ident)+;)+ }) => {
        $table { $($($name: $area::$name,)+)+ ..$base }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering};

    static LAST: AtomicUsize = AtomicUsize::new(usize::MAX);

    #[test]
    fn unsupported_functions_say_so_and_tell_the_listener() {
        on_unsupported(|symbol| LAST.store(symbol.index(), Ordering::Relaxed));
        // SAFETY: an unsupported function touches none of its arguments.
        let result = unsafe { (Table::UNSUPPORTED.cuMemAlloc_v2)(core::ptr::null_mut(), 1) };
        assert_eq!(result, CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(LAST.load(Ordering::Relaxed), Symbol::cuMemAlloc_v2.index());
    }

    #[test]
    fn a_table_knows_what_it_implements() {
        unsafe extern "C-unwind" fn init(_: u32) -> CUresult {
            CUresult(0)
        }
        let table = Table {
            cuInit: init,
            ..Table::UNSUPPORTED
        };
        assert!(table.implements(Symbol::cuInit));
        assert!(!table.implements(Symbol::cuMemAlloc_v2));
        assert_eq!(table.address(Symbol::cuInit), init as *const core::ffi::c_void);
    }
}
