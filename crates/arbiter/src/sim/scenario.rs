//! What is to be played: devices, programs, what happens to them, and how slow the host is.

use super::load::Load;
use crate::{DeviceId, MICROSECOND, MILLISECOND, Nanos, SECOND, Settings, Terms};

/// How the devices are shared.
#[derive(Clone, Debug)]
pub enum Sharing {
    /// By this crate's arbiter.
    Leases(Settings),
    /// By the hardware, a slice for each process in turn, kernels interrupted.
    TimeSlicing {
        /// Length of a slice.
        slice: Nanos,
        /// What a change of process costs.
        switch: Nanos,
    },
    /// Not at all: kernels run in the order in which they were launched.
    Fifo {
        /// Kernels that a greedy program keeps in flight.
        depth: usize,
    },
}

impl Sharing {
    /// The arbiter, as it is set by default.
    pub fn leases() -> Self {
        Self::Leases(Settings::default())
    }

    /// Hardware time-slicing as measured on an A100: two tenants get 92 % of what one gets.
    pub fn hardware() -> Self {
        Self::TimeSlicing {
            slice: 2 * MILLISECOND,
            switch: 160 * MICROSECOND,
        }
    }
}

/// A tenant and its program.
#[derive(Clone, Debug)]
pub struct Actor {
    /// What it is promised.
    pub terms: Terms,
    /// What it does.
    pub load: Load,
    /// Its devices.
    pub devices: Vec<DeviceId>,
    /// When it arrives.
    pub starts: Nanos,
}

impl Actor {
    /// On the first device from the beginning.
    pub fn new(terms: Terms, load: Load) -> Self {
        Self {
            terms,
            load,
            devices: vec![DeviceId(0)],
            starts: 0,
        }
    }

    /// The same on these devices.
    #[must_use]
    pub fn on(mut self, devices: impl IntoIterator<Item = u32>) -> Self {
        self.devices = devices.into_iter().map(DeviceId).collect();
        self
    }

    /// The same from then on.
    #[must_use]
    pub fn from(mut self, starts: Nanos) -> Self {
        self.starts = starts;
        self
    }
}

/// Something that happens to an actor, numbered as in [`Scenario::actors`].
#[derive(Clone, Debug)]
pub struct Step {
    /// The time.
    pub at: Nanos,
    /// The actor.
    pub actor: usize,
    /// The action.
    pub turn: Turn,
}

/// What may happen to an actor.
#[derive(Clone, Debug)]
pub enum Turn {
    /// It has other terms.
    Resize(Terms),
    /// SIGKILL: what runs ends or is cut off, what waits is gone, and the agent learns of it.
    Kill,
    /// SIGSTOP: it launches and says nothing more; what is in flight runs on.
    Stop,
    /// SIGCONT.
    Continue,
    /// Every clock leaps ahead by this. The actor does not matter.
    Leap(Nanos),
}

/// How late things are on the host.
#[derive(Clone, Debug)]
pub struct Host {
    /// From a program to the agent or back: a futex and a change of thread.
    pub hop: Nanos,
    /// How late the agent's alarm is.
    pub alarm: Nanos,
    /// From a launch to its start on an idle device.
    pub launch: Nanos,
    /// How late a gate notices that something ended, or wakes.
    pub notice: Nanos,
    /// A holder without anything to do releases after this.
    pub early_release: Nanos,
    /// From a kill to the end of the process's contexts.
    pub teardown: Nanos,
    /// How wrong a gate's estimate of a kernel may be, parts in a hundred either way.
    pub estimate_error: u64,
    /// Gates know no lengths at first, and learn them from launches; the error of estimates does not matter then.
    pub learns: bool,
    /// With leases, work of several actors that is in flight at once runs in slices of this length, each actor's in
    /// turn. `None`: in the order of launches.
    pub slice: Option<Nanos>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            hop: 10 * MICROSECOND,
            alarm: 20 * MICROSECOND,
            launch: 5 * MICROSECOND,
            notice: 5 * MICROSECOND,
            early_release: 100 * MICROSECOND,
            teardown: 10 * MILLISECOND,
            estimate_error: 10,
            learns: false,
            slice: None,
        }
    }
}

/// A play.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// How the devices are shared.
    pub sharing: Sharing,
    /// How many devices there are.
    pub devices: u32,
    /// The actors that take part.
    pub actors: Vec<Actor>,
    /// What happens.
    pub steps: Vec<Step>,
    /// How slow the host is.
    pub host: Host,
    /// For how long it is played.
    pub lasts: Nanos,
    /// Use is recorded in bins of this width.
    pub bin: Nanos,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Scenario {
    /// One device for ten seconds, recorded by the millisecond.
    pub fn new(sharing: Sharing, actors: Vec<Actor>) -> Self {
        Self {
            sharing,
            devices: 1,
            actors,
            steps: Vec::new(),
            host: Host::default(),
            lasts: 10 * SECOND,
            bin: MILLISECOND,
            seed: 1,
        }
    }
}
