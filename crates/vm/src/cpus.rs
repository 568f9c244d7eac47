//! The processors of a host by node and core, and which of them a machine's processors are pinned to.

use std::collections::BTreeMap;

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};
use serde::Serialize;

/// A NUMA node: its cores in order, each with its hardware threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// The threads of each core, in order.
    pub cores: Vec<Vec<u32>>,
}

/// Reads a list as the kernel writes it: `0-3,8-11`. Numbers beyond what a kernel has are left out.
#[must_use]
pub fn list(text: &str) -> Vec<u32> {
    const MOST: u32 = 8192;
    let mut numbers = Vec::new();
    // Some kernels end these files with a zero byte.
    let text = text.trim_end_matches(|letter: char| letter.is_whitespace() || letter == '\0');
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            numbers.extend((first..=last.min(MOST)).filter(|number| *number <= MOST));
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Writes such a list.
#[must_use]
pub fn written(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let part = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// The nodes of a host that have processors, by number. A host without NUMA is one node, 0.
#[must_use]
pub fn nodes(root: &Sysroot) -> Vec<Node> {
    let cpu = "sys/devices/system/cpu";
    let online = list(&root.text(&format!("{cpu}/online")).unwrap_or_default());
    let mut nodes: Vec<(u32, Vec<u32>)> = Vec::new();
    let folder = "sys/devices/system/node";
    for name in root.names(folder) {
        let Some(number) = name.strip_prefix("node").and_then(|number| number.parse().ok()) else {
            continue;
        };
        let own = list(&root.text(&format!("{folder}/{name}/cpulist")).unwrap_or_default());
        nodes.push((number, own));
    }
    if nodes.is_empty() {
        nodes.push((0, online.clone()));
    }
    nodes.sort_unstable();
    let siblings = |number: u32| {
        let at = |file: &str| root.text(&format!("{cpu}/cpu{number}/topology/{file}"));
        let text = at("thread_siblings_list").or_else(|| at("core_cpus_list"));
        text.map_or_else(|| vec![number], |text| list(&text))
    };
    let mut all = Vec::new();
    for (number, own) in nodes {
        let mut cores: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for cpu in own {
            if online.is_empty() || online.contains(&cpu) {
                let first = siblings(cpu).first().copied().unwrap_or(cpu);
                cores.entry(first).or_default().push(cpu);
            }
        }
        if !cores.is_empty() {
            all.push(Node {
                number,
                cores: cores.into_values().collect(),
            });
        }
    }
    all
}

/// The processors of a machine on those of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pinning {
    /// Threads of each core, of the machine as of the host.
    pub threads: u32,
    /// For each processor of the machine in order: the host's processor, and which of the machine's nodes it is in.
    pub vcpus: Vec<(u32, u32)>,
    /// The host's node of each of the machine's nodes.
    pub nodes: Vec<u32>,
    /// The host's processors for everything that QEMU does beside.
    pub emulator: Vec<u32>,
}

/// Chooses processors on the nodes of a machine's GPUs, in equal parts: whole cores, siblings together. The first core of
/// each node is left to the host and to QEMU's own work as long as there are others.
///
/// # Errors
/// [`Code::VmHost`] where a node has too few processors, or the number does not divide among the nodes.
pub fn pin(host: &[Node], wanted: &[u32], count: u32) -> Result<Pinning, Fault> {
    let few = |message: String| {
        Fault::new(Code::VmHost, message)
            .hint("ask for fewer with --vcpus; `lscpu -e` shows which processors a node has")
    };
    let mut numbers: Vec<u32> = wanted.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.is_empty() {
        numbers.extend(host.first().map(|node| node.number));
    }
    let parts = u32::try_from(numbers.len()).unwrap_or(1);
    if parts == 0 || count == 0 || !count.is_multiple_of(parts) {
        return Err(few(format!(
            "{count} processors do not divide among the {parts} nodes of the GPUs"
        )));
    }
    let each = usize::try_from(count / parts).unwrap_or(usize::MAX);
    let mut vcpus = Vec::new();
    let mut emulator = Vec::new();
    let mut threads = None;
    for (at, number) in (0..).zip(&numbers) {
        let node = host
            .iter()
            .find(|node| node.number == *number)
            .ok_or_else(|| few(format!("node {number} has no processors")))?;
        let most = node.cores.iter().map(Vec::len).min().unwrap_or(1).max(1);
        // An odd number of processors has a core each.
        let own = if each.is_multiple_of(most) { most } else { 1 };
        let own = threads.map_or(own, |known: usize| known.min(own));
        threads = Some(own);
        let cores = each.div_ceil(own);
        if cores > node.cores.len() {
            let there: usize = node.cores.iter().map(Vec::len).sum();
            return Err(few(format!(
                "node {number} has {there} processors in {} cores, and {each} are asked for there",
                node.cores.len()
            )));
        }
        let skipped = usize::from(cores < node.cores.len());
        for core in node.cores.iter().skip(skipped).take(cores) {
            vcpus.extend(core.iter().take(own).map(|cpu| (*cpu, at)));
        }
        if skipped == 1 {
            emulator.extend(&node.cores[0]);
        }
    }
    if emulator.is_empty() {
        let others = host.iter().filter(|node| !numbers.contains(&node.number));
        emulator.extend(others.flat_map(|node| node.cores.first().into_iter().flatten()));
    }
    if emulator.is_empty() {
        return Err(few(
            "no processor is left for the host and for QEMU's own work".into()
        ));
    }
    emulator.sort_unstable();
    Ok(Pinning {
        threads: u32::try_from(threads.unwrap_or(1)).unwrap_or(1),
        vcpus,
        nodes: numbers,
        emulator,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        assert_eq!(list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(list("32-34\n\0"), [32, 33, 34]);
        assert_eq!(written(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!(list("x,5-"), [0_u32; 0]);
        assert!(list("0-4294967295").len() < 10_000);
    }

    fn host(sockets: u32, cores: u32, threads: u32) -> Vec<Node> {
        let node = |number| Node {
            number,
            cores: (0..cores)
                .map(|core| {
                    let first = number * cores + core;
                    (0..threads)
                        .map(|thread| first + thread * sockets * cores)
                        .collect()
                })
                .collect(),
        };
        (0..sockets).map(node).collect()
    }

    #[test]
    fn whole_cores_of_the_gpus_node_and_one_left_for_the_host() {
        let pinned = pin(&host(2, 4, 2), &[1], 6).expect("there are enough");
        let cpus: Vec<u32> = pinned.vcpus.iter().map(|(cpu, _)| *cpu).collect();
        assert_eq!((pinned.threads, cpus), (2, vec![5, 13, 6, 14, 7, 15]));
        assert_eq!(pinned.emulator, [4, 12]);
        // All of the node: QEMU's own work goes to another one.
        let pinned = pin(&host(2, 4, 2), &[1], 8).expect("there are enough");
        assert_eq!(pinned.emulator, [0, 8]);
        assert!(pin(&host(1, 4, 2), &[0], 8).is_err(), "nothing would be left");
        assert!(pin(&host(2, 4, 2), &[0], 10).is_err());
        // Two nodes in equal parts.
        let pinned = pin(&host(2, 4, 2), &[0, 1, 1], 8).expect("there are enough");
        assert_eq!((pinned.nodes.as_slice(), pinned.vcpus[7]), (&[0, 1][..], (14, 1)));
        assert!(pin(&host(2, 4, 2), &[0, 1], 7).is_err());
        // Odd numbers, and hosts without SMT, have a core each.
        assert_eq!(pin(&host(2, 4, 2), &[0], 3).expect("there are").threads, 1);
        assert_eq!(pin(&host(1, 8, 1), &[0], 4).expect("there are").vcpus[0], (1, 0));
    }
}
