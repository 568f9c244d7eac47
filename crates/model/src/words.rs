//! Words of the command line and of JSON for the variants of an enumeration, each typed once.

/// Gives an enumeration without fields its words: `ALL`, `name`, and both ways between a variant and its word. `what` says
/// what a text is not that is no such word. A refusal lists the words in the order given here.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Side {
///     Left,
///     Right,
/// }
/// divvy_model::words! { Side, "side": Left "left", Right "right" }
///
/// assert_eq!("left".parse(), Ok(Side::Left));
/// let refusal = "up".parse::<Side>().unwrap_err();
/// assert_eq!(refusal, "`up` is no side; choose left or right");
/// ```
#[macro_export]
macro_rules! words {
    ($type:ident, $what:literal: $($variant:ident $word:literal),+) => {
        impl $type {
            /// Every variant.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word used on the command line and in JSON.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::no_such_word(text, $what, &[$($word),+])),
                }
            }
        }
    };
}

/// The refusal of a text that is none of these words.
#[doc(hidden)]
#[must_use]
pub fn no_such_word(text: &str, what: &str, words: &[&str]) -> String {
    let choice = match words {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => words.join(""),
    };
    format!("`{text}` is no {what}; choose {choice}")
}
