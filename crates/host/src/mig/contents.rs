//! Which instance of a layout is to hold which contents. Of equal instances any may, so each gets the contents that
//! cost the fewest compute instances.

use std::collections::BTreeMap;

use super::compute::{Filled, refill};
use super::driver::{ComputeInstance, GpuInstance, MigDevice, Tenant};
use super::geometry::{Layout, Shapes};

/// For each place of `layout`, slices of the compute instances that are to be there.
///
/// # Errors
/// An instance with a tenant in the way of every choice, and that tenant.
pub fn contents<'a>(
    shapes: &Shapes,
    device: &'a MigDevice,
    layout: Layout,
    filled: &[Filled],
) -> Result<BTreeMap<usize, Vec<u8>>, (&'a GpuInstance, &'a Tenant)> {
    let mut inside = BTreeMap::new();
    for (profile, kind) in shapes.geometry.profiles.iter().enumerate() {
        let of_it = || filled.iter().filter(|one| one.profile == profile);
        let mut places: Vec<usize> = (0..shapes.places.len())
            .filter(|place| layout & shapes.of_profile(profile) & 1 << place != 0)
            .collect();
        let mut rest: Vec<&[u8]> = Vec::new();
        let mut pairs: Vec<(usize, &[u8])> = Vec::new();
        for one in of_it() {
            let place = one.start.and_then(|start| shapes.place(profile, start));
            match place.and_then(|place| places.iter().position(|free| *free == place)) {
                Some(at) => pairs.push((places.remove(at), &one.parts)),
                None => rest.push(&one.parts),
            }
        }
        let held = |place: usize| -> &[ComputeInstance] {
            let mut there = device.instances.iter();
            let held = there.find(|held| place_of(shapes, held) == Some(place));
            held.map_or(&[], |held| &held.compute)
        };
        let cost = |place: usize, parts: &[u8]| {
            let change = refill(held(place), parts, kind.compute_slices)?;
            Some(change.removed.len())
        };
        let mut best = None;
        let fixed = pairs.iter().all(|(place, parts)| cost(*place, parts).is_some());
        if fixed {
            let mut order: Vec<usize> = (0..rest.len()).collect();
            assign(
                &places,
                &mut order,
                0,
                0,
                &|place, at| cost(place, rest[at]),
                &mut best,
            );
        }
        if best.is_none() {
            let used = |instance: &&GpuInstance| {
                let place = place_of(shapes, instance);
                place.is_some_and(|place| shapes.places[place].profile == profile)
            };
            let mut used = device.instances.iter().filter(used);
            let found = used.find_map(|instance| Some((instance, instance.tenants().next()?)));
            if let Some(in_the_way) = found {
                return Err(in_the_way);
            }
        }
        // Without a tenant every choice is possible; where the reported slices make no sense nothing is changed.
        let order = best.map_or_else(|| (0..rest.len()).collect(), |(_, order)| order);
        pairs.extend(places.iter().copied().zip(order.into_iter().map(|at| rest[at])));
        inside.extend(pairs.into_iter().map(|(place, parts)| (place, parts.to_vec())));
    }
    Ok(inside)
}

/// The place at which an instance lies; None for one of a profile that is not known.
pub(super) fn place_of(shapes: &Shapes, instance: &GpuInstance) -> Option<usize> {
    let profiles = &shapes.geometry.profiles;
    let profile = profiles
        .iter()
        .position(|profile| profile.id == instance.profile_id)?;
    shapes.place(profile, instance.start)
}

/// The cheapest way to give each place one of the rest. No device has more than seven alike, and alike contents are tried
/// once.
fn assign(
    places: &[usize],
    order: &mut Vec<usize>,
    at: usize,
    so_far: usize,
    cost: &dyn Fn(usize, usize) -> Option<usize>,
    best: &mut Option<(usize, Vec<usize>)>,
) {
    if best.as_ref().is_some_and(|(least, _)| so_far >= *least) {
        return;
    }
    if at == order.len().min(places.len()) {
        *best = Some((so_far, order.clone()));
        return;
    }
    for other in at..order.len() {
        order.swap(at, other);
        if let Some(more) = cost(places[at], order[at]) {
            assign(places, order, at + 1, so_far + more, cost, best);
        }
        order.swap(at, other);
    }
}
