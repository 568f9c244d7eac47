//! Turning an NVML table into a drop-in library's exports.

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
        static AT_LOAD: extern "C" fn() = $crate::silence_panics;
    };
}

/// The callback of [`export_nvml_table!`].
#[doc(hidden)]
#[macro_export]
macro_rules! export_nvml_functions {
    ([$table:path] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        $($crate::export_function! { guarded $table, $name ($($parameter: $of),*) -> $result })*
    };
}

#[cfg(test)]
mod tests {
    use crate::guard;
    use crate::nvml::{NVML_ERROR_UNKNOWN, nvmlReturn_t};

    #[test]
    fn a_panic_ends_as_a_code() {
        let answer: nvmlReturn_t = guard(|| std::panic::resume_unwind(Box::new(())));
        assert_eq!(answer, NVML_ERROR_UNKNOWN);
    }
}
