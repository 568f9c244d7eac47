//! One program, twice: over the limiter in its own process, and over a worker. Both are over the emulated device, whose
//! copies are memcpy's.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use divvy_bench::statistics::median;
use serde::de::DeserializeOwned;

use crate::Args;
use crate::place::{Place, Way};
use crate::program::{Figures, Started};

/// A delay beside which all else is short: what a program takes more is as many round trips.
const DELAY_MS: u32 = 20;

/// Measures both, and prints one beside the other.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let place = Place::new()?;
    let here = program(args, &place, Way::Itself)?;
    let there = program(args, &place, Way::Worker)?;
    print(&here, &there);
    let (near, far) = (start(args, &place, 0)?, start(args, &place, DELAY_MS)?);
    let trips = |near: f64, far: f64| (far - near) / f64::from(DELAY_MS);
    println!(
        "{:<44}{:>32.2}",
        "round trips to the end of the first kernel",
        trips(near.first_kernel_ms, far.first_kernel_ms)
    );
    println!(
        "{:<44}{:>32.2}",
        "round trips of 1000 launches and their end",
        trips(near.batch_ms, far.batch_ms)
    );
    Ok(())
}

/// A program over a worker that is so far away: its start, and 1,000 launches. The median of three.
fn start(args: &Args, place: &Place, delay: u32) -> anyhow::Result<Started> {
    let mut all = Vec::new();
    for _ in 0..3 {
        let also = |command: &mut Command| {
            command.arg("--only-start");
            command.env("DIVVY_REMOTE_DELAY", format!("{delay}ms"));
        };
        all.push(output_of::<Started>(args, place, Way::Worker, also)?);
    }
    let of = |figure: fn(&Started) -> f64| median(&mut all.iter().map(figure).collect::<Vec<_>>());
    Ok(Started {
        first_kernel_ms: of(|started| started.first_kernel_ms),
        batch_ms: of(|started| started.batch_ms),
    })
}

fn program(args: &Args, place: &Place, way: Way) -> anyhow::Result<Figures> {
    program_with(args, place, way, |_| {})
}

/// Runs the program that measures; `also` adds to its environment.
pub fn program_with(
    args: &Args,
    place: &Place,
    way: Way,
    also: impl FnOnce(&mut Command),
) -> anyhow::Result<Figures> {
    output_of(args, place, way, also)
}

fn output_of<T: DeserializeOwned>(
    args: &Args,
    place: &Place,
    way: Way,
    also: impl FnOnce(&mut Command),
) -> anyhow::Result<T> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("--program")
        .arg(place.library(way))
        .args(["--rounds", &args.rounds.to_string()])
        .args(["--calls", &args.calls.to_string()]);
    if way == Way::Worker {
        command.arg("--over-worker");
    }
    place.prepare(&mut command, way);
    also(&mut command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .context("Cannot start a program")?;
    if !output.status.success() {
        bail!("A program over {way:?} ended with {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("A program prints its figures")
}

fn print(here: &Figures, there: &Figures) {
    println!(
        "{:<44}{:>16}{:>16}{:>9}",
        "", "in the process", "over a worker", "ratio"
    );
    let line = |name: &str, unit: &str, here: f64, there: f64| {
        println!(
            "{name:<44}{here:>13.1} {unit}{there:>13.1} {unit}{:>9.2}",
            there / here
        );
    };
    line(
        "start to the end of the first kernel",
        "ms",
        here.first_kernel_ms,
        there.first_kernel_ms,
    );
    line(
        "a call that waits (cuStreamQuery)",
        "ns",
        here.call_ns,
        there.call_ns,
    );
    line(
        "a call that the client answers",
        "ns",
        here.local_ns,
        there.local_ns,
    );
    line("a launch, submitted", "ns", here.launch_ns, there.launch_ns);
    line(
        "1000 launches and a synchronisation",
        "us",
        here.batch_us,
        there.batch_us,
    );
    for there in &there.copies {
        let here = here.copies.iter().find(|here| here.name == there.name);
        match here {
            Some(here) => println!(
                "{:<44}{:>11.2} GB/s{:>11.2} GB/s{:>9.2}   {:.2} and {:.2} of memcpy",
                there.name,
                here.gigabytes,
                there.gigabytes,
                there.gigabytes / here.gigabytes,
                here.of_memcpy,
                there.of_memcpy,
            ),
            None => println!(
                "{:<44}{:>16}{:>11.2} GB/s{:>9}   {:.2} of memcpy",
                there.name, "", there.gigabytes, "", there.of_memcpy,
            ),
        }
    }
    println!(
        "{:<44}{:>11.2} GB/s{:>11.2} GB/s",
        "memcpy of as much, to compare", here.memcpy, there.memcpy
    );
}
