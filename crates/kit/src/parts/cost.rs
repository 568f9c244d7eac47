//! What a call costs with the limiter and without it, pair by pair, since a machine's other work comes and goes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::finding::{Failure, Finding, Unit};
use crate::kit::{Kit, ROOM, output};

/// What a call may cost more, in nanoseconds: SPECIFICATION.md, "Overhead of the limiter".
const MORE: [(&str, f64); 3] = [
    ("cuMemGetInfo", 60.0),
    ("cuMemAlloc", 100.0),
    ("cuLaunchKernel", 25.0),
];

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    /// A step of a training, launch by launch or captured, takes at most so many times as long in a slice.
    const STEP: f64 = 1.01;
    let rounds = if kit.is_short { 2 } else { 5 };
    let mut pairs: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for _ in 0..rounds {
        let bare = figures(&output(&mut Kit::bare_tenant("calls"))?)?;
        let sliced = figures(&output(&mut kit.tenant(&["--memory", "4GiB"], "calls"))?)?;
        for (call, bare) in bare {
            if let Some(sliced) = sliced.get(&call) {
                pairs.entry(call).or_default().push((bare, *sliced));
            }
        }
    }
    for (call, mut pairs) in pairs {
        pairs.sort_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
        let (bare, sliced) = pairs[pairs.len() / 2];
        let (more, ratio) = (sliced - bare, sliced / bare);
        let name = call.split_whitespace().next().unwrap_or(&call);
        let says = format!("{call}: {bare:.0} ns without the limiter, {sliced:.0} ns with it");
        let check = format!("cost.{name}");
        // The emulated driver answers faster than hardware does, and is built with checks in development.
        let finding = match kit.is_emulated() {
            true => Finding::fact(check, says),
            false if call.contains(" kernels ") => Finding::promise(check, ratio <= STEP, says),
            false => {
                let promised = MORE.iter().find(|(call, _)| *call == name);
                Finding::promise(check, promised.is_some_and(|(_, most)| more <= *most), says)
            }
        };
        let finding = finding
            .figure(more, Unit::Nanoseconds)
            .details(json!({"pairs": pairs, "ratio": ratio}));
        kit.found(&finding)?;
    }
    start_up(kit)
}

fn figures(text: &str) -> Result<BTreeMap<String, f64>, Failure> {
    let value: Value = serde_json::from_str(text.trim()).map_err(|error| format!("{error}: {text}"))?;
    serde_json::from_value(value["nanoseconds"].clone()).map_err(|error| error.to_string())
}

/// How long a program's start takes more, `divvy run` and all.
fn start_up(kit: &mut Kit) -> Result<(), Failure> {
    let mut least = (f64::INFINITY, f64::INFINITY);
    for _ in 0..5 {
        for (place, mut command) in [
            (&mut least.0, std::process::Command::new("true")),
            (&mut least.1, {
                let mut command = kit.slice(&["--memory", ROOM]);
                command.arg("true");
                command
            }),
        ] {
            let begun = std::time::Instant::now();
            output(&mut command)?;
            *place = place.min(begun.elapsed().as_secs_f64());
        }
    }
    let finding = Finding::fact("cost.start", "a program's start in a slice takes longer by")
        .figure((least.1 - least.0) * 1e9, Unit::Nanoseconds);
    kit.found(&finding)
}
