//! `divvy ps`: the slices.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use divvy_agent::api::SliceItems;
use divvy_agent::clock;
use divvy_container::running::Processes;
use divvy_model::{
    Bytes, ContainerRecord, DeviceRecord, DeviceShare, Fault, SliceRecord, SliceState, UnmanagedRecord,
};

use crate::config::parse_duration;
use crate::context::Context;
use crate::empty;
use crate::output::{self, Format};
use crate::share_words;
use crate::table::Table;
use crate::verbs::devices;

/// Flags of `divvy ps`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy ps
  divvy ps --watch
  divvy ps -o json")]
pub struct Args {
    /// Print only the names
    #[arg(short, long)]
    quiet: bool,
    /// Print again and again, every second or so often
    #[arg(short, long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true, default_missing_value = "1s",
          value_parser = parse_duration)]
    watch: Option<Duration>,
}

/// Lists them.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let format = if args.quiet { Format::Name } else { context.format };
    let Some(interval) = args.watch else {
        let (text, is_empty) = text(context, format)?;
        output::print(&text)?;
        if is_empty && format.is_table() {
            empty::remark_on("SliceList");
        }
        return Ok(0);
    };
    let in_place = std::io::stdout().is_terminal();
    let dated = format.is_table();
    loop {
        let (text, _) = text(context, format)?;
        if in_place {
            // Home, the text, and away with what a longer one left behind.
            let lines = text.lines().map(|line| format!("{line}\x1b[K\r\n"));
            output::print(&format!("\x1b[H{}\x1b[J", lines.collect::<String>()))?;
        } else {
            // In a file each table says of when it is.
            let when = if dated {
                format!("{}\n", clock::now())
            } else {
                String::new()
            };
            let apart = if dated { "\n" } else { "" };
            output::print(&format!("{when}{text}{apart}"))?;
            let _flushed = std::io::stdout().flush();
        }
        std::thread::sleep(interval.max(Duration::from_millis(50)));
    }
}

/// The list in this format, and whether nothing is on it.
fn text(context: &Context, format: Format) -> Result<(String, bool), Fault> {
    let for_people = format.is_table();
    let mut indexes = Indexes::default();
    let SliceItems { mut items, unmanaged } = match context.agent_of_slices()? {
        Some(agent) => {
            if for_people {
                indexes = Indexes::of(&agent.devices()?.body.items);
            }
            agent.slices()?.body
        }
        // There is no slice here; the devices may be in use all the same.
        None => SliceItems {
            items: Vec::new(),
            unmanaged: context.unmanaged_processes()?,
        },
    };
    for slice in &mut items {
        slice.containers = containers(slice);
    }
    let is_empty = items.is_empty() && unmanaged.is_empty();
    let text = match format {
        Format::Json | Format::Yaml => {
            output::document_text(format, "SliceList", &SliceItems { items, unmanaged })?
        }
        Format::Name => items.iter().map(|slice| format!("{}\n", slice.name)).collect(),
        Format::Table | Format::Wide => {
            let mut table = table(&items, &indexes, format == Format::Wide);
            let columns = table.columns();
            for process in &unmanaged {
                let mut row = outsider(process, &indexes, format == Format::Wide);
                row.resize(columns, "-".into());
                table.row(row);
            }
            match format {
                Format::Wide => table.to_text(),
                _ => table.shown(),
            }
        }
    };
    Ok((text, is_empty))
}

/// The containers that the slice's processes are in, as the kernel and the engines tell.
fn containers(slice: &SliceRecord) -> Vec<ContainerRecord> {
    let processes = Processes::default();
    let found = slice.processes.iter();
    let mut found: Vec<_> = found
        .filter_map(|process| processes.container(process.pid))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// `podman:train`, or a part of its id where it has no name that we can learn.
fn container(record: &ContainerRecord) -> String {
    const SHOWN: usize = 12;
    let name = record.name.clone();
    let name = name.unwrap_or_else(|| record.id.chars().take(SHOWN).collect());
    format!("{}:{name}", record.engine)
}

/// A row for a process that is in no slice.
fn outsider(process: &UnmanagedRecord, indexes: &Indexes, wide: bool) -> Vec<String> {
    let dash = || String::from("-");
    let mut row = vec![
        "(unmanaged)".into(),
        indexes.cell(&process.device_uuid, false),
        short(&process.device_uuid),
        process
            .memory_used_bytes
            .map_or_else(dash, |bytes| bytes.to_string()),
        dash(),
        dash(),
        dash(),
        dash(),
        "no slice".into(),
        format!("{} {}", process.command, process.pid),
    ];
    if wide {
        let user = process.uid.map_or_else(dash, |uid| uid.to_string());
        row.extend([dash(), user, dash(), dash(), dash(), dash(), dash()]);
    }
    row
}

/// Slices as a table.
pub fn table(slices: &[SliceRecord], indexes: &Indexes, wide: bool) -> Table {
    let mut columns = vec![
        ("NAME", false),
        ("DEVICE", false),
        ("UUID", false),
        ("USED", true),
        ("LIMIT", true),
        ("", true),
        ("SHARE", false),
        ("AGE", true),
        ("STATE", false),
        ("PROCESSES", false),
    ];
    if wide {
        columns.extend([
            ("ID", false),
            ("USER", true),
            ("ISOLATION", false),
            ("CONTEXT", true),
            ("OVERHEAD", true),
            ("SPILLED", true),
            ("COMMAND", false),
        ]);
    }
    let any_job = slices.iter().any(|slice| slice.job.is_some());
    if any_job {
        columns.extend([("JOB", false), ("JOB USER", false)]);
    }
    let any_account = wide && slices.iter().any(|slice| slice.account_uid.is_some());
    if any_account {
        columns.push(("ACCOUNT", true));
    }
    let any_container = slices.iter().any(|slice| !slice.containers.is_empty());
    if any_container {
        columns.push(("CONTAINER", false));
    }
    let mut table =
        Table::new(columns).without(&["", "UUID", "AGE", "PROCESSES", "SHARE", "CONTAINER", "JOB USER"]);
    for slice in slices {
        let used = if slice.usage_unknown {
            ("-".into(), "-".into())
        } else {
            (
                slice.shares.first.memory_used_bytes.to_string(),
                bar(
                    slice.shares.first.memory_used_bytes,
                    slice.shares.first.memory_limit_bytes,
                ),
            )
        };
        let mut row = vec![
            slice.name.clone(),
            indexes.cell(&slice.shares.first.device_uuid, slice.emulated_spec.is_some()),
            short(&slice.shares.first.device_uuid),
            used.0,
            slice.shares.first.memory_limit_bytes.to_string(),
            used.1,
            share_words::part(slice),
            age(&slice.created_at),
            standing(slice),
            processes(slice),
        ];
        if wide {
            row.extend([
                slice.id.clone(),
                slice.uid.to_string(),
                slice.terms.isolation.to_string(),
                slice.shares.first.context_bytes.to_string(),
                slice.shares.first.memory_overhead_bytes.to_string(),
                spilled(slice),
                commands(slice),
            ]);
        }
        if any_job {
            row.extend(match &slice.job {
                Some(job) => [format!("{}:{}", job.manager, job.id), user(slice.uid)],
                None => ["-".into(), "-".into()],
            });
        }
        if any_account {
            row.push(slice.account().to_string());
        }
        if any_container {
            let names: Vec<String> = slice.containers.iter().map(container).collect();
            row.push(match names.is_empty() {
                true => "-".into(),
                false => names.join(", "),
            });
        }
        let columns = row.len();
        table.row(row);
        for share in &slice.shares.further {
            table.row(further(slice, share, indexes, columns));
        }
    }
    table
}

/// The user's login name, or number where it has none.
fn user(uid: u32) -> String {
    let found = nix::unistd::User::from_uid(uid.into());
    found
        .ok()
        .flatten()
        .map_or_else(|| uid.to_string(), |user| user.name)
}

/// The beginning of a device's UUID.
fn short(uuid: &str) -> String {
    uuid.chars().take(12).collect()
}

/// The devices' indexes, by which people name them.
#[derive(Default)]
pub struct Indexes(Vec<(String, u32)>);

impl Indexes {
    /// Those of these devices.
    pub fn of(devices: &[DeviceRecord]) -> Self {
        Self(
            devices
                .iter()
                .map(|device| (device.uuid.clone(), device.index))
                .collect(),
        )
    }

    /// A device's index, and whether it is emulated.
    fn cell(&self, uuid: &str, emulated: bool) -> String {
        let found = self.0.iter().find(|(of, _)| of == uuid);
        let index = found.map_or_else(|| "-".into(), |(_, index)| index.to_string());
        devices::marked(&index, emulated)
    }
}

/// A row for a further device of a slice.
fn further(slice: &SliceRecord, share: &DeviceShare, indexes: &Indexes, columns: usize) -> Vec<String> {
    let (used, bar) = match slice.usage_unknown {
        true => ("-".into(), "-".into()),
        false => (
            share.memory_used_bytes.to_string(),
            bar(share.memory_used_bytes, share.memory_limit_bytes),
        ),
    };
    let mut row = vec![
        format!("({})", slice.name),
        indexes.cell(&share.device_uuid, slice.emulated_spec.is_some()),
        short(&share.device_uuid),
        used,
        share.memory_limit_bytes.to_string(),
        bar,
    ];
    row.resize(columns, "-".into());
    row
}

/// Where a slice stands, and what is out of the ordinary about it.
pub fn standing(slice: &SliceRecord) -> String {
    let mut words: Vec<String> = slice
        .conditions
        .iter()
        .map(|condition| condition.name().to_owned())
        .collect();
    if let Some(trouble) = &slice.trouble {
        words.push(format!("use not known ({})", trouble.code));
    }
    match past_the_limiter(slice) {
        0 => {}
        count => words.push(format!("{count} past the limiter")),
    }
    if words.is_empty() || slice.state != SliceState::Running {
        words.insert(0, slice.state.name().to_owned());
    }
    words.join(", ")
}

/// How often its processes took a way past the limiter; `divvy inspect` says which.
fn past_the_limiter(slice: &SliceRecord) -> u64 {
    let counts = slice
        .bypasses
        .iter()
        .filter_map(|bypass| bypass.rsplit_once(": "));
    counts
        .filter_map(|(_, count)| count.parse::<u64>().ok())
        .fold(0, u64::saturating_add)
}

/// What lies beyond the share, on all devices together, where anything may.
fn spilled(slice: &SliceRecord) -> String {
    let shares = &slice.shares;
    if slice.usage_unknown || shares.iter().all(|share| share.spill_limit_bytes.is_zero()) {
        return "-".into();
    }
    let sum = shares.iter().fold(0_u64, |sum, share| {
        sum.saturating_add(share.memory_spilled_bytes.0)
    });
    Bytes(sum).to_string()
}

/// The programs that the slice was made for, or that joined it.
fn commands(slice: &SliceRecord) -> String {
    if slice.lasting {
        let runs: Vec<String> = slice.runs.iter().map(|run| run.command.join(" ")).collect();
        return if runs.is_empty() {
            "-".into()
        } else {
            runs.join("; ")
        };
    }
    slice.command.join(" ")
}

/// Ten steps and the percentage, in ASCII.
fn bar(used: Bytes, limit: Bytes) -> String {
    let share = if limit.0 == 0 {
        0.0
    } else {
        used.0 as f64 / limit.0 as f64
    };
    let steps = ((share * 10.0).round() as usize).min(10);
    format!(
        "{}{} {:>3.0}%",
        "#".repeat(steps),
        ".".repeat(10 - steps),
        share * 100.0
    )
}

fn age(created_at: &str) -> String {
    match clock::age(created_at).map(|age| age.as_secs()) {
        None => "-".into(),
        Some(seconds @ 0..=99) => format!("{seconds}s"),
        Some(seconds @ 100..=5999) => format!("{}min", seconds / 60),
        Some(seconds @ 6000..=172_799) => format!("{}h", seconds / 3600),
        Some(seconds) => format!("{}d", seconds / 86_400),
    }
}

/// The first few, by name and number.
fn processes(slice: &SliceRecord) -> String {
    const SHOWN: usize = 3;
    let mut names: Vec<String> = slice
        .processes
        .iter()
        .take(SHOWN)
        .map(|process| format!("{} {}", process.command, process.pid))
        .collect();
    if slice.processes.len() > SHOWN {
        names.push(format!("and {} more", slice.processes.len() - SHOWN));
    }
    if names.is_empty() {
        "-".into()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_never_overflows() {
        assert_eq!(bar(Bytes(0), Bytes(100)), "..........   0%");
        assert_eq!(bar(Bytes(50), Bytes(100)), "#####.....  50%");
        assert_eq!(bar(Bytes(300), Bytes(100)), "########## 300%");
        assert_eq!(bar(Bytes(1), Bytes(0)), "..........   0%");
    }
}
