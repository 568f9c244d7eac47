//! `divvy advise`: what a program should ask for, by what it used before.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_agent::api::history::HistoryRecord;
use divvy_agent::clock;
use divvy_model::{Bytes, Fault};
use serde::Serialize;

use crate::context::Context;
use crate::output;
use crate::table::Table;
use crate::verbs::history::records;

/// Flags of `divvy advise`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy advise
  divvy advise 'python train.py'")]
pub struct Args {
    /// Only this program, as the list names it: the program and its first argument, or a lasting slice's name
    #[arg(value_name = "PROGRAM")]
    program: Option<String>,
    /// Programs of all users, as root sees them anyway, each user's by themselves
    #[arg(long)]
    all: bool,
}

/// What to ask for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The program with its first argument; for slices without one their name.
    pub program: String,
    /// The user that ran it: another user's program of the same name is another program.
    pub uid: u32,
    /// How many slices it had, among those that are remembered.
    pub runs: u64,
    /// The most memory that it held at once on a device.
    pub memory_peak_bytes: Bytes,
    /// The most memory that it might use there.
    pub memory_limit_bytes: Bytes,
    /// Allocations that were refused, in all.
    pub refused_allocations: u64,
    /// What to give as `--memory`.
    pub memory: Bytes,
    /// What to give as `--compute`, in percent, where its use of the device was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_percent: Option<u64>,
}

/// Shows it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let mut advice = advise(&records(context, args.all)?);
    advice.retain(|one| {
        args.program
            .as_ref()
            .is_none_or(|program| *program == one.program)
    });
    output::list(context.format, "AdviceList", advice, |one| &one.program, table)?;
    Ok(0)
}

fn table(advice: &[Advice], _wide: bool) -> Table {
    let of_several = advice.windows(2).any(|pair| pair[0].uid != pair[1].uid);
    let mut columns = vec![("PROGRAM", false)];
    columns.extend(of_several.then_some(("USER", false)));
    columns.extend([
        ("RUNS", true),
        ("PEAK", true),
        ("LIMIT", true),
        ("REFUSED", true),
        ("ASK FOR", false),
    ]);
    let mut table = Table::new(columns);
    for one in advice {
        let mut ask = format!("--memory {}", one.memory.to_string().replace(' ', ""));
        if let Some(percent) = one.compute_percent {
            ask.push_str(&format!(" --compute {percent}%"));
        }
        let mut row = vec![one.program.replace(char::is_control, "?")];
        row.extend(of_several.then(|| one.uid.to_string()));
        row.extend([
            one.runs.to_string(),
            one.memory_peak_bytes.to_string(),
            one.memory_limit_bytes.to_string(),
            one.refused_allocations.to_string(),
            ask,
        ]);
        table.row(row);
    }
    table
}

/// The advice for each program of a user that asked for memory, by name.
fn advise(records: &[HistoryRecord]) -> Vec<Advice> {
    let mut programs: BTreeMap<(String, u32), Vec<&HistoryRecord>> = BTreeMap::new();
    for record in records {
        let program = (program_of(record), record.uid);
        programs.entry(program).or_default().push(record);
    }
    let advice = programs
        .into_iter()
        .map(|((program, uid), runs)| of(program, uid, &runs));
    // A program whose every allocation was refused held nothing, and asks for the most advice.
    let asked = |one: &Advice| one.memory_peak_bytes > Bytes(0) || one.refused_allocations > 0;
    advice.filter(asked).collect()
}

/// `python train.py` of `/usr/bin/python train.py --epochs 3`.
fn program_of(record: &HistoryRecord) -> String {
    let name = |word: &String| {
        let name = Path::new(word).file_name();
        name.map_or_else(|| word.clone(), |name| name.to_string_lossy().into_owned())
    };
    let mut words = record.command.iter();
    let Some(program) = words.next() else {
        return record.slice.clone();
    };
    match words.next().filter(|word| !word.starts_with('-')) {
        Some(first) => format!("{} {}", name(program), name(first)),
        None => name(program),
    }
}

fn of(program: String, uid: u32, runs: &[&HistoryRecord]) -> Advice {
    let shares = || runs.iter().flat_map(|run| &run.devices);
    let peak = shares().map(|share| share.memory_peak_bytes.0).max().unwrap_or(0);
    let limit = shares()
        .map(|share| share.memory_limit_bytes.0)
        .max()
        .unwrap_or(0);
    // Limits under which an allocation was refused are too small, whatever was asked for.
    let too_small = shares()
        .filter(|share| share.refused_allocations > 0)
        .map(|share| share.memory_limit_bytes.0)
        .max();
    let enough = |bytes: u64, percent: u64| u64::try_from(u128::from(bytes) * u128::from(percent) / 100);
    let memory = enough(peak, 110)
        .unwrap_or(u64::MAX)
        .max(too_small.map_or(0, |limit| enough(limit, 150).unwrap_or(u64::MAX)));
    let busiest = runs.iter().filter_map(|run| busy(run)).max();
    Advice {
        program,
        uid,
        runs: runs.len() as u64,
        memory_peak_bytes: Bytes(peak),
        memory_limit_bytes: Bytes(limit),
        refused_allocations: shares()
            .map(|share| share.refused_allocations)
            .fold(0, u64::saturating_add),
        memory: up(memory),
        compute_percent: busiest
            .map(|percent| (percent * 12 / 10).div_ceil(5).max(1).saturating_mul(5).min(100)),
    }
}

/// The part of its time for which a slice had its device, in percent. Of a second or less it says nothing.
fn busy(run: &HistoryRecord) -> Option<u64> {
    let (begin, end) = (clock::age(&run.created_at)?, clock::age(&run.ended_at)?);
    let lived = begin.checked_sub(end)?.as_secs();
    let seconds = run.device_time_ns? / 1_000_000_000;
    (lived > 1).then(|| (seconds * 100 / lived).min(100))
}

/// Up to the next quarter of a GiB.
fn up(bytes: u64) -> Bytes {
    const STEP: u64 = 256 << 20;
    Bytes(bytes.div_ceil(STEP).max(1).saturating_mul(STEP))
}

#[cfg(test)]
mod tests {
    use divvy_agent::api::history::UsedShare;

    use super::*;

    fn run(command: &[&str], peak_mib: u64, limit_mib: u64, refused: u64) -> HistoryRecord {
        HistoryRecord {
            slice: "alice".into(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            devices: vec![UsedShare {
                device_uuid: "GPU-1".into(),
                memory_limit_bytes: Bytes(limit_mib << 20),
                memory_peak_bytes: Bytes(peak_mib << 20),
                refused_allocations: refused,
            }],
            ..HistoryRecord::default()
        }
    }

    #[test]
    fn a_program_should_ask_for_its_peak_and_a_tenth() {
        let python = ["/usr/bin/python", "/home/a/train.py", "--epochs", "3"];
        let advice = advise(&[
            run(&python, 1000, 8192, 0),
            run(&python, 3000, 8192, 0),
            run(&["./saxpy", "--n", "7"], 10, 1024, 0),
            run(&["true"], 0, 1024, 0),
            run(&[], 100, 2048, 0),
        ]);
        let of = |program: &str| {
            let one = advice.iter().find(|one| one.program == program).expect(program);
            (one.runs, one.memory.0 >> 20, one.compute_percent)
        };
        assert_eq!(of("python train.py"), (2, 3328, None));
        assert_eq!(of("saxpy"), (1, 256, None));
        assert_eq!(of("alice"), (1, 256, None), "a lasting slice has a name only");
        assert_eq!(advice.len(), 3, "of what used nothing there is nothing to say");
    }

    #[test]
    fn programs_of_two_users_are_two() {
        let of_user = |uid, peak| HistoryRecord {
            uid,
            ..run(&["python", "train.py"], peak, 8192, 0)
        };
        let advice = advise(&[of_user(1000, 1000), of_user(1001, 6000), of_user(1000, 900)]);
        let of = |one: &Advice| (one.uid, one.runs, one.memory.0 >> 20);
        assert_eq!(
            advice.iter().map(of).collect::<Vec<_>>(),
            [(1000, 2, 1280), (1001, 1, 6656)]
        );
        let said = |advice: &[Advice]| table(advice, false).to_text();
        assert!(said(&advice).contains("USER") && !said(&advice[..1]).contains("USER"));
    }

    #[test]
    fn one_that_was_refused_should_ask_for_half_as_much_again() {
        let advice = advise(&[run(&["train"], 1000, 1024, 3), run(&["train"], 500, 4096, 0)]);
        assert_eq!(
            (advice[0].memory.0 >> 20, advice[0].refused_allocations),
            (1536, 3)
        );
    }

    #[test]
    fn one_that_was_refused_everything_should_ask_for_more_than_its_limit() {
        let advice = advise(&[run(&["train"], 0, 1024, 2), run(&["true"], 0, 1024, 0)]);
        let [one] = advice.as_slice() else {
            panic!("{advice:?}")
        };
        assert_eq!((one.program.as_str(), one.memory.0 >> 20), ("train", 1536));
    }

    #[test]
    fn compute_is_what_the_busiest_run_had_and_a_fifth() {
        let mut busy = run(&["train"], 1000, 1024, 0);
        busy.created_at = "2026-01-01T00:00:00Z".into();
        busy.ended_at = "2026-01-01T00:01:40Z".into();
        busy.device_time_ns = Some(30_000_000_000);
        assert_eq!(
            advise(&[busy.clone()])[0].compute_percent,
            Some(40),
            "36 % and up"
        );
        busy.device_time_ns = Some(100_000_000_000);
        assert_eq!(advise(&[busy])[0].compute_percent, Some(100));
    }
}
