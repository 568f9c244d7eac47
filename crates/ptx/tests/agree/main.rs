//! Compiled kernels end as interpreted ones do, bit for bit: random programs over what the compiler has code for, with
//! divergence, loops, barriers, shared memory, and now and then an access that is out of bounds.
//!
//! `DIVVY_PTX_PROGRAMS` says how many programs, `DIVVY_PTX_SEED` with which one to begin: a million are
//! `DIVVY_PTX_PROGRAMS=1000000 cargo test --release -p divvy-ptx --test agree random`. The comparison is in `support`,
//! where each launch of every suite goes through both. A program that ends differently is printed as short as it can be
//! made.

#[path = "../support/mod.rs"]
mod support;

mod ends;
mod forms;
mod program;
mod random;
mod shrink;

use divvy_ptx::VectorSet;
use program::{COUNT, Program, SCRATCH};
use random::{number32, number64};
use support::{Buffer, Loaded};

/// A random program, and what it begins with.
struct Case {
    text: String,
    block: u32,
    grid: u32,
    values: Buffer,
    memory: Buffer,
}

impl Case {
    fn new(seed: u64) -> Case {
        let Program { mut random, text, .. } = Program::new(seed);
        let block = [32, 64, 96, 40, 7][random.below(5) as usize];
        let grid = 1 + random.below(2) as u32;
        // Which of two blocks faults first is chance.
        let grid = if text.contains("mov.u32 %any, %r") {
            1
        } else {
            grid
        };
        let mut values = Vec::new();
        for _ in 0..grid * block {
            for n in 0..4 * COUNT {
                let bits = match n / COUNT {
                    0 if random.one_in(2) => random.below(70),
                    0 | 1 => random.next(),
                    2 => u64::from(number32(&mut random)),
                    _ => number64(&mut random),
                };
                values.push(bits);
            }
        }
        Case {
            text,
            block,
            grid,
            values: Buffer::of_u64(&values),
            memory: Buffer::zeroed((u64::from(grid) * SCRATCH) as usize),
        }
    }
}

fn run(seed: u64) {
    let Case {
        text,
        block,
        grid,
        values,
        memory,
    } = Case::new(seed);
    let (start, empty) = (values.bytes(), memory.bytes());
    // How it ends is compared there. A fault is an end like another.
    let differs = |text: &str| {
        values.fill(&start);
        memory.fill(&empty);
        let loaded = Loaded::new(text);
        let launch = loaded.kernel("random").grid(grid).block(block);
        let end = || launch.buffer(&values).buffer(&memory).end();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(end)).is_err()
    };
    if differs(&text) {
        let short = shrink::shrink(&text, differs);
        panic!("seed {seed}\n{short}");
    }
}

#[test]
fn random_programs_end_the_same_on_both() {
    let setting = |name: &str, or: u64| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(or)
    };
    let first = setting("DIVVY_PTX_SEED", 1);
    for seed in first..first + setting("DIVVY_PTX_PROGRAMS", 1500) {
        run(seed);
    }
}

/// Whether words are the same. Of two different NaNs a processor without FMA gives the other.
fn alike((a, b): (&Vec<u64>, &Vec<u64>)) -> bool {
    let wide = |bits: u64| f64::from_bits(bits).is_nan();
    let half = |bits: u64| f32::from_bits(bits as u32).is_nan();
    a.iter().zip(b).all(|(&a, &b)| {
        let halves = [(a, b), (a >> 32, b >> 32)];
        let same = halves
            .iter()
            .all(|&(a, b)| a as u32 == b as u32 || half(a) && half(b));
        same || wide(a) && wide(b)
    })
}

/// A processor without AVX2 has code of its own for each instruction.
#[test]
fn random_programs_end_the_same_without_avx2() {
    let mut compared = 0;
    for seed in 1..=300 {
        let Case {
            text,
            block,
            values,
            memory,
            ..
        } = Case::new(seed);
        let (start, empty) = (values.bytes(), memory.bytes());
        let end = |text: &str, set: VectorSet| {
            values.fill(&start);
            memory.fill(&empty);
            let loaded = Loaded::with(text, set);
            let run = loaded
                .kernel("random")
                .block(block)
                .buffer(&values)
                .buffer(&memory);
            let end = run.compile(false).end();
            (
                end.map_err(|fault| std::mem::discriminant(&fault)),
                values.u64s(),
                memory.u64s(),
            )
        };
        let fast = |text: &str| end(text, VectorSet::detect());
        // A program that reads the clock or an address of the host's does not end the same twice.
        let once = fast(&text);
        if once != fast(&text) {
            continue;
        }
        compared += 1;
        let differs = |text: &str| {
            let (fast, plain) = (fast(text), end(text, VectorSet::Portable));
            let [values, memory] = [(&fast.1, &plain.1), (&fast.2, &plain.2)];
            fast.0 != plain.0 || fast.0.is_ok() && !(alike(values) && alike(memory))
        };
        if differs(&text) {
            panic!("seed {seed}\n{}", shrink::shrink(&text, differs));
        }
    }
    assert!(compared > 250, "{compared}");
}
