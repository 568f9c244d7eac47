//! Python environments under the workspace, holding exactly what a requirements file lists: wheels only, each with a
//! hash that the list names. Installing one runs nothing of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::cargo::{finish, workspace_root};
use crate::debian;

/// Makes `.venv` with the packages of examples/python/requirements.txt, unless it has them already.
pub fn examples() -> anyhow::Result<()> {
    environment(
        &workspace_root().join(".venv"),
        &workspace_root().join("examples/python/requirements.txt"),
    )
}

/// Makes `target/nvcc-venv` with the packages of examples/cuda/requirements.txt: NVIDIA's nvcc. Answers where it is.
pub fn compiler() -> anyhow::Result<PathBuf> {
    let folder = workspace_root().join("target/nvcc-venv");
    environment(&folder, &workspace_root().join("examples/cuda/requirements.txt"))?;
    Ok(folder)
}

/// Makes `target/tools` with the packages of tests/tools/requirements.txt: what people watch GPUs with. Modules in the
/// folder `also` can be imported there too.
pub fn tools(also: &Path) -> anyhow::Result<()> {
    let folder = workspace_root().join("target/tools");
    environment(&folder, &workspace_root().join("tests/tools/requirements.txt"))?;
    let pointer = packages_of(&folder.join("bin/python"))?.join("divvy.pth");
    std::fs::write(&pointer, format!("{}\n", also.display()))
        .with_context(|| format!("Cannot write {}", pointer.display()))
}

/// Makes `target/jobs` with the packages of tests/jobs/requirements.txt: JupyterHub, and what slices for jobs are tested with. The
/// examples' packages can be imported there too.
pub fn jobs() -> anyhow::Result<()> {
    let folder = workspace_root().join("target/jobs");
    environment(&folder, &workspace_root().join("tests/jobs/requirements.txt"))?;
    let examples = packages_of(&workspace_root().join(".venv/bin/python"))?;
    let pointer = packages_of(&folder.join("bin/python"))?.join("examples.pth");
    std::fs::write(&pointer, format!("{}\n", examples.display()))
        .with_context(|| format!("Cannot write {}", pointer.display()))
}

/// Where an interpreter's packages lie.
fn packages_of(python: &Path) -> anyhow::Result<PathBuf> {
    let asked = Command::new(python)
        .args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        .output()
        .context("Cannot ask Python where its packages lie")?;
    let packages = String::from_utf8(asked.stdout).context("Python's packages lie at an odd path")?;
    Ok(PathBuf::from(packages.trim()))
}

/// Makes `target/nova` with the packages of tests/nova/requirements.txt: Nova's own parsers of what is written for it.
pub fn nova() -> anyhow::Result<()> {
    let list = workspace_root().join("tests/nova/requirements.txt");
    environment(&workspace_root().join("target/nova"), &list)
}

/// Makes `target/policies` with the package of tests/policies/requirements.txt: CEL, which the chart's policies are written in.
pub fn policies() -> anyhow::Result<()> {
    let list = workspace_root().join("tests/policies/requirements.txt");
    environment(&workspace_root().join("target/policies"), &list)
}

/// Makes `target/opencl` with the packages of tests/opencl/requirements.txt: PyOpenCL.
pub fn opencl() -> anyhow::Result<()> {
    let list = workspace_root().join("tests/opencl/requirements.txt");
    environment(&workspace_root().join("target/opencl"), &list)
}

/// Makes `target/ray` with the packages of tests/ray/requirements.txt: Ray and Ray Serve.
pub fn ray() -> anyhow::Result<()> {
    let list = workspace_root().join("tests/ray/requirements.txt");
    environment(&workspace_root().join("target/ray"), &list)
}

/// Makes `target/ray-oldest` with the oldest Ray that divvy_jobs is for: only where its tests were asked for.
pub fn oldest_ray() -> anyhow::Result<()> {
    if std::env::var_os("DIVVY_TEST_RAY").is_none() {
        return Ok(());
    }
    let list = workspace_root().join("tests/ray/oldest/requirements.txt");
    environment(&workspace_root().join("target/ray-oldest"), &list)
}

/// Makes `folder` a virtual environment with exactly the packages of `requirements`. Returns at once when a former run
/// finished with the same list.
pub fn environment(folder: &Path, requirements: &Path) -> anyhow::Result<()> {
    let wanted = std::fs::read_to_string(requirements)
        .with_context(|| format!("Cannot read {}", requirements.display()))?;
    // Written last: an interrupted run leaves no stamp, and the next one starts over.
    let stamp = folder.join("divvy-requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) && folder.join("bin/python").exists()
    {
        return Ok(());
    }
    let python = system_interpreter()?;
    let packages = wanted.lines().filter(|line| line.contains("==")).count();
    println!(
        "setup: installing {packages} Python packages from PyPI into {}",
        folder.display()
    );
    let start = Instant::now();
    finish(Command::new(python).args(["-m", "venv", "--clear"]).arg(folder))?;
    finish(
        Command::new(folder.join("bin/python"))
            .args([
                "-m",
                "pip",
                "--disable-pip-version-check",
                "--no-input",
                "install",
                "--quiet",
            ])
            .args(["--progress-bar", "off", "--only-binary", ":all:"])
            .args(["--require-hashes", "--no-deps", "--requirement"])
            .arg(requirements),
    )?;
    std::fs::write(&stamp, wanted).with_context(|| format!("Cannot write {}", stamp.display()))?;
    println!(
        "setup: Python packages ready after {:.0} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// A Python of 3.11 or later that can make virtual environments; Debian's is installed if there is none.
fn system_interpreter() -> anyhow::Result<&'static str> {
    const CANDIDATES: [&str; 2] = ["python3", "/usr/bin/python3"];
    let find = || CANDIDATES.into_iter().find(|python| is_usable(python));
    if let Some(python) = find() {
        return Ok(python);
    }
    debian::install(&["python3", "python3-venv"], "the Python examples")?;
    match find() {
        Some(python) => Ok(python),
        None => bail!("No Python of 3.11 or later with the venv module; the Python examples need one"),
    }
}

fn is_usable(python: &str) -> bool {
    Command::new(python)
        .args([
            "-c",
            "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
