//! Writing Slurm's files and Divvy's as root, in folders that may be another user's.
//!
//! slurm.conf often lies in a folder of SlurmUser, which is no more than a user elsewhere on the host. So root follows no link
//! that another user could have put there, and replaces a file by name instead of writing into what is there.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use divvy_jobs::include::Conf;
use divvy_model::{Code, Fault};

/// A file's text; nothing for one that need not be there.
///
/// # Errors
/// [`Code::Config`].
pub fn text(path: &Path, is_needed: bool) -> Result<String, Fault> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == ErrorKind::NotFound && !is_needed => Ok(String::new()),
        Err(error) => Err(
            Fault::new(Code::Config, format!("cannot read `{}`", path.display()))
                .because(&error)
                .hint("run it on a node of a Slurm cluster; --conf-dir names the folder of slurm.conf where it is another"),
        ),
    }
}

/// One of Slurm's files with what its `Include` lines name.
///
/// # Errors
/// [`Code::Config`]: a file that is not there, includes itself, or is not as [`included`] wants it.
pub fn expanded(path: &Path, text: &str) -> Result<Conf, Fault> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().unwrap_or(Path::new("/"));
    Conf::expand(&name, text, |name| included(path, folder, name)).map_err(|why| {
        Fault::new(Code::Config, why)
            .hint("`divvy slurm setup` follows Include lines as slurmctld does: repair that line first")
    })
}

/// The text of an included file. Root reads none that a user could have put in Slurm's way: it belongs to root, or to the owner of
/// the file that includes it, others may not write it, and its name does not climb.
fn included(above: &Path, folder: &Path, name: &str) -> Result<String, String> {
    /// More than any cluster's.
    const LARGEST: u64 = 4 << 20;
    if Path::new(name).components().any(|part| part.as_os_str() == "..") {
        return Err(format!("`{name}` leads upwards: name the file by its whole path"));
    }
    let path = place(&folder.join(name)).map_err(|fault| fault.message)?;
    let failed = |error: std::io::Error| format!("cannot read `{}`: {error}", path.display());
    let owner = fs::metadata(above).map_or(0, |meta| meta.uid());
    // A pipe would be waited for, and a link has been followed.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(&path)
        .map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() || meta.mode() & 0o002 != 0 || !(is_own(meta.uid()) || meta.uid() == owner) {
        return Err(format!(
            "`{}` is no file of root's or of {}'s owner, or others may write it",
            path.display(),
            above.display()
        ));
    }
    // Slurm's own user has root read nothing that it could not read itself.
    if owner != 0 && meta.uid() != owner && meta.mode() & 0o004 == 0 {
        return Err(format!(
            "`{}` is not readable for the owner of {}",
            path.display(),
            above.display()
        ));
    }
    let mut text = String::new();
    file.take(LARGEST).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Where a file of Slurm's lies. Links lead there, as long as they are root's and in root's folders.
///
/// # Errors
/// [`Code::Config`] for a link that another user has made, or could change.
pub fn place(path: &Path) -> Result<PathBuf, Fault> {
    /// As the kernel follows.
    const MOST: usize = 40;
    let mut place = path.to_path_buf();
    for _ in 0..MOST {
        let Ok(meta) = fs::symlink_metadata(&place) else {
            return Ok(place);
        };
        if !meta.is_symlink() {
            return Ok(place);
        }
        let above = place.parent().unwrap_or(Path::new("/")).to_path_buf();
        let folder = fs::metadata(&above).map_err(|error| cannot("read", &above, &error))?;
        if !is_own(meta.uid()) || !is_own(folder.uid()) || folder.mode() & 0o022 != 0 {
            return Err(Fault::new(
                Code::Config,
                format!(
                    "`{}` is a link that a user other than root can change: root writes nothing through it",
                    place.display()
                ),
            )
            .hint("put the file in its place, or name the folder where it lies with --conf-dir"));
        }
        let leads = fs::read_link(&place).map_err(|error| cannot("read", &place, &error))?;
        place = above.join(leads);
    }
    Err(Fault::new(
        Code::Config,
        format!("`{}` is a link that leads round in a circle", path.display()),
    ))
}

/// Root's, or this user's own: without root nothing here writes for another user.
fn is_own(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Makes a folder that others may read.
///
/// # Errors
/// [`Code::Config`].
pub fn folder(path: &Path) -> Result<(), Fault> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| cannot("make", path, &error))
}

/// The same for programs that root runs: one that is there already has to be root's, and no link.
///
/// # Errors
/// [`Code::Config`].
pub fn folder_of_programs(path: &Path) -> Result<(), Fault> {
    folder(path)?;
    let meta = fs::symlink_metadata(path).map_err(|error| cannot("read", path, &error))?;
    if meta.is_dir() && is_own(meta.uid()) && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Fault::new(
        Code::Config,
        format!(
            "`{}` is not root's own folder, and root runs what lies in it",
            path.display()
        ),
    )
    .hint("remove it; `divvy slurm setup --apply` makes it again"))
}

/// Removes a file; one that is not there is no error.
///
/// # Errors
/// [`Code::Config`].
pub fn remove(path: &Path) -> Result<(), Fault> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(cannot("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Writes one of Slurm's files in one step: slurmd that reads it meanwhile has the one or the other. Its owner and mode stay,
/// since Slurm's daemons may run as another user, and so does a link of root's to where it lies.
///
/// # Errors
/// As [`place`], and a file that cannot be written.
pub fn rewrite(path: &Path, text: &str) -> Result<(), Fault> {
    let place = place(path)?;
    match fs::symlink_metadata(&place) {
        Ok(meta) if meta.is_file() => {
            let owner = Some((meta.uid(), meta.gid()));
            replace(&place, text.as_bytes(), meta.mode() & 0o777, owner)
        }
        Ok(_) => Err(Fault::new(
            Code::Config,
            format!("`{}` is no file", place.display()),
        )),
        Err(_) => replace(&place, text.as_bytes(), 0o644, None),
    }
}

/// Writes a file of Divvy's in one step. It is root's, and others cannot write it: slurmd runs it, or root believes it.
///
/// # Errors
/// [`Code::Config`].
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Fault> {
    replace(path, bytes, mode, None)
}

fn replace(path: &Path, bytes: &[u8], mode: u32, owner: Option<(u32, u32)>) -> Result<(), Fault> {
    let failed = |error: std::io::Error| cannot("write", path, &error);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".divvy-new");
    let new = path.with_file_name(name);
    let _former = fs::remove_file(&new);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    if let Some((uid, gid)) = owner {
        std::os::unix::fs::fchown(&file, Some(uid), Some(gid)).map_err(failed)?;
    }
    // Of what is open: in a folder of Slurm's user another file may have the name by now.
    file.set_permissions(fs::Permissions::from_mode(mode))
        .map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Fault {
    Fault::new(Code::Config, format!("cannot {what} `{}`", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    /// A user that no machine needs to have.
    const OTHER: u32 = 64_030;

    #[test]
    fn slurms_files_keep_their_owner_their_mode_and_their_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (shared, conf) = (
            folder.path().join("shared.conf"),
            folder.path().join("slurm.conf"),
        );
        fs::write(&shared, "A=1\n").expect("a file");
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o640)).expect("a mode");
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            chown(&shared, Some(OTHER), Some(OTHER)).expect("given away");
        }
        symlink("shared.conf", &conf).expect("a link");
        rewrite(&conf, "A=2\n").expect("written");
        assert!(fs::symlink_metadata(&conf).expect("there").is_symlink());
        let facts = fs::metadata(&shared).expect("there");
        assert_eq!(fs::read_to_string(&shared).expect("read"), "A=2\n");
        assert_eq!(facts.mode() & 0o7777, 0o640);
        assert!(!is_root || (facts.uid(), facts.gid()) == (OTHER, OTHER));
        // What root runs or believes is root's, whatever was there.
        let program = folder.path().join("prolog");
        fs::write(&program, "").expect("a file");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o777)).expect("a mode");
        write(&program, b"#!/bin/sh\n", 0o755).expect("written");
        assert_eq!(fs::metadata(&program).expect("there").mode() & 0o7777, 0o755);
    }

    #[test]
    fn root_follows_an_include_to_slurms_own_files_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let slurm = folder.path().join("slurm.conf");
        let text = "A=1\nInclude nodes.conf\n";
        fs::write(&slurm, text).expect("a file");
        let nodes = folder.path().join("nodes.conf");
        let refused = |what: &str, said: &str| {
            let fault = expanded(&slurm, text).expect_err(what);
            assert!(
                fault.message.starts_with("slurm.conf line 2: ") && fault.message.contains(said),
                "{what}: {fault:?}"
            );
        };
        refused("none", "cannot read");
        fs::write(&nodes, "NodeName=n1\n").expect("a file");
        assert_eq!(expanded(&slurm, text).expect("read").text(), "A=1\nNodeName=n1\n");
        fs::set_permissions(&nodes, fs::Permissions::from_mode(0o666)).expect("a mode");
        refused("others write it", "others may write it");
        fs::remove_file(&nodes).expect("gone");
        fs::create_dir(&nodes).expect("a folder");
        refused("a folder", "is no file");
        fs::remove_dir(&nodes).expect("gone");
        rustix::fs::mkfifoat(rustix::fs::CWD, &nodes, rustix::fs::Mode::from_raw_mode(0o600))
            .expect("a pipe");
        refused("a pipe", "is no file");
        fs::remove_file(&nodes).expect("gone");
        let up = expanded(&slurm, "Include ../etc/shadow\n").expect_err("upwards");
        assert!(up.message.contains("leads upwards"), "{up:?}");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        fs::write(&nodes, "NodeName=n1\n").expect("a file");
        chown(&nodes, Some(OTHER), Some(OTHER)).expect("given away");
        refused("another user's", "is no file of root's");
        // Slurm's own user has all of its files.
        chown(&slurm, Some(OTHER), Some(OTHER)).expect("given away");
        expanded(&slurm, text).expect("its owner's");
        chown(&nodes, Some(0), Some(0)).expect("root's");
        fs::set_permissions(&nodes, fs::Permissions::from_mode(0o640)).expect("a mode");
        refused("root's secret", "is not readable for the owner");
        fs::set_permissions(&nodes, fs::Permissions::from_mode(0o644)).expect("a mode");
        expanded(&slurm, text).expect("all may read it");
        let link = folder.path().join("link.conf");
        symlink(&nodes, &link).expect("a link");
        std::os::unix::fs::lchown(&link, Some(OTHER), Some(OTHER)).expect("given away");
        let linked = expanded(&slurm, "Include link.conf\n").expect_err("another user's link");
        assert!(linked.message.contains("can change"), "{linked:?}");
    }

    #[test]
    fn root_writes_through_no_link_that_another_user_can_change() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let slurms = folder.path().join("slurms");
        fs::create_dir(&slurms).expect("a folder");
        let (victim, conf) = (folder.path().join("victim"), slurms.join("slurm.conf"));
        fs::write(&victim, "root's").expect("a file");
        symlink(&victim, &conf).expect("a link");
        let refused = |what: &str| {
            let fault = rewrite(&conf, "A=1\n").expect_err(what);
            assert!(fault.message.contains("can change"), "{what}: {fault:?}");
            assert_eq!(fs::read_to_string(&victim).expect("there"), "root's", "{what}");
        };
        std::os::unix::fs::lchown(&conf, Some(OTHER), Some(OTHER)).expect("given away");
        refused("its link");
        std::os::unix::fs::lchown(&conf, Some(0), Some(0)).expect("root's");
        chown(&slurms, Some(OTHER), Some(OTHER)).expect("given away");
        refused("a link in its folder");
        chown(&slurms, Some(0), Some(0)).expect("root's");
        fs::set_permissions(&slurms, fs::Permissions::from_mode(0o777)).expect("a mode");
        refused("a link in a folder that all write");
        // A link that leads to such a one is no better.
        let first = folder.path().join("first.conf");
        symlink(&conf, &first).expect("a link");
        rewrite(&first, "A=1\n").expect_err("a link to it");
        // A file in that folder is replaced by its name; and root's own links lead on.
        fs::remove_file(&conf).expect("gone");
        fs::write(&conf, "A=1\n").expect("a file");
        rewrite(&first, "A=2\n").expect("written");
        assert_eq!(fs::read_to_string(&conf).expect("there"), "A=2\n");
        let programs = folder.path().join("divvy");
        symlink(&slurms, &programs).expect("a link");
        folder_of_programs(&programs).expect_err("a link");
        folder_of_programs(&slurms).expect_err("others write it");
        folder_of_programs(&folder.path().join("new")).expect("made");
    }
}
