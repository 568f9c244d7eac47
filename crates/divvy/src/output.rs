//! Output for people and for programs: the same documents, as a table, JSON, YAML or bare names.

use std::io::{ErrorKind, Write};

use clap::ValueEnum;
use divvy_agent::api::{Document, Items};
use divvy_model::{Code, Fault};
use serde::Serialize;

use crate::empty;
use crate::table::Table;

/// How lists are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// More columns.
    Wide,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
    /// One name per line.
    Name,
}

impl Format {
    /// Whether it is a table, which a person reads.
    pub fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        <Self as ValueEnum>::from_str(text, false)
            .map_err(|_| format!("`{text}` is no output; choose table, wide, json, yaml or name"))
    }
}

/// Prints to stdout. A reader that has closed the pipe is no failure.
///
/// # Errors
/// [`Code::Internal`] when stdout cannot be written to.
pub fn print(text: &str) -> Result<(), Fault> {
    let mut out = std::io::stdout().lock();
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| {
            // An empty list of names is no line, as `wc -l` would count it.
            if text.is_empty() || text.ends_with('\n') {
                Ok(())
            } else {
                out.write_all(b"\n")
            }
        })
        .and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Fault::new(Code::Internal, "cannot write the output").because(&error))
        }
        _ => Ok(()),
    }
}

/// Prints a line of a stream; false when the reader has gone.
///
/// # Errors
/// [`Code::Internal`] when stdout cannot be written to.
pub fn line(text: &str) -> Result<bool, Fault> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Fault::new(Code::Internal, "cannot write the output").because(&error)),
    }
}

/// A document as one line of JSON.
///
/// # Errors
/// [`Code::Internal`] when it cannot be serialised.
pub fn json_line<T: Serialize>(kind: &str, body: T) -> Result<String, Fault> {
    serde_json::to_string(&Document::new(kind, body))
        .map_err(|error| Fault::new(Code::Internal, "cannot write JSON").because(&error))
}

/// Anything as YAML.
///
/// # Errors
/// [`Code::Internal`] when it cannot be serialised.
pub fn yaml_text<T: Serialize>(value: &T) -> Result<String, Fault> {
    yaml(value)
}

/// Prints a document in a format for programs; false when the format is one for people.
///
/// # Errors
/// As [`print()`].
pub fn document<T: Serialize>(format: Format, kind: &str, body: T) -> Result<bool, Fault> {
    let document = Document::new(kind, body);
    match format {
        Format::Json => print(&json(&document)?)?,
        Format::Yaml => print(&yaml(&document)?)?,
        Format::Table | Format::Wide | Format::Name => return Ok(false),
    }
    Ok(true)
}

/// The text of a document in a format for programs.
///
/// # Errors
/// [`Code::Internal`] when it cannot be serialised.
pub fn document_text<T: Serialize>(format: Format, kind: &str, body: T) -> Result<String, Fault> {
    let document = Document::new(kind, body);
    match format {
        Format::Yaml => yaml(&document),
        _ => json(&document),
    }
}

/// Prints a list; `name` and `table` give the formats for people.
///
/// # Errors
/// As [`print()`].
pub fn list<T: Serialize>(
    format: Format,
    kind: &str,
    items: Vec<T>,
    name: impl Fn(&T) -> &str,
    table: impl FnOnce(&[T], bool) -> Table,
) -> Result<(), Fault> {
    let is_bare = items.is_empty() && format.is_table();
    print(&list_text(format, kind, items, name, table)?)?;
    if is_bare {
        empty::remark_on(kind);
    }
    Ok(())
}

/// The text of a list.
///
/// # Errors
/// [`Code::Internal`] when it cannot be serialised.
pub fn list_text<T: Serialize>(
    format: Format,
    kind: &str,
    items: Vec<T>,
    name: impl Fn(&T) -> &str,
    table: impl FnOnce(&[T], bool) -> Table,
) -> Result<String, Fault> {
    match format {
        Format::Table => Ok(table(&items, false).shown()),
        Format::Wide => Ok(table(&items, true).to_text()),
        Format::Name => Ok(items.iter().map(|item| format!("{}\n", name(item))).collect()),
        Format::Json => json(&Document::new(kind, Items { items })),
        Format::Yaml => yaml(&Document::new(kind, Items { items })),
    }
}

fn json<T: Serialize>(value: &T) -> Result<String, Fault> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| Fault::new(Code::Internal, "cannot write JSON").because(&error))
}

fn yaml<T: Serialize>(value: &T) -> Result<String, Fault> {
    // By way of JSON's model: a flattened document is then an ordinary map to the YAML writer.
    let value = serde_json::to_value(value)
        .map_err(|error| Fault::new(Code::Internal, "cannot write YAML").because(&error))?;
    serde_saphyr::to_string(&value)
        .map_err(|error| Fault::new(Code::Internal, "cannot write YAML").because(&error))
}
