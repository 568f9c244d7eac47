//! `divvy history`: what slices used that have ended.

use divvy_agent::api::history::HistoryRecord;
use divvy_agent::read_history;
use divvy_model::{Bytes, Fault};

use crate::context::Context;
use crate::output;
use crate::table::Table;

/// Flags of `divvy history`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy history
  divvy history train --last 5
  divvy history -o json")]
pub struct Args {
    /// Only slices of this name
    #[arg(value_name = "SLICE")]
    slice: Option<String>,
    /// At most so many, the newest
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 50)]
    last: usize,
    /// Slices of all users, as root sees them anyway; their programs are shown to their users only
    #[arg(long)]
    all: bool,
}

/// Shows them, the newest last.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let mut records = records(context, args.all)?;
    records.retain(|record| args.slice.as_ref().is_none_or(|name| *name == record.slice));
    let records = records.split_off(records.len().saturating_sub(args.last));
    output::list(
        context.format,
        "HistoryList",
        records,
        |record| &record.slice,
        table,
    )?;
    Ok(0)
}

/// This user's records, or those of `all` users, by the agent, or from its files where none runs. Root looks after all.
pub fn records(context: &Context, all: bool) -> Result<Vec<HistoryRecord>, Fault> {
    let own = rustix::process::geteuid().as_raw();
    let records = match context.agent_if_any() {
        Some(agent) => agent.history()?.body.items,
        None => read_history(&context.peek(), own),
    };
    Ok(of_user(records, (!all && own != 0).then_some(own)))
}

/// Those of one user; of all where none is named. Others' would push a user's own out of a short list.
fn of_user(mut records: Vec<HistoryRecord>, uid: Option<u32>) -> Vec<HistoryRecord> {
    records.retain(|record| uid.is_none_or(|uid| record.uid == uid));
    records
}

fn table(records: &[HistoryRecord], wide: bool) -> Table {
    let mut columns = vec![
        ("ENDED", false),
        ("SLICE", false),
        ("USER", false),
        ("PEAK", true),
        ("LIMIT", true),
        ("REFUSED", true),
        ("DEVICE TIME", true),
    ];
    columns.extend(wide.then_some(("COMMAND", false)));
    let mut table = Table::new(columns);
    for record in records {
        let sum = |of: fn(&divvy_agent::api::history::UsedShare) -> u64| {
            record.devices.iter().map(of).fold(0, u64::saturating_add)
        };
        let time = record
            .device_time_ns
            .map_or_else(|| "-".to_owned(), |ns| format!("{:.1} s", ns as f64 / 1e9));
        let mut row = vec![
            record.ended_at.get(..19).unwrap_or_default().replace('T', " "),
            record.slice.clone(),
            record.uid.to_string(),
            Bytes(sum(|share| share.memory_peak_bytes.0)).to_string(),
            Bytes(sum(|share| share.memory_limit_bytes.0)).to_string(),
            sum(|share| share.refused_allocations).to_string(),
            time,
        ];
        row.extend(wide.then(|| record.command.join(" ").replace(char::is_control, "?")));
        table.row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_sees_its_own_slices_and_root_those_of_all() {
        let record = |uid| HistoryRecord {
            uid,
            ..HistoryRecord::default()
        };
        let all = vec![record(1000), record(1001), record(1000)];
        assert_eq!(of_user(all.clone(), Some(1000)), [record(1000), record(1000)]);
        assert_eq!(of_user(all.clone(), None), all);
    }
}
