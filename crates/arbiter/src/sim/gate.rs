//! A program and its gate: what it launches, and when.

use std::collections::VecDeque;

use super::engine::Work;
use super::learnt::{Learnt, UNKNOWN};
use super::load::Load;
use super::random::Random;
use super::scenario::{Host, Sharing};
use super::world::{Happening, World};
use crate::{Event, MILLISECOND, Nanos, TenantId};

/// Kernels that a driver takes before a launch blocks.
const DRIVER_QUEUE: usize = 64;
/// Behind a launch no other one of this length is queued before it is over: if the estimate were a tenth too short, a
/// latency-critical tenant would wait for both.
const LONG: Nanos = 32 * MILLISECOND;

/// How long a gate waits for a launch without a measurement before it lets others follow; another one of the same kind
/// waits for its end.
const ENDLESS: Nanos = 50 * MILLISECOND;
/// What has run for twice its estimate and this is late: nothing is queued behind it.
const LATE: Nanos = 200_000;

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
    told_in_flight: Nanos,
    /// The end of a lease that a look is scheduled for.
    looks_at: Nanos,
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
    fn remaining(&self, now: Nanos) -> Nanos {
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
struct Next {
    length: Nanos,
    estimate: Nanos,
    kind: usize,
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
    next: Option<Next>,
    /// What the gate has learnt of its kernels.
    pub learnt: Learnt,
    /// Arrivals of requests that have not been served, and kernels of the first still to complete.
    pub requests: VecDeque<Nanos>,
    pub outstanding: u32,
    pub latencies: Vec<Nanos>,
    /// Use by bins.
    pub bins: Vec<u32>,
    /// Typical kernel, and what the agent was last told.
    typical: Nanos,
    told: Nanos,
    /// Number of the check that is scheduled; older ones are void.
    check: u64,
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

    fn has_work(&self) -> bool {
        self.kernels > 0
    }

    fn is_empty(&self) -> bool {
        self.streams.iter().all(|stream| stream.queue.is_empty())
    }

    /// The kernel that comes next.
    fn peek(&mut self, host: &Host) -> Next {
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

impl World {
    /// A program looks at what it may do now.
    pub(super) fn check(&mut self, a: usize) {
        if !self.actors[a].alive || self.actors[a].stopped {
            return;
        }
        while self.actors[a].has_work() && self.may_launch(a) {
            self.launch(a);
        }
        let wants = self.actors[a].has_work() || !self.actors[a].is_empty();
        self.want(a, wants);
        if matches!(self.sharing, Sharing::Leases(_)) {
            self.talk(a);
        }
    }

    fn may_launch(&mut self, a: usize) -> bool {
        let now = self.now;
        let host = &self.host;
        let next = self.actors[a].peek(host);
        let mut wake = Nanos::MAX;
        let depth = match self.sharing {
            Sharing::Leases(_) => None,
            Sharing::TimeSlicing { .. } => Some(16),
            Sharing::Fifo { depth } => Some(depth),
        };
        let mut may = true;
        for stream in &self.actors[a].streams {
            if let Some(depth) = depth {
                may &= stream.queue.len() < depth || matches!(self.actors[a].load, Load::Requests { .. });
                continue;
            }
            let Some(lease) = stream.lease.filter(|lease| now < lease.until) else {
                return false;
            };
            let remaining = stream.remaining(now);
            let mut estimate = next.estimate;
            if host.learns
                && let Some(head) = stream.queue.front()
            {
                // Others may run before it begins.
                let began = stream.began.unwrap_or(now);
                let ran = now.saturating_sub(began);
                let unknown = !self.actors[a].learnt.knows(head.kind);
                let late = ran > 2 * self.actors[a].learnt.estimate(head.kind) + LATE;
                if ran < ENDLESS && (unknown || late) {
                    let at = began + ENDLESS;
                    self.check_at(a, at);
                    return false;
                }
                if ran >= ENDLESS && head.kind == next.kind {
                    estimate = estimate.max(ran);
                }
            }
            // Nothing bounds a lone tenant but the driver's own queue.
            may &= stream.queue.len() < DRIVER_QUEUE;
            may &= now.saturating_add(remaining) < lease.until;
            // Work that ends this soon would leave the device without work before a launch could arrive.
            let feed = lease.in_flight / 64;
            let fits = remaining.saturating_add(estimate) <= lease.in_flight;
            let feeds = remaining <= feed && estimate < LONG;
            if !(fits || feeds || stream.queue.is_empty()) {
                may = false;
                if stream.queue.len() == 1 && estimate < LONG {
                    wake = wake.min(now + remaining - feed);
                }
            }
        }
        if !may && wake != Nanos::MAX {
            self.check_at(a, wake);
        }
        may
    }

    fn launch(&mut self, a: usize) {
        let Next {
            length: left,
            estimate,
            kind,
        } = self.actors[a].peek(&self.host);
        let ready = self.now + self.host.launch;
        let actor = &mut self.actors[a];
        actor.next = None;
        if !matches!(actor.load, Load::Greedy(_)) {
            actor.kernels -= 1;
        }
        actor.typical = if actor.typical == 0 {
            estimate
        } else {
            (actor.typical * 15 + estimate) / 16
        };
        for stream in 0..self.actors[a].streams.len() {
            self.enqueue(
                a,
                stream,
                Work {
                    left,
                    estimate,
                    kind,
                    ready,
                },
            );
        }
    }

    /// A kernel of the actor's is over.
    pub(super) fn completed(&mut self, a: usize, stream: usize) {
        let now = self.now;
        let notice = self.host.notice;
        let actor = &mut self.actors[a];
        if stream == 0 {
            match &actor.load {
                Load::Requests { kernels, .. } => {
                    let kernels = *kernels;
                    actor.outstanding -= 1;
                    if actor.outstanding == 0 {
                        let arrived = actor.requests.pop_front().unwrap_or(now);
                        actor.latencies.push(now - arrived);
                        if !actor.requests.is_empty() {
                            actor.outstanding = kernels;
                        }
                    }
                }
                Load::Bursts { think, .. } if actor.kernels == 0 && actor.is_empty() => {
                    let think = *think;
                    let pause = actor.random.exponential(think);
                    self.at(now + pause, Happening::Work { actor: a });
                }
                _ => {}
            }
        }
        self.check_at(a, now + notice);
    }

    /// More to do: a request has come, or a program has thought enough.
    pub(super) fn work(&mut self, a: usize) {
        let now = self.now;
        let actor = &mut self.actors[a];
        if !actor.alive {
            return;
        }
        match &actor.load {
            Load::Greedy(_) | Load::Endless => actor.kernels = 1,
            Load::Bursts { kernels, .. } => actor.kernels += u64::from(*kernels),
            Load::Requests { every, kernels, .. } => {
                let (every, kernels) = (*every, *kernels);
                actor.kernels += u64::from(kernels);
                if actor.requests.is_empty() {
                    actor.outstanding = kernels;
                }
                actor.requests.push_back(now);
                let gap = actor.arrivals.exponential(every);
                self.at(now + gap, Happening::Work { actor: a });
            }
        }
        self.check(a);
    }

    /// What the gate has to tell the agent.
    fn talk(&mut self, a: usize) {
        let now = self.now;
        let actor = &mut self.actors[a];
        let tenant = TenantId(a as u64);
        let holds = actor.streams.iter().any(|stream| stream.lease.is_some());
        let over = |stream: &Stream| stream.lease.is_some_and(|lease| now >= lease.until);
        if !holds {
            if actor.has_work() && !actor.asked {
                actor.asked = true;
                self.tell_agent(Event::Ready { tenant });
            }
            return;
        }
        if actor.typical.abs_diff(actor.told) > actor.told / 8 {
            actor.told = actor.typical;
            let (busy, kernel) = (actor.streams[0].busy, actor.typical);
            let reports: Vec<Event> = actor
                .streams
                .iter()
                .map(|stream| Event::Report {
                    tenant,
                    device: crate::DeviceId(stream.device as u32),
                    busy,
                    kernel,
                    in_flight: stream.remaining(now),
                })
                .collect();
            reports.into_iter().for_each(|report| self.tell_agent(report));
        }
        let actor = &mut self.actors[a];
        if !actor.has_work() && actor.is_empty() {
            if actor
                .streams
                .iter()
                .all(|stream| stream.lease.is_none() || over(stream))
            {
                self.give_back(a);
            } else {
                actor.check += 1;
                let (check, at) = (actor.check, now + self.host.early_release);
                self.at(at, Happening::Unused { actor: a, check });
            }
            return;
        }
        for stream in 0..actor.streams.len() {
            let target = &mut self.actors[a].streams[stream];
            if !over(target) {
                if let Some(lease) = target.lease
                    && lease.until != Nanos::MAX
                    && lease.until != target.looks_at
                {
                    target.looks_at = lease.until;
                    self.check_at(a, lease.until);
                }
            } else if !target.queue.is_empty() {
                // The lease has ended: what is still in flight is waited for.
                let in_flight = target.remaining(now);
                if in_flight > target.told_in_flight {
                    target.told_in_flight = in_flight;
                    let (device, busy) = (crate::DeviceId(target.device as u32), target.busy);
                    self.tell_agent(Event::Report {
                        tenant,
                        device,
                        busy,
                        kernel: 0,
                        in_flight,
                    });
                }
            } else {
                target.told_in_flight = 0;
                target.lease = None;
                let (device, busy) = (crate::DeviceId(target.device as u32), target.busy);
                self.actors[a].asked = true;
                self.tell_agent(Event::Released { tenant, device, busy });
            }
        }
    }

    /// A holder had nothing to do for a while.
    pub(super) fn unused(&mut self, a: usize, check: u64) {
        let actor = &self.actors[a];
        let idle = actor.check == check && !actor.has_work() && actor.is_empty();
        if idle && actor.alive && !actor.stopped {
            self.give_back(a);
        }
    }

    fn give_back(&mut self, a: usize) {
        let actor = &mut self.actors[a];
        actor.streams.iter_mut().for_each(|stream| stream.lease = None);
        actor.asked = false;
        self.tell_agent(Event::Idle {
            tenant: TenantId(a as u64),
        });
    }

    /// Has a program look again at this time; of several requests the earliest counts.
    pub(super) fn check_at(&mut self, a: usize, at: Nanos) {
        self.at(at, Happening::Check { actor: a });
    }
}
