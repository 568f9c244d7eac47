//! Devices of one node for one pod's claims, by the rules of the stock allocator: requests in order, devices in the published
//! order, the first that fits, and back where a later request finds none. Which rules were seen on a cluster stands in
//! docs/kubernetes.md, under "What if".

use std::rc::Rc;
use std::sync::Arc;

use crate::cluster::{Ask, Attribute, Capacity, Constraint, Count, Device, Node, Spec};

/// How many devices are looked at for one pod on one node. The stock allocator has a time limit in place of it.
const MOST_LOOKS: u32 = 50_000;

/// In which order devices of a node are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As they are published: the stock order.
    #[default]
    Published,
    /// Those of which most is taken come first: as a driver would publish them for binpack.
    Fullest,
    /// Those of which least is taken come first: for spread.
    Emptiest,
}

/// What is taken of a node's devices.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// By device.
    pub devices: Vec<Use>,
    /// By counter.
    pub counters: Vec<u64>,
}

/// What is taken of a device.
#[derive(Clone, Debug, Default)]
pub struct Use {
    /// How many claims have it.
    pub holders: u32,
    /// By capacity, in the device's order.
    pub consumed: Vec<u64>,
}

/// What a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Which claim of the pod.
    pub claim: usize,
    /// Which request of the claim.
    pub request: usize,
    /// Which of its alternatives.
    pub alternative: usize,
    /// The device's place in the node.
    pub device: usize,
    /// What is consumed of it, in the order of its capacities; empty for one that is not shared.
    pub consumed: Vec<u64>,
    /// Looks only.
    pub admin: bool,
}

impl Taken {
    /// Nothing is taken.
    #[must_use]
    pub fn none(node: &Node) -> Self {
        Self {
            devices: node
                .devices
                .iter()
                .map(|device| Use {
                    holders: 0,
                    consumed: vec![0; device.capacities.len()],
                })
                .collect(),
            counters: vec![0; node.counters.len()],
        }
    }

    /// Takes it.
    pub fn take(&mut self, node: &Node, pick: &Pick) {
        if pick.admin {
            return;
        }
        let used = &mut self.devices[pick.device];
        used.holders += 1;
        for (used, consumed) in used.consumed.iter_mut().zip(&pick.consumed) {
            *used = used.saturating_add(*consumed);
        }
        // The first holder takes the counters, and the last gives them back.
        if used.holders == 1 {
            for (counter, number) in &node.devices[pick.device].consumes {
                let used = &mut self.counters[*counter as usize];
                *used = used.saturating_add(*number);
            }
        }
    }

    fn give_back(&mut self, node: &Node, pick: &Pick) {
        if pick.admin {
            return;
        }
        let used = &mut self.devices[pick.device];
        used.holders = used.holders.saturating_sub(1);
        for (used, consumed) in used.consumed.iter_mut().zip(&pick.consumed) {
            *used = used.saturating_sub(*consumed);
        }
        if used.holders == 0 {
            for (counter, number) in &node.devices[pick.device].consumes {
                let used = &mut self.counters[*counter as usize];
                *used = used.saturating_sub(*number);
            }
        }
    }
}

/// What does not change while a cluster is planned, of one node.
pub struct Look<'a> {
    /// The node.
    pub node: &'a Node,
    /// For each device of the node, whether an expression selects it, by its place in the cluster's list of selectors.
    pub selects: &'a dyn Fn(u32) -> Rc<[bool]>,
    /// Devices in the order to try.
    pub order: Order,
}

/// The devices of the node for these claims, or none. `taken` is as before afterwards.
pub fn allocate(look: &Look<'_>, taken: &mut Taken, specs: &[Arc<Spec>]) -> Option<Vec<Pick>> {
    let mut search = Search {
        look,
        taken,
        specs,
        picks: Vec::new(),
        looks: 0,
    };
    let found = search.request(0, 0);
    let picks = std::mem::take(&mut search.picks);
    for pick in picks.iter().rev() {
        search.taken.give_back(look.node, pick);
    }
    found.then_some(picks)
}

/// Where a search is: claim, request and alternative.
type At = (usize, usize, usize);

struct Search<'a> {
    look: &'a Look<'a>,
    taken: &'a mut Taken,
    specs: &'a [Arc<Spec>],
    picks: Vec<Pick>,
    looks: u32,
}

impl Search<'_> {
    /// From this request on; picks stay where it fits.
    fn request(&mut self, claim: usize, request: usize) -> bool {
        let specs = self.specs;
        let Some(spec) = specs.get(claim) else { return true };
        let Some(asked) = spec.requests.get(request) else {
            return self.request(claim + 1, 0);
        };
        let mut alternatives = asked.alternatives.iter().enumerate();
        alternatives.any(|(alternative, ask)| match ask.count {
            Count::Exactly(count) => self.devices((claim, request, alternative), ask, count),
            Count::All => {
                let all = self.matching(ask);
                let before = self.picks.len();
                let fits = !all.is_empty()
                    && all
                        .iter()
                        .all(|device| self.take((claim, request, alternative), ask, *device))
                    && self.request(claim, request + 1);
                if !fits {
                    self.back_to(before);
                }
                fits
            }
        })
    }

    fn devices(&mut self, at: At, ask: &Ask, missing: u32) -> bool {
        if missing == 0 {
            return self.request(at.0, at.1 + 1);
        }
        for device in self.ordered(ask) {
            self.looks += 1;
            if self.looks > MOST_LOOKS {
                return false;
            }
            let before = self.picks.len();
            if self.take(at, ask, device) {
                if self.devices(at, ask, missing - 1) {
                    return true;
                }
                self.back_to(before);
            }
        }
        false
    }

    /// Devices that match, in the order to try.
    fn ordered(&self, ask: &Ask) -> Vec<usize> {
        let share = |device: &usize| {
            let used = &self.taken.devices[*device];
            let capacities = &self.look.node.devices[*device].capacities;
            let shares = capacities.iter().zip(&used.consumed);
            let most = shares.map(|(capacity, used)| used.saturating_mul(1000) / capacity.value.max(1));
            most.max().unwrap_or(0)
        };
        let mut devices = self.matching(ask);
        match self.look.order {
            Order::Published => {}
            Order::Fullest => devices.sort_by_key(|device| std::cmp::Reverse(share(device))),
            Order::Emptiest => devices.sort_by_key(share),
        }
        devices
    }

    fn matching(&self, ask: &Ask) -> Vec<usize> {
        let tolerated = |device: &usize| {
            let taints = &self.look.node.devices[*device].taints;
            taints
                .iter()
                .filter(|taint| taint.repels())
                .all(|taint| ask.tolerations.iter().any(|one| one.covers(taint)))
        };
        let all = 0..self.look.node.devices.len();
        let mut devices: Vec<usize> = all.filter(tolerated).collect();
        for selector in &ask.selectors {
            let flags = (self.look.selects)(*selector);
            devices.retain(|device| flags[*device]);
        }
        devices
    }

    /// Takes a device for a request, unless there is not enough or a constraint forbids it.
    fn take(&mut self, at: At, ask: &Ask, place: usize) -> bool {
        let (claim, request, alternative) = at;
        // One request never has a device twice.
        let own = |pick: &Pick| (pick.claim, pick.request, pick.device) == (claim, request, place);
        if self.picks.iter().any(own) {
            return false;
        }
        let Some(consumed) = self.consumed(ask, place) else {
            return false;
        };
        let spec = &self.specs[claim];
        let forbidden = |constraint: &Constraint| {
            is_meant(constraint, spec, request, alternative) && !self.constrained(constraint, claim, place)
        };
        if spec.constraints.iter().any(forbidden) {
            return false;
        }
        let pick = Pick {
            claim,
            request,
            alternative,
            device: place,
            consumed,
            admin: ask.admin,
        };
        self.taken.take(self.look.node, &pick);
        self.picks.push(pick);
        true
    }

    /// What is consumed where there is enough of everything.
    fn consumed(&self, ask: &Ask, place: usize) -> Option<Vec<u64>> {
        let device = &self.look.node.devices[place];
        let used = &self.taken.devices[place];
        if ask.admin {
            return Some(Vec::new());
        }
        if !device.shared && used.holders > 0 || used.holders == 0 && !self.counters_allow(device) {
            return None;
        }
        let asked = |capacity: &Capacity| {
            let found = ask
                .capacity
                .iter()
                .find(|(asked, _)| device.is_meant(capacity, asked));
            found.map(|(_, number)| *number)
        };
        if !device.shared {
            let fits = device
                .capacities
                .iter()
                .all(|one| asked(one).is_none_or(|asked| asked <= one.value));
            return (fits && has_all(device, ask)).then(Vec::new);
        }
        let consumes = |(capacity, used): (&Capacity, &u64)| {
            let consumes = capacity.consumes(asked(capacity))?;
            let room = capacity.value.checked_sub(*used)?;
            (consumes <= room).then_some(consumes)
        };
        // Most devices have no room: a list is made for those that have.
        let capacities = device.capacities.iter().zip(&used.consumed);
        if !capacities.clone().all(|one| consumes(one).is_some()) || !has_all(device, ask) {
            return None;
        }
        capacities.map(consumes).collect()
    }

    fn counters_allow(&self, device: &Device) -> bool {
        let mut consumes = device.consumes.iter();
        consumes.all(|(counter, number)| {
            let place = *counter as usize;
            let (has, used) = (self.look.node.counters[place], self.taken.counters[place]);
            used.checked_add(*number).is_some_and(|all| all <= has)
        })
    }

    fn constrained(&self, constraint: &Constraint, claim: usize, place: usize) -> bool {
        let of = |device: usize| -> Option<&Attribute> {
            self.look.node.devices[device].attribute(&constraint.attribute)
        };
        let Some(own) = of(place) else { return false };
        let spec = &self.specs[claim];
        let mut others = self
            .picks
            .iter()
            .filter(|pick| pick.claim == claim && is_meant(constraint, spec, pick.request, pick.alternative));
        others.all(|pick| (of(pick.device) == Some(own)) != constraint.distinct)
    }

    fn back_to(&mut self, before: usize) {
        while self.picks.len() > before {
            if let Some(pick) = self.picks.pop() {
                self.taken.give_back(self.look.node, &pick);
            }
        }
    }
}

/// Whether the device has each capacity that is asked for.
fn has_all(device: &Device, ask: &Ask) -> bool {
    let has = |name: &str| device.capacities.iter().any(|one| device.is_meant(one, name));
    ask.capacity.iter().all(|(name, _)| has(name))
}

/// Whether a constraint is about a request. It names `request`, or with `firstAvailable` also `request/subrequest`.
fn is_meant(constraint: &Constraint, spec: &Spec, request: usize, alternative: usize) -> bool {
    let request = &spec.requests[request];
    let sub = &request.alternatives[alternative].name;
    let is_one = |named: &String| {
        let rest = named.strip_prefix(request.name.as_str());
        rest.is_some_and(|rest| rest.is_empty() || !sub.is_empty() && rest.strip_prefix('/') == Some(sub))
    };
    constraint.requests.is_empty() || constraint.requests.iter().any(is_one)
}
