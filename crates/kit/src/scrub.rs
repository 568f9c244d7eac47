//! Takes out of a text what tells whose machine it comes from: a report may be attached to a public issue.

use std::path::Path;

/// The words of this machine and this user, each with what stands in its place.
#[derive(Clone, Debug, Default)]
pub struct Scrub {
    words: Vec<(String, &'static str)>,
}

impl Scrub {
    /// Of this process's machine and user; `folders` are paths that findings may name.
    #[must_use]
    pub fn of_this_machine(folders: &[&Path]) -> Self {
        let mut scrub = Self::default();
        for folder in folders {
            scrub.add(&folder.to_string_lossy(), "<folder>");
        }
        if let Ok(own) = std::env::current_dir() {
            scrub.add(&own.to_string_lossy(), "<folder>");
        }
        for (variable, place) in [
            ("HOME", "<home>"),
            ("USER", "<user>"),
            ("LOGNAME", "<user>"),
            ("HOSTNAME", "<host>"),
        ] {
            if let Ok(value) = std::env::var(variable) {
                scrub.add(&value, place);
            }
        }
        scrub.add(&rustix::system::uname().nodename().to_string_lossy(), "<host>");
        scrub
    }

    /// Adds a word. A short one, or a root, would be found in the middle of others.
    fn add(&mut self, word: &str, place: &'static str) {
        let word = word.trim_end_matches('/');
        let known = self.words.iter().any(|(known, _)| known == word);
        if word.len() >= 3 && !known && !["root", "localhost", "/root"].contains(&word) {
            self.words.push((word.to_owned(), place));
        }
        // The longest first: a folder below the home is more than the home.
        self.words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
    }

    /// The text without them, and without UUIDs of devices.
    #[must_use]
    pub fn text(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for (word, place) in &self.words {
            clean = replace_words(&clean, word, place);
        }
        without_uuids(&clean)
    }

    /// The same of all texts in a value.
    #[must_use]
    pub fn value(&self, value: serde_json::Value) -> serde_json::Value {
        use serde_json::Value;
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => fields
                .into_iter()
                .map(|(key, item)| (self.text(&key), self.value(item)))
                .collect(),
            other => other,
        }
    }
}

/// Replaces a word where it stands alone: a user called `ann` is no part of `channel`.
fn replace_words(text: &str, word: &str, place: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        clean.push_str(before);
        let joins = |side: Option<char>| side.is_some_and(|side| side.is_ascii_alphanumeric() || side == '_');
        let is_apart = !joins(clean.chars().next_back()) && !joins(after.chars().next());
        clean.push_str(if is_apart { place } else { word });
        rest = after;
    }
    clean + rest
}

/// Puts `GPU-…` and `MIG-…` in the place of such names.
fn without_uuids(text: &str) -> String {
    const LENGTH: usize = "GPU-01234567-0123-0123-0123-0123456789ab".len();
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("GPU-").into_iter().chain(rest.find("MIG-")).min() {
        clean.push_str(&rest[..at + 4]);
        let tail = rest.get(at + 4..at + LENGTH).unwrap_or_default();
        let is_uuid =
            tail.len() == LENGTH - 4 && tail.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        if is_uuid {
            clean.push('…');
        }
        rest = &rest[at + 4 + if is_uuid { tail.len() } else { 0 }..];
    }
    clean + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_tells_whose_machine_it_was() {
        let mut scrub = Scrub::default();
        for (word, place) in [
            ("ann", "<user>"),
            ("/home/ann", "<home>"),
            ("node17", "<host>"),
            ("/", "<folder>"),
        ] {
            scrub.add(word, place);
        }
        let text = "ann@node17: /home/ann/results of GPU-80209210-3573-8fc7-baeb-84ddbbfa545b, a channel in MIG-mode, GPU-";
        assert_eq!(
            scrub.text(text),
            "<user>@<host>: <home>/results of GPU-…, a channel in MIG-mode, GPU-"
        );
        let value = serde_json::json!({"ann": [1, "node17"]});
        assert_eq!(scrub.value(value), serde_json::json!({"<user>": [1, "<host>"]}));
    }
}
