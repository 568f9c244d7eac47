//! Files of `python/tests`, run by pytest beside JupyterHub.

use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_tests::build::{binaries, workspace};
use divvy_tests::clients::jobs_python;
use divvy_tests::host::{Host, finish, succeeded};

/// The folder of the package and its tests.
pub fn folder() -> PathBuf {
    workspace().join("python")
}

/// A program on this host that finds the package, the interpreter's own programs and `divvy`.
pub fn command(host: &Host, python: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut folders = vec![
        python.parent().expect("an interpreter's folder").to_owned(),
        binaries().to_owned(),
    ];
    folders.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    let mut command = host.command(program);
    command
        .env(
            "PATH",
            std::env::join_paths(folders).expect("no folder has a colon"),
        )
        .env("PYTHONPATH", folder())
        .env("XDG_RUNTIME_DIR", host.folder())
        .env("HOME", host.folder());
    command
}

/// Runs a file with this interpreter: all of its tests, of which none may be left out.
pub fn tests(host: &Host, python: &Path, file: &str, prepare: impl FnOnce(&mut Command)) {
    tests_behind(host, python, &[], file, prepare);
}

/// The same behind a command, as `unshare --net`, whose last argument pytest's command is.
pub fn tests_behind(
    host: &Host,
    python: &Path,
    before: &[&str],
    file: &str,
    prepare: impl FnOnce(&mut Command),
) {
    let path = folder().join("tests").join(file);
    let text = std::fs::read_to_string(&path).expect("a file of tests");
    let count = text.lines().filter(|line| line.starts_with("def test_")).count();
    let mut pytest = command(host, python, "timeout");
    // A hub that hangs must not hang the suite.
    pytest.args(["--kill-after=10", "300"]).args(before).arg(python);
    pytest.args([
        "-m",
        "pytest",
        "-q",
        "-rA",
        "-p",
        "no:cacheprovider",
        "--durations=5",
    ]);
    pytest.arg(&path).current_dir(folder().join("tests"));
    prepare(&mut pytest);
    let said = succeeded(&finish(&mut pytest));
    assert!(
        said.lines()
            .any(|line| line.starts_with(&format!("{count} passed"))),
        "all {count} pass: {said}"
    );
}

#[test]
fn what_needs_no_cluster() {
    let Some(python) = jobs_python() else { return };
    tests(&Host::new(), &python, "test_options.py", |_| {});
}

/// All but what stands on Ray, which is not installed for this.
#[test]
fn the_package_is_typed() {
    let Some(python) = jobs_python() else { return };
    let mut mypy = Command::new(python);
    mypy.args([
        "-m",
        "mypy",
        "--config-file",
        "mypy.ini",
        "--exclude",
        "/ray/",
        "divvy_jobs",
    ])
    .current_dir(folder());
    let said = succeeded(&finish(&mut mypy));
    assert!(said.starts_with("Success: no issues found"), "{said}");
}
