//! From what Slurm granted to the slice to ask for.

use divvy_model::{Bytes, Compute};

use crate::asked::Asked;
use crate::details::Granted;
use crate::node::{Node, NodeDevice};
use crate::refusal::{Refusal, Remedy};

/// A device that is on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Here {
    /// Its UUID.
    pub uuid: String,
    /// The memory that programs can have, in bytes.
    pub memory_bytes: Bytes,
}

/// What a job gets on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// No device: its programs are shown none.
    Nothing,
    /// Whole devices, by UUID, in Slurm's order.
    Whole(Vec<String>),
    /// A part of each of these devices, by UUID, in Slurm's order.
    Part {
        /// The devices.
        devices: Vec<String>,
        /// Memory of each, in bytes.
        memory: Bytes,
        /// Share of each one's time.
        compute: Compute,
    },
}

/// Plans a job's slice.
///
/// A shard is its part of the memory that programs can have, and of the time. Memory is rounded down to whole MiB, so that
/// all shards together fit. What the job asked for by options makes its part smaller, and a whole device a part.
///
/// # Errors
/// The node's devices are others than its file says, or the job asks for what no slice can be, or for more than it has.
pub fn plan(granted: &Granted, node: &Node, devices: &[Here], asked: &Asked) -> Result<Plan, Refusal> {
    if granted.shards == 0 && granted.gpus.is_empty() {
        return match asked.is_nothing() {
            true => Ok(Plan::Nothing),
            false => Err(asked.of_no_device()),
        };
    }
    let is_whole = granted.shards == 0;
    if !is_whole && !granted.gpus.is_empty() {
        return Err(Refusal::new(
            Remedy::Change,
            "the job has whole devices and shards of devices at once",
        )
        .hint("ask for --gres=gpu:N or for --gres=shard:N"));
    }
    let indexes = if is_whole {
        &granted.gpus
    } else {
        &granted.shard_devices
    };
    let found = indexes
        .iter()
        .map(|index| here(*index, node, devices))
        .collect::<Result<Vec<_>, _>>()?;
    let uuids: Vec<String> = found.iter().map(|(device, _)| device.uuid.clone()).collect();
    let sizes = found.iter().map(|(device, _)| device.memory_bytes);
    if is_whole {
        let has = (sizes.clone().min().unwrap_or_default(), Compute::WHOLE);
        return match asked.is_nothing() {
            true => Ok(Plan::Whole(uuids)),
            false => part(uuids, has, asked.memory_on(sizes), asked.compute),
        };
    }
    let count = u64::try_from(found.len()).unwrap_or(u64::MAX);
    if count == 0 || !granted.shards.is_multiple_of(count) {
        return Err(Refusal::new(
            Remedy::Change,
            format!(
                "{} shards of {count} devices are not as many of each",
                granted.shards
            ),
        )
        .hint("ask for a number of shards that the number of devices divides"));
    }
    let each = granted.shards / count;
    let mut memory = Bytes(u64::MAX);
    let mut parts = u16::MAX;
    for (device, shards) in &found {
        if each > *shards {
            return Err(Refusal::new(
                Remedy::Repair,
                format!(
                    "the job has {each} shards of {}, which has {shards} by the node's file",
                    device.uuid
                ),
            )
            .hint("`divvy slurm setup` on the node names what gres.conf and the file say"));
        }
        memory = memory.min(part_of(device.memory_bytes, each, *shards));
        parts = parts.min(share_of(each, *shards));
    }
    if memory.0 == 0 {
        return Err(Refusal::new(Remedy::Repair, "a shard is less than 1 MiB")
            .hint("give the device fewer shards in gres.conf and in the node's file"));
    }
    let compute = match granted.compute {
        None => Compute(parts),
        Some(percent @ 1..=100) => Compute(u16::try_from(percent * 100).unwrap_or(10_000)),
        Some(percent) => {
            return Err(Refusal::new(
                Remedy::Change,
                format!("divvy_compute:{percent} is no share of a device's time"),
            )
            .hint("ask for --gres=divvy_compute:N with N from 1 to 100"));
        }
    };
    part(uuids, (memory, compute), asked.memory_on(sizes), asked.compute)
}

/// What a job has of each of its devices, or less where it asked for less.
fn part(
    devices: Vec<String>,
    has: (Bytes, Compute),
    memory: Option<Bytes>,
    compute: Option<Compute>,
) -> Result<Plan, Refusal> {
    let more = |option: &str, asked: String, has: String| {
        Refusal::new(
            Remedy::Change,
            format!("--{option}={asked} is more than the {has} that Slurm gave the job of each device"),
        )
        .hint("ask for more shards, or for less by the option")
    };
    if let Some(asked) = memory.filter(|asked| *asked > has.0) {
        return Err(more("divvy-memory", asked.to_string(), has.0.to_string()));
    }
    if let Some(asked) = compute.filter(|asked| *asked > has.1) {
        return Err(more("divvy-compute", asked.to_string(), has.1.to_string()));
    }
    Ok(Plan::Part {
        devices,
        memory: memory.unwrap_or(has.0),
        compute: compute.unwrap_or(has.1),
    })
}

/// A device of Slurm's by its index, and how many shards it has.
fn here<'a>(index: u32, node: &Node, devices: &'a [Here]) -> Result<(&'a Here, u64), Refusal> {
    let known: Option<&NodeDevice> = usize::try_from(index)
        .ok()
        .and_then(|index| node.devices.get(index));
    let hint = "`divvy slurm setup --apply` writes the node's file again";
    let known = known.ok_or_else(|| {
        Refusal::new(
            Remedy::Repair,
            format!("Slurm's device {index} is not in the node's file"),
        )
        .hint(hint)
    })?;
    let device = devices
        .iter()
        .find(|device| device.uuid == known.uuid)
        .ok_or_else(|| {
            Refusal::new(
                Remedy::Repair,
                format!("Slurm's device {index}, {}, is not on this node", known.uuid),
            )
            .hint(hint)
        })?;
    let memory = device.memory_bytes;
    if memory < known.memory_bytes {
        return Err(Refusal::new(
            Remedy::Repair,
            format!(
                "{} has {memory} for programs, and its {} shards were made of {}",
                known.uuid, known.shards, known.memory_bytes
            ),
        )
        .hint(hint));
    }
    Ok((device, known.shards))
}

/// `count` of `all` parts of a device's memory, in whole MiB.
fn part_of(memory: Bytes, count: u64, all: u64) -> Bytes {
    const MIB: u128 = 1 << 20;
    let part = u128::from(memory.0) * u128::from(count) / u128::from(all.max(1));
    Bytes(u64::try_from(part / MIB * MIB).unwrap_or(u64::MAX))
}

/// The same of its time, in parts per 10 000, and one at least.
fn share_of(count: u64, all: u64) -> u16 {
    let parts = u128::from(count) * 10_000 / u128::from(all.max(1));
    u16::try_from(parts.clamp(1, 10_000)).unwrap_or(10_000)
}

#[cfg(test)]
mod tests {
    use divvy_model::MemoryAmount;
    use proptest::prelude::*;

    use super::*;

    fn device(uuid: &str, mib: u64) -> Here {
        Here {
            uuid: uuid.into(),
            memory_bytes: Bytes(mib << 20),
        }
    }

    fn node(devices: &[Here], shards: u64) -> Node {
        let known = |device: &Here| NodeDevice {
            uuid: device.uuid.clone(),
            memory_bytes: device.memory_bytes,
            shards,
            file: None,
        };
        Node {
            devices: devices.iter().map(known).collect(),
            ..Node::default()
        }
    }

    fn shards(count: u64, devices: &[u32]) -> Granted {
        Granted {
            shards: count,
            shard_devices: devices.into(),
            ..Granted::default()
        }
    }

    #[test]
    fn shards_are_memory_and_time_of_the_device_that_slurm_chose() {
        let devices = [device("GPU-a", 81_559), device("MIG-b", 20_000)];
        let node = node(&devices, 80);
        let planned = |granted: &Granted| plan(granted, &node, &devices, &Asked::default());
        let part = |uuids: &[&str], mib: u64, parts| Plan::Part {
            devices: uuids.iter().map(ToString::to_string).collect(),
            memory: Bytes(mib << 20),
            compute: Compute(parts),
        };
        assert_eq!(planned(&shards(20, &[0])), Ok(part(&["GPU-a"], 20_389, 2500)));
        assert_eq!(planned(&shards(80, &[0])), Ok(part(&["GPU-a"], 81_559, 10_000)));
        assert_eq!(planned(&shards(20, &[1])), Ok(part(&["MIG-b"], 5_000, 2500)));
        assert_eq!(
            planned(&shards(40, &[1, 0])),
            Ok(part(&["MIG-b", "GPU-a"], 5_000, 2500))
        );
        let mut asked = shards(20, &[0]);
        asked.compute = Some(30);
        assert_eq!(planned(&asked), Ok(part(&["GPU-a"], 20_389, 3000)));
        assert_eq!(planned(&Granted::default()), Ok(Plan::Nothing));
        let whole = Granted {
            gpus: vec![1, 0],
            ..Granted::default()
        };
        assert_eq!(
            planned(&whole),
            Ok(Plan::Whole(vec!["MIG-b".into(), "GPU-a".into()]))
        );
    }

    #[test]
    fn a_job_may_ask_for_less_than_it_was_given_and_never_for_more() {
        let devices = [device("GPU-a", 80_000), device("GPU-b", 40_000)];
        let node = node(&devices, 80);
        let asked = |memory: Option<u64>, compute: Option<u16>| Asked {
            memory: memory.map(|mib| MemoryAmount::Bytes(Bytes(mib << 20))),
            compute: compute.map(Compute),
        };
        let whole = |gpus: &[u32]| Granted {
            gpus: gpus.into(),
            ..Granted::default()
        };
        let limits = |granted: &Granted, asked: &Asked| match plan(granted, &node, &devices, asked) {
            Ok(Plan::Part { memory, compute, .. }) => Ok((memory.0 >> 20, compute.0)),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => {
                assert!(refusal.fault.hint.is_some());
                Err(refusal.remedy)
            }
        };
        let quarter = shards(20, &[0]);
        for (memory, compute, seen) in [
            (Some(4_096), None, Ok((4_096, 2500))),
            (None, Some(1000), Ok((20_000, 1000))),
            (Some(20_000), Some(2500), Ok((20_000, 2500))),
            (Some(20_001), None, Err(Remedy::Change)),
            (None, Some(2501), Err(Remedy::Change)),
        ] {
            assert_eq!(
                limits(&quarter, &asked(memory, compute)),
                seen,
                "{memory:?} {compute:?}"
            );
        }
        // Shares of the time that Slurm counted by themselves are the most too.
        let mut counted = shards(20, &[0]);
        counted.compute = Some(50);
        assert_eq!(limits(&counted, &asked(None, Some(5000))), Ok((20_000, 5000)));
        assert_eq!(limits(&counted, &asked(None, Some(5001))), Err(Remedy::Change));
        // A whole device becomes a part of one; of two unlike ones the smaller counts.
        assert_eq!(
            limits(&whole(&[0]), &asked(Some(4_096), None)),
            Ok((4_096, 10_000))
        );
        assert_eq!(
            limits(&whole(&[0, 1]), &asked(None, Some(500))),
            Ok((40_000, 500))
        );
        assert_eq!(
            limits(&whole(&[0, 1]), &asked(Some(40_001), None)),
            Err(Remedy::Change)
        );
        // A part of the device is one of its memory.
        let half = Asked {
            memory: Some(MemoryAmount::Share(5000)),
            compute: None,
        };
        assert_eq!(limits(&whole(&[1]), &half), Ok((20_000, 10_000)));
        assert_eq!(limits(&quarter, &half), Err(Remedy::Change));
        // Without a device there is nothing to divide.
        let none = plan(&Granted::default(), &node, &devices, &half).expect_err("none");
        assert_eq!(none.remedy, Remedy::Change);
    }

    #[test]
    fn what_fits_the_node_badly_is_refused_with_who_can_help() {
        let devices = [device("GPU-a", 80_000)];
        let sound = node(&devices, 80);
        let refused = |granted: &Granted, node: &Node, devices: &[Here]| {
            let refusal = plan(granted, node, devices, &Asked::default()).expect_err("refused");
            assert!(refusal.fault.hint.is_some(), "{}", refusal.fault);
            refusal.remedy
        };
        assert_eq!(
            refused(&shards(1, &[1]), &sound, &devices),
            Remedy::Repair,
            "not in the file"
        );
        assert_eq!(
            refused(&shards(1, &[0]), &sound, &[]),
            Remedy::Repair,
            "not there"
        );
        assert_eq!(
            refused(&shards(1, &[0]), &sound, &[device("GPU-a", 40_000)]),
            Remedy::Repair,
            "smaller"
        );
        assert_eq!(
            refused(&shards(81, &[0]), &sound, &devices),
            Remedy::Repair,
            "more than there are"
        );
        assert_eq!(
            refused(&shards(1, &[]), &sound, &devices),
            Remedy::Change,
            "of none"
        );
        let tiny = node(&[device("GPU-a", 1)], 80);
        assert_eq!(
            refused(&shards(1, &[0]), &tiny, &[device("GPU-a", 1)]),
            Remedy::Repair
        );
        for percent in [0, 101] {
            let mut asked = shards(1, &[0]);
            asked.compute = Some(percent);
            assert_eq!(refused(&asked, &sound, &devices), Remedy::Change);
        }
        let mut both = shards(1, &[0]);
        both.gpus = vec![0];
        assert_eq!(refused(&both, &sound, &devices), Remedy::Change);
    }

    proptest! {
        #[test]
        fn the_parts_never_exceed_the_whole(mib in 1_u64..200_000, counts in proptest::collection::vec(1_u64..50, 1..40)) {
            let all: u64 = counts.iter().sum();
            let memory = Bytes(mib << 20);
            let held: u64 = counts.iter().map(|count| part_of(memory, *count, all).0).sum();
            prop_assert!(held <= memory.0);
            if all <= 10_000 {
                let time: u64 = counts.iter().map(|count| u64::from(share_of(*count, all))).sum();
                prop_assert!(time <= 10_000, "{}", time);
            }
        }
    }
}
