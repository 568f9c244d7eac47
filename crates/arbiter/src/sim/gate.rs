//! A program's gate: when it launches, and what it tells the agent.

use super::device::Work;
use super::learnt::LONG;
use super::load::Load;
use super::program::{Next, Stream};
use super::scenario::Sharing;
use super::world::{Happening, World};
use crate::{Event, MILLISECOND, Nanos, TenantId};

/// Kernels that a driver takes before a launch blocks.
const DRIVER_QUEUE: usize = 64;
/// How long a gate waits for a launch without a measurement before it lets others follow; another one of the same kind
/// waits for its end.
const ENDLESS: Nanos = 50 * MILLISECOND;
/// What has run for twice its estimate and this is late: nothing is queued behind it.
const LATE: Nanos = 200_000;

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
            if host.learns && self.actors[a].learnt.was_long(next.kind) {
                estimate = estimate.max(LONG);
            }
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
