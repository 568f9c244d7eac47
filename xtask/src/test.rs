//! `cargo xtask test`: everything that must hold before a change lands, in the order in which it is quickest to fail.
//! CI calls the same command and nothing else.

use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::cargo::{cargo, finish};
use crate::suites::{Failed, Suites};
use crate::{coverage, deny, schemas, setup, words};

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
    // Before the suites: the drop-ins and the command, which the end-to-end scenarios run.
    step(&mut steps, "build", || {
        finish(
            cargo()
                .args(["build", "--workspace", "--lib", "--bins"])
                .args(&jobs),
        )
    });
    step(&mut steps, "suites", || {
        let mut command = cargo();
        command
            .args(["test", "--workspace", "--no-fail-fast"])
            .args(&jobs);
        // A suite that finds less than it needs must fail here, not skip.
        command.env("DIVVY_REQUIRE_ALL", "1");
        // The step before has built what the suites start: they need not ask cargo again.
        command.env("DIVVY_TEST_BUILT", "1");
        let outcome = watch(&mut command, &mut suites);
        // Failures that a second try cannot show are looked at first.
        suites.judge()?;
        match outcome {
            Err(_) if std::env::var_os("DIVVY_TEST_AGAIN").is_some() => again(suites.failed(), &mut unsteady),
            outcome => outcome,
        }
    });
    step(&mut steps, "kit", || {
        finish(cargo().args(["xtask", "gpu-kit", "--native", "--profile", "dev", "--try"]))
    });
    if !args.suites_only {
        step(&mut steps, "floor", || {
            finish(cargo().args(["xtask", "floor", "--profile", "release-fast"]))
        });
        step(&mut steps, "documentation", || {
            finish(
                cargo()
                    .args([
                        "doc",
                        "--quiet",
                        "--workspace",
                        "--no-deps",
                        "--document-private-items",
                    ])
                    .args(&jobs)
                    .env("RUSTDOCFLAGS", "--deny warnings"),
            )
        });
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

/// Runs what failed once more, each by itself. On a machine that others share a scenario can come too late for reasons
/// of theirs; a test that fails then too has failed. The summary still counts the first time, and names those that
/// passed.
fn again(failed: &[Failed], unsteady: &mut Vec<String>) -> anyhow::Result<()> {
    let count: usize = failed.iter().map(|failed| failed.tests.len()).sum();
    if count > MOST_UNSTEADY {
        bail!("{count} tests failed: no more than {MOST_UNSTEADY} are tried once more");
    }
    if failed.is_empty() {
        bail!("cargo test failed, and no suite of it");
    }
    for Failed { suite, tests } in failed {
        if tests.is_empty() {
            bail!("{} ended without a word of its tests", suite.join(" "));
        }
        for test in tests {
            println!("\n== again: {test}");
            let mut command = cargo();
            command
                .args(["test", "--workspace"])
                .args(suite)
                .args(["--", "--exact", test])
                .envs([("DIVVY_REQUIRE_ALL", "1"), ("DIVVY_TEST_BUILT", "1")]);
            let mut suites = Suites::default();
            watch(&mut command, &mut suites)?;
            suites.judge()?;
            unsteady.push(test.clone());
        }
    }
    Ok(())
}

/// Runs `cargo test`, passes its output on as it comes, and keeps what it says about each suite.
fn watch(command: &mut Command, suites: &mut Suites) -> anyhow::Result<()> {
    let (reader, writer) = std::io::pipe()?;
    // One pipe for both streams: which suite a result belongs to is told on the other stream.
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().context("Cannot start cargo test")?;
    // The command holds the pipe's writing ends: the reader would wait for them for ever.
    command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let mut output = std::io::stdout().lock();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line?;
        output.write_all(&line)?;
        output.write_all(b"\n")?;
        suites.note(&String::from_utf8_lossy(&line));
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("cargo test ended with {status}");
    }
    Ok(())
}
