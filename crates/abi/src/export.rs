//! Turning a table into a drop-in library's exports.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Answer, Symbol};

/// Runs `body`; a panic inside ends here as the code of an unknown error.
#[inline]
pub fn guard<A: Answer>(body: impl FnOnce() -> A) -> A {
    // The state that a panic left half changed belongs to the library behind the table. Its locks report that
    // (poisoning).
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(A::UNKNOWN)
}

/// Keeps panics from printing into the program. A drop-in carries its own copy of Rust's runtime, so that touches no
/// other Rust code in the process.
#[doc(hidden)]
pub extern "C" fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// Addresses of a drop-in's exports, in the order of the symbols' numbers.
#[doc(hidden)]
pub struct Exports(pub [*const c_void; Symbol::COUNT]);

// SAFETY: addresses of code: nothing writes through them.
unsafe impl Sync for Exports {}

static REGISTERED: AtomicPtr<Exports> = AtomicPtr::new(core::ptr::null_mut());

/// Prepares a drop-in when it is loaded: remembers its exports, and keeps panics from printing into the program.
#[doc(hidden)]
pub fn register_exports(exports: &'static Exports) {
    REGISTERED.store(core::ptr::from_ref(exports).cast_mut(), Ordering::Release);
    silence_panics();
}

/// Address of the export for a symbol, where this code runs in a drop-in; `None` in a program that merely links it.
///
/// It is the address that cuGetProcAddress has to hand out. The export catches panics, and has the very address that
/// dlsym gives, by which others can tell which variant it is.
pub fn exported(symbol: Symbol) -> Option<*const c_void> {
    let exports = REGISTERED.load(Ordering::Acquire);
    if exports.is_null() {
        return None;
    }
    // SAFETY: only `register_exports` stores here, and what it stores lives for ever.
    Some(unsafe { &*exports }.0[symbol.index()])
}

/// Exports every symbol of a [`Table`](crate::Table) constant from the cdylib that invokes it:
/// `export_table!(divvy_emulator::TABLE);`.
///
/// Each export is an `extern "C"` function of the symbol's own type. A panic behind it becomes `CUDA_ERROR_UNKNOWN`
/// and prints nothing. The crate needs `unsafe` allowed and nothing else.
///
/// `export_table!(TABLE, through [a_crate::through]);` has a macro write what each export does:
/// `through! { cuInit (Flags: u32) -> CUresult = FUNCTION }`, of which the last is the table's function.
#[macro_export]
macro_rules! export_table {
    ($table:path) => {
        $crate::driver_functions! { [$crate::export_functions] $table, guarded }
        $crate::driver_functions! { [$crate::register_exports_at_load] }
    };
    ($table:path, through $macro:tt) => {
        $crate::driver_functions! { [$crate::export_functions] $table, $macro }
        $crate::driver_functions! { [$crate::register_exports_at_load] }
    };
}

/// Like [`export_table!`] for a table whose own functions catch their panics ([`guard`]) where they can panic at all:
/// an export is then nothing but a jump.
#[macro_export]
macro_rules! export_table_unguarded {
    ($table:path) => {
        $crate::driver_functions! { [$crate::export_functions] $table, unguarded }
        $crate::driver_functions! { [$crate::register_exports_at_load] }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! register_exports_at_load {
    ([] $($name:ident ($public:literal, $since:literal, $stream:ident) ($($parameter:ident: $of:ty),*);)*) => {
        static EXPORTS: $crate::Exports = $crate::Exports([$($name as *const $crate::c_void),*]);

        extern "C" fn at_load() {
            $crate::register_exports(&EXPORTS);
        }

        #[used]
        #[unsafe(link_section = ".init_array")]
        static AT_LOAD: extern "C" fn() = at_load;
    };
}

/// The callback of [`export_table!`] and [`export_table_unguarded!`].
#[doc(hidden)]
#[macro_export]
macro_rules! export_functions {
    (
        [$table:path, $guarded:tt]
        $($name:ident ($public:literal, $since:literal, $stream:ident) ($($parameter:ident: $of:ty),*);)*
    ) => {
        $($crate::export_function! { $guarded $table, $name ($($parameter: $of),*) -> $crate::CUresult })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! export_function {
    (guarded $table:path, $name:ident ($($parameter:ident: $of:ty),*) -> $result:ty) => {
        /// The library's function of this name.
        ///
        /// # Safety
        /// As NVIDIA's reference says of this function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($parameter: $of),*) -> $result {
            const FUNCTION: unsafe extern "C-unwind" fn($($of),*) -> $result = $table.$name;
            $crate::guard(|| {
                // SAFETY: the arguments are handed on as they came; the caller vouches for them.
                unsafe { FUNCTION($($parameter),*) }
            })
        }
    };
    ([$($macro:tt)+] $table:path, $name:ident ($($parameter:ident: $of:ty),*) -> $result:ty) => {
        /// The library's function of this name.
        ///
        /// # Safety
        /// As NVIDIA's reference says of this function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($parameter: $of),*) -> $result {
            const FUNCTION: unsafe extern "C-unwind" fn($($of),*) -> $result = $table.$name;
            $($macro)+! { $name ($($parameter: $of),*) -> $result = FUNCTION }
        }
    };
    (unguarded $table:path, $name:ident ($($parameter:ident: $of:ty),*) -> $result:ty) => {
        /// The library's function of this name.
        ///
        /// # Safety
        /// As NVIDIA's reference says of this function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> $result {
            const FUNCTION: unsafe extern "C-unwind" fn($($of),*) -> $result = $table.$name;
            // SAFETY: the arguments are handed on as they came; the caller vouches for them.
            unsafe { FUNCTION($($parameter),*) }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CUDA_ERROR_UNKNOWN, CUresult};

    #[test]
    fn a_panic_becomes_an_unknown_error() {
        let answer: CUresult = guard(|| panic!("expected by this test"));
        assert_eq!(answer, CUDA_ERROR_UNKNOWN);
        assert_eq!(guard(|| CUresult(2)), CUresult(2));
    }
}
