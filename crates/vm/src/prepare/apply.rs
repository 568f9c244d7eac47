//! Writes a plan's files, and puts them back byte for byte.
//!
//! What was there lies in `/var/lib/divvy/vm/prepare` before anything changes: a list of the files, and a copy of each.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};
use serde::{Deserialize, Serialize};

use super::plan::{Command, Plan};
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

fn failed(what: &str, path: &Path, error: &io::Error) -> Fault {
    let code = match error.kind() {
        io::ErrorKind::PermissionDenied => Code::Privilege,
        _ => Code::VmHost,
    };
    Fault::new(code, format!("cannot {what} {}", path.display())).because(error)
}

/// Where what was there lies, below a root.
fn kept(root: &Path) -> PathBuf {
    root.join(FOLDER).join("prepare")
}

/// Writes the files. Whatever fails, those that were written are put back.
///
/// # Errors
/// [`Code::VmHost`] where an earlier plan was not undone, a file is a link or cannot be written; [`Code::Privilege`].
pub fn apply(root: &Path, plan: &Plan) -> Result<(), Fault> {
    let _lock = Store::open(root)?;
    let folder = kept(root);
    if folder.exists() {
        return Err(Fault::new(
            Code::VmHost,
            "an earlier plan was applied here, and this one differs",
        )
        .hint("`divvy vm prepare --undo` first"));
    }
    let aside = folder.with_extension("new");
    let write =
        |path: &Path, bytes: &[u8]| fs::write(path, bytes).map_err(|error| failed("write", path, &error));
    if aside.exists() {
        fs::remove_dir_all(&aside).map_err(|error| failed("remove", &aside, &error))?;
    }
    fs::create_dir(&aside).map_err(|error| failed("make", &aside, &error))?;
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
        let path = root.join(&change.path);
        plain(root, &change.path)?;
        let existed = path.exists();
        if existed {
            let bytes = fs::read(&path).map_err(|error| failed("read", &path, &error))?;
            write(&aside.join(number.to_string()), &bytes)?;
        }
        list.files.push(Kept {
            folders: missing(root, &change.path),
            path: change.path.clone(),
            existed,
            written: change.after.clone(),
        });
    }
    let text = serde_json::to_vec_pretty(&list)
        .map_err(|error| Fault::new(Code::Internal, "cannot write the list").because(&error))?;
    write(&aside.join("list.json"), &text)?;
    fs::rename(&aside, &folder).map_err(|error| failed("keep", &folder, &error))?;
    for change in &plan.changes {
        if let Err(fault) = put(root, &change.path, change.after.as_bytes()) {
            let back = back(root, &folder, &list, true);
            return Err(match back {
                Ok(()) => fault.cause("the files are as they were"),
                Err(second) => fault.after(&second),
            });
        }
    }
    Ok(())
}

/// Puts the files back as they were; the commands that make the loader see it.
///
/// # Errors
/// [`Code::VmHost`] where nothing was applied, or a file was changed since; [`Code::Privilege`].
pub fn undo(root: &Path) -> Result<Vec<Command>, Fault> {
    let _lock = Store::open(root)?;
    let folder = kept(root);
    let path = folder.join("list.json");
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Fault::new(Code::VmHost, "nothing was applied here")
                .hint("`divvy vm prepare` shows the plan, `--apply` writes it"));
        }
        Err(error) => return Err(failed("read", &path, &error)),
    };
    let list: List = serde_json::from_slice(&bytes).map_err(|error| {
        Fault::new(Code::VmHost, format!("{} is damaged", path.display())).because(&error)
    })?;
    back(root, &folder, &list, false)?;
    let commands = list.undo.into_iter().map(|words| Command {
        undo: Vec::new(),
        words,
    });
    Ok(commands.collect())
}

/// `partly`: some files may not have been written yet.
fn back(root: &Path, folder: &Path, list: &List, partly: bool) -> Result<(), Fault> {
    let differs = |file: &&Kept| {
        let now = fs::read(root.join(&file.path)).unwrap_or_default();
        now != file.written.as_bytes()
    };
    if !partly && let Some(file) = list.files.iter().find(differs) {
        return Err(Fault::new(
            Code::VmHost,
            format!("/{} was changed since it was written", file.path),
        )
        .hint(format!(
            "look at it, and remove what is no longer wanted; the file as it was first lies in {}",
            folder.display()
        )));
    }
    for (number, file) in list.files.iter().enumerate() {
        let path = root.join(&file.path);
        if file.existed {
            let copy = folder.join(number.to_string());
            let bytes = fs::read(&copy).map_err(|error| failed("read", &copy, &error))?;
            put(root, &file.path, &bytes)?;
        } else if path.exists() {
            fs::remove_file(&path).map_err(|error| failed("remove", &path, &error))?;
        }
        for made in file.folders.iter().rev() {
            // Others may have put something there.
            let _not_empty = fs::remove_dir(root.join(made));
        }
    }
    fs::remove_dir_all(folder).map_err(|error| failed("remove", folder, &error))
}

/// The folders above a path that are not there, the outermost first.
fn missing(root: &Path, path: &str) -> Vec<String> {
    let mut folders = Vec::new();
    let mut at = Path::new(path).parent();
    while let Some(folder) = at.filter(|folder| !folder.as_os_str().is_empty()) {
        if root.join(folder).exists() {
            break;
        }
        folders.push(folder.to_string_lossy().into_owned());
        at = folder.parent();
    }
    folders.reverse();
    folders
}

/// Refuses a path with a link in it: what it leads to is not what was planned.
fn plain(root: &Path, path: &str) -> Result<(), Fault> {
    let mut at = root.to_owned();
    for part in Path::new(path) {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(facts) if facts.file_type().is_symlink() => {
                return Err(Fault::new(Code::VmHost, format!("{} is a link", at.display()))
                    .hint("change the file that it leads to by hand"));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(failed("look at", &at, &error)),
        }
    }
    Ok(())
}

/// Replaces a file whole, and keeps its mode and owner.
fn put(root: &Path, path: &str, bytes: &[u8]) -> Result<(), Fault> {
    let path = root.join(path);
    let write = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(root);
        fs::create_dir_all(folder)?;
        let aside = path.with_extension("divvy-new");
        fs::write(&aside, bytes)?;
        match fs::metadata(&path) {
            Ok(old) => {
                chown(&aside, Some(old.uid()), Some(old.gid()))?;
                fs::set_permissions(&aside, old.permissions())?;
            }
            Err(_) => fs::set_permissions(&aside, fs::Permissions::from_mode(0o644))?,
        }
        fs::File::open(&aside)?.sync_all()?;
        fs::rename(&aside, &path).inspect_err(|_| {
            let _never_made = fs::remove_file(&aside);
        })
    };
    write().map_err(|error| failed("write", &path, &error))
}
