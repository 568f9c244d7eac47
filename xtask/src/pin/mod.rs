//! `cargo xtask pin`: writes each `requirements.txt` from the `requirements.in` beside it: the same packages and
//! versions, with the hashes of all their files. Only what is named there is ever installed.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context, bail};

use crate::cargo::{finish, workspace_root};
use crate::python;

/// The folders with a list, below the workspace's root.
const FOLDERS: [&str; 15] = [
    "examples/cuda",
    "examples/python",
    "tests/jobs",
    "tests/nova",
    "tests/numba",
    "tests/opencl",
    "tests/policies",
    "tests/ray",
    "tests/ray/oldest",
    "tests/tools",
    "xtask/src/deny",
    "xtask/src/dist",
    "xtask/src/floor",
    "xtask/src/pin",
    "xtask/src/record",
];

/// The oldest Python that the lists are installed with.
const PYTHON: &str = "3.11";

/// Arguments of `cargo xtask pin`.
#[derive(clap::Args)]
pub struct Args {}

/// Asks the package index for the hashes, and writes the lists.
pub fn run(_: &Args) -> anyhow::Result<()> {
    let root = workspace_root();
    let tools = root.join("target/pin");
    python::environment(&tools, &root.join("xtask/src/pin/requirements.txt"))?;
    for folder in FOLDERS {
        let written = root.join("target/requirements.txt");
        let wanted = root.join(folder).join("requirements.in");
        finish(
            Command::new(tools.join("bin/uv"))
                .args(["pip", "compile", "--quiet", "--no-deps", "--generate-hashes"])
                .args(["--no-header", "--no-annotate", "--only-binary", ":all:"])
                .args(["--python-version", PYTHON, "--output-file"])
                .arg(&written)
                .arg(&wanted),
        )?;
        let list = fs::read_to_string(&written).context("Cannot read what uv wrote")?;
        fs::remove_file(&written).context("Cannot remove what uv wrote")?;
        compare(&fs::read_to_string(&wanted)?, &list).with_context(|| format!("The list of {folder}"))?;
        let list = format!("# Written by `cargo xtask pin` from requirements.in: change that one.\n{list}");
        fs::write(wanted.with_extension("txt"), list)?;
        println!("pin: {folder}");
    }
    Ok(())
}

/// Fails unless `list` names the packages of `wanted`, each in the one version and with hashes, and nothing else.
fn compare(wanted: &str, list: &str) -> anyhow::Result<()> {
    let wanted: BTreeSet<String> = lines(wanted).map(str::to_owned).collect();
    let mut listed = BTreeSet::new();
    // A line that goes on ends in a backslash.
    for entry in lines(&list.replace("\\\n", " ")) {
        let mut words = entry.split_whitespace();
        let package = words.next().unwrap_or_default();
        let hashes: Vec<&str> = words.collect();
        let is_hash = |word: &&str| {
            word.strip_prefix("--hash=sha256:")
                .is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()))
        };
        if hashes.is_empty() || !hashes.iter().all(is_hash) {
            bail!("{package} has something else than SHA-256 hashes");
        }
        listed.insert(package.to_owned());
    }
    if let Some(odd) = listed.iter().find(|package| !is_exact(package)) {
        bail!("{odd} is no package in one version");
    }
    if wanted != listed {
        let differ: Vec<_> = wanted.symmetric_difference(&listed).collect();
        bail!("{differ:?} stand in one of the two lists only: run `cargo xtask pin`");
    }
    Ok(())
}

/// Whether it is `name==version` and nothing more: no option, no address, no range.
fn is_exact(package: &str) -> bool {
    let plain = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    package
        .split_once("==")
        .is_some_and(|(name, version)| plain(name) && plain(version) && !name.starts_with('-'))
}

/// The lines that say something.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_list_has_hashes_for_exactly_what_is_wanted() {
        for folder in FOLDERS {
            let read = |name: &str| fs::read_to_string(workspace_root().join(folder).join(name));
            let wanted = read("requirements.in").expect("it is committed");
            let list = read("requirements.txt").expect("it is committed");
            compare(&wanted, &list).unwrap_or_else(|error| panic!("{folder}: {error:#}"));
        }
    }

    #[test]
    fn no_list_is_left_out() {
        let mut found = Vec::new();
        search(workspace_root(), &mut found);
        found.sort();
        let known: Vec<_> = FOLDERS.map(|folder| workspace_root().join(folder)).to_vec();
        assert_eq!(found, known);
    }

    /// The folders below `folder` with a list, outside of what is built or hidden.
    fn search(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(folder).expect("it is readable").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && !name.starts_with('.') && name != "target" {
                search(&entry.path(), found);
            } else if name.starts_with("requirements") && name.ends_with(".txt") {
                found.push(folder.to_owned());
            }
        }
    }

    #[test]
    fn what_is_not_pinned_is_refused() {
        let hash = format!("--hash=sha256:{}", "0f".repeat(32));
        let good = format!("numpy==2.4.6 \\\n    {hash} \\\n    {hash}\n");
        assert!(compare("# why\nnumpy==2.4.6\n", &good).is_ok());
        for (wanted, list) in [
            ("numpy==2.4.6", "numpy==2.4.6".to_owned()),
            ("numpy==2.4.6", good.replace("2.4.6", "2.4.5")),
            ("numpy==2.4.6\nnumba==0.68.1", good.clone()),
            ("numpy>=2", format!("numpy>=2 {hash}")),
            ("--no-binary", format!("--no-binary {hash}")),
            ("numpy==2.4.6", good.replace("sha256", "md5")),
            ("numpy==2.4.6", good.replace("0f0f \\", "0f \\")),
        ] {
            assert!(compare(wanted, &list).is_err(), "{wanted} | {list}");
        }
    }
}
