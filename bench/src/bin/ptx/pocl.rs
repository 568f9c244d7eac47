//! The PoCL side: `bench/c/pocl.c` and `kernels.cl`, compiled when the bench starts, in a process that has one processor.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

/// The median processor time of each kernel on PoCL, by its name; nothing where there is no OpenCL, or no PoCL.
///
/// # Errors
/// The compiler cannot be started, or PoCL is there and a kernel does not run on it.
pub fn measure(folder: &Path, rounds: u32, shrink: u32) -> anyhow::Result<HashMap<String, Duration>> {
    const NO_POCL: i32 = 3;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    let program = folder.join("pocl");
    let compiled = Command::new("cc")
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(sources.join("pocl.c"))
        .arg("-l:libOpenCL.so.1")
        .output()
        .context("Cannot start cc")?;
    if !compiled.status.success() {
        return Ok(HashMap::new());
    }
    let ran = Command::new(&program)
        .arg(sources.join("kernels.cl"))
        .args([rounds.to_string(), shrink.to_string()])
        .envs([("POCL_MAX_PTHREAD_COUNT", "1"), ("POCL_CPU_MAX_CU_COUNT", "1")])
        .output()
        .context("Cannot start the program for PoCL")?;
    if ran.status.code() == Some(NO_POCL) {
        return Ok(HashMap::new());
    }
    ensure!(
        ran.status.success(),
        "PoCL: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
    String::from_utf8_lossy(&ran.stdout)
        .lines()
        .map(|line| {
            let (name, seconds) = line.split_once('\t').context("A line without a tab")?;
            Ok((name.to_string(), Duration::from_secs_f64(seconds.parse()?)))
        })
        .collect()
}
