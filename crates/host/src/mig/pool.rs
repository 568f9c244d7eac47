//! Many instances over many devices.
//!
//! For a few requests every distribution is tried. For many they are placed one after another, the largest first,
//! each on the device where it costs the fewest instances and leaves the least room over; each device by itself is
//! always laid out in the best way.

use std::collections::HashMap;
use std::rc::Rc;

use super::geometry::{Layout, Shapes};
use super::plan::{Goal, Occupancy, best};

/// A device of the pool.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Its shape.
    pub shapes: Rc<Shapes>,
    /// What it holds.
    pub now: Occupancy,
    /// What it is to hold.
    pub layout: Layout,
    /// Instances of now that are not in it.
    pub destroyed: u32,
}

/// A request for which there is no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// The profile.
    pub profile: String,
    /// The device on which the fewest tenants are in the way, and their places there; None where no device has such a
    /// profile, or more requests than devices are the trouble.
    pub blocked_by: Option<(usize, Layout)>,
    /// Whether any device of the pool has such a profile.
    pub known: bool,
}

/// What each device is to hold, and what found no place.
#[derive(Clone, Debug, Default)]
pub struct PoolPlan {
    /// In the order of the devices.
    pub devices: Vec<Placed>,
    /// In the order of the requests.
    pub unplaced: Vec<Unplaced>,
}

/// More distributions than this are not all tried.
const TRIED: u64 = 20_000;

/// Plans instances of these profiles, by name, over devices.
#[must_use]
pub fn plan_pool(devices: &[(Rc<Shapes>, Occupancy)], requests: &[String]) -> PoolPlan {
    let mut costs = Costs::new(devices);
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|request| std::cmp::Reverse(costs.size(&requests[*request])));
    let distributions = (devices.len() as u64).checked_pow(u32::try_from(requests.len()).unwrap_or(u32::MAX));
    let assigned = match distributions {
        Some(few) if few <= TRIED => exhaustive(&mut costs, &order, requests),
        _ => greedy(&mut costs, &order, requests),
    };
    let needs = needs(&costs, &assigned, requests);
    let mut plan = PoolPlan::default();
    for (device, (shapes, now)) in devices.iter().enumerate() {
        let chosen = best(shapes, *now, &goal(shapes, needs[device]));
        plan.devices.push(Placed {
            shapes: Rc::clone(shapes),
            now: *now,
            layout: chosen.map_or(now.current, |chosen| chosen.layout),
            destroyed: chosen.map_or(0, |chosen| chosen.destroyed),
        });
    }
    for (request, name) in requests.iter().enumerate() {
        if assigned[request].is_none() {
            plan.unplaced.push(unplaced(devices, &needs, name));
        }
    }
    plan
}

/// A need: four bits for each profile's count.
type Need = u64;

fn add(need: Need, profile: usize) -> Option<Need> {
    let shift = 4 * u32::try_from(profile).ok()?;
    (shift < 64 && need >> shift & 0xf < 0xf).then(|| need + (1 << shift))
}

fn goal(shapes: &Shapes, need: Need) -> Goal {
    Goal {
        counts: (0..shapes.geometry.profiles.len())
            .map(|profile| (need >> (4 * profile) & 0xf) as u8)
            .collect(),
        pinned: 0,
        exact: false,
    }
}

/// Costs of needs, remembered for each kind of device.
struct Costs<'a> {
    devices: &'a [(Rc<Shapes>, Occupancy)],
    /// Devices of the same shape and occupancy are of one kind.
    kind: Vec<usize>,
    known: HashMap<(usize, Need), Option<u32>>,
    names: HashMap<(usize, String), Option<usize>>,
}

impl<'a> Costs<'a> {
    fn new(devices: &'a [(Rc<Shapes>, Occupancy)]) -> Self {
        let mut kind = Vec::new();
        for (device, (shapes, now)) in devices.iter().enumerate() {
            let same = (0..device).find(|other| {
                let (theirs, then) = &devices[*other];
                now == then && (Rc::ptr_eq(shapes, theirs) || shapes.geometry == theirs.geometry)
            });
            kind.push(same.map_or(device, |same| kind[same]));
        }
        Self {
            devices,
            kind,
            known: HashMap::new(),
            names: HashMap::new(),
        }
    }

    fn profile(&mut self, device: usize, name: &str) -> Option<usize> {
        let key = (self.kind[device], name.to_owned());
        let devices = self.devices;
        *self
            .names
            .entry(key)
            .or_insert_with(|| devices[device].0.geometry.profile(name))
    }

    fn size(&mut self, name: &str) -> (u8, u8) {
        let sizes = (0..self.devices.len()).filter_map(|device| {
            let profile = self.profile(device, name)?;
            let kind = &self.devices[device].0.geometry.profiles[profile];
            Some((kind.size, kind.compute_slices))
        });
        sizes.max().unwrap_or_default()
    }

    /// Instances destroyed to meet a need; None where it cannot be met.
    fn cost(&mut self, device: usize, need: Need) -> Option<u32> {
        let devices = self.devices;
        *self.known.entry((self.kind[device], need)).or_insert_with(|| {
            let (shapes, now) = &devices[device];
            best(shapes, *now, &goal(shapes, need)).map(|chosen| chosen.destroyed)
        })
    }

    /// Memory slices that a need and the tenants leave over.
    fn left(&self, device: usize, need: Need) -> i32 {
        let (shapes, now) = &self.devices[device];
        let held: i32 = shapes
            .held(now.occupied)
            .map(|place| i32::from(shapes.geometry.profiles[place.profile].size))
            .sum();
        let kinds = shapes.geometry.profiles.iter().enumerate();
        let needed: i32 = kinds
            .map(|(profile, kind)| (need >> (4 * profile) & 0xf) as i32 * i32::from(kind.size))
            .sum();
        i32::from(shapes.geometry.memory_slices) - held - needed
    }
}

fn needs(costs: &Costs<'_>, assigned: &[Option<usize>], requests: &[String]) -> Vec<Need> {
    let mut needs = vec![0; costs.devices.len()];
    for (request, device) in assigned.iter().enumerate() {
        let Some(device) = device else { continue };
        let profile = costs.devices[*device].0.geometry.profile(&requests[request]);
        if let Some(need) = profile.and_then(|profile| add(needs[*device], profile)) {
            needs[*device] = need;
        }
    }
    needs
}

fn greedy(costs: &mut Costs<'_>, order: &[usize], requests: &[String]) -> Vec<Option<usize>> {
    let mut needs: Vec<Need> = vec![0; costs.devices.len()];
    let mut assigned = vec![None; requests.len()];
    for request in order {
        let mut found: Option<((u32, i32), usize, Need)> = None;
        for (device, held) in needs.iter().copied().enumerate() {
            let need = costs
                .profile(device, &requests[*request])
                .and_then(|profile| add(held, profile));
            let Some(need) = need else { continue };
            let (Some(before), Some(after)) = (costs.cost(device, held), costs.cost(device, need)) else {
                continue;
            };
            let rank = (after.saturating_sub(before), costs.left(device, need));
            if found.is_none_or(|(best, ..)| rank < best) {
                found = Some((rank, device, need));
            }
        }
        if let Some((_, device, need)) = found {
            needs[device] = need;
            assigned[*request] = Some(device);
        }
    }
    assigned
}

/// Every distribution: the most requests placed, and of these the fewest instances destroyed.
fn exhaustive(costs: &mut Costs<'_>, order: &[usize], requests: &[String]) -> Vec<Option<usize>> {
    struct Search<'c, 'a> {
        costs: &'c mut Costs<'a>,
        order: &'c [usize],
        requests: &'c [String],
        needs: Vec<Need>,
        assigned: Vec<Option<usize>>,
        best: Option<(usize, u32, Vec<Option<usize>>)>,
    }
    impl Search<'_, '_> {
        fn go(&mut self, at: usize, missed: usize) {
            if self
                .best
                .as_ref()
                .is_some_and(|(fewest, cost, _)| missed > *fewest || (missed == *fewest && *cost == 0))
            {
                return;
            }
            let Some(request) = self.order.get(at).copied() else {
                let devices = 0..self.needs.len();
                let cost = devices
                    .filter_map(|device| self.costs.cost(device, self.needs[device]))
                    .sum();
                let better = self
                    .best
                    .as_ref()
                    .is_none_or(|(fewest, least, _)| (missed, cost) < (*fewest, *least));
                if better {
                    self.best = Some((missed, cost, self.assigned.clone()));
                }
                return;
            };
            for device in 0..self.needs.len() {
                let before = self.needs[device];
                let need = self
                    .costs
                    .profile(device, &self.requests[request])
                    .and_then(|profile| add(before, profile));
                let Some(need) = need.filter(|need| self.costs.cost(device, *need).is_some()) else {
                    continue;
                };
                self.needs[device] = need;
                self.assigned[request] = Some(device);
                self.go(at + 1, missed);
                self.needs[device] = before;
                self.assigned[request] = None;
            }
            self.go(at + 1, missed + 1);
        }
    }
    let mut search = Search {
        needs: vec![0; costs.devices.len()],
        assigned: vec![None; requests.len()],
        costs,
        order,
        requests,
        best: None,
    };
    search.go(0, 0);
    search
        .best
        .map_or_else(|| vec![None; requests.len()], |(_, _, assigned)| assigned)
}

/// Which tenants stand in the way, where they are fewest.
fn unplaced(devices: &[(Rc<Shapes>, Occupancy)], needs: &[Need], name: &str) -> Unplaced {
    let mut known = false;
    let mut fewest: Option<(u32, usize, Layout)> = None;
    for (device, (shapes, now)) in devices.iter().enumerate() {
        let Some(profile) = shapes.geometry.profile(name) else {
            continue;
        };
        known = true;
        let Some(need) = add(needs[device], profile) else {
            continue;
        };
        let counts = goal(shapes, need).counts;
        for maximal in &shapes.maximal {
            let stays = maximal & now.occupied;
            let room = counts.iter().enumerate().all(|(profile, wanted)| {
                let own = maximal & shapes.of_profile(profile) & !stays;
                own.count_ones() >= u32::from(*wanted)
            });
            let away = now.occupied & !maximal;
            let rank = away.count_ones();
            if room && rank > 0 && fewest.is_none_or(|(least, ..)| rank < least) {
                fewest = Some((rank, device, away));
            }
        }
    }
    Unplaced {
        profile: name.to_owned(),
        blocked_by: fewest.map(|(_, device, away)| (device, away)),
        known,
    }
}
