//! `divvy run -- true` against `true`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::Figure;

/// On a host of its own: a run directory that no other process uses, one emulated device, an agent that is already up.
pub fn measure(programs: &Path, rounds: usize) -> anyhow::Result<Figure> {
    let folder = tempfile::Builder::new().prefix("divvy-").tempdir()?;
    let divvy = |arguments: &[&str]| {
        let mut command = Command::new(programs.join("divvy"));
        command
            .args(arguments)
            .env("DIVVY_RUN_DIR", folder.path().join("run"))
            .env("DIVVY_EMULATED", "h100")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    };
    let mut figure = Figure {
        name: "divvy run --memory 1GiB -- true, over true".into(),
        without: Vec::new(),
        with: Vec::new(),
        most: None,
    };
    for round in 0..=rounds {
        let bare = timed(Command::new("true").stdin(Stdio::null()))?;
        let limited = timed(&mut divvy(&["run", "--memory", "1GiB", "--", "true"]))?;
        // The first round starts the agent.
        if round > 0 {
            figure.without.push(bare);
            figure.with.push(limited);
        }
    }
    timed(&mut divvy(&["agent", "stop"])).context("The bench's agent does not stop")?;
    Ok(figure)
}

/// Milliseconds from start to end of a program that must succeed.
fn timed(command: &mut Command) -> anyhow::Result<f64> {
    let start = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("Cannot start {}", command.get_program().display()))?;
    let took = start.elapsed();
    if !status.success() {
        bail!("{} ended with {status}", command.get_program().display());
    }
    Ok(took.as_secs_f64() * 1e3)
}
