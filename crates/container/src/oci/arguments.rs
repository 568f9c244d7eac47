//! The command line of an OCI runtime, as runc, crun and youki have it
//! (github.com/opencontainers/runtime-tools/blob/master/docs/command-line-interface.md).

use std::ffi::OsString;
use std::path::PathBuf;

/// What a runtime is asked to do, as far as it concerns us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Make a container of a bundle: `create`, or `run`, which also starts it.
    Create,
    /// Make and run it, and stay.
    Run,
    /// Remove it.
    Delete,
    /// Anything else, which passes through.
    Other,
}

/// The parts that concern us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// What is asked.
    pub verb: Verb,
    /// The bundle; the working directory where none is named.
    pub bundle: PathBuf,
    /// The container's id.
    pub id: Option<String>,
    /// Where the runtime writes the number of the container's first process.
    pub pid_file: Option<PathBuf>,
    /// Where the runtime is to write its log.
    pub log: Option<PathBuf>,
}

/// Flags before the verb that take a value.
const WITH_VALUE: [&str; 9] = [
    "log",
    "log-format",
    "log-level",
    "root",
    "criu",
    "rootless",
    "cgroup-manager",
    "config",
    "r",
];
/// Flags of `create`, `run` and `delete` that take a value.
const OF_VERB: [&str; 6] = [
    "bundle",
    "b",
    "console-socket",
    "pid-file",
    "preserve-fds",
    "config",
];

impl Arguments {
    /// Reads them. The runtime refuses arguments that are not understood here.
    #[must_use]
    pub fn read(words: &[OsString]) -> Self {
        let mut read = Self {
            verb: Verb::Other,
            bundle: ".".into(),
            id: None,
            pid_file: None,
            log: None,
        };
        let mut words = words.iter();
        let mut verb = None;
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            let Some(flag) = text.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
                match verb {
                    None => verb = Some(text.into_owned()),
                    Some(_) => read.id = Some(text.into_owned()),
                }
                continue;
            };
            let flag = flag.trim_start_matches('-');
            let (name, within) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(OsString::from(value))),
                None => (flag, None),
            };
            let known: &[&str] = if verb.is_none() { &WITH_VALUE } else { &OF_VERB };
            if !known.contains(&name) {
                continue;
            }
            let Some(value) = within.or_else(|| words.next().cloned()) else {
                break;
            };
            match name {
                "bundle" | "b" => read.bundle = value.into(),
                "log" => read.log = Some(value.into()),
                "pid-file" => read.pid_file = Some(value.into()),
                _ => {}
            }
        }
        read.verb = match verb.as_deref() {
            Some("create") => Verb::Create,
            Some("run") => Verb::Run,
            Some("delete") => Verb::Delete,
            _ => Verb::Other,
        };
        // As runc has it: what is no id names no file of ours either.
        read.id = read.id.filter(|id| is_id(id));
        read
    }
}

fn is_id(id: &str) -> bool {
    (1..=128).contains(&id.len())
        && id != "."
        && id != ".."
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> (Verb, String, Option<String>, Option<PathBuf>) {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let read = Arguments::read(&words);
        (read.verb, read.bundle.display().to_string(), read.id, read.log)
    }

    #[test]
    fn command_lines_of_engines() {
        let id = |text: &str| Some(text.to_owned());
        // podman, containerd's shim, a person.
        for (words, expected) in [
            (
                "--log-format=json --log=/x/oci-log create --bundle /b --pid-file /p abc",
                (Verb::Create, "/b", id("abc"), Some("/x/oci-log")),
            ),
            (
                "--root /run/create --log /l --log-format json create --bundle=/b --console-socket /c/run a.b-c",
                (Verb::Create, "/b", id("a.b-c"), Some("/l")),
            ),
            ("--systemd-cgroup run -b /b x", (Verb::Run, "/b", id("x"), None)),
            ("create x", (Verb::Create, ".", id("x"), None)),
            ("delete --force x", (Verb::Delete, ".", id("x"), None)),
            ("--debug state x", (Verb::Other, ".", id("x"), None)),
            ("kill --bundle create 9", (Verb::Other, "create", id("9"), None)),
            ("create ../../etc", (Verb::Create, ".", None, None)),
            ("--bundle", (Verb::Other, ".", None, None)),
            ("", (Verb::Other, ".", None, None)),
        ] {
            let (verb, bundle, id, log) = expected;
            let expected = (verb, bundle.to_owned(), id, log.map(PathBuf::from));
            assert_eq!(read(words), expected, "{words}");
        }
    }
}
