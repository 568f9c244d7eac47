//! The lines of gres.conf that are a node's devices, each beside the device that it is to be.
//!
//! Slurm counts its devices in the order of these lines, and a job is told such a number. So each line has to name the device that
//! stands at its place in the node's file.

use crate::configuration::{Wanted, count_of, gres_lines, number, setting, value};
use crate::hosts::entries;
use crate::include::{Conf, Line};

/// A device as gres.conf has it: a file, or several that are one.
struct Entry<'a> {
    line: &'a Line,
    /// `File=` has one, `MultipleFiles=` all of one device.
    files: Vec<String>,
    kind: Option<&'a str>,
}

impl Entry<'_> {
    fn is(&self, file: &str) -> bool {
        self.files.iter().any(|own| own == file)
    }
}

/// What is wrong with the lines for one resource: sentences, each with its line. None where they fit the devices. `resources` is
/// what slurm.conf says in the node's `Gres=`.
#[must_use]
pub fn mistakes(resources: &str, gres: &Conf, wanted: &Wanted, resource: &str) -> Vec<String> {
    let lines: Vec<&Line> = gres_lines(gres, &wanted.node, resource).collect();
    // The plugin for NVIDIA's library finds whole devices by itself.
    if resource == "gpu" && lines.is_empty() && is_found_by_itself(gres) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let counts: u64 = lines.iter().map(|line| count_of(&line.text)).sum();
    let needed = wanted.count(resource);
    match resource {
        "gpu" => devices(resources, &lines, wanted, &mut found),
        "shard" => shards(gres, &lines, wanted, &mut found),
        _ => counted_only(&lines, &mut found),
    }
    // Where each line was found right but one is missing, the sum tells.
    if found.is_empty() && counts != needed {
        found.push(format!(
            "{} counts {counts} of `{resource}`, and the node's devices have {needed}",
            gres.file
        ));
    }
    found
}

/// Whether Slurm asks NVIDIA's or AMD's library for devices.
#[must_use]
pub fn is_found_by_itself(gres: &Conf) -> bool {
    setting(&gres.text(), "AutoDetect").is_some_and(|how| !how.eq_ignore_ascii_case("off"))
}

fn devices(resources: &str, lines: &[&Line], wanted: &Wanted, found: &mut Vec<String>) {
    let mut there = Vec::new();
    for line in lines {
        let own = entries_of(line, found);
        let counted = value(&line.text, "Count").and_then(number);
        let count = u64::try_from(own.len()).unwrap_or(u64::MAX);
        if let Some(counted) = counted.filter(|counted| *counted != count && count != 0) {
            found.push(format!(
                "{}: Count={counted}, and its files are {count}: Slurm takes no such line",
                line.place()
            ));
        }
        there.extend(own);
    }
    for (at, device) in wanted.devices.iter().enumerate() {
        match there.get(at) {
            Some(entry) if entry.is(&device.file) => {}
            Some(entry) => {
                let stands = wanted.devices.iter().position(|other| entry.is(&other.file));
                let why = match stands {
                    Some(other) => {
                        format!("which is device {other} of the node's file: the order has to be the same")
                    }
                    None => "which is none of the node's devices".into(),
                };
                found.push(format!(
                    "{}: device {at} is {}, {why}; {} is {}",
                    entry.line.place(),
                    entry.files.join(","),
                    device.name,
                    device.file
                ));
            }
            None => found.push(format!(
                "no line of `gpu` is for device {at}, {}: File={}",
                device.name, device.file
            )),
        }
    }
    for entry in there.iter().skip(wanted.devices.len()) {
        found.push(format!(
            "{}: {} is one device more than the {} of the node's file",
            entry.line.place(),
            entry.files.join(","),
            wanted.devices.len()
        ));
    }
    types(resources, &there, found);
}

/// The types of devices in a node's `Gres=`, with how many there are: `gpu:tesla:2` has two of `tesla`.
pub(crate) fn kinds(resources: &str) -> Vec<(&str, u64)> {
    let kind = |item| {
        let item = str::split(item, '(').next().unwrap_or_default();
        let mut parts = item.split(':');
        let (Some("gpu"), Some(kind)) = (parts.next(), parts.next()) else {
            return None;
        };
        // `gpu:2` has a count in its place.
        let mut counted = || parts.next().and_then(number).unwrap_or(1);
        number(kind).is_none().then_some((kind, counted()))
    };
    entries(resources).filter_map(kind).collect()
}

/// The types of slurm.conf beside those of gres.conf. Slurm drains a node that has fewer of a type.
fn types(resources: &str, there: &[Entry<'_>], found: &mut Vec<String>) {
    for (kind, counted) in kinds(resources) {
        let has = there.iter().filter(|entry| entry.kind == Some(kind)).count();
        if u64::try_from(has).ok() != Some(counted) {
            let lines: Vec<String> = there
                .iter()
                .filter(|entry| entry.kind != Some(kind))
                .map(|entry| entry.line.place())
                .collect();
            let at = lines
                .first()
                .map_or_else(String::new, |place| format!("{place}: "));
            found.push(format!(
                "{at}slurm.conf has {counted} of type `{kind}`, and {has} of the node's devices have Type={kind}"
            ));
        }
    }
}

fn shards(gres: &Conf, lines: &[&Line], wanted: &Wanted, found: &mut Vec<String>) {
    let mut counts = vec![0_u64; wanted.devices.len()];
    let mut last = 0;
    for line in lines {
        let count = count_of(&line.text);
        let own = entries_of(line, found);
        // Without a file Slurm divides them evenly among all devices.
        let of: Vec<usize> = if own.is_empty() {
            (0..wanted.devices.len()).collect()
        } else {
            let mut of = Vec::new();
            for entry in &own {
                match wanted.devices.iter().position(|device| entry.is(&device.file)) {
                    Some(at) => of.push(at),
                    None => found.push(format!(
                        "{}: {} is none of the node's devices",
                        line.place(),
                        entry.files.join(",")
                    )),
                }
            }
            of
        };
        let many = u64::try_from(of.len()).unwrap_or(u64::MAX);
        if many != 0 && !count.is_multiple_of(many) {
            found.push(format!(
                "{}: {count} shards of {many} devices are not as many of each",
                line.place()
            ));
        }
        for at in of {
            counts[at] += count / many;
            if at < last {
                found.push(format!(
                    "{}: the shards of device {at} stand behind those of device {last}: the order has to be that of the devices",
                    line.place()
                ));
            }
            last = at;
            let kind = value(&line.text, "Type");
            let gpu = gpu_kind(gres, wanted, at);
            if let (Some(kind), Some(gpu)) = (kind, gpu)
                && kind != gpu
            {
                found.push(format!(
                    "{}: Type={kind}, and the device's own line has Type={gpu}",
                    line.place()
                ));
            }
        }
    }
    for (device, count) in wanted.devices.iter().zip(counts) {
        if count != device.shards {
            let place = lines
                .iter()
                .find(|line| value(&line.text, "File").is_none_or(|list| files(list).contains(&device.file)))
                .map_or_else(|| gres.file.clone(), |line| line.place());
            found.push(format!(
                "{place}: counts {count} of `shard` of {}, {}, and the node's file has {}",
                device.name, device.file, device.shards
            ));
        }
    }
}

/// The type of a device's own line.
fn gpu_kind<'a>(gres: &'a Conf, wanted: &Wanted, at: usize) -> Option<&'a str> {
    let file = &wanted.devices.get(at)?.file;
    let mut lines = gres_lines(gres, &wanted.node, "gpu");
    let line = lines.find(|line| {
        let all = value(&line.text, "File").or_else(|| value(&line.text, "MultipleFiles"));
        all.is_some_and(|list| files(list).contains(file))
    })?;
    value(&line.text, "Type")
}

fn counted_only(lines: &[&Line], found: &mut Vec<String>) {
    for line in lines {
        if value(&line.text, "File").is_some() {
            found.push(format!(
                "{}: `divvy_compute` is counted only, and has no File",
                line.place()
            ));
        }
    }
}

/// The devices of a line. One with both forms of files is a mistake, as Slurm says too.
fn entries_of<'a>(line: &'a Line, found: &mut Vec<String>) -> Vec<Entry<'a>> {
    let kind = value(&line.text, "Type");
    let entry = |files| Entry { line, files, kind };
    let (single, multiple) = (value(&line.text, "File"), value(&line.text, "MultipleFiles"));
    match (single, multiple) {
        (Some(_), Some(_)) => {
            found.push(format!(
                "{}: File and MultipleFiles exclude each other",
                line.place()
            ));
            Vec::new()
        }
        (None, Some(list)) => vec![entry(files(list))],
        (Some(list), None) => files(list).into_iter().map(|file| entry(vec![file])).collect(),
        (None, None) => Vec::new(),
    }
}

/// The files of a list, in its order: `/dev/nvidia[0-1,3]` are three.
pub(crate) fn files(list: &str) -> Vec<String> {
    /// More devices than a node has.
    const MOST: usize = 4096;
    let mut all = Vec::new();
    for entry in entries(list) {
        let Some((before, rest)) = entry.split_once('[') else {
            all.push(entry.to_owned());
            continue;
        };
        let (ranges, after) = rest.split_once(']').unwrap_or((rest, ""));
        for range in ranges.split(',') {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let (Ok(first), Ok(last)) = (low.parse::<usize>(), high.parse::<usize>()) else {
                all.push(entry.to_owned());
                continue;
            };
            let width = low.len();
            all.extend(
                (first..=last)
                    .take(MOST)
                    .map(|at| format!("{before}{at:0width$}{after}")),
            );
        }
        all.truncate(MOST);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::WantedDevice;

    const SLURM: &str = "gpu:2,shard:120,divvy_compute:200";
    const SOUND: &str = "NodeName=n1 Name=gpu File=/dev/nvidia0\nNodeName=n1 Name=gpu File=/dev/nvidia1\n\
                         NodeName=n1 Name=shard Count=80 File=/dev/nvidia0\n\
                         NodeName=n1 Name=shard Count=40 File=/dev/nvidia1\nName=divvy_compute Count=200 Flags=CountOnly\n";

    fn wanted() -> Wanted {
        let device = |number: usize, shards| WantedDevice {
            name: format!("card {number}"),
            file: format!("/dev/nvidia{number}"),
            memory_bytes: 80 << 30,
            shards,
        };
        Wanted {
            node: "n1".into(),
            folder: "/etc/slurm/divvy".into(),
            devices: vec![device(0, 80), device(1, 40)],
            agent_timeout_s: 10,
            comment: false,
        }
    }

    fn said(slurm: &str, gres: &str) -> Vec<String> {
        let gres = Conf::plain("gres.conf", gres);
        ["gpu", "shard", "divvy_compute"]
            .iter()
            .flat_map(|resource| mistakes(slurm, &gres, &wanted(), resource))
            .collect()
    }

    #[test]
    fn other_forms_of_the_same_are_no_mistakes() {
        assert_eq!(said(SLURM, SOUND), [""; 0]);
        for gres in [
            "Name=gpu File=/dev/nvidia[0-1]\nName=shard Count=80 File=/dev/nvidia0\nName=shard Count=40 File=/dev/nvidia1\n",
            "name=gpu Count=2 file=/dev/nvidia0,/dev/nvidia1\nName=shard Count=80 File=/dev/nvidia0\nName=shard Count=40 File=/dev/nvidia1\n",
            "NodeName=n[1-2] Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21\nName=gpu File=/dev/nvidia1\n\
             Name=shard Count=80 File=/dev/nvidia0\nName=shard Count=40 File=/dev/nvidia1\n",
            "AutoDetect=nvml\nName=shard Count=80 File=/dev/nvidia0\nName=shard Count=40 File=/dev/nvidia1\n",
        ] {
            let gres = format!("{gres}Name=divvy_compute Count=200 Flags=CountOnly\n");
            assert_eq!(said(SLURM, &gres), [""; 0], "{gres}");
        }
        let typed = SLURM.replace("gpu:2", "gpu:tesla:2");
        let gres = SOUND.replace("Name=gpu", "Name=gpu Type=tesla");
        assert_eq!(said(&typed, &gres), [""; 0]);
    }

    /// Each has the sum that the devices have.
    #[test]
    fn each_line_s_mistake_is_named_with_its_line() {
        let both = |from: &str, to: &str| {
            let changed = SOUND.replace(from, "X").replace(to, from).replace('X', to);
            said(SLURM, &changed)
        };
        let swapped = both("Name=gpu File=/dev/nvidia0", "Name=gpu File=/dev/nvidia1");
        assert_eq!(swapped.len(), 2, "{swapped:?}");
        assert!(
            swapped[0].starts_with("gres.conf line 1: device 0 is /dev/nvidia1, which is device 1"),
            "{swapped:?}"
        );
        let swapped = both("Count=80", "Count=40");
        assert_eq!(swapped.len(), 2, "{swapped:?}");
        assert!(
            swapped[0].starts_with("gres.conf line 3: counts 40 of `shard` of card 0"),
            "{swapped:?}"
        );
        let one = |from: &str, to: &str| {
            let found = said(SLURM, &SOUND.replace(from, to));
            assert_eq!(found.len(), 1, "{from} {to}: {found:?}");
            found[0].clone()
        };
        assert!(
            one("Name=gpu File=/dev/nvidia1", "Name=gpu File=/dev/nvidia7")
                .contains("none of the node's devices")
        );
        let both_forms = SOUND.replace(
            "Name=gpu File=/dev/nvidia1",
            "Name=gpu File=/dev/nvidia1 MultipleFiles=/dev/x",
        );
        assert!(said(SLURM, &both_forms)[0].starts_with("gres.conf line 2: File and MultipleFiles"));
        assert!(
            one("Name=gpu File=/dev/nvidia1", "Name=gpu File=/dev/nvidia1 Count=3")
                .contains("line 2: Count=3")
        );
        assert!(
            one("NodeName=n1 Name=gpu File=/dev/nvidia1\n", "")
                .contains("no line of `gpu` is for device 1, card 1")
        );
        assert!(
            one("Flags=CountOnly", "File=/dev/nvidia0").contains("line 5: `divvy_compute` is counted only")
        );
        let order = both(
            "Name=shard Count=80 File=/dev/nvidia0",
            "Name=shard Count=40 File=/dev/nvidia1",
        );
        assert!(
            order.len() == 1 && order[0].contains("line 4: the shards of device 0 stand behind"),
            "{order:?}"
        );
        // Evenly divided, which is not what the node's file says.
        let even = SOUND
            .replace("NodeName=n1 Name=shard Count=40 File=/dev/nvidia1\n", "")
            .replace("Count=80 File=/dev/nvidia0", "Count=120");
        let found = said(SLURM, &even);
        assert!(
            found.len() == 2 && found[0].contains("line 3: counts 60 of `shard`"),
            "{found:?}"
        );
        let odd = even.replace("Count=120", "Count=121");
        assert!(said(SLURM, &odd)[0].contains("not as many of each"));
        let more = format!("{SOUND}Name=gpu File=/dev/nvidia2\n");
        assert!(said(SLURM, &more)[0].contains("line 6: /dev/nvidia2 is one device more"));
        let typed = SLURM.replace("gpu:2", "gpu:tesla:2");
        let gres = SOUND.replacen("Name=gpu", "Name=gpu Type=tesla", 1);
        let found = said(&typed, &gres);
        assert!(
            found.len() == 1 && found[0].contains("line 2: slurm.conf has 2 of type `tesla`, and 1 "),
            "{found:?}"
        );
        let gres = gres.replace("Count=80", "Type=v100 Count=80");
        assert!(
            said(&typed, &gres)
                .iter()
                .any(|text| text.contains("line 3: Type=v100, and the device's own"))
        );
    }
}
