//! Takes out of a text what tells whose machine it comes from: a report may be attached to a public issue.
//!
//! A machine may be called `gpu` and a user `memory`. So names that may be words of the kit's own sentences are taken out of
//! what others said alone, as it comes in ([`foreign`]). The report takes out the rest, whatever it comes from ([`Scrub::text`]).

use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

/// The words of this machine and this user, each with what stands in its place.
#[derive(Clone, Debug, Default)]
pub struct Scrub {
    words: Vec<(String, &'static str)>,
}

/// What another program, a library or the driver said, without the names, paths and serial numbers of this machine.
#[must_use]
pub(crate) fn foreign(text: &str) -> String {
    of_this_process().foreign(text)
}

/// The same of all texts in a value. The names of its fields are its form's, and stay.
#[must_use]
pub(crate) fn foreign_value(value: Value) -> Value {
    of_this_process().foreign_value(value)
}

fn of_this_process() -> &'static Scrub {
    static OWN: OnceLock<Scrub> = OnceLock::new();
    OWN.get_or_init(|| {
        let own = std::env::current_exe().unwrap_or_default();
        let home = own.parent().unwrap_or(&own);
        Scrub::of_this_machine(&[home, &std::env::temp_dir()])
    })
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

    /// Adds a word. A letter alone, or a root, tells nothing of anyone.
    fn add(&mut self, word: &str, place: &'static str) {
        let word = word.trim_end_matches('/');
        let known = self.words.iter().any(|(known, _)| known == word);
        if word.len() >= 2 && !known && !["root", "localhost", "/root"].contains(&word) {
            self.words.push((word.to_owned(), place));
        }
        // The longest first: a folder below the home is more than the home.
        self.words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
    }

    /// A text of the kit's own, into which others' may have come: without names that no sentence of ours has, paths, UUIDs and
    /// hardware addresses.
    #[must_use]
    pub fn text(&self, text: &str) -> String {
        let distinct = self.words.iter().filter(|(word, _)| is_distinct(word));
        without_numbers_of_devices(&without(text, distinct))
    }

    /// A text of another's: also without names that are words, and without numbers as long as a serial number. It is one line,
    /// so that it can put no line of its own into the report.
    #[must_use]
    pub fn foreign(&self, text: &str) -> String {
        let line = text.replace(char::is_control, " ");
        without_serials(&without_numbers_of_devices(&without(&line, self.words.iter())))
    }

    /// [`Self::text`] of all texts in a value.
    #[must_use]
    pub fn value(&self, value: Value) -> Value {
        each_text(value, &|text| self.text(text), &|key| self.text(key))
    }

    /// [`Self::foreign`] of all texts in a value; of the names of fields, what is in them of this machine's own.
    #[must_use]
    pub fn foreign_value(&self, value: Value) -> Value {
        each_text(value, &|text| self.foreign(text), &|key| self.text(key))
    }
}

/// Whether a name is none of the words of our sentences: those have letters alone, or digits alone.
fn is_distinct(word: &str) -> bool {
    !word.chars().all(char::is_alphabetic) && !word.chars().all(char::is_numeric)
}

fn without<'a>(text: &str, words: impl Iterator<Item = &'a (String, &'static str)>) -> String {
    words.fold(text.to_owned(), |clean, (word, place)| {
        replace_words(&clean, word, place)
    })
}

fn each_text(value: Value, text: &dyn Fn(&str) -> String, key: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(said) => Value::String(text(&said)),
        Value::Array(items) => items.into_iter().map(|item| each_text(item, text, key)).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, item)| (key(&name), each_text(item, text, key)))
            .collect(),
        other => other,
    }
}

/// Without UUIDs, hardware addresses and paths.
fn without_numbers_of_devices(text: &str) -> String {
    without_paths(&without_pairs(&without_uuids(text)))
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

/// Puts `…` in the place of each UUID: what is before it, as in `GPU-…` and `MIG-…`, stays.
fn without_uuids(text: &str) -> String {
    const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
    let is_uuid = |word: &str| {
        let groups: Vec<&str> = word.split('-').collect();
        groups.iter().map(|group| group.len()).eq(GROUPS)
    };
    each_word(
        text,
        &|letter| letter.is_ascii_hexdigit() || letter == '-',
        &|word| {
            // `MIG-` ends with letters that are no digits, and so begins no word of these.
            let word = word.trim_start_matches('-');
            is_uuid(word).then_some("…")
        },
    )
}

/// Puts `<address>` in the place of six pairs of hexadecimal digits and more, as network cards have them (`48:b0:2d:ff:12:34`)
/// and as PCI devices have their serial numbers (`48-b0-2d-ff-ff-12-34-56`).
fn without_pairs(text: &str) -> String {
    let is_address = |word: &str, mark: char| {
        let pairs: Vec<&str> = word.split(mark).collect();
        pairs.len() >= 6 && pairs.iter().all(|pair| pair.len() == 2)
    };
    let of_word = |letter: char| letter.is_ascii_hexdigit() || letter == '-' || letter == ':';
    each_word(text, &of_word, &|word| {
        let word = word.trim_matches([':', '-']);
        (is_address(word, ':') || is_address(word, '-')).then_some("<address>")
    })
}

/// Puts `<number>` in the place of each run of ten digits and more: serial numbers of boards have thirteen.
fn without_serials(text: &str) -> String {
    const SHORTEST: usize = 10;
    each_word(text, &|letter| letter.is_ascii_digit(), &|word| {
        (word.len() >= SHORTEST).then_some("<number>")
    })
}

/// Looks at each run of such letters; where `instead` answers, that stands in its place. Marks at the run's ends stay.
fn each_word(
    text: &str,
    of_word: &dyn Fn(char) -> bool,
    instead: &dyn Fn(&str) -> Option<&'static str>,
) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(of_word) {
        let (before, run) = rest.split_at(at);
        let end = run.find(|letter| !of_word(letter)).unwrap_or(run.len());
        let (run, after) = run.split_at(end);
        clean.push_str(before);
        match instead(run) {
            Some(place) => {
                let is_mark = |letter: char| letter == '-' || letter == ':';
                let bare = run.trim_matches(is_mark);
                clean.push_str(&run.replacen(bare, place, 1));
            }
            None => clean.push_str(run),
        }
        rest = after;
    }
    clean + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[(&str, &'static str)]) -> Scrub {
        let mut scrub = Scrub::default();
        for (word, place) in words {
            scrub.add(word, place);
        }
        scrub
    }

    #[test]
    fn nothing_tells_whose_machine_it_was() {
        let scrub = of(&[
            ("ann", "<user>"),
            ("/home/ann", "<home>"),
            ("node17", "<host>"),
            ("/", "<folder>"),
        ]);
        let text = "ann@node17: /home/ann/results of GPU-80209210-3573-8fc7-baeb-84ddbbfa545b, a channel in MIG-mode, GPU-";
        assert_eq!(
            scrub.foreign(text),
            "<user>@<host>: <home>/results of GPU-…, a channel in MIG-mode, GPU-"
        );
        assert_eq!(
            scrub.text("no file '/opt/ann-x/a.py', /srv/data: of 20/30/50 / and /proc"),
            "no file '<path>', <path>: of 20/30/50 / and /proc"
        );
        let users = "root:x:0:0::/root:/bin/sh\neve:x:1000:100:Eve:/home/e:/bin/sh\n";
        assert_eq!(name_of(1000, users), Some("eve"));
        assert_eq!(name_of(1, users), None);
        let value = serde_json::json!({"node17": [1, "ann", "node17"]});
        assert_eq!(
            scrub.foreign_value(value),
            serde_json::json!({"<host>": [1, "<user>", "<host>"]})
        );
    }

    /// A machine called `memory`, and a user called `gpu`.
    #[test]
    fn a_name_that_is_a_word_is_taken_out_of_what_others_said_alone() {
        let scrub = of(&[
            ("memory", "<host>"),
            ("gpu", "<user>"),
            ("gpu-7.lab", "<host>"),
            ("li", "<user>"),
            ("30", "<host>"),
        ]);
        let ours = "the slice is all the memory that the program sees on a gpu, 30 times";
        assert_eq!(scrub.foreign("li@30: a link"), "<user>@<host>: a link");
        assert_eq!(scrub.text(ours), ours);
        let value = serde_json::json!({"memory": "of a gpu"});
        assert_eq!(scrub.value(value.clone()), value);
        // What can be no word of ours is taken out everywhere.
        assert_eq!(scrub.text("it runs on gpu-7.lab"), "it runs on <host>");
        assert_eq!(
            scrub.foreign("gpu@memory: out of memory"),
            "<user>@<host>: out of <host>"
        );
        assert_eq!(
            scrub.foreign_value(value),
            serde_json::json!({"memory": "of a <user>"})
        );
    }

    #[test]
    fn numbers_of_devices_are_taken_out() {
        let scrub = Scrub::default();
        for (said, left) in [
            (
                "serial 1320220012345, 123456789 MiB",
                "serial <number>, 123456789 MiB",
            ),
            ("SN:0123456789.", "SN:<number>."),
            ("at 80209210-3573-8fc7-baeb-84ddbbfa545b:", "at …:"),
            ("MIG-80209210-3573-8fc7-baeb-84ddbbfa545b/1", "MIG-…/1"),
            (
                "serial 48-b0-2d-ff-ff-12-34-56, link aa:bb:cc:dd:ee:ff: up",
                "serial <address>, link <address>: up",
            ),
            (
                "00000000:3B:00.0 at 12:30:05 in 20-30-50",
                "00000000:3B:00.0 at 12:30:05 in 20-30-50",
            ),
        ] {
            assert_eq!(scrub.foreign(said), left);
        }
        assert_eq!(scrub.foreign("no\n- holds: all\u{1b}[0m"), "no - holds: all [0m");
        // Bytes and bits of ours are as long.
        let ours = "the slice has 4294967296 bytes";
        assert_eq!(scrub.text(ours), ours);
        assert_eq!(scrub.text("of aa:bb:cc:dd:ee:ff"), "of <address>");
    }
}
