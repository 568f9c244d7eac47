//! What to type where a list is empty: a person reads it on the terminal, and a program that reads the list sees none of it.

use std::io::IsTerminal;

use crate::output::Format;
use crate::report::remark;

/// By the document's kind. A list that is never empty has no line.
const HINTS: [(&str, &str); 6] = [
    (
        "AdviceList",
        "no advice yet: run a program first, as in `divvy run --memory 4GiB PROGRAM`",
    ),
    (
        "CdiDeviceList",
        "no devices for containers: `divvy doctor` tells what was looked for",
    ),
    (
        "DeviceList",
        "no devices: `divvy doctor` tells what was looked for",
    ),
    (
        "HistoryList",
        "no slice has ended here yet: `divvy ps` lists those that live",
    ),
    (
        "PodSliceList",
        "no pod of this node has a slice: docs/kubernetes.md says how a pod asks for one",
    ),
    (
        "SliceList",
        "no slices: `divvy run --memory 4GiB PROGRAM` makes one for a program, \
         `divvy slice create NAME --memory 4GiB` one that stays",
    ),
];

/// Says on stderr what to type, where a person looks at an empty list.
pub fn remark_on(format: Format, kind: &str, is_empty: bool) {
    let person = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
    if person && let Some(hint) = hint(format, kind, is_empty) {
        remark(hint);
    }
}

fn hint(format: Format, kind: &str, is_empty: bool) -> Option<&'static str> {
    if !is_empty || !matches!(format, Format::Table | Format::Wide) {
        return None;
    }
    HINTS
        .iter()
        .find(|(known, _)| *known == kind)
        .map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_table_has_a_hint() {
        assert!(hint(Format::Table, "SliceList", true).is_some());
        assert!(hint(Format::Wide, "HistoryList", true).is_some());
        assert_eq!(hint(Format::Table, "SliceList", false), None);
        assert_eq!(hint(Format::Json, "SliceList", true), None);
        assert_eq!(hint(Format::Name, "SliceList", true), None);
        assert_eq!(hint(Format::Table, "CodeList", true), None);
    }

    #[test]
    fn each_command_that_a_hint_names_is_in_the_grammar() {
        for (_, hint) in HINTS {
            for line in hint.split('`').filter(|part| part.starts_with("divvy ")) {
                let read = crate::cli::Cli::read(line.split_whitespace().map(Into::into));
                assert!(read.is_ok(), "{line}");
            }
        }
    }
}
