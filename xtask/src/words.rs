//! `cargo xtask words`: holds code and docs to docs/glossary.md, which lists words that are not used here, and what to say
//! in their place.
//!
//! A word is found inside names too: `slice_keeper` and `SliceKeeper` have the word `keeper`. What describes the past may
//! keep its words: CHANGELOG.md and docs/adr. A row's third cell lists the exceptions: names that stay, such as a field
//! of documents that an earlier version wrote, and paths where the word has its usual meaning.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, bail};

use crate::cargo::workspace_root;

/// Arguments of `cargo xtask words`.
#[derive(clap::Args)]
pub struct Args {
    /// Show where this word stands, whether the glossary has it or not
    #[arg(long, value_name = "WORD")]
    pub of: Option<String>,
}

const GLOSSARY: &str = "docs/glossary.md";
/// The heading below which the glossary lists words that are not used.
const HEADING: &str = "## Words that are not used";
/// Files of these kinds are read.
const KINDS: [&str; 7] = [".rs", ".md", ".toml", ".sh", ".py", ".yaml", ".yml"];
/// They describe the past, or list the words themselves, or come from elsewhere.
const LEFT_OUT: [&str; 5] = [
    "CHANGELOG.md",
    GLOSSARY,
    "docs/adr/",
    "/generated/",
    "xtask/src/words.rs",
];

/// What the glossary says of a word that is not used.
#[derive(Debug, Default)]
struct Ban {
    /// What to say in its place. Empty: nothing is listed.
    instead: String,
    /// Whole names, and beginnings of paths, in which the word stays. A path has a `/` or ends with `.md`.
    exceptions: Vec<String>,
}

impl Ban {
    fn excepts(&self, file: &str, name: &str) -> bool {
        let mut exceptions = self.exceptions.iter();
        exceptions.any(
            |exception| match exception.contains('/') || exception.ends_with(".md") {
                true => file.starts_with(exception.as_str()),
                false => exception == name,
            },
        )
    }
}

/// Where a word stands.
#[derive(Debug, PartialEq, Eq)]
struct Hit {
    word: String,
    line: usize,
}

/// Checks, or shows.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = workspace_root();
    let banned = match &args.of {
        Some(word) => BTreeMap::from([(word.to_lowercase(), Ban::default())]),
        None => banned(&fs::read_to_string(root.join(GLOSSARY)).context("There is no glossary")?)?,
    };
    let mut count = 0;
    for file in files()? {
        // One that is a link, or is gone in the work tree.
        let Ok(text) = fs::read_to_string(root.join(&file)) else {
            continue;
        };
        for Hit { word, line } in hits(&file, &text, &banned) {
            count += 1;
            println!("{file}:{line}: {word}{}", instead(&banned[&word].instead));
        }
    }
    match (count, &args.of) {
        (0, _) => println!("words: {} words, none of them used", banned.len()),
        (_, Some(_)) => println!("words: {count} places"),
        _ => bail!("{count} places have words that {GLOSSARY} lists as not used"),
    }
    Ok(())
}

fn instead(word: &str) -> String {
    match word.is_empty() {
        true => String::new(),
        false => format!(" (say: {word})"),
    }
}

/// Committed files of the kinds that are read.
fn files() -> anyhow::Result<Vec<String>> {
    let output = Command::new("git")
        .current_dir(workspace_root())
        .args(["ls-files", "-z"])
        .output()
        .context("Cannot start git")?;
    let names = String::from_utf8(output.stdout).context("A file's name is not UTF-8")?;
    let is_read = |name: &&str| {
        KINDS.iter().any(|kind| name.ends_with(kind)) && !LEFT_OUT.iter().any(|part| name.contains(part))
    };
    Ok(names.split('\0').filter(is_read).map(str::to_owned).collect())
}

/// The words of the glossary's second table: `| keeper, keepers | page server | keeper_pid |`.
fn banned(glossary: &str) -> anyhow::Result<BTreeMap<String, Ban>> {
    let (_, table) = glossary
        .split_once(HEADING)
        .with_context(|| format!("{GLOSSARY} has no heading `{HEADING}`"))?;
    let mut banned = BTreeMap::new();
    // The first two rows are the table's head.
    for row in table.lines().filter(|line| line.starts_with('|')).skip(2) {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (Some(words), Some(instead)) = (cells.next(), cells.next()) else {
            bail!("{GLOSSARY} has a row without two cells: {row}");
        };
        let listed = cells.next().unwrap_or_default().split(',');
        let exceptions: Vec<String> = listed
            .map(|exception| exception.trim().trim_matches('`').to_owned())
            .filter(|exception| !exception.is_empty())
            .collect();
        for word in words.split(',') {
            let ban = Ban {
                instead: instead.to_owned(),
                exceptions: exceptions.clone(),
            };
            banned.insert(word.trim().to_lowercase(), ban);
        }
    }
    match banned.is_empty() {
        true => bail!("{GLOSSARY} lists no word"),
        false => Ok(banned),
    }
}

fn hits(file: &str, text: &str, banned: &BTreeMap<String, Ban>) -> Vec<Hit> {
    let mut hits = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        for name in text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_') {
            for word in words(name).map(str::to_lowercase) {
                let is_hit = banned.get(&word).is_some_and(|ban| !ban.excepts(file, name));
                if is_hit {
                    hits.push(Hit { word, line });
                }
            }
        }
    }
    hits
}

/// The words inside a name.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphabetic())
        .flat_map(|name| {
            let mut words = Vec::new();
            let mut begin = 0;
            let bytes = name.as_bytes();
            for at in 1..bytes.len() {
                let rises = bytes[at - 1].is_ascii_lowercase() && bytes[at].is_ascii_uppercase();
                let falls =
                    bytes[at].is_ascii_uppercase() && bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
                if rises || falls {
                    words.push(&name[begin..at]);
                    begin = at;
                }
            }
            words.push(&name[begin..]);
            words
        })
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_inside_names_and_whole() {
        let table = "| say | not |\n## Words that are not used\n\n| not | say |\n|---|---|\n| keeper, keepers | page server |\n";
        let banned = banned(table).expect("a table");
        assert_eq!(banned.len(), 2);
        let text = "let slice_keeper = Keepers::new();\n// a housekeeper is none\nNVMLKeeper KEEPER";
        let found: Vec<(usize, String)> = hits("a.rs", text, &banned)
            .into_iter()
            .map(|hit| (hit.line, hit.word))
            .collect();
        let expected = [(1, "keeper"), (1, "keepers"), (3, "keeper"), (3, "keeper")];
        assert_eq!(found, expected.map(|(line, word)| (line, word.to_owned())));
        assert!(super::banned("no table").is_err());
    }

    #[test]
    fn a_word_stays_in_the_names_and_paths_that_its_row_lists() {
        let table = "## Words that are not used\n\n| not | say | but in |\n|---|---|---|\n\
                     | escape, escapes | bypass | `escape_json`, `crates/ptx/` |\n| rope | handle | |\n";
        let banned = banned(table).expect("a table");
        let count = |file: &str, text: &str| hits(file, text, &banned).len();
        assert_eq!(count("crates/ptx/src/lex.rs", "an escape, and it escapes"), 0);
        assert_eq!(count("crates/model/src/a.rs", "fn escape_json()"), 0);
        assert_eq!(
            count("crates/model/src/a.rs", "fn escape() { escape_json_text() }"),
            2
        );
        assert_eq!(count("crates/ptx/src/lex.rs", "a rope"), 1);
    }

    #[test]
    fn the_glossary_can_be_read() {
        let text = fs::read_to_string(workspace_root().join(GLOSSARY)).expect("the glossary");
        assert!(banned(&text).expect("its table").len() > 10);
    }
}
