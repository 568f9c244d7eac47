//! MIG: the planner against brute force, and changes against a driver that can refuse.

use std::rc::Rc;

use divvy_host::mig::{
    Change, ComputeInstance, Geometry, Goal, GpuInstance, Layout, MigDevice, MigDriver, MigFile, NewInstance,
    Occupancy, Shapes, Strategy, Target, Tenant, apply, best, occupancy, parse_list, plan_devices, plan_pool,
    resources, targets,
};
use divvy_model::{Code, Fault, MigProduct, compute_starts};

fn geometry(key: &str) -> Geometry {
    Geometry::from(MigProduct::of_key(key).expect("a product"))
}

/// A product's kinds without media engines and double memory: what `3g` and its like mean to people.
fn plain(key: &str) -> Geometry {
    let mut geometry = geometry(key);
    geometry
        .profiles
        .retain(|profile| !profile.name.contains('+') && (profile.compute_slices > 1 || profile.size == 1));
    geometry
}

/// Brute force, on its own terms: every way of placing `counts` one instance after another beside those that stay
/// fixed; the fewest of `free` that are not used again.
fn brute(
    geometry: &Geometry,
    fixed: &[(usize, u8)],
    free: &[(usize, u8)],
    counts: &[u8],
    exact: bool,
) -> Option<u32> {
    fn overlaps(geometry: &Geometry, a: (usize, u8), b: (usize, u8)) -> bool {
        let end = |(profile, start): (usize, u8)| start + geometry.profiles[profile].size;
        a.1 < end(b) && b.1 < end(a)
    }
    fn legal(geometry: &Geometry, held: &[(usize, u8)]) -> bool {
        let compute: u32 = held
            .iter()
            .map(|(profile, _)| u32::from(geometry.profiles[*profile].compute_slices))
            .sum();
        let most = geometry.profiles.iter().enumerate().all(|(at, profile)| {
            held.iter().filter(|(kind, _)| *kind == at).count() <= usize::from(profile.max)
        });
        compute <= u32::from(geometry.compute_slices) && most
    }
    struct Brute<'a> {
        geometry: &'a Geometry,
        free: &'a [(usize, u8)],
        exact: bool,
        best: Option<u32>,
    }
    impl Brute<'_> {
        fn go(&mut self, held: &mut Vec<(usize, u8)>, rest: &[usize], not_before: u8) {
            let Some((profile, later)) = rest.split_first() else {
                let lost = self.free.iter().filter(|one| !held.contains(one));
                let lost = if self.exact {
                    lost.count()
                } else {
                    // The others may stay where they are not in the way: the largest part of them that fits.
                    let others: Vec<_> = lost.copied().collect();
                    let fits = (0_u32..1 << others.len()).filter(|part| {
                        let mut all = held.clone();
                        all.extend(
                            others
                                .iter()
                                .enumerate()
                                .filter(|(at, _)| part >> at & 1 == 1)
                                .map(|(_, one)| *one),
                        );
                        let apart =
                            (0..all.len()).all(|a| (0..a).all(|b| !overlaps(self.geometry, all[a], all[b])));
                        apart && legal(self.geometry, &all)
                    });
                    others.len() - fits.map(u32::count_ones).max().unwrap_or(0) as usize
                } as u32;
                self.best = Some(self.best.map_or(lost, |best| best.min(lost)));
                return;
            };
            for start in &self.geometry.profiles[*profile].starts {
                let one = (*profile, *start);
                if *start < not_before || held.iter().any(|other| overlaps(self.geometry, one, *other)) {
                    continue;
                }
                held.push(one);
                if legal(self.geometry, held) {
                    let next = if later.first() == Some(profile) { *start } else { 0 };
                    self.go(held, later, next);
                }
                held.pop();
            }
        }
    }
    let mut rest = Vec::new();
    for (profile, count) in counts.iter().enumerate() {
        let there = fixed.iter().filter(|(kind, _)| *kind == profile).count();
        let count = if exact {
            usize::from(*count).checked_sub(there)?
        } else {
            usize::from(*count)
        };
        rest.extend(std::iter::repeat_n(profile, count));
    }
    let mut search = Brute {
        geometry,
        free,
        exact,
        best: None,
    };
    search.go(&mut fixed.to_vec(), &rest, 0);
    search.best
}

/// Every request of up to `most` instances.
fn requests(kinds: usize, most: u8) -> Vec<Vec<u8>> {
    fn go(at: usize, left: u8, counts: &mut Vec<u8>, into: &mut Vec<Vec<u8>>) {
        if at == counts.len() {
            into.push(counts.clone());
            return;
        }
        for count in 0..=left {
            counts[at] = count;
            go(at + 1, left - count, counts, into);
        }
        counts[at] = 0;
    }
    let mut into = Vec::new();
    go(0, most, &mut vec![0; kinds], &mut into);
    into
}

/// Profiles and where each begins.
type Listed = Vec<(usize, u8)>;

/// Parts of maximal layouts, as real devices hold them after some have ended: a few, the same each time.
fn states(shapes: &Shapes, count: usize) -> Vec<(Occupancy, Listed, Listed)> {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut states = vec![(Occupancy::default(), Vec::new(), Vec::new())];
    while states.len() < count {
        let maximal = shapes.maximal[next() as usize % shapes.maximal.len()];
        let current = maximal & (next() | next());
        let occupied = current & next() & next();
        let listed = |layout: Layout| {
            let held = shapes.held(layout);
            held.map(|place| (place.profile, place.start)).collect::<Vec<_>>()
        };
        states.push((
            Occupancy { current, occupied },
            listed(occupied),
            listed(current & !occupied),
        ));
    }
    states
}

#[test]
fn no_plan_is_worse_than_the_best_there_is() {
    for key in ["a100-40gb", "h100"] {
        let geometry = plain(key);
        let shapes = Shapes::new(geometry.clone());
        let mut planned = 0;
        for (now, fixed, free) in states(&shapes, 40) {
            for counts in requests(geometry.profiles.len(), 7) {
                for exact in [true, false] {
                    let goal = Goal {
                        counts: counts.clone(),
                        pinned: 0,
                        exact,
                    };
                    let ours = best(&shapes, now, &goal);
                    let theirs = brute(&geometry, &fixed, &free, &counts, exact);
                    let cost = ours.map(|chosen| chosen.destroyed);
                    assert_eq!(cost, theirs, "{key} {counts:?} exact {exact} {fixed:?} {free:?}");
                    let Some(chosen) = ours else { continue };
                    planned += 1;
                    // The layout is legal, holds the tenants, and costs what it says.
                    assert!(shapes.maximal.iter().any(|maximal| chosen.layout & !maximal == 0));
                    assert_eq!(chosen.layout & now.occupied, now.occupied);
                    assert_eq!((now.current & !chosen.layout).count_ones(), chosen.destroyed);
                    for (profile, wanted) in counts.iter().enumerate() {
                        let held = (chosen.layout & shapes.of_profile(profile)).count_ones();
                        let tenants = (now.occupied & shapes.of_profile(profile)).count_ones();
                        match exact {
                            true => assert_eq!(held, u32::from(*wanted)),
                            false => assert!(held - tenants >= u32::from(*wanted)),
                        }
                    }
                }
            }
        }
        assert!(planned > 1000, "{key}: {planned} requests were possible");
    }
}

#[test]
fn every_kind_of_request_on_an_empty_device() {
    for key in ["a100-80gb", "h200", "a30"] {
        let geometry = geometry(key);
        let shapes = Shapes::new(geometry.clone());
        for counts in requests(geometry.profiles.len(), 4) {
            let goal = Goal {
                counts: counts.clone(),
                pinned: 0,
                exact: true,
            };
            let ours = best(&shapes, Occupancy::default(), &goal).map(|chosen| chosen.destroyed);
            assert_eq!(
                ours,
                brute(&geometry, &[], &[], &counts, true),
                "{key} {counts:?}"
            );
        }
    }
}

fn pool(key: &str, states: &[Occupancy]) -> Vec<(Rc<Shapes>, Occupancy)> {
    let shapes = Rc::new(Shapes::new(geometry(key)));
    states.iter().map(|now| (Rc::clone(&shapes), *now)).collect()
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_pool_uses_what_is_there_and_names_who_is_in_the_way() {
    let shapes = Shapes::new(geometry("h100"));
    let at = |name: &str, start| {
        let profile = shapes.geometry.profile(name).expect("a profile");
        1 << shapes.place(profile, start).expect("a place")
    };
    // A free 3g on one device, a tenant in the middle of the other.
    let one = Occupancy {
        current: at("3g.40gb", 0),
        occupied: 0,
    };
    let other = Occupancy {
        current: at("1g.10gb", 2),
        occupied: at("1g.10gb", 2),
    };
    let plan = plan_pool(
        &pool("h100", &[one, other]),
        &names(&["3g.40gb", "3g.40gb", "3g.40gb"]),
    );
    assert!(plan.unplaced.is_empty());
    assert_eq!(plan.devices.iter().map(|device| device.destroyed).sum::<u32>(), 0);
    let plan = plan_pool(&pool("h100", &[other]), &names(&["7g.80gb", "1g.10gb"]));
    assert_eq!(
        plan.unplaced.len(),
        1,
        "the small one fits, the large one does not"
    );
    let unplaced = &plan.unplaced[0];
    assert_eq!(unplaced.profile, "7g.80gb");
    let plan = plan_pool(&pool("h100", &[other]), &names(&["7g.80gb"]));
    assert_eq!(plan.unplaced[0].blocked_by, Some((0, other.occupied)));
    let plan = plan_pool(&pool("h100", &[other]), &names(&["1g.6gb"]));
    assert!(!plan.unplaced[0].known);
    let plan = plan_pool(
        &pool("a30", &[Occupancy::default()]),
        &names(&["14", "14", "14", "14"]),
    );
    assert!(plan.unplaced.is_empty(), "as `-cgi 14,14,14,14` does on an A30");
    let plan = plan_pool(
        &pool("a100-40gb", &[Occupancy::default()]),
        &names(&["14", "14", "14", "14"]),
    );
    assert_eq!(plan.unplaced.len(), 1, "and does not on an A100");
}

#[test]
fn a_large_pool_is_filled_to_the_last_instance() {
    let states = vec![Occupancy::default(); 16];
    let devices = pool("h100", &states);
    let mut wanted = vec!["1g.10gb".to_owned(); 16];
    wanted.extend(vec!["3g.40gb".to_owned(); 16]);
    wanted.extend(vec!["2g.20gb".to_owned(); 16]);
    let plan = plan_pool(&devices, &wanted);
    assert!(plan.unplaced.is_empty(), "{:?}", plan.unplaced);
    let held: u32 = plan.devices.iter().map(|device| device.layout.count_ones()).sum();
    assert_eq!(held, 48);
}

/// A driver in memory that keeps the rules and fails when told to.
struct Fake {
    devices: Vec<MigDevice>,
    next: u32,
    /// Refuse the nth change from now.
    refuse_at: Option<usize>,
    /// At that moment the driver also forgets every instance, as after a reset.
    reset: bool,
    /// Refuse every change, as of a user who may not.
    forbidden: bool,
    changes: usize,
}

impl Fake {
    fn new(keys: &[&str]) -> Self {
        let devices = (0..).zip(keys).map(|(index, key)| {
            let product = MigProduct::of_key(key);
            MigDevice {
                index,
                uuid: format!("GPU-{index}"),
                name: (*key).to_owned(),
                pci_device: product.map_or(0x27b8, |product| product.pci_devices[0]),
                mode: product.map(|_| true),
                geometry: product.map(Geometry::from).unwrap_or_default(),
                instances: Vec::new(),
                tenants: Vec::new(),
            }
        });
        Self {
            devices: devices.collect(),
            next: 1,
            refuse_at: None,
            reset: false,
            forbidden: false,
            changes: 0,
        }
    }

    fn change(&mut self) -> Result<(), Fault> {
        self.changes += 1;
        if self.forbidden {
            return Err(Fault::new(Code::Privilege, "not permitted").hint("run it as root"));
        }
        if self.refuse_at == Some(self.changes) {
            if self.reset {
                for device in &mut self.devices {
                    device.instances.clear();
                }
            }
            return Err(Fault::new(Code::MigDriver, "Insufficient Resources"));
        }
        Ok(())
    }

    fn device(&mut self, uuid: &str) -> &mut MigDevice {
        self.devices
            .iter_mut()
            .find(|device| device.uuid == uuid)
            .expect("a device")
    }

    /// A compute instance at the first place where it fits.
    fn put(&mut self, uuid: &str, instance: u32, slices: u8) {
        let device = self.device(uuid);
        let mut instances = device.instances.iter_mut();
        let held = instances.find(|held| held.id == instance).expect("an instance");
        let mut profiles = device.geometry.profiles.iter();
        let kind = profiles.find(|kind| kind.id == held.profile_id);
        let whole = kind.expect("a profile").compute_slices;
        let free = |start: &u8| {
            let apart =
                |one: &ComputeInstance| start + slices <= one.start || one.start + one.slices <= *start;
            held.compute.iter().all(apart)
        };
        let start = compute_starts(slices, whole).find(free).expect("room for it");
        let id = (0..).find(|id| held.compute.iter().all(|one| one.id != *id));
        held.compute.push(ComputeInstance {
            id: id.expect("few"),
            slices,
            start,
            uuid: None,
            tenants: Vec::new(),
        });
    }

    /// Slices of the compute instances of each instance, by place.
    fn inside(&self, device: usize) -> Vec<(u8, Vec<u8>)> {
        let mut inside: Vec<(u8, Vec<u8>)> = self.devices[device]
            .instances
            .iter()
            .map(|instance| {
                let mut slices: Vec<u8> = instance.compute.iter().map(|one| one.slices).collect();
                slices.sort_unstable();
                (instance.start, slices)
            })
            .collect();
        inside.sort_unstable();
        inside
    }

    fn held(&self, device: usize) -> Vec<(u32, u8)> {
        let mut held: Vec<(u32, u8)> = self.devices[device]
            .instances
            .iter()
            .map(|instance| (instance.profile_id, instance.start))
            .collect();
        held.sort_by_key(|(_, start)| *start);
        held
    }
}

impl MigDriver for Fake {
    fn devices(&mut self) -> Result<Vec<MigDevice>, Fault> {
        Ok(self.devices.clone())
    }

    fn set_mode(&mut self, uuid: &str, on: bool) -> Result<bool, Fault> {
        self.change()?;
        let device = self.device(uuid);
        assert!(on || device.instances.is_empty(), "instances first");
        device.mode = Some(on);
        Ok(true)
    }

    fn create(&mut self, uuid: &str, new: &NewInstance) -> Result<u32, Fault> {
        self.change()?;
        self.next += 1;
        let id = self.next;
        let device = self.device(uuid);
        assert_eq!(device.mode, Some(true), "the mode first");
        let shapes = Shapes::new(device.geometry.clone());
        let NewInstance {
            profile_id,
            start,
            size,
            ref parts,
        } = *new;
        let profile = shapes
            .geometry
            .profile(&profile_id.to_string())
            .expect("a profile");
        assert_eq!(shapes.geometry.profiles[profile].size, size);
        let place = shapes.place(profile, start).expect("a place");
        assert!(
            shapes.fits(occupancy(&shapes, device).current, place),
            "it does not fit"
        );
        device.instances.push(GpuInstance {
            id,
            profile_id,
            start,
            compute: Vec::new(),
        });
        for part in parts {
            self.put(uuid, id, *part);
        }
        Ok(id)
    }

    fn create_compute(&mut self, uuid: &str, instance: u32, slices: u8) -> Result<(), Fault> {
        self.change()?;
        self.put(uuid, instance, slices);
        Ok(())
    }

    fn destroy_compute(&mut self, uuid: &str, instance: u32, compute: u32) -> Result<(), Fault> {
        self.change()?;
        let mut instances = self.device(uuid).instances.iter_mut();
        let held = instances.find(|held| held.id == instance).expect("an instance");
        let at = held.compute.iter().position(|one| one.id == compute);
        let gone = held.compute.remove(at.expect("a compute instance"));
        assert!(gone.tenants.is_empty(), "a tenant runs there");
        Ok(())
    }

    fn destroy(&mut self, uuid: &str, instance: u32) -> Result<(), Fault> {
        self.change()?;
        let device = self.device(uuid);
        let at = device
            .instances
            .iter()
            .position(|held| held.id == instance)
            .expect("an instance");
        assert!(!device.instances[at].is_used(), "a tenant runs there");
        device.instances.remove(at);
        Ok(())
    }
}

fn bring(driver: &mut Fake, device: u32, list: &str) -> Result<usize, Fault> {
    let wanted = parse_list(list)?;
    let target = Target {
        device,
        enabled: true,
        wanted,
    };
    let plans = plan_devices(&driver.devices()?, &[target])?;
    let outcome = apply(driver, &plans)?;
    Ok(outcome.done.len())
}

#[test]
fn the_articles_ways_of_asking() {
    let mut driver = Fake::new(&["a30", "a100-40gb"]);
    assert_eq!(bring(&mut driver, 0, "14,14,14,14"), Ok(4));
    assert_eq!(driver.held(0), [(14, 0), (14, 1), (14, 2), (14, 3)]);
    // The order that `nvidia-smi mig -cgi 19,19,14,9` fails on.
    assert_eq!(bring(&mut driver, 1, "19, 1g.5gb, 14, 3g.20gb"), Ok(4));
    assert_eq!(bring(&mut driver, 1, "19,19,14,9"), Ok(0), "again: nothing to do");
    assert_eq!(
        bring(&mut driver, 1, "9,19"),
        Ok(2),
        "a 1g and the 2g go, the others stay"
    );
    bring(&mut driver, 1, "1g.5gb:6,9:0").expect("two places");
    assert!(driver.held(1).contains(&(19, 6)) && driver.held(1).contains(&(9, 0)));
    for (list, code, words) in [
        ("14,14,14,14", Code::MigFit, "at most 3 of 2g.10gb"),
        ("1g.10gb+mee", Code::MigRequest, "no MIG profile `1g.10gb+mee`"),
        ("9:2", Code::MigRequest, "cannot begin at memory slice 2"),
        ("9:0,14:2", Code::MigFit, "overlaps"),
        ("0,19", Code::MigFit, "cannot hold these instances together"),
        ("19,,19", Code::MigRequest, "no MIG instance"),
        ("19:x", Code::MigRequest, "no MIG instance"),
    ] {
        let refusal = bring(&mut driver, 1, list).expect_err(list);
        assert_eq!(refusal.code, code, "{list}: {refusal:?}");
        assert!(refusal.message.contains(words), "{list}: {refusal:?}");
    }
}

#[test]
fn a_tenant_is_never_touched() {
    let mut driver = Fake::new(&["h100"]);
    bring(&mut driver, 0, "9:0,9:4").expect("two halves");
    driver.devices[0].instances[0].compute[0].tenants.push(Tenant {
        pid: Some(4711),
        name: "train".into(),
    });
    let start = driver.devices[0].instances[0].start;
    let refusal = bring(&mut driver, 0, "19,19,19,19,19,19,19").expect_err("a tenant is there");
    assert_eq!(refusal.code, Code::MigBusy);
    assert!(refusal.message.contains("train (process 4711)"), "{refusal:?}");
    let disabled = Target {
        device: 0,
        enabled: false,
        wanted: Vec::new(),
    };
    let refusal = plan_devices(&driver.devices, &[disabled]).expect_err("a tenant is there");
    assert_eq!(refusal.code, Code::MigBusy);
    // Beside the tenant everything may change.
    assert_eq!(bring(&mut driver, 0, "9,19,14"), Ok(3));
    assert!(driver.held(0).contains(&(9, start)));
}

#[test]
fn a_refusal_half_way_leaves_what_was_there() {
    for reset in [false, true] {
        for at in 1..=6 {
            let mut driver = Fake::new(&["h100"]);
            bring(&mut driver, 0, "9:0,9:4").expect("two halves");
            let before = driver.held(0);
            driver.changes = 0;
            driver.refuse_at = Some(at);
            driver.reset = reset;
            let refusal = bring(&mut driver, 0, "14:0,14:2,14:4,19:6").expect_err("the driver refuses");
            assert_eq!(refusal.code, Code::MigDriver);
            assert!(refusal.message.starts_with("GPU 0: could not "), "{refusal:?}");
            assert_eq!(
                driver.held(0),
                before,
                "refused at {at}, reset {reset}: {refusal:?}"
            );
        }
    }
    let mut driver = Fake::new(&["h100"]);
    driver.devices[0].mode = Some(false);
    driver.refuse_at = Some(3);
    bring(&mut driver, 0, "9,9").expect_err("the second half is refused");
    assert_eq!(
        (driver.devices[0].mode, driver.held(0)),
        (Some(false), Vec::new()),
        "the mode too"
    );
}

#[test]
fn compute_instances_are_made_changed_and_left_alone() {
    let mut driver = Fake::new(&["h100"]);
    assert_eq!(
        bring(&mut driver, 0, "1c.3g.40gb:0,2c.3g.40gb:0,3g.40gb:4"),
        Ok(2),
        "two instances, and what is in them comes with them"
    );
    assert_eq!(driver.inside(0), [(0, vec![1, 2]), (4, vec![3])]);
    assert_eq!(
        bring(&mut driver, 0, "3g.40gb,2c.3g.40gb,1c.3g.40gb"),
        Ok(0),
        "whichever instance holds which"
    );
    assert_eq!(
        bring(&mut driver, 0, "1c.3g.40gb,1c.3g.40gb,1c.3g.40gb,3g.40gb"),
        Ok(3),
        "the two goes, two ones come, and the full one stays"
    );
    assert_eq!(driver.inside(0), [(0, vec![1, 1, 1]), (4, vec![3])]);
    driver.devices[0].instances[0].compute.clear();
    assert_eq!(
        bring(&mut driver, 0, "3g.40gb,3g.40gb"),
        Ok(1),
        "one that another tool left empty is filled"
    );
    // A tenant in one part: the others may change around it, it may not.
    bring(&mut driver, 0, "1c.3g.40gb:0,1c.3g.40gb:0,3g.40gb:4").expect("two parts");
    let at = driver.devices[0]
        .instances
        .iter()
        .position(|held| held.start == 0);
    driver.devices[0].instances[at.expect("there")].compute[1]
        .tenants
        .push(Tenant {
            pid: Some(4711),
            name: "train".into(),
        });
    let refusal = bring(&mut driver, 0, "3g.40gb,3g.40gb").expect_err("a tenant is there");
    assert_eq!(refusal.code, Code::MigBusy);
    assert!(
        refusal.message.contains("3g.40gb:0") && refusal.message.contains("train (process 4711)"),
        "{refusal:?}"
    );
    // The tenant's part lies in the middle, so no two fits beside it.
    let refusal = bring(&mut driver, 0, "1c.3g.40gb,2c.3g.40gb,3g.40gb").expect_err("no room");
    assert_eq!(refusal.code, Code::MigBusy);
    assert_eq!(
        bring(&mut driver, 0, "1c.3g.40gb,1c.3g.40gb,1c.3g.40gb,3g.40gb"),
        Ok(1)
    );
    assert_eq!(driver.inside(0), [(0, vec![1, 1, 1]), (4, vec![3])]);
}

#[test]
fn a_refusal_half_way_leaves_the_compute_instances_that_were_there() {
    for reset in [false, true] {
        for at in 1..=6 {
            let mut driver = Fake::new(&["a100-40gb"]);
            bring(&mut driver, 0, "1c.3g.20gb:0,2c.3g.20gb:0,1c.3g.20gb:4").expect("parts");
            let before = driver.inside(0);
            driver.changes = 0;
            driver.refuse_at = Some(at);
            driver.reset = reset;
            let all = "1c.3g.20gb:0,1c.3g.20gb:0,1c.3g.20gb:0,14:4,19:6";
            bring(&mut driver, 0, all).expect_err("the driver refuses");
            assert_eq!(driver.inside(0), before, "refused at {at}, reset {reset}");
        }
    }
}

#[test]
fn without_permission_nothing_is_changed_and_the_way_out_is_told() {
    let mut driver = Fake::new(&["h100"]);
    driver.forbidden = true;
    let refusal = bring(&mut driver, 0, "9,9").expect_err("not permitted");
    assert_eq!(refusal.code, Code::Privilege);
    assert_eq!(
        refusal.hint.as_deref(),
        Some("nothing was changed; run it as root")
    );
    assert_eq!(driver.held(0), []);
}

const FILE: &str = "
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-balanced:
    - device-filter: [\"0x20B010DE\", \"0x20B110DE\"]
      devices: all
      mig-enabled: true
      mig-devices:
        \"1g.5gb\": 2
        \"2g.10gb\": 1
        \"3g.20gb\": 1
    - device-filter: \"0x233010DE\"
      devices: [1]
      mig-enabled: true
      mig-devices: {\"1g.10gb\": 2, \"2g.20gb\": 1, \"3g.40gb\": 1}
  parts:
    - devices: [0]
      mig-enabled: true
      mig-devices: {1c.3g.20gb: 4, 2c.3g.20gb: 1}
  gone:
    - devices: [7]
      mig-enabled: false
";

#[test]
fn mig_parteds_file_is_read_as_is() {
    let file = MigFile::parse(FILE).expect("a file");
    let mut driver = Fake::new(&["a100-40gb", "h100", "l4"]);
    let balanced =
        targets(file.config(Some("all-balanced")).expect("there"), &driver.devices).expect("targets");
    assert_eq!(balanced.len(), 2, "the filter keeps the L4 out");
    let plans = plan_devices(&driver.devices, &balanced).expect("a plan");
    let first = plans[0].steps.first().expect("a step");
    assert!(
        matches!(&first.change, Change::Create { profile, .. } if profile == "3g.20gb"),
        "large first: {first:?}"
    );
    apply(&mut driver, &plans).expect("applied");
    let offered = resources(&driver.devices, Strategy::Mixed).expect("mixed always can");
    assert_eq!(offered["nvidia.com/mig-1g.5gb"], 2);
    assert_eq!(
        (offered["nvidia.com/mig-3g.40gb"], offered["nvidia.com/gpu"]),
        (1, 1)
    );
    assert_eq!(
        resources(&driver.devices, Strategy::None).expect("none always can")["nvidia.com/gpu"],
        3
    );
    assert_eq!(
        resources(&driver.devices, Strategy::Single)
            .expect_err("not alike")
            .code,
        Code::MigFit
    );

    let parts = targets(file.config(Some("parts")).expect("there"), &driver.devices).expect("targets");
    let plans = plan_devices(&driver.devices, &parts).expect("a plan");
    apply(&mut driver, &plans).expect("applied");
    let mut inside: Vec<Vec<u8>> = driver.inside(0).into_iter().map(|(_, slices)| slices).collect();
    inside.sort();
    assert_eq!(inside, [vec![1, 1, 1], vec![1, 2]]);
    let offered = resources(&driver.devices[..1], Strategy::Mixed).expect("mixed always can");
    assert_eq!(offered["nvidia.com/mig-1c.3g.20gb"], 4);

    let disabled =
        targets(file.config(Some("all-disabled")).expect("there"), &driver.devices).expect("targets");
    let plans = plan_devices(&driver.devices, &disabled).expect("a plan");
    apply(&mut driver, &plans).expect("applied");
    assert_eq!((driver.devices[1].mode, driver.held(1).len()), (Some(false), 0));

    let gone = targets(file.config(Some("gone")).expect("there"), &driver.devices).expect_err("no GPU 7");
    assert_eq!(gone.code, Code::UnknownDevice);
    assert!(file.config(Some("nothing")).is_err() && file.config(None).is_err());
    for text in [
        "",
        "version: v2\nmig-configs: {}",
        "version: v1",
        "a: [",
        "version: v1\nmig-configs: 3",
    ] {
        assert_eq!(MigFile::parse(text).expect_err(text).code, Code::MigRequest);
    }
    let on_an_l4 = Target {
        device: 2,
        enabled: true,
        wanted: Vec::new(),
    };
    assert_eq!(
        plan_devices(&driver.devices, &[on_an_l4])
            .expect_err("no MIG")
            .code,
        Code::NoMig
    );
}
