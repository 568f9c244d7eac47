//! The two shapes of the C interface: a call of the driver, and a function of the runtime.

/// Calls the driver: `cu!(cuMemAlloc_v2(&mut address, size))`. What the driver refuses is returned from the function around it.
///
/// The call is unsafe, and so is where it stands: an `entry!`, or a function that says what it asks of its caller.
macro_rules! cu {
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::error::check(($crate::driver::table()?.$name)($($argument),*))?
    };
}

/// Functions of the runtime API. A body gives a `Result`; an `Err` becomes the function's answer and the thread's last
/// error.
///
/// * `cudaFree(devPtr: *mut c_void) { … }`: one symbol.
/// * `cudaFreeAsync | cudaFreeAsync_ptsz by stream (…, stream: cudaStream_t) { … }`: two symbols. In the second a null
///   stream is the thread's own.
/// * `cudaMemcpy | cudaMemcpy_ptds on stream (…) { … }`: two symbols without a stream among the arguments. `stream` is the
///   null stream in the first, the thread's own in the second.
macro_rules! entry {
    () => {};
    ($name:ident | $other:ident by $stream:ident ($($argument:ident: $of:ty),* $(,)?) $body:block $($rest:tt)*) => {
        define! { $name ($($argument: $of),*) { $body } }
        define! { $other ($($argument: $of),*) { let $stream = $crate::context::own($stream); $body } }
        entry! { $($rest)* }
    };
    ($name:ident | $other:ident on $stream:ident ($($argument:ident: $of:ty),* $(,)?) $body:block $($rest:tt)*) => {
        define! { $name ($($argument: $of),*) { let $stream: cudaStream_t = core::ptr::null_mut(); $body } }
        define! { $other ($($argument: $of),*) {
            let $stream: cudaStream_t = $crate::context::own(core::ptr::null_mut());
            $body
        } }
        entry! { $($rest)* }
    };
    ($name:ident ($($argument:ident: $of:ty),* $(,)?) $body:block $($rest:tt)*) => {
        define! { $name ($($argument: $of),*) { $body } }
        entry! { $($rest)* }
    };
}

/// One function of `entry!`.
macro_rules! define {
    ($name:ident ($($argument:ident: $of:ty),*) { $($body:tt)* }) => {
        pub unsafe extern "C-unwind" fn $name($($argument: $of),*) -> cudaError_t {
            #[allow(unused_imports)]
            use core::result::Result::{Err, Ok};
            // SAFETY: the caller keeps to NVIDIA's reference of this function. Pointers are read and written as it says, or
            // handed on to the driver, whose reference asks the same.
            $crate::error::answer(unsafe { (|| -> $crate::error::Result<()> { $($body)* })() })
        }
    };
}
