//! Writes a plan's files, and puts them back byte for byte.
//!
//! What was there lies in `/var/lib/divvy/vm/prepare` before anything changes: a list of the files, and a copy of each.
//! So an end in the middle, of this program or of the machine, leaves each file old or new, and the list says which is which.

use std::path::Path;

use divvy_model::{Code, Fault};
use serde::{Deserialize, Serialize};

use super::plan::{Command, Plan};
use super::tree::Tree;
use crate::record::{FOLDER, Store};

/// A file that was changed.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    path: String,
    /// Whether it was there. Its bytes lie beside the list then.
    existed: bool,
    /// What was written, to see whether it was changed since.
    written: String,
    /// The folders that were made for it, the outermost first.
    folders: Vec<String>,
}

/// The list.
#[derive(Debug, Serialize, Deserialize)]
struct List {
    files: Vec<Kept>,
    undo: Vec<Vec<String>>,
}

/// Where what was there lies, below a root.
fn kept() -> String {
    format!("{FOLDER}/prepare")
}

/// Where it lies while it is not whole, before and after.
fn aside() -> String {
    format!("{FOLDER}/prepare.new")
}

fn copy(folder: &str, number: usize) -> String {
    format!("{folder}/{number}")
}

/// Writes the files. Whatever fails, those that were written are put back.
///
/// # Errors
/// [`Code::VmHost`] where an earlier plan was not undone, a file was changed since the plan was made, is a link or cannot be
/// written; [`Code::Privilege`].
pub fn apply(root: &Path, plan: &Plan) -> Result<(), Fault> {
    let _lock = Store::open(root)?;
    let tree = Tree::open(root)?;
    if tree.has(&kept()) {
        return Err(Fault::new(
            Code::VmHost,
            "an earlier plan was applied here, and this one differs",
        )
        .hint("`divvy vm prepare --undo` first"));
    }
    tree.clear(&aside())?;
    let list = keep(&tree, plan).inspect_err(|_| {
        // The next one removes what is left.
        let _left = tree.clear(&aside());
    })?;
    for change in &plan.changes {
        if let Err(fault) = tree.put(&change.path, change.after.as_bytes()) {
            return Err(match back(&tree, &list) {
                Ok(()) => fault.cause("the files are as they were"),
                Err(second) => fault.after(&second),
            });
        }
    }
    Ok(())
}

/// Copies what is there, on disk before anything changes.
fn keep(tree: &Tree, plan: &Plan) -> Result<List, Fault> {
    tree.make(&aside())?;
    let mut list = List {
        files: Vec::new(),
        undo: plan
            .commands
            .iter()
            .rev()
            .map(|command| command.undo.clone())
            .collect(),
    };
    for (number, change) in plan.changes.iter().enumerate() {
        let now = tree.read(&change.path)?;
        if now.as_deref() != change.before.as_deref().map(str::as_bytes) {
            return Err(Fault::new(
                Code::VmHost,
                format!("/{} was changed while the plan was made", change.path),
            )
            .hint("look at the new plan with `divvy vm prepare`, then apply it"));
        }
        if let Some(bytes) = &now {
            tree.put(&copy(&aside(), number), bytes)?;
        }
        list.files.push(Kept {
            folders: tree.missing(change.path.rsplit_once('/').map_or(".", |(above, _)| above)),
            path: change.path.clone(),
            existed: now.is_some(),
            written: change.after.clone(),
        });
    }
    let text = serde_json::to_vec_pretty(&list)
        .map_err(|error| Fault::new(Code::Internal, "cannot write the list").because(&error))?;
    tree.put(&format!("{}/list.json", aside()), &text)?;
    tree.rename(&aside(), &kept())?;
    Ok(list)
}

/// Puts the files back as they were; the commands that make the loader see it.
///
/// # Errors
/// [`Code::VmHost`] where nothing was applied, or a file was changed since; [`Code::Privilege`].
pub fn undo(root: &Path) -> Result<Vec<Command>, Fault> {
    let _lock = Store::open(root)?;
    let tree = Tree::open(root)?;
    let path = format!("{}/list.json", kept());
    let bytes = tree.read(&path)?.ok_or_else(|| {
        Fault::new(Code::VmHost, "nothing was applied here")
            .hint("`divvy vm prepare` shows the plan, `--apply` writes it")
    })?;
    let list: List = serde_json::from_slice(&bytes).map_err(|error| {
        Fault::new(
            Code::VmHost,
            format!("{} is damaged", tree.shown(&path).display()),
        )
        .because(&error)
    })?;
    back(&tree, &list)?;
    let commands = list.undo.into_iter().map(|words| Command {
        undo: Vec::new(),
        words,
    });
    Ok(commands.collect())
}

/// Puts back each file that is as it was written. One that is as it was first was not written yet, or is back already; one that
/// is neither is a person's, and nothing changes then.
fn back(tree: &Tree, list: &List) -> Result<(), Fault> {
    let mut first = Vec::new();
    for (number, file) in list.files.iter().enumerate() {
        let copy = copy(&kept(), number);
        let was = match file.existed {
            true => Some(tree.read(&copy)?.ok_or_else(|| {
                Fault::new(
                    Code::VmHost,
                    format!("{} is missing", tree.shown(&copy).display()),
                )
                .hint(format!("put /{} back by hand", file.path))
            })?),
            false => None,
        };
        let now = tree.read(&file.path)?;
        if now == was {
            continue;
        }
        if now.as_deref() != Some(file.written.as_bytes()) {
            return Err(Fault::new(
                Code::VmHost,
                format!("/{} was changed since it was written", file.path),
            )
            .hint(format!(
                "look at it, and remove what is no longer wanted; the file as it was first lies in {}",
                tree.shown(&kept()).display()
            )));
        }
        first.push((file, was));
    }
    for (file, was) in first {
        match was {
            Some(bytes) => tree.put(&file.path, &bytes)?,
            None => tree.remove(&file.path)?,
        }
    }
    for made in list.files.iter().flat_map(|file| file.folders.iter().rev()) {
        // Others may have put something there.
        let _not_empty = tree.remove_empty(made);
    }
    // In one step: a list without its files would be taken for one that was applied.
    tree.rename(&kept(), &aside())?;
    tree.clear(&aside())
}
