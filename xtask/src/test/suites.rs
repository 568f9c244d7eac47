//! How each suite ended, read from what its program printed.

use std::fmt;
use std::process::ExitStatus;

use anyhow::bail;

use super::programs::Program;

/// So many lines of a failed test's output the summary repeats.
const MOST_SAID: usize = 12;
/// So many characters of each.
const WIDEST_SAID: usize = 600;

/// One suite: a test program, or a package's examples in its documentation.
#[derive(Debug)]
pub struct Suite {
    name: String,
    /// None for examples: those cannot be run again by a name.
    pub program: Option<Program>,
    /// The tests that failed, by name.
    pub failing: Vec<String>,
    /// What each of them printed first, below its name: the summary repeats it.
    said: Vec<String>,
    /// Whether the lines that come belong to `said`.
    is_saying: bool,
    passed: u32,
    failed: u32,
    ignored: u32,
    seconds: f64,
    /// Whether it told of its result. One that was aborted does not.
    ended: bool,
    success: bool,
}

impl Suite {
    /// A suite that begins.
    pub fn new(program: &Program) -> Self {
        Self::named(program.name.clone(), Some(program.clone()))
    }

    fn named(name: String, program: Option<Program>) -> Self {
        Self {
            name,
            program,
            failing: Vec::new(),
            said: Vec::new(),
            is_saying: false,
            passed: 0,
            failed: 0,
            ignored: 0,
            seconds: 0.0,
            ended: false,
            success: false,
        }
    }

    /// Reads one line: `test sums::of_floats ... FAILED`, or `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured;
    /// 0 filtered out; finished in 0.01s`.
    pub fn note(&mut self, line: &str) {
        let line = line.trim();
        self.note_said(line);
        // A test that runs in a process of its own is told of by both.
        if let Some(test) = failing(line).filter(|test| !self.failing.iter().any(|other| other == test)) {
            self.failing.push(test.to_owned());
        }
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.ended = true;
            self.passed = number_before(counts, " passed");
            self.failed = number_before(counts, " failed");
            self.ignored = number_before(counts, " ignored");
            self.seconds = counts
                .rsplit_once("finished in ")
                .and_then(|(_, time)| time.strip_suffix('s')?.parse().ok())
                .unwrap_or_default();
        }
    }

    /// Keeps what a failed test printed before its backtrace: `---- NAME stdout ----`, then its lines.
    fn note_said(&mut self, line: &str) {
        let header = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(test) = header {
            self.is_saying = true;
            self.said.push(format!("{}: {test}", self.name));
        } else if line == "stack backtrace:" || line == "failures:" {
            self.is_saying = false;
        } else if let Some(said) = self
            .said
            .last_mut()
            .filter(|_| self.is_saying && !line.is_empty())
            && said.lines().count() <= MOST_SAID
        {
            said.push_str("\n  ");
            said.extend(line.chars().take(WIDEST_SAID));
        }
    }

    /// Notes how the program ended.
    pub fn end(&mut self, status: ExitStatus) {
        self.success = status.success();
    }

    /// What a second try cannot show: it broke off, or it failed and named no test.
    fn is_broken(&self) -> bool {
        !self.ended || (!self.success && (self.failing.is_empty() || self.program.is_none()))
    }
}

/// The suites of a run, in the order in which they are shown.
#[derive(Default)]
pub struct Suites(pub Vec<Suite>);

impl Suites {
    /// Adds the examples of the documentation, as `cargo test --doc` printed them.
    pub fn add_examples(&mut self, output: &str, success: bool) {
        for line in output.lines() {
            if let Some(name) = line.trim().strip_prefix("Doc-tests ") {
                let mut suite = Suite::named(format!("{name} (documentation)"), None);
                suite.success = true;
                self.0.push(suite);
            } else if let Some(suite) = self.0.last_mut().filter(|suite| suite.program.is_none()) {
                suite.note(line);
                suite.success = suite.failed == 0;
            }
        }
        if !success && let Some(last) = self.0.last_mut() {
            last.success &= last.program.is_some();
        }
    }

    /// The suites with tests that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Suite> {
        self.0.iter().filter(|suite| !suite.success)
    }

    /// Fails when nothing ran, when a suite did not finish, or when an example of the documentation failed. Fails too
    /// when a test was ignored, because that hides its result.
    ///
    /// # Errors
    /// The first of these, in a sentence.
    pub fn judge(&self) -> anyhow::Result<()> {
        if let Some(suite) = self.0.iter().find(|suite| suite.is_broken()) {
            bail!(
                "{} did not come to its end, or failed without the name of a test",
                suite.name
            );
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
        self.0.iter().map(of).sum()
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
        for suite in self.0.iter().filter(|suite| suite.passed + suite.failed > 0) {
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
        for said in self.0.iter().flat_map(|suite| &suite.said) {
            writeln!(f, "FAILED {said}")?;
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
    use std::os::unix::process::ExitStatusExt;

    /// A suite that printed these lines and ended so.
    fn suite(name: &str, lines: &[&str], code: i32) -> Suite {
        let mut suite = Suite::new(&Program::of_test(name));
        lines.iter().for_each(|line| suite.note(line));
        suite.end(ExitStatus::from_raw(code << 8));
        suite
    }

    const PASSED: &str =
        "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s";
    const FAILED: &str =
        "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.25s";

    #[test]
    fn each_suites_result_is_a_line_and_all_are_summed() {
        let suites = Suites(vec![
            suite("divvy_ptx", &[PASSED], 0),
            suite("kernels", &["test sums::of_floats ... FAILED", FAILED], 101),
        ]);
        let text = suites.to_string();
        assert!(text.contains("1.5 s  divvy_ptx: 12 passed\n"), "{text}");
        assert!(text.contains("kernels: 3 passed, 2 FAILED\n"), "{text}");
        assert!(text.ends_with("15 passed, 2 failed, 0 ignored\n"), "{text}");
        assert!(suites.judge().is_ok(), "a second try may show more");
        let failed: Vec<&[String]> = suites.failed().map(|suite| suite.failing.as_slice()).collect();
        assert_eq!(failed, [["sums::of_floats".to_owned()]]);
    }

    #[test]
    fn the_summary_repeats_what_a_failed_test_said() {
        let lines = [
            "failures:",
            "",
            "---- sums::of_floats stdout ----",
            "",
            "thread 'sums::of_floats' (7) panicked at tests/sums.rs:3:5:",
            "the sum is 4",
            "stack backtrace:",
            "0: __rustc::rust_begin_unwind",
            "",
            "---- sums::of_bytes stdout ----",
            "it fails, too",
            "failures:",
            "sums::of_floats",
            FAILED,
        ];
        let text = Suites(vec![suite("kernels", &lines, 101)]).to_string();
        let end = "FAILED kernels: sums::of_floats\n  thread 'sums::of_floats' (7) panicked at tests/sums.rs:3:5:\n  the sum \
                   is 4\nFAILED kernels: sums::of_bytes\n  it fails, too\n3 passed, 2 failed, 0 ignored\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn what_a_second_try_cannot_show_is_a_failure() {
        let broken_off = suite("graph", &["test one ... FAILED"], 134);
        let without_a_name = suite("graph", &[PASSED], 1);
        let silent = suite("graph", &[], 0);
        for broken in [broken_off, without_a_name, silent] {
            let suites = Suites(vec![suite("divvy_ptx", &[PASSED], 0), broken]);
            assert!(suites.judge().is_err(), "{suites}");
        }
    }

    #[test]
    fn ignored_tests_and_no_tests_are_failures() {
        let ignored = PASSED.replace("0 ignored", "1 ignored");
        assert!(Suites(vec![suite("divvy_ptx", &[&ignored], 0)]).judge().is_err());
        assert!(Suites::default().judge().is_err());
    }

    #[test]
    fn examples_of_the_documentation_count_and_cannot_be_tried_again() {
        let told = |result: &str, success| {
            let mut suites = Suites(vec![suite("divvy_ptx", &[PASSED], 0)]);
            let lines = [
                "   Doc-tests divvy_model",
                "running 1 test",
                result,
                "   Doc-tests divvy_ptx",
                PASSED,
            ];
            suites.add_examples(&lines.join("\n"), success);
            suites
        };
        let sound = told(PASSED, true);
        assert!(sound.judge().is_ok());
        assert!(
            sound
                .to_string()
                .contains("divvy_model (documentation): 12 passed")
        );
        assert!(told(FAILED, false).judge().is_err());
        assert!(told(PASSED, false).judge().is_err(), "rustdoc itself failed");
    }
}
