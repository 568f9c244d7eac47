//! `cargo xtask test`: everything that must hold before a change lands, in the order in which it is quickest to fail.
//! CI calls the same command and nothing else.

mod doc_examples;
mod documentation;
pub mod programs;
mod runner;
mod suites;

use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use self::suites::{Suite, Suites};
use crate::cargo::{cargo, finish};
use crate::{coverage, deny, enforced, schemas, setup, words};

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Run the suites only: no formatting, no lints, no documentation
    #[arg(long)]
    suites_only: bool,
    /// Cargo jobs at once, where the machine should not be filled
    #[arg(long)]
    jobs: Option<u32>,
}

/// One finished step, for the summary.
struct Step {
    name: &'static str,
    took: Duration,
    passed: bool,
}

/// Runs every step even when one fails, then prints the summary and fails if any did.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let start = Instant::now();
    let jobs: Vec<String> = args.jobs.iter().map(|jobs| format!("--jobs={jobs}")).collect();
    let mut steps = Vec::new();
    let mut suites = Suites::default();
    let mut unsteady = Vec::new();

    step(&mut steps, "setup", || {
        setup::for_demo()?;
        setup::for_tests()
    });
    if !args.suites_only {
        step(&mut steps, "format", || {
            finish(cargo().args(["fmt", "--all", "--check"]))
        });
        step(&mut steps, "dependencies", || {
            deny::run(&deny::Args { advisories: false })
        });
        step(&mut steps, "words", || words::run(&words::Args { of: None }));
        step(&mut steps, "coverage", || {
            coverage::run(&coverage::Args { check: true })
        });
        step(&mut steps, "schemas", || {
            schemas::run(&schemas::Args { check: true })
        });
        step(&mut steps, "lints", || {
            finish(
                cargo()
                    .args(["clippy", "--quiet", "--workspace", "--all-targets"])
                    .args(&jobs)
                    .args(["--", "--deny", "warnings"]),
            )
        });
    }
    // Before the suites: the drop-ins and the command, which the end-to-end scenarios run. With the test programs, in one
    // go: those have other features of some crates, and by itself a build without them compiles most crates twice.
    step(&mut steps, "build", || {
        finish(
            cargo()
                .args(["build", "--workspace", "--all-targets"])
                .args(&jobs),
        )
    });
    step(&mut steps, "suites", || {
        run_suites(&jobs, &mut suites, &mut unsteady)
    });
    step(&mut steps, "enforced", || {
        enforced::quick(&programs::build(&jobs)?)
    });
    // These pack what the step `build` has made: without the tests' features all would be compiled once more. A story runs the
    // kit where there is /dev/shm.
    step(&mut steps, "kit", || {
        finish(cargo().args([
            "xtask",
            "gpu-kit",
            "--native",
            "--built",
            "--profile",
            "dev",
            "--try",
            "--without-shm",
        ]))
    });
    step(&mut steps, "packages", || {
        finish(cargo().args([
            "xtask",
            "dist",
            "--native",
            "--built",
            "--profile",
            "dev",
            "--try",
        ]))
    });
    if !args.suites_only {
        step(&mut steps, "floor", || {
            finish(cargo().args(["xtask", "floor", "--profile", "floor"]))
        });
        step(&mut steps, "documentation", || documentation::build(&jobs));
    }

    println!("\n{suites}");
    for test in &unsteady {
        println!("UNSTEADY: {test} failed among the others, and passed alone.");
    }
    for Step { name, took, passed } in &steps {
        println!(
            "{:>7.1} s  {name}{}",
            took.as_secs_f64(),
            if *passed { "" } else { "  FAILED" }
        );
    }
    println!("{:>7.1} s  in all", start.elapsed().as_secs_f64());
    let failed: Vec<&str> = steps
        .iter()
        .filter(|step| !step.passed)
        .map(|step| step.name)
        .collect();
    if !failed.is_empty() {
        bail!("Failed: {}", failed.join(", "));
    }
    match unsteady.len() {
        0 => println!("All passed."),
        count => println!("All passed, {count} of them on a second try only."),
    }
    Ok(())
}

fn step(steps: &mut Vec<Step>, name: &'static str, work: impl FnOnce() -> anyhow::Result<()>) {
    println!("\n== {name}");
    let start = Instant::now();
    let outcome = work();
    if let Err(error) = &outcome {
        eprintln!("{name}: {error:#}");
    }
    steps.push(Step {
        name,
        took: start.elapsed(),
        passed: outcome.is_ok(),
    });
}

/// So many tests may pass on their second try only, in one run.
const MOST_UNSTEADY: usize = 2;

/// Builds and runs all suites and the examples of the documentation.
fn run_suites(jobs: &[String], suites: &mut Suites, unsteady: &mut Vec<String>) -> anyhow::Result<()> {
    let programs = programs::build(jobs)?;
    suites.0 = runner::run(&programs)?;
    let packages = doc_examples::packages()?;
    let (examples, success) = runner::output_of(
        cargo()
            .args(["test", "--doc", "--no-fail-fast"])
            .args(packages.iter().map(|package| format!("--package={package}")))
            .args(jobs),
    )?;
    suites.add_examples(&examples, success);
    // Failures that a second try cannot show are looked at first.
    suites.judge()?;
    let failed: Vec<&Suite> = suites.failed().collect();
    if failed.is_empty() {
        return Ok(());
    }
    let count: usize = failed.iter().map(|suite| suite.failing.len()).sum();
    if std::env::var_os("DIVVY_TEST_AGAIN").is_none() {
        bail!("{count} tests failed");
    }
    if count > MOST_UNSTEADY {
        bail!("{count} tests failed: no more than {MOST_UNSTEADY} are tried once more");
    }
    again(&failed, unsteady)
}

/// Runs what failed once more, each by itself. On a machine that others share a scenario can come too late for reasons
/// of theirs; a test that fails then too has failed. The summary still counts the first time, and names those that
/// passed.
fn again(failed: &[&Suite], unsteady: &mut Vec<String>) -> anyhow::Result<()> {
    for suite in failed {
        let program = suite.program.as_ref().context("An example has no program")?;
        for test in &suite.failing {
            println!("\n== again: {test}");
            let second = Suites(vec![runner::one(program, test)?]);
            second.judge()?;
            if second.failed().next().is_some() {
                bail!("{test} failed twice");
            }
            unsteady.push(test.clone());
        }
    }
    Ok(())
}
