//! `cargo xtask record`: a moving picture of `divvy top`, from a real run. Two programs have 30 % and 70 % of an emulated
//! device under its timing model, and then other shares while they run. README.md shows the picture.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::cargo::workspace_root;
use crate::{demo, python};

/// Arguments of `cargo xtask record`.
#[derive(clap::Args)]
pub struct Args {
    /// Cargo profile to build with
    #[arg(long, default_value = "dev")]
    profile: String,
    /// Where the picture goes
    #[arg(long, default_value = "bench/results/top.svg")]
    out: PathBuf,
}

/// How long the recording is, and when the shares change.
const LASTS: Duration = Duration::from_secs(16);
const CHANGES: Duration = Duration::from_secs(8);
/// Between two readings of what each had.
const STEP: Duration = Duration::from_millis(500);
/// How long both may take to begin.
const BEGIN: Duration = Duration::from_secs(60);

/// What each program holds, in bytes. Nothing is written there, so this machine's memory is not used.
const HOLDS: u64 = 2 << 30;

/// The programs: their names, their shares at first and later, in percent.
const TENANTS: [(&str, u32, u32); 2] = [("serve", 30, 60), ("train", 70, 40)];

/// Records, and prints what each had over time.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let binaries = demo::build(&args.profile)?;
    record(&binaries, &args.out)
}

/// The same with what is built.
///
/// # Errors
/// The programs do not run, or did not get their shares.
pub fn record(binaries: &Path, out: &Path) -> anyhow::Result<()> {
    let tools = workspace_root().join("target/record");
    let folder = workspace_root().join("xtask/src/record");
    python::environment(&tools, &folder.join("requirements.txt"))?;
    if let Some(parent) = out.parent() {
        std::fs::create_dir_all(parent)?;
    }

    let host = Host::new(binaries)?;
    let mut tenants = Vec::new();
    for (name, share, _) in TENANTS {
        tenants.push(host.spinner(name, share)?);
    }
    host.until_both_run()?;

    // Its own readings are what the strips below show.
    let mut recorder = host
        .command(tools.join("bin/python"))
        .arg(folder.join("record.py"))
        .arg(out)
        .arg(LASTS.as_secs().to_string())
        .arg(binaries.join("divvy"))
        .args(["top", "--readonly", "--interval", "500ms"])
        .stdin(Stdio::piped())
        .spawn()
        .context("Cannot start the recorder")?;
    let mut captions = recorder.stdin.take().context("The recorder has an input")?;
    let first = TENANTS.map(|(name, share, _)| format!("{name}: --compute {share}%"));
    writeln!(captions, "{}", first.join("    "))?;

    let begun = Instant::now();
    let mut had = BTreeMap::<&str, Vec<f64>>::new();
    let mut is_changed = false;
    while begun.elapsed() < LASTS {
        if !is_changed && begun.elapsed() >= CHANGES {
            is_changed = true;
            let commands = host.resize_all()?;
            writeln!(captions, "{}", commands.join("    "))?;
        }
        let now = host.shares()?;
        for (name, _, _) in TENANTS {
            had.entry(name)
                .or_default()
                .push(now.get(name).copied().unwrap_or(0.0));
        }
        sleep(STEP);
    }
    let recorded = recorder.wait()?;
    drop(captions);
    if !recorded.success() {
        bail!("The recorder ended with {recorded}");
    }
    println!();
    for (name, before, after) in TENANTS {
        let values = &had[name];
        println!("  {name:<6} {before} %, then {after} %  {}", strip(values));
    }
    println!("  Each mark is what a program had of the device in one second, from 0 to 100 %.");
    println!("  recorded: {}", out.display());
    Ok(())
}

/// What a program had over time, as a line of bars.
fn strip(values: &[f64]) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |value: &f64| BARS[((value.clamp(0.0, 1.0) * 8.0).round() as usize).min(8)];
    values.iter().map(bar).collect()
}

/// A run directory of this recording's own. Its agent ends with it.
struct Host<'a> {
    binaries: &'a Path,
    run: tempfile::TempDir,
}

impl<'a> Host<'a> {
    fn new(binaries: &'a Path) -> anyhow::Result<Self> {
        let run = tempfile::Builder::new().prefix("divvy-").tempdir()?;
        Ok(Self { binaries, run })
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("DIVVY_RUN_DIR", self.run.path().join("run"))
            .env("DIVVY_EMULATED", "h100,timing=model");
        command
    }

    fn divvy(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(self.binaries.join("divvy"));
        command.args(arguments);
        command
    }

    /// A program that wants the device all the time.
    fn spinner(&self, name: &str, share: u32) -> anyhow::Result<Tenant> {
        let share = format!("{share}%");
        let mut command = self.divvy(&[
            "run",
            "--name",
            name,
            "--memory",
            "8GiB",
            "--compute",
            &share,
            "--",
        ]);
        let mut child = command
            .arg(self.binaries.join("spinner"))
            .arg("1000")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("Cannot start a program")?;
        let mut input = child.stdin.take().context("The program has an input")?;
        writeln!(input, "hold {HOLDS}")?;
        // It ends with its input, which is the tenant's from here on.
        Ok(Tenant(child, Some(input)))
    }

    /// What each slice had in the last second.
    fn shares(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let output = self.divvy(&["top", "-n", "1", "-o", "json"]).output()?;
        if !output.status.success() {
            bail!("divvy top: {}", String::from_utf8_lossy(&output.stderr));
        }
        let usage: Value = serde_json::from_slice(&output.stdout)?;
        let items = usage["items"].as_array().into_iter().flatten();
        Ok(items
            .filter_map(|item| {
                let had = item["busy_1s_ratio"]
                    .as_f64()
                    .or(item["used_1s_ratio"].as_f64())?;
                Some((item["slice"].as_str()?.to_owned(), had))
            })
            .collect())
    }

    fn until_both_run(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < BEGIN {
            let now = self.shares()?;
            if TENANTS
                .iter()
                .all(|(name, _, _)| now.get(*name).is_some_and(|had| *had > 0.1))
            {
                return Ok(());
            }
            sleep(STEP);
        }
        bail!("The programs do not run: {:?}", self.shares()?)
    }

    /// Gives each its later share, those that get less first. Answers the commands.
    fn resize_all(&self) -> anyhow::Result<Vec<String>> {
        let mut tenants = TENANTS;
        tenants.sort_by_key(|(_, before, after)| i64::from(*after) - i64::from(*before));
        let mut commands = Vec::new();
        for (name, _, share) in tenants {
            let share = format!("{share}%");
            let words = ["resize", name, "--compute", &share];
            let output = self.divvy(&words).output()?;
            if !output.status.success() {
                bail!("divvy resize: {}", String::from_utf8_lossy(&output.stderr));
            }
            commands.push(format!("$ divvy {}", words.join(" ")));
        }
        Ok(commands)
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        // What cannot be ended ends by itself a minute after its last slice.
        let _ = self.divvy(&["agent", "stop"]).output();
    }
}

/// A program that ends with its input.
struct Tenant(Child, Option<ChildStdin>);

impl Drop for Tenant {
    fn drop(&mut self) {
        drop(self.1.take());
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_has_a_mark_for_each_reading() {
        assert_eq!(strip(&[0.0, 0.3, 0.7, 1.0, 2.0, -1.0]), " ▂▆██ ");
    }

    #[test]
    fn shares_fit_on_the_device_before_and_after() {
        let sum = |of: fn(&(&str, u32, u32)) -> u32| TENANTS.iter().map(of).sum::<u32>();
        assert_eq!((sum(|tenant| tenant.1), sum(|tenant| tenant.2)), (100, 100));
    }
}
