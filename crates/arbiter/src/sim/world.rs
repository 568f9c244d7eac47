//! The play itself: a queue of happenings.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::engine::Engine;
use super::gate::Program;
use super::outcome::Outcome;
use super::random::Random;
use super::scenario::{Host, Scenario, Sharing, Turn};
use crate::{Arbiter, Decision, DeviceId, Event, Nanos, Refused, Settings, Terms};

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

#[derive(Debug)]
struct Entry(Nanos, u64, Happening);

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
    queue: BinaryHeap<Reverse<Entry>>,
    number: u64,
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

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrive { actor } => self.arrive(actor),
            Happening::Turn { actor, turn } => self.turn(actor, &turn),
            Happening::Gone { actor } => self.gone(actor),
            Happening::Work { actor } => self.work(actor),
            Happening::Check { actor } => self.check(actor),
            Happening::Unused { actor, check } => self.unused(actor, check),
            Happening::Done { device, serial } => self.done(device, serial),
            Happening::Agent(event) => self.agent(&event),
            Happening::Told(decision) => self.told(decision),
            Happening::Alarm => self.ring_alarm(),
        }
    }
}

/// Plays a scenario to its end.
pub fn run(scenario: &Scenario) -> Outcome {
    play(scenario, false)
}

/// Plays a scenario and measures on the real clock what the arbiter costs.
pub fn run_timed(scenario: &Scenario) -> Outcome {
    play(scenario, true)
}

fn play(scenario: &Scenario, timed: bool) -> Outcome {
    let settings = match &scenario.sharing {
        Sharing::Leases(settings) => settings.clone(),
        _ => Settings::default(),
    };
    let actors = scenario.actors.iter().enumerate().map(|(n, actor)| {
        let devices = actor.devices.iter().map(|device| device.0 as usize);
        let seed = scenario.seed.wrapping_mul(1_000_003).wrapping_add(n as u64);
        Program::new(actor.load.clone(), devices, Random::new(seed))
    });
    let mut world = World {
        now: 0,
        queue: BinaryHeap::new(),
        number: 0,
        sharing: scenario.sharing.clone(),
        host: scenario.host.clone(),
        bin: scenario.bin,
        engines: (0..scenario.devices).map(|_| Engine::default()).collect(),
        actors: actors.collect(),
        terms: scenario.actors.iter().map(|actor| actor.terms).collect(),
        devices_of: scenario
            .actors
            .iter()
            .map(|actor| actor.devices.clone())
            .collect(),
        arbiter: Arbiter::new(settings, scenario.devices),
        alarm: None,
        leap: 0,
        events: 0,
        timed,
        spent: Duration::ZERO,
        incidents: Vec::new(),
        refusals: Vec::new(),
    };
    for (n, actor) in scenario.actors.iter().enumerate() {
        world.at(actor.starts, Happening::Arrive { actor: n });
    }
    for step in &scenario.steps {
        let (actor, turn) = (step.actor, step.turn.clone());
        world.at(step.at, Happening::Turn { actor, turn });
    }
    while let Some(Reverse(Entry(at, _, what))) = world.queue.pop() {
        if at > scenario.lasts {
            break;
        }
        world.now = at;
        world.happen(what);
    }
    world.now = scenario.lasts;
    world.account_all();
    Outcome::of(world, scenario)
}
