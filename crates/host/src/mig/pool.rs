//! Many instances over many devices.
//!
//! For a few requests every distribution is tried. Many requests are placed one after another, the largest first, each
//! on the device where it costs the fewest instances and leaves the least space over. Each device by itself is always
//! laid out in the best way.

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
    /// profile, or where there are more requests than devices.
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
    let wanted = Wanted::of(devices, requests);
    let rooms: Vec<Rc<Rooms>> = rooms(devices);
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|request| std::cmp::Reverse(wanted.sizes[wanted.name_of[*request]]));
    let distributions = (devices.len() as u64).checked_pow(u32::try_from(requests.len()).unwrap_or(u32::MAX));
    let assigned = match distributions {
        Some(few) if few <= TRIED => exhaustive(&wanted, &rooms, &order),
        _ => greedy(&wanted, &rooms, &order),
    };
    let mut needs: Vec<Need> = vec![0; devices.len()];
    for (request, device) in assigned.iter().enumerate() {
        let Some(device) = *device else { continue };
        if let Some(need) = wanted.with(needs[device], request, device) {
            needs[device] = need;
        }
    }
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
    // The reason why a request finds no place is the same for all of its name.
    let mut told: Vec<Option<Unplaced>> = vec![None; wanted.profiles.len()];
    for (request, _) in requests
        .iter()
        .enumerate()
        .filter(|(at, _)| assigned[*at].is_none())
    {
        let name = wanted.name_of[request];
        let why = told[name]
            .get_or_insert_with(|| unplaced(devices, &needs, &requests[request], &wanted.profiles[name]));
        plan.unplaced.push(why.clone());
    }
    plan
}

/// A need: eight bits for each profile's count, of which the highest stays 0.
type Need = u128;

const LANES: usize = 16;
/// The highest bit of each count.
const GUARDS: Need = 0x8080_8080_8080_8080_8080_8080_8080_8080;

fn add(need: Need, profile: usize) -> Option<Need> {
    (profile < LANES && need >> (8 * profile) & 0xff < 0x7f).then(|| need + (1 << (8 * profile)))
}

/// Whether each count of `room` is at least that of `need`: no borrow reaches a guard.
fn covers(room: Need, need: Need) -> bool {
    ((room | GUARDS) - need) & GUARDS == GUARDS
}

fn goal(shapes: &Shapes, need: Need) -> Goal {
    let count = |profile: usize| match profile < LANES {
        true => (need >> (8 * profile) & 0xff) as u8,
        false => 0,
    };
    Goal {
        counts: (0..shapes.geometry.profiles.len()).map(count).collect(),
        pinned: 0,
        exact: false,
    }
}

/// The requests, each name looked up once.
struct Wanted {
    /// Of each request its name's number.
    name_of: Vec<usize>,
    /// For each name the profile that each device calls so.
    profiles: Vec<Vec<Option<usize>>>,
    /// For each name the most memory slices and compute slices that it takes on any device.
    sizes: Vec<(u8, u8)>,
}

impl Wanted {
    fn of(devices: &[(Rc<Shapes>, Occupancy)], requests: &[String]) -> Self {
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut wanted = Self {
            name_of: Vec::new(),
            profiles: Vec::new(),
            sizes: Vec::new(),
        };
        for name in requests {
            let number = *numbers.entry(name).or_insert_with(|| {
                let profiles: Vec<Option<usize>> = devices
                    .iter()
                    .map(|(shapes, _)| shapes.geometry.profile(name))
                    .collect();
                let sizes = devices
                    .iter()
                    .zip(&profiles)
                    .filter_map(|((shapes, _), profile)| {
                        let kind = &shapes.geometry.profiles[(*profile)?];
                        Some((kind.size, kind.compute_slices))
                    });
                wanted.sizes.push(sizes.max().unwrap_or_default());
                wanted.profiles.push(profiles);
                wanted.profiles.len() - 1
            });
            wanted.name_of.push(number);
        }
        wanted
    }

    /// A device's need with one request more.
    fn with(&self, need: Need, request: usize, device: usize) -> Option<Need> {
        self.profiles[self.name_of[request]][device].and_then(|profile| add(need, profile))
    }
}

/// What a device can hold beside its tenants: of each maximal layout that leaves them alone how many of each profile, and
/// how many free instances stay. The most stay in the first.
struct Rooms {
    layouts: Vec<(u32, Need)>,
    free: u32,
    /// Memory slices that the tenants leave, and what an instance of each profile takes.
    slices: i32,
    sizes: Vec<u8>,
}

impl Rooms {
    fn of(shapes: &Shapes, now: Occupancy) -> Self {
        let free = now.current & !now.occupied;
        let mut layouts: Vec<(u32, Need)> = Vec::new();
        for maximal in shapes
            .maximal
            .iter()
            .filter(|one| *one & now.occupied == now.occupied)
        {
            let mut counts = 0;
            for place in shapes.held(maximal & !now.occupied) {
                counts = add(counts, place.profile).unwrap_or(counts);
            }
            layouts.push(((maximal & free).count_ones(), counts));
        }
        layouts.sort_unstable_by_key(|layout| std::cmp::Reverse(*layout));
        layouts.dedup();
        let profiles = &shapes.geometry.profiles;
        let held = shapes
            .held(now.occupied)
            .map(|place| i32::from(profiles[place.profile].size));
        Self {
            layouts,
            free: free.count_ones(),
            slices: i32::from(shapes.geometry.memory_slices) - held.sum::<i32>(),
            sizes: profiles.iter().map(|profile| profile.size).collect(),
        }
    }

    /// Instances destroyed to meet a need; None where it cannot be met.
    fn cost(&self, need: Need) -> Option<u32> {
        let mut layouts = self.layouts.iter();
        let (kept, _) = layouts.find(|(_, room)| covers(*room, need))?;
        Some(self.free - kept)
    }

    /// Memory slices that a need and the tenants leave over.
    fn left(&self, need: Need) -> i32 {
        let lanes = self.sizes.iter().take(LANES).enumerate();
        let needed = lanes.map(|(profile, size)| (need >> (8 * profile) & 0xff) as i32 * i32::from(*size));
        self.slices - needed.sum::<i32>()
    }
}

/// Devices of the same shape and occupancy have the same space.
fn rooms(devices: &[(Rc<Shapes>, Occupancy)]) -> Vec<Rc<Rooms>> {
    let mut rooms: Vec<Rc<Rooms>> = Vec::new();
    for (device, (shapes, now)) in devices.iter().enumerate() {
        let same = (0..device).find(|other| {
            let (theirs, then) = &devices[*other];
            now == then && (Rc::ptr_eq(shapes, theirs) || shapes.geometry == theirs.geometry)
        });
        rooms.push(match same {
            Some(same) => Rc::clone(&rooms[same]),
            None => Rc::new(Rooms::of(shapes, *now)),
        });
    }
    rooms
}

/// What one more of a name would cost on a device, what it would leave, and the need then.
type Offer = Option<((u32, i32), Need)>;

fn greedy(wanted: &Wanted, rooms: &[Rc<Rooms>], order: &[usize]) -> Vec<Option<usize>> {
    let offer = |name: usize, device: usize, held: Need| -> Offer {
        let need = add(held, wanted.profiles[name][device]?)?;
        let room = &rooms[device];
        let (before, after) = (room.cost(held)?, room.cost(need)?);
        Some(((after.saturating_sub(before), room.left(need)), need))
    };
    let mut needs: Vec<Need> = vec![0; rooms.len()];
    let all = |name: usize| (0..rooms.len()).map(|device| offer(name, device, 0)).collect();
    let mut offers: Vec<Vec<Offer>> = (0..wanted.profiles.len()).map(all).collect();
    let mut assigned = vec![None; order.len()];
    for request in order {
        let offered = offers[wanted.name_of[*request]].iter().enumerate();
        let offered = offered.filter_map(|(device, offer)| offer.map(|(rank, need)| (rank, device, need)));
        let Some((_, device, need)) = offered.min_by_key(|(rank, device, _)| (*rank, *device)) else {
            continue;
        };
        needs[device] = need;
        assigned[*request] = Some(device);
        // Nothing else has changed.
        for (name, offers) in offers.iter_mut().enumerate() {
            offers[device] = offer(name, device, need);
        }
    }
    assigned
}

/// Every distribution: the most requests placed, and of these the fewest instances destroyed.
fn exhaustive(wanted: &Wanted, rooms: &[Rc<Rooms>], order: &[usize]) -> Vec<Option<usize>> {
    struct Search<'a> {
        wanted: &'a Wanted,
        rooms: &'a [Rc<Rooms>],
        order: &'a [usize],
        needs: Vec<Need>,
        assigned: Vec<Option<usize>>,
        best: Option<(usize, u32, Vec<Option<usize>>)>,
    }
    impl Search<'_> {
        fn go(&mut self, at: usize, missed: usize) {
            if self
                .best
                .as_ref()
                .is_some_and(|(fewest, cost, _)| missed > *fewest || (missed == *fewest && *cost == 0))
            {
                return;
            }
            let Some(request) = self.order.get(at).copied() else {
                let devices = self.rooms.iter().zip(&self.needs);
                let cost = devices.filter_map(|(room, need)| room.cost(*need)).sum();
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
                let need = self.wanted.with(before, request, device);
                let Some(need) = need.filter(|need| self.rooms[device].cost(*need).is_some()) else {
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
        needs: vec![0; rooms.len()],
        assigned: vec![None; order.len()],
        wanted,
        rooms,
        order,
        best: None,
    };
    search.go(0, 0);
    search
        .best
        .map_or_else(|| vec![None; order.len()], |(_, _, assigned)| assigned)
}

/// Which tenants stand in the way, where they are fewest.
fn unplaced(
    devices: &[(Rc<Shapes>, Occupancy)],
    needs: &[Need],
    name: &str,
    profiles: &[Option<usize>],
) -> Unplaced {
    let mut fewest: Option<(u32, usize, Layout)> = None;
    for (device, (shapes, now)) in devices.iter().enumerate() {
        let need = profiles[device].and_then(|profile| add(needs[device], profile));
        let Some(need) = need else { continue };
        let counts = goal(shapes, need).counts;
        for maximal in &shapes.maximal {
            // Tenants that lie across this layout, and of those in it as many as take the last of what is wanted.
            let mut away = now.occupied & !maximal;
            let room = counts.iter().enumerate().all(|(profile, wanted)| {
                let held = maximal & shapes.of_profile(profile);
                let free = (held & !now.occupied).count_ones();
                let mut taken = held & now.occupied;
                for _ in free..u32::from(*wanted) {
                    away |= taken & taken.wrapping_neg();
                    taken &= taken.wrapping_sub(1);
                }
                held.count_ones() >= u32::from(*wanted)
            });
            let rank = away.count_ones();
            if room && rank > 0 && fewest.is_none_or(|(least, ..)| rank < least) {
                fewest = Some((rank, device, away));
            }
        }
    }
    Unplaced {
        profile: name.to_owned(),
        blocked_by: fewest.map(|(_, device, away)| (device, away)),
        known: profiles.iter().any(Option::is_some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::Geometry;
    use divvy_model::MigProduct;

    #[test]
    fn a_tenant_of_the_very_instance_is_named() {
        let product = MigProduct::of_key("h100").expect("a product");
        let shapes = Rc::new(Shapes::new(Geometry::from(product)));
        let place = |name: &str, start| {
            let profile = shapes.geometry.profile(name).expect("a profile");
            1 << shapes.place(profile, start).expect("a place")
        };
        let used = |layout: Layout| Occupancy {
            current: layout,
            occupied: layout,
        };
        let why = |now: Occupancy, wanted: &[&str]| {
            let names: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            let plan = plan_pool(&[(Rc::clone(&shapes), now)], &names);
            plan.unplaced.into_iter().next().and_then(|one| one.blocked_by)
        };
        let whole = place("7g.80gb", 0);
        assert_eq!(why(used(whole), &["7g.80gb"]), Some((0, whole)));
        let two = place("3g.40gb", 0) | place("3g.40gb", 4);
        // One of them has to leave, and either will do.
        assert_eq!(
            why(used(two), &["3g.40gb"]).map(|(_, away)| away.count_ones()),
            Some(1)
        );
        assert_eq!(why(used(two), &["7g.80gb"]), Some((0, two)));
        assert_eq!(why(used(whole), &["7g.80gb", "7g.80gb"]), Some((0, whole)));
    }

    #[test]
    fn room_and_cost_are_those_of_the_exact_search() {
        let product = MigProduct::of_key("h100").expect("a product");
        let shapes = Shapes::new(Geometry::from(product));
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for _ in 0..400 {
            let current = shapes.maximal[random() as usize % shapes.maximal.len()] & random();
            let now = Occupancy {
                current,
                occupied: current & random(),
            };
            let rooms = Rooms::of(&shapes, now);
            let mut need = 0;
            for _ in 0..random() % 5 {
                need = add(need, random() as usize % shapes.geometry.profiles.len()).expect("few");
            }
            let exact = best(&shapes, now, &goal(&shapes, need)).map(|chosen| chosen.destroyed);
            assert_eq!(rooms.cost(need), exact, "{now:?} {need:x}");
        }
    }
}
