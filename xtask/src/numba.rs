//! `cargo xtask numba`: numba-cuda's own tests over the emulated device, under `cooperative` and under `enforced`. A test
//! that ends in two ways is an error, unless tests/numba/differing.md says why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail};

use crate::cargo::{cargo, finish, workspace_root};
use crate::enforced::rows;
use crate::python;

/// Arguments of `cargo xtask numba`.
#[derive(clap::Args)]
pub struct Args {
    /// Only modules whose names hold one of these texts: `cudadrv`, `test_array`
    filters: Vec<String>,
    /// Seconds after which a module's tests are ended
    #[arg(long, default_value_t = 600)]
    limit: u32,
}

const LEVELS: [&str; 2] = ["cooperative", "enforced"];
const FOLDERS: [&str; 4] = ["cudadrv", "nrt", "doc_examples", "cudapy"];

/// Runs the tests on both levels, and compares how each ended.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = workspace_root();
    python::examples()?;
    let folder = root.join("target/numba-tests");
    python::environment(&folder, &root.join("tests/numba/requirements.txt"))?;
    finish(cargo().args(["build", "--workspace", "--lib", "--bins"]))?;
    let packages = packages_of(&root.join(".venv/bin/python"))?;
    let pointer = packages_of(&folder.join("bin/python"))?.join("numba.pth");
    std::fs::write(&pointer, format!("{}\n", packages.display()))?;
    let known = rows(&std::fs::read_to_string(root.join("tests/numba/differing.md"))?);
    let mut differ: Vec<String> = Vec::new();
    let mut count = 0;
    for module in modules(&packages)? {
        let wanted = |filter: &String| module.contains(filter.as_str());
        if !args.filters.is_empty() && !args.filters.iter().any(wanted) {
            continue;
        }
        // Both at once: each waits for its interpreter and its compiler most of the time.
        let ends = std::thread::scope(|scope| {
            let (folder, module) = (&folder, module.as_str());
            let both = LEVELS.map(|level| scope.spawn(move || ends_of(folder, module, level, args.limit)));
            let ended = both.into_iter().map(|one| {
                one.join()
                    .unwrap_or_else(|_| Err(anyhow!("A thread of this task failed")))
            });
            ended.collect::<anyhow::Result<Vec<_>>>()
        })?;
        // A module that breaks off at both levels tells of no test that is equal.
        for (level, ends) in LEVELS.iter().zip(&ends) {
            if let Some(status) = ends.get(&module).filter(|_| !known.contains_key(&module)) {
                differ.push(format!("{module} broke off under {level}: {status}"));
            }
        }
        let names: BTreeSet<&String> = ends.iter().flat_map(BTreeMap::keys).collect();
        count += names.len();
        for name in names {
            let [one, other] = [0, 1].map(|at: usize| ends.get(at).and_then(|ends| ends.get(name)));
            if *name != module && one != other && !known.contains_key(name.as_str()) {
                let said = |end: Option<&String>| end.cloned().unwrap_or_else(|| "not run".to_owned());
                differ.push(format!("{name}: {}, then {}", said(one), said(other)));
            }
        }
        println!("{module}: {count} tests so far, {} differ", differ.len());
    }
    match differ.is_empty() {
        true => Ok(()),
        false => bail!("These differ between the levels:\n{}", differ.join("\n")),
    }
}

/// Where an interpreter's packages lie.
fn packages_of(python: &Path) -> anyhow::Result<PathBuf> {
    let asked = Command::new(python)
        .args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        .output()
        .context("Cannot ask Python where its packages lie")?;
    Ok(PathBuf::from(String::from_utf8(asked.stdout)?.trim()))
}

/// The modules of numba-cuda's tests that use a device.
fn modules(packages: &Path) -> anyhow::Result<Vec<String>> {
    let mut modules = Vec::new();
    for folder in FOLDERS {
        let path = packages.join("numba_cuda/numba/cuda/tests").join(folder);
        for entry in std::fs::read_dir(&path).with_context(|| format!("Cannot read {}", path.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if let Some(name) = name.strip_suffix(".py").filter(|name| name.starts_with("test_")) {
                modules.push(format!("numba.cuda.tests.{folder}.{name}"));
            }
        }
    }
    modules.sort();
    Ok(modules)
}

/// How each test of a module ended, by its name.
fn ends_of(folder: &Path, module: &str, level: &str, limit: u32) -> anyhow::Result<BTreeMap<String, String>> {
    let root = workspace_root();
    let run = run_directory(level);
    let output = Command::new("timeout")
        .arg(limit.to_string())
        .arg(root.join("target/debug/divvy"))
        .args(["run", "--isolation", level, "--memory", "8GiB", "--"])
        .arg(folder.join("bin/python"))
        .arg(root.join("tests/numba/module.py"))
        .arg(module)
        .env("DIVVY_EMULATED", "h100")
        .env("DIVVY_RUN_DIR", run)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .context("Cannot start timeout")?;
    let mut ends = read(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        ends.insert(module.to_owned(), output.status.to_string());
    }
    Ok(ends)
}

/// A run directory for each level: one agent serves all modules.
fn run_directory(level: &str) -> PathBuf {
    workspace_root().join("target/numba-tests/run").join(level)
}

/// Lines as `passed numba.cuda.tests.a.b`.
fn read(text: &str) -> BTreeMap<String, String> {
    let ends = text.lines().filter_map(|line| line.split_once(' '));
    ends.map(|(end, name)| (name.to_owned(), end.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_a_test_ended() {
        let ends = read("passed a.b\nfailed a.c\n");
        assert_eq!(ends.get("a.b").map(String::as_str), Some("passed"));
        assert_eq!(ends.get("a.c").map(String::as_str), Some("failed"));
    }
}
