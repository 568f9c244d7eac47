//! `cargo xtask enforced`: the scenarios once more, on the isolation level `enforced`. tests/enforced.md lists those that
//! cannot be the same there, each with its reason.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::cargo::{cargo, finish, workspace_root};
use crate::test::programs::{self, Program};

/// Arguments of `cargo xtask enforced`.
#[derive(clap::Args)]
pub struct Args {
    /// The quick ones only, as `cargo xtask test` does
    #[arg(long)]
    quick: bool,
    /// Only scenarios whose names hold this text
    filter: Option<String>,
}

/// What `cargo xtask test` runs on both levels: memory, ends of programs, and shares of compute.
const QUICK: [&str; 6] = [
    "clients::a_cudarc_program_",
    "clients::the_neighbour_goes_on",
    "compute::shares_are_what_was_asked_for",
    "death::",
    "lasting::",
    "memory::",
];

/// Runs them, and then those that differ: one of these that passes is in the list by mistake.
pub fn run(args: &Args) -> anyhow::Result<()> {
    finish(cargo().args(["build", "--workspace", "--lib", "--bins"]))?;
    let programs = programs::build(&[])?;
    if args.quick {
        return quick(&programs);
    }
    let program = stories(&programs)?;
    let differing = differing()?;
    let wanted = |name: &String| args.filter.as_ref().is_none_or(|text| name.contains(text));
    let all: Vec<String> = names(program)?.into_iter().filter(wanted).collect();
    let (others, same): (Vec<String>, Vec<String>) =
        all.into_iter().partition(|name| differing.contains_key(name));
    let mut wrong: Vec<String> = Vec::new();
    if !passes(program, &same)? {
        wrong.push("scenarios that are to be the same".to_owned());
    }
    for name in others {
        if passes(program, std::slice::from_ref(&name))? {
            wrong.push(format!("{name} passes, and tests/enforced.md lists it"));
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => bail!("Failed: {}", wrong.join("; ")),
    }
}

/// Runs the quick ones. The programs under test are built.
///
/// # Errors
/// One failed.
pub fn quick(programs: &[Program]) -> anyhow::Result<()> {
    let program = stories(programs)?;
    let differing = differing()?;
    let mut chosen = names(program)?;
    chosen
        .retain(|name| QUICK.iter().any(|prefix| name.starts_with(prefix)) && !differing.contains_key(name));
    match passes(program, &chosen)? {
        true => Ok(()),
        false => bail!("Scenarios differ on the level `enforced`"),
    }
}

fn stories(programs: &[Program]) -> anyhow::Result<&Program> {
    let mut programs = programs.iter();
    programs
        .find(|program| program.name == "stories")
        .context("There are no stories")
}

fn command(program: &Program) -> Command {
    let mut command = program.command(2);
    command
        .env("DIVVY_TEST_ISOLATION", "enforced")
        .stdin(Stdio::null());
    command
}

fn names(program: &Program) -> anyhow::Result<Vec<String>> {
    let output = command(program).arg("--list").output()?;
    let text = String::from_utf8(output.stdout)?;
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

fn passes(program: &Program, names: &[String]) -> anyhow::Result<bool> {
    if names.is_empty() {
        return Ok(true);
    }
    Ok(command(program).arg("--exact").args(names).status()?.success())
}

/// Scenarios that differ, and why.
fn differing() -> anyhow::Result<BTreeMap<String, String>> {
    let path = workspace_root().join("tests/enforced.md");
    let text = std::fs::read_to_string(&path).with_context(|| format!("Cannot read {}", path.display()))?;
    Ok(rows(&text))
}

/// The rows of the table: "| `NAME` | REASON |".
pub fn rows(text: &str) -> BTreeMap<String, String> {
    let row = |line: &str| {
        let (name, reason) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((name.to_owned(), reason.strip_suffix(" |")?.to_owned()))
    };
    text.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_name_and_a_reason() {
        let text = "# Title\n\n| scenario | why |\n|---|---|\n| `a::b` | one page |\n";
        let found = rows(text);
        assert_eq!(found.get("a::b").map(String::as_str), Some("one page"));
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn the_list_is_one_and_no_quick_prefix_is_all_of_it() {
        let all = differing().expect("the list");
        assert!(!all.is_empty());
        assert!(all.values().all(|reason| reason.len() > 10));
    }
}
