//! What `bench ptx` prints: a table for people, one JSON document for programs.

use std::time::Duration;

/// The figures of one workload.
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Its size, in words.
    pub size: String,
    /// Instructions times lanes of one launch.
    pub lane_instructions: u64,
    /// Median processor time of one launch.
    pub engine: Duration,
    /// Median time on the wall of one launch.
    pub engine_wall: Duration,
    /// Median processor time of one launch of compiled code.
    pub compiled: Duration,
    /// Median time on the wall of one launch of compiled code, with one worker and with two.
    pub compiled_wall: Duration,
    pub two_wall: Duration,
    /// Median processor time of the C loop.
    pub c: Duration,
    /// Median processor time on PoCL, where that is installed.
    pub pocl: Option<Duration>,
    /// Kinds of instructions that compiled code gives to the interpreter; `None` where nothing is compiled.
    pub interpreted: Option<Vec<String>>,
    /// How far the two results lie apart.
    pub difference: f64,
}

impl Row {
    /// Lane-instructions per second of one core, in thousands of millions.
    fn rate(&self) -> f64 {
        self.lane_instructions as f64 / self.engine.as_secs_f64() / 1e9
    }

    /// Compiled code's time over C time.
    fn compiled_ratio(&self) -> f64 {
        self.compiled.as_secs_f64() / self.c.as_secs_f64()
    }

    /// Compiled code's time over PoCL's.
    fn over_pocl(&self) -> Option<f64> {
        Some(self.compiled.as_secs_f64() / self.pocl?.as_secs_f64())
    }

    /// How much sooner two workers are done with compiled code than one.
    fn by_two(&self) -> f64 {
        self.compiled_wall.as_secs_f64() / self.two_wall.as_secs_f64()
    }

    /// Engine time over C time.
    fn ratio(&self) -> f64 {
        self.engine.as_secs_f64() / self.c.as_secs_f64()
    }
}

/// The table, with what stands above and below it.
pub fn table(rows: &[Row], compiler: &str, rounds: usize) -> String {
    let mut text = format!(
        "One worker against one thread of C at -O3 -march=native ({compiler}); medians of {rounds} alternating rounds, processor time.\n\n\
         {:<11} {:<28} {:>12} {:>11} {:>12} {:>12} {:>10} {:>9} {:>11} {:>13} {:>11}\n",
        "kernel",
        "size",
        "lane-instr",
        "engine ms",
        "G/s per core",
        "compiled ms",
        "C ms",
        "engine/C",
        "compiled/C",
        "compiled/PoCL",
        "two workers"
    );
    for row in rows {
        text += &format!(
            "{:<11} {:<28} {:>11.1}M {:>11.2} {:>12.2} {:>12.2} {:>10.2} {:>8.2}x {:>10.2}x {:>14} {:>10.2}x\n",
            row.name,
            row.size,
            row.lane_instructions as f64 / 1e6,
            row.engine.as_secs_f64() * 1e3,
            row.rate(),
            row.compiled.as_secs_f64() * 1e3,
            row.c.as_secs_f64() * 1e3,
            row.ratio(),
            row.compiled_ratio(),
            row.over_pocl()
                .map_or("-".to_string(), |ratio| format!("{ratio:.2}x")),
            row.by_two(),
        );
    }
    text += &format!(
        "{:<11} {:<28} {:>12} {:>11} {:>12} {:>12} {:>10} {:>8.2}x {:>10.2}x {:>14} {:>10.2}x\n\n",
        "geometric mean",
        "",
        "",
        "",
        "",
        "",
        "",
        mean(rows, Row::ratio),
        mean(rows, Row::compiled_ratio),
        "",
        mean(rows, Row::by_two)
    );
    for row in rows {
        match &row.interpreted {
            None => text += &format!("{}: not compiled here\n", row.name),
            Some(names) if names.is_empty() => text += &format!("{}: all compiled\n", row.name),
            Some(names) => text += &format!("{}: interpreted are {}\n", row.name, names.join(", ")),
        }
    }
    text
}

/// The geometric mean of a ratio.
fn mean(rows: &[Row], ratio: impl Fn(&Row) -> f64) -> f64 {
    let sum: f64 = rows.iter().map(|row| ratio(row).ln()).sum();
    (sum / rows.len().max(1) as f64).exp()
}

/// The same for programs: times in seconds, rates per second.
pub fn json(rows: &[Row], compiler: &str, rounds: usize) -> serde_json::Value {
    let kernels: Vec<_> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "name": row.name,
                "size": row.size,
                "lane_instructions": row.lane_instructions,
                "engine_seconds": row.engine.as_secs_f64(),
                "engine_wall_seconds": row.engine_wall.as_secs_f64(),
                "lane_instructions_per_second_per_core": row.rate() * 1e9,
                "c_seconds": row.c.as_secs_f64(),
                "engine_over_c": row.ratio(),
                "compiled_seconds": row.compiled.as_secs_f64(),
                "compiled_over_c": row.compiled_ratio(),
                "compiled_wall_seconds": row.compiled_wall.as_secs_f64(),
                "two_workers_wall_seconds": row.two_wall.as_secs_f64(),
                "two_workers_speedup": row.by_two(),
                "pocl_seconds": row.pocl.map(|time| time.as_secs_f64()),
                "interpreted": row.interpreted,
                "largest_difference": row.difference,
            })
        })
        .collect();
    serde_json::json!({
        "kind": "PtxBench",
        "compiler": compiler,
        "rounds": rounds,
        "kernels": kernels,
        "compiled_over_c": mean(rows, Row::compiled_ratio),
    })
}
