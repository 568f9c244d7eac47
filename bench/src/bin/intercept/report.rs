//! Figures: from worker to parent, and from parent to reader.

use anyhow::Context;
use serde_json::{Value, json};

use crate::measure::Cost;
use divvy_bench::statistics::median;

/// How to print.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Table,
    Json,
}

/// One line of the report.
#[derive(Clone)]
pub struct Figure {
    name: String,
    bare_ns: f64,
    limited_ns: f64,
    /// The most that the limiter may add, in nanoseconds, where we promise something.
    target_ns: Option<f64>,
}

impl Figure {
    pub fn new(name: &str, cost: Cost) -> Self {
        Self {
            name: name.to_owned(),
            bare_ns: cost.bare_ns,
            limited_ns: cost.limited_ns,
            target_ns: None,
        }
    }

    pub fn against(self, target_ns: f64) -> Self {
        Self {
            target_ns: Some(target_ns),
            ..self
        }
    }

    /// The same figure with a circumstance in its name.
    pub fn named(self, circumstance: &str) -> Self {
        Self {
            name: format!("{}, {circumstance}", self.name),
            ..self
        }
    }

    /// The mean of several workers' figures.
    pub fn mean(of: &[Figure]) -> Self {
        let mean = |value: fn(&Figure) -> f64| of.iter().map(value).sum::<f64>() / of.len().max(1) as f64;
        Self {
            name: of.first().map(|f| f.name.clone()).unwrap_or_default(),
            bare_ns: mean(|f| f.bare_ns),
            limited_ns: mean(|f| f.limited_ns),
            target_ns: None,
        }
    }

    fn added_ns(&self) -> f64 {
        self.limited_ns - self.bare_ns
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "bare_ns": self.bare_ns,
            "limited_ns": self.limited_ns,
            "added_ns": self.added_ns(),
            "target_added_ns": self.target_ns,
        })
    }

    /// For the parent process.
    pub fn print_line(&self) {
        println!("{}", self.json());
    }

    /// What `print_line` printed.
    pub fn parse(line: &str) -> anyhow::Result<Self> {
        let value: Value = serde_json::from_str(line).with_context(|| format!("Not a figure: {line}"))?;
        let number = |key: &str| value[key].as_f64().with_context(|| format!("No {key}: {line}"));
        Ok(Self {
            name: value["name"]
                .as_str()
                .context("A figure without a name")?
                .to_owned(),
            bare_ns: number("bare_ns")?,
            limited_ns: number("limited_ns")?,
            target_ns: value["target_added_ns"].as_f64(),
        })
    }
}

/// One call through the limiter, without history and with it.
pub struct Compared {
    name: String,
    without_ns: f64,
    with_ns: f64,
}

impl Compared {
    /// The medians of several runs of the same calls.
    pub fn of(without: &[Vec<Figure>], with: &[Vec<Figure>]) -> Vec<Self> {
        let at = |runs: &[Vec<Figure>], call: usize| {
            let mut times: Vec<f64> = runs
                .iter()
                .filter_map(|run| run.get(call))
                .map(|figure| figure.limited_ns)
                .collect();
            median(&mut times)
        };
        let calls = without.first().into_iter().flatten().enumerate();
        calls
            .map(|(call, figure)| Self {
                name: figure.name.clone(),
                without_ns: at(without, call),
                with_ns: at(with, call),
            })
            .collect()
    }

    /// In percent of the call without history.
    fn added(&self) -> f64 {
        100.0 * (self.with_ns - self.without_ns) / self.without_ns
    }
}

/// Prints what history adds.
pub fn print_compared(compared: &[Compared], output: Format) {
    if output == Format::Json {
        let rows: Vec<Value> = compared
            .iter()
            .map(|row| {
                json!({
                    "name": row.name,
                    "without_ns": row.without_ns,
                    "with_ns": row.with_ns,
                    "added_percent": row.added(),
                })
            })
            .collect();
        println!("{:#}", json!({ "kind": "BenchInterceptHistory", "rows": rows }));
        return;
    }
    println!(
        "{:<44} {:>9} {:>9} {:>9}   target",
        "ns per call, median", "without", "history", "added"
    );
    for row in compared {
        let met = if row.added() <= 1.0 { "met" } else { "MISSED" };
        println!(
            "{:<44} {:>9.1} {:>9.1} {:>8.1}%   <= 1 %  {met}",
            row.name,
            row.without_ns,
            row.with_ns,
            row.added()
        );
    }
}

/// Prints the report.
pub fn print(figures: &[Figure], format: Format) {
    if format == Format::Json {
        let figures: Vec<Value> = figures.iter().map(Figure::json).collect();
        println!("{:#}", json!({ "kind": "BenchIntercept", "figures": figures }));
        return;
    }
    println!(
        "{:<44} {:>9} {:>9} {:>9}   target",
        "ns per call, median", "bare", "limited", "added"
    );
    for figure in figures {
        let target = match figure.target_ns {
            Some(target) if figure.added_ns() <= target => format!("<= {target:.0}  met"),
            Some(target) => format!("<= {target:.0}  MISSED"),
            None => String::new(),
        };
        println!(
            "{:<44} {:>9.1} {:>9.1} {:>9.1}   {target}",
            figure.name,
            figure.bare_ns,
            figure.limited_ns,
            figure.added_ns()
        );
    }
}
