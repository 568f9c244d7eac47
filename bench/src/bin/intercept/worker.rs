//! A process in the slice that measures.

use std::io::Read as _;
use std::path::Path;
use std::sync::Barrier;

use crate::driver::Driver;
use crate::measure::{Churn, Cost, alternate, alternate_in_processor_time, alternate_together};
use crate::report::Figure;

/// What a worker process measures.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Task {
    /// One thread: every call.
    Single,
    /// One thread: launches, the gate open as an agent leaves it for a tenant alone.
    Open,
    /// One thread: launches, holding a lease.
    Leased,
    /// Two threads of one process at allocation and free.
    Threads2,
    /// Eight threads of one process at allocation and free.
    Threads8,
    /// One of several processes at allocation and free.
    Process,
}

/// Joins the slice, measures, and prints the figures as JSON lines.
pub fn run(task: Task, libraries: &Path, rounds: usize) -> anyhow::Result<()> {
    let bare = Driver::load(&libraries.join("libdivvy_null_cuda.so"))?;
    let limited = Driver::load(&libraries.join("libdivvy_limit_cuda.so"))?;
    bare.init()?;
    limited.init()?;
    match task {
        Task::Single => single(&bare, &limited, rounds),
        Task::Open => launches("gate open", 10.0, &bare, &limited, rounds),
        Task::Leased => launches("holding a lease", 25.0, &bare, &limited, rounds),
        Task::Threads2 => contended(2, &bare, &limited, rounds),
        Task::Threads8 => contended(8, &bare, &limited, rounds),
        Task::Process => {
            // All processes start together: the parent closes our input when the last is ready. From there each goes its
            // own way, so that about half of them are at the limiter at any time.
            println!("ready");
            std::io::stdin().read_to_end(&mut Vec::new())?;
            one_of_several(&bare, &limited, rounds);
        }
    }
    Ok(())
}

fn launches(gate: &str, target_ns: f64, bare: &Driver, limited: &Driver, rounds: usize) {
    let launch = alternate(rounds, 20_000, bare, limited, |driver, _| driver.launch());
    Figure::new("cuLaunchKernel", launch)
        .named(gate)
        .against(target_ns)
        .print_line();
}

fn single(bare: &Driver, limited: &Driver, rounds: usize) {
    let launch = alternate(rounds, 20_000, bare, limited, |driver, _| driver.launch());
    Figure::new("cuLaunchKernel", launch).against(10.0).print_line();
    let info = alternate(rounds, 10_000, bare, limited, |driver, _| driver.info());
    Figure::new("cuMemGetInfo", info).against(60.0).print_line();
    for live in [0, 1_000, 10_000, 100_000] {
        let mut churn = Churn::new(live, bare, limited);
        let pair = alternate(rounds, 5_000, bare, limited, |driver, _| Churn::pair(driver));
        Figure::new(&format!("cuMemAlloc + cuMemFree, {live} live"), pair)
            .against(100.0)
            .print_line();
        // Harder: what is freed lies anywhere among the live ones, mostly outside the processor's caches.
        if live > 0 {
            let replace = alternate(rounds, 5_000, bare, limited, |driver, side| {
                churn.replace(driver, side);
            });
            Figure::new(&format!("cuMemFree of any of {live} live + cuMemAlloc"), replace).print_line();
        }
        churn.end(bare, limited);
    }
}

/// One of several processes that share the machine's processors, and are at the slice's ledger as it comes. A long
/// batch loses the processor before it ends, and waits the longer for it the more batches there are. So the time is
/// read in batches too short for that, as a median, and in processor time over long ones, as a mean.
fn one_of_several(bare: &Driver, limited: &Driver, rounds: usize) {
    let mut churn = Churn::new(100, bare, limited);
    let short = alternate(rounds * 50, 100, bare, limited, |driver, side| {
        churn.replace(driver, side);
    });
    Figure::new("cuMemAlloc + cuMemFree", short).print_line();
    let spent = alternate_in_processor_time(rounds, 5_000, bare, limited, |driver, side| {
        churn.replace(driver, side);
    });
    Figure::new("the same, mean processor time", spent).print_line();
    churn.end(bare, limited);
}

/// `threads` threads, each with allocations of its own, all at once; the mean of their medians.
fn contended(threads: usize, bare: &Driver, limited: &Driver, rounds: usize) {
    let barrier = Barrier::new(threads);
    let costs: Vec<Cost> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut churn = Churn::new(100, bare, limited);
                    let meet = || {
                        barrier.wait();
                    };
                    let cost = alternate_together(rounds, 5_000, bare, limited, meet, |driver, side| {
                        churn.replace(driver, side);
                    });
                    churn.end(bare, limited);
                    cost
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().expect("a measuring thread does not panic"))
            .collect()
    });
    let of_all: Vec<Figure> = costs
        .into_iter()
        .map(|cost| Figure::new("cuMemAlloc + cuMemFree", cost))
        .collect();
    Figure::mean(&of_all).print_line();
}
