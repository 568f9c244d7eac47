//! What to type where a list is empty: a person reads it on the terminal, and a program that reads the list sees none of it.

use std::io::IsTerminal;

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

/// Says on stderr what to type, where a person looks at a list of this kind that is an empty table.
pub fn remark_on(kind: &str) {
    let person = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
    if person && let Some(hint) = hint(kind) {
        remark(hint);
    }
}

fn hint(kind: &str) -> Option<&'static str> {
    HINTS
        .iter()
        .find(|(known, _)| *known == kind)
        .map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_can_be_empty_have_a_hint() {
        assert!(hint("SliceList").is_some());
        assert_eq!(hint("CodeList"), None);
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
