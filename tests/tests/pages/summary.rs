//! docs/SUMMARY.md is the table of contents: it has each page once.

use divvy_tests::build::workspace;

use crate::links::{files, targets};

#[test]
fn the_contents_have_each_page_once() {
    let text = std::fs::read_to_string(workspace().join("docs/SUMMARY.md")).expect("it is committed");
    let mut listed: Vec<String> = targets(&text)
        .iter()
        .map(|target| format!("docs/{target}"))
        .collect();
    listed.sort_unstable();
    let mut there = files("docs");
    there.retain(|path| path != "docs/SUMMARY.md");
    let missing: Vec<&String> = there.iter().filter(|path| !listed.contains(path)).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
    assert_eq!(
        listed, there,
        "docs/SUMMARY.md lists a page twice, or one that is not there"
    );
}
