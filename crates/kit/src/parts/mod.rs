//! The parts. Each writes down what it finds as it finds it, and asks how much of its time is left before what takes long.

mod asked;
pub(crate) mod asks;
pub(crate) mod clients;
pub(crate) mod compute;
pub(crate) mod cost;
pub(crate) mod deaths;
pub(crate) mod differences;
pub(crate) mod facts;
mod ipc;
mod latency;
pub(crate) mod memory;
mod nvcc;
mod python;
pub(crate) mod sharing;
mod side_by_side;
pub(crate) mod tools;

use divvy_abi::nvml::NVML_COMPUTEMODE_DEFAULT;
use divvy_abi::nvml::client::{Client, Handle};

use crate::kit::Kit;
use crate::scrub::foreign;

/// Whether the card takes several programs at once. One that does not tell is taken to.
pub(crate) fn may_share(kit: &Kit) -> bool {
    let mode = Card::of(kit).map(|card| card.nvml.compute_mode(card.handle));
    !matches!(mode, Ok(Ok(mode)) if mode != NVML_COMPUTEMODE_DEFAULT)
}

/// The card as NVML has it, outside every slice.
pub(crate) struct Card {
    pub nvml: Client,
    pub handle: Handle,
    pub name: String,
}

impl Card {
    /// The one that the kit asks; why not, where NVML does not have it.
    pub fn of(kit: &Kit) -> Result<Self, String> {
        let nvml = Client::open(c"libnvidia-ml.so.1").map_err(|why| foreign(&why))?;
        let all = 0..nvml.device_count().map_err(|failure| failure.to_string())?;
        let is_it = |uuid: &str| kit.device.as_deref() == Some(uuid);
        let mut known = all.filter_map(|index| nvml.device(index).ok());
        let facts = match known.find(|facts| is_it(&facts.uuid)) {
            Some(facts) => facts,
            None => nvml.device(0).map_err(|failure| failure.to_string())?,
        };
        Ok(Self {
            nvml,
            handle: facts.handle,
            name: facts.name,
        })
    }

    /// Memory that no program has, in bytes; none where NVML does not tell.
    pub fn free(&self) -> Option<u64> {
        let memory = self.nvml.memory(self.handle).ok()?;
        Some(memory.total.saturating_sub(memory.used))
    }

    /// What NVML says that a process and its children hold, in bytes; none where it does not tell.
    pub fn held_by(&self, pids: &[u32]) -> Option<u64> {
        let all = self.nvml.process_memory(self.handle).ok()?;
        let ours: Vec<Option<u64>> = all
            .into_iter()
            .filter(|(pid, _)| pids.contains(pid))
            .map(|(_, bytes)| bytes)
            .collect();
        match ours.is_empty() {
            true => None,
            false => ours.into_iter().sum(),
        }
    }
}

/// The one in the middle; none of nothing.
fn median(of: &[f64]) -> Option<f64> {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[expect(clippy::cast_precision_loss, reason = "a count to read")]
fn count(number: usize) -> f64 {
    number as f64
}
