//! Two of the same client at once, each in a slice of its own: what part of the steps each of them did.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::python::{program, python};
use crate::conversation::Conversation;
use crate::finding::{Failure, Finding, Unit};
use crate::kit::Kit;
use crate::scrub::foreign_value;

/// How far a share may be off, in parts of a hundred: steps are counted whole, and Python is between them.
const TOLERANCE: f64 = 3.0;

/// The shares of the two, and how they are capped. The second pair is hard.
const PAIRS: [(&str, [f64; 2], &str); 2] = [("30-70", [30.0, 70.0], "soft"), ("50-50", [50.0, 50.0], "hard")];

/// Runs each pair. A client's program takes `loop` as its word: it says that it is ready, is told for how many seconds,
/// and answers with the number of its steps.
pub(super) fn run(kit: &mut Kit, client: &str, limit: Duration) -> Result<(), Failure> {
    let seconds = if kit.is_emulated() { 3 } else { 8 };
    let until = Instant::now() + limit;
    for (name, shares, cap) in PAIRS {
        let check = format!("clients.together.{client}.{name}.{cap}");
        let left = until.saturating_duration_since(Instant::now());
        if left.as_secs() < 2 * seconds {
            kit.no_time(check)?;
            continue;
        }
        if let Err(why) = pair(kit, &check, (client, cap), shares, (seconds, left)) {
            kit.found(&Finding::promise(check, false, why))?;
        }
    }
    Ok(())
}

fn pair(
    kit: &mut Kit,
    check: &str,
    (client, cap): (&str, &str),
    shares: [f64; 2],
    (seconds, limit): (u64, Duration),
) -> Result<(), Failure> {
    let mut both = Vec::new();
    for share in shares {
        let compute = format!("{share}%");
        let mut command = kit.slice(&["--memory", "4GiB", "--compute", &compute, "--cap", cap]);
        command.arg(python()).arg(program(client)).arg("loop");
        if kit.is_emulated() {
            command.arg("small");
        }
        both.push(Conversation::start(command, limit)?.0);
    }
    for one in &mut both {
        one.say(&seconds.to_string())?;
    }
    let answers: Vec<Value> = both
        .iter_mut()
        .map(Conversation::hear)
        .collect::<Result<_, _>>()?;
    let steps: Vec<f64> = answers
        .iter()
        .map(|answer| answer["steps"].as_f64().ok_or("it tells of no steps"))
        .collect::<Result<_, _>>()?;
    let all: f64 = steps.iter().sum();
    if all <= 0.0 {
        return Err("neither of the two did a step".into());
    }
    let had = 100.0 * steps[0] / all;
    let off = (had - shares[0]).abs();
    let right = answers.iter().all(|answer| answer["right"] == Value::Bool(true));
    let says = format!(
        "two of {}/{} at once did {had:.1}/{:.1} of the steps, and computed {}",
        shares[0],
        shares[1],
        100.0 - had,
        if right {
            "the right numbers"
        } else {
            "wrong numbers"
        }
    );
    // The emulated device computes on the processors that the clients themselves need.
    let finding = match kit.is_emulated() && right {
        true => Finding::fact(check, says),
        false => Finding::promise(check, right && off <= TOLERANCE, says),
    };
    let answers = answers.into_iter().map(foreign_value);
    let details = json!({"steps": steps, "answers": answers.collect::<Vec<_>>()});
    kit.found(&finding.figure(off, Unit::Percent).details(details))
}
