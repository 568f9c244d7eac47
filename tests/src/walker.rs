//! Looks for paths that root, or the agent's user, acts on and that another user could have replaced. That is anything
//! below a run directory with an owner who is neither, or that group or others may write to.
//!
//! Sockets may be open to everybody: a connection changes nothing on the disk. There is one exception, the folder of a
//! real MPS daemon's pipes: the daemon is a process of the user, and so is that folder.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// What is wrong with each such path, in words; nothing where all is well. `trusted` are the users who may own.
pub fn writable_by_others(run: &Path, trusted: &[u32]) -> Vec<String> {
    let mut found = Vec::new();
    for above in run.ancestors().skip(1) {
        if let Ok(meta) = fs::symlink_metadata(above) {
            // Only root makes what lies above.
            found.extend(judge(above, &meta, &[0]));
        }
    }
    walk(run, trusted, &mut found);
    found
}

fn walk(path: &Path, trusted: &[u32], found: &mut Vec<String>) {
    // A path that is gone again meanwhile is no finding.
    let Ok(meta) = fs::symlink_metadata(path) else {
        return;
    };
    if is_pipe_of_a_daemon(path) {
        return;
    }
    found.extend(judge(path, &meta, trusted));
    if meta.is_dir() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            walk(&entry.path(), trusted, found);
        }
    }
}

fn judge(path: &Path, meta: &Metadata, trusted: &[u32]) -> Option<String> {
    let mode = meta.mode() & 0o7777;
    let kind = meta.file_type();
    let has_mode = !kind.is_symlink() && !kind.is_socket();
    let is_foreign = !trusted.contains(&meta.uid());
    // In a folder that is sticky others make files of their own, and replace none.
    let is_sticky = meta.is_dir() && mode & 0o1000 != 0;
    let is_open = has_mode && mode & 0o022 != 0 && !is_sticky;
    (is_foreign || is_open).then(|| format!("{} is user {}'s, mode {mode:04o}", path.display(), meta.uid()))
}

/// `<run>/mps/user-UID/DEVICE/pipe` in which a daemon's own FIFO or socket is. An emulated daemon has none.
fn is_pipe_of_a_daemon(path: &Path) -> bool {
    let is_place = path.ends_with("pipe")
        && path
            .components()
            .rev()
            .nth(3)
            .is_some_and(|part| part.as_os_str() == "mps");
    is_place
        && fs::symlink_metadata(path.join("control"))
            .is_ok_and(|meta| meta.file_type().is_fifo() || meta.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn what_another_may_write_is_found_and_nothing_else() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir_in("/run").expect("a folder");
        let run = folder.path().join("run");
        fs::create_dir_all(run.join("slices/0123")).expect("folders");
        fs::write(run.join("record"), "").expect("written");
        symlink("/etc/shadow", run.join("link")).expect("a link");
        let socket = std::os::unix::net::UnixListener::bind(run.join("agent.sock"));
        fs::set_permissions(run.join("agent.sock"), fs::Permissions::from_mode(0o666)).expect("a mode");
        assert!(socket.is_ok());
        assert_eq!(writable_by_others(&run, &[0]), [""; 0]);

        fs::set_permissions(run.join("record"), fs::Permissions::from_mode(0o664)).expect("a mode");
        chown(run.join("slices/0123"), Some(65534), None).expect("given away");
        std::os::unix::fs::lchown(run.join("link"), Some(65534), None).expect("given away");
        let found = writable_by_others(&run, &[0]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(writable_by_others(&run, &[0, 65534]).len(), 1);

        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("a mode");
        assert_eq!(writable_by_others(&run, &[0]).len(), 4);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).expect("a mode");
    }
}
