//! What `cargo test` says about each suite, read from its output.

use std::fmt;

use anyhow::bail;

/// The suites so far, in the order they ran.
#[derive(Default)]
pub struct Suites {
    suites: Vec<Suite>,
    /// Of the suite that runs.
    failing: Vec<String>,
    failed: Vec<Failed>,
    /// What failed and cannot be run again by a test's name.
    broken: Vec<String>,
}

/// Tests that failed, and what names their suite among a workspace's: `--test kernels`. Without the package: cargo would
/// build that one with fewer features, hence again.
#[derive(Debug, PartialEq, Eq)]
pub struct Failed {
    pub suite: Vec<String>,
    pub tests: Vec<String>,
}

struct Suite {
    name: String,
    passed: u32,
    failed: u32,
    ignored: u32,
    seconds: f64,
    /// Whether it told of its result. One that was aborted does not.
    ended: bool,
}

impl Suites {
    /// Reads one line: `Running unittests src/lib.rs (target/debug/deps/divvy_ptx-0123)`, `Doc-tests divvy_ptx` or
    /// `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s`.
    pub fn note(&mut self, line: &str) {
        let line = line.trim();
        let name = if let Some(rest) = line.strip_prefix("Running ") {
            let binary = rest.rsplit_once('/').map_or(rest, |(_, file)| file);
            Some(
                binary
                    .rsplit_once('-')
                    .map_or(binary, |(name, _)| name)
                    .to_owned(),
            )
        } else {
            line.strip_prefix("Doc-tests ")
                .map(|name| format!("{name} (documentation)"))
        };
        if let Some(name) = name {
            self.suites.push(Suite {
                name,
                passed: 0,
                failed: 0,
                ignored: 0,
                seconds: 0.0,
                ended: false,
            });
        }
        // A test that runs in a process of its own is told of by both.
        if let Some(test) = failing(line).filter(|test| !self.failing.iter().any(|other| other == test)) {
            self.failing.push(test.to_owned());
        }
        if line.starts_with("error: doctest failed") {
            self.failing.clear();
            self.broken.push("a documentation's example".to_owned());
        }
        if let Some(suite) = line.strip_prefix("error: test failed, to rerun pass ") {
            let words = suite
                .trim_matches('`')
                .split(' ')
                .skip_while(|word| *word == "-p");
            self.failed.push(Failed {
                suite: words.skip(1).map(str::to_owned).collect(),
                tests: std::mem::take(&mut self.failing),
            });
        }
        if let (Some(counts), Some(suite)) = (line.strip_prefix("test result: "), self.suites.last_mut()) {
            suite.ended = true;
            suite.passed = number_before(counts, " passed");
            suite.failed = number_before(counts, " failed");
            suite.ignored = number_before(counts, " ignored");
            suite.seconds = counts
                .rsplit_once("finished in ")
                .and_then(|(_, time)| time.strip_suffix('s')?.parse().ok())
                .unwrap_or_default();
        }
    }

    /// What failed so far.
    pub fn failed(&self) -> &[Failed] {
        &self.failed
    }

    /// Fails when nothing ran, when a suite did not finish, or when an example of the documentation failed. Fails too
    /// when a test was ignored, because that hides its result.
    pub fn judge(&self) -> anyhow::Result<()> {
        if let Some(suite) = self.suites.iter().find(|suite| !suite.ended) {
            bail!("{} did not come to its end", suite.name);
        }
        if let Some(broken) = self.broken.first() {
            bail!("{broken} failed");
        }
        if self.sum(|suite| suite.passed) == 0 {
            bail!("No test ran");
        }
        if self.sum(|suite| suite.ignored) > 0 {
            bail!("Tests were ignored");
        }
        Ok(())
    }

    fn sum(&self, of: impl Fn(&Suite) -> u32) -> u32 {
        self.suites.iter().map(of).sum()
    }
}

/// The name in `test restart::comes_back ... FAILED`.
fn failing(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

fn number_before(text: &str, word: &str) -> u32 {
    let Some((before, _)) = text.split_once(word) else {
        return 0;
    };
    before
        .rsplit(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

impl fmt::Display for Suites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for suite in self.suites.iter().filter(|suite| suite.passed + suite.failed > 0) {
            let verdict = if suite.failed > 0 {
                format!(", {} FAILED", suite.failed)
            } else {
                String::new()
            };
            writeln!(
                f,
                "{:>7.1} s  {}: {} passed{verdict}",
                suite.seconds, suite.name, suite.passed
            )?;
        }
        writeln!(
            f,
            "{} passed, {} failed, {} ignored",
            self.sum(|suite| suite.passed),
            self.sum(|suite| suite.failed),
            self.sum(|suite| suite.ignored)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_belong_to_the_suite_that_ran_last() {
        let mut suites = Suites::default();
        for line in [
            "   Compiling divvy-ptx v0.1.0",
            "     Running unittests src/lib.rs (target/debug/deps/divvy_ptx-00ff)",
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s",
            "     Running tests/kernels.rs (target/debug/deps/kernels-00ff)",
            "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.25s",
            "   Doc-tests divvy_ptx",
        ] {
            suites.note(line);
        }
        let text = suites.to_string();
        assert!(text.contains("1.5 s  divvy_ptx: 12 passed\n"), "{text}");
        assert!(text.contains("kernels: 3 passed, 2 FAILED\n"), "{text}");
        assert!(text.ends_with("15 passed, 2 failed, 1 ignored\n"), "{text}");
        assert!(suites.judge().is_err());
    }

    #[test]
    fn what_failed_can_be_run_again() {
        let mut suites = Suites::default();
        for line in [
            "     Running tests/kernels.rs (target/debug/deps/kernels-00ff)",
            "test sums::of_floats ... FAILED",
            "test sums::of_words ... ok",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.25s",
            "error: test failed, to rerun pass `-p divvy-ptx --test kernels`",
        ] {
            suites.note(line);
        }
        let failed = Failed {
            suite: ["--test", "kernels"].map(str::to_owned).to_vec(),
            tests: vec!["sums::of_floats".to_owned()],
        };
        assert_eq!(suites.failed(), [failed]);
    }

    #[test]
    fn an_abort_and_a_failed_example_are_failures_beside_a_test_that_may_be_run_again() {
        let one = [
            "     Running tests/kernels.rs (target/debug/deps/kernels-00ff)",
            "test sums::of_floats ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.25s",
            "error: test failed, to rerun pass `-p divvy-ptx --test kernels`",
        ];
        let aborted = [
            "     Running tests/graph.rs (target/debug/deps/graph-00ff)",
            "test one ... FAILED",
            "error: test failed, to rerun pass `-p divvy-ptx --test graph`",
        ];
        let example = [
            "   Doc-tests divvy_ptx",
            "test crates/ptx/src/lib.rs - parse (line 12) ... FAILED",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.25s",
            "error: doctest failed, to rerun pass `-p divvy-ptx --doc`",
        ];
        for (more, is_sound) in [(&[][..], true), (&aborted, false), (&example, false)] {
            let mut suites = Suites::default();
            for line in one.iter().chain(more) {
                suites.note(line);
            }
            assert_eq!(suites.judge().is_ok(), is_sound, "{more:?}");
        }
    }

    #[test]
    fn nothing_ran_is_a_failure() {
        assert!(Suites::default().judge().is_err());
    }
}
