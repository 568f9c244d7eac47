//! What keeping history adds to a program's calls: the agent reads what a slice uses, its peak and its refusals, and writes
//! a line where a slice ends. A program shares the ledger's page with the reader, and the machine with both.
//!
//! The reader here reads twenty times and writes ten lines a second: more than an agent does. So what it adds is an upper
//! bound. That a call notes the peak is in both readings: it is one load and one comparison of what was just written.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;

use crate::report::{Compared, Figure};
use crate::slice::Slice;
use crate::worker::Task;

/// Runs of each kind, in turn: the machine's mood changes over seconds.
const TURNS: usize = 5;

/// How long the reader sleeps between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// A line is written after so many looks.
const LOOKS: u32 = 2;

/// Measures each call without a reader and with one, in turn; the median of each.
///
/// # Errors
/// A worker failed, or the history cannot be written.
pub fn compare(slice: &Slice, libraries: &Path, rounds: usize) -> anyhow::Result<Vec<Compared>> {
    let rounds = (rounds / TURNS).max(3);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        without.push(slice.workers(Task::Single, 1, libraries, rounds)?);
        with.push(beside_reader(slice, || {
            slice.workers(Task::Single, 1, libraries, rounds)
        })?);
    }
    Ok(Compared::of(&without, &with))
}

/// Does `work` while another thread reads the slice's pages and writes lines.
fn beside_reader(
    slice: &Slice,
    work: impl FnOnce() -> anyhow::Result<Vec<Figure>>,
) -> anyhow::Result<Vec<Figure>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("history.jsonl");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> anyhow::Result<()> {
            let mut looks = 0;
            while !is_over.load(Ordering::Relaxed) {
                let line = slice.history_line();
                looks += 1;
                if looks % LOOKS == 0 {
                    // Opened each time, as the agent does.
                    let mut file = OpenOptions::new().create(true).append(true).open(&file)?;
                    file.write_all(line.as_bytes())?;
                }
                std::thread::sleep(PAUSE);
            }
            Ok(())
        });
        let figures = work();
        is_over.store(true, Ordering::Relaxed);
        reader.join().ok().context("The reader panicked")??;
        figures
    })
}
