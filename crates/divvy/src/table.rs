//! Tables: plain columns, two spaces apart, no lines, readable by people and by `awk`.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement};

/// A table being filled.
pub struct Table {
    columns: Vec<(&'static str, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns; `true` sets one to the right, as numbers are.
    pub fn new(columns: Vec<(&'static str, bool)>) -> Self {
        Self {
            columns,
            rows: Vec::new(),
        }
    }

    /// How many columns it has.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The text, without trailing spaces.
    pub fn to_text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table
            .load_preset(NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(self.columns.iter().map(|column| column.0));
        for row in &self.rows {
            // A program may choose any name: control characters would spoil the terminal.
            table.add_row(row.iter().map(|cell| cell.replace(char::is_control, "?")));
        }
        for (column, (_, right)) in table.column_iter_mut().zip(&self.columns) {
            column.set_padding((0, 2));
            if *right {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
        lines.collect()
    }
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
}
