//! Compute instances: the parts of a GPU instance that programs run in, each with compute slices of its own and all with
//! the instance's memory. One fills an instance unless smaller ones are asked for: `1c.3g.20gb`.

use divvy_model::{Code, Fault, compute_parts, compute_starts};

use super::driver::ComputeInstance;
use super::geometry::Geometry;
use super::request::Wanted;

/// A GPU instance that is asked for, and what it is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Which of the geometry's profiles.
    pub profile: usize,
    /// The memory slice it is to begin at.
    pub start: Option<u8>,
    /// Slices of each compute instance, in an order in which they can be made.
    pub parts: Vec<u8>,
}

/// What a compute instance is called: as its GPU instance where it fills it.
#[must_use]
pub fn part_name(profile: &str, slices: u8, whole: u8) -> String {
    match slices == whole {
        true => profile.to_owned(),
        false => format!("{slices}c.{profile}"),
    }
}

/// The GPU instances that hold the request. Parts of one profile, and of one place where a place is named, share as few
/// instances as hold them.
///
/// # Errors
/// [`Code::MigRequest`] for a profile that the device has not, or a part that no instance of it can hold.
pub fn fill(geometry: &Geometry, wanted: &[Wanted], device: &str) -> Result<Vec<Filled>, Fault> {
    let mut filled: Vec<Filled> = Vec::new();
    let mut parts: Vec<(usize, Option<u8>, u8)> = Vec::new();
    for one in wanted {
        let profile = geometry.profile(&one.profile).ok_or_else(|| {
            Fault::new(
                Code::MigRequest,
                format!("{device} has no MIG profile `{}`", one.profile),
            )
            .hint(geometry.offers())
        })?;
        let kind = &geometry.profiles[profile];
        let whole = kind.compute_slices;
        match one.part {
            None => filled.push(Filled {
                profile,
                start: one.start,
                parts: vec![whole],
            }),
            Some(part) if compute_parts(whole).contains(&part) => parts.push((profile, one.start, part)),
            Some(part) => {
                let sizes: Vec<String> = compute_parts(whole)
                    .iter()
                    .map(|size| format!("{size}c"))
                    .collect();
                return Err(Fault::new(
                    Code::MigRequest,
                    format!("no {} holds a compute instance of {part} slices", kind.name),
                )
                .hint(format!("it holds {}", sizes.join(", "))));
            }
        }
    }
    // Large ones first, so that the small ones find the rest.
    parts.sort_by_key(|(profile, start, part)| (*profile, *start, std::cmp::Reverse(*part)));
    let whole_ones = filled.len();
    for (profile, start, part) in parts {
        let whole = geometry.profiles[profile].compute_slices;
        let with = |held: &Filled| -> Option<Vec<u8>> {
            let same = held.profile == profile && held.start == start;
            let all: Vec<u8> = held.parts.iter().copied().chain([part]).collect();
            same.then_some(())?;
            in_order(&all, &[], whole)
        };
        let room = filled[whole_ones..]
            .iter()
            .enumerate()
            .find_map(|(at, held)| Some((at, with(held)?)));
        match room {
            Some((at, parts)) => filled[whole_ones + at].parts = parts,
            None => filled.push(Filled {
                profile,
                start,
                parts: vec![part],
            }),
        }
    }
    Ok(filled)
}

/// What it takes to bring the compute instances of one GPU instance to what they are to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refill {
    /// Ids of those that go.
    pub removed: Vec<u32>,
    /// Slices of those that come, in an order in which they can be made.
    pub made: Vec<u8>,
}

/// The fewest changes that leave compute instances of these slices; None where a tenant is in the way.
#[must_use]
pub fn refill(held: &[ComputeInstance], parts: &[u8], whole: u8) -> Option<Refill> {
    let keeping = |keep: &dyn Fn(&ComputeInstance) -> bool| -> Option<Refill> {
        let mut needed = parts.to_vec();
        let mut kept: Vec<&ComputeInstance> = Vec::new();
        let mut removed = Vec::new();
        // Those in use choose first.
        let mut held: Vec<&ComputeInstance> = held.iter().collect();
        held.sort_by_key(|one| one.tenants.is_empty());
        for one in held {
            let place = needed.iter().position(|size| *size == one.slices);
            match place.filter(|_| keep(one)) {
                Some(at) => {
                    needed.swap_remove(at);
                    kept.push(one);
                }
                None if one.tenants.is_empty() => removed.push(one.id),
                None => return None,
            }
        }
        let made = in_order(&needed, &kept, whole)?;
        Some(Refill { removed, made })
    };
    // Free ones may lie so that a new one does not fit between them.
    keeping(&|_| true).or_else(|| keeping(&|one| !one.tenants.is_empty()))
}

/// An order in which parts fit beside those that are there, each put at the first free place as drivers do; None
/// where there is none. Large ones first, where that is one.
fn in_order(parts: &[u8], there: &[&ComputeInstance], whole: u8) -> Option<Vec<u8>> {
    fn mask(slices: u8, start: u8) -> u64 {
        ((1 << slices) - 1) << start
    }
    fn go(left: &mut Vec<u8>, taken: u64, whole: u8, order: &mut Vec<u8>) -> bool {
        if left.is_empty() {
            return true;
        }
        for at in 0..left.len() {
            // The same size again fails again.
            if left[..at].contains(&left[at]) {
                continue;
            }
            let part = left[at];
            let mut starts = compute_starts(part, whole);
            let Some(start) = starts.find(|start| taken & mask(part, *start) == 0) else {
                continue;
            };
            left.remove(at);
            order.push(part);
            if go(left, taken | mask(part, start), whole, order) {
                return true;
            }
            order.pop();
            left.insert(at, part);
        }
        false
    }
    // No product has more slices than a mask has bits.
    const MOST: u8 = 31;
    let sum: u32 = parts.iter().map(|part| u32::from(*part)).sum();
    if sum > u32::from(whole) || whole > MOST || parts.contains(&0) {
        return None;
    }
    let known = there.iter().filter(|one| one.slices <= MOST && one.start < MOST);
    let taken = known.fold(0, |taken, one| taken | mask(one.slices, one.start));
    let mut left = parts.to_vec();
    left.sort_unstable_by_key(|part| std::cmp::Reverse(*part));
    let mut order = Vec::new();
    go(&mut left, taken, whole, &mut order).then_some(order)
}

#[cfg(test)]
mod tests {
    use super::super::driver::Tenant;
    use super::super::request::parse_list;
    use super::*;
    use divvy_model::MigProduct;

    fn geometry() -> Geometry {
        Geometry::from(MigProduct::of_key("a100-40gb").expect("a product"))
    }

    fn filled(list: &str) -> Vec<(String, Option<u8>, Vec<u8>)> {
        let geometry = geometry();
        let wanted = parse_list(list).expect("a list");
        let filled = fill(&geometry, &wanted, "GPU 0").expect("it can be held");
        let named = filled.into_iter().map(|one| {
            let name = geometry.profiles[one.profile].name.clone();
            (name, one.start, one.parts)
        });
        named.collect()
    }

    fn held(id: u32, slices: u8, start: u8, used: bool) -> ComputeInstance {
        let tenant = Tenant {
            pid: Some(7),
            name: "train".into(),
        };
        ComputeInstance {
            id,
            slices,
            start,
            uuid: None,
            tenants: if used { vec![tenant] } else { Vec::new() },
        }
    }

    #[test]
    fn parts_share_instances_as_in_mig_parteds_files() {
        let three = || "3g.20gb".to_owned();
        assert_eq!(
            filled("1c.3g.20gb,1c.3g.20gb,2c.3g.20gb,1c.3g.20gb"),
            [(three(), None, vec![2, 1]), (three(), None, vec![1, 1])]
        );
        assert_eq!(
            filled("1c.3g.20gb:4,3g.20gb:0,1c.3g.20gb:4,1g.5gb"),
            [
                (three(), Some(0), vec![3]),
                ("1g.5gb".into(), None, vec![1]),
                (three(), Some(4), vec![1, 1])
            ]
        );
        assert_eq!(filled("3c.3g.20gb"), [(three(), None, vec![3])], "the whole");
        // Two twos and a three fit seven, but not with the three in front.
        let seven = filled("2c.7g.40gb,3c.7g.40gb,2c.7g.40gb");
        assert_eq!(seven, [("7g.40gb".into(), None, vec![2, 3, 2])]);
        let four = filled("4c.7g.40gb,3c.7g.40gb");
        assert_eq!(four, [("7g.40gb".into(), None, vec![4, 3])]);
    }

    #[test]
    fn parts_that_no_instance_holds_are_refused_with_those_it_does() {
        for (list, words) in [
            ("3c.4g.20gb", "1c, 2c, 4c"),
            ("2c.1g.5gb", "it holds 1c"),
            ("0c.3g.20gb", "1c, 2c, 3c"),
            ("200c.7g.40gb", "1c, 2c, 3c, 4c, 7c"),
        ] {
            let wanted = parse_list(list).expect("a list");
            let refusal = fill(&geometry(), &wanted, "GPU 0").expect_err(list);
            assert_eq!(refusal.code, Code::MigRequest);
            assert!(refusal.hint.expect("a way out").contains(words), "{list}");
        }
    }

    #[test]
    fn the_fewest_compute_instances_go() {
        let change = |held: &[ComputeInstance], parts: &[u8]| {
            refill(held, parts, 3).map(|change| (change.removed, change.made))
        };
        assert_eq!(change(&[], &[3]), Some((vec![], vec![3])), "one that was empty");
        let two = [held(0, 1, 0, false), held(1, 1, 1, false)];
        assert_eq!(change(&two, &[1, 1]), Some((vec![], vec![])));
        assert_eq!(change(&two, &[1, 1, 1]), Some((vec![], vec![1])));
        assert_eq!(change(&two, &[1]), Some((vec![1], vec![])));
        // What is kept leaves no space for a two: free ones go too.
        assert_eq!(change(&two, &[2, 1]), Some((vec![0, 1], vec![2, 1])));
        let used = [held(0, 1, 0, false), held(1, 1, 2, true)];
        assert_eq!(change(&used, &[2, 1]), Some((vec![0], vec![2])));
        assert_eq!(change(&used, &[1]), Some((vec![0], vec![])), "not the tenant's");
        assert_eq!(change(&used, &[3]), None);
        let in_the_way = [held(1, 1, 1, true)];
        assert_eq!(
            change(&in_the_way, &[2, 1]),
            None,
            "the tenant lies where the two would"
        );
    }
}
