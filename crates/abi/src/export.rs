//! Turning a table into a drop-in library's exports.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{CUDA_ERROR_UNKNOWN, CUresult};

/// Runs `body`; a panic inside ends here as `CUDA_ERROR_UNKNOWN`.
#[inline]
pub fn guard(body: impl FnOnce() -> CUresult) -> CUresult {
    // State that a panic left half changed belongs to the driver behind the table, whose locks tell (poisoning).
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(CUDA_ERROR_UNKNOWN)
}

/// Keeps panics of this library from printing into the program that loaded it.
///
/// A drop-in carries its own copy of Rust's runtime, so this touches no other Rust code in the process.
#[doc(hidden)]
pub extern "C" fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// Exports every symbol of a [`Table`](crate::Table) constant from the cdylib that invokes it:
/// `export_table!(divvy_emulator::TABLE);`.
///
/// Each export is an `extern "C"` function of the symbol's own type. A panic behind it becomes `CUDA_ERROR_UNKNOWN`
/// and prints nothing. The crate needs `unsafe` allowed and nothing else.
#[macro_export]
macro_rules! export_table {
    ($table:path) => {
        $crate::driver_functions! { [$crate::export_functions] $table, guarded }
        $crate::silence_panics_at_load!();
    };
}

/// Like [`export_table!`] for a table whose own functions catch their panics ([`guard`]) where they can panic at all:
/// an export is then nothing but a jump.
#[macro_export]
macro_rules! export_table_unguarded {
    ($table:path) => {
        $crate::driver_functions! { [$crate::export_functions] $table, unguarded }
        $crate::silence_panics_at_load!();
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! silence_panics_at_load {
    () => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static SILENCE_PANICS: extern "C" fn() = $crate::silence_panics;
    };
}

/// The callback of [`export_table!`] and [`export_table_unguarded!`].
#[doc(hidden)]
#[macro_export]
macro_rules! export_functions {
    (
        [$table:path, $guarded:ident]
        $($name:ident ($public:literal, $since:literal, $stream:ident) ($($parameter:ident: $of:ty),*);)*
    ) => {
        $($crate::export_function! { $guarded $table, $name ($($parameter: $of),*) })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! export_function {
    (guarded $table:path, $name:ident ($($parameter:ident: $of:ty),*)) => {
        /// The driver's function of this name.
        ///
        /// # Safety
        /// As CUDA's driver API says of this function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($parameter: $of),*) -> $crate::CUresult {
            const FUNCTION: unsafe extern "C-unwind" fn($($of),*) -> $crate::CUresult = $table.$name;
            $crate::guard(|| {
                // SAFETY: the arguments are handed on as they came; the caller vouches for them.
                unsafe { FUNCTION($($parameter),*) }
            })
        }
    };
    (unguarded $table:path, $name:ident ($($parameter:ident: $of:ty),*)) => {
        /// The driver's function of this name.
        ///
        /// # Safety
        /// As CUDA's driver API says of this function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> $crate::CUresult {
            const FUNCTION: unsafe extern "C-unwind" fn($($of),*) -> $crate::CUresult = $table.$name;
            // SAFETY: the arguments are handed on as they came; the caller vouches for them.
            unsafe { FUNCTION($($parameter),*) }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_unknown_error() {
        assert_eq!(guard(|| panic!("expected by this test")), CUDA_ERROR_UNKNOWN);
        assert_eq!(guard(|| CUresult(2)), CUresult(2));
    }
}
