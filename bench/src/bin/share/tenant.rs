//! The program under test: it keeps the device busy, or serves requests, and knows nothing of Divvy.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;
use divvy_arbiter::sim::Random;
use divvy_bench::cuda::{Compute, Cuda, Executable, Mark, Spin, Step};
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
    /// Its kernels compute, for as many rounds as have been seen to take their length; else they wait for a clock.
    pub computes: bool,
    /// All lengths are of one function and shape: only the arguments tell them apart.
    #[serde(default)]
    pub one_shape: bool,
    /// Each launch is a captured step of so many kernels, instantiated for this launch; 0: each is one kernel.
    #[serde(default)]
    pub nodes: u32,
}

/// It was told to launch what does not end.
static STUCK: AtomicBool = AtomicBool::new(false);
/// How long that lasts, nanoseconds: an hour.
const ENDLESS: u64 = 3600 * 1_000_000_000;

/// What it launches.
struct Kernels {
    spin: Spin,
    compute: Compute,
    /// Rounds that take a nanosecond, where kernels compute.
    rounds: Option<f64>,
    one_shape: bool,
    /// A captured step of each length, where launches are such.
    steps: Vec<Step>,
    /// Those that may run, the oldest first.
    launched: RefCell<VecDeque<Executable>>,
}

/// Executable graphs that are kept: more than are in flight.
const KEPT: usize = 32;

impl Kernels {
    fn new(cuda: &Cuda, work: &Work) -> anyhow::Result<Self> {
        let (spin, compute) = (cuda.spin()?, cuda.compute()?);
        // Of a shape of its own: it is none of those that are measured.
        const WARMS_UP: u32 = 31;
        spin.launch(1_000, WARMS_UP)?;
        cuda.synchronize()?;
        let rounds = match work.computes {
            true => Some(Self::measure(cuda, compute)?),
            false => None,
        };
        let lengths = work.lengths.iter().filter(|_| work.nodes > 0);
        let steps = lengths.map(|length| spin.capture(work.nodes, length / u64::from(work.nodes)));
        Ok(Self {
            spin,
            compute,
            rounds,
            one_shape: work.one_shape,
            steps: steps.collect::<Result<_, _>>()?,
            launched: RefCell::default(),
        })
    }

    /// How many rounds a nanosecond has: of three tries the quickest.
    fn measure(cuda: &Cuda, compute: Compute) -> anyhow::Result<f64> {
        const ROUNDS: u64 = 200_000;
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let began = Instant::now();
            compute.launch(ROUNDS)?;
            cuda.synchronize()?;
            best = best.min(began.elapsed().as_nanos() as f64);
        }
        Ok(ROUNDS as f64 / best)
    }

    /// Launches the `kind`-th of the lengths.
    fn launch(&self, length: u64, kind: usize) -> anyhow::Result<()> {
        if let Some(step) = self.steps.get(kind) {
            let ready = step.instantiate()?;
            ready.launch()?;
            let mut launched = self.launched.borrow_mut();
            launched.push_back(ready);
            if launched.len() > KEPT {
                launched.pop_front();
            }
            return Ok(());
        }
        let shape = if self.one_shape { 0 } else { kind as u32 };
        match self.rounds {
            None => self.spin.launch(length, shape),
            Some(rounds) => self.compute.launch((length as f64 * rounds).max(1.0) as u64),
        }
    }
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
    let kernels = Kernels::new(&cuda, work)?;
    println!("running {}", std::process::id());
    std::io::stdout().flush()?;
    // The first line says go, the end of the input says stop.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            STUCK.store(line == "stuck", Relaxed);
        }
        told.store(true, Relaxed);
    });
    let said = match work.every {
        None => greedy(work, cuda, &kernels, &over),
        Some(every) => serve(work, every, cuda, &kernels, &over),
    }?;
    // A bench that was cut short reads no more.
    let _read = writeln!(std::io::stdout(), "{}", serde_json::to_string(&said)?);
    Ok(())
}

/// Always has more to do, up to `ahead` in flight: batches of kernels, each with a mark behind it.
fn greedy(work: &Work, cuda: Cuda, kernels: &Kernels, over: &AtomicBool) -> anyhow::Result<Said> {
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
            if STUCK.swap(false, Relaxed) {
                const SHAPE: u32 = 30;
                kernels.spin.launch(ENDLESS, SHAPE)?;
                println!("stuck");
                std::io::stdout().flush()?;
            }
            let kind = draw(work, &mut random);
            kernels.launch(work.lengths[kind], kind)?;
            launched += work.lengths[kind];
            said.launched += 1;
        }
        mark.record()?;
    }
    cuda.synchronize()?;
    Ok(said)
}

/// Serves requests in the order in which they come.
fn serve(work: &Work, every: u64, cuda: Cuda, kernels: &Kernels, over: &AtomicBool) -> anyhow::Result<Said> {
    let mut random = Random::new(work.seed);
    let mut said = Said::default();
    let mark = cuda.mark()?;
    let start = Instant::now();
    let mut arrives = Duration::ZERO;
    while !over.load(Relaxed) {
        arrives += Duration::from_nanos(random.exponential(every));
        wait_until(start + arrives, over);
        if over.load(Relaxed) {
            break;
        }
        for _ in 0..work.kernels {
            let kind = draw(work, &mut random);
            kernels.launch(work.lengths[kind], kind)?;
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

/// Which of the lengths is next.
fn draw(work: &Work, random: &mut Random) -> usize {
    random.between(0, work.lengths.len() as u64 - 1) as usize
}

/// Or until it is over, which is looked at now and then.
fn wait_until(at: Instant, over: &AtomicBool) {
    while let Some(left) = at
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
        && !over.load(Relaxed)
    {
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}
