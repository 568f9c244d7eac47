//! Exported symbols of NVML by number and by name.

use core::ffi::CStr;

macro_rules! symbols {
    ([] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        /// One exported symbol of libnvidia-ml.so.1. The number is its place in [`Table`](super::Table).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        #[allow(missing_docs)]
        pub enum Symbol { $($name),* }

        impl Symbol {
            /// Every symbol, in the table's order, which is the order of the names' bytes.
            pub const ALL: &[Symbol] = &[$(Symbol::$name),*];
            /// Every symbol's name with a closing NUL, as dlsym wants it, in the same order.
            pub const C_NAMES: &[&CStr] = &[$(
                // The literal ends in its only NUL.
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                }
            ),*];
            const NAMES: &[&str] = &[$(stringify!($name)),*];
        }
    };
}

crate::nvml_functions! { [symbols] }

impl Symbol {
    /// How many symbols there are.
    pub const COUNT: usize = Self::ALL.len();

    /// Place in the table, from 0.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The exported name: `nvmlInit_v2`.
    pub fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// The symbol exported under exactly this name.
    pub fn by_name(name: &str) -> Option<Self> {
        let index = Self::NAMES.binary_search(&name).ok()?;
        Some(Self::ALL[index])
    }
}

impl core::fmt::Debug for Symbol {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

impl core::fmt::Display for Symbol {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symbol_is_found_by_its_name() {
        for symbol in Symbol::ALL {
            assert_eq!(Symbol::by_name(symbol.name()), Some(*symbol));
            assert_eq!(Symbol::C_NAMES[symbol.index()].to_str(), Ok(symbol.name()));
        }
        assert_eq!(Symbol::by_name("nvmlInit_v9"), None);
    }

    /// The versions that a program's headers map to, and those that older programs ask for.
    #[test]
    fn old_and_new_versions_are_there() {
        for name in [
            "nvmlInit",
            "nvmlInit_v2",
            "nvmlInitWithFlags",
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetComputeRunningProcesses_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetTemperatureV",
            "nvmlGetBlacklistDeviceCount",
            "nvmlInternalGetExportTable",
        ] {
            assert!(Symbol::by_name(name).is_some(), "{name}");
        }
    }
}
