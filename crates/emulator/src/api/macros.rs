//! How an entry point is written: a C name, arguments by meaning, and a body that gives a `Result`.

/// Defines entry points, of which a body may use `?` and ends in a `Result`:
///
/// * `fn cuName(a: Type, …) { … }`; `fn cuName | cuName_v2(a: Type, …) { … }` where versions of a function do the same;
/// * `fn cuName | cuName_ptsz(a: Type, … ; stream) { … }`: the stream is C's last parameter, and the body sees it
///   by name, with the default stream of each variant in place of 0;
/// * `fn cuName | cuName_ptsz(stream ; a: Type, …) { … }`: it is C's first parameter;
/// * `fn cuName | cuName_ptds(a: Type, … => stream) { … }`: it is the variant's default stream, not passed by C.
macro_rules! entry {
    () => {};
    (fn $($name:ident)|+($($argument:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        entry! { @each ($($name)+) ($($argument: $type),*) $body }
        entry! { $($rest)* }
    };
    (fn $legacy:ident | $own:ident($($argument:ident: $type:ty),* ; $stream:ident) $body:block $($rest:tt)*) => {
        entry! { @define $legacy () ($($argument: $type),*) ($stream) (
            let $stream = $crate::api::args::stream_name($stream, false);
        ) $body }
        entry! { @define $own () ($($argument: $type),*) ($stream) (
            let $stream = $crate::api::args::stream_name($stream, true);
        ) $body }
        entry! { $($rest)* }
    };
    (fn $legacy:ident | $own:ident($stream:ident ; $($argument:ident: $type:ty),*) $body:block $($rest:tt)*) => {
        entry! { @define $legacy ($stream) ($($argument: $type),*) () (
            let $stream = $crate::api::args::stream_name($stream, false);
        ) $body }
        entry! { @define $own ($stream) ($($argument: $type),*) () (
            let $stream = $crate::api::args::stream_name($stream, true);
        ) $body }
        entry! { $($rest)* }
    };
    (fn $legacy:ident | $own:ident($($argument:ident: $type:ty),* => $stream:ident) $body:block $($rest:tt)*) => {
        entry! { @define $legacy () ($($argument: $type),*) () (
            let $stream = $crate::api::args::default_stream(false);
        ) $body }
        entry! { @define $own () ($($argument: $type),*) () (
            let $stream = $crate::api::args::default_stream(true);
        ) $body }
        entry! { $($rest)* }
    };
    (@each () $arguments:tt $body:block) => {};
    (@each ($name:ident $($more:ident)*) $arguments:tt $body:block) => {
        entry! { @define $name () $arguments () () $body }
        entry! { @each ($($more)*) $arguments $body }
    };
    (@define $name:ident ($($first:ident)?) ($($argument:ident: $type:ty),*) ($($last:ident)?) ($($before:tt)*)
     $body:block) => {
        #[allow(non_snake_case, missing_docs)]
        pub unsafe extern "C-unwind" fn $name(
            $($first: divvy_abi::CUstream,)?
            $($argument: <$type as $crate::api::args::Argument>::Raw,)*
            $($last: divvy_abi::CUstream,)?
        ) -> divvy_abi::CUresult {
            $(
                // SAFETY: the argument is what the program passed, and C's contract for it is the program's.
                let $argument = unsafe { <$type as $crate::api::args::Argument>::from_raw($argument) };
            )*
            $($before)*
            $crate::api::answer(|| $body)
        }
    };
}
