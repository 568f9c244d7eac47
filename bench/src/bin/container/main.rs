//! How long a container takes from `podman run` to its program's main, with a slice and without. Pairs of runs, one after
//! the other, in one private podman with Debian's runc; the figure is the median of the pairs' differences.
//!
//! Run as root: `cargo xtask bench container`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Parser;
use divvy_bench::artifacts;

/// What is added at most, in milliseconds.
const MOST: f64 = 30.0;

#[derive(Parser)]
struct Args {
    /// Pairs of runs
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// This program is in the container: it says when its main began
    #[arg(long, hide = true)]
    inside: bool,
}

fn main() -> anyhow::Result<()> {
    let now = now();
    let args = Args::parse();
    if args.inside {
        println!("{}", now.as_nanos());
        return Ok(());
    }
    let programs = artifacts::build(&artifacts::PRODUCT)?;
    let place = Place::new(&programs)?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    // The first pair fills caches and starts the agent.
    for round in 0..=args.rounds {
        let name = format!("round{round}");
        let bare = place.run(&["podman"], &[])?;
        let divvy = programs.join("divvy");
        let divvy = divvy.to_str().context("A path of UTF-8")?;
        let limited = place.run(&[divvy, "podman"], &["--memory", "1GiB", "--name", &name])?;
        if round > 0 {
            without.push(bare);
            with.push(limited);
        }
    }
    let mut added: Vec<f64> = with
        .iter()
        .zip(&without)
        .map(|(with, without)| with - without)
        .collect();
    println!(
        "podman run to main         {:>7.1} ms  ({:.1} to {:.1})",
        median(&mut without),
        without[0],
        without[without.len() - 1]
    );
    println!(
        "divvy podman run to main   {:>7.1} ms  ({:.1} to {:.1})",
        median(&mut with),
        with[0],
        with[with.len() - 1]
    );
    let figure = median(&mut added);
    let verdict = if figure <= MOST { "ok" } else { "MISSED" };
    println!(
        "added, median of {} pairs  {figure:>+7.1} ms  promise +{MOST} ms: {verdict}",
        added.len()
    );
    Ok(())
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A podman, a host of Divvy's and an image of its own.
struct Place {
    folder: tempfile::TempDir,
    divvy: PathBuf,
}

impl Place {
    fn new(programs: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("divvy-").tempdir()?;
        let place = Self {
            folder,
            divvy: programs.join("divvy"),
        };
        let image = place.path("image");
        for name in ["proc", "sys", "dev", "tmp", "etc", "run", "bin", "lib64"] {
            fs::create_dir_all(image.join(name))?;
        }
        fs::create_dir_all(place.path("cdi"))?;
        let own = std::env::current_exe()?;
        fs::copy(&own, image.join("bin/main"))?;
        let loads = Command::new("ldd")
            .arg(&own)
            .output()
            .context("Cannot start ldd")?;
        let loads = String::from_utf8_lossy(&loads.stdout).into_owned();
        let mut libraries: Vec<&str> = loads
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
            .collect();
        // The limiter's own.
        libraries.extend([
            "/lib/x86_64-linux-gnu/libpthread.so.0",
            "/lib/x86_64-linux-gnu/libdl.so.2",
        ]);
        libraries.extend([
            "/lib/x86_64-linux-gnu/librt.so.1",
            "/lib/x86_64-linux-gnu/libm.so.6",
        ]);
        for library in libraries {
            let to = image.join(library.trim_start_matches('/'));
            fs::create_dir_all(to.parent().context("A library lies in a folder")?)?;
            fs::copy(fs::canonicalize(library)?, to)?;
        }
        let settings = "[containers]\ndefault_ulimits=[\"nofile=1024:4096\",\"nproc=1024:2048\"]\n\
                        [engine]\ncgroup_manager=\"cgroupfs\"\nevents_logger=\"file\"\nruntime=\"runc\"\n";
        fs::write(place.path("containers.conf"), settings)?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Milliseconds from the start of the engine's command to main. Podman finds CDI files in /run/cdi, which is this
    /// place's own in a mount namespace.
    fn run(&self, engine: &[&str], flags: &[&str]) -> anyhow::Result<f64> {
        let script = "mkdir -p /run/cdi && mount --bind \"$CDI\" /run/cdi && date +%s%N && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", script, "sh"])
            .args(engine)
            .arg("--root")
            .arg(self.path("storage"))
            .arg("--runroot")
            .arg(self.path("runroot"))
            .arg("--tmpdir")
            .arg(self.path("tmp"))
            .args(["run", "--rm", "--network=none"])
            .args(flags);
        if engine.len() > 1 {
            command.arg("--cdi-directory").arg(self.path("cdi"));
        }
        command
            .arg("--rootfs")
            .arg(format!("{}:O", self.path("image").display()))
            .args(["/bin/main", "--inside"])
            .env("CDI", self.path("cdi"))
            .env("CONTAINERS_CONF", self.path("containers.conf"))
            .env("DIVVY_RUN_DIR", self.path("run"))
            .env("DIVVY_EMULATED", "h100")
            .stdin(Stdio::null());
        let output = command.output().context("Cannot start unshare")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let times: Vec<f64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
        match times[..] {
            [began, main] if output.status.success() => Ok((main - began) / 1e6),
            _ => bail!(
                "the container did not run: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            ),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _stopped = Command::new(&self.divvy)
            .args(["agent", "stop"])
            .env("DIVVY_RUN_DIR", self.path("run"))
            .stdout(Stdio::null())
            .status();
    }
}
