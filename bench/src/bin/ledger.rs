//! `cargo xtask bench ledger`: what the ledger itself costs. It reads a reservation and its release, by one thread and
//! by many. It also reads the rare operations: attaching, a refusal while another process holds memory, reaping.
//!
//! Agent, page server and tenants are this one process; each tenant has a slot of its own, as a process has.

use std::hint::black_box;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use clap::Parser;
use divvy_bench::statistics::median;
use divvy_ledger::GrantSpec;
use divvy_ledger::attach::{self, Attached, Door, PageServer, Pages};

const LIMIT: u64 = 1 << 40;

/// Nanoseconds per operation of the ledger
#[derive(Parser)]
struct Args {
    /// Measuring rounds for each figure
    #[arg(long, default_value_t = 51)]
    rounds: usize,
    /// Reservations and releases in each round and thread
    #[arg(long, default_value_t = 100_000)]
    pairs: u32,
}

struct Slice {
    _folder: tempfile::TempDir,
    path: PathBuf,
    pages: Pages,
}

impl Slice {
    fn new() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("attach.sock");
        let listener = UnixListener::bind(&path)?;
        let page_server = Arc::new(PageServer::new());
        let serving = Arc::clone(&page_server);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A tenant that went away is no concern of the next one.
                let _outcome = serving.serve(&stream, Door::Container);
            }
        });
        let pages = Pages::create(&GrantSpec {
            memory_limit_bytes: LIMIT,
            device_uuid: [0; 16],
            slice_id: "bench",
            slice_name: "bench",
            ..GrantSpec::default()
        })?;
        page_server.hold(&pages)?;
        Ok(Self {
            _folder: folder,
            path,
            pages,
        })
    }
}

fn pairs(tenant: &Attached, count: u32) {
    for _ in 0..count {
        // It always fits: what is measured is the granting.
        let _granted = black_box(tenant.reserve(black_box(2 << 20)));
        let _returned = black_box(tenant.release(black_box(2 << 20)));
    }
}

/// Median nanoseconds per pair and thread, with `tenants` × `threads` threads at it.
fn contended(slice: &Slice, args: &Args, tenants: usize, threads: usize) -> anyhow::Result<f64> {
    let tenants = (0..tenants)
        .map(|_| attach::connect(&slice.path, 0))
        .collect::<Result<Vec<_>, _>>()?;
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        let start = Barrier::new(tenants.len() * threads);
        let each: Vec<f64> = thread::scope(|scope| {
            let running: Vec<_> = tenants
                .iter()
                .flat_map(|tenant| std::iter::repeat_n(tenant, threads))
                .map(|tenant| {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        let began = Instant::now();
                        pairs(tenant, args.pairs);
                        began.elapsed().as_nanos() as f64 / f64::from(args.pairs)
                    })
                })
                .collect();
            running
                .into_iter()
                .map(|one| one.join().unwrap_or(f64::NAN))
                .collect()
        });
        rounds.push(each.iter().sum::<f64>() / each.len() as f64);
    }
    Ok(median(&mut rounds))
}

fn timed(rounds: usize, mut one: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    let mut values = (0..rounds).map(|_| one()).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(median(&mut values))
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let slice = Slice::new()?;
    let show = |name: &str, ns: f64| println!("{name:<58}{ns:>12.1} ns");

    show("reserve + release, one thread", contended(&slice, &args, 1, 1)?);
    for threads in [2, 8] {
        let ns = contended(&slice, &args, 1, threads)?;
        show(
            &format!("reserve + release, {threads} threads of one process"),
            ns,
        );
    }
    for tenants in [2, 8] {
        let ns = contended(&slice, &args, tenants, 1)?;
        show(&format!("reserve + release, {tenants} processes"), ns);
    }
    let tenant = attach::connect(&slice.path, 0)?;
    show(
        "use of the slice (cuMemGetInfo)",
        timed(args.rounds, || {
            let began = Instant::now();
            for _ in 0..args.pairs {
                black_box((tenant.total_used(), tenant.memory_limit_bytes()));
            }
            Ok(began.elapsed().as_nanos() as f64 / f64::from(args.pairs))
        })?,
    );
    show(
        "attach",
        timed(args.rounds, || {
            let began = Instant::now();
            let one = attach::connect(&slice.path, 0)?;
            let took = began.elapsed().as_nanos() as f64;
            drop(one);
            slice.pages.ledger.reap()?;
            Ok(took)
        })?,
    );
    let other = attach::connect(&slice.path, 0)?;
    other.reserve(1 << 30)?;
    show(
        "refusal while another process holds memory",
        timed(args.rounds, || {
            let began = Instant::now();
            anyhow::ensure!(tenant.reserve(LIMIT).is_err(), "It does not fit");
            Ok(began.elapsed().as_nanos() as f64)
        })?,
    );
    show(
        "first reservation that needs a dead process's bytes",
        timed(args.rounds, || {
            let dead = attach::connect(&slice.path, 0)?;
            dead.reserve(LIMIT - (1 << 30))?;
            drop(dead);
            let began = Instant::now();
            tenant.reserve(1 << 30)?;
            let took = began.elapsed().as_nanos() as f64;
            tenant.release(1 << 30)?;
            Ok(took)
        })?,
    );
    Ok(())
}
