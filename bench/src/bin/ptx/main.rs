//! `cargo xtask bench ptx`: lane-instructions per second per core of the PTX engine, beside the same loops in C at -O3 -march=native, and the
//! same kernels on PoCL where it is installed.
//!
//! One worker. Engine and C take turns, so that whatever else the machine does falls on both; medians of the rounds.

mod all;
mod buffers;
mod clock;
mod device;
mod kernel;
mod launches;
mod native;
mod pocl;
mod report;
mod workload;

use std::path::PathBuf;

use anyhow::ensure;
use clap::{Parser, ValueEnum};
use divvy_ptx::{Engine, Stats};

use all::all;
use clock::{median, spent};
use native::Native;
use report::{Row, json, table};
use workload::Workload;

/// Measure the PTX engine on twelve kernels, beside the same loops in C and the same kernels on PoCL
#[derive(Parser)]
struct Args {
    /// Rounds of each side; the median counts
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Divide the problem sizes, for a quick look
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    shrink: u32,
    /// Only workloads with this in their name
    #[arg(long, default_value = "")]
    only: String,
    /// Measure empty launches through the emulated driver, and nothing else
    #[arg(long)]
    launches: bool,
    /// Take the emulated driver that lies beside this program as it is, and build nothing
    #[arg(long, requires = "launches")]
    built: bool,
    /// Run the compiled kernels alone, for a profiler; nothing is measured
    #[arg(long)]
    compiled_alone: bool,
    /// How to print the figures
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.launches {
        return empty_launches(args.built);
    }
    let native = Native::build(&target_folder().join("bench"))?;
    let engines = [Engine::new(1), Engine::new(2)];
    let mut rows = Vec::new();
    for mut workload in all(args.shrink as usize)? {
        if !workload.name().contains(&args.only) {
            continue;
        }
        eprintln!("{} ...", workload.name());
        if args.compiled_alone {
            for _ in 0..args.rounds {
                workload.on_engine(&engines[0], true)?;
            }
            continue;
        }
        rows.push(measure(
            workload.as_mut(),
            &engines,
            &native,
            args.rounds as usize,
        )?);
    }
    if args.compiled_alone {
        return Ok(());
    }
    let pocl = pocl::measure(&target_folder().join("bench"), args.rounds, args.shrink)?;
    for row in &mut rows {
        row.pocl = pocl.get(row.name).copied();
    }
    match args.output {
        Output::Table => print!("{}", table(&rows, &native.compiler, args.rounds as usize)),
        Output::Json => println!("{:#}", json(&rows, &native.compiler, args.rounds as usize)),
    }
    Ok(())
}

/// One unmeasured round of each side, whose results must agree, then the rounds that count.
fn measure(
    workload: &mut dyn Workload,
    [engine, two]: &[Engine; 2],
    native: &Native,
    rounds: usize,
) -> anyhow::Result<Row> {
    let mut stats = Stats::default();
    let mut difference = 0f64;
    // The second round's results are of the compiled kernel; where nothing is restored, both begin with what the ones
    // before left.
    for compile in [false, true] {
        workload.prepare();
        stats = workload.on_engine(engine, compile)?;
        workload.in_c(native);
        difference = difference.max(workload.difference());
        ensure!(
            difference < 5e-3,
            "{}: engine and C differ by {difference}",
            workload.name()
        );
    }
    let (mut engine_times, mut wall, mut c_times) = (Vec::new(), Vec::new(), Vec::new());
    let (mut compiled_times, mut one_wall, mut two_wall) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        workload.prepare();
        let (outcome, cost) = spent(|| workload.on_engine(engine, false));
        outcome?;
        engine_times.push(cost.processor);
        wall.push(cost.wall);
        workload.prepare();
        let (outcome, cost) = spent(|| workload.on_engine(engine, true));
        outcome?;
        compiled_times.push(cost.processor);
        one_wall.push(cost.wall);
        workload.prepare();
        let (outcome, cost) = spent(|| workload.on_engine(two, true));
        outcome?;
        two_wall.push(cost.wall);
        let ((), cost) = spent(|| workload.in_c(native));
        c_times.push(cost.processor);
    }
    Ok(Row {
        interpreted: workload.kernel().interpreted(),
        name: workload.name(),
        size: workload.size(),
        lane_instructions: stats.lane_instructions,
        engine: median(engine_times),
        engine_wall: median(wall),
        compiled: median(compiled_times),
        compiled_wall: median(one_wall),
        two_wall: median(two_wall),
        c: median(c_times),
        pocl: None,
        difference,
    })
}

/// Names the emulated device to a process that measures launches over it.
const EMULATED: &str = "DIVVY_EMULATED";

/// Prints what an empty launch costs. A process of its own has the device and its folder.
fn empty_launches(built: bool) -> anyhow::Result<()> {
    if std::env::var_os(EMULATED).is_none() {
        if !built {
            divvy_bench::artifacts::build(&["emulated-cuda"])?;
        }
        let folder = tempfile::tempdir()?;
        let status = std::process::Command::new(std::env::current_exe()?)
            .arg("--launches")
            .env(EMULATED, "h100,kernels=compiled")
            .env("DIVVY_RUN_DIR", folder.path())
            .status()?;
        ensure!(status.success(), "the measuring process ended with {status}");
        return Ok(());
    }
    // It was built in the profile of this program, and lies beside it.
    let library = std::env::current_exe()?.with_file_name("libdivvy_emulated_cuda.so");
    let launches = launches::measure(&library)?;
    println!(
        "An empty launch of one warp takes {:.2} us with a synchronisation behind it, and {:.2} us queued, in the mean.",
        launches.synchronised.as_secs_f64() * 1e6,
        launches.queued.as_secs_f64() * 1e6
    );
    Ok(())
}

/// Cargo's target folder: the one our own program lies in.
fn target_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program
        .ancestors()
        .nth(2)
        .map_or_else(|| PathBuf::from("target"), PathBuf::from)
}
