//! The packages whose documentation has examples.
//!
//! `cargo test --doc` reads every package, one after the other, to find that most have none.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use crate::cargo::cargo;

/// Their names.
///
/// # Errors
/// Cargo does not tell of the workspace, or a source file cannot be read.
pub fn packages() -> anyhow::Result<Vec<String>> {
    let output = cargo()
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .output()
        .context("Cannot start cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata gave no JSON")?;
    let packages = metadata["packages"].as_array().context("It names no packages")?;
    let mut names = Vec::new();
    for package in packages {
        let manifest = package["manifest_path"].as_str().map(Path::new);
        let folder = manifest
            .and_then(Path::parent)
            .context("A package lies in a folder")?;
        if has_library(package) && has_example(&folder.join("src"))? {
            names.push(
                package["name"]
                    .as_str()
                    .context("A package has a name")?
                    .to_owned(),
            );
        }
    }
    Ok(names)
}

/// Whether rustdoc reads it for examples: it does not read programs, nor libraries for C.
fn has_library(package: &Value) -> bool {
    let mut targets = package["targets"].as_array().into_iter().flatten();
    targets.any(|target| target["kind"] == serde_json::json!(["lib"]))
}

fn has_example(folder: &Path) -> anyhow::Result<bool> {
    let cannot = || format!("Cannot read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        let found = match path.is_dir() {
            true => has_example(&path)?,
            false => {
                path.extension().is_some_and(|it| it == "rs") && opens_example(&fs::read_to_string(&path)?)
            }
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a comment for rustdoc begins a block of code. One of another language counts as well: rustdoc decides.
fn opens_example(text: &str) -> bool {
    let comments = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
    });
    comments.into_iter().any(|comment| {
        let comment = comment.strip_prefix(' ').unwrap_or(comment);
        // Four more blanks make a block as well.
        comment.trim_start().starts_with("```")
            || comment.trim_start().starts_with("~~~")
            || comment.starts_with("    ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_with_examples_are_found() {
        let names = packages().expect("cargo tells");
        assert!(names.contains(&"divvy-arbiter".to_owned()), "{names:?}");
        assert!(!names.contains(&"divvy".to_owned()), "{names:?}");
    }

    #[test]
    fn blocks_in_comments_for_rustdoc_are_examples() {
        for text in [
            "/// ```\n",
            "    //! ```rust\n",
            "///~~~\n",
            "///     let it = 1;\n",
        ] {
            assert!(opens_example(text), "{text}");
        }
        for text in [
            "// ```\n",
            "/// - one\n///   and more of it\n",
            "let fence = \"```\";\n",
        ] {
            assert!(!opens_example(text), "{text}");
        }
    }
}
