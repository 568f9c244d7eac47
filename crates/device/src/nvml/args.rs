//! How the C arguments of an NVML entry point become values that its body can use without `unsafe`.

use std::ffi::CStr;

use divvy_abi::nvml::*;

use super::{Result, state};
use crate::inventory::DeviceFacts;

/// A parameter's type as the body sees it, made from what C passes.
pub trait Argument: Sized {
    /// The type in nvml.h.
    type Raw;
    /// Wraps the C argument.
    ///
    /// # Safety
    /// `raw` is what the program passed for this parameter, and obeys NVML's contract for it.
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
    u32,
    u64,
    i32,
    nvmlClockType_t,
    nvmlClockId_t,
    nvmlTemperatureSensors_t,
    nvmlTemperatureThresholds_t,
    nvmlPcieUtilCounter_t,
    nvmlMemoryErrorType_t,
    nvmlEccCounterType_t,
    nvmlMemoryLocation_t,
    nvmlPageRetirementCause_t,
    nvmlEventSet_t,
    nvmlGpuInstance_t,
    nvmlComputeInstance_t,
);

/// A device's handle.
pub struct Device(nvmlDevice_t);

impl Argument for Device {
    type Raw = nvmlDevice_t;
    unsafe fn from_raw(raw: nvmlDevice_t) -> Device {
        Device(raw)
    }
}

impl Device {
    /// The GPU, of an initialised library. Most of what NVML reports it reports for GPUs only, and not for MIG devices.
    pub fn get(&self) -> Result<&'static DeviceFacts> {
        let device = self.any()?;
        match device.instance {
            None => Ok(device),
            Some(_) => Err(NVML_ERROR_NOT_SUPPORTED),
        }
    }

    /// The GPU or the MIG device.
    pub fn any(&self) -> Result<&'static DeviceFacts> {
        state::of_handle(self.0)
    }
}

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

    /// Whether the program gave no place.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Refuses a null pointer before anything has happened.
    pub fn required(&self) -> Result {
        if self.is_null() {
            Err(NVML_ERROR_INVALID_ARGUMENT)
        } else {
            Ok(())
        }
    }

    /// Writes the entry at `index` of a list that has room for it.
    pub fn set_at(&self, index: usize, value: T) -> Result {
        self.required()?;
        // SAFETY: the program gave room for this many entries.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// Writes a structure of another version, whose layout this one's begins with.
    pub fn set_older<V>(&self, value: V) -> Result {
        Out(self.0.cast::<V>()).set(value)
    }
}

impl<T: Copy> Out<T> {
    /// What the program put there before the call.
    pub fn before(&self) -> Result<T> {
        self.before_at(0)
    }

    /// What the program put at `index` of its list before the call.
    pub fn before_at(&self, index: usize) -> Result<T> {
        self.required()?;
        // SAFETY: the program passed an initialised list that reaches this far.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

impl<T> Out<T> {
    /// The version that a record which begins with one names.
    pub fn version(&self) -> Result<u32> {
        Out(self.0.cast::<u32>()).before()
    }
}

impl Out<c_char> {
    /// Writes a text with its NUL into `room` bytes, or nothing where it does not fit.
    pub fn set_text(&self, text: &str, room: u32) -> Result {
        self.required()?;
        if text.len() as u64 >= u64::from(room) {
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        for (index, byte) in text.bytes().chain([0]).enumerate() {
            self.set_at(index, byte as c_char)?;
        }
        Ok(())
    }
}

/// A structure the program passes.
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
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: the program passed a T.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

impl In<c_void> {
    /// The structure, where its type is the function's to know.
    pub fn get_as<V: Copy>(&self) -> Result<V> {
        In(self.0.cast::<V>()).get()
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
    /// The text. Names are ASCII, and one that is not cannot be found.
    pub fn get(&self) -> Result<&str> {
        if self.0.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: the program passed a NUL-terminated text that lives as long as the call.
        unsafe { CStr::from_ptr(self.0) }
            .to_str()
            .map_err(|_| NVML_ERROR_NOT_FOUND)
    }
}

/// A text in a field of fixed size, cut to what fits with its NUL.
pub fn field<const SIZE: usize>(text: &str) -> [c_char; SIZE] {
    let mut out = [0; SIZE];
    for (place, byte) in out[..SIZE - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    out
}
