//! What people run, unmodified, in a slice of 4 GiB: each program prints one line of JSON for each thing that it looked at.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::median;
use super::python::{each_installed, program, python};
use crate::ended::within;
use crate::finding::{Failure, Finding, Unit, Verdict};
use crate::kit::Kit;
use crate::scrub::foreign;

/// The slice of each, as its program knows it.
const MEMORY: &str = "4GiB";

/// PyTorch's allocators, each chosen once in a process: the word of the program, and PyTorch's own setting.
const BACKENDS: [(&str, &str); 3] = [
    ("native", ""),
    ("expandable", "expandable_segments:True"),
    ("async", "backend:cudaMallocAsync"),
];

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    let mut computing = Vec::new();
    each_installed(kit, "clients", |kit, client, limit| {
        let until = Instant::now() + limit;
        if let Err(why) = look(client, limit) {
            let why = format!("it does not compute here without a slice: {why}");
            return kit.found(&Finding::skipped(format!("clients.{client}"), why));
        }
        computing.push(client.to_owned());
        one(kit, client, None, until)?;
        for backend in BACKENDS {
            if client == "torch" {
                one(kit, client, Some(backend), until)?;
            }
        }
        Ok(())
    })?;
    let computes = |client: &str| computing.iter().any(|computing| computing == client);
    if !super::may_share(kit) {
        return training(kit, computes("torch"));
    }
    for (at, client) in computing.iter().enumerate() {
        // Triton's program is PyTorch's, but for the kernel.
        if client == "triton" && kit.left().as_secs() < 60 {
            continue;
        }
        let others = u32::try_from(computing.len() - at).unwrap_or(1);
        let limit = kit.left() / others;
        super::side_by_side::run(kit, client, limit)?;
    }
    training(kit, computes("torch"))
}

/// Whether the library computes on the card at all, without a slice: otherwise nothing that it does in one tells of Divvy.
fn look(client: &str, limit: Duration) -> Result<(), Failure> {
    let mut command = Command::new(python());
    command.arg(program(client)).arg("look");
    // JAX takes most of the card at once where it may.
    command.env("XLA_PYTHON_CLIENT_PREALLOCATE", "false");
    let ended = within(&mut command, limit)?;
    match ended.is_well() {
        true => Ok(()),
        false => Err(ended.why()),
    }
}

/// The names of what PyTorch's program times, and what each is.
const TIMED: [(&str, &str); 2] = [
    ("training.step", "a training step"),
    ("training.captured", "a training step captured as a graph"),
];

/// A training step in a slice and without one, in turns: the promise is one part in a hundred. What two runs without a slice
/// differ by is what the machine itself does to it.
fn training(kit: &mut Kit, computes: bool) -> Result<(), Failure> {
    const MORE: f64 = 1.01;
    const ROUNDS: usize = 3;
    if !computes {
        return Ok(());
    }
    let mut ratios: [Vec<f64>; 2] = Default::default();
    let mut spreads: [Vec<f64>; 2] = Default::default();
    for _ in 0..ROUNDS {
        if kit.left().as_secs() < 30 {
            break;
        }
        let mut slice = kit.slice(&["--memory", MEMORY]);
        slice.arg(python());
        let bare = |kit: &Kit| times(Command::new(python()), kit.left());
        let (first, sliced, second) = (bare(kit), times(slice, kit.left()), bare(kit));
        for at in 0..TIMED.len() {
            if let (Some(first), Some(sliced), Some(second)) = (first[at], sliced[at], second[at]) {
                ratios[at].push(2.0 * sliced / (first + second));
                spreads[at].push(first.max(second) / first.min(second));
            }
        }
    }
    for (at, (name, what)) in TIMED.into_iter().enumerate() {
        let check = format!("clients.torch.cost.{name}");
        let (Some(ratio), Some(spread)) = (median(&ratios[at]), median(&spreads[at])) else {
            match kit.left().as_secs() < 30 {
                true => kit.no_time(check)?,
                false => kit.found(&Finding::skipped(check, format!("{what} could not be timed")))?,
            }
            continue;
        };
        let says = format!("{what} takes so much of what it takes without the limiter");
        let finding = match spread <= MORE {
            true => Finding::promise(check, ratio <= MORE, says),
            false => Finding::skipped(
                check,
                format!(
                    "two runs without the limiter differ by {spread:.3} times, so this tells nothing: {says}"
                ),
            ),
        };
        let details = serde_json::json!({"ratios": ratios[at], "without": spreads[at]});
        kit.found(&finding.figure(ratio, Unit::Ratio).details(details))?;
    }
    Ok(())
}

/// The seconds of each of [`TIMED`] in one run of PyTorch's program; none where the run told of none.
fn times(mut command: Command, limit: Duration) -> [Option<f64>; 2] {
    let ended = within(command.arg(program("torch")).arg("training"), limit);
    let said = ended.map_or_else(|_| Vec::new(), |ended| ended.stdout);
    let said = String::from_utf8_lossy(&said).into_owned();
    let lines: Vec<Value> = said
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    TIMED.map(|(name, _)| {
        let line = lines.iter().find(|line| line["check"] == name);
        line.and_then(|line| line["seconds"].as_f64())
    })
}

/// A client's program in a slice, with the back end of its allocator that it is told.
fn one(kit: &mut Kit, client: &str, backend: Option<(&str, &str)>, until: Instant) -> Result<(), Failure> {
    let check = format!("clients.{client}");
    let ran = match backend {
        Some((name, _)) => format!("{check}.{name}.ran"),
        None => format!("{check}.ran"),
    };
    let left = until.saturating_duration_since(Instant::now());
    if left.as_secs() < 5 {
        return kit.no_time(ran);
    }
    let mut command = kit.slice(&["--memory", MEMORY]);
    command.arg(python()).arg(program(client));
    if let Some((name, setting)) = backend {
        command.arg(name).env("PYTORCH_CUDA_ALLOC_CONF", setting);
    }
    let ended = within(&mut command, left)?;
    let mut lines = 0;
    for line in String::from_utf8_lossy(&ended.stdout).lines() {
        let Ok(said) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        // A library may print JSON of its own.
        let Some(name) = said["check"].as_str() else {
            continue;
        };
        lines += 1;
        let name = if is_name(name) { name } else { "unnamed" };
        // What the library said itself comes apart from the program's own sentence.
        let says = match (said["says"].as_str().unwrap_or_default(), said["said"].as_str()) {
            (says, Some(said)) => format!("{says}: {}", foreign(said)),
            (says, None) => says.to_owned(),
        };
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
    let says = match ended.is_well() {
        true => format!("it ran to its end, with {lines} findings"),
        false => ended.why(),
    };
    kit.found(&Finding::promise(ran, ended.is_well() && lines > 0, says))
}

/// Whether this may be the name of a check: what a program prints is not all its own.
fn is_name(text: &str) -> bool {
    const LONGEST: usize = 60;
    let of_name = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    (1..=LONGEST).contains(&text.len()) && text.chars().all(of_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word() {
        assert!(is_name("cost.training-2_a"));
        for text in ["", "a\n- holds: `b`", "/home/ann", "a b"] {
            assert!(!is_name(text), "{text}");
        }
    }
}
