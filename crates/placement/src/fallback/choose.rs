//! Which devices of one node a pod gets: pure.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::ask::{Ask, PodAsk, Prefer};
use super::ledger::{Gpu, Grant, Used};

/// A device for a container: places in the pod's list of containers and in the node's of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    ask: usize,
    gpu: usize,
}

/// The devices of a node for a pod; none where they do not fit.
#[must_use]
pub fn choose(gpus: &[Gpu], used: &[Used], pod: &PodAsk) -> Option<Vec<Grant>> {
    let picks = pick(gpus, used, pod)?;
    let grant = |pick: Pick| {
        let (gpu, ask) = (&gpus[pick.gpu], &pod.containers[pick.ask]);
        let (memory_mib, cores) = taken(gpu, ask);
        Grant {
            container: ask.container.clone(),
            uuid: gpu.uuid.clone(),
            memory_mib,
            cores,
            whole: ask.whole,
        }
    };
    Some(picks.into_iter().map(grant).collect())
}

/// Whether [`choose`] would find devices. It is asked of thousands of nodes for each pod, so it makes no list for most pods.
#[must_use]
pub fn fit(gpus: &[Gpu], used: &[Used], pod: &PodAsk) -> bool {
    match pod.containers.as_slice() {
        [ask] => {
            let each = gpus.iter().zip(used);
            let fit = each.filter(|(gpu, used)| is_allowed(gpu, pod) && fits(gpu, **used, ask));
            fit.count() as u64 >= u64::from(ask.devices)
        }
        _ => pick(gpus, used, pod).is_some(),
    }
}

/// As [`choose`], by places.
#[must_use]
pub fn pick(gpus: &[Gpu], used: &[Used], pod: &PodAsk) -> Option<Vec<Pick>> {
    let mut used = Cow::Borrowed(used);
    let mut picks = Vec::new();
    for (place, ask) in pod.containers.iter().enumerate() {
        let mut fit: Vec<usize> = (0..gpus.len())
            .filter(|gpu| is_allowed(&gpus[*gpu], pod) && fits(&gpus[*gpu], used[*gpu], ask))
            .collect();
        let wanted = usize::try_from(ask.devices).ok()?;
        if fit.len() < wanted {
            return None;
        }
        order(&mut fit, gpus, &used, pod.prefer, wanted);
        for gpu in fit.into_iter().take(wanted) {
            picks.push(Pick { ask: place, gpu });
            // What this container takes, those behind it do not find free.
            if place + 1 < pod.containers.len() {
                let (memory_mib, cores) = taken(&gpus[gpu], ask);
                used.to_mut()[gpu].count(memory_mib, cores, ask.whole);
            }
        }
    }
    Some(picks)
}

/// Memory in MiB and cores in percent that a container takes of a device.
fn taken(gpu: &Gpu, ask: &Ask) -> (u64, u64) {
    match ask.whole {
        true => (gpu.memory_mib, 100),
        false => (ask.memory.of(gpu.memory_mib), ask.cores),
    }
}

/// How well the node suits the pod, from 0 to 100, where it fits.
#[must_use]
pub fn score(gpus: &[Gpu], used: &[Used], pod: &PodAsk, picks: &[Pick]) -> i64 {
    let sum = |numbers: &mut dyn Iterator<Item = u64>| numbers.fold(0, u64::saturating_add);
    let total = sum(&mut gpus.iter().map(|gpu| gpu.memory_mib));
    let full = sum(&mut used.iter().map(|used| used.memory_mib));
    let asked = sum(&mut picks
        .iter()
        .map(|pick| taken(&gpus[pick.gpu], &pod.containers[pick.ask]).0));
    let full = full.saturating_add(asked).saturating_mul(100) / total.max(1);
    let full = i64::try_from(full.min(100)).unwrap_or(100);
    match pod.prefer {
        Prefer::Binpack => full,
        Prefer::Spread => 100 - full,
        Prefer::Topology => {
            let places = picks.iter().map(|pick| &gpus[pick.gpu]);
            let near: i64 = places
                .clone()
                .zip(places.skip(1))
                .map(|(one, other)| match (one, other) {
                    _ if one.link.is_some() && one.link == other.link => 90,
                    _ if one.numa.is_some() && one.numa == other.numa => 45,
                    _ => 0,
                })
                .sum();
            let count = i64::try_from(picks.len().saturating_sub(1).max(1)).unwrap_or(1);
            // Among nodes that are as near, the fuller one.
            (if picks.len() < 2 { 90 } else { near / count }) + full / 10
        }
    }
}

/// Whether the pod's author lets it have this device.
fn is_allowed(gpu: &Gpu, pod: &PodAsk) -> bool {
    let named = |texts: &[String]| {
        // Few pods name models, and each look at a name copies it.
        if texts.is_empty() {
            return false;
        }
        let model = gpu.model.to_ascii_lowercase();
        texts
            .iter()
            .any(|text| model.contains(&text.to_ascii_lowercase()))
    };
    (pod.only.is_empty() || pod.only.contains(&gpu.uuid))
        && !pod.never.contains(&gpu.uuid)
        && (pod.models.is_empty() || named(&pod.models))
        && !named(&pod.no_models)
}

/// Whether the device has room for the container.
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
    use proptest::prelude::*;

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
            let picks = pick(&node(), used, &pod).expect("fits");
            score(&node(), used, &pod, &picks)
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

    proptest! {
        /// The quick answer is that of choosing; and what is chosen, counted one grant after the other, is nowhere too much.
        #[test]
        fn whether_a_pod_fits_is_what_choosing_says(
            used in prop::collection::vec((0_u64..1100, 0_u64..110, 0_u64..5, 0_u8..9), 8),
            asks in prop::collection::vec((0_u32..6, 0_u64..1100, 0_u64..110, 0_u8..9), 0..4),
            marks in 0_u8..8,
        ) {
            let mut gpus = node();
            gpus[usize::from(marks)].healthy = marks % 2 == 0;
            let used: Vec<Used> = used
                .into_iter()
                .map(|(memory_mib, cores, slots, whole)| Used { memory_mib, cores, slots, whole: whole == 0 })
                .collect();
            let asks = asks.into_iter().map(|(devices, memory, cores, form)| Ask {
                container: "c".into(),
                devices,
                memory: match form {
                    0 => Memory::All,
                    1 | 2 => Memory::Percent(memory / 10),
                    _ => Memory::Mib(memory),
                },
                cores,
                whole: form == 8,
            });
            let prefer = [Prefer::Binpack, Prefer::Spread, Prefer::Topology][usize::from(marks % 3)];
            let mut pod = PodAsk { containers: asks.collect(), prefer, ..PodAsk::default() };
            match marks {
                1 => pod.models = vec!["a100".into()],
                3 => pod.no_models = vec!["a100".into()],
                5 => pod.never = vec!["GPU-2".into()],
                _ => {}
            }
            let chosen = choose(&gpus, &used, &pod);
            prop_assert_eq!(fit(&gpus, &used, &pod), chosen.is_some());
            let mut counted = used;
            for grant in chosen.iter().flatten() {
                let gpu = gpus.iter().position(|gpu| gpu.uuid == grant.uuid).expect("one of the node's");
                prop_assert!(gpus[gpu].healthy && !counted[gpu].whole);
                counted[gpu].add(grant);
                let now = counted[gpu];
                prop_assert!(now.memory_mib <= 1000 && now.cores <= 100 && now.slots <= 4, "{:?}", now);
            }
        }
    }
}
