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
            ("SUDO_USER", "<user>"),
            ("HOSTNAME", "<host>"),
        ] {
            if let Ok(value) = std::env::var(variable) {
                scrub.add(&value, place);
            }
        }
        if let Some(home) = std::env::home_dir() {
            let last = home.file_name().unwrap_or_default();
            scrub.add(&last.to_string_lossy(), "<user>");
        }
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        if let Some(user) = name_of(rustix::process::getuid().as_raw(), &users) {
            scrub.add(user, "<user>");
        }
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        scrub.add(&host, "<host>");
        if let Some((short, domain)) = host.split_once('.') {
            scrub.add(short, "<host>");
            scrub.add(domain, "<domain>");
        }
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

    /// The text without them, and without UUIDs of devices and paths.
    #[must_use]
    pub fn text(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for (word, place) in &self.words {
            clean = replace_words(&clean, word, place);
        }
        without_paths(&without_uuids(&clean))
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

/// The name of a user in the text of /etc/passwd.
fn name_of(user: u32, users: &str) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
        (number.parse() == Ok(user)).then_some(name)
    })
}

/// Puts `<path>` in the place of each absolute path of two names or more. A slash inside a word begins none: `30/70/50`.
fn without_paths(text: &str) -> String {
    let is_of_path = |letter: char| letter.is_alphanumeric() || "._-+~@/<>".contains(letter);
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, path) = rest.split_at(at);
        clean.push_str(before);
        let end = path.find(|letter| !is_of_path(letter)).unwrap_or(path.len());
        let (path, after) = path.split_at(end);
        let begins = !clean.ends_with(is_of_path);
        let names = path.split('/').filter(|name| !name.is_empty()).count();
        clean.push_str(if begins && names > 1 { "<path>" } else { path });
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
        assert_eq!(
            scrub.text("no file '/opt/ann-x/a.py', /srv/data: of 20/30/50 / and /proc"),
            "no file '<path>', <path>: of 20/30/50 / and /proc"
        );
        let users = "root:x:0:0::/root:/bin/sh\neve:x:1000:100:Eve:/home/e:/bin/sh\n";
        assert_eq!(name_of(1000, users), Some("eve"));
        assert_eq!(name_of(1, users), None);
        let value = serde_json::json!({"ann": [1, "node17"]});
        assert_eq!(scrub.value(value), serde_json::json!({"<user>": [1, "<host>"]}));
    }
}
