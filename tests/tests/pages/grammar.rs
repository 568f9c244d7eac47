//! Commands that cannot be run here are held to the help: their verbs and flags have to be there.

use std::collections::BTreeMap;
use std::sync::Mutex;

use divvy_tests::build::binaries;

/// Why a line cannot be right: a verb or a long flag of `divvy` that the help does not have.
pub fn unknown(line: &str) -> Option<String> {
    let words = divvys(line)?;
    // Behind `run` stands a program.
    let program = words
        .iter()
        .position(|word| *word == "run")
        .map_or(words.len(), |at| at + 1);
    let verbs: Vec<&str> = words[..program]
        .iter()
        .copied()
        .take_while(|word| is_verb(word))
        .collect();
    // Behind the verbs stand operands, which look alike: the longest beginning that has a help of its own counts.
    let (count, help) = (0..=verbs.len())
        .rev()
        .find_map(|count| Some((count, help(&verbs[..count])?)))?;
    if count == 0 && !verbs.is_empty() {
        return Some(format!("`divvy {}` is no verb", verbs[0]));
    }
    let own = words[count..].iter().take_while(|word| **word != "--");
    for word in own.filter(|word| word.starts_with("--")) {
        let flag = word.split('=').next().unwrap_or(word);
        let known = help.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
        if !known.into_iter().any(|known| known == flag) {
            return Some(format!("`divvy {}` has no {flag}", verbs[..count].join(" ")));
        }
    }
    None
}

/// The words of the line behind `divvy`, up to where another program's begin.
fn divvys(line: &str) -> Option<Vec<&str>> {
    let all: Vec<&str> = line
        .split_whitespace()
        .take_while(|word| !word.starts_with('#'))
        .collect();
    let begins = |at: usize| {
        let before = at.checked_sub(1).map_or("|", |before| all[before]);
        ["sudo", "|", "&&", ";"].contains(&before) || before.contains('=') || all[0] == "ssh"
    };
    let divvy = (0..all.len()).find(|&at| all[at] == "\"$(divvy" || (all[at] == "divvy" && begins(at)))?;
    let words: Vec<&str> = all[divvy + 1..]
        .iter()
        .copied()
        .take_while(|word| !["|", "&&", ";"].contains(word))
        .collect();
    // An engine's own flags follow.
    (!["podman", "docker"].contains(words.first()?)).then_some(words)
}

fn is_verb(word: &str) -> bool {
    word.bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !word.starts_with('-')
}

/// What `divvy VERBS --help` prints; nothing where there is no such verb.
fn help(verbs: &[&str]) -> Option<String> {
    static KNOWN: Mutex<BTreeMap<String, Option<String>>> = Mutex::new(BTreeMap::new());
    let key = verbs.join(" ");
    let mut known = KNOWN.lock().expect("no other test panics while it asks");
    let asked = known.entry(key).or_insert_with(|| {
        let output = std::process::Command::new(binaries().join("divvy"))
            .args(verbs)
            .arg("--help")
            .output();
        let output = output.expect("divvy starts");
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    // Behind a verb without verbs of its own any word is an operand, and the help is the verb's.
    let (above, is_own) = (&verbs[..verbs.len().saturating_sub(1)], asked.clone());
    drop(known);
    match is_own {
        Some(help) if !verbs.is_empty() && Some(&help) == self::help(above).as_ref() => None,
        help => help,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_and_flags_are_those_of_the_help() {
        for line in [
            "divvy run --memory 4GiB -- python train.py --epochs 3",
            "sudo divvy agent install --dry-run   # what it would do",
            "docker run --device \"$(divvy container cdi slice --memory 4GiB)\" image",
            "divvy slice create alice --memory 8GiB",
            "divvy podman run --memory 4GiB --rm image",
            "docker run --runtime divvy --annotation divvy.dev/memory=4GiB image",
            "ssh gpu7 divvy remote invite laptop | divvy remote join gpu7:4815 -",
        ] {
            assert_eq!(unknown(line), None, "{line}");
        }
        for (line, why) in [
            ("divvy run --memroy 4GiB -- x", "`divvy run` has no --memroy"),
            ("divvy wonder --memory 4GiB", "`divvy wonder` is no verb"),
            (
                "sudo divvy agent install --dry",
                "`divvy agent install` has no --dry",
            ),
        ] {
            assert_eq!(unknown(line).as_deref(), Some(why), "{line}");
        }
    }
}
