//! Many processes that start at once in one slice.

use std::path::Path;
use std::time::Instant;

use anyhow::bail;
use divvy_bench::slice::Slice;

use crate::Figure;
use crate::first_call::{Language, spawn};

/// Milliseconds from the moment when all processes go until the last has allocated, freed and ended.
pub fn measure(
    language: Language,
    name: &str,
    driver: &Path,
    libraries: &Path,
    copies: usize,
    rounds: usize,
) -> anyhow::Result<Figure> {
    let slice = Slice::new()?;
    let home = tempfile::Builder::new().prefix("divvy-").tempdir()?;
    let limiter = libraries.join("libdivvy_limit_cuda.so");
    let mut figure = Figure {
        name: match language {
            Language::Rust => format!("{copies} bare processes at once over {name}"),
            Language::Python => format!("{copies} Python programs at once over {name}"),
        },
        without: Vec::new(),
        with: Vec::new(),
        most: Some(1.10),
    };
    // Each round is as many starts as the single measurements have in all.
    for _ in 0..rounds.div_ceil(2) {
        for (library, times) in [(driver, &mut figure.without), (&limiter, &mut figure.with)] {
            let start = Instant::now();
            let mut workers = (0..copies)
                .map(|_| {
                    let mut worker = spawn(language, library, driver, &slice, home.path())?;
                    // Its input closed, it goes: all are on their way while the next are being started.
                    drop(worker.stdin.take());
                    Ok(worker)
                })
                .collect::<anyhow::Result<Vec<_>>>()?;
            for worker in &mut workers {
                let status = worker.wait()?;
                if !status.success() {
                    bail!("A worker ended with {status}");
                }
            }
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    slice.require_empty()?;
    Ok(figure)
}
