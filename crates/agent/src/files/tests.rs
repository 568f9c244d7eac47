use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;

fn base() -> (tempfile::TempDir, Folder) {
    let base = tempfile::tempdir().expect("a folder");
    let folder = Folder::open(base.path()).expect("ours");
    (base, folder)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("there").permissions().mode() & 0o7777
}

#[test]
fn what_is_made_has_its_mode_from_the_first_moment_and_is_read_back() {
    let (base, folder) = base();
    let below = folder.folder("a", 0o711).expect("made");
    assert_eq!(mode(&base.path().join("a")), 0o711);
    folder.folder("a", 0o700).expect("found");
    assert_eq!(mode(&base.path().join("a")), 0o700);
    for content in ["one", "two"] {
        below.write("file", content.as_bytes(), 0o640).expect("written");
        assert_eq!(below.read_text("file").expect("read"), content);
    }
    assert_eq!(mode(&base.path().join("a/file")), 0o640);
    let listener = below.listen("s", 0o666).expect("listens");
    let again = below.listen("s", 0o600).expect("in its place");
    assert_eq!(mode(&base.path().join("a/s")), 0o600);
    let _connected = UnixStream::connect(base.path().join("a/s")).expect("it listens");
    again.accept().expect("the second");
    drop(listener);
    let mut names = below.names().expect("listed");
    names.sort();
    assert_eq!(names, ["file", "s"], "nothing else is left");
    folder.remove_all("a").expect("removed");
    folder.remove_all("a").expect("not there");
    assert!(!folder.has("a"));
}

#[test]
fn links_are_neither_followed_nor_lead_anywhere() {
    let (base, folder) = base();
    let victim = base.path().join("victim");
    fs::create_dir(&victim).expect("a folder");
    fs::write(victim.join("precious"), "kept").expect("written");
    for name in ["folder", "file", "socket"] {
        symlink(&victim, base.path().join(name)).expect("a link");
    }
    symlink(victim.join("precious"), base.path().join("read")).expect("a link");
    assert!(folder.folder("folder", 0o777).is_err() && folder.below("folder").is_err());
    assert!(folder.read("read").is_err());
    assert!(folder.open_to_write("read", OFlags::APPEND, 0o600).is_err());
    // These replace the link by their own file.
    folder.write("file", b"ours", 0o600).expect("written");
    let _listener = folder.listen("socket", 0o600).expect("listens");
    folder.remove_all("folder").expect("the link is removed");
    assert_eq!(
        fs::read_to_string(victim.join("precious")).expect("there"),
        "kept"
    );
    assert_eq!(fs::read_dir(&victim).expect("a folder").count(), 1);
}

#[test]
fn a_folder_that_others_can_write_in_is_refused() {
    let (base, folder) = base();
    let open = base.path().join("open");
    fs::create_dir(&open).expect("a folder");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("a mode");
    let refused = folder.below("open").expect_err("refused");
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    if rustix::process::geteuid().is_root() {
        let given = base.path().join("given");
        fs::create_dir(&given).expect("a folder");
        std::os::unix::fs::chown(&given, Some(65_534), None).expect("given away");
        assert!(folder.folder("given", 0o711).is_err());
        assert_eq!(fs::metadata(&given).expect("there").uid(), 65_534);
    }
}

#[test]
fn names_are_names() {
    let (_base, folder) = base();
    for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0b"] {
        assert!(folder.write(name, b"", 0o600).is_err(), "{name:?}");
        assert!(folder.folder(name, 0o700).is_err() && folder.remove_all(name).is_err());
        assert!(folder.listen(name, 0o600).is_err());
    }
}

/// A thread that replaces everything it can reach by links, as a hostile owner of the folder would: nothing outside
/// changes, in whatever order. The test owns the folder, so that the race is real.
#[test]
fn swaps_of_links_in_mid_operation_change_nothing_outside() {
    /// The number of operations, five in each turn.
    const ROUNDS: u32 = 10_000;
    /// A bound on the time: the test takes seconds.
    const LONGEST: Duration = Duration::from_secs(120);
    let begin = Instant::now();
    let (base, folder) = base();
    let victim = base.path().join("victim");
    fs::create_dir(&victim).expect("a folder");
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o750)).expect("a mode");
    fs::write(victim.join("precious"), "kept").expect("written");
    let work = base.path().join("work");
    fs::create_dir(&work).expect("a folder");
    let working = folder.below("work").expect("ours");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for name in ["f", "d", "s"] {
                    let _there = fs::remove_file(work.join(name));
                    let _there = symlink(&victim, work.join(name));
                }
                let _there = fs::remove_file(work.join("p"));
                let _there = symlink(victim.join("precious"), work.join("p"));
            }
        });
        let mut rounds = 0;
        while rounds < ROUNDS && begin.elapsed() < LONGEST {
            rounds += 5;
            let _raced = working.write("f", b"evil", 0o777);
            let _raced = working.write("p", b"evil", 0o777);
            let _raced = working
                .folder("d", 0o777)
                .and_then(|below| below.write("precious", b"evil", 0o777));
            let _raced = working.listen("s", 0o666);
            let _raced = working.remove_all("d");
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(rounds, ROUNDS, "there was time");
    });
    assert_eq!(
        fs::read_to_string(victim.join("precious")).expect("there"),
        "kept"
    );
    assert_eq!(mode(&victim), 0o750);
    assert_eq!(fs::read_dir(&victim).expect("a folder").count(), 1);
}

#[test]
fn a_settled_folder_has_no_other_users_above_it() {
    let (base, _) = base();
    let deep = base.path().join("a/b");
    fs::create_dir_all(&deep).expect("folders");
    symlink(&deep, base.path().join("link")).expect("a link");
    // A folder below /tmp, where all users may write and none may replace another's file.
    let real = deep.canonicalize().expect("there");
    for path in [&deep, &base.path().join("link")] {
        assert_eq!(Folder::settled(path).expect("ours").path(), real);
    }
    let refused = |path: &Path| Folder::settled(path).expect_err("refused").kind();
    assert_eq!(refused(&base.path().join("none")), io::ErrorKind::NotFound);
    let above = base.path().join("a");
    fs::set_permissions(&above, fs::Permissions::from_mode(0o777)).expect("a mode");
    assert_eq!(refused(&deep), io::ErrorKind::PermissionDenied);
    fs::set_permissions(&above, fs::Permissions::from_mode(0o1777)).expect("a mode");
    assert!(Folder::settled(&deep).is_ok());
    assert_eq!(
        refused(&above),
        io::ErrorKind::PermissionDenied,
        "others write in it"
    );
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(&above, fs::Permissions::from_mode(0o755)).expect("a mode");
        std::os::unix::fs::chown(&above, Some(65_534), None).expect("given away");
        assert_eq!(refused(&deep), io::ErrorKind::PermissionDenied);
    }
}
