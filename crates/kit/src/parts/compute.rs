//! Who had the device: tenants launch kernels that write down when they began and ended, by the device's own clock.

use serde_json::{Value, json};

use crate::conversation::Conversation;
use crate::finding::{Failure, Finding, Unit};
use crate::kit::Kit;

/// How far a share may be off, in parts of a hundred of the device.
const TOLERANCE: f64 = 2.0;
/// How far, where tenants waited for processors: beyond it that is no excuse.
const STARVED: f64 = 10.0;
/// A tenant that waited for a processor for more of the time than this, in percent, could not always use what it was given.
const BUSY: f64 = 20.0;

/// How much work each tenant has launched ahead, in microseconds: more than it ever waits for a processor.
const AHEAD_US: u64 = 60_000;

/// Soft shares are judged of kernels up to this length, in microseconds. Races are too short for longer ones: first launches
/// of unknown length overlap, and what they cost is repaid in the seconds after.
const SOFT_US: u64 = 30_000;

/// One race: what each tenant was promised, in percent, and how long its kernels last.
struct Race {
    name: &'static str,
    flags: &'static [&'static str],
    shares: &'static [f64],
    microseconds: u64,
    how: How,
}

/// How the tenants run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// In slices, launch by launch.
    Launches,
    /// In slices, ten launches as a graph.
    Graphs,
    /// One in a slice, with nothing beside it: its share is of all the time.
    Alone,
    /// In no slices: the hardware's own turns, of which nothing was promised.
    Hardware,
}

impl Race {
    /// Whether shares of this race are promised.
    fn is_promised(&self) -> bool {
        let is_soft = !self.flags.contains(&"hard");
        self.how != How::Hardware && !(is_soft && self.microseconds > SOFT_US)
    }
}

const fn race(
    name: &'static str,
    flags: &'static [&'static str],
    shares: &'static [f64],
    microseconds: u64,
    how: How,
) -> Race {
    Race {
        name,
        flags,
        shares,
        microseconds,
        how,
    }
}

const HARD: &[&str] = &["--cap", "hard"];
/// Alone and with a soft cap it has what others do not use: all.
const SOFT_30: &[&str] = &["--compute", "30%", "--cap", "soft"];

/// In order of worth: the first is the short form, the first eight are what the emulated device is asked.
const RACES: &[Race] = &[
    race("30-70.1ms", &[], &[30.0, 70.0], 1000, How::Launches),
    race("50-50.1ms", &[], &[50.0, 50.0], 1000, How::Launches),
    race("20-30-50.1ms", &[], &[20.0, 30.0, 50.0], 1000, How::Launches),
    race("30-70.1ms.hard", HARD, &[30.0, 70.0], 1000, How::Launches),
    race("30-70.1ms.graphs", &[], &[30.0, 70.0], 1000, How::Graphs),
    race("30.1ms.hard.alone", HARD, &[30.0], 1000, How::Alone),
    race("30.1ms.alone", SOFT_30, &[100.0], 1000, How::Alone),
    race("50-50.1ms.hardware", &[], &[50.0, 50.0], 1000, How::Hardware),
    race("30-70.50us", &[], &[30.0, 70.0], 50, How::Launches),
    race("30-70.20ms", &[], &[30.0, 70.0], 20_000, How::Launches),
    race("30-70.300ms.hard", HARD, &[30.0, 70.0], 300_000, How::Launches),
    race("30-70.80ms", &[], &[30.0, 70.0], 80_000, How::Launches),
    race("30-70.300ms", &[], &[30.0, 70.0], 300_000, How::Launches),
];

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    let (races, seconds) = match (kit.is_short, kit.is_emulated()) {
        (true, _) => (&RACES[..1], 5),
        (false, true) => (&RACES[..8], 4),
        (false, false) => (RACES, 8),
    };
    for race in races {
        if kit.left().as_secs() < seconds + 5 {
            kit.no_time(format!("compute.{}", race.name))?;
            continue;
        }
        if let Err(why) = run_race(kit, race, seconds) {
            kit.found(&Finding::promise(format!("compute.{}", race.name), false, why))?;
        }
    }
    if kit.is_short {
        return Ok(());
    }
    super::latency::run(kit)
}

fn run_race(kit: &mut Kit, race: &Race, seconds: u64) -> Result<(), Failure> {
    let mut tenants = Vec::new();
    for share in race.shares {
        let compute = format!("{share}%");
        let mut flags = vec!["--memory", "1GiB"];
        if !race.flags.contains(&"--compute") {
            flags.extend(["--compute", &compute]);
        }
        flags.extend(race.flags);
        let command = match race.how {
            How::Hardware => Kit::bare_tenant("spans"),
            How::Launches | How::Graphs | How::Alone => kit.tenant(&flags, "spans"),
        };
        tenants.push(Conversation::start(command, kit.left())?.0);
    }
    for tenant in &mut tenants {
        let flight = (AHEAD_US / race.microseconds).max(2);
        let word = if race.how == How::Graphs { "graphs" } else { "run" };
        tenant.say(&format!("{word} {} {flight} {seconds}", race.microseconds * 1000))?;
    }
    let answers: Vec<Value> = tenants
        .iter_mut()
        .map(Conversation::hear)
        .collect::<Result<_, _>>()?;
    let spans: Vec<Vec<(u64, u64)>> = answers.iter().map(spans_of).collect::<Result<_, _>>()?;
    let waits = answers
        .iter()
        .filter_map(|answer| answer["waited_percent"].as_f64());
    let waited = waits.fold(0.0, f64::max);
    let had = device_time(&spans);
    let all: f64 = match race.how {
        How::Alone => window(&spans[0]),
        _ => had.iter().sum(),
    };
    if all <= 0.0 {
        return Err("no kernel ran while all tenants wanted the device".into());
    }
    let shares: Vec<f64> = had.iter().map(|had| 100.0 * had / all).collect();
    let off = shares
        .iter()
        .zip(race.shares)
        .map(|(had, promised)| (had - promised).abs())
        .fold(0.0, f64::max);
    let words: Vec<String> = shares.iter().map(|share| format!("{share:.1}")).collect();
    let of_what = if race.how == How::Alone {
        "the time"
    } else {
        "what all had"
    };
    let says = format!(
        "tenants of {} had {} of {of_what}, with kernels of {} us",
        race.shares
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("/"),
        words.join("/"),
        race.microseconds
    );
    let check = format!("compute.{}", race.name);
    let finding = match off <= TOLERANCE || off > STARVED || waited <= BUSY {
        _ if race.how == How::Hardware => Finding::fact(check, says),
        _ if !race.is_promised() => {
            let says = format!("{says}; a race is too short to judge soft shares of kernels over 30 ms");
            Finding::fact(check, says)
        }
        // The emulated device needs a processor between two kernels, and so does the agent: less tells nothing there.
        _ if race.how == How::Alone && kit.is_emulated() && shares[0] < race.shares[0] => {
            Finding::fact(check, says)
        }
        true => Finding::promise(check, off <= TOLERANCE, says),
        false => Finding::skipped(
            check,
            format!(
                "a tenant waited for a processor {waited:.0} % of the time, so this tells nothing: {says}"
            ),
        ),
    };
    let launches: Vec<usize> = spans.iter().map(Vec::len).collect();
    kit.found(
        &finding
            .figure(off, Unit::Percent)
            .details(json!({"shares": shares, "launches": launches, "waited_percent": waited})),
    )
}

fn spans_of(answer: &Value) -> Result<Vec<(u64, u64)>, Failure> {
    serde_json::from_value(answer["spans"].clone()).map_err(|error| error.to_string())
}

/// From the first kernel's begin to the last one's end, in nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "seconds in nanoseconds")]
fn window(spans: &[(u64, u64)]) -> f64 {
    let begin = spans.first().map_or(0, |span| span.0);
    let end = spans.last().map_or(0, |span| span.1);
    end.saturating_sub(begin) as f64
}

/// How much of the device each had while all of them wanted it, in nanoseconds. Where kernels of several overlap, as the
/// hardware's own turns have them, the time is divided among those that ran.
fn device_time(spans: &[Vec<(u64, u64)>]) -> Vec<f64> {
    if spans.iter().any(Vec::is_empty) {
        return vec![0.0; spans.len()];
    }
    let begin = spans
        .iter()
        .filter_map(|spans| spans.first())
        .map(|span| span.0)
        .max();
    let end = spans
        .iter()
        .filter_map(|spans| spans.last())
        .map(|span| span.1)
        .min();
    let (Some(begin), Some(end)) = (begin, end) else {
        return vec![0.0; spans.len()];
    };
    // Each change: when, of which tenant, whether it begins.
    let mut changes: Vec<(u64, usize, i32)> = Vec::new();
    for (tenant, spans) in spans.iter().enumerate() {
        for (from, to) in spans {
            let (from, to) = ((*from).max(begin), (*to).min(end));
            if from < to {
                changes.extend([(from, tenant, 1), (to, tenant, -1)]);
            }
        }
    }
    changes.sort_unstable();
    let mut running = vec![0; spans.len()];
    let mut had = vec![0.0; spans.len()];
    let mut before = begin;
    for (at, tenant, change) in changes {
        let active = running.iter().filter(|running| **running > 0).count();
        if active > 0 {
            #[expect(clippy::cast_precision_loss, reason = "seconds in nanoseconds")]
            let each = (at - before) as f64 / active as f64;
            for (had, running) in had.iter_mut().zip(&running) {
                if *running > 0 {
                    *had += each;
                }
            }
        }
        before = at;
        running[tenant] += change;
    }
    had
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_shares_of_long_kernels_are_facts() {
        let facts: Vec<&str> = RACES
            .iter()
            .filter(|race| !race.is_promised())
            .map(|race| race.name)
            .collect();
        assert_eq!(facts, ["50-50.1ms.hardware", "30-70.80ms", "30-70.300ms"]);
    }

    #[test]
    fn time_counts_while_all_want_it_and_is_divided_where_kernels_overlap() {
        // The second begins at 10 and the first ends at 100.
        let spans = [vec![(0, 30), (60, 100)], vec![(10, 20), (30, 60), (90, 130)]];
        let had = device_time(&spans);
        // 10..20 and 90..100 are divided; 20..30 and 60..90 are the first's, 30..60 the second's.
        assert_eq!(had, [50.0, 40.0]);
        assert_eq!(device_time(&[vec![], vec![(1, 2)]]), [0.0, 0.0]);
    }
}
