//! Calls by number: what the parameters of each symbol are, and a call with arguments as words.
//!
//! The split driver makes its stubs of this, and its server calls the library below with it.

use core::any::TypeId;
use core::ffi::{c_char, c_void};

use super::{NVML_ERROR_NOT_SUPPORTED, Symbol, Table, nvmlDevice_st, nvmlDevice_t, nvmlReturn_t};
use crate::Plain;

/// An argument of any type: a number without provenance, or a pointer.
pub type Word = *mut c_void;

/// What the C type of a parameter says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A number of so many bytes, 8 at most.
    Number(usize),
    /// The handle of a device.
    Device,
    /// A handle of another kind.
    Handle,
    /// Where the handle of a device is written.
    NewDevice,
    /// Characters: a C string to read if `constant`, else a place for one.
    Text {
        /// The callee only reads.
        constant: bool,
    },
    /// One value or a list, of so many bytes each.
    Pointer {
        /// The size of one value, in bytes.
        bytes: usize,
        /// The callee only reads.
        constant: bool,
    },
}

/// A type of the table's parameters.
trait Passed: Copy + 'static {
    const WHAT: fn() -> Parameter;
    fn word(self) -> Word;
    /// The inverse of [`Passed::word`].
    fn of(word: Word) -> Self;
}

impl<T: Plain> Passed for T {
    const WHAT: fn() -> Parameter = || Parameter::Number(size_of::<T>());

    fn word(self) -> Word {
        const { assert!(size_of::<T>() <= size_of::<usize>()) }
        let mut word = 0_usize;
        // SAFETY: the value is no longer than the word, and both are there.
        unsafe { core::ptr::from_mut(&mut word).cast::<T>().write_unaligned(self) };
        core::ptr::without_provenance_mut(word)
    }

    fn of(word: Word) -> Self {
        let word = word.addr();
        // SAFETY: the word is no shorter than the value, and any bytes are a value of a plain type.
        unsafe { core::ptr::from_ref(&word).cast::<T>().read_unaligned() }
    }
}

fn pointer<T: 'static>(constant: bool) -> Parameter {
    let pointee = TypeId::of::<T>();
    if pointee == TypeId::of::<nvmlDevice_st>() {
        Parameter::Device
    } else if pointee == TypeId::of::<nvmlDevice_t>() {
        Parameter::NewDevice
    } else if pointee == TypeId::of::<c_char>() {
        Parameter::Text { constant }
    } else if size_of::<T>() == 0 {
        Parameter::Handle
    } else {
        let bytes = size_of::<T>();
        Parameter::Pointer { bytes, constant }
    }
}

impl<T: 'static> Passed for *mut T {
    const WHAT: fn() -> Parameter = || pointer::<T>(false);

    fn word(self) -> Word {
        self.cast()
    }

    fn of(word: Word) -> Self {
        word.cast()
    }
}

impl<T: 'static> Passed for *const T {
    const WHAT: fn() -> Parameter = || pointer::<T>(true);

    fn word(self) -> Word {
        self.cast_mut().cast()
    }

    fn of(word: Word) -> Self {
        word.cast_const().cast()
    }
}

/// What a function of the table answers, as a code.
pub trait AsCode {
    /// The code.
    fn code(self) -> nvmlReturn_t;
    /// The same from a code.
    fn of_code(code: nvmlReturn_t) -> Self;
}

impl AsCode for nvmlReturn_t {
    fn code(self) -> nvmlReturn_t {
        self
    }

    fn of_code(code: nvmlReturn_t) -> Self {
        code
    }
}

/// The text of an error, which no library needs to be asked for.
impl AsCode for *const c_char {
    fn code(self) -> nvmlReturn_t {
        NVML_ERROR_NOT_SUPPORTED
    }

    fn of_code(code: nvmlReturn_t) -> Self {
        code.description().as_ptr()
    }
}

/// A parameter as a word; for the stubs of a table.
#[allow(
    private_bounds,
    reason = "the types of the table have it, and no others need it"
)]
pub fn word<T: Passed>(value: T) -> Word {
    value.word()
}

macro_rules! dynamic {
    ([] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        impl Symbol {
            /// The parameters, in their order.
            #[must_use]
            pub fn parameters(self) -> Vec<Parameter> {
                match self {
                    $(Self::$name => vec![$((<$of as Passed>::WHAT)()),*],)*
                }
            }

            /// The parameters' names, in their order.
            #[must_use]
            pub fn parameter_names(self) -> &'static [&'static str] {
                match self {
                    $(Self::$name => &[$(stringify!($parameter)),*],)*
                }
            }
        }

        impl Table {
            /// Calls a function with arguments as words: as many as it has parameters. Of a function that answers a
            /// text the code is `NVML_ERROR_NOT_SUPPORTED`.
            ///
            /// # Safety
            /// The arguments are what the function's contract asks for.
            ///
            /// # Panics
            /// There are too few arguments.
            #[must_use]
            pub unsafe fn call(&self, symbol: Symbol, arguments: &[Word]) -> nvmlReturn_t {
                let mut arguments = arguments.iter();
                let mut _next = || *arguments.next().expect("an argument for each parameter");
                match symbol {
                    $(Symbol::$name => {
                        $(let $parameter = <$of as Passed>::of(_next());)*
                        // SAFETY: promised by the caller.
                        AsCode::code(unsafe { (self.$name)($($parameter),*) })
                    })*
                }
            }
        }
    };
}

crate::nvml_functions! { [dynamic] }

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    #[test]
    fn types_say_what_parameters_are() {
        use Parameter::*;
        assert_eq!(Symbol::nvmlInit_v2.parameters(), []);
        assert_eq!(
            Symbol::nvmlDeviceGetUUID.parameters(),
            [Device, Text { constant: false }, Number(4)]
        );
        assert_eq!(
            Symbol::nvmlDeviceGetUUID.parameter_names(),
            ["device", "uuid", "length"]
        );
        assert_eq!(
            Symbol::nvmlDeviceGetHandleByUUID.parameters(),
            [Text { constant: true }, NewDevice]
        );
        assert_eq!(
            Symbol::nvmlDeviceGetMemoryInfo.parameters(),
            [
                Device,
                Pointer {
                    bytes: 24,
                    constant: false
                }
            ]
        );
        assert_eq!(Symbol::nvmlGpuInstanceDestroy.parameters(), [Handle]);
    }

    #[test]
    fn a_call_has_its_arguments() {
        unsafe extern "C-unwind" fn threshold(
            device: nvmlDevice_t,
            kind: nvmlTemperatureThresholds_t,
            temperature: *mut u32,
        ) -> nvmlReturn_t {
            // SAFETY: the test gives the place.
            unsafe { temperature.write(device.addr() as u32 + kind.0) };
            NVML_ERROR_NO_DATA
        }
        let table = Table {
            nvmlDeviceGetTemperatureThreshold: threshold,
            ..Table::UNSUPPORTED
        };
        let mut temperature = 0_u32;
        let answer: *mut u32 = &mut temperature;
        let arguments = [
            core::ptr::without_provenance_mut(40),
            word(nvmlTemperatureThresholds_t(2)),
            word(answer),
        ];
        // SAFETY: as the function above asks.
        let code = unsafe { table.call(Symbol::nvmlDeviceGetTemperatureThreshold, &arguments) };
        assert_eq!((code, temperature), (NVML_ERROR_NO_DATA, 42));
    }
}
