//! The program under test: it keeps the device busy, or serves requests, and knows nothing of Divvy.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;
use divvy_arbiter::sim::Random;
use divvy_bench::cuda::{Cuda, Mark, Spin};
use serde::{Deserialize, Serialize};

/// What a tenant does, as its one argument says in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Work {
    /// Its kernels' lengths in nanoseconds, each as often.
    pub lengths: Vec<u64>,
    /// With it: requests of `kernels` that come by a Poisson process with this mean gap, in nanoseconds.
    pub every: Option<u64>,
    /// Kernels of a request.
    pub kernels: u32,
    /// What its random numbers begin with.
    pub seed: u64,
    /// Nanoseconds of work that it launches ahead.
    pub ahead: u64,
}

/// What a tenant says at its end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Said {
    /// How long each request took, from its arrival to its last kernel's end; nanoseconds, in order.
    pub latencies: Vec<u64>,
    /// Kernels launched.
    pub launched: u64,
}

/// Works until its standard input ends. Says `running` and its process id when its first kernel is over, and then how it went.
pub fn run(work: &Work) -> anyhow::Result<()> {
    let cuda = Cuda::load()?;
    cuda.begin()?;
    let spin = cuda.spin()?;
    spin.launch(1_000)?;
    cuda.synchronize()?;
    println!("running {}", std::process::id());
    std::io::stdout().flush()?;
    // The first line says go, the end of the input says stop.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    std::thread::spawn(move || {
        let _end = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Relaxed);
    });
    let said = match work.every {
        None => greedy(work, cuda, spin, &over),
        Some(every) => serve(work, every, cuda, spin, &over),
    }?;
    println!("{}", serde_json::to_string(&said)?);
    Ok(())
}

/// Always has more to do, up to `ahead` in flight: batches of kernels, each with a mark behind it.
fn greedy(work: &Work, cuda: Cuda, spin: Spin, over: &AtomicBool) -> anyhow::Result<Said> {
    const BATCHES: usize = 4;
    let mut random = Random::new(work.seed);
    let mut said = Said::default();
    let marks: Vec<Mark> = (0..BATCHES).map(|_| cuda.mark()).collect::<Result<_, _>>()?;
    for batch in 0.. {
        if over.load(Relaxed) {
            break;
        }
        let mark = marks[batch % BATCHES];
        if batch >= BATCHES {
            mark.wait()?;
        }
        let mut launched = 0;
        while launched < work.ahead / BATCHES as u64 && !over.load(Relaxed) {
            let length = draw(work, &mut random);
            spin.launch(length)?;
            launched += length;
            said.launched += 1;
        }
        mark.record()?;
    }
    cuda.synchronize()?;
    Ok(said)
}

/// Serves requests in the order in which they come.
fn serve(work: &Work, every: u64, cuda: Cuda, spin: Spin, over: &AtomicBool) -> anyhow::Result<Said> {
    let mut random = Random::new(work.seed);
    let mut said = Said::default();
    let mark = cuda.mark()?;
    let start = Instant::now();
    let mut arrives = Duration::ZERO;
    while !over.load(Relaxed) {
        arrives += Duration::from_nanos(random.exponential(every));
        wait_until(start + arrives);
        for _ in 0..work.kernels {
            spin.launch(draw(work, &mut random))?;
            said.launched += 1;
        }
        mark.record()?;
        mark.wait()?;
        let took = start.elapsed().saturating_sub(arrives);
        said.latencies
            .push(u64::try_from(took.as_nanos()).context("A request takes less than a century")?);
    }
    cuda.synchronize()?;
    Ok(said)
}

fn draw(work: &Work, random: &mut Random) -> u64 {
    work.lengths[random.between(0, work.lengths.len() as u64 - 1) as usize]
}

fn wait_until(at: Instant) {
    if let Some(left) = at.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
}
