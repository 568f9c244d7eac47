//! Exported symbols by number and by name.
//!
//! All of it is constant bytes without an address in them: a table of pointers would be relocated in every process that
//! loads a drop-in, page by page.

use core::ffi::CStr;

/// What cuGetProcAddress needs of a symbol.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    /// Where its name begins in [`NAMES`].
    begin: u16,
    name_length: u8,
    /// The public name is the beginning of the name.
    public_length: u8,
    pub since: u32,
    pub per_thread: bool,
}

impl Facts {
    pub fn name(&self) -> &'static str {
        self.text(self.name_length)
    }

    pub fn public(&self) -> &'static str {
        self.text(self.public_length)
    }

    fn text(&self, length: u8) -> &'static str {
        let begin = usize::from(self.begin);
        &NAMES[begin..begin + usize::from(length)]
    }
}

/// Gives each name its place in [`NAMES`], where they stand one after the other, each with a NUL behind it.
const fn placed<const N: usize>(mut facts: [Facts; N]) -> [Facts; N] {
    let (mut at, mut begin) = (0, 0);
    while at < N {
        facts[at].begin = begin;
        begin += facts[at].name_length as u16 + 1;
        at += 1;
    }
    facts
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

        const NAMES: &str = concat!($(stringify!($name), "\0"),*);

        pub(crate) static FACTS: [Facts; Symbol::COUNT] = placed([$(Facts {
            begin: 0,
            name_length: stringify!($name).len() as u8,
            public_length: $public.len() as u8,
            since: $since,
            per_thread: per_thread!($stream),
        }),*]);

        impl Symbol {
            /// Every symbol, in the table's order, which is the order of the names' bytes.
            pub const ALL: &[Symbol] = &[$(Symbol::$name),*];
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
        FACTS[self.index()].name()
    }

    /// The same with a closing NUL, as dlsym wants it.
    pub fn c_name(self) -> &'static CStr {
        let facts = &FACTS[self.index()];
        let begin = usize::from(facts.begin);
        let bytes = &NAMES.as_bytes()[begin..=begin + usize::from(facts.name_length)];
        CStr::from_bytes_with_nul(bytes).unwrap_or_default()
    }

    /// The name by which cuGetProcAddress is asked for it: `cuMemAlloc`.
    pub fn public_name(self) -> &'static str {
        FACTS[self.index()].public()
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
        let index = FACTS.binary_search_by(|facts| facts.name().cmp(name)).ok()?;
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
            assert_eq!(symbol.c_name().to_str(), Ok(symbol.name()));
        }
        assert!(
            Symbol::ALL.is_sorted_by_key(|symbol| symbol.name()),
            "as a search wants it"
        );
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
