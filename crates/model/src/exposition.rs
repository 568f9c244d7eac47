//! Lines of Prometheus' text format 0.0.4, which several verbs write.

use std::fmt::Write;

/// Begins a metric: what it is, and of which kind (`gauge`, `counter`).
pub fn head(text: &mut String, name: &str, about: &str, kind: &str) {
    let _written = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}");
}

/// A label's value, between quotation marks: these three characters have a backslash before them.
#[must_use]
pub fn label(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_end_its_line() {
        assert_eq!(label("a\\b\"c\nd"), r#"a\\b\"c\nd"#);
    }
}
