//! The state of a play, and the queue of what will happen.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::device::Engine;
use super::program::Program;
use super::scenario::{Host, Sharing, Turn};
use crate::{Arbiter, Decision, DeviceId, Event, Nanos, Refused, Terms};

/// Something that happens at a time.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    Arrive { actor: usize },
    Turn { actor: usize, turn: Turn },
    Gone { actor: usize },
    Work { actor: usize },
    Check { actor: usize },
    Unused { actor: usize, check: u64 },
    Done { device: usize, serial: u64 },
    Agent(Event),
    Told(Decision),
    Alarm,
}

/// A happening at its time. Of those at one time, the first that was planned comes first.
#[derive(Debug)]
pub(super) struct Entry(pub Nanos, pub u64, pub Happening);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

pub(super) struct World {
    pub now: Nanos,
    pub queue: BinaryHeap<Reverse<Entry>>,
    pub number: u64,
    pub sharing: Sharing,
    pub host: Host,
    pub bin: Nanos,
    pub engines: Vec<Engine>,
    pub actors: Vec<Program>,
    pub terms: Vec<Terms>,
    pub devices_of: Vec<Vec<DeviceId>>,
    pub arbiter: Arbiter,
    pub alarm: Option<Nanos>,
    /// How far the clocks of all are ahead of the play's.
    pub leap: Nanos,
    pub events: u64,
    pub timed: bool,
    /// Time spent in the arbiter, on the real clock.
    pub spent: Duration,
    pub incidents: Vec<(Nanos, Decision)>,
    pub refusals: Vec<Refused>,
}

impl World {
    pub fn at(&mut self, at: Nanos, what: Happening) {
        self.number += 1;
        self.queue.push(Reverse(Entry(at, self.number, what)));
    }
}
