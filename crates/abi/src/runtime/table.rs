//! The tables of the runtime's function pointers: one typed field for each exported symbol, of each release.

use core::ffi::{c_char, c_void};

use super::{cudaChannelFormatDesc, cudaError_t, cudaErrorNotSupported, cudaErrorUnknown};
use crate::Answer;

impl Answer for cudaError_t {
    const NOT_SUPPORTED: Self = cudaErrorNotSupported;
    const UNKNOWN: Self = cudaErrorUnknown;
}

impl Answer for () {
    const NOT_SUPPORTED: Self = ();
    const UNKNOWN: Self = ();
}

/// nvcc's code keeps it and hands it back: a null handle registers nothing.
impl Answer for *mut *mut c_void {
    const NOT_SUPPORTED: Self = core::ptr::null_mut();
    const UNKNOWN: Self = core::ptr::null_mut();
}

/// A launch's configuration that was not taken: not 0, so that nvcc's code does not launch.
impl Answer for u32 {
    const NOT_SUPPORTED: Self = 1;
    const UNKNOWN: Self = 1;
}

impl Answer for c_char {
    const NOT_SUPPORTED: Self = 0;
    const UNKNOWN: Self = 0;
}

impl Answer for cudaChannelFormatDesc {
    const NOT_SUPPORTED: Self = cudaChannelFormatDesc {
        x: 0,
        y: 0,
        z: 0,
        w: 0,
        f: super::cudaChannelFormatKindNone,
    };
    const UNKNOWN: Self = Self::NOT_SUPPORTED;
}

macro_rules! release {
    ([] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        use crate::table::function_table;

        /// One exported symbol of the library. The number is its place in [`Table`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        #[allow(missing_docs)]
        pub enum Symbol { $($name),* }

        impl Symbol {
            /// Every symbol, in the table's order, which is the order of the names' bytes.
            pub const ALL: &[Symbol] = &[$(Symbol::$name),*];
            const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// How many symbols there are.
            pub const COUNT: usize = Self::ALL.len();

            /// Place in the table, from 0.
            pub const fn index(self) -> usize {
                self as usize
            }

            /// The exported name: `cudaMalloc`.
            pub fn name(self) -> &'static str {
                Self::NAMES[self.index()]
            }

            /// The symbol exported under exactly this name.
            pub fn by_name(name: &str) -> Option<Self> {
                let index = Self::NAMES.binary_search(&name).ok()?;
                Some(Self::ALL[index])
            }
        }

        function_table! { $($name ($($of),*) -> $result;)* }
    };
}

/// libcudart.so.12.
#[allow(missing_docs)]
pub mod v12 {
    crate::runtime12_functions! { [release] }
}

/// libcudart.so.13.
#[allow(missing_docs)]
pub mod v13 {
    crate::runtime13_functions! { [release] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symbol_is_found_by_its_name() {
        for symbol in v12::Symbol::ALL {
            assert_eq!(v12::Symbol::by_name(symbol.name()), Some(*symbol));
        }
        for symbol in v13::Symbol::ALL {
            assert_eq!(v13::Symbol::by_name(symbol.name()), Some(*symbol));
        }
        assert_eq!(v13::Symbol::by_name("cudaMalloc_v9"), None);
    }

    #[test]
    fn each_release_has_its_own_symbols() {
        assert!(v12::Symbol::by_name("cudaGetDeviceProperties_v2").is_some());
        assert!(v13::Symbol::by_name("cudaGetDeviceProperties_v2").is_none());
        assert!(v13::Symbol::by_name("cudaGreenCtxCreate").is_some());
        assert!(v12::Symbol::by_name("cudaGreenCtxCreate").is_none());
    }

    #[test]
    fn what_is_not_there_says_so() {
        // SAFETY: an unsupported function touches none of its arguments.
        let answer = unsafe { (v13::Table::UNSUPPORTED.cudaMalloc)(core::ptr::null_mut(), 1) };
        assert_eq!(answer, cudaErrorNotSupported);
    }
}
