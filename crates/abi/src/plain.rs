//! Types whose bytes mean the same in every process.

/// A type that any bytes are a value of, and that holds no address and no handle.
///
/// `cargo xtask generate-abi` says it of the structures that calls pass, after a look at each of their members. A member
/// that is a pointer all the same is one that the role of the argument clears.
///
/// # Safety
/// Every pattern of bytes of its size is a value of the type.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! numbers {
    ($($of:ty)*) => {
        // SAFETY: every pattern of bytes is a number.
        $(unsafe impl Plain for $of {})*
    };
}

numbers! { u8 u16 u32 u64 usize i8 i16 i32 i64 f32 f64 }
