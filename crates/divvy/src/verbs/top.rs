//! `divvy top`: who uses the devices, against what each was promised, again and again.

mod history;
mod order;
mod picture;
mod screen;
mod state;

use std::io::IsTerminal;
use std::time::Duration;

use divvy_agent::{Client, clock};
use divvy_model::Fault;

use self::order::Order;
use self::picture::Picture;
use self::state::State;
use crate::config::parse_duration;
use crate::context::Context;
use crate::output::{self, Format};

/// Flags of `divvy top`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy top
  divvy top -n 1
  divvy top --once -o json
  divvy top --sort debt --interval 2s")]
pub struct Args {
    /// Print once, as a plain table, and end: the same as -n 1
    #[arg(short = '1', long)]
    once: bool,
    /// Print so many times, as plain tables, and end
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "once", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// How often it is looked
    #[arg(long, value_name = "INTERVAL", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// Let no key change anything: programs cannot be ended from here
    #[arg(long)]
    readonly: bool,
    /// What comes first
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t = Order::Use)]
    sort: Order,
}

/// Shows it: on a terminal as a screen of its own, elsewhere as plain tables or lines of JSON.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let interval = args.interval.max(Duration::from_millis(100));
    let mut source = Source::new(context);
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let for_people = matches!(context.format, Format::Table | Format::Wide);
    let times = args.count.or(args.once.then_some(1));
    if times.is_none()
        && for_people
        && !dumb
        && std::io::stdout().is_terminal()
        && std::io::stdin().is_terminal()
    {
        let state = State::new(args.sort, args.readonly);
        screen::show(&mut source, state, interval)?;
        return Ok(0);
    }
    for shown in 1.. {
        let mut picture = source.look()?;
        picture.sort(args.sort);
        let text = match context.format {
            Format::Json if times == Some(1) => output::document_text(Format::Json, "Usage", &picture)?,
            Format::Json => output::json_line("Usage", &picture)?,
            Format::Yaml => format!("---\n{}", output::document_text(Format::Yaml, "Usage", &picture)?),
            Format::Name => picture
                .items
                .iter()
                .map(|item| format!("{}\n", item.slice))
                .collect(),
            Format::Table => dated(shown, times, picture.table().shown()),
            Format::Wide => dated(shown, times, picture.table().to_text()),
        };
        let heard = output::line(text.trim_end())?;
        if times == Some(shown) || !heard {
            break;
        }
        std::thread::sleep(interval);
    }
    Ok(0)
}

/// A table; of several each says of when it is, apart from the one before it.
fn dated(shown: u64, times: Option<u64>, text: String) -> String {
    match (shown, times) {
        (_, Some(1)) => text,
        (1, _) => format!("{}\n{text}", clock::now()),
        _ => format!("\n{}\n{text}", clock::now()),
    }
}

/// Where the pictures come from.
pub struct Source<'a> {
    context: &'a Context,
    agent: Option<Client>,
}

impl<'a> Source<'a> {
    fn new(context: &'a Context) -> Self {
        Self { context, agent: None }
    }

    /// How it is now. An agent that died is started again where there are slices to look after.
    fn look(&mut self) -> Result<Picture, Fault> {
        self.agent = self.context.agent_of_slices()?;
        let Some(agent) = &self.agent else {
            return Ok(Picture::of(
                self.context.inventory()?.devices,
                Vec::new(),
                Vec::new(),
            ));
        };
        let devices = agent.devices()?.body.items;
        let slices = agent.slices()?.body.items;
        Ok(Picture::of(devices, slices, agent.compute()?.body.items))
    }

    /// Asks the programs of a slice to end.
    fn end(&self, slice_id: &str) -> Result<(), Fault> {
        const TERM: i32 = 15;
        let Some(agent) = &self.agent else { return Ok(()) };
        let ask = divvy_agent::api::Kill {
            signal: TERM,
            dry_run: false,
        };
        agent.kill(slice_id, &ask).map(drop)
    }
}
