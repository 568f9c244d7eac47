//! Tables: plain columns, two spaces apart, no lines, readable by people and by `awk`.
//!
//! A pipe gets all of a table. On a terminal that is too narrow for it, columns are left out in an order that each table
//! names, then the longest text is wrapped at words, and at last each row becomes lines of its own. No number is cut.

use std::io::IsTerminal;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement};

/// Spaces between two columns.
const GAP: usize = 2;
/// Text is not wrapped into fewer characters than this.
const LEAST_TEXT: usize = 16;

/// A table being filled.
pub struct Table {
    columns: Vec<(&'static str, bool)>,
    rows: Vec<Vec<String>>,
    /// Columns that a narrow terminal does without, the first one first.
    spare: Vec<&'static str>,
}

impl Table {
    /// A table with these columns; `true` sets one to the right, as numbers are.
    pub fn new(columns: Vec<(&'static str, bool)>) -> Self {
        Self {
            columns,
            rows: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// The same, which leaves these columns out, one after the other, until it fits its terminal.
    #[must_use]
    pub fn without(mut self, spare: &[&'static str]) -> Self {
        self.spare = spare.to_vec();
        self
    }

    /// How many columns it has.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The text as the standard output shows it best.
    pub fn shown(&self) -> String {
        match terminal_width() {
            Some(width) => self.within(width),
            None => self.to_text(),
        }
    }

    /// All of the text, without trailing spaces.
    pub fn to_text(&self) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        text(&self.laid_out(&all))
    }

    /// The text in lines of at most `width` characters, where that is possible without cutting a word.
    fn within(&self, width: usize) -> String {
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        let mut spare = self.spare.iter();
        loop {
            let mut table = self.laid_out(&kept);
            let widths: Vec<usize> = table
                .column_max_content_widths()
                .into_iter()
                .map(usize::from)
                .collect();
            let needed = widths.iter().sum::<usize>() + GAP * kept.len().saturating_sub(1);
            if needed <= width {
                return text(&table);
            }
            if let Some(name) = spare.next() {
                kept.retain(|at| self.columns[*at].0 != *name);
                continue;
            }
            // The longest text has what the other columns leave.
            let longest = (0..kept.len())
                .filter(|at| !self.columns[kept[*at]].1)
                .max_by_key(|at| widths[*at]);
            let left = longest.and_then(|at| (widths[at] + width).checked_sub(needed));
            let (Some(longest), Some(left @ LEAST_TEXT..)) = (longest, left) else {
                return self.in_lines();
            };
            let most = u16::try_from(left + GAP).unwrap_or(u16::MAX);
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(u16::try_from(width + GAP).unwrap_or(u16::MAX));
            for (at, column) in table.column_iter_mut().enumerate() {
                column.set_constraint(match at == longest {
                    true => ColumnConstraint::Absolute(comfy_table::Width::Fixed(most)),
                    false => ColumnConstraint::ContentWidth,
                });
            }
            return text(&table);
        }
    }

    /// Each row as lines, with the column's name before each value.
    fn in_lines(&self) -> String {
        let names = self.columns.iter().map(|column| column.0.len());
        let widest = names.max().unwrap_or(0);
        let mut text = String::new();
        for (n, row) in self.rows.iter().enumerate() {
            if n > 0 {
                text.push('\n');
            }
            let named = self
                .columns
                .iter()
                .zip(row)
                .filter(|(column, _)| !column.0.is_empty());
            for ((name, _), cell) in named {
                text.push_str(&format!("{name:<widest$}  {}\n", harmless(cell)));
            }
        }
        text
    }

    fn laid_out(&self, kept: &[usize]) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table
            .load_preset(NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(kept.iter().map(|at| self.columns[*at].0));
        for row in &self.rows {
            table.add_row(
                kept.iter()
                    .map(|at| row.get(*at).map_or_else(String::new, |cell| harmless(cell))),
            );
        }
        for (column, at) in table.column_iter_mut().zip(kept) {
            column.set_padding((0, GAP as u16));
            if self.columns[*at].1 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

/// A program may choose any name: control characters would spoil the terminal.
fn harmless(cell: &str) -> String {
    cell.replace(char::is_control, "?")
}

fn text(table: &comfy_table::Table) -> String {
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

/// How many characters a line of the standard output has, if that is a terminal.
fn terminal_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let (columns, _) = ratatui::crossterm::terminal::size().ok()?;
    (columns > 0).then_some(usize::from(columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_without_lines() {
        let mut table = Table::new(vec![("NAME", false), ("SIZE", true)]);
        table.row(vec!["a".into(), "1 GiB".into()]);
        table.row(vec!["long\x1b[2J".into(), "10.5 GiB".into()]);
        assert_eq!(
            table.to_text(),
            "NAME          SIZE\na            1 GiB\nlong?[2J  10.5 GiB\n"
        );
    }

    fn slices() -> Table {
        let columns = vec![("NAME", false), ("USED", true), ("AGE", true), ("STATE", false)];
        let mut table = Table::new(columns).without(&["AGE"]);
        let state = "running, the device is not at hand";
        table.row(["train", "12.5 GiB", "100min", state].map(String::from).to_vec());
        table
    }

    #[test]
    fn a_narrow_terminal_does_without_a_column_and_then_wraps_words() {
        let table = slices();
        assert_eq!(table.within(80), table.to_text());
        assert_eq!(
            table.within(52),
            "NAME       USED  STATE\ntrain  12.5 GiB  running, the device is not at hand\n"
        );
        assert_eq!(
            table.within(40),
            "NAME       USED  STATE\ntrain  12.5 GiB  running, the device is\n                 not at hand\n"
        );
        for width in 33..80 {
            let text = table.within(width);
            assert!(text.lines().all(|line| line.len() <= width), "{width}:\n{text}");
        }
    }

    #[test]
    fn in_very_few_columns_each_value_has_a_line() {
        assert_eq!(
            slices().within(20),
            "NAME   train\nUSED   12.5 GiB\nAGE    100min\nSTATE  running, the device is not at hand\n"
        );
    }
}
