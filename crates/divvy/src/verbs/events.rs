//! `divvy events`: what happens on this host's slices and devices.

use divvy_agent::api::events::EventRecord;
use divvy_agent::read_events;
use divvy_model::{Code, Fault};

use crate::context::Context;
use crate::output::{self, Format};

/// Flags of `divvy events`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy events
  divvy events --follow
  divvy events --follow -o json | jq -r .message")]
pub struct Args {
    /// Go on with what happens from now on, until the agent ends
    #[arg(short, long)]
    follow: bool,
    /// Begin after the event of this number
    #[arg(long, value_name = "NUMBER")]
    since: Option<u64>,
    /// At most so many of what has happened, the newest
    #[arg(short = 'n', long, value_name = "NUMBER", conflicts_with = "follow")]
    last: Option<usize>,
}

/// Prints them, a line each; as JSON, a document each.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    if let Some(last) = args.last {
        return newest(last, args, context);
    }
    let Some(agent) = context.agent_if_any() else {
        if args.follow {
            return Err(Fault::new(Code::AgentUnreachable, "no agent runs here")
                .hint("`divvy run` starts one; without --follow the last agent's events are shown"));
        }
        for event in read_events(&context.peek()) {
            if event.number > args.since.unwrap_or(0) && !print(&event, context.format)? {
                break;
            }
        }
        return Ok(0);
    };
    let mut failed = None;
    agent.events(args.since, args.follow, |event| {
        match print(&event, context.format) {
            Ok(heard) => heard,
            Err(fault) => {
                failed = Some(fault);
                false
            }
        }
    })?;
    match failed {
        Some(fault) => Err(fault),
        None => Ok(0),
    }
}

/// Prints the newest of what has happened, in the order in which it did.
fn newest(last: usize, args: &Args, context: &Context) -> Result<u8, Fault> {
    let mut events = Vec::new();
    match context.agent_if_any() {
        Some(agent) => agent.events(args.since, false, |event| {
            events.push(event);
            true
        })?,
        None => {
            let since = args.since.unwrap_or(0);
            events.extend(
                read_events(&context.peek())
                    .into_iter()
                    .filter(|event| event.number > since),
            );
        }
    }
    for event in &events[events.len().saturating_sub(last)..] {
        if !print(event, context.format)? {
            break;
        }
    }
    Ok(0)
}

/// Prints one; false when the reader has gone.
fn print(event: &EventRecord, format: Format) -> Result<bool, Fault> {
    output::line(&match format {
        Format::Json => {
            let text = serde_json::to_string(event);
            text.map_err(|error| Fault::new(Code::Internal, "cannot write JSON").because(&error))?
        }
        Format::Yaml => format!("---\n{}", output::yaml_text(event)?.trim_end()),
        Format::Name => event.kind.name().to_owned(),
        Format::Table | Format::Wide => in_words(event, format == Format::Wide),
    })
}

/// What a program is called is its own affair: control characters would spoil the terminal.
fn in_words(event: &EventRecord, wide: bool) -> String {
    let about = event.slice.as_deref().unwrap_or("-");
    let mut text = format!(
        "{}  {:<14}  {about:<16}  {}",
        event.at,
        event.kind.name(),
        event.message
    );
    if wide {
        let device = event.device_uuid.as_deref().unwrap_or("-");
        text = format!("{:>6}  {text}  {device}", event.number);
    }
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_agent::api::events::EventKind;

    #[test]
    fn an_event_is_one_line_whatever_a_slice_is_called() {
        let event = EventRecord {
            number: 7,
            at: "2026-01-01T00:00:00Z".into(),
            kind: EventKind::Overdue,
            slice_id: None,
            slice: Some("a\n\x1b[2J".into()),
            device_uuid: Some("GPU-1".into()),
            run_pid: None,
            message: "its lease has ended".into(),
        };
        let text = in_words(&event, true);
        assert_eq!(
            text,
            "     7  2026-01-01T00:00:00Z  overdue         a??[2J            its lease has ended  GPU-1"
        );
    }
}
