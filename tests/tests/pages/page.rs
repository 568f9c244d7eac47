//! One page: its blocks one after the other, in one home.

use divvy_tests::build::workspace;

use crate::block::{Block, Command, How, blocks};
use crate::compare::{fits, to_show};
use crate::grammar;
use crate::session::{Done, Home};

/// Runs a page, and fails with all that is not as the page says. `DIVVY_PAGES=write` writes what was printed into the
/// page instead; read what changed before you commit it.
pub fn run(path: &str) {
    let file = workspace().join(path);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
    let blocks = blocks(&text).unwrap_or_else(|wrong| panic!("{path}: {}", wrong.join("\n")));
    let mut wrong: Vec<Wrong> = Vec::new();
    for block in &blocks {
        if let How::NotRun { .. } = block.how {
            wrong.extend(block.commands.iter().filter_map(unknown));
        }
    }
    let runs = |block: &&Block| matches!(block.how, How::Run { .. });
    if blocks.iter().any(|block| runs(&block)) {
        let Some(home) = Home::new() else { return };
        for block in blocks.iter().filter(runs) {
            wrong.extend(differences(&home, block));
        }
    }
    if std::env::var_os("DIVVY_PAGES").is_some_and(|value| value == "write") {
        let (written, others): (Vec<Wrong>, Vec<Wrong>) =
            wrong.into_iter().partition(|wrong| wrong.better.is_some());
        if !written.is_empty() {
            std::fs::write(&file, rewritten(&text, &written)).expect("written");
        }
        wrong = others;
    }
    let told: Vec<String> = wrong
        .iter()
        .map(|wrong| format!("{path}:{}: {}", wrong.line, wrong.why))
        .collect();
    assert!(
        told.is_empty(),
        "\n{}\nDIVVY_PAGES=write writes what was printed into the page",
        told.join("\n\n")
    );
}

/// A command that did not do what its page says.
struct Wrong {
    line: usize,
    why: String,
    /// The lines shown under the command, and those that would be right. None where no output is at fault.
    better: Option<(usize, Vec<String>)>,
}

/// A command of a block that is not run, whose verb or flag the help does not have.
fn unknown(command: &Command) -> Option<Wrong> {
    let why = grammar::unknown(&command.text)?;
    Some(Wrong {
        line: command.line,
        why: format!("`{}`: {why}", command.text),
        better: None,
    })
}

/// The commands of a block that did something else. One that failed is the last.
fn differences(home: &Home, block: &Block) -> Vec<Wrong> {
    let How::Run { exit } = block.how else {
        return Vec::new();
    };
    let wrong = |line, why, better| Wrong { line, why, better };
    let done = match home.run(block) {
        Ok(done) => done,
        Err(line) => return vec![wrong(line, "it did not end in time".to_owned(), None)],
    };
    let mut found = Vec::new();
    let last = block.commands.len() - 1;
    let nothing = Done {
        printed: Vec::new(),
        status: None,
    };
    for (at, command) in block.commands.iter().enumerate() {
        let wanted = if at == last { exit } else { 0 };
        let done = done.get(at).unwrap_or(&nothing);
        let printed = indented(&done.printed);
        if done.status != Some(wanted) {
            let status = done.status.map_or_else(
                || "the shell ended".to_owned(),
                |status| format!("status {status}"),
            );
            let why = format!(
                "`{}`\nwanted: status {wanted}\ngot:    {status}\n{printed}",
                command.text
            );
            found.push(wrong(command.line, why, None));
            break;
        }
        if !command.shown.is_empty() && !fits(&command.shown, &done.printed) {
            let why = format!(
                "`{}`\nwanted:\n{}\ngot:\n{printed}",
                command.text,
                indented(&command.shown)
            );
            let better = Some((command.shown.len(), to_show(&command.shown, &done.printed)));
            found.push(wrong(command.line, why, better));
        }
    }
    found
}

fn indented(lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| format!("    {line}")).collect();
    lines.join("\n")
}

/// The page with other output under these commands.
fn rewritten(text: &str, wrong: &[Wrong]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    // From the end on, so that the numbers of lines before stay right.
    for Wrong { line, better, .. } in wrong.iter().rev() {
        let Some((shown, better)) = better else { continue };
        // Below the command and its continued lines.
        let more = lines[*line..]
            .iter()
            .take_while(|line| line.trim_start().starts_with("> "))
            .count();
        let indent: String = lines[line - 1]
            .chars()
            .take_while(|letter| *letter == ' ')
            .collect();
        let better = better
            .iter()
            .map(|line| format!("{indent}{line}").trim_end().to_owned());
        lines.splice(line + more..line + more + shown, better);
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_written_below_its_command() {
        let wrong = |line, shown, better: &[&str]| Wrong {
            line,
            why: String::new(),
            better: Some((shown, better.iter().map(|line| (*line).to_owned()).collect())),
        };
        let text = "```console\n$ a\nold\nolder\n```\n\n  ```console\n  $ b \\\n  > c\n  old\n  ```\n";
        let now = rewritten(text, &[wrong(2, 2, &["new"]), wrong(8, 1, &["x", "y"])]);
        assert_eq!(
            now,
            "```console\n$ a\nnew\n```\n\n  ```console\n  $ b \\\n  > c\n  x\n  y\n  ```\n"
        );
    }
}
