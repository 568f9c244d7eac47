//! A driver call as text, for logs: `cuMemAlloc_v2(dptr=0x7ffc0010, bytesize=4096)`.

use core::fmt;

use crate::Symbol;

/// One parameter of an entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the header.
    pub name: &'static str,
    /// Its type as Rust spells it.
    pub of: &'static str,
}

macro_rules! parameters {
    ([] $($name:ident ($public:literal, $since:literal, $stream:ident) ($($parameter:ident: $of:ty),*);)*) => {
        const PARAMETERS: &[&[Parameter]] = &[$(
            &[$(Parameter { name: stringify!($parameter), of: stringify!($of) }),*],
        )*];
    };
}

crate::driver_functions! { [parameters] }

/// The parameters of a symbol, in order.
pub fn parameters(symbol: Symbol) -> &'static [Parameter] {
    PARAMETERS[symbol.index()]
}

/// A call to print: a symbol and its arguments, each as the machine word it was passed in.
///
/// Pointers, handles and device addresses print in hexadecimal, numbers in decimal. A structure passed by value is not
/// one word: give its address, and it prints as an address.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The function.
    pub symbol: Symbol,
    /// One word for each parameter; missing ones print as `…`.
    pub arguments: &'a [u64],
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.symbol)?;
        for (index, parameter) in parameters(self.symbol).iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}=", parameter.name)?;
            match (self.arguments.get(index), parameter.of) {
                (None, _) => f.write_str("…")?,
                // A narrow argument leaves the rest of its word undefined.
                (Some(word), "i32") => write!(f, "{}", *word as i32)?,
                (Some(word), "u32") => write!(f, "{}", *word as u32)?,
                (Some(word), "u16") => write!(f, "{}", *word as u16)?,
                (Some(word), "u8") => write!(f, "{}", *word as u8)?,
                (Some(word), "usize" | "u64") => write!(f, "{word}")?,
                (Some(word), _) => write!(f, "{word:#x}")?,
            }
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_prints_its_names_and_values() {
        let call = Call {
            symbol: Symbol::cuMemAlloc_v2,
            arguments: &[0x7ffc_0010, 4096],
        };
        assert_eq!(call.to_string(), "cuMemAlloc_v2(dptr=0x7ffc0010, bytesize=4096)");
        let negative = Call {
            symbol: Symbol::cuDeviceGet,
            arguments: &[0x10, 0xffff_ffff],
        };
        assert_eq!(negative.to_string(), "cuDeviceGet(device=0x10, ordinal=-1)");
        let short = Call {
            symbol: Symbol::cuInit,
            arguments: &[],
        };
        assert_eq!(short.to_string(), "cuInit(Flags=…)");
    }
}
