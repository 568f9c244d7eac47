//! `divvy config show`: the settings in force.

use clap::Subcommand;
use divvy_model::Fault;

use crate::context::Context;
use crate::output;
use crate::table::Table;

/// Flags of `divvy config`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy config show --origin", after_long_help = crate::env::help())]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show every setting
    Show {
        /// Show where each value comes from
        #[arg(long)]
        origin: bool,
    },
}

/// Shows them.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let Verb::Show { origin } = args.verb;
    output::list(
        context.format,
        "ConfigList",
        context.config.values(),
        |value| value.key,
        |values, wide| {
            let with_origin = origin || wide;
            let mut columns = vec![("KEY", false), ("VALUE", false)];
            columns.extend(with_origin.then_some(("ORIGIN", false)));
            let mut table = Table::new(columns);
            for value in values {
                let shown = if value.value.is_empty() { "-" } else { &value.value };
                let mut row = vec![value.key.to_owned(), shown.to_owned()];
                row.extend(with_origin.then(|| value.origin.clone()));
                table.row(row);
            }
            table
        },
    )?;
    Ok(0)
}
