//! One kernel of the engine, and values for it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{anyhow, ensure};
use divvy_ptx::{Engine, Launch, Module, Program, Stats};

use super::device::Lent;

/// The address that a module's variables get: no memory that is lent.
const NOWHERE: u64 = 1 << 16;

/// One kernel of a module whose variables it does not touch.
pub struct Kernel {
    text: &'static str,
    program: Program,
    name: &'static str,
}

impl Kernel {
    /// Reads the module.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &'static str, name: &'static str) -> anyhow::Result<Kernel> {
        let module = Module::parse(text.as_bytes()).map_err(|error| anyhow!("{error}"))?;
        let program = Arc::new(module)
            .link(&mut |_| NOWHERE)
            .map_err(|error| anyhow!("{error}"))?;
        Ok(Kernel { text, program, name })
    }

    /// The instructions that compiled code gives to the interpreter, each kind once; `None` where the whole kernel is
    /// interpreted.
    pub fn interpreted(&self) -> Option<Vec<String>> {
        let lines: Vec<&str> = self.text.lines().collect();
        let left = self.program.module().interpreted_lines(self.name)?;
        let mut names: Vec<String> = left
            .into_iter()
            .filter_map(|line| lines.get(line as usize - 1))
            .filter_map(|line| line.split_whitespace().find(|word| !word.starts_with('@')))
            .map(|word| word.trim_end_matches(';').to_string())
            .collect();
        names.sort_unstable();
        names.dedup();
        Some(names)
    }

    /// Runs it once.
    ///
    /// # Errors
    /// Why it did not run to its end.
    pub fn run(
        &self,
        (engine, compile): (&Engine, bool),
        [grid, block]: [[u32; 3]; 2],
        dynamic_shared_bytes: u32,
        memory: &Lent,
        arguments: &[&[u8]],
    ) -> anyhow::Result<Stats> {
        let kernel = self
            .program
            .module()
            .kernel(self.name)
            .ok_or_else(|| anyhow!("No kernel {}", self.name))?;
        ensure!(
            kernel.params.len() == arguments.len(),
            "{} takes {} arguments",
            self.name,
            kernel.params.len()
        );
        let mut params = vec![0; kernel.param_bytes as usize];
        for (param, argument) in kernel.params.iter().zip(arguments) {
            params[param.offset as usize..][..argument.len()].copy_from_slice(argument);
        }
        let (begun, never) = (Instant::now(), AtomicBool::new(false));
        let launch = Launch {
            kernel: self.name,
            grid,
            block,
            dynamic_shared_bytes,
            params: &params,
            memory,
            cooperative: false,
            clock_ns: &|| begun.elapsed().as_nanos() as u64,
            print: &|_| (),
            cancel: &never,
            sm_count: 1,
            clock_khz: 1_000_000,
            timing: None,
            compile,
        };
        engine
            .run(&self.program, &launch)
            .map_err(|fault| anyhow!("{fault}"))
    }
}

/// Repeatable values between 0 and 1.
pub fn values(count: usize) -> Vec<f32> {
    (0..count as u32)
        .map(|i| (i.wrapping_mul(2_654_435_769) >> 8) as f32 / (1 << 24) as f32)
        .collect()
}

/// The largest relative difference of two results.
pub fn difference<'a>(a: impl IntoIterator<Item = &'a f32>, b: impl IntoIterator<Item = &'a f32>) -> f64 {
    let pairs = a.into_iter().zip(b).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    pairs
        .map(|(a, b)| (a - b).abs() / b.abs().max(1e-3))
        .fold(0.0, f64::max)
}
