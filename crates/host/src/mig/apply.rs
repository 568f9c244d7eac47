//! From what devices hold to what they are to hold: the plan, and doing it with a way back.

use std::rc::Rc;

use divvy_model::{Code, Fault};

use super::compute::{Refill, fill, part_name, refill};
use super::contents::{contents, place_of};
use super::driver::{GpuInstance, MigDevice, MigDriver, NewInstance, Tenant};
use super::file::Target;
use super::geometry::{Layout, Place, Shapes};
use super::goal::goal;
use super::plan::{Occupancy, best};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Turn MIG mode on or off.
    Mode(bool),
    /// Remove an instance.
    Destroy {
        /// Its id.
        id: u32,
        /// Its profile.
        profile: String,
        /// Its first memory slice.
        start: u8,
    },
    /// Make an instance.
    Create {
        /// Its profile.
        profile: String,
        /// The profile's id.
        profile_id: u32,
        /// Its first memory slice.
        start: u8,
        /// How many it covers.
        size: u8,
        /// Slices of the compute instances in it, in the order in which they are made.
        parts: Vec<u8>,
        /// Compute slices of the profile.
        whole: u8,
    },
    /// Remove a compute instance.
    DestroyCompute {
        /// Id of its GPU instance.
        instance: u32,
        /// Its id.
        id: u32,
        /// What it is called.
        name: String,
    },
    /// Make a compute instance in an instance that is there.
    CreateCompute {
        /// Id of the GPU instance.
        instance: u32,
        /// Its slices.
        slices: u8,
        /// What it is called.
        name: String,
    },
}

impl Change {
    /// Whether it takes something away.
    #[must_use]
    pub fn removes(&self) -> bool {
        matches!(self, Self::Destroy { .. } | Self::DestroyCompute { .. })
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mode(on) => write!(f, "turn MIG mode {}", if *on { "on" } else { "off" }),
            Self::Destroy { id, profile, start } => write!(f, "remove {profile}:{start} (instance {id})"),
            Self::Create {
                profile,
                start,
                parts,
                whole,
                ..
            } => {
                write!(f, "make {profile}:{start}")?;
                if parts.as_slice() == [*whole] {
                    return Ok(());
                }
                let names = parts.iter().map(|part| part_name(profile, *part, *whole));
                write!(f, " with {}", names.collect::<Vec<_>>().join(", "))
            }
            Self::DestroyCompute { instance, id, name } => {
                write!(f, "remove {name} (compute instance {id} of instance {instance})")
            }
            Self::CreateCompute { instance, name, .. } => write!(f, "make {name} in instance {instance}"),
        }
    }
}

/// A change of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The device's index.
    pub device: u32,
    /// Its UUID.
    pub uuid: String,
    /// The change.
    pub change: Change,
}

/// What is to happen on one device.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// The device as it is.
    pub device: MigDevice,
    /// Its shape.
    pub shapes: Rc<Shapes>,
    /// What it holds.
    pub before: Layout,
    /// What it is to hold.
    pub after: Layout,
    /// In order: mode, removals, then what is made, the largest instances first. None where nothing is to change.
    pub steps: Vec<Step>,
}

/// How an application ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What was changed.
    pub done: Vec<Step>,
    /// Devices whose mode waits for a reset: nothing else was changed on them.
    pub waiting: Vec<String>,
}

/// What it takes to bring devices to their targets, all of it known before anything is changed.
///
/// # Errors
/// [`Code::NoMig`] for a device without MIG; [`Code::MigBusy`] where a tenant is in the way; [`Code::MigFit`] and
/// [`Code::MigRequest`] for what cannot be.
pub fn plan_devices(devices: &[MigDevice], targets: &[Target]) -> Result<Vec<DevicePlan>, Fault> {
    targets
        .iter()
        .filter_map(|target| one(devices, target).transpose())
        .collect()
}

fn one(devices: &[MigDevice], target: &Target) -> Result<Option<DevicePlan>, Fault> {
    let device = devices
        .iter()
        .find(|device| device.index == target.device)
        .ok_or_else(|| Fault::new(Code::UnknownDevice, format!("there is no GPU {}", target.device)))?;
    let called = format!("GPU {} ({})", device.index, device.name);
    let Some(mode) = device.mode else {
        // A file for all devices turns MIG off on those that have none: it is off.
        return match target.enabled {
            false => Ok(None),
            true => Err(Fault::new(Code::NoMig, format!("{called} has no MIG"))
                .hint("A30, A100, H100, H200 and B200 have")),
        };
    };
    if mode != target.enabled {
        let mut tenants = device.tenants.iter();
        if let Some(tenant) = tenants.next().or_else(|| first_tenant(&device.instances)) {
            return Err(busy(&format!("the MIG mode of {called}"), tenant));
        }
    }
    let shapes = Rc::new(Shapes::new(device.geometry.clone()));
    let now = occupancy(&shapes, device);
    let wanted = if target.enabled { &target.wanted[..] } else { &[] };
    let filled = fill(&shapes.geometry, wanted, &called)?;
    let goal = goal(&shapes, &filled, &called)?;
    let Some(chosen) = best(&shapes, now, &goal) else {
        return Err(why_not(&shapes, device, now, &goal, &called));
    };
    let inside = contents(&shapes, device, chosen.layout, &filled)
        .map_err(|(instance, tenant)| busy(&called_on(&shapes, instance, &called), tenant))?;
    let mut changes = Vec::new();
    for instance in &device.instances {
        let Some(place) = place_of(&shapes, instance) else {
            continue;
        };
        let kind = &shapes.geometry.profiles[shapes.places[place].profile];
        let Some(parts) = inside.get(&place) else {
            changes.push(Change::Destroy {
                id: instance.id,
                profile: kind.name.clone(),
                start: instance.start,
            });
            continue;
        };
        let change = refill(&instance.compute, parts, kind.compute_slices).unwrap_or_default();
        changes.extend(compute_changes(
            instance,
            &kind.name,
            kind.compute_slices,
            &change,
        ));
    }
    // Removals make space for what is made.
    changes.sort_by_key(|change| !change.removes());
    let kept = now.current & chosen.layout;
    let mut made: Vec<_> = (0..shapes.places.len())
        .filter(|place| chosen.layout & !kept & 1 << place != 0)
        .map(|place| (shapes.places[place], inside.get(&place)))
        .collect();
    // Large ones first: a driver that places by itself would otherwise leave them no space.
    made.sort_by_key(|(place, _)| {
        (
            std::cmp::Reverse(shapes.geometry.profiles[place.profile].size),
            place.start,
        )
    });
    changes.extend(made.into_iter().map(|(place, parts)| {
        let kind = &shapes.geometry.profiles[place.profile];
        Change::Create {
            profile: kind.name.clone(),
            profile_id: kind.id,
            start: place.start,
            size: kind.size,
            parts: parts.map_or_else(|| vec![kind.compute_slices], Clone::clone),
            whole: kind.compute_slices,
        }
    }));
    match (mode, target.enabled) {
        (false, true) => changes.insert(0, Change::Mode(true)),
        (true, false) => changes.push(Change::Mode(false)),
        _ => {}
    }
    let steps = changes.into_iter().map(|change| Step {
        device: device.index,
        uuid: device.uuid.clone(),
        change,
    });
    Ok(Some(DevicePlan {
        steps: steps.collect(),
        before: now.current,
        after: chosen.layout,
        device: device.clone(),
        shapes,
    }))
}

/// What a device holds, as places of its shape.
#[must_use]
pub fn occupancy(shapes: &Shapes, device: &MigDevice) -> Occupancy {
    let mut now = Occupancy::default();
    for instance in &device.instances {
        let Some(place) = place_of(shapes, instance) else {
            continue;
        };
        now.current |= 1 << place;
        if instance.is_used() {
            now.occupied |= 1 << place;
        }
    }
    now
}

fn first_tenant(instances: &[GpuInstance]) -> Option<&Tenant> {
    instances.iter().find_map(|instance| instance.tenants().next())
}

/// What becomes of the compute instances of an instance that stays.
fn compute_changes(instance: &GpuInstance, profile: &str, whole: u8, change: &Refill) -> Vec<Change> {
    let slices = |id: u32| {
        let held = instance.compute.iter().find(|compute| compute.id == id);
        held.map_or(whole, |compute| compute.slices)
    };
    let removed = change.removed.iter().map(|id| Change::DestroyCompute {
        instance: instance.id,
        id: *id,
        name: part_name(profile, slices(*id), whole),
    });
    let made = change.made.iter().map(|part| Change::CreateCompute {
        instance: instance.id,
        slices: *part,
        name: part_name(profile, *part, whole),
    });
    removed.chain(made).collect()
}

fn called_on(shapes: &Shapes, instance: &GpuInstance, device: &str) -> String {
    let name = place_of(shapes, instance).map_or("instance", |place| {
        shapes.geometry.profiles[shapes.places[place].profile]
            .name
            .as_str()
    });
    format!("{name}:{} of {device}", instance.start)
}

fn busy(what: &str, tenant: &Tenant) -> Fault {
    Fault::new(
        Code::MigBusy,
        format!("{what} cannot change while {tenant} runs there"),
    )
    .hint("wait for it or end it, then apply again")
}

/// Without the tenants it would fit, or it never would.
fn why_not(
    shapes: &Shapes,
    device: &MigDevice,
    now: Occupancy,
    goal: &super::plan::Goal,
    called: &str,
) -> Fault {
    let alone = Occupancy {
        current: now.current,
        occupied: 0,
    };
    let Some(free) = best(shapes, alone, goal) else {
        return Fault::new(
            Code::MigFit,
            format!("{called} cannot hold these instances together"),
        )
        .hint("`divvy gpu mig list` shows what each takes; ask for fewer or smaller ones");
    };
    let in_the_way = device.instances.iter().find(|instance| {
        let place = place_of(shapes, instance);
        instance.is_used() && place.is_some_and(|place| free.layout >> place & 1 == 0)
    });
    let instance = in_the_way.or_else(|| device.instances.iter().find(|instance| instance.is_used()));
    match instance.and_then(|instance| Some((instance, instance.tenants().next()?))) {
        Some((instance, tenant)) => busy(&called_on(shapes, instance, called), tenant),
        None => Fault::new(
            Code::MigFit,
            format!("{called} cannot hold these instances together"),
        ),
    }
}

/// Makes the changes. On a refusal what was changed is put back, and the refusal says so.
///
/// # Errors
/// [`Code::MigDriver`], or what the driver refused with.
pub fn apply(driver: &mut dyn MigDriver, plans: &[DevicePlan]) -> Result<Outcome, Fault> {
    let mut outcome = Outcome::default();
    for plan in plans {
        for step in &plan.steps {
            if outcome.waiting.contains(&step.uuid) {
                continue;
            }
            match perform(driver, step) {
                Ok(active) => {
                    outcome.done.push(step.clone());
                    if !active {
                        outcome.waiting.push(step.uuid.clone());
                    }
                }
                Err(refusal) => return Err(put_back(driver, plans, &outcome.done, step, &refusal)),
            }
        }
    }
    Ok(outcome)
}

fn perform(driver: &mut dyn MigDriver, step: &Step) -> Result<bool, Fault> {
    match &step.change {
        Change::Mode(on) => driver.set_mode(&step.uuid, *on),
        Change::Destroy { id, .. } => driver.destroy(&step.uuid, *id).map(|()| true),
        Change::Create {
            profile_id,
            start,
            size,
            parts,
            ..
        } => {
            let new = NewInstance {
                profile_id: *profile_id,
                start: *start,
                size: *size,
                parts: parts.clone(),
            };
            driver.create(&step.uuid, &new).map(|_id| true)
        }
        Change::DestroyCompute { instance, id, .. } => {
            driver.destroy_compute(&step.uuid, *instance, *id).map(|()| true)
        }
        Change::CreateCompute { instance, slices, .. } => driver
            .create_compute(&step.uuid, *instance, *slices)
            .map(|()| true),
    }
}

/// Looks at what is there now, because a driver that was reset in between has forgotten everything, and makes it what
/// it was.
fn put_back(
    driver: &mut dyn MigDriver,
    plans: &[DevicePlan],
    done: &[Step],
    failed: &Step,
    refusal: &Fault,
) -> Fault {
    let mut left = Vec::new();
    let touched = plans.iter().filter(|plan| {
        let uuid = &plan.device.uuid;
        *uuid == failed.uuid || done.iter().any(|step| step.uuid == *uuid)
    });
    for plan in touched {
        if let Err(fault) = restore(driver, plan) {
            left.push(format!("GPU {}: {}", plan.device.index, fault.message));
        }
    }
    let fault = Fault::new(
        refusal.code,
        format!("GPU {}: could not {}", failed.device, failed.change),
    )
    .after(refusal);
    match left.as_slice() {
        [] if done.is_empty() => fault.hint(with_way_out("nothing was changed", refusal)),
        [] => fault.hint(with_way_out("what had been changed is put back", refusal)),
        some => fault
            .cause(format!(
                "and not everything could be put back: {}",
                some.join("; ")
            ))
            .hint("`divvy gpu mig list` shows what is there; apply again"),
    }
}

/// What became of it, and what the refusal said to do.
fn with_way_out(became: &str, refusal: &Fault) -> String {
    match &refusal.hint {
        Some(hint) => format!("{became}; {hint}"),
        None => became.to_owned(),
    }
}

fn restore(driver: &mut dyn MigDriver, plan: &DevicePlan) -> Result<(), Fault> {
    let find = |driver: &mut dyn MigDriver| -> Result<MigDevice, Fault> {
        let devices = driver.devices()?;
        let device = devices.into_iter().find(|device| device.uuid == plan.device.uuid);
        device.ok_or_else(|| Fault::new(Code::UnknownDevice, "the device is gone"))
    };
    let device = find(driver)?;
    let was = plan.device.mode == Some(true);
    if was && device.mode == Some(false) {
        driver.set_mode(&device.uuid, true)?;
    }
    for instance in &device.instances {
        let place = place_of(&plan.shapes, instance);
        let extra = place.is_none_or(|place| plan.before >> place & 1 == 0);
        if extra && !instance.is_used() {
            driver.destroy(&device.uuid, instance.id)?;
        }
    }
    let now = find(driver)?;
    let there = occupancy(&plan.shapes, &now).current;
    let mut missing: Vec<_> = plan.shapes.held(plan.before & !there).collect();
    missing.sort_by_key(|place| std::cmp::Reverse(plan.shapes.geometry.profiles[place.profile].size));
    let parts_before = |place: &Place| {
        let mut before = plan.device.instances.iter();
        let id = plan.shapes.geometry.profiles[place.profile].id;
        let held = before.find(|held| held.profile_id == id && held.start == place.start);
        let parts = held.into_iter().flat_map(|held| &held.compute);
        parts.map(|compute| compute.slices).collect::<Vec<u8>>()
    };
    for place in missing {
        let kind = &plan.shapes.geometry.profiles[place.profile];
        let refilled = refill(&[], &parts_before(place), kind.compute_slices).unwrap_or_default();
        let new = NewInstance {
            profile_id: kind.id,
            start: place.start,
            size: kind.size,
            parts: refilled.made,
        };
        driver.create(&device.uuid, &new)?;
    }
    for instance in &now.instances {
        let Some(place) = place_of(&plan.shapes, instance).filter(|place| plan.before >> place & 1 == 1)
        else {
            continue;
        };
        let place = &plan.shapes.places[place];
        let whole = plan.shapes.geometry.profiles[place.profile].compute_slices;
        let change = refill(&instance.compute, &parts_before(place), whole).unwrap_or_default();
        for id in change.removed {
            driver.destroy_compute(&device.uuid, instance.id, id)?;
        }
        for part in change.made {
            driver.create_compute(&device.uuid, instance.id, part)?;
        }
    }
    if !was && device.mode == Some(true) {
        driver.set_mode(&device.uuid, false)?;
    }
    Ok(())
}
