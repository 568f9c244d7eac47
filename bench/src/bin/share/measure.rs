//! From what the device says of its engine to the figures that people publish.

use std::time::Duration;

use divvy_arbiter::Nanos;
use divvy_arbiter::sim::{ActorOutcome, Outcome};

use crate::engine::{Engine, Sample};

/// Width of a bin, nanoseconds: what a share over a tenth of a second needs.
pub const BIN: Nanos = 10_000_000;

/// Between two samples that tell how much each process ran.
pub const PAUSE: Duration = Duration::from_millis(4);

/// Watches for so long by the device's clock, from now on, and a bin longer: a window of this length fits. Sleeps for
/// `pause` between two samples.
pub fn watch(engine: &Engine, lasts: Duration, pause: Duration) -> anyhow::Result<Vec<Sample>> {
    let first = engine.sample()?;
    let end = first.at + Nanos::try_from(lasts.as_nanos())? + BIN;
    let mut samples = vec![first];
    while samples.last().is_some_and(|sample| sample.at < end) {
        std::thread::sleep(pause);
        samples.push(engine.sample()?);
    }
    Ok(samples)
}

/// What each of `pids` got, bin by bin; between two samples evenly.
pub fn outcome(samples: &[Sample], pids: &[u32]) -> Outcome {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return of_bins(Vec::new(), 0);
    };
    let bins = ((last.at - first.at) / BIN) as usize;
    let mut all = vec![vec![0.0_f64; bins + 1]; pids.len()];
    for pair in samples.windows(2) {
        let (from, to) = (pair[0].at - first.at, pair[1].at - first.at);
        for (pid, into) in pids.iter().zip(&mut all) {
            let busy = |sample: &Sample| sample.busy.get(pid).copied().unwrap_or(0);
            spread(into, from, to, busy(&pair[1]).saturating_sub(busy(&pair[0])));
        }
    }
    let rounded = all.into_iter().map(|bins_of| {
        let mut bins_of: Vec<u32> = bins_of.into_iter().map(|busy| busy.round() as u32).collect();
        bins_of.truncate(bins);
        bins_of
    });
    of_bins(rounded.collect(), bins as Nanos * BIN)
}

fn spread(into: &mut [f64], from: Nanos, to: Nanos, busy: Nanos) {
    let mut at = from;
    while at < to {
        let bin = at / BIN;
        let end = to.min((bin + 1) * BIN);
        if let Some(place) = into.get_mut(bin as usize) {
            *place += busy as f64 * (end - at) as f64 / (to - from) as f64;
        }
        at = end;
    }
}

fn of_bins(bins: Vec<Vec<u32>>, lasted: Nanos) -> Outcome {
    let actors: Vec<ActorOutcome> = bins
        .into_iter()
        .map(|bins| ActorOutcome {
            busy: bins.iter().map(|&busy| Nanos::from(busy)).sum(),
            kernels: 0,
            bins,
            latencies: Vec::new(),
            charged: 0,
        })
        .collect();
    Outcome {
        lasted,
        bin: BIN,
        busy: vec![actors.iter().map(|actor| actor.busy).sum()],
        actors,
        idle_while_wanted: vec![0],
        overlaps: Vec::new(),
        events: 0,
        spent: Duration::ZERO,
        incidents: Vec::new(),
        refusals: Vec::new(),
        registered: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn use_is_spread_evenly_between_samples() {
        let sample = |at: Nanos, one: Nanos, two: Nanos| Sample {
            at: 7 + at * 1_000_000,
            busy: HashMap::from([(1, one * 1_000_000), (2, two * 1_000_000)]),
        };
        let samples = [sample(0, 5, 0), sample(15, 20, 0), sample(30, 20, 12)];
        let outcome = outcome(&samples, &[1, 2]);
        assert_eq!(outcome.lasted, 30_000_000);
        assert_eq!(outcome.actors[0].bins, [10_000_000, 5_000_000, 0]);
        assert_eq!(outcome.actors[1].bins, [0, 4_000_000, 8_000_000]);
        assert_eq!(outcome.percent(0, 0, 30_000_000), 50.0);
    }
}
