//! `cargo xtask docs`: README.md and docs as pages for a browser, by mdBook. Its first run installs mdBook below target,
//! which takes some minutes; neither CI nor another task needs it.
//!
//! mdBook wants all pages below one folder. So they are copied, with README.md as the first one. Links to pages stay, and
//! links to other files of the repository lead into this checkout.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::cargo::{cargo, finish, workspace_root};

/// Arguments of `cargo xtask docs`.
#[derive(clap::Args)]
pub struct Args {}

const MDBOOK: &str = "0.5.4";

/// Where the pages go, from the root.
const PAGES: &str = "target/docs";

/// Builds the pages, and says where the first one is.
pub fn run(_: &Args) -> anyhow::Result<()> {
    let mdbook = tool()?;
    let root = workspace_root();
    let folder = root.join("target/docs-source");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("Cannot empty {}", folder.display()))?;
    }
    write_sources(root, &folder)?;
    finish(
        Command::new(mdbook)
            .arg("build")
            .arg(&folder)
            .arg("--dest-dir")
            .arg(root.join(PAGES)),
    )?;
    println!("docs: {PAGES}/index.html");
    Ok(())
}

/// mdBook, installed below target in the version that we name.
fn tool() -> anyhow::Result<PathBuf> {
    let folder = workspace_root().join("target/mdbook");
    let program = folder.join("bin/mdbook");
    let known = Command::new(&program).arg("--version").output();
    if known.is_ok_and(|known| String::from_utf8_lossy(&known.stdout).contains(MDBOOK)) {
        return Ok(program);
    }
    println!("docs: installing mdBook {MDBOOK} below target, once");
    // The server is of no use here, and has most of the dependencies.
    finish(
        cargo()
            .args(["install", "--quiet", "mdbook", "--version", MDBOOK, "--locked"])
            .args(["--no-default-features", "--features", "search", "--root"])
            .arg(&folder),
    )?;
    Ok(program)
}

/// Copies the pages and their pictures, and writes mdBook's settings.
fn write_sources(root: &Path, folder: &Path) -> anyhow::Result<()> {
    let put = |to: &str, bytes: &[u8]| -> anyhow::Result<()> {
        let to = folder.join(to);
        std::fs::create_dir_all(to.parent().context("A page has a folder")?)?;
        std::fs::write(&to, bytes).with_context(|| format!("Cannot write {}", to.display()))
    };
    let read =
        |from: &str| std::fs::read_to_string(root.join(from)).with_context(|| format!("Cannot read {from}"));
    put(
        "book.toml",
        b"[book]\ntitle = \"Divvy\"\nlanguage = \"en\"\n[output.html]\nsmart-punctuation = false\n",
    )?;
    let contents = read("docs/SUMMARY.md")?;
    let Some((title, chapters)) = contents.split_once('\n') else {
        bail!("docs/SUMMARY.md has one line only");
    };
    let contents = format!("{title}\n\n[What Divvy is](README.md)\n{chapters}");
    put("src/SUMMARY.md", contents.as_bytes())?;
    let listed = chapters
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'));
    let pages = listed.map(|(page, _)| format!("docs/{page}"));
    for page in std::iter::once("README.md".to_owned()).chain(pages) {
        let (text, pictures) = with_links(&page, &read(&page)?);
        put(
            &format!("src/{}", page.trim_start_matches("docs/")),
            text.as_bytes(),
        )?;
        for picture in pictures {
            put(&format!("src/{picture}"), &std::fs::read(root.join(&picture))?)?;
        }
    }
    Ok(())
}

/// A page with links as they are below mdBook's folder, and the pictures that it shows, by their path from the root.
fn with_links(page: &str, text: &str) -> (String, Vec<String>) {
    let mut pictures = Vec::new();
    let mut parts = text.split("](");
    let mut now = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        now.push_str("](");
        match part.split_once(')') {
            Some((target, rest)) if !target.contains([' ', '\n']) => {
                now.push_str(&link(page, target, &mut pictures));
                now.push(')');
                now.push_str(rest);
            }
            _ => now.push_str(part),
        }
    }
    (now, pictures)
}

/// Where a link leads from the copy of a page.
fn link(page: &str, target: &str, pictures: &mut Vec<String>) -> String {
    if target.contains("://") || target.starts_with(['#', '/']) {
        return target.to_owned();
    }
    let (path, heading) = match target.split_once('#') {
        Some((path, heading)) => (path, format!("#{heading}")),
        None => (target, String::new()),
    };
    let file = joined(page, path);
    // The copy of docs/adr/0001.md is two folders below mdBook's, that of README.md one.
    let copy = page.trim_start_matches("docs/");
    let up = "../".repeat(copy.matches('/').count());
    if file.ends_with(".md") && (file == "README.md" || file.starts_with("docs/")) {
        return format!("{up}{}{heading}", file.trim_start_matches("docs/"));
    }
    if file.ends_with(".svg") || file.ends_with(".png") {
        pictures.push(file.clone());
        return format!("{up}{file}");
    }
    let out = "../".repeat(PAGES.matches('/').count() + 1);
    format!("{up}{out}{file}{heading}")
}

/// The path from the root of what a page calls so.
fn joined(page: &str, path: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => {
                parts.pop();
            }
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_same_files() {
        let mut pictures = Vec::new();
        for (page, target, wanted) in [
            ("README.md", "docs/quickstart.md", "quickstart.md"),
            (
                "README.md",
                "docs/adr/0001-one-table.md#why",
                "adr/0001-one-table.md#why",
            ),
            ("README.md", "bench/results/share.svg", "bench/results/share.svg"),
            ("README.md", "crates/divvy", "../../crates/divvy"),
            ("docs/mig.md", "emulated-device.md#mig", "emulated-device.md#mig"),
            ("docs/mig.md", "../README.md", "README.md"),
            ("docs/mig.md", "#plan", "#plan"),
            ("docs/mig.md", "https://example.com", "https://example.com"),
            ("docs/adr/0001.md", "../compute.md", "../compute.md"),
            (
                "docs/adr/0001.md",
                "../../SPECIFICATION.md",
                "../../../SPECIFICATION.md",
            ),
            ("docs/adr/README.md", "0002.md", "../adr/0002.md"),
        ] {
            assert_eq!(link(page, target, &mut pictures), wanted, "{page} {target}");
        }
        assert_eq!(pictures, ["bench/results/share.svg"]);
    }

    #[test]
    fn what_is_no_link_stays() {
        let text = "a [link](mig.md), `x[1](y z)` and [one](\n";
        assert_eq!(with_links("docs/a.md", text), (text.to_owned(), Vec::new()));
    }
}
