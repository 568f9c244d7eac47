//! `cargo xtask words`: holds code and docs to docs/glossary.md, which lists words that are not used here, and what to say
//! in their place.
//!
//! A word is found inside names too: `slice_keeper` and `SliceKeeper` have the word `keeper`. A word that is good somewhere
//! else is held to the folders of its row: a warp has lanes, and a stream has none. What describes the past may keep its
//! words: CHANGELOG.md and docs/adr.

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

/// A row of the glossary's list.
#[derive(Debug, Default)]
struct Ban {
    /// What to say in its place.
    instead: String,
    /// The folders in which the word is not used; none of them means everywhere.
    within: Vec<String>,
}

impl Ban {
    fn covers(&self, file: &str) -> bool {
        self.within.is_empty() || self.within.iter().any(|folder| file.starts_with(folder))
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

/// The words of the glossary's second table: `| keeper, keepers | page server |`, or
/// `| lane, lanes | stream budget | crates/limiter, crates/agent |` for a word that is not used in some folders.
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
        let folders = cells.next().unwrap_or_default().split(',').map(str::trim);
        let within: Vec<String> = folders
            .filter(|folder| !folder.is_empty())
            .map(|folder| format!("{folder}/"))
            .collect();
        for word in words.split(',') {
            let ban = Ban {
                instead: instead.to_owned(),
                within: within.clone(),
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
    let lines = (1..).zip(text.lines());
    lines
        .flat_map(|(line, text)| {
            let words = words(text).map(str::to_lowercase);
            let hits = words.filter(|word| banned.get(word).is_some_and(|ban| ban.covers(file)));
            hits.map(move |word| Hit { word, line }).collect::<Vec<_>>()
        })
        .collect()
}

/// The words of a line, also those inside names.
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
        let found: Vec<(usize, String)> = hits("docs/one.md", text, &banned)
            .into_iter()
            .map(|hit| (hit.line, hit.word))
            .collect();
        let expected = [(1, "keeper"), (1, "keepers"), (3, "keeper"), (3, "keeper")];
        assert_eq!(found, expected.map(|(line, word)| (line, word.to_owned())));
        assert!(super::banned("no table").is_err());
    }

    #[test]
    fn a_word_with_folders_is_looked_for_in_them_alone() {
        let table = "## Words that are not used\n\n| not | say | within |\n|---|---|---|\n\
                     | lane, lanes | stream budget | crates/limiter, crates/agent |\n| purse | credit |\n";
        let banned = banned(table).expect("a table");
        let count = |file: &str| hits(file, "let lane = lanes.purse();", &banned).len();
        assert_eq!(count("crates/limiter/src/gate/mod.rs"), 3);
        assert_eq!(count("crates/agent/src/lib.rs"), 3);
        assert_eq!(count("crates/agents/src/lib.rs"), 1);
        assert_eq!(count("crates/ptx/src/warp.rs"), 1);
    }

    #[test]
    fn the_folders_of_the_glossary_exist() {
        let text = fs::read_to_string(workspace_root().join(GLOSSARY)).expect("the glossary");
        let banned = banned(&text).expect("its table");
        for folder in banned.values().flat_map(|ban| &ban.within) {
            assert!(workspace_root().join(folder).is_dir(), "{folder}");
        }
    }

    #[test]
    fn the_glossary_can_be_read() {
        let text = fs::read_to_string(workspace_root().join(GLOSSARY)).expect("the glossary");
        assert!(banned(&text).expect("its table").len() > 10);
    }
}
