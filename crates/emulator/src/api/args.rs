//! How the C arguments of an entry point become values that its body can use without `unsafe`.

use super::stream_name::{LEGACY_STREAM, PER_THREAD_STREAM, StreamName};
use crate::Result;
use divvy_abi::*;
use std::ffi::CStr;
use std::marker::PhantomData;

/// A parameter's type as the body sees it, made from what C passes.
pub trait Argument: Sized {
    /// The type in the driver's header.
    type Raw;
    /// Wraps the C argument.
    ///
    /// # Safety
    /// `raw` is what the program passed for this parameter, and obeys CUDA's contract for it.
    unsafe fn from_raw(raw: Self::Raw) -> Self;
}

/// Types that C passes by value and the body sees as they are.
macro_rules! plain {
    ($($type:ty),* $(,)?) => {$(
        impl Argument for $type {
            type Raw = $type;
            unsafe fn from_raw(raw: $type) -> $type {
                raw
            }
        }
    )*};
}

plain!(
    u8,
    u16,
    u32,
    u64,
    i32,
    usize,
    CUresult,
    CUdevice_attribute,
    CUfunction_attribute,
    CUlimit,
    CUfunc_cache,
    CUsharedconfig,
    CUjitInputType,
    CUpointer_attribute,
    CUmem_advise,
    CUmem_range_attribute,
    CUmemPool_attribute,
    CUmemAllocationType,
    CUdevice_P2PAttribute,
    CUexecAffinityType,
    CUmemLocation,
    CUmemAllocationHandleType,
    CUmemAllocationGranularity_flags,
    CUgraphMem_attribute,
    CUlaunchAttributeID,
    CUstreamCaptureMode,
    CUipcMemHandle,
    CUipcEventHandle,
);

/// Where a call writes a result.
pub struct Out<T>(*mut T);

impl<T> Argument for Out<T> {
    type Raw = *mut T;
    unsafe fn from_raw(raw: *mut T) -> Out<T> {
        Out(raw)
    }
}

impl<T> Out<T> {
    /// Writes the result; a null pointer is the program's mistake.
    pub fn set(&self, value: T) -> Result {
        self.required()?;
        // SAFETY: the program gave a place for a T. C programs align it, but nothing checks.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the result if the program wants it.
    pub fn set_if_wanted(&self, value: T) {
        if !self.is_null() {
            let _ = self.set(value);
        }
    }

    /// Whether the program gave no place.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Refuses a null pointer before anything has happened.
    pub fn required(&self) -> Result {
        if self.is_null() {
            Err(CUDA_ERROR_INVALID_VALUE)
        } else {
            Ok(())
        }
    }

    /// Writes the first results of a list of `room` entries.
    pub fn set_list(&self, values: impl Iterator<Item = T>, room: usize) -> Result {
        self.required()?;
        for (at, value) in values.take(room).enumerate() {
            // SAFETY: the program gave space for this many entries.
            unsafe { self.0.add(at).write_unaligned(value) };
        }
        Ok(())
    }
}

impl<T: Copy> Out<T> {
    /// What the program put there before the call.
    pub fn before(&self) -> Result<T> {
        self.required()?;
        // SAFETY: the program passed an initialised T.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

impl Out<c_char> {
    /// Writes as much of a text as `room` bytes hold, with a NUL.
    pub fn set_text(&self, text: &str, room: i32) -> Result {
        let Some(room) = usize::try_from(room).ok().and_then(|room| room.checked_sub(1)) else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let bytes = text.bytes().take(room).chain([0]);
        self.set_list(bytes.map(|byte| byte as c_char), usize::MAX)
    }
}

impl Out<c_void> {
    /// A place that the program listed among others.
    pub fn at(place: *mut c_void) -> Out<c_void> {
        Out(place)
    }

    /// Writes a value whose type the call's other arguments decide.
    pub fn set_as<V>(&self, value: V) -> Result {
        Out(self.0.cast::<V>()).set(value)
    }

    /// Writes a list of `room` values whose type the call's other arguments decide.
    pub fn set_list_as<V>(&self, values: impl Iterator<Item = V>, room: usize) -> Result {
        Out(self.0.cast::<V>()).set_list(values, room)
    }

    /// Reads a value whose type the call's other arguments decide.
    pub fn before_as<V: Copy>(&self) -> Result<V> {
        Out(self.0.cast::<V>()).before()
    }
}

/// A structure or list the program passes.
pub struct In<T>(*const T);

impl<T> Argument for In<T> {
    type Raw = *const T;
    unsafe fn from_raw(raw: *const T) -> In<T> {
        In(raw)
    }
}

impl<T: Copy> In<T> {
    /// The structure.
    pub fn get(&self) -> Result<T> {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the program passed a T.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// A list of `count` entries.
    pub fn list(&self, count: usize) -> Result<Vec<T>> {
        if count > 0 && self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the program passed `count` entries.
        Ok((0..count)
            .map(|at| unsafe { self.0.add(at).read_unaligned() })
            .collect())
    }
}

impl<T> In<T> {
    /// The pointer itself.
    pub fn pointer(&self) -> *const T {
        self.0
    }
}

/// A structure or list the program passes by a pointer that could be written through.
pub struct InMut<T>(*mut T);

impl<T> Argument for InMut<T> {
    type Raw = *mut T;
    unsafe fn from_raw(raw: *mut T) -> InMut<T> {
        InMut(raw)
    }
}

impl<T> InMut<T> {
    /// Writes what a call gives back in its parameters. The caller has read them, so the pointer is not null.
    pub fn write(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the program passed a T that may be written.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// As something to read only.
    pub fn read(&self) -> In<T> {
        In(self.0)
    }

    /// The pointer itself.
    pub fn pointer(&self) -> *mut T {
        self.0
    }
}

/// A NUL-terminated text the program passes.
pub struct Text(*const c_char);

impl Argument for Text {
    type Raw = *const c_char;
    unsafe fn from_raw(raw: *const c_char) -> Text {
        Text(raw)
    }
}

impl Text {
    /// The text; names are ASCII, and one that is not cannot be found.
    pub fn get(&self) -> Result<&str> {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the program passed a NUL-terminated text that lives as long as the call.
        unsafe { CStr::from_ptr(self.0) }
            .to_str()
            .map_err(|_| CUDA_ERROR_INVALID_VALUE)
    }
}

/// A handle of some kind, or an opaque pointer: a number until it is looked up.
pub struct Handle<P>(pub u64, PhantomData<P>);

impl<T> Argument for Handle<*mut T> {
    type Raw = *mut T;
    unsafe fn from_raw(raw: *mut T) -> Handle<*mut T> {
        Handle(raw as u64, PhantomData)
    }
}

impl<T> Argument for Handle<*const T> {
    type Raw = *const T;
    unsafe fn from_raw(raw: *const T) -> Handle<*const T> {
        Handle(raw as u64, PhantomData)
    }
}

/// A callback the program passes.
pub struct Callback<F>(pub Option<F>);

impl<F> Argument for Callback<F> {
    type Raw = Option<F>;
    unsafe fn from_raw(raw: Option<F>) -> Callback<F> {
        Callback(raw)
    }
}

/// The stream a call names, where 0 means the default stream of the call's variant.
pub fn stream_name(raw: CUstream, per_thread: bool) -> StreamName {
    match raw as u64 {
        0 => default_stream(per_thread),
        raw => StreamName(raw),
    }
}

/// The default stream of a call's variant.
pub fn default_stream(per_thread: bool) -> StreamName {
    StreamName(if per_thread {
        PER_THREAD_STREAM
    } else {
        LEGACY_STREAM
    })
}
