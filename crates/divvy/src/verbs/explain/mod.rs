//! `divvy explain`: the explanation of an error's code, the ways of sharing and the isolation levels compared, and the schemas of JSON
//! documents.

mod isolation;
mod sharing;

use divvy_model::{Code, Fault};

use crate::context::Context;
use crate::output::{self, Format};
use crate::schemas;
use crate::table::Table;

/// Flags of `divvy explain`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy explain D0012
  divvy explain sharing
  divvy explain isolation
  divvy explain json
  divvy explain SliceList
  divvy explain")]
pub struct Args {
    /// The code, as in `error[D0012]`; `sharing` for the ways in which slices share a device; `isolation` for how
    /// strongly programs are kept inside; `json` for the documents that
    /// `-o json` prints, or the kind of one for its schema; every code without one
    code: Option<String>,
}

#[derive(serde::Serialize)]
struct Entry {
    code: Code,
    title: &'static str,
    story: &'static str,
    exit_status: u8,
}

/// Explains it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let entry = |code: Code| Entry {
        code,
        title: code.title(),
        story: code.story(),
        exit_status: code.exit_status(),
    };
    let Some(text) = &args.code else {
        let entries: Vec<(String, Entry)> = Code::ALL
            .iter()
            .map(|code| (code.to_string(), entry(*code)))
            .collect();
        let names: Vec<String> = entries.iter().map(|pair| pair.0.clone()).collect();
        if context.format == output::Format::Name {
            output::print(&names.join("\n"))?;
        } else {
            let entries = entries.into_iter().map(|pair| pair.1).collect();
            output::list(
                context.format,
                "CodeList",
                entries,
                |entry: &Entry| entry.title,
                table,
            )?;
        }
        return Ok(0);
    };
    if text == "sharing" {
        return explain_sharing(context);
    }
    // A level's word, and what follows from overuse, are explained there as well.
    let is_level = divvy_model::Isolation::ALL
        .iter()
        .any(|level| level.name() == text);
    if is_level || ["isolation", "overuse", "on-overuse"].contains(&text.as_str()) {
        return explain_isolation(context);
    }
    if text == "json" {
        output::print(&schemas::story())?;
        return Ok(0);
    }
    if let Some(schema) = schemas::schema(text) {
        output::print(schema)?;
        return Ok(0);
    }
    // `12` is D0012 to a person.
    let of_number = text.parse::<u16>().map(|number| format!("D{number:04}"));
    let code: Code = of_number
        .as_ref()
        .unwrap_or(text)
        .parse()
        .map_err(|error: String| {
            Fault::new(Code::Usage, error)
                .hint("`divvy explain` lists the codes, `divvy explain json` the kinds of documents")
        })?;
    if !output::document(context.format, "Code", entry(code))? {
        output::print(&format!("{code}: {}\n\n{}", code.title(), code.story()))?;
    }
    Ok(0)
}

fn explain_sharing(context: &Context) -> Result<u8, Fault> {
    let entries = sharing::entries();
    match context.format {
        Format::Table | Format::Wide => output::print(&sharing::story(&entries))?,
        format => {
            output::list(
                format,
                "SharingModeList",
                entries,
                |entry: &sharing::Entry| entry.name(),
                sharing::table,
            )?;
        }
    }
    Ok(0)
}

fn explain_isolation(context: &Context) -> Result<u8, Fault> {
    let entries = isolation::entries();
    match context.format {
        Format::Table | Format::Wide => {
            let least = ["least_isolation", "least_on_overuse"].map(|key| context.config.text(key));
            output::print(&format!(
                "{}{}",
                isolation::story(&entries),
                isolation::minimum(least)
            ))?;
        }
        format => {
            output::list(
                format,
                "IsolationList",
                entries,
                |entry: &isolation::Entry| entry.name(),
                isolation::table,
            )?;
        }
    }
    Ok(0)
}

fn table(entries: &[Entry], _wide: bool) -> Table {
    let mut table = Table::new(vec![("CODE", false), ("EXIT", true), ("MEANING", false)]);
    for entry in entries {
        table.row(vec![
            entry.code.to_string(),
            entry.exit_status.to_string(),
            entry.title.into(),
        ]);
    }
    table
}
