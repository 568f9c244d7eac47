//! A tenant of the class `latency`: how long its kernel takes beside a neighbour that never stops, and alone.

use serde_json::{Value, json};

use crate::conversation::Conversation;
use crate::finding::{Failure, Finding, Unit};
use crate::kit::Kit;

/// Its kernel, in nanoseconds, its pause in microseconds, and how often it runs.
const ASK: &str = "run 1000000 4000";
/// Beside it, kernels of so many microseconds.
const BESIDE: [u64; 2] = [50, 1000];
/// The median beside kernels of 50 us is at most so many times the one alone: SPECIFICATION.md, "latency-critical".
const MORE: f64 = 1.10;

pub(super) fn run(kit: &mut Kit) -> Result<(), Failure> {
    let times = if kit.is_emulated() { 200 } else { 1000 };
    for microseconds in BESIDE {
        let check = format!("compute.latency.{microseconds}us");
        if kit.left().as_secs() < 20 {
            kit.no_time(check)?;
            continue;
        }
        if let Err(why) = one(kit, &check, microseconds, times) {
            kit.found(&Finding::promise(check, false, why))?;
        }
    }
    Ok(())
}

fn one(kit: &mut Kit, check: &str, microseconds: u64, times: u64) -> Result<(), Failure> {
    let flags = ["--memory", "1GiB", "--compute", "30%", "--class", "latency"];
    let (mut soon, _) = Conversation::start(kit.tenant(&flags, "latency"), kit.left())?;
    let ask = format!("{ASK} {times}");
    let alone = percentiles(&soon.ask(&ask)?)?;
    let (mut other, _) = Conversation::start(kit.tenant(&["--memory", "1GiB"], "spans"), kit.left())?;
    // Longer than what is measured takes: five milliseconds for each, and more where the neighbour is in the way.
    let flight = (20_000 / microseconds).max(2);
    other.say(&format!(
        "run {} {flight} {}",
        microseconds * 1000,
        1 + times / 100
    ))?;
    let beside = percentiles(&soon.ask(&ask)?)?;
    other.hear()?;
    let ratio = beside.0 / alone.0;
    let says = format!(
        "a kernel of 1 ms of the class latency: median {:.2} ms alone, {:.2} ms beside kernels of {microseconds} us; \
         99 of 100 within {:.2} and {:.2} ms",
        alone.0, beside.0, alone.1, beside.1
    );
    // Over the emulated device the host's processors are in it. Beside longer kernels nothing is promised: one that runs
    // cannot be interrupted.
    let finding = match kit.is_emulated() || microseconds > 50 {
        true => Finding::fact(check, says),
        false => Finding::promise(check, ratio <= MORE, says),
    };
    let details = json!({"alone_ms": [alone.0, alone.1], "beside_ms": [beside.0, beside.1]});
    kit.found(&finding.figure(ratio, Unit::Ratio).details(details))
}

/// The median and the 99th of a hundred, in milliseconds.
fn percentiles(answer: &Value) -> Result<(f64, f64), Failure> {
    let took: Vec<f64> =
        serde_json::from_value(answer["nanoseconds"].clone()).map_err(|error| error.to_string())?;
    let at = |part: usize| took.get(took.len() * part / 100).map(|ns| ns / 1e6);
    at(50).zip(at(99)).ok_or_else(|| "nothing was measured".into())
}
