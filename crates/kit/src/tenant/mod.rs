//! The kit's own CUDA programs. They know nothing of Divvy: parts run them in slices, and without one.

mod time;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, stdin};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::finding::Failure;
use crate::gpu::{CudaError, Gpu, Held, PROGRAMS, Pool, SPAN_PTX, Way};
use crate::kit::beside;

/// Runs one of them to its end.
///
/// # Errors
/// Why it could not.
pub fn run(word: &str) -> Result<(), Failure> {
    match word {
        "look" => Gpu::open().map(drop),
        "memory" => memory(),
        "calls" => calls(),
        "spans" => time::spans(),
        "latency" => time::latency(),
        "churn" => churn(),
        "answers" => answers(),
        other => Err(format!("there is no tenant `{other}`")),
    }
}

fn say(value: &Value) {
    crate::output::say(&value.to_string());
}

fn hello(gpu: &Gpu) -> Value {
    let memory = gpu.memory().ok();
    json!({"pid": std::process::id(), "free": memory.map(|memory| memory.0), "total": memory.map(|memory| memory.1)})
}

/// Gets memory as it is told: `fill WAY STEP MOST` until it is refused or has the most, `free`. `export` says by what another
/// process can open what it has, and `open HANDLE` opens another one's. Ends with its input.
fn memory() -> Result<(), Failure> {
    let gpu = Gpu::open()?;
    say(&hello(&gpu));
    let mut held: Vec<Held> = Vec::new();
    let mut pool = None;
    for line in stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["fill", way, step, most] => {
                let way = Way::of(way).ok_or("no such way")?;
                let number = |word: &str| word.parse::<u64>().map_err(|error| error.to_string());
                let (step, most) = (number(step)?, number(most)?);
                if way == Way::Pool && pool.is_none() {
                    pool = gpu.pool().ok();
                }
                fill(&gpu, way, pool, (step, most), &mut held)
            }
            ["free"] => {
                let given: Result<Vec<()>, CudaError> =
                    held.drain(..).map(|held| gpu.give_back(held)).collect();
                let given = given
                    .and_then(|_| gpu.synchronize())
                    .and_then(|()| gpu.trim_graphs());
                json!({"error": given.err().map(|error| error.to_string())})
            }
            ["export"] => export(&gpu, &held),
            ["open", handle] => match gpu.ipc_open(handle) {
                Ok(_) => json!({"error": null}),
                Err(error) => json!({"error": error.to_string(), "out_of_memory": error.is_out_of_memory()}),
            },
            _ => json!({"error": "no such word"}),
        };
        say(&answer);
    }
    Ok(())
}

fn export(gpu: &Gpu, held: &[Held]) -> Value {
    let addresses = held.iter().filter_map(|held| match held {
        Held::Address(address) => Some(*address),
        _ => None,
    });
    let handles: Result<Vec<String>, CudaError> = addresses.map(|address| gpu.ipc_handle(address)).collect();
    match handles {
        Ok(handles) => json!({"handles": handles}),
        Err(error) => json!({"error": error.to_string()}),
    }
}

fn fill(gpu: &Gpu, way: Way, pool: Option<Pool>, (step, most): (u64, u64), held: &mut Vec<Held>) -> Value {
    let mut got = 0;
    let refused = loop {
        if got + step > most {
            break None;
        }
        match gpu.get(way, step, pool) {
            Ok(one) => {
                held.push(one);
                got += step;
            }
            Err(error) => break Some(error),
        }
    };
    // What a stream was asked for is there once the stream has come to it.
    let late = gpu.synchronize().err();
    let error = refused.or(late);
    json!({
        "got": got,
        "error": error.map(|error| error.to_string()),
        "out_of_memory": error.is_some_and(CudaError::is_out_of_memory),
        "free": gpu.memory().ok().map(|memory| memory.0),
    })
}

/// What calls cost: nanoseconds each, the least of many rounds, which is what the machine's other work disturbs least.
fn calls() -> Result<(), Failure> {
    const ROUNDS: u32 = 40;
    const LEAST: u32 = 5;
    const ENOUGH: Duration = Duration::from_secs(2);
    const CALLS: u32 = 500;
    const STEPS: u32 = 5;
    const OF_A_STEP: u32 = 20;
    const STEP_NS: u64 = 10_000;
    let gpu = Gpu::open()?;
    let kernel = gpu.kernel(SPAN_PTX, c"span").map_err(|error| error.to_string())?;
    let place = gpu.zeroed(16).map_err(|error| error.to_string())?;
    let word = |word: u64| word.to_le_bytes().to_vec();
    let graph = gpu.graph(kernel, OF_A_STEP, &[word(STEP_NS), word(place)]);
    let graph = graph.map_err(|error| error.to_string())?;
    let mut least: HashMap<&str, f64> = HashMap::new();
    let mut note = |name, calls: u32, begun: Instant| {
        let each = begun.elapsed().as_secs_f64() * 1e9 / f64::from(calls);
        let known = least.entry(name).or_insert(f64::INFINITY);
        *known = known.min(each);
    };
    let words = |error: CudaError| error.to_string();
    let start = Instant::now();
    for round in 0..ROUNDS {
        if round >= LEAST && start.elapsed() > ENOUGH {
            break;
        }
        let begun = Instant::now();
        for _ in 0..CALLS {
            gpu.memory().map_err(words)?;
        }
        note("cuMemGetInfo", CALLS, begun);
        let begun = Instant::now();
        for _ in 0..CALLS {
            let held = gpu.get(Way::Plain, 1 << 20, None).map_err(words)?;
            gpu.give_back(held).map_err(words)?;
        }
        note("cuMemAlloc and cuMemFree", CALLS, begun);
        gpu.synchronize().map_err(words)?;
        let begun = Instant::now();
        for _ in 0..CALLS {
            gpu.span(kernel, 0, place).map_err(words)?;
        }
        note("cuLaunchKernel of an empty kernel", CALLS, begun);
        gpu.synchronize().map_err(words)?;
        let begun = Instant::now();
        for _ in 0..STEPS {
            for _ in 0..OF_A_STEP {
                gpu.span(kernel, STEP_NS, place).map_err(words)?;
            }
            gpu.synchronize().map_err(words)?;
        }
        note("loop of 20 kernels of 10 us and a wait", STEPS, begun);
        let begun = Instant::now();
        for _ in 0..STEPS {
            gpu.launch_graph(graph)
                .and_then(|()| gpu.synchronize())
                .map_err(words)?;
        }
        note("graph of 20 kernels of 10 us and a wait", STEPS, begun);
    }
    say(&json!({"nanoseconds": least}));
    Ok(())
}

/// What the driver answers, and what whole kernels compute on its device.
fn answers() -> Result<(), Failure> {
    let gpu = Gpu::open()?;
    let kernels: BTreeMap<&str, Result<Vec<u32>, String>> = PROGRAMS
        .iter()
        .map(|program| (program.entry, gpu.results_of(program, &kernels_folder())))
        .collect();
    let answers = gpu.answers().map_err(|error| error.to_string())?;
    say(&json!({"answers": answers, "kernels": kernels}));
    Ok(())
}

/// Where the kernels are: beside the programs of an archive, unless the developer says where.
fn kernels_folder() -> PathBuf {
    std::env::var_os("KIT_KERNELS").map_or_else(|| beside("../kernels"), PathBuf::from)
}

/// Gets memory, launches, gives memory back, for ever.
fn churn() -> Result<(), Failure> {
    let gpu = Gpu::open()?;
    let words = |error: CudaError| error.to_string();
    let kernel = gpu.kernel(SPAN_PTX, c"span").map_err(words)?;
    let place = gpu.zeroed(16).map_err(words)?;
    say(&hello(&gpu));
    let mut held = Vec::new();
    for round in 0_u64.. {
        let way = [Way::Plain, Way::Async, Way::Physical, Way::Array][round as usize % 4];
        match gpu.get(way, (1 + round % 7) << 20, None) {
            Ok(one) => held.push(one),
            Err(error) if error.is_out_of_memory() => {
                for one in held.drain(..) {
                    gpu.give_back(one).map_err(words)?;
                }
            }
            Err(error) => return Err(error.to_string()),
        }
        gpu.span(kernel, 20_000, place).map_err(words)?;
    }
    Ok(())
}
