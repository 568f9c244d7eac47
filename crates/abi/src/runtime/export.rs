//! Turning a runtime's table into a drop-in library's exports, each with the version that NVIDIA's library gives it.

/// Exports every symbol of a runtime's `Table` constant from the cdylib that invokes it:
/// `export_runtime_table!(runtime13_functions, divvy_cudart::TABLE_13, "libcudart.so.13", through [divvy_trace::through]);`.
///
/// The exports carry the symbol version that programs linked with NVIDIA's library ask for: without one the loader
/// prints a warning. A version is given in assembly, and its name is declared by a version script of the crate's build
/// script. A panic behind an export becomes `cudaErrorUnknown` and prints nothing: the macro behind `through` sees to
/// that, which writes what each export does (as for [`export_table!`](crate::export_table)).
#[macro_export]
macro_rules! export_runtime_table {
    ($functions:ident, $table:path, $version:literal, through $macro:tt) => {
        $crate::$functions! { [$crate::export_runtime_functions] $table, $version, $macro }

        #[used]
        #[unsafe(link_section = ".init_array")]
        static AT_LOAD: extern "C" fn() = $crate::silence_panics;
    };
}

/// The callback of [`export_runtime_table!`].
#[doc(hidden)]
#[macro_export]
macro_rules! export_runtime_functions {
    ([$table:path, $version:literal, $macro:tt] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        $($crate::export_runtime_function! { $macro $table, $version, $name ($($parameter: $of),*) -> $result })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! export_runtime_function {
    ([$($macro:tt)+] $table:path, $version:literal, $name:ident ($($parameter:ident: $of:ty),*) -> $result:ty) => {
        #[allow(non_snake_case)]
        mod $name {
            unsafe extern "C" fn guarded($($parameter: $of),*) -> $result {
                const FUNCTION: unsafe extern "C-unwind" fn($($of),*) -> $result = $table.$name;
                $($macro)+! { $name ($($parameter: $of),*) -> $result = FUNCTION }
            }

            // The jump leaves every argument where it is. `@@@` renames the label: the export has no other name.
            #[cfg(target_arch = "x86_64")]
            core::arch::global_asm!(
                ".text",
                concat!(".globl divvy_", stringify!($name)),
                concat!(".type divvy_", stringify!($name), ", @function"),
                concat!("divvy_", stringify!($name), ":"),
                "jmp {target}",
                concat!(".size divvy_", stringify!($name), ", . - divvy_", stringify!($name)),
                concat!(".symver divvy_", stringify!($name), ", ", stringify!($name), "@@@", $version),
                target = sym guarded,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::global_asm!(
                ".text",
                concat!(".globl divvy_", stringify!($name)),
                concat!(".type divvy_", stringify!($name), ", %function"),
                concat!("divvy_", stringify!($name), ":"),
                "b {target}",
                concat!(".size divvy_", stringify!($name), ", . - divvy_", stringify!($name)),
                concat!(".symver divvy_", stringify!($name), ", ", stringify!($name), "@@@", $version),
                target = sym guarded,
            );
            // An assembly that nothing refers to stays out of the library.
            #[used]
            static KEPT: unsafe extern "C" fn($($of),*) -> $result = guarded;
        }
    };
}
