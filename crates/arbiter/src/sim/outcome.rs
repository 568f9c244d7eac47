//! The result of a play, in the figures that people publish.

use std::time::Duration;

use super::scenario::Scenario;
use super::world::World;
use crate::{Decision, Nanos, Refused};

/// What one actor got.
#[derive(Clone, Debug)]
pub struct Actor {
    /// Device time, nanoseconds, over all its devices.
    pub busy: Nanos,
    /// Kernels completed, over all its devices.
    pub kernels: u64,
    /// Device time in each bin.
    pub bins: Vec<u32>,
    /// How long requests took, in the order in which they came.
    pub latencies: Vec<Nanos>,
    /// Device time it was charged by the arbiter.
    pub charged: u128,
}

/// The result of a play.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How long it lasted.
    pub lasted: Nanos,
    /// Width of a bin.
    pub bin: Nanos,
    /// What each actor got.
    pub actors: Vec<Actor>,
    /// Time that each device ran.
    pub busy: Vec<Nanos>,
    /// Time that each device did not run though an actor wanted it.
    pub idle_while_wanted: Vec<Nanos>,
    /// When the work of two best-effort actors was in flight at once for more than a millisecond: from and to.
    pub overlaps: Vec<(Nanos, Nanos)>,
    /// Events that the arbiter handled, and what they cost on the real clock where that was measured.
    pub events: u64,
    /// Time spent in the arbiter.
    pub spent: Duration,
    /// Overdue and expired leases, with the time they were told.
    pub incidents: Vec<(Nanos, Decision)>,
    /// Events that the arbiter refused.
    pub refusals: Vec<Refused>,
    /// Tenants that the arbiter still had at the end.
    pub registered: usize,
}

impl Outcome {
    pub(super) fn of(world: World, scenario: &Scenario) -> Self {
        let bins = (scenario.lasts / scenario.bin) as usize;
        let arbiter = &world.arbiter;
        let charged = |a: usize| {
            let view = |device: &crate::DeviceId| arbiter.view(crate::TenantId(a as u64), *device);
            world.devices_of[a]
                .iter()
                .filter_map(view)
                .map(|view| view.charged)
                .sum()
        };
        let actors = world.actors.iter().enumerate().map(|(a, actor)| {
            let mut bins_of = actor.bins.clone();
            bins_of.resize(bins, 0);
            Actor {
                busy: actor.streams.iter().map(|stream| stream.busy).sum(),
                kernels: actor.streams.iter().map(|stream| stream.completed).sum(),
                bins: bins_of,
                latencies: actor.latencies.clone(),
                charged: charged(a),
            }
        });
        Self {
            lasted: scenario.lasts,
            bin: scenario.bin,
            actors: actors.collect(),
            busy: world.engines.iter().map(|engine| engine.busy).collect(),
            idle_while_wanted: world
                .engines
                .iter()
                .map(|engine| engine.idle_while_wanted)
                .collect(),
            overlaps: world
                .engines
                .iter()
                .flat_map(|engine| engine.overlaps.iter().copied())
                .collect(),
            events: world.events,
            spent: world.spent,
            registered: arbiter.tenants(),
            incidents: world.incidents,
            refusals: world.refusals,
        }
    }

    /// An actor's use of the device in percent of the time from `from` to `to`.
    pub fn percent(&self, actor: usize, from: Nanos, to: Nanos) -> f64 {
        let bins = (from / self.bin) as usize..(to / self.bin) as usize;
        let used: u64 = self.actors[actor].bins[bins]
            .iter()
            .map(|&used| u64::from(used))
            .sum();
        used as f64 * 100.0 / (to - from) as f64
    }

    /// The largest distance from `shares` (percent, one for each actor) in any of the adjoining windows of this length
    /// after `from`, in points. With `of_all`, shares of what all actors got together: the split.
    pub fn error(&self, shares: &[f64], from: Nanos, window: Nanos, of_all: bool) -> f64 {
        let mut worst = 0.0_f64;
        let mut begin = from;
        while begin + window <= self.lasted {
            let got: Vec<f64> = (0..shares.len())
                .map(|actor| self.percent(actor, begin, begin + window))
                .collect();
            let all: f64 = if of_all {
                got.iter().sum::<f64>() / 100.0
            } else {
                1.0
            };
            for (got, share) in got.iter().zip(shares) {
                worst = worst.max((got / all.max(1e-9) - share).abs());
            }
            begin += window;
        }
        worst
    }

    /// The most that an actor used beyond its share (percent) in any window of this length, to the bin; nanoseconds.
    pub fn violation(&self, actor: usize, share: f64, window: Nanos) -> i64 {
        let width = (window / self.bin) as usize;
        let bins = &self.actors[actor].bins;
        let allowed = (window as f64 * share / 100.0) as i64;
        let mut used: i64 = bins.iter().take(width).map(|&used| i64::from(used)).sum();
        let mut worst = used - allowed;
        for end in width..bins.len() {
            used += i64::from(bins[end]) - i64::from(bins[end - width]);
            worst = worst.max(used - allowed);
        }
        worst
    }

    /// Jain's index of what each got over what it should have: 1 is fair, 1/n means that one has all.
    pub fn jain(&self, shares: &[f64]) -> f64 {
        let got: Vec<f64> = shares
            .iter()
            .enumerate()
            .map(|(actor, share)| self.actors[actor].busy as f64 / share)
            .collect();
        let sum: f64 = got.iter().sum();
        let squares: f64 = got.iter().map(|x| x * x).sum();
        sum * sum / (got.len() as f64 * squares).max(1e-9)
    }

    /// Of the time in which an actor wanted a device, how much it ran, percent over all devices.
    pub fn conservation(&self) -> f64 {
        let busy: Nanos = self.busy.iter().sum();
        let idle: Nanos = self.idle_while_wanted.iter().sum();
        busy as f64 * 100.0 / ((busy + idle) as f64).max(1.0)
    }

    /// From `change` on, how long until every later window of `window` is within `points` of `shares` (percent). With
    /// `of_all`, shares of what all actors got together.
    pub fn settled(&self, shares: &[f64], change: Nanos, window: Nanos, points: f64, of_all: bool) -> Nanos {
        let mut last_bad = change;
        let mut begin = change;
        while begin + window <= self.lasted {
            let got: Vec<f64> = (0..shares.len())
                .map(|actor| self.percent(actor, begin, begin + window))
                .collect();
            let all = if of_all {
                got.iter().sum::<f64>() / 100.0
            } else {
                1.0
            };
            let off = got
                .iter()
                .zip(shares)
                .map(|(got, share)| (got / all.max(1e-9) - share).abs())
                .fold(0.0, f64::max);
            if off > points {
                last_bad = begin + self.bin;
            }
            begin += self.bin;
        }
        last_bad - change
    }

    /// The longest time from `from` on in which an actor got nothing, to the bin.
    pub fn longest_gap(&self, actor: usize, from: Nanos) -> Nanos {
        let (mut gap, mut worst) = (0, 0);
        for &used in &self.actors[actor].bins[(from / self.bin) as usize..] {
            gap = if used == 0 { gap + self.bin } else { 0 };
            worst = worst.max(gap);
        }
        worst
    }
}

/// The value that `percent` of all are no greater than, nanoseconds; 0 of nothing.
pub fn percentile(values: &[Nanos], percent: f64) -> Nanos {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted
        .get(rank.clamp(1, sorted.len().max(1)) - 1)
        .copied()
        .unwrap_or(0)
}
