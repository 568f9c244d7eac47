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
/// assert_eq!(refusal.to_string(), "`up` is no side; choose left or right");
/// assert_eq!("lefft".parse::<Side>().unwrap_err().nearest(), Some("left"));
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
            type Err = $crate::NoSuchWord;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::NoSuchWord::new(text, $what, &[$($word),+])),
                }
            }
        }
    };
}

/// The refusal of a text that is none of an enumeration's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchWord {
    text: String,
    what: &'static str,
    words: &'static [&'static str],
}

impl NoSuchWord {
    #[doc(hidden)]
    #[must_use]
    pub fn new(text: &str, what: &'static str, words: &'static [&'static str]) -> Self {
        let text = text.into();
        Self { text, what, words }
    }

    /// The word that was likely meant: the nearest one, if a letter or two make the text that word. Case and the spaces around
    /// it do not count.
    #[must_use]
    pub fn nearest(&self) -> Option<&'static str> {
        let typed: Vec<char> = self.text.trim().to_lowercase().chars().take(LONGEST).collect();
        let near = |word: &&'static str| (distance(&typed, word), *word);
        let (distance, word) = self
            .words
            .iter()
            .map(near)
            .min_by_key(|(distance, _)| *distance)?;
        // Half of a short word's letters are another word.
        (distance <= 2 && distance * 2 < word.len()).then_some(word)
    }

    /// What to type instead, where that can be told.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        self.nearest().map(|word| format!("write `{word}`"))
    }
}

impl std::fmt::Display for NoSuchWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let choice = match self.words {
            [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
            words => words.join(""),
        };
        write!(f, "`{}` is no {}; choose {choice}", self.text, self.what)
    }
}

impl std::error::Error for NoSuchWord {}

/// No word has so many letters.
const LONGEST: usize = 64;

/// How many letters have to be added, left out, replaced or exchanged with their neighbour to make `typed` this word.
fn distance(typed: &[char], word: &str) -> usize {
    let word: Vec<char> = word.chars().collect();
    // Row by row of the table for the first letters of each; a row has one place for each letter of the word, and one before.
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=word.len()).collect();
    for (i, letter) in typed.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, wanted) in word.iter().enumerate() {
            let mut least = (row[j] + usize::from(letter != wanted))
                .min(row[j + 1] + 1)
                .min(next[j] + 1);
            let is_exchanged = i > 0 && j > 0 && *letter == word[j - 1] && typed[i - 1] == *wanted;
            if is_exchanged {
                least = least.min(before[j - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[word.len()]
}

#[cfg(test)]
mod tests {
    use crate::{Cap, Class, Isolation};

    #[test]
    fn a_misspelt_word_is_told_the_nearest_and_another_word_none() {
        let level = |text: &str| text.parse::<Isolation>().expect_err("misspelt").nearest();
        for (text, word) in [
            ("enforcd", "enforced"),
            ("enfroced", "enforced"),
            ("Enforced ", "enforced"),
            ("supervized", "supervised"),
            ("cooperativ", "cooperative"),
            ("hardwar", "hardware"),
            ("evn", "env"),
        ] {
            assert_eq!(level(text), Some(word), "{text}");
        }
        for text in [
            "",
            "none",
            "strict",
            "kvm",
            "e",
            "vmm0",
            &"\u{1f600}".repeat(1 << 16),
        ] {
            assert_eq!(level(text), None, "{}", text.len());
        }
        let cap = "hrad".parse::<Cap>().expect_err("misspelt");
        assert_eq!(cap.hint().as_deref(), Some("write `hard`"));
        assert_eq!(cap.to_string(), "`hrad` is no cap; choose soft or hard");
        assert_eq!("fast".parse::<Class>().expect_err("no class").hint(), None);
    }
}
