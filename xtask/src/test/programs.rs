//! The test programs of the workspace: built once by cargo, and run by us. Cargo runs them one after the other; most use
//! one core and wait in between, so two at once take half the time.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::cargo::cargo;

/// The suites that look at processes' shares of time.
const TIMED: [&str; 3] = ["engine", "gate", "kit"];

/// Scenarios that look at processes' shares of time, so each of them runs by itself.
const ALONE: [&str; 4] = [
    "supervised::a_static_program_has_no_more_than_its_share",
    "supervised::a_program_of_many_short_processes_past_the_gate_has_no_more_than_its_share",
    "supervised::a_program_that_passes_the_gate_has_no_more_than_its_share",
    "supervised::whichever_way_a_program_passes_the_gate_it_has_no_more_than_its_share",
];

/// One test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The suite's name: the target's, as cargo has it.
    pub name: String,
    path: PathBuf,
    /// The package's folder, in which cargo runs tests.
    folder: PathBuf,
}

/// Builds all test programs, and tells which they are.
///
/// # Errors
/// The build failed, or cargo's answer has no test program.
pub fn build(jobs: &[String]) -> anyhow::Result<Vec<Program>> {
    let mut command = cargo();
    command
        .args(["test", "--workspace", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .args(jobs)
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("Cannot start cargo test")?;
    let stdout = child.stdout.take().context("Cannot read from cargo test")?;
    let mut programs = Vec::new();
    for line in BufReader::new(stdout).lines() {
        programs.extend(program_of(&line?));
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("cargo test --no-run ended with {status}");
    }
    if programs.is_empty() {
        bail!("cargo named no test program");
    }
    Ok(programs)
}

/// The test program that a message of cargo's is about, if it is about one.
fn program_of(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let path = message["executable"].as_str().filter(|_| is_test)?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    Some(Program {
        name: message["target"]["name"].as_str()?.to_owned(),
        path: path.into(),
        folder: manifest.parent()?.to_owned(),
    })
}

impl Program {
    /// Whether it runs whole programs: those wait for each other most of the time.
    pub fn is_scenarios(&self) -> bool {
        self.folder.file_name().is_some_and(|name| name == "tests")
    }

    /// Whether it looks at shares of time that processes have, so that neighbours spoil what it sees.
    pub fn is_timed(&self) -> bool {
        TIMED.contains(&self.name.as_str())
    }

    /// Those of its tests that run by themselves.
    pub fn alone(&self) -> &'static [&'static str] {
        match self.name == "stories" {
            true => &ALONE,
            false => &[],
        }
    }

    /// The command that runs its tests, so many at once.
    pub fn command(&self, threads: usize) -> Command {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("RUST_TEST_THREADS", threads.to_string())
            // A suite that finds less than it needs must fail here, not skip.
            .env("DIVVY_REQUIRE_ALL", "1")
            // The build has made what the suites start: they need not ask cargo again.
            .env("DIVVY_TEST_BUILT", "1");
        command
    }
}

#[cfg(test)]
impl Program {
    /// A program that is nowhere.
    pub fn of_test(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            path: PathBuf::from("/nowhere"),
            folder: PathBuf::from("/"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_programs_are_taken_from_cargos_messages() {
        let test = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/ptx/Cargo.toml","target":{"name":"flow"},
            "profile":{"test":true},"executable":"/w/target/debug/deps/flow-00ff"}"#;
        let flow = Program {
            name: "flow".into(),
            path: "/w/target/debug/deps/flow-00ff".into(),
            folder: "/w/crates/ptx".into(),
        };
        assert_eq!(program_of(test), Some(flow));
        for other in [
            test.replace("true", "false"),
            test.replace("compiler-artifact", "build-script-executed"),
            test.replace("\"/w/target/debug/deps/flow-00ff\"", "null"),
            "warning: no JSON".into(),
        ] {
            assert_eq!(program_of(&other), None, "{other}");
        }
    }

    #[test]
    fn scenarios_are_those_of_the_folder_tests() {
        let of = |folder: &str| Program {
            name: "stories".into(),
            path: "/stories".into(),
            folder: folder.into(),
        };
        assert!(of("/w/tests").is_scenarios());
        assert!(!of("/w/crates/agent").is_scenarios());
    }
}
