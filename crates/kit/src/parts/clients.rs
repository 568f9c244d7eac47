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
    })
}

/// A training step in a slice and without one, in turns: the promise is one part in a hundred.
fn training(kit: &mut Kit) -> Result<(), Failure> {
    const MORE: f64 = 1.01;
    const ROUNDS: usize = 5;
    let program = program("torch");
    let step = |mut command: Command| -> Option<f64> {
        let output = command.arg(&program).arg("training").output().ok()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = said
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter_map(|line| line["seconds"].as_f64()).next_back()
    };
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        if kit.left().as_secs() < 30 {
            break;
        }
        let mut sliced = kit.slice(&["--memory", "4GiB"]);
        sliced.arg(python());
        if let (Some(bare), Some(sliced)) = (step(Command::new(python())), step(sliced)) {
            ratios.push(sliced / bare);
        }
    }
    ratios.sort_by(f64::total_cmp);
    let Some(median) = ratios.get(ratios.len() / 2).copied() else {
        return kit.found(&Finding::skipped(
            "clients.torch.cost",
            "a training step could not be timed",
        ));
    };
    kit.found(
        &Finding::promise(
            "clients.torch.cost",
            median <= MORE,
            "a training step takes so much of what it takes without the limiter",
        )
        .figure(median, Unit::Ratio)
        .details(serde_json::json!({"ratios": ratios})),
    )
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
