//! A test that runs once more in a process of its own: what it does to its process reaches no other test.
//!
//! The test starts its own program again with [`command`], and tells itself by a variable that it is the second one. It
//! looks at the second one's end with [`assert_passed`], which also proves that a test ran there: libtest ends well where no
//! test has the name that it was given.
//!
//! ```
//! # use std::process::Output;
//! # fn passes(output: &Output) { divvy_own_process::assert_passed("some_test", output) }
//! fn alone(test: &str, body: impl FnOnce()) {
//!     if std::env::var_os("SECOND").is_some() {
//!         return body();
//!     }
//!     let output = divvy_own_process::command(test).env("SECOND", "1").output();
//!     divvy_own_process::assert_passed(test, &output.expect("this program starts again"));
//! }
//! ```
#![forbid(unsafe_code)]

use std::process::{Command, Output};

/// This test program again, to run the test that calls this. `test` is its name, with or without the modules around it: they
/// are taken from the thread, which libtest names after the test. What the test prints is not captured.
///
/// # Panics
/// Where this program cannot be found.
#[must_use]
pub fn command(test: &str) -> Command {
    let thread = std::thread::current();
    let name = match thread.name() {
        Some(name) if is_path_to(name, test) => name,
        _ => test,
    };
    again(name)
}

/// This test program again, to run another test: one in the same module as the test that calls this.
///
/// # Panics
/// Where this program cannot be found.
#[must_use]
pub fn other(test: &str) -> Command {
    again(&beside(test))
}

/// The whole name of a test in the same module as the one that calls this.
#[must_use]
pub fn beside(test: &str) -> String {
    let thread = std::thread::current();
    let modules = thread.name().and_then(|name| name.rsplit_once("::"));
    modules.map_or_else(|| test.to_owned(), |(modules, _)| format!("{modules}::{test}"))
}

fn again(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test has a file"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command
}

/// Whether `name` is `test`, or that in some modules.
fn is_path_to(name: &str, test: &str) -> bool {
    name.strip_suffix(test)
        .is_some_and(|modules| modules.is_empty() || modules.ends_with("::"))
}

/// Fails where the process ended badly, and where no test ran in it.
///
/// # Panics
/// With all that the process printed.
#[track_caller]
pub fn assert_passed(test: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{test}: {}\n{}",
        output.status,
        both(output)
    );
    assert_ran(test, output);
}

/// Fails where no test ran in a process that may have ended badly.
///
/// # Panics
/// With all that the process printed.
#[track_caller]
pub fn assert_ran(test: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let ran = said.lines().any(|line| line == "running 1 test");
    assert!(ran, "no test of the name {test} ran\n{}", both(output));
}

/// What a process printed, on both streams.
#[must_use]
pub fn both(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: &str = "DIVVY_OWN_PROCESS_SECOND";

    #[test]
    fn a_test_runs_again_by_its_own_name() {
        if std::env::var_os(SECOND).is_some() {
            return;
        }
        for name in [
            "a_test_runs_again_by_its_own_name",
            "tests::a_test_runs_again_by_its_own_name",
        ] {
            let output = command(name).env(SECOND, "1").output().expect("it starts");
            assert_passed(name, &output);
        }
        let beside = other("names_are_compared_whole").output().expect("it starts");
        assert_passed("names_are_compared_whole", &beside);
    }

    #[test]
    fn a_name_that_no_test_has_is_found_out() {
        let output = command("no_test_has_this_name").output().expect("it starts");
        assert!(output.status.success(), "libtest takes it for well");
        let ran = std::panic::catch_unwind(|| assert_ran("no_test_has_this_name", &output));
        assert!(ran.is_err());
    }

    #[test]
    fn names_are_compared_whole() {
        assert!(is_path_to("one::two", "two") && is_path_to("two", "two"));
        assert!(!is_path_to("onetwo", "two") && !is_path_to("two::one", "two"));
    }
}
