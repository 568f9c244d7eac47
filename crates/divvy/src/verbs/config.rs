//! `divvy config`: the settings in force, and whether they make sense.

use clap::Subcommand;
use divvy_model::{Code, Compute, Fault, Isolation, MemoryAmount, Mode, Policy};

use crate::config::{Config, Value};
use crate::context::Context;
use crate::flags::devices_or_setting;
use crate::output::{self, Format};
use crate::report::{self, remark};
use crate::table::Table;

/// Flags of `divvy config`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy config show --origin
  divvy config check", after_long_help = crate::env::help())]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show every setting, and what the running agent holds to where that is another value
    Show {
        /// Show where each value comes from
        #[arg(long)]
        origin: bool,
    },
    /// Read every setting as the agent and the commands would; what is wrong is printed, and the exit status is 1
    Check,
}

/// Does it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match args.verb {
        Verb::Show { origin } => show(context, origin),
        Verb::Check => check(context),
    }
}

/// The settings, each with the running agent's value where that is another one.
fn beside_the_agents(context: &Context) -> Vec<Value> {
    let mut values = context.config.values();
    // Without an agent, or with one of an earlier version, there is nothing to compare.
    let status = context.agent_if_any().and_then(|agent| agent.status().ok());
    let held = status.map(|status| status.settings).unwrap_or_default();
    for value in &mut values {
        value.agent = held.get(value.key).filter(|held| **held != value.value).cloned();
    }
    values
}

fn show(context: &Context, origin: bool) -> Result<u8, Fault> {
    let values = beside_the_agents(context);
    let differs = values.iter().any(|value| value.agent.is_some());
    output::list(
        context.format,
        "ConfigList",
        values,
        |value| value.key,
        |values, wide| {
            let with_origin = origin || wide;
            let mut columns = vec![("KEY", false), ("VALUE", false)];
            columns.extend(differs.then_some(("AGENT", false)));
            columns.extend(with_origin.then_some(("ORIGIN", false)));
            let mut table = Table::new(columns);
            let or_none = |text: &str| {
                if text.is_empty() {
                    "-".to_owned()
                } else {
                    text.to_owned()
                }
            };
            for value in values {
                let mut row = vec![value.key.to_owned(), or_none(&value.value)];
                row.extend(differs.then(|| value.agent.as_deref().map_or_else(String::new, or_none)));
                row.extend(with_origin.then(|| value.origin.clone()));
                table.row(row);
            }
            table
        },
    )?;
    if differs && matches!(context.format, Format::Table | Format::Wide) {
        remark(
            "the running agent holds to the column AGENT: SIGHUP has it read the files again (`systemctl reload divvy-agent`)",
        );
    }
    Ok(0)
}

fn check(context: &Context) -> Result<u8, Fault> {
    let problems = problems(&context.config);
    for problem in &problems {
        report::fault(problem, context.format == Format::Json);
    }
    if !problems.is_empty() {
        return Ok(1);
    }
    output::print("every setting is understood")?;
    for value in beside_the_agents(context) {
        if let Some(held) = value.agent {
            let or_none = |text: &str| {
                if text.is_empty() {
                    "nothing".to_owned()
                } else {
                    text.to_owned()
                }
            };
            output::print(&format!(
                "the running agent still has {} for {}, not {}",
                or_none(&held),
                value.key,
                or_none(&value.value)
            ))?;
        }
    }
    Ok(0)
}

/// Reads every setting that has a form, and holds those together that belong together. What is wrong, in order.
fn problems(config: &Config) -> Vec<Fault> {
    let mut problems = Vec::new();
    problems.extend(config.agent_settings().err());
    problems.extend(config.get::<MemoryAmount>("memory").err());
    problems.extend(config.get::<Compute>("compute").err());
    problems.extend(config.get::<Mode>("share").err());
    problems.extend(devices_or_setting(&[], config).err());
    problems.extend(config.get::<Isolation>("isolation").err());
    problems.extend(config.get::<Policy>("policy").err());
    problems.extend(config.get::<Format>("output").err());
    let amounts = (
        config.get::<MemoryAmount>("default_slice"),
        config.get::<MemoryAmount>("user_memory"),
    );
    if let (Ok(Some(slice)), Ok(Some(most))) = amounts
        && exceeds(slice, most)
    {
        let fault = Fault::new(
            Code::Config,
            format!("`default_slice` is {slice}, and `user_memory` lets a user have {most}"),
        );
        problems.push(fault.hint("no user would get a default slice: make one smaller or the other larger"));
    }
    problems
}

/// Whether one amount is more than another on every device. Of a share and a number that cannot be said.
fn exceeds(one: MemoryAmount, other: MemoryAmount) -> bool {
    match (one, other) {
        (MemoryAmount::Bytes(one), MemoryAmount::Bytes(other)) => one > other,
        (MemoryAmount::Share(one), MemoryAmount::Share(other)) => one > other,
        _ => false,
    }
}
