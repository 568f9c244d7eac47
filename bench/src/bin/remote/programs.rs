//! Whole programs, both ways, one after the other in each round.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use divvy_bench::statistics::median;

use crate::Args;
use crate::place::{Place, Way};

/// Programs that run at once.
const CLIENTS: usize = 64;

/// A program, without its environment.
type Program<'a> = (String, Box<dyn Fn(&Path) -> anyhow::Result<Command> + 'a>);

/// How far away a worker is, by the delay of a round trip; here where there is none.
const AWAY: [Option<&str>; 4] = [None, Some("5us"), Some("20us"), Some("100us")];

/// Runs each program both ways: with its own device, and over workers that are here and further away. Each is a ratio to
/// the run before it of the same round.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let place = Place::new()?;
    print!(
        "{:<36}{:>15}{:>15}",
        "whole programs", "in the process", "over a worker"
    );
    for delay in AWAY.iter().skip(1).flatten() {
        print!("{:>9}", format!("+{delay}"));
    }
    println!("   (ratios)");
    for (name, program) in all()? {
        let one = |way, delay: Option<&str>| {
            let mut command = program(&place.library(way))?;
            place.prepare(&mut command, way);
            if let Some(delay) = delay {
                command.env("DIVVY_REMOTE_DELAY", delay);
            }
            took(&name, &mut command)
        };
        // The first fills the caches of the file system.
        if let Err(why) = one(Way::Itself, None)? {
            println!("{name:<36}is left out: {why}");
            continue;
        }
        let mut seconds = Vec::new();
        let mut ratios = vec![Vec::new(); AWAY.len()];
        for round in 0..=args.runs {
            let itself = one(Way::Itself, None)?.map_err(|why| anyhow!("{name} failed: {why}"))?;
            for (delay, ratios) in AWAY.iter().zip(&mut ratios) {
                let worker = one(Way::Worker, *delay)?.map_err(|why| anyhow!("{name} failed: {why}"))?;
                if round > 0 {
                    ratios.push(worker / itself);
                }
            }
            seconds.push(itself);
        }
        print!("{name:<36}{:>13.2} s", median(&mut seconds));
        for (at, ratios) in ratios.iter_mut().enumerate() {
            let width = if at == 0 { 15 } else { 9 };
            print!("{:>width$.2}", median(ratios));
        }
        println!();
    }
    Ok(())
}

/// Runs a program to its end: the seconds that it took, or the last line that it said where it failed.
fn took(name: &str, command: &mut Command) -> anyhow::Result<Result<f64, String>> {
    let began = Instant::now();
    let output = command.output().with_context(|| format!("Cannot start {name}"))?;
    let took = began.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().last().unwrap_or("it said nothing").to_owned();
    Ok(output.status.success().then_some(took).ok_or(why))
}

/// The stencil, and the examples where their Python is installed.
fn all() -> anyhow::Result<Vec<Program<'static>>> {
    let mut all: Vec<Program<'static>> = vec![(
        "stencil, 512 x 512, 200 steps".to_owned(),
        Box::new(|library| stencil(library, 200)),
    )];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = root.join(".venv/bin/python");
    if !python.exists() {
        println!("The examples in Python are left out: `cargo xtask demo` installs what they need.");
        return Ok(all);
    }
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(root.join("examples/python"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    // The others need packages that not every machine has, and settings of their own.
    scripts.retain(|path| {
        std::fs::read_to_string(path).is_ok_and(|text| text.contains("from numba import cuda"))
    });
    scripts.sort();
    for script in scripts {
        let name = script
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let python = python.clone();
        all.push((
            name,
            Box::new(move |_| {
                let mut command = Command::new(&python);
                command.arg(&script);
                Ok(command)
            }),
        ));
    }
    Ok(all)
}

fn stencil(library: &Path, steps: u32) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("--program")
        .arg(library)
        .args(["--stencil", &steps.to_string()]);
    Ok(command)
}

/// Many programs at once: how long it takes until all have ended.
pub fn together(args: &Args) -> anyhow::Result<()> {
    let place = Place::new()?;
    let round = |way| {
        let began = Instant::now();
        let started: anyhow::Result<Vec<_>> = (0..CLIENTS)
            .map(|_| {
                let mut command = stencil(&place.library(way), 20)?;
                place.prepare(&mut command, way);
                command
                    .stdout(Stdio::null())
                    .spawn()
                    .context("Cannot start a program")
            })
            .collect();
        for mut child in started? {
            let status = child.wait()?;
            if !status.success() {
                bail!("One of {CLIENTS} programs ended with {status}");
            }
        }
        Ok(began.elapsed().as_secs_f64())
    };
    let (mut itself, mut worker, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.runs {
        let (a, b) = (round(Way::Itself)?, round(Way::Worker)?);
        itself.push(a);
        worker.push(b);
        ratios.push(b / a);
    }
    println!(
        "{:<44}{:>16.2}{:>16.2}{:>9.2}",
        format!("{CLIENTS} programs at once, seconds until all ended"),
        median(&mut itself),
        median(&mut worker),
        median(&mut ratios)
    );
    Ok(())
}
