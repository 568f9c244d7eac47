//! How long a MIG plan takes: 500 instances over 64 devices that are partly in use, none like another.
//!
//! Target: below 100 ms.

use std::rc::Rc;
use std::time::Instant;

use anyhow::Context as _;
use clap::Parser;
use divvy_bench::statistics::median;
use divvy_host::mig::{Geometry, Occupancy, Shapes, plan_pool};
use divvy_model::MigProduct;

/// Times plans over a pool.
#[derive(Parser)]
struct Arguments {
    /// Devices
    #[arg(long, default_value_t = 64)]
    devices: usize,
    /// Instances asked for
    #[arg(long, default_value_t = 500)]
    requests: usize,
    /// Plans made
    #[arg(long, default_value_t = 11)]
    repeat: u32,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let product = MigProduct::of_key("h100").context("a product")?;
    let start = Instant::now();
    let shapes = Rc::new(Shapes::new(Geometry::from(product)));
    println!(
        "{} maximal layouts of an H100, worked out in {:.2} ms",
        shapes.maximal.len(),
        start.elapsed().as_secs_f64() * 1000.0
    );
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let pool: Vec<_> = (0..arguments.devices)
        .map(|_| {
            let maximal = shapes.maximal[random() as usize % shapes.maximal.len()];
            let current = maximal & random();
            let occupied = current & random() & random();
            (Rc::clone(&shapes), Occupancy { current, occupied })
        })
        .collect();
    let kinds = ["1g.10gb", "1g.10gb", "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb"];
    let requests: Vec<String> = (0..arguments.requests)
        .map(|_| kinds[random() as usize % kinds.len()].to_owned())
        .collect();
    let mut times = Vec::new();
    let mut missed = 0;
    for _ in 0..arguments.repeat {
        let start = Instant::now();
        let plan = plan_pool(&pool, &requests);
        times.push(start.elapsed().as_secs_f64() * 1000.0);
        missed = plan.unplaced.len();
    }
    println!(
        "{} requests over {} devices: median {:.1} ms (target < 100), {missed} found no place",
        requests.len(),
        pool.len(),
        median(&mut times)
    );
    Ok(())
}
