//! Which of the free ids a container had better get.

use std::collections::BTreeMap;

use super::resources::{Part, Resource};

/// How replicas are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Of different devices, the emptiest first, as NVIDIA's plugin does.
    #[default]
    Distinct,
    /// Of one device, the fullest that has enough.
    Packed,
}

/// So many ids of those that are free, the demanded ones among them. Fewer where there are not so many.
#[must_use]
pub fn preferred(
    resource: &Resource,
    free: &[String],
    demanded: &[String],
    size: usize,
    how: Choice,
) -> Vec<String> {
    let of = |id: &String| resource.parts.iter().find(|part| part.id == *id);
    let mut chosen: Vec<&Part> = demanded.iter().filter_map(of).take(size).collect();
    let mut left: Vec<&Part> = free
        .iter()
        .filter_map(of)
        .filter(|part| !chosen.iter().any(|one| one.id == part.id))
        .collect();
    left.sort_by_key(|part| resource.parts.iter().position(|one| one.id == part.id));
    let mut room: BTreeMap<&str, usize> = BTreeMap::new();
    for part in &left {
        *room.entry(&part.device.uuid).or_default() += 1;
    }
    while chosen.len() < size && !left.is_empty() {
        let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
        for part in &chosen {
            *taken.entry(&part.device.uuid).or_default() += 1;
        }
        let missing = size - chosen.len();
        let key = |part: &Part| {
            let uuid = part.device.uuid.as_str();
            let (taken, room) = (
                taken.get(uuid).copied().unwrap_or(0),
                room.get(uuid).copied().unwrap_or(0),
            );
            match how {
                // The least taken for this container, then the emptiest.
                Choice::Distinct => (taken, usize::MAX - room),
                // The one that has some already, then the fullest that holds the rest, then the emptiest.
                Choice::Packed if taken > 0 => (0, 0),
                Choice::Packed if room >= missing => (1, room),
                Choice::Packed => (2, usize::MAX - room),
            }
        };
        let best = (0..left.len())
            .min_by_key(|at| (key(left[*at]), *at))
            .unwrap_or(0);
        let part = left.remove(best);
        if let Some(room) = room.get_mut(part.device.uuid.as_str()) {
            *room -= 1;
        }
        chosen.push(part);
    }
    chosen.into_iter().map(|part| part.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_plugin::resources::{resources, tests::config};
    use crate::devices::tests::device;

    #[test]
    fn replicas_are_spread_or_packed() {
        let config = config("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}");
        let resource = resources(&[device(0), device(1)], &config)
            .expect("resources")
            .remove(0);
        let all: Vec<String> = resource.parts.iter().map(|part| part.id.clone()).collect();
        // One is taken of the first device.
        let free = &all[1..];
        let places = |size: usize, demanded: &[String], how: Choice| -> Vec<usize> {
            let chosen = preferred(&resource, free, demanded, size, how);
            let mut places: Vec<usize> = chosen
                .iter()
                .map(|id| all.iter().position(|one| one == id).expect("known"))
                .collect();
            places.sort_unstable();
            places
        };
        assert_eq!(places(1, &[], Choice::Distinct), [4], "the emptiest");
        assert_eq!(places(1, &[], Choice::Packed), [1], "the fullest");
        assert_eq!(places(2, &[], Choice::Distinct), [1, 4]);
        assert_eq!(places(2, &[], Choice::Packed), [1, 2]);
        assert_eq!(
            places(4, &[], Choice::Packed),
            [4, 5, 6, 7],
            "the one that has enough"
        );
        assert_eq!(places(2, &all[6..7], Choice::Packed), [4, 6]);
        assert_eq!(places(2, &all[6..7], Choice::Distinct), [1, 6]);
        assert_eq!(places(99, &[], Choice::Distinct).len(), 7, "as many as there are");
        assert!(preferred(&resource, &["x".into()], &["y".into()], 1, Choice::Packed).is_empty());
    }
}
