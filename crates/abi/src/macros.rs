//! The three shapes that generated types come in.

/// A type that the headers only name: handles point to it.
macro_rules! opaque {
    ($name:ident) => {
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _opaque: [u8; 0],
        }
    };
}

/// A record for which all-zero bytes are a value: C programs clear such structures with memset.
macro_rules! zeroable {
    ($name:ident) => {
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: every member of a driver record is an integer, a float, a raw pointer, an optional function
                // pointer, a transparent number, or an array or record of such: all-zero bytes are a value of each.
                unsafe { core::mem::zeroed() }
            }
        }
    };
}

/// A C enumeration: any number the other side sends is a value of it, known names print as such.
macro_rules! enumeration {
    ($name:ident: $number:ident; $($label:ident = $value:expr,)*) => {
        #[repr(transparent)]
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $number);
        $(pub const $label: $name = $name($value);)*

        // SAFETY: a transparent number, and every number is a value of it.
        unsafe impl $crate::Plain for $name {}

        impl $name {
            /// The C name of this value (the first, where several name it), if the headers have one.
            pub fn label(self) -> Option<&'static str> {
                const LABELS: &[($number, &str)] = &[$(($value, stringify!($label)),)*];
                LABELS.iter().find(|(value, _)| *value == self.0).map(|(_, label)| *label)
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.label() {
                    Some(label) => f.write_str(label),
                    None => write!(f, "{}({})", stringify!($name), self.0),
                }
            }
        }
    };
}

pub(crate) use {enumeration, opaque, zeroable};
