//! `cargo xtask examples`: writes the PTX beside each CUDA source of examples/cuda again, with NVIDIA's nvcc from PyPI.
//! nvcc needs no GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::cargo::{finish, workspace_root};
use crate::python;

/// Arguments of `cargo xtask examples`.
#[derive(clap::Args)]
pub struct Args {
    /// Change nothing; fail if a PTX file differs from what its source gives
    #[arg(long)]
    check: bool,
}

/// The lowest architecture this nvcc compiles for.
const ARCHITECTURE: &str = "compute_75";
/// nvcc writes the newest PTX version, which only the newest driver takes. What our kernels use is all in PTX 7.0, the
/// version of CUDA 11.0, and ptxas confirms it.
const PTX_VERSION: &str = "7.0";

/// Compiles every source and compares or replaces its PTX.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let sources = workspace_root().join("examples/cuda");
    let tools = python::compiler()?;
    let nvidia = toolkit(&tools)?;

    let mut stale = Vec::new();
    for source in cuda_sources(&sources)? {
        let ptx = compile(&nvidia, &source)?;
        let path = source.with_extension("ptx");
        let same = fs::read_to_string(&path).is_ok_and(|old| old == ptx);
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        println!("{name}: {}", if same { "unchanged" } else { "differs" });
        if !same && args.check {
            stale.push(name);
        } else if !same {
            fs::write(&path, ptx).with_context(|| format!("Cannot write {}", path.display()))?;
        }
    }
    if !stale.is_empty() {
        bail!(
            "{} differ from what their sources give; run `cargo xtask examples`",
            stale.join(", ")
        );
    }
    Ok(())
}

/// The folder of the toolkit inside the environment: lib/python3.x/site-packages/nvidia/cu13.
fn toolkit(environment: &Path) -> anyhow::Result<PathBuf> {
    for version in fs::read_dir(environment.join("lib"))? {
        let folder = version?.path().join("site-packages/nvidia/cu13");
        if folder.join("bin/nvcc").exists() {
            return Ok(folder);
        }
    }
    bail!("The nvidia-cuda-nvcc package holds no nvcc where it used to")
}

fn cuda_sources(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "cu") {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}

/// The text of the PTX file for `source`, with its provenance on top.
fn compile(nvidia: &Path, source: &Path) -> anyhow::Result<String> {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let output = Command::new(nvidia.join("bin/nvcc"))
        .args([
            "--ptx",
            "--output-file",
            "-",
            &format!("--gpu-architecture={ARCHITECTURE}"),
        ])
        .arg(source)
        .output()
        .context("Cannot start nvcc")?;
    if !output.status.success() {
        bail!(
            "nvcc refuses {name}:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let text = String::from_utf8(output.stdout).context("nvcc wrote something else than text")?;
    let Some((before, after)) = text.split_once("\n.version ") else {
        bail!("nvcc wrote PTX of {name} without a .version line");
    };
    let after = after.split_once('\n').map_or("", |(_, rest)| rest);
    let ptx = format!(
        "// {name} of Divvy, compiled by `cargo xtask examples` for {ARCHITECTURE}; .version lowered to {PTX_VERSION}.\n\
         // Do not edit: change {name} and compile it again.\n{before}\n.version {PTX_VERSION}\n{after}"
    );
    assemble(nvidia, &name, &ptx)?;
    Ok(ptx)
}

/// Lets ptxas judge the text: it must be right as the version it says it is.
fn assemble(nvidia: &Path, name: &str, ptx: &str) -> anyhow::Result<()> {
    let file = workspace_root().join("target/examples.ptx");
    fs::write(&file, ptx)?;
    finish(
        Command::new(nvidia.join("bin/ptxas"))
            .args(["--gpu-name", "sm_75", "--output-file", "/dev/null"])
            .arg(&file),
    )
    .with_context(|| format!("ptxas refuses the PTX of {name} as version {PTX_VERSION}"))
}
