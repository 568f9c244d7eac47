//! A program of the model: its streams, what it launches next, and what its gate knows.

use std::collections::VecDeque;

use super::device::Work;
use super::learnt::{Learnt, UNKNOWN};
use super::load::Load;
use super::random::Random;
use super::scenario::Host;
use crate::Nanos;

/// An actor's stream of kernels on one device.
#[derive(Debug)]
pub(super) struct Stream {
    pub device: usize,
    pub queue: VecDeque<Work>,
    /// When the head of the queue began to run, the last time.
    pub started: Option<Nanos>,
    /// When it first did.
    pub began: Option<Nanos>,
    pub busy: Nanos,
    pub completed: u64,
    pub lease: Option<Lease>,
    /// The newest lease it ever had here.
    pub last_epoch: u64,
    /// Work in flight at the end of a lease, as the agent was last told.
    pub told_in_flight: Nanos,
    /// The end of a lease that a look is scheduled for.
    pub looks_at: Nanos,
}

/// A lease as the program sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub epoch: u64,
    pub until: Nanos,
    pub in_flight: Nanos,
}

impl Stream {
    /// When what is in flight should be over, from now.
    pub fn remaining(&self, now: Nanos) -> Nanos {
        let all: Nanos = self
            .queue
            .iter()
            .fold(0, |sum: Nanos, work| sum.saturating_add(work.estimate));
        let ran = self.started.map_or(0, |from| now.saturating_sub(from));
        let head = self.queue.front().map_or(0, |work| work.estimate);
        all - head.min(ran)
    }
}

/// A kernel that is about to be launched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub length: Nanos,
    pub estimate: Nanos,
    pub kind: usize,
}

#[derive(Debug)]
pub(super) struct Program {
    pub load: Load,
    pub random: Random,
    /// Of its own, so that arrivals are the same whatever else happens.
    pub arrivals: Random,
    pub streams: Vec<Stream>,
    pub alive: bool,
    pub stopped: bool,
    /// It has work, or something in flight.
    pub wants: bool,
    /// It has told the agent that it wants a lease.
    pub asked: bool,
    /// Kernels that may be launched; greedy programs have no end of them.
    pub kernels: u64,
    /// The next kernel, once drawn.
    pub next: Option<Next>,
    /// What the gate has learnt of its kernels.
    pub learnt: Learnt,
    /// Arrivals of requests that have not been served, and kernels of the first still to complete.
    pub requests: VecDeque<Nanos>,
    pub outstanding: u32,
    pub latencies: Vec<Nanos>,
    /// Use by bins.
    pub bins: Vec<u32>,
    /// Typical kernel, and what the agent was last told.
    pub typical: Nanos,
    pub told: Nanos,
    /// Number of the check that is scheduled; older ones are void.
    pub check: u64,
}

impl Program {
    pub fn new(load: Load, devices: impl Iterator<Item = usize>, random: Random) -> Self {
        let streams = devices.map(|device| Stream {
            device,
            queue: VecDeque::new(),
            started: None,
            began: None,
            busy: 0,
            completed: 0,
            lease: None,
            last_epoch: 0,
            told_in_flight: 0,
            looks_at: 0,
        });
        Self {
            load,
            arrivals: Random::new(random.clone().bits()),
            random,
            streams: streams.collect(),
            alive: false,
            stopped: false,
            wants: false,
            asked: false,
            kernels: 0,
            next: None,
            learnt: Learnt::default(),
            requests: VecDeque::new(),
            outstanding: 0,
            latencies: Vec::new(),
            bins: Vec::new(),
            typical: 0,
            told: 0,
            check: 0,
        }
    }

    /// Notes use from one time to another.
    pub fn record(&mut self, from: Nanos, to: Nanos, bin: Nanos) {
        let mut at = from;
        while at < to {
            let n = (at / bin) as usize;
            let end = to.min((n as Nanos + 1) * bin);
            if self.bins.len() <= n {
                self.bins.resize(n + 1, 0);
            }
            self.bins[n] += (end - at) as u32;
            at = end;
        }
    }

    pub fn has_work(&self) -> bool {
        self.kernels > 0
    }

    pub fn is_empty(&self) -> bool {
        self.streams.iter().all(|stream| stream.queue.is_empty())
    }

    /// The kernel that comes next.
    pub fn peek(&mut self, host: &Host) -> Next {
        let mut next = match self.next {
            Some(next) => next,
            None => self.draw(host.estimate_error),
        };
        self.next = Some(next);
        if host.learns {
            next.estimate = self.learnt.estimate(next.kind);
        }
        next
    }

    fn draw(&mut self, error: u64) -> Next {
        let (length, kind) = match &self.load {
            Load::Greedy(lengths) | Load::Requests { lengths, .. } | Load::Bursts { lengths, .. } => {
                lengths.draw(&mut self.random)
            }
            Load::Endless => (Nanos::MAX, 0),
        };
        let estimate = if length == Nanos::MAX {
            UNKNOWN
        } else {
            length * self.random.between(100 - error, 100 + error) / 100
        };
        Next {
            length,
            estimate,
            kind,
        }
    }
}
