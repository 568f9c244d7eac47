//! The machines of `examples/hosts`: what users give to `--sysroot`, to try pages for hardware that they do not have.
//! They are those on which the inventory is tested.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use divvy_host::built::Built;
use divvy_tests::build::workspace;

/// A file's bytes, or where a link points.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    File(Vec<u8>),
    Link(PathBuf),
}

/// What is in a tree, by its path below the root.
fn tree(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry.expect("an entry").path();
            let below = path.strip_prefix(root).expect("below the root").to_owned();
            let kind = path.symlink_metadata().expect("it is there").file_type();
            if kind.is_symlink() {
                found.insert(below, Entry::Link(path.read_link().expect("a link")));
            } else if kind.is_dir() {
                folders.push(path);
            } else {
                found.insert(below, Entry::File(std::fs::read(&path).expect("a file")));
            }
        }
    }
    found
}

#[test]
fn the_machines_of_the_examples_are_those_that_are_tested() {
    let folder = tempfile::tempdir().expect("a folder");
    let machines = [
        ("mi300x", Built::mi300x(folder.path().join("mi300x"), 1)),
        ("vgpu", Built::vgpu(folder.path().join("vgpu"))),
    ];
    for (name, built) in machines {
        let committed = workspace().join("examples/hosts").join(name);
        if std::env::var_os("DIVVY_GOLDEN").is_some_and(|value| value == "write") {
            if committed.exists() {
                std::fs::remove_dir_all(&committed).expect("removed");
            }
            copy(built.root(), &committed);
        }
        let (known, now) = (tree(&committed), tree(built.root()));
        assert!(now.len() > 10, "{name}");
        let differs = known
            .keys()
            .chain(now.keys())
            .find(|path| known.get(*path) != now.get(*path));
        assert_eq!(
            differs, None,
            "examples/hosts/{name}: DIVVY_GOLDEN=write writes it again"
        );
    }
}

fn copy(from: &Path, to: &Path) {
    for (path, entry) in tree(from) {
        let path = to.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        match entry {
            Entry::File(bytes) => std::fs::write(path, bytes).expect("a file"),
            Entry::Link(target) => std::os::unix::fs::symlink(target, path).expect("a link"),
        }
    }
}
