//! `cargo xtask generate-abi --roles`: writes crates/abi/src/generated/roles.rs from crates/abi/roles.txt.
//!
//! The text says what the arguments of each entry point are for. It is checked against the declaration table and the
//! structures, which came from the headers: each argument exists, its type fits its role, and no entry point is left out.

mod emit;
mod grammar;
mod page;
mod resolve;
mod table;
mod types;

use std::path::Path;

use anyhow::{Context, bail};

use crate::cargo::workspace_root;

use resolve::Resolved;

const ROLES: &str = "crates/abi/roles.txt";
const GENERATED: &str = "crates/abi/src/generated";

/// The text of docs/remote-coverage.md.
pub fn coverage() -> anyhow::Result<String> {
    let (entries, resolved, _) = read(workspace_root())?;
    let symbols = entries.into_iter().map(|entry| entry.symbol);
    let all: Vec<_> = symbols.zip(resolved).collect();
    Ok(page::page(&all))
}

/// Writes roles.rs; with `check`, fails where it is not up to date.
pub fn run(check: bool) -> anyhow::Result<()> {
    let root = workspace_root();
    let (entries, resolved, types) = read(root)?;
    let layouts = text(root, &format!("{GENERATED}/layouts.rs"))?;
    let written = emit::roles(&entries, &resolved, &types, &layouts)?;
    let path = root.join(GENERATED).join("roles.rs");
    if !check {
        return std::fs::write(&path, written).with_context(|| format!("Cannot write {}", path.display()));
    }
    if std::fs::read_to_string(&path).ok() != Some(written) {
        bail!("{GENERATED}/roles.rs is not up to date: run `cargo xtask generate-abi --roles`");
    }
    Ok(())
}

fn read(root: &Path) -> anyhow::Result<(Vec<table::Entry>, Vec<Resolved>, types::Types)> {
    let generated = |name: &str| text(root, &format!("{GENERATED}/{name}.rs"));
    let types = types::Types::read(
        &generated("aliases")?,
        &generated("enumerations")?,
        &generated("records")?,
    )?;
    let entries = table::entries(&generated("functions")?);
    let lines = grammar::lines(&text(root, ROLES)?).context(ROLES)?;
    let (resolved, mut wrong) = resolve::resolve(&entries, &lines, &types);
    for (entry, resolved) in entries.iter().zip(&resolved) {
        if let Resolved::By(file) = resolved
            && !root.join("crates/remote/src/client").join(file).is_file()
        {
            wrong.push(format!(
                "{}: crates/remote/src/client/{file} is not there",
                entry.symbol
            ));
        }
    }
    if !wrong.is_empty() {
        bail!("{ROLES}:\n{}", wrong.join("\n"));
    }
    Ok((entries, resolved, types))
}

fn text(root: &Path, name: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root.join(name)).with_context(|| format!("Cannot read {name}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_roles_are_those_of_the_text() {
        super::run(true).expect("up to date");
    }
}
