//! Tenants whose kernels write down when they ran, and one that wants answers soon.

use std::io::{BufRead, stdin};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{hello, say};
use crate::finding::Failure;
use crate::gpu::{CudaError, Gpu, Graph, SPAN_PTX};
use crate::processors;

/// As many spans as are kept.
const MOST: usize = 1 << 18;
/// Launches of a graph.
const OF_A_GRAPH: usize = 10;

fn words(error: CudaError) -> Failure {
    error.to_string()
}

/// The numbers after the first word of a line.
fn numbers(line: &str) -> Vec<u64> {
    let words = line.split_whitespace().skip(1);
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Spans of device time, one launch after another. It is told `run LENGTH_NS FLIGHT SECONDS`, with so many launches in
/// flight, and answers when each began and ended by the device's clock. After `graphs` ten launches at a time are a graph.
pub(super) fn spans() -> Result<(), Failure> {
    let gpu = Gpu::open()?;
    let span = gpu.kernel(SPAN_PTX, c"span").map_err(words)?;
    let tally = gpu.kernel(SPAN_PTX, c"tally").map_err(words)?;
    say(&hello(&gpu));
    for line in stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let [length, flight, seconds] = numbers(&line)[..] else {
            return Err("`run` takes three numbers".into());
        };
        let place = gpu.zeroed(MOST * 16).map_err(words)?;
        let graph = match line.starts_with("graphs") {
            true => Some(graph(&gpu, tally, length, place)?),
            false => None,
        };
        let each = graph.map_or(1, |_| OF_A_GRAPH);
        // Two halves: while one is waited for, the other is there for the device. So this wants the device all the time, and a
        // processor only now and then.
        let halves = [gpu.event().map_err(words)?, gpu.event().map_err(words)?];
        let half = flight.div_ceil(2 * each as u64).max(1);
        let begun = Instant::now();
        let waited = processors::waited();
        let mut launched = 0;
        for round in 0.. {
            if begun.elapsed() >= Duration::from_secs(seconds) || launched + each > MOST {
                break;
            }
            for _ in 0..half {
                if launched + each > MOST {
                    break;
                }
                match graph {
                    Some(graph) => gpu.launch_graph(graph).map_err(words)?,
                    None => gpu
                        .span(span, length, place + 16 * launched as u64)
                        .map_err(words)?,
                }
                launched += each;
            }
            gpu.record(halves[round % 2]).map_err(words)?;
            if round > 0 {
                gpu.wait(halves[(round - 1) % 2]).map_err(words)?;
            }
        }
        let part = 100.0 * (processors::waited() - waited).as_secs_f64() / begun.elapsed().as_secs_f64();
        let bytes = gpu.read(place, launched * 16).map_err(words)?;
        let words_of: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect();
        let spans: Vec<(u64, u64)> = words_of.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        gpu.free(place).map_err(words)?;
        say(&json!({"spans": spans, "waited_percent": part}));
    }
    Ok(())
}

fn graph(gpu: &Gpu, tally: crate::gpu::Kernel, length: u64, place: u64) -> Result<Graph, Failure> {
    let counter = gpu.zeroed(8).map_err(words)?;
    let launches = u32::try_from(OF_A_GRAPH).unwrap_or(1);
    let parameters = [length, counter, place].map(|word| word.to_le_bytes().to_vec());
    gpu.graph(tally, launches, &parameters).map_err(words)
}

/// One launch now and then, waited for each time. It is told `run LENGTH_NS PAUSE_US TIMES`, and answers how long each took,
/// in nanoseconds, the shortest first.
pub(super) fn latency() -> Result<(), Failure> {
    let gpu = Gpu::open()?;
    let span = gpu.kernel(SPAN_PTX, c"span").map_err(words)?;
    let place = gpu.zeroed(16).map_err(words)?;
    say(&hello(&gpu));
    for line in stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let [length, pause, times] = numbers(&line)[..] else {
            return Err("`run` takes three numbers".into());
        };
        let mut took = Vec::new();
        for _ in 0..times {
            std::thread::sleep(Duration::from_micros(pause));
            let begun = Instant::now();
            gpu.span(span, length, place)
                .and_then(|()| gpu.synchronize())
                .map_err(words)?;
            took.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        took.sort_unstable();
        say(&json!({"nanoseconds": took}));
    }
    Ok(())
}
