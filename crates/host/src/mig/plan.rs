//! One device: the layout that meets a goal and changes least.
//!
//! Every legal layout is a part of a maximal one, so looking at all maximal layouts finds the best there is.

use super::geometry::{Layout, Shapes};

/// What a device holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Occupancy {
    /// All its instances.
    pub current: Layout,
    /// Those that a tenant uses, which must not be touched.
    pub occupied: Layout,
}

/// What a device is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    /// How many of each profile.
    pub counts: Vec<u8>,
    /// Places that must be among them.
    pub pinned: Layout,
    /// Whether that is all it is to hold, those in use included. Otherwise it holds that beside those in use, and other
    /// instances may stay.
    pub exact: bool,
}

/// The best layout for a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The layout.
    pub layout: Layout,
    /// Instances of now that are not in it.
    pub destroyed: u32,
}

fn count(layout: Layout) -> u32 {
    layout.count_ones()
}

/// The layout that meets `goal` with the fewest instances destroyed, those in use kept; None where there is none.
#[must_use]
pub fn best(shapes: &Shapes, now: Occupancy, goal: &Goal) -> Option<Chosen> {
    let free = now.current & !now.occupied;
    let mut best: Option<(u32, Layout)> = None;
    for maximal in &shapes.maximal {
        if maximal & (now.occupied | goal.pinned) != now.occupied | goal.pinned {
            continue;
        }
        let Some(kept) = kept(shapes, now, goal, *maximal) else {
            continue;
        };
        if best.is_none_or(|(most, _)| kept > most) {
            best = Some((kept, *maximal));
            if kept == count(free) {
                break;
            }
        }
    }
    let (kept, maximal) = best?;
    Some(Chosen {
        layout: select(shapes, now, goal, maximal),
        destroyed: count(free) - kept,
    })
}

/// How many free instances stay under a maximal layout; None where it does not meet the goal.
fn kept(shapes: &Shapes, now: Occupancy, goal: &Goal, maximal: Layout) -> Option<u32> {
    let free = now.current & !now.occupied;
    if !goal.exact {
        for (profile, wanted) in goal.counts.iter().enumerate() {
            let room = maximal & shapes.of_profile(profile) & !now.occupied;
            if count(room) < u32::from(*wanted) {
                return None;
            }
        }
        return Some(count(maximal & free));
    }
    let mut kept = 0;
    for (profile, wanted) in goal.counts.iter().enumerate() {
        let room = maximal & shapes.of_profile(profile);
        let fixed = (now.occupied | goal.pinned) & shapes.of_profile(profile);
        let rest = u32::from(*wanted).checked_sub(count(fixed))?;
        if count(room) < u32::from(*wanted) {
            return None;
        }
        kept += count(fixed & free) + rest.min(count(room & free & !fixed));
    }
    Some(kept)
}

/// The part of a maximal layout that the goal asks for.
fn select(shapes: &Shapes, now: Occupancy, goal: &Goal, maximal: Layout) -> Layout {
    let free = now.current & !now.occupied;
    let fixed = now.occupied | goal.pinned;
    let mut layout = fixed;
    for (profile, wanted) in goal.counts.iter().enumerate() {
        let own = shapes.of_profile(profile) & maximal;
        let mut rest = u32::from(*wanted);
        if goal.exact {
            rest = rest.saturating_sub(count(fixed & own));
        } else {
            // Free instances that are not in the way stay, whether or not they are asked for.
            layout |= own & free;
            rest = rest.saturating_sub(count(own & (free | goal.pinned) & !now.occupied));
        }
        let stay = own & free & !fixed;
        let order = bits(stay).chain(bits(own & !free & !fixed));
        let order: Vec<Layout> = if goal.exact {
            order.collect()
        } else {
            bits(own & !free & !fixed).collect()
        };
        for bit in order.into_iter().take(rest as usize) {
            layout |= bit;
        }
    }
    layout
}

/// The single places of a layout, lowest first.
fn bits(layout: Layout) -> impl Iterator<Item = Layout> {
    (0..64).map(|at| 1 << at).filter(move |bit| layout & bit != 0)
}
