//! Code blocks of a page. Each says what it is in its info string: a language, or `console` for a shell session.

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag};

/// Languages of blocks that are shown and not run.
const SHOWN: [&str; 7] = ["c", "ini", "json", "python", "text", "toml", "yaml"];

/// A shell session.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    pub how: How,
    pub commands: Vec<Command>,
}

/// What the info string says behind `console`.
#[derive(Debug, PartialEq, Eq)]
pub enum How {
    /// Nothing, or `exit: N`: it runs, and its last command ends with this status.
    Run { exit: i32 },
    /// `no-run: REASON`: it cannot run here.
    NotRun { reason: String },
}

/// A command with what the page shows of its output.
#[derive(Debug, PartialEq, Eq)]
pub struct Command {
    /// The line of the page with the command, from 1.
    pub line: usize,
    /// The command without `$ ` and `> `.
    pub text: String,
    /// The lines of the page below it. None: the output is not compared.
    pub shown: Vec<String>,
}

/// The sessions of a page.
///
/// # Errors
/// Each block that cannot be understood, with its line and what to write.
pub fn blocks(page: &str) -> Result<Vec<Block>, Vec<String>> {
    let mut found = Vec::new();
    let mut wrong = Vec::new();
    for (event, range) in Parser::new_ext(page, pulldown_cmark::Options::ENABLE_TABLES).into_offset_iter() {
        let Event::Start(Tag::CodeBlock(kind)) = event else {
            continue;
        };
        let first = page[..range.start].lines().count().max(1);
        let first = if page[..range.start].ends_with('\n') {
            first + 1
        } else {
            first
        };
        let inside = inside(page, range);
        let block = match &kind {
            CodeBlockKind::Indented => {
                Err("an indented block: write ```console, or ```text where it is no command".to_owned())
            }
            CodeBlockKind::Fenced(info) => block(info, first + 1, &inside),
        };
        match block {
            Ok(block) => found.extend(block),
            Err(why) => wrong.push(format!("line {first}: {why}")),
        }
    }
    if wrong.is_empty() { Ok(found) } else { Err(wrong) }
}

/// The lines between the fences, without the indent that a list gives them.
fn inside(page: &str, range: std::ops::Range<usize>) -> Vec<String> {
    let before = page[..range.start].rsplit('\n').next().unwrap_or_default().len();
    let lines: Vec<&str> = page[range].lines().collect();
    let last = lines.len().saturating_sub(1).max(1);
    let unindented = |line: &&str| {
        let indent = line.bytes().take(before).take_while(|byte| *byte == b' ').count();
        line[indent..].to_owned()
    };
    lines
        .get(1..last)
        .unwrap_or_default()
        .iter()
        .map(unindented)
        .collect()
}

/// One fenced block whose first line inside has this number.
fn block(info: &str, first: usize, lines: &[String]) -> Result<Option<Block>, String> {
    let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
    let rest = rest.trim();
    if SHOWN.contains(&language) {
        let command = lines.iter().any(|line| line.starts_with("$ "));
        return match (rest, command) {
            ("", false) => Ok(None),
            ("", true) => Err(format!(
                "a block of {language} has a command (`$ `): write ```console"
            )),
            _ => Err(format!("`{rest}` behind {language} means nothing")),
        };
    }
    if language != "console" {
        return Err(format!(
            "`{language}` is not known: it is one of console, {}",
            SHOWN.join(", ")
        ));
    }
    Ok(Some(Block {
        how: how(rest)?,
        commands: commands(first, lines)?,
    }))
}

fn how(rest: &str) -> Result<How, String> {
    if rest.is_empty() {
        return Ok(How::Run { exit: 0 });
    }
    let (key, value) = rest.split_once(':').unwrap_or((rest, ""));
    let value = value.trim();
    match key {
        "no-run" if value.contains(' ') => Ok(How::NotRun {
            reason: value.to_owned(),
        }),
        "no-run" => Err("`no-run: REASON` says in some words why it cannot run here".to_owned()),
        "exit" => match value.parse() {
            Ok(exit @ 1..=255) => Ok(How::Run { exit }),
            _ => Err(format!("`exit: {value}` is no status of a command that fails")),
        },
        _ => Err(format!(
            "`{rest}` is not known: `no-run: REASON` or `exit: STATUS`"
        )),
    }
}

fn commands(first: usize, lines: &[String]) -> Result<Vec<Command>, String> {
    let mut commands: Vec<Command> = Vec::new();
    for (line, text) in (first..).zip(lines) {
        if let Some(command) = text.strip_prefix("$ ") {
            let text = command.to_owned();
            commands.push(Command {
                line,
                text,
                shown: Vec::new(),
            });
            continue;
        }
        let Some(last) = commands.last_mut() else {
            return Err("a console block begins with a command (`$ `)".to_owned());
        };
        match text.strip_prefix("> ") {
            Some(more) if last.shown.is_empty() => {
                last.text.push('\n');
                last.text.push_str(more);
            }
            _ => last.shown.push(text.clone()),
        }
    }
    if commands.is_empty() {
        return Err("a console block without a command".to_owned());
    }
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Block {
        let mut blocks = blocks(text).expect("it is well written");
        assert_eq!(blocks.len(), 1);
        blocks.remove(0)
    }

    #[test]
    fn a_session_is_commands_with_their_output() {
        let block =
            one("# A\n\n```console\n$ divvy ps\nNAME\n\nalice\n$ cat <<E\n> $ no command\n> E\n```\n");
        assert_eq!(block.how, How::Run { exit: 0 });
        assert_eq!(block.commands.len(), 2);
        assert_eq!(block.commands[0].line, 4);
        assert_eq!(block.commands[0].shown, ["NAME", "", "alice"]);
        assert_eq!(block.commands[1].text, "cat <<E\n$ no command\nE");
        assert!(block.commands[1].shown.is_empty());
    }

    #[test]
    fn a_list_may_hold_a_session() {
        let block = one("1. Do\n\n   ```console exit: 5\n   $ false\n     two\n   ```\n");
        assert_eq!(block.how, How::Run { exit: 5 });
        assert_eq!(block.commands[0].line, 4);
        assert_eq!(block.commands[0].shown, ["  two"]);
    }

    #[test]
    fn what_does_not_run_says_why() {
        let block = one("```console no-run: it needs docker\n$ docker ps\n```\n");
        let reason = "it needs docker".to_owned();
        assert_eq!(block.how, How::NotRun { reason });
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (text, why) in [
            ("A\n\n    divvy ps\n", "line 3: an indented block"),
            ("```\ndivvy ps\n```\n", "line 1: `` is not known"),
            ("A\n\n```sh\ndivvy ps\n```\n", "line 3: `sh` is not known"),
            ("```console\ndivvy ps\n```\n", "begins with a command"),
            ("```console\n```\n", "without a command"),
            ("```console no-run:\n$ x\n```\n", "in some words"),
            ("```console no-run\n$ x\n```\n", "in some words"),
            ("```console skip\n$ x\n```\n", "`skip` is not known"),
            ("```console exit: 0\n$ x\n```\n", "no status"),
            ("```text\n$ divvy ps\n```\n", "has a command"),
            ("```toml no-run: it is a file\na = 1\n```\n", "means nothing"),
        ] {
            let wrong = blocks(text).expect_err(text);
            assert!(wrong[0].contains(why), "{text}: {wrong:?}");
        }
    }

    #[test]
    fn files_are_shown() {
        assert_eq!(
            blocks("```toml\na = 1\n```\n\n```text\na picture\n```\n"),
            Ok(Vec::new())
        );
    }
}
