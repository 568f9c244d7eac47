//! docs/one-card-thirty-students.md as scenarios follow it.

use divvy_tests::build::workspace;

/// The commands of the page's console blocks, and the lines of its settings.
pub fn code() -> Vec<String> {
    let page = workspace().join("docs/one-card-thirty-students.md");
    let text = std::fs::read_to_string(page).expect("the page");
    let commands = text.lines().filter_map(|line| line.strip_prefix("$ "));
    let of_file = text
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    of_file
        .expect("settings")
        .lines()
        .chain(commands)
        .map(|line| line.split('#').next().unwrap_or(line).trim().to_owned())
        .collect()
}
