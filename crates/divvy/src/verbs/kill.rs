//! `divvy kill`: ends slices and the programs in them. A lasting slice stays, with nothing in it.

use std::io::{BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

use divvy_agent::Client;
use divvy_agent::api::{Kill, Killed};
use divvy_model::{Code, Fault};

use crate::config::parse_duration;
use crate::context::Context;
use crate::output::{self, Format};
use crate::report::remark;

/// Names of signals as `kill -l` gives them, with their numbers on Linux (signal(7)); those that end or stop.
const SIGNALS: [(&str, i32); 10] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
];
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// The exit status when the question was answered with no.
const DECLINED: u8 = 1;

/// How long what was killed may take to be gone.
const LAST: Duration = Duration::from_secs(5);

/// Flags of `divvy kill`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy kill train --yes
  divvy kill train --signal USR1 --yes
  divvy kill train --dry-run")]
pub struct Args {
    /// Slices, by name, id or unique prefix of an id
    #[arg(required = true, value_name = "SLICE")]
    slices: Vec<String>,
    /// Send only this signal [default: TERM, and KILL to what is left after the grace time]
    #[arg(long, value_parser = signal)]
    signal: Option<i32>,
    /// How long programs may take to end after TERM
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    grace: Duration,
    /// Do not ask. Without a terminal nothing is asked
    #[arg(short = 'f', long)]
    yes: bool,
    /// Print which processes would be signalled, and signal none
    #[arg(long)]
    dry_run: bool,
}

/// Ends them.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    // An unknown name is an error before anything is asked or ended.
    for which in &args.slices {
        context.agent_for(which)?.slice(which)?;
    }
    if !args.yes && !args.dry_run && !confirm(&args.slices) {
        remark("nothing was ended");
        return Ok(DECLINED);
    }
    for which in &args.slices {
        let agent = context.agent_for(which)?;
        let killed = match args.signal {
            None if !args.dry_run => end_all(&agent, which, args.grace)?,
            signal => {
                let ask = Kill {
                    signal: signal.unwrap_or(SIGTERM),
                    dry_run: args.dry_run,
                };
                agent.kill(which, &ask)?
            }
        };
        show(context.format, &killed, args.dry_run)?;
    }
    Ok(0)
}

/// Ends what runs in a slice: TERM, and KILL to what is left after `grace`. Returns the processes that were asked to
/// end.
///
/// # Errors
/// What the agent refuses.
pub fn end_all(agent: &Client, which: &str, grace: Duration) -> Result<Killed, Fault> {
    let ask = |signal| Kill {
        signal,
        dry_run: false,
    };
    let killed = agent.kill(which, &ask(SIGTERM))?;
    let id = &killed.slice.id;
    if !empty_within(agent, id, grace) {
        // It may end by itself just now, which is all we want.
        let _last = agent.kill(id, &ask(SIGKILL));
        // A killed process takes a moment to give back what it held.
        empty_within(agent, id, LAST);
    }
    Ok(killed)
}

/// Whether the slice has ended, or is a lasting one in which nothing runs.
fn empty_within(agent: &Client, id: &str, grace: Duration) -> bool {
    let begin = Instant::now();
    loop {
        match agent.slice(id) {
            Err(fault) if fault.code == Code::UnknownSlice => return true,
            Ok(slice) if slice.lasting && slice.processes.is_empty() && slice.runs.is_empty() => return true,
            _ => {}
        }
        if begin.elapsed() >= grace {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn show(format: Format, killed: &Killed, dry_run: bool) -> Result<(), Fault> {
    if format == Format::Name {
        return output::print(&killed.slice.name);
    }
    if output::document(format, "Killed", killed)? {
        return Ok(());
    }
    if killed.pids.is_empty() && killed.slice.lasting {
        let name = &killed.slice.name;
        return output::print(&format!(
            "{name}: nothing runs in it, and it stays: `divvy slice delete {name}` deletes it"
        ));
    }
    let pids: Vec<String> = killed.pids.iter().map(u32::to_string).collect();
    let verb = if dry_run { "would signal" } else { "signalled" };
    output::print(&format!("{}: {verb} {}", killed.slice.name, or_no_process(&pids)))
}

fn or_no_process(pids: &[String]) -> String {
    if pids.is_empty() {
        "no process".into()
    } else {
        pids.join(", ")
    }
}

/// Whether the person at the terminal, if there is one, wants it so.
fn confirm(slices: &[String]) -> bool {
    let input = std::io::stdin();
    if !input.is_terminal() || !std::io::stderr().is_terminal() {
        return true;
    }
    let _asked = write!(
        std::io::stderr(),
        "End {} and the programs in it? [y/N] ",
        slices.join(", ")
    );
    let mut answer = String::new();
    let read = input.lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

fn signal(text: &str) -> Result<i32, Fault> {
    let bare = text.trim_start_matches("SIG");
    let named = SIGNALS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(bare))
        .map(|pair| pair.1);
    let numbered = text.parse().ok().filter(|number| (1..=31).contains(number));
    named.or(numbered).ok_or_else(|| {
        let names: Vec<&str> = SIGNALS.iter().map(|pair| pair.0).collect();
        Fault::new(Code::Usage, format!("`{text}` is no signal"))
            .hint(format!("write a number or one of {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_by_name_and_number() {
        assert_eq!(signal("TERM").expect("a name"), 15);
        assert_eq!(signal("SIGUSR1").expect("a name"), 10);
        assert_eq!(signal("9").expect("a number"), 9);
        for text in ["", "0", "64", "FOO", "-1"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }
}
