//! Files by which programs have a group, lent to the user that a machine's QEMU runs as: `/dev/vfio/7`.
//!
//! What is lent stands in a record before it is. A process that is killed leaves its record, and the next `divvy vm` gives the files
//! back: a number is given out again, and a later machine's user would have the device.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};
use rustix::fs::{AtFlags, CWD, Uid, chownat};
use serde::{Deserialize, Serialize};

use crate::function::DEVICES;
use crate::group::Group;
use crate::record::{Runner, Store, boot, damaged, peek_all};

/// Where all such files lie, below the root.
const FOLDER: &str = "dev/vfio/";
/// How the names of these records end.
const END: &str = ".loan";

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lent {
    /// Its path below the root.
    path: String,
    /// The number of its device: another one may have its name later.
    device: u64,
    /// Whose it was.
    owner: u32,
}

/// What a process has lent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loan {
    boot: String,
    runner: Runner,
    /// To which user.
    user: u32,
    files: Vec<Lent>,
}

impl Loan {
    /// Gives a user the files of groups that are on VFIO, for the time of a process.
    ///
    /// # Errors
    /// [`Code::VmHeld`] where another machine's user has one; [`Code::Guest`] with the system's reason; as [`Store::save`].
    pub fn make(
        root: &Sysroot,
        store: &Store,
        runner: Runner,
        user: u32,
        groups: &[Group],
    ) -> Result<Self, Fault> {
        let others: Vec<(String, Self)> = store.all(END)?;
        let mut files = Vec::new();
        for path in groups.iter().flat_map(|group| files_of(root, group)) {
            let found = match look(root, &path) {
                Ok(Some(found)) => found,
                // A kernel has one of the two, or both.
                Ok(None) => continue,
                Err(error) => return Err(failed(&path, &error)),
            };
            let has_it =
                |loan: &Self| loan.user == found.uid() && loan.files.iter().any(|lent| lent.path == path);
            if let Some((_, loan)) = others.iter().find(|(_, loan)| has_it(loan)) {
                return Err(Fault::new(Code::VmHeld, "a virtual machine has the device")
                    .cause(format!("process {} has /{path} for its machine", loan.runner.pid))
                    .hint("end that machine; then try again"));
            }
            files.push(Lent {
                path,
                device: found.rdev(),
                owner: found.uid(),
            });
        }
        let loan = Self {
            boot: boot(root),
            runner,
            user,
            files,
        };
        store.put(&loan.name(), &loan)?;
        for lent in &loan.files {
            if let Err(error) = give(root, &lent.path, user) {
                let fault = failed(&lent.path, &error);
                loan.give_back(root, store)?;
                return Err(fault);
            }
        }
        Ok(loan)
    }

    /// Gives them back to those whose they were; the files that changed.
    ///
    /// # Errors
    /// [`Code::Guest`] with the system's reason: the record stays then. As [`Store::save`].
    pub fn give_back(&self, root: &Sysroot, store: &Store) -> Result<Vec<String>, Fault> {
        let mut back = Vec::new();
        for lent in &self.files {
            // One whose group is off VFIO is gone. Another device may have its name since, or an administrator gave it away.
            let is_lent = |found: &Metadata| found.rdev() == lent.device && found.uid() == self.user;
            let found = look(root, &lent.path).map_err(|error| failed(&lent.path, &error))?;
            if self.boot == boot(root) && is_in_folder(&lent.path) && found.as_ref().is_some_and(is_lent) {
                give(root, &lent.path, lent.owner).map_err(|error| failed(&lent.path, &error))?;
                back.push(format!("/{}", lent.path));
            }
        }
        store.take_away(&self.name())?;
        Ok(back)
    }

    fn name(&self) -> String {
        format!("{}{END}", self.runner.pid)
    }
}

/// Gives back what processes lent that were killed; the files that changed.
///
/// # Errors
/// As [`Store::records`] and [`Loan::give_back`].
pub fn give_back_left(root: &Sysroot, store: &Store) -> Result<Vec<String>, Fault> {
    let mut back = Vec::new();
    for (name, loan) in store.all::<Loan>(END)? {
        if name != loan.name() {
            return Err(damaged(
                &Path::new("/").join(crate::record::FOLDER).join(name),
                "it was changed by hand",
            ));
        }
        if !is_used(root, &loan) {
            back.extend(loan.give_back(root, store)?);
        }
    }
    Ok(back)
}

/// What processes lent that were killed, for those who only look.
#[must_use]
pub fn left(root: &Sysroot, base: &Path) -> Vec<String> {
    let loans: Vec<(String, Loan)> = peek_all(base, END);
    let left = loans.iter().filter(|(_, loan)| !is_used(root, loan));
    left.flat_map(|(_, loan)| loan.files.iter().map(|lent| format!("/{}", lent.path)))
        .collect()
}

fn is_used(root: &Sysroot, loan: &Loan) -> bool {
    loan.boot == boot(root) && loan.runner.is_alive(root)
}

/// The paths of a group's files, below the root.
fn files_of(root: &Sysroot, group: &Group) -> Vec<String> {
    let mut files = vec![format!("{FOLDER}{}", group.number)];
    for function in &group.functions {
        let names = root.names(&format!("{DEVICES}/{}/vfio-dev", function.address));
        files.extend(names.into_iter().map(|name| format!("{FOLDER}devices/{name}")));
    }
    files
}

fn is_in_folder(path: &str) -> bool {
    path.starts_with(FOLDER) && path.split('/').all(|part| part != "..")
}

/// A device's file; None where there is none of this name.
fn look(root: &Sysroot, path: &str) -> io::Result<Option<Metadata>> {
    match root.path(path).symlink_metadata() {
        Ok(found) if found.file_type().is_char_device() => Ok(Some(found)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn give(root: &Sysroot, path: &str, user: u32) -> io::Result<()> {
    let user = Some(Uid::from_raw(user));
    Ok(chownat(
        CWD,
        root.path(path),
        user,
        None,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

fn failed(path: &str, error: &io::Error) -> Fault {
    Fault::new(Code::Guest, format!("/{path} cannot change its owner"))
        .because(error)
        .hint("QEMU runs as a user of its own, which has the GPU's file meanwhile: /dev has to be writable")
}
