//! A device of the model: runs what is in flight, one kernel at a time.

use std::collections::VecDeque;

use super::scenario::Sharing;
use super::world::{Happening, World};
use crate::Nanos;

/// A kernel in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Nanoseconds still to run; [`Nanos::MAX`] for one that never ends.
    pub left: Nanos,
    /// The gate's estimate of its length.
    pub estimate: Nanos,
    /// It cannot start before.
    pub ready: Nanos,
}

#[derive(Debug, Default)]
pub(super) struct Engine {
    /// Streams with work, in their order: once for each kernel, or once for each stream under time-slicing.
    order: VecDeque<(usize, usize)>,
    running: Option<Running>,
    serial: u64,
    last: Option<usize>,
    idle_since: Nanos,
    /// Actors that want to use the device, and since when there are any.
    wanting: u32,
    wanting_since: Nanos,
    pub busy: Nanos,
    pub idle_while_wanted: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    actor: usize,
    stream: usize,
    from: Nanos,
}

impl World {
    /// A kernel joins what is in flight.
    pub(super) fn enqueue(&mut self, actor: usize, stream: usize, work: Work) {
        let target = &mut self.actors[actor].streams[stream];
        target.queue.push_back(work);
        let (d, alone) = (target.device, target.queue.len() == 1);
        if alone || !matches!(self.sharing, Sharing::TimeSlicing { .. }) {
            self.engines[d].order.push_back((actor, stream));
        }
        if self.engines[d].running.is_none() {
            self.start(d);
        }
    }

    fn start(&mut self, d: usize) {
        let now = self.now;
        while let Some((actor, stream)) = self.engines[d].order.pop_front() {
            let Some(&work) = self.actors[actor].streams[stream].queue.front() else {
                continue; // Killed meanwhile.
            };
            let engine = &mut self.engines[d];
            let mut from = work.ready.max(now);
            let mut length = work.left;
            if let Sharing::TimeSlicing { slice, switch } = self.sharing {
                if engine.last.is_some_and(|last| last != actor) {
                    from = from.max(now + switch);
                }
                // Alone, too: another actor may come.
                length = length.min(slice);
            }
            let waited_from = engine.idle_since.max(engine.wanting_since);
            if engine.wanting > 0 {
                engine.idle_while_wanted += from.saturating_sub(waited_from);
            }
            engine.last = Some(actor);
            engine.serial += 1;
            engine.running = Some(Running { actor, stream, from });
            let serial = engine.serial;
            self.actors[actor].streams[stream].started = Some(from);
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
        if finished {
            target.queue.pop_front();
            target.completed += 1;
        }
        if matches!(self.sharing, Sharing::TimeSlicing { .. }) && !target.queue.is_empty() {
            self.engines[d].order.push_back((actor, stream));
        }
        self.start(d);
        if finished {
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
            if self.engines[d].running.is_none() {
                self.start(d);
            }
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
