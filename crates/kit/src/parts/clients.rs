//! What people run, unmodified, in a slice of 4 GiB: each program prints one line of JSON for each thing that it looked at.

use std::process::Command;

use serde_json::Value;

use super::python::{each_installed, program, python};
use crate::finding::{Failure, Finding, Unit, Verdict};
use crate::kit::{Kit, last_words};

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    each_installed(kit, "clients", |kit, client| {
        run_client(kit, client)?;
        match client {
            "torch" => training(kit),
            _ => Ok(()),
        }
    })?;
    if !super::may_share(kit) {
        return Ok(());
    }
    each_installed(kit, "clients.together", |kit, client| match client {
        // Its program is PyTorch's, but for the kernel.
        "triton" if kit.left().as_secs() < 60 => Ok(()),
        _ => super::side_by_side::run(kit, client),
    })
}

/// The names of what PyTorch's program times, and what each is.
const TIMED: [(&str, &str); 2] = [
    ("training.step", "a training step"),
    ("training.captured", "a training step captured as a graph"),
];

/// A training step in a slice and without one, in turns: the promise is one part in a hundred.
fn training(kit: &mut Kit) -> Result<(), Failure> {
    const MORE: f64 = 1.01;
    const ROUNDS: usize = 5;
    let mut ratios: [Vec<f64>; 2] = Default::default();
    for _ in 0..ROUNDS {
        if kit.left().as_secs() < 30 {
            break;
        }
        let mut sliced = kit.slice(&["--memory", "4GiB"]);
        sliced.arg(python());
        let (bare, sliced) = (times(Command::new(python())), times(sliced));
        for (at, ratios) in ratios.iter_mut().enumerate() {
            if let (Some(bare), Some(sliced)) = (bare[at], sliced[at]) {
                ratios.push(sliced / bare);
            }
        }
    }
    for ((name, what), mut ratios) in TIMED.into_iter().zip(ratios) {
        let check = format!("clients.torch.cost.{name}");
        ratios.sort_by(f64::total_cmp);
        let Some(median) = ratios.get(ratios.len() / 2).copied() else {
            kit.found(&Finding::skipped(check, format!("{what} could not be timed")))?;
            continue;
        };
        let says = format!("{what} takes so much of what it takes without the limiter");
        kit.found(
            &Finding::promise(check, median <= MORE, says)
                .figure(median, Unit::Ratio)
                .details(serde_json::json!({"ratios": ratios})),
        )?;
    }
    Ok(())
}

/// The seconds of each of [`TIMED`] in one run of PyTorch's program; none where the run told of none.
fn times(mut command: Command) -> [Option<f64>; 2] {
    let output = command.arg(program("torch")).arg("training").output();
    let said = output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    );
    let lines: Vec<Value> = said
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    TIMED.map(|(name, _)| {
        let line = lines.iter().find(|line| line["check"] == name);
        line.and_then(|line| line["seconds"].as_f64())
    })
}

fn run_client(kit: &mut Kit, client: &str) -> Result<(), Failure> {
    let check = format!("clients.{client}");
    let mut command = kit.slice(&["--memory", "4GiB"]);
    let output = command.arg(python()).arg(program(client)).output();
    let output = output.map_err(|error| error.to_string())?;
    let mut lines = 0;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(said) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        lines += 1;
        let name = said["check"].as_str().unwrap_or("unnamed");
        let says = said["says"].as_str().unwrap_or_default();
        let verdict = match said["holds"].as_bool() {
            Some(true) => Verdict::Holds,
            Some(false) => Verdict::Fails,
            None => Verdict::Fact,
        };
        let mut finding = Finding::new(format!("{check}.{name}"), verdict, says);
        if let Some(bytes) = said["bytes"].as_u64() {
            finding = finding.bytes(bytes);
        }
        kit.found(&finding)?;
    }
    let says = match output.status.success() {
        true => format!("it ran to its end, with {lines} findings"),
        false => format!("{}: {}", output.status, last_words(&output.stderr)),
    };
    kit.found(&Finding::promise(
        format!("{check}.ran"),
        output.status.success(),
        says,
    ))
}
