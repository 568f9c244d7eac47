//! The play itself: one happening after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::device::Engine;
use super::outcome::Outcome;
use super::program::Program;
use super::random::Random;
use super::scenario::{Scenario, Sharing};
use super::world::{Entry, Happening, World};
use crate::{Arbiter, Settings};

impl World {
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
