//! Runs test programs: small ones beside each other; those that look at shares of time, and scenarios, one after the other.

use std::io::{BufRead, BufReader, PipeReader, Write};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use super::programs::Program;
use super::suites::Suite;

/// Runs all of them, and tells how each ended.
///
/// # Errors
/// A program could not be started.
pub fn run(programs: &[Program]) -> anyhow::Result<Vec<Suite>> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let (timed, others): (Vec<&Program>, Vec<&Program>) =
        programs.iter().partition(|program| program.is_timed());
    let (scenarios, small): (Vec<&Program>, Vec<&Program>) =
        others.iter().partition(|program| program.is_scenarios());
    let mut suites = beside(&small, cores, |program| program.command(cores))?;
    suites.extend(beside(&timed, 1, |program| program.command(cores))?);
    suites.extend(beside(&scenarios, 1, |program| {
        let mut command = program.command(2 * cores);
        for test in program.alone() {
            command.args(["--skip", test]);
        }
        command
    })?);
    for program in &scenarios {
        for test in program.alone() {
            suites.push(one(program, test)?);
        }
    }
    Ok(suites)
}

/// Runs one test of a program by itself.
///
/// # Errors
/// The program could not be started.
pub fn one(program: &Program, test: &str) -> anyhow::Result<Suite> {
    let mut command = program.command(1);
    command.args(["--exact", test]);
    suite_of(program, command, true)
}

/// Runs so many at once.
fn beside(
    programs: &[&Program],
    at_once: usize,
    command: impl Fn(&Program) -> Command + Sync,
) -> anyhow::Result<Vec<Suite>> {
    let next = AtomicUsize::new(0);
    let ended: Vec<Mutex<Option<anyhow::Result<Suite>>>> =
        programs.iter().map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(programs.len()) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(program), Some(ended)) = (programs.get(place), ended.get(place)) else {
                        return;
                    };
                    let suite = suite_of(program, command(program), at_once == 1);
                    *ended.lock().expect("no thread of ours panics while it writes") = Some(suite);
                }
            });
        }
    });
    let ended = ended.into_iter().zip(programs).map(|(suite, program)| {
        let suite = suite
            .into_inner()
            .expect("no thread of ours panics while it writes");
        suite.unwrap_or_else(|| Err(anyhow!("{} was not run", program.name)))
    });
    ended.collect()
}

/// What a command prints on both streams, in one text, and whether it ended well. It is printed, too.
///
/// # Errors
/// The command could not be started.
pub fn output_of(command: &mut Command) -> anyhow::Result<(String, bool)> {
    let (reader, writer) = std::io::pipe()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()?;
    // The command holds the pipe's writing ends: the reader would wait for them for ever.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let text = std::io::read_to_string(reader)?;
    print!("{text}");
    Ok((text, child.wait()?.success()))
}

/// How often it is looked whether a silent program has ended.
const LOOK: Duration = Duration::from_millis(200);
/// How long the output of a program that has ended is waited for.
const LEFT_BEHIND: Duration = Duration::from_secs(5);

/// The lines as they come. Its thread ends with the pipe.
fn lines_of(reader: PipeReader) -> Receiver<std::io::Result<Vec<u8>>> {
    let (teller, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n') {
            if teller.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Runs one program. What it prints goes out as it comes, or all at its end, so that the output of two that run
/// beside each other is not mixed.
fn suite_of(program: &Program, mut command: Command, as_it_comes: bool) -> anyhow::Result<Suite> {
    let (reader, writer) = std::io::pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = command
        .spawn()
        .with_context(|| format!("Cannot start {}", program.name))?;
    // The command holds the pipe's writing ends: the reader would wait for them for ever.
    drop(command);
    let mut suite = Suite::new(program);
    let mut printed = format!("\n-- {}\n", program.name).into_bytes();
    let lines = lines_of(reader);
    let mut ended = None;
    loop {
        match lines.recv_timeout(LOOK) {
            Ok(line) => {
                let line = line?;
                suite.note(&String::from_utf8_lossy(&line));
                printed.extend_from_slice(&line);
                printed.push(b'\n');
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // A process that a test left behind holds the pipe, and may do so for long.
            Err(RecvTimeoutError::Timeout) if ended.is_some_and(|at: Instant| at.elapsed() > LEFT_BEHIND) => {
                printed.extend_from_slice(b"note: a test left a process behind that holds this output\n");
                break;
            }
            Err(RecvTimeoutError::Timeout) => {
                if ended.is_none() && child.try_wait()?.is_some() {
                    ended = Some(Instant::now());
                }
            }
        }
        if as_it_comes {
            std::io::stdout().write_all(&std::mem::take(&mut printed))?;
        }
    }
    std::io::stdout().write_all(&printed)?;
    suite.end(child.wait()?);
    Ok(suite)
}
