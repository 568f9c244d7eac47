//! Which devices of one node a pod gets: pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::ask::{Ask, PodAsk, Prefer};
use super::ledger::{Gpu, Grant, Used};

/// The devices of a node for a pod; none where they do not fit.
#[must_use]
pub fn choose(gpus: &[Gpu], used: &[Used], pod: &PodAsk) -> Option<Vec<Grant>> {
    let mut used = used.to_vec();
    let mut grants = Vec::new();
    for ask in &pod.containers {
        let mut fit: Vec<usize> = (0..gpus.len())
            .filter(|gpu| is_allowed(&gpus[*gpu], pod) && fits(&gpus[*gpu], used[*gpu], ask))
            .collect();
        let wanted = usize::try_from(ask.devices).ok()?;
        if fit.len() < wanted {
            return None;
        }
        order(&mut fit, gpus, &used, pod.prefer, wanted);
        for gpu in fit.into_iter().take(wanted) {
            let grant = Grant {
                container: ask.container.clone(),
                uuid: gpus[gpu].uuid.clone(),
                memory_mib: if ask.whole {
                    gpus[gpu].memory_mib
                } else {
                    ask.memory.of(gpus[gpu].memory_mib)
                },
                cores: if ask.whole { 100 } else { ask.cores },
                whole: ask.whole,
            };
            used[gpu].add(&grant);
            grants.push(grant);
        }
    }
    Some(grants)
}

/// How well the node suits the pod, from 0 to 100, where it fits.
#[must_use]
pub fn score(gpus: &[Gpu], used: &[Used], pod: &PodAsk, grants: &[Grant]) -> i64 {
    let total: u64 = gpus.iter().map(|gpu| gpu.memory_mib).sum();
    let taken: u64 = used.iter().map(|used| used.memory_mib).sum();
    let asked: u64 = grants.iter().map(|grant| grant.memory_mib).sum();
    let full = taken.saturating_add(asked).saturating_mul(100) / total.max(1);
    let full = i64::try_from(full.min(100)).unwrap_or(100);
    match pod.prefer {
        Prefer::Binpack => full,
        Prefer::Spread => 100 - full,
        Prefer::Topology => {
            let of = |grant: &Grant| gpus.iter().find(|gpu| gpu.uuid == grant.uuid);
            let places: Vec<&Gpu> = grants.iter().filter_map(of).collect();
            let pairs = places.iter().zip(places.iter().skip(1));
            let near: i64 = pairs
                .map(|(one, other)| match (one, other) {
                    _ if one.link.is_some() && one.link == other.link => 90,
                    _ if one.numa.is_some() && one.numa == other.numa => 45,
                    _ => 0,
                })
                .sum();
            let count = i64::try_from(places.len().saturating_sub(1).max(1)).unwrap_or(1);
            // Among nodes that are as near, the fuller one.
            (if places.len() < 2 { 90 } else { near / count }) + full / 10
        }
    }
}

/// Whether the pod's author lets it have this device.
fn is_allowed(gpu: &Gpu, pod: &PodAsk) -> bool {
    let model = gpu.model.to_ascii_lowercase();
    let named = |texts: &[String]| {
        texts
            .iter()
            .any(|text| model.contains(&text.to_ascii_lowercase()))
    };
    (pod.only.is_empty() || pod.only.contains(&gpu.uuid))
        && !pod.never.contains(&gpu.uuid)
        && (pod.models.is_empty() || named(&pod.models))
        && !named(&pod.no_models)
}

fn fits(gpu: &Gpu, used: Used, ask: &Ask) -> bool {
    if !gpu.healthy || used.whole {
        return false;
    }
    if ask.whole {
        return used == Used::default();
    }
    let room = |has: u64, used: u64, asked: u64| used.checked_add(asked).is_some_and(|all| all <= has);
    room(gpu.memory_mib, used.memory_mib, ask.memory.of(gpu.memory_mib))
        && room(100, used.cores, ask.cores)
        && room(gpu.slots, used.slots, 1)
}

/// Puts the devices to take first.
fn order(fit: &mut [usize], gpus: &[Gpu], used: &[Used], prefer: Prefer, wanted: usize) {
    let full = |gpu: &usize| used[*gpu].memory_mib.saturating_mul(1000) / gpus[*gpu].memory_mib.max(1);
    match prefer {
        Prefer::Binpack => fit.sort_by_key(|gpu| (Reverse(full(gpu)), *gpu)),
        Prefer::Spread => fit.sort_by_key(|gpu| (full(gpu), *gpu)),
        Prefer::Topology => {
            fit.sort_by_key(|gpu| (Reverse(full(gpu)), *gpu));
            // The tightest group of linked devices that has enough, else of one NUMA node, else as many groups as it takes.
            let groups = |of: fn(&Gpu) -> Option<u32>| {
                let mut groups: BTreeMap<u32, usize> = BTreeMap::new();
                for group in fit.iter().filter_map(|gpu| of(&gpus[*gpu])) {
                    *groups.entry(group).or_default() += 1;
                }
                groups
            };
            let tightest = |of: fn(&Gpu) -> Option<u32>| {
                let mut enough: Vec<(usize, u32)> = groups(of)
                    .into_iter()
                    .map(|(group, size)| (size, group))
                    .collect();
                enough.retain(|(size, _)| *size >= wanted);
                enough.into_iter().min().map(|(_, group)| group)
            };
            if let Some(group) = tightest(|gpu| gpu.link) {
                fit.sort_by_key(|gpu| gpus[*gpu].link != Some(group));
            } else if let Some(group) = tightest(|gpu| gpu.numa) {
                fit.sort_by_key(|gpu| gpus[*gpu].numa != Some(group));
            } else {
                let sizes = groups(|gpu| gpu.link);
                let size = |gpu: &usize| gpus[*gpu].link.and_then(|link| sizes.get(&link)).copied();
                fit.sort_by_key(|gpu| (Reverse(size(gpu)), gpus[*gpu].link));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask::Memory;
    use super::*;

    fn node() -> Vec<Gpu> {
        (0..8_u32)
            .map(|index| Gpu {
                uuid: format!("GPU-{index}"),
                model: "NVIDIA A100".into(),
                memory_mib: 1000,
                slots: 4,
                numa: Some(index / 4),
                link: Some(index / 2),
                healthy: true,
            })
            .collect()
    }

    fn ask(devices: u32, memory: u64, cores: u64, prefer: Prefer) -> PodAsk {
        PodAsk {
            containers: vec![Ask {
                container: "c".into(),
                devices,
                memory: Memory::Mib(memory),
                cores,
                whole: false,
            }],
            prefer,
            ..PodAsk::default()
        }
    }

    fn uuids(used: &[Used], pod: &PodAsk) -> Vec<String> {
        let grants = choose(&node(), used, pod).expect("fits");
        grants.into_iter().map(|grant| grant.uuid).collect()
    }

    fn with(memory: &[(usize, u64)]) -> Vec<Used> {
        let mut used = vec![Used::default(); 8];
        for (gpu, memory) in memory {
            used[*gpu].memory_mib = *memory;
            used[*gpu].slots = 1;
        }
        used
    }

    #[test]
    fn preferences_choose_devices() {
        let used = with(&[(0, 100), (3, 500), (5, 950)]);
        assert_eq!(uuids(&used, &ask(1, 100, 0, Prefer::Binpack)), ["GPU-3"]);
        assert_eq!(uuids(&used, &ask(1, 100, 0, Prefer::Spread)), ["GPU-1"]);
        // 3 and 5 do not fit, so 0 and 1, or 6 and 7 are linked pairs.
        assert_eq!(
            uuids(&used, &ask(2, 600, 0, Prefer::Topology)),
            ["GPU-0", "GPU-1"]
        );
        // No link has three: a NUMA node has.
        assert_eq!(
            uuids(&used, &ask(3, 600, 0, Prefer::Topology)),
            ["GPU-0", "GPU-1", "GPU-2"]
        );
        // Pairs of one link come before single devices.
        let few = with(&[(0, 900), (4, 900), (1, 900)]);
        assert_eq!(
            uuids(&few, &ask(4, 600, 0, Prefer::Topology)),
            ["GPU-2", "GPU-3", "GPU-6", "GPU-7"]
        );
    }

    #[test]
    fn what_does_not_fit_is_not_chosen() {
        let none = vec![Used::default(); 8];
        for (pod, fits) in [
            (ask(8, 1000, 100, Prefer::Binpack), true),
            (ask(9, 1, 0, Prefer::Binpack), false),
            (ask(1, 1001, 0, Prefer::Binpack), false),
            (ask(1, u64::MAX, 0, Prefer::Binpack), false),
            (ask(1, 1, 101, Prefer::Binpack), false),
        ] {
            assert_eq!(choose(&node(), &none, &pod).is_some(), fits, "{pod:?}");
        }
        let mut sick = node();
        sick[0].healthy = false;
        assert!(choose(&sick, &none, &ask(8, 1, 0, Prefer::Spread)).is_none());
        let mut only = ask(1, 1, 0, Prefer::Spread);
        only.only = vec!["GPU-6".into()];
        assert_eq!(uuids(&none, &only), ["GPU-6"]);
        only.never = vec!["GPU-6".into()];
        assert!(choose(&node(), &none, &only).is_none());
        let mut model = ask(1, 1, 0, Prefer::Spread);
        model.models = vec!["a100".into()];
        assert!(choose(&node(), &none, &model).is_some());
        model.no_models = vec!["A100".into()];
        assert!(choose(&node(), &none, &model).is_none());
    }

    #[test]
    fn whole_devices_and_slices_exclude_each_other() {
        let mut whole = ask(1, 0, 0, Prefer::Binpack);
        whole.containers[0].whole = true;
        let used = with(&[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]);
        assert_eq!(uuids(&used, &whole), ["GPU-7"]);
        let mut all = used;
        all[7].whole = true;
        assert!(choose(&node(), &all, &whole).is_none());
        assert!(uuids(&all, &ask(1, 999, 0, Prefer::Binpack)) != ["GPU-7"]);
    }

    #[test]
    fn scores_tell_full_empty_and_near_nodes_apart() {
        let (empty, full) = (
            vec![Used::default(); 8],
            with(&[(0, 500), (2, 500), (4, 500), (6, 500)]),
        );
        let of = |used: &[Used], prefer| {
            let pod = ask(2, 500, 0, prefer);
            let grants = choose(&node(), used, &pod).expect("fits");
            score(&node(), used, &pod, &grants)
        };
        assert!(of(&full, Prefer::Binpack) > of(&empty, Prefer::Binpack));
        assert!(of(&full, Prefer::Spread) < of(&empty, Prefer::Spread));
        let apart = with(&[(0, 900), (2, 900), (4, 900), (6, 900)]);
        assert!(of(&apart, Prefer::Topology) < of(&empty, Prefer::Topology));
        for used in [&empty, &full] {
            for prefer in [Prefer::Binpack, Prefer::Spread, Prefer::Topology] {
                assert!((0..=100).contains(&of(used, prefer)));
            }
        }
    }
}
