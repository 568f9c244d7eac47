//! How an NVML entry point is written: a C name, arguments by meaning, and a body that gives a `Result`.

/// Defines entry points: `fn nvmlName(a: Type, …) { … }`. A body may use `?` and ends in a `Result`.
macro_rules! nvml_entry {
    ($(fn $($name:ident)|+($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(nvml_entry! { @each ($($name)+) ($($argument: $type),*) $body })*
    };
    (@each () $arguments:tt $body:block) => {};
    (@each ($name:ident $($more:ident)*) ($($argument:ident: $type:ty),*) $body:block) => {
        #[allow(non_snake_case, missing_docs)]
        pub unsafe extern "C-unwind" fn $name(
            $($argument: <$type as $crate::nvml::args::Argument>::Raw,)*
        ) -> divvy_abi::nvml::nvmlReturn_t {
            $(
                // SAFETY: the argument is what the program passed, and NVML's contract for it is the program's.
                let $argument = unsafe { <$type as $crate::nvml::args::Argument>::from_raw($argument) };
            )*
            $crate::nvml::answer(|| $body)
        }
        nvml_entry! { @each ($($more)*) ($($argument: $type),*) $body }
    };
}
