//! `divvy config`: the settings in force, and whether they make sense.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use divvy_agent::root_may_believe;
use divvy_model::{Code, Compute, Fault, Isolation, MemoryAmount, Mode, Policy};

use crate::config::{Config, HOSTS_FILE, Sources, Value};
use crate::context::Context;
use crate::flags::devices_or_setting;
use crate::output::{self, Format};
use crate::report::{self, remark};
use crate::table::Table;
use crate::verbs::agent::split::everyone_reads;

/// Flags of `divvy config`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy config show --origin
  divvy config check
  divvy config check new.toml", after_long_help = crate::env::help())]
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
    Check {
        /// Read this file alone, as the system's agent reads /etc/divvy/config.toml: without variables and other files
        file: Option<PathBuf>,
    },
}

/// Does it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::Show { origin } => show(context, *origin),
        Verb::Check { file: None } => check(context),
        Verb::Check { file: Some(file) } => check_file(file, context),
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
    let mut problems = problems(&context.config);
    let host = Path::new(HOSTS_FILE);
    if host.exists() {
        // The system's agent has neither this user's variables nor this user's file.
        problems.extend(problems_of_the_hosts(host));
    }
    if say(&problems, context) {
        return Ok(1);
    }
    output::print("every setting is understood")?;
    let Some(status) = context.agent_if_any().and_then(|agent| agent.status().ok()) else {
        return Ok(0);
    };
    let values = match status.uid == rustix::process::geteuid().as_raw() {
        true => context.config.values(),
        false => Config::read(&Sources::of_file(host))?.values(),
    };
    for value in values {
        let held = status
            .settings
            .get(value.key)
            .filter(|held| **held != value.value);
        if let Some(held) = held {
            let or_none = |text: &str| {
                if text.is_empty() {
                    "nothing".to_owned()
                } else {
                    text.to_owned()
                }
            };
            output::print(&format!(
                "the running agent still has {} for {}, not {}",
                or_none(held),
                value.key,
                or_none(&value.value)
            ))?;
        }
    }
    Ok(0)
}

fn check_file(file: &Path, context: &Context) -> Result<u8, Fault> {
    if !file.is_file() {
        let message = format!("there is no file `{}`", file.display());
        return Err(Fault::new(Code::Usage, message).hint("name a file such as /etc/divvy/config.toml"));
    }
    if say(&problems_of(file), context) {
        return Ok(1);
    }
    output::print(&format!("`{}`: every setting is understood", file.display()))?;
    Ok(0)
}

/// Prints what is wrong; whether there is any.
fn say(problems: &[Fault], context: &Context) -> bool {
    for problem in problems {
        report::fault(problem, context.format == Format::Json);
    }
    !problems.is_empty()
}

/// What is wrong in a file, read as a service's agent reads it.
fn problems_of(file: &Path) -> Vec<Fault> {
    match Config::read(&Sources::of_file(file)) {
        Ok(config) => problems(&config),
        Err(fault) => vec![fault],
    }
}

/// What is wrong in the host's file, and with it.
fn problems_of_the_hosts(file: &Path) -> Vec<Fault> {
    let mut problems = problems_of(file);
    let shown = file.display();
    if let Err(why) = root_may_believe(file) {
        let fault = Fault::new(Code::Config, format!("root's agent ignores `{shown}`"));
        problems.push(
            fault
                .cause(why)
                .hint("give it and the folders above it to root, with mode 0644 and 0755"),
        );
    }
    // The agent of several users is no longer root when it reads it.
    let admits: Option<bool> = Config::read(&Sources::of_file(file))
        .and_then(|config| config.get("admit_others"))
        .unwrap_or_default();
    if admits == Some(true) && !everyone_reads(file) {
        let fault = Fault::new(Code::Config, format!("the agent's user cannot read `{shown}`"));
        problems.push(fault.hint("give it mode 0644, and the folders above it mode 0755"));
    }
    problems
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_hosts_file_is_read_as_the_system_s_agent_reads_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config.toml");
        let found = |text: &str, mode: u32| {
            std::fs::write(&file, text).expect("written");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("a mode");
            let found = problems_of_the_hosts(&file);
            found
                .iter()
                .map(|fault| fault.message.clone())
                .collect::<Vec<_>>()
        };
        let has = |found: &[String], what: &str| found.iter().any(|message| message.contains(what));
        assert!(has(&found("user_memory = \"4\"", 0o644), "`4`"));
        assert!(has(&found("memory = [", 0o644), "is not TOML"));
        assert!(
            has(&found("user_slices = 3", 0o666), "ignores"),
            "another user may write it"
        );
        let closed = found("admit_others = true", 0o600);
        assert!(has(&closed, "the agent's user cannot read"), "{closed:?}");
        assert!(
            !has(&found("user_slices = 3", 0o600), "cannot read"),
            "root's own agent can"
        );
    }
}
