//! Exported symbols by number and by name.

/// What cuGetProcAddress needs of a symbol.
pub(crate) struct Facts {
    pub name: &'static str,
    pub public: &'static str,
    pub since: u32,
    pub per_thread: bool,
}

macro_rules! per_thread {
    (Legacy) => {
        false
    };
    (PerThread) => {
        true
    };
}

macro_rules! symbols {
    ([] $($name:ident ($public:literal, $since:literal, $stream:ident) ($($parameter:ident: $of:ty),*);)*) => {
        /// One exported symbol of libcuda.so.1. The number is its place in [`Table`](crate::Table).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        #[allow(missing_docs)]
        pub enum Symbol { $($name),* }

        pub(crate) const FACTS: &[Facts] = &[$(Facts {
            name: stringify!($name),
            public: $public,
            since: $since,
            per_thread: per_thread!($stream),
        }),*];

        impl Symbol {
            /// Every symbol, in the table's order, which is the order of the names' bytes.
            pub const ALL: &[Symbol] = &[$(Symbol::$name),*];
            /// Every symbol's name with a closing NUL, as dlsym wants it, in the same order.
            pub const C_NAMES: &[&core::ffi::CStr] = &[$(
                // The literal ends in its only NUL.
                match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                }
            ),*];
        }
    };
}

crate::driver_functions! { [symbols] }

impl Symbol {
    /// How many symbols there are.
    pub const COUNT: usize = Self::ALL.len();

    /// Place in the table, from 0.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The exported name: `cuMemAlloc_v2`.
    pub fn name(self) -> &'static str {
        FACTS[self.index()].name
    }

    /// The name by which cuGetProcAddress is asked for it: `cuMemAlloc`.
    pub fn public_name(self) -> &'static str {
        FACTS[self.index()].public
    }

    /// CUDA version that brought it, as cuGetProcAddress counts (11.3 is 11030); 0 where no header tells.
    pub fn since(self) -> u32 {
        FACTS[self.index()].since
    }

    /// Whether its default stream is each thread's own (`_ptsz`, `_ptds`).
    pub fn is_per_thread(self) -> bool {
        FACTS[self.index()].per_thread
    }

    /// The symbol exported under exactly this name.
    pub fn by_name(name: &str) -> Option<Self> {
        let index = FACTS.binary_search_by(|facts| facts.name.cmp(name)).ok()?;
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
        assert_eq!(Symbol::by_name("cuMemAlloc_v9"), None);
        assert_eq!(Symbol::by_name(""), None);
    }

    #[test]
    fn names_split_into_public_name_and_variant() {
        let symbol = Symbol::cuMemcpyHtoDAsync_v2_ptsz;
        assert_eq!(symbol.public_name(), "cuMemcpyHtoDAsync");
        assert!(symbol.is_per_thread());
        assert_eq!(Symbol::cuMemAlloc_v2.since(), 3020);
        assert!(!Symbol::cuMemAlloc_v2.is_per_thread());
    }
}
