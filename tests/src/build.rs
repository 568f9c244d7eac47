//! The programs under test, built before the first scenario begins: `cargo test` builds this package's own programs
//! only, and a scenario must never judge yesterday's binary.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder in which `divvy` lies with its drop-ins and the Rust client.
pub fn binaries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // A test lies in target/<profile>/deps.
        let test = std::env::current_exe().expect("a test knows where it lies");
        let folder = test
            .parent()
            .and_then(Path::parent)
            .expect("a test lies in target/<profile>/deps");
        // `cargo xtask test` has built everything already.
        if std::env::var_os("DIVVY_TEST_BUILT").is_some() {
            return folder.to_owned();
        }
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            None | Some("debug") => "dev",
            Some(name) => name,
        };
        let status = Command::new(env!("CARGO"))
            .current_dir(workspace())
            .args([
                "build",
                "--quiet",
                "--workspace",
                "--lib",
                "--bins",
                "--profile",
                profile,
            ])
            .status()
            .expect("cargo starts");
        assert!(status.success(), "the programs under test do not build");
        folder.to_owned()
    })
}

/// The root of the repository.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests lies one folder below the root")
}
