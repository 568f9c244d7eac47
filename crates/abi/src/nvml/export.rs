//! Turning an NVML table into a drop-in library's exports.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Answer;

/// Runs `body`; a panic inside ends here as `NVML_ERROR_UNKNOWN`.
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

/// Exports every symbol of an NVML [`Table`](crate::nvml::Table) constant from the cdylib that invokes it:
/// `export_nvml_table!(divvy_device::NVML_TABLE);`.
///
/// Each export is an `extern "C"` function of the symbol's own type. A panic behind it becomes `NVML_ERROR_UNKNOWN` and
/// prints nothing. The crate needs `unsafe` allowed and nothing else.
#[macro_export]
macro_rules! export_nvml_table {
    ($table:path) => {
        $crate::nvml_functions! { [$crate::export_nvml_functions] $table }

        #[used]
        #[unsafe(link_section = ".init_array")]
        static AT_LOAD: extern "C" fn() = $crate::nvml::silence_panics;
    };
}

/// The callback of [`export_nvml_table!`].
#[doc(hidden)]
#[macro_export]
macro_rules! export_nvml_functions {
    ([$table:path] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        $($crate::export_nvml_function! { $table, $name ($($parameter: $of),*) -> $result })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! export_nvml_function {
    ($table:path, $name:ident ($($parameter:ident: $of:ty),*) -> $result:ty) => {
        /// NVML's function of this name.
        ///
        /// # Safety
        /// As NVML's reference says of this function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($parameter: $of),*) -> $result {
            const FUNCTION: unsafe extern "C-unwind" fn($($of),*) -> $result = $table.$name;
            $crate::nvml::guard(|| {
                // SAFETY: the arguments are handed on as they came; the caller vouches for them.
                unsafe { FUNCTION($($parameter),*) }
            })
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::{NVML_ERROR_UNKNOWN, nvmlReturn_t};

    #[test]
    fn a_panic_ends_as_a_code() {
        let answer: nvmlReturn_t = guard(|| std::panic::resume_unwind(Box::new(())));
        assert_eq!(answer, NVML_ERROR_UNKNOWN);
    }
}
