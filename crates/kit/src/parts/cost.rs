//! What a call costs with the limiter and without it, pair by pair, since a machine's other work comes and goes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::median;
use crate::finding::{Failure, Finding, Unit};
use crate::kit::{Kit, ROOM, output};
use crate::scrub::foreign;

/// What a call may cost more, in nanoseconds: SPECIFICATION.md, "Overhead of the limiter".
const MORE: [(&str, f64); 3] = [
    ("cuMemGetInfo", 60.0),
    ("cuMemAlloc", 100.0),
    ("cuLaunchKernel", 25.0),
];

/// A step of a training, launch by launch or captured, takes at most so many times as long in a slice.
const STEP: f64 = 1.01;

/// What was measured of a call in one round, in nanoseconds: without the limiter, with it, and without it again.
type Round = [f64; 3];

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    let most = if kit.is_short { 2 } else { 5 };
    let mut rounds: BTreeMap<String, Vec<Round>> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    for round in 0..most {
        // The start of a program comes after it.
        if kit.left() < longest * 3 / 2 + Duration::from_secs(5) {
            kit.is_cut |= round == 0;
            break;
        }
        let begun = Instant::now();
        let bare = || figures(&output(&mut Kit::bare_tenant("calls"))?);
        let first = bare()?;
        if round == 0 {
            for (call, bare) in &first {
                kit.found(&before_any(call, *bare).so_far())?;
            }
        }
        let sliced = figures(&output(&mut kit.tenant(&["--memory", "4GiB"], "calls"))?)?;
        let second = bare()?;
        for (call, first) in first {
            if let (Some(sliced), Some(second)) = (sliced.get(&call), second.get(&call)) {
                rounds.entry(call).or_default().push([first, *sliced, *second]);
            }
        }
        for (call, rounds) in &rounds {
            kit.found(&of_call(call, rounds, kit.is_emulated()).so_far())?;
        }
        longest = longest.max(begun.elapsed());
    }
    for (call, rounds) in rounds {
        kit.found(&of_call(&call, &rounds, kit.is_emulated()))?;
    }
    start_up(kit)
}

/// A call's check: the call's first word.
fn check_of(call: &str) -> String {
    format!("cost.{}", name_of(call))
}

fn name_of(call: &str) -> &str {
    call.split_whitespace().next().unwrap_or(call)
}

/// What one run without the limiter tells of a call.
fn before_any(call: &str, bare: f64) -> Finding {
    let says = format!("{call}: {bare:.0} ns without the limiter; it was not measured with it");
    Finding::fact(check_of(call), says).figure(bare, Unit::Nanoseconds)
}

/// What rounds tell of a call.
fn of_call(call: &str, rounds: &[Round], is_emulated: bool) -> Finding {
    let of = |figure: fn(&Round) -> f64| {
        let all: Vec<f64> = rounds.iter().map(figure).collect();
        median(&all).unwrap_or(f64::NAN)
    };
    let bare = of(|[first, _, second]| f64::midpoint(*first, *second));
    let more = of(|[first, sliced, second]| sliced - f64::midpoint(*first, *second));
    let ratio = of(|[first, sliced, second]| sliced / f64::midpoint(*first, *second));
    let spread = of(|[first, _, second]| (first - second).abs());
    let (name, check) = (name_of(call), check_of(call));
    let says = format!(
        "{call}: {bare:.0} ns without the limiter, {:.0} ns with it, in {} rounds",
        bare + more,
        rounds.len()
    );
    let is_step = call.contains(" kernels ");
    let promised = match is_step {
        true => Some(bare * (STEP - 1.0)),
        false => MORE.iter().find(|(call, _)| *call == name).map(|(_, most)| *most),
    };
    let finding = match promised {
        // The emulated driver answers faster than hardware does, and is built with checks in development.
        _ if is_emulated => Finding::fact(check, says),
        None => Finding::fact(check, says),
        Some(most) if spread > most => Finding::skipped(
            check,
            format!("two runs without the limiter differ by {spread:.0} ns, so this tells nothing: {says}"),
        ),
        Some(most) => Finding::promise(check, more <= most, says),
    };
    finding
        .figure(more, Unit::Nanoseconds)
        .details(json!({"rounds": rounds, "ratio": ratio, "spread": spread}))
}

fn figures(text: &str) -> Result<BTreeMap<String, f64>, Failure> {
    let value: Value =
        serde_json::from_str(text.trim()).map_err(|error| format!("{error}: {}", foreign(text)))?;
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
        kit.found(&of_start(least).so_far())?;
    }
    kit.found(&of_start(least))
}

fn of_start((bare, sliced): (f64, f64)) -> Finding {
    Finding::fact("cost.start", "a program's start in a slice takes longer by")
        .figure((sliced - bare) * 1e9, Unit::Nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict;

    #[test]
    fn what_is_below_the_noise_is_not_judged() {
        let verdict = |rounds: &[Round]| of_call("cuMemGetInfo", rounds, false).verdict;
        assert_eq!(verdict(&[[100.0, 150.0, 102.0]]), Verdict::Holds);
        assert_eq!(verdict(&[[100.0, 190.0, 102.0]]), Verdict::Fails);
        assert_eq!(verdict(&[[100.0, 190.0, 180.0]]), Verdict::Skipped);
        let step = |rounds: &[Round]| of_call("loop of 20 kernels of 10 us", rounds, false).verdict;
        assert_eq!(step(&[[1000.0, 1005.0, 1001.0]]), Verdict::Holds);
        assert_eq!(step(&[[1000.0, 1030.0, 1001.0]]), Verdict::Fails);
        assert_eq!(step(&[[1000.0, 1030.0, 1020.0]]), Verdict::Skipped);
        let emulated = of_call("cuMemGetInfo", &[[1.0, 999.0, 1.0]], true);
        assert_eq!(emulated.verdict, Verdict::Fact);
    }
}
