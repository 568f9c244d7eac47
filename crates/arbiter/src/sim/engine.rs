//! How a device of the model runs what is in flight: one kernel at a time.

use super::device::{Running, Work};
use super::scenario::Sharing;
use super::world::{Happening, World};
use crate::{MILLISECOND, Nanos};

/// Two actors' work that overlaps for less is a change of holder.
const OVERLAP: Nanos = MILLISECOND;

impl World {
    /// A kernel joins what is in flight.
    pub(super) fn enqueue(&mut self, actor: usize, stream: usize, work: Work) {
        let target = &mut self.actors[actor].streams[stream];
        target.queue.push_back(work);
        let (d, alone) = (target.device, target.queue.len() == 1);
        if alone || self.slicing().is_none() {
            self.engines[d].order.push_back((actor, stream));
        }
        // Turns begin when a second actor has work.
        let uncut = matches!(self.sharing, Sharing::Leases(_)) && self.slicing().is_some();
        if uncut
            && self.engines[d]
                .running
                .is_some_and(|running| running.actor != actor)
            && let Some(running) = self.account(d)
        {
            self.engines[d].order.push_front((running.actor, running.stream));
        }
        if self.engines[d].running.is_none() {
            self.start(d);
        }
        self.note_overlap(d);
    }

    /// The length of the hardware's slices, and what a change of process costs, where actors run in turns.
    fn slicing(&self) -> Option<(Nanos, Nanos)> {
        match self.sharing {
            Sharing::TimeSlicing { slice, switch } => Some((slice, switch)),
            Sharing::Leases(_) => self.host.slice.map(|slice| (slice, 0)),
            Sharing::Fifo { .. } => None,
        }
    }

    /// Looks whether the work of two best-effort actors is in flight.
    fn note_overlap(&mut self, d: usize) {
        if !matches!(self.sharing, Sharing::Leases(_)) {
            return;
        }
        let terms = &self.terms;
        let engine = &mut self.engines[d];
        let running = engine.running.map(|running| running.actor);
        let in_flight = engine.order.iter().map(|&(actor, _)| actor).chain(running);
        let mut best_effort = in_flight.filter(|&actor| !terms[actor].is_latency());
        let first = best_effort.next();
        let both = first.is_some_and(|first| best_effort.any(|actor| actor != first));
        match (both, engine.overlaps_since) {
            (true, None) => engine.overlaps_since = Some(self.now),
            (false, Some(since)) => {
                engine.overlaps_since = None;
                if self.now - since > OVERLAP {
                    engine.overlaps.push((since, self.now));
                }
            }
            _ => {}
        }
    }

    fn start(&mut self, d: usize) {
        let (now, slicing) = (self.now, self.slicing());
        let uncut = matches!(self.sharing, Sharing::Leases(_));
        while let Some((actor, stream)) = self.engines[d].order.pop_front() {
            let Some(&work) = self.actors[actor].streams[stream].queue.front() else {
                continue; // Killed meanwhile.
            };
            let engine = &mut self.engines[d];
            let mut from = work.ready.max(now);
            let mut length = work.left;
            if let Some((slice, switch)) = slicing {
                if engine.last.is_some_and(|last| last != actor) {
                    from = from.max(now + switch);
                }
                // Alone, too: another actor may come.
                if !(uncut && engine.order.is_empty()) {
                    length = length.min(slice);
                }
            }
            let waited_from = engine.idle_since.max(engine.wanting_since);
            if engine.wanting > 0 {
                engine.idle_while_wanted += from.saturating_sub(waited_from);
            }
            engine.last = Some(actor);
            engine.serial += 1;
            engine.running = Some(Running { actor, stream, from });
            let serial = engine.serial;
            let target = &mut self.actors[actor].streams[stream];
            target.started = Some(from);
            target.began.get_or_insert(from);
            if length != Nanos::MAX {
                self.at(from + length, Happening::Done { device: d, serial });
            }
            return;
        }
    }

    /// The running kernel, or its slice, is over.
    pub(super) fn done(&mut self, d: usize, serial: u64) {
        if self.engines[d].serial != serial {
            return;
        }
        let Some(running) = self.account(d) else { return };
        let Running { actor, stream, .. } = running;
        let target = &mut self.actors[actor].streams[stream];
        let finished = target.queue.front().is_some_and(|work| work.left == 0);
        let began = target.began;
        let mut over = None;
        if finished {
            over = target.queue.pop_front();
            target.began = None;
            target.completed += 1;
        }
        if !target.queue.is_empty() && self.slicing().is_some() {
            self.engines[d].order.push_back((actor, stream));
        }
        self.start(d);
        self.note_overlap(d);
        if let Some(work) = over {
            let took = self.now - began.unwrap_or(self.now);
            self.actors[actor].learnt.learn(work.kind, took);
            self.completed(actor, stream);
        }
    }

    /// Writes down what the running kernel has run, and takes it off the engine.
    fn account(&mut self, d: usize) -> Option<Running> {
        let now = self.now;
        let engine = &mut self.engines[d];
        let running = engine.running.take()?;
        engine.idle_since = now;
        let from = running.from.min(now);
        engine.busy += now - from;
        let target = &mut self.actors[running.actor].streams[running.stream];
        target.started = None;
        target.busy += now - from;
        if let Some(work) = target.queue.front_mut() {
            if work.left != Nanos::MAX {
                work.left = work.left.saturating_sub(now - from);
            }
            work.estimate = work.estimate.saturating_sub(now - from);
        }
        self.actors[running.actor].record(from, now, self.bin);
        Some(running)
    }

    /// A process's contexts are torn down: nothing of it is in flight any more.
    pub(super) fn tear_down(&mut self, actor: usize) {
        for stream in 0..self.actors[actor].streams.len() {
            let d = self.actors[actor].streams[stream].device;
            if self.engines[d]
                .running
                .is_some_and(|running| running.actor == actor && running.stream == stream)
            {
                self.account(d);
                self.engines[d].serial += 1;
            }
            self.actors[actor].streams[stream].queue.clear();
            self.engines[d].order.retain(|&(who, _)| who != actor);
            if self.engines[d].running.is_none() {
                self.start(d);
            }
            self.note_overlap(d);
        }
    }

    /// Writes down what is running at the end of the play.
    pub(super) fn account_all(&mut self) {
        for d in 0..self.engines.len() {
            self.account(d);
        }
    }

    /// An actor begins or ceases to want a device.
    pub(super) fn want(&mut self, actor: usize, wants: bool) {
        if self.actors[actor].wants == wants {
            return;
        }
        self.actors[actor].wants = wants;
        for stream in 0..self.actors[actor].streams.len() {
            let d = self.actors[actor].streams[stream].device;
            let (now, engine) = (self.now, &mut self.engines[d]);
            if wants {
                if engine.wanting == 0 {
                    engine.wanting_since = now;
                }
                engine.wanting += 1;
            } else {
                engine.wanting -= 1;
                if engine.wanting == 0 && engine.running.is_none() {
                    let from = engine.idle_since.max(engine.wanting_since);
                    engine.idle_while_wanted += now.saturating_sub(from);
                }
            }
        }
    }
}
