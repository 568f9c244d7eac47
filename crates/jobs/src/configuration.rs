//! Slurm's configuration: lines of `KEY=VALUE` words, and the mistakes that keep jobs from their slices.

use crate::gres::{self, files};
use crate::hosts::contains;
use crate::include::{Conf, Line};

/// How long the hooks wait for a program of Slurm's, in seconds.
pub const PROGRAM_TIMEOUT_S: u64 = 20;

/// What a node's configuration has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The node's name in slurm.conf.
    pub node: String,
    /// The folder of the programs that slurmd runs: `prolog`, `task-prolog`, `epilog` and `sweep`.
    pub folder: String,
    /// The devices, in the order of gres.conf.
    pub devices: Vec<WantedDevice>,
    /// How long a prolog waits for the agent, in seconds.
    pub agent_timeout_s: u64,
    /// Whether a job's use is to be in its comment.
    pub comment: bool,
}

/// A device of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedDevice {
    /// Its name, for people.
    pub name: String,
    /// Its device node, as gres.conf is to name it.
    pub file: String,
    /// The memory that programs can have, in bytes.
    pub memory_bytes: u64,
    /// How many shards it is to have.
    pub shards: u64,
}

/// A mistake, or a thing to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether jobs would not get what they are to have.
    pub is_error: bool,
    /// A sentence.
    pub text: String,
}

/// What slurmd runs, by the key in slurm.conf and the name in [`Wanted::folder`], which is the verb's too.
pub const PROGRAMS: [(&str, &str); 4] = [
    ("Prolog", "prolog"),
    ("TaskProlog", "task-prolog"),
    ("Epilog", "epilog"),
    ("HealthCheckProgram", SWEEP),
];

/// The program that ends the slices of jobs that are gone, whose epilog a killed slurmd did not run.
pub const SWEEP: &str = "sweep";

/// How often slurmd runs it, in seconds, where slurm.conf says nothing. slurmd runs it when it starts too.
pub const SWEEP_INTERVAL_S: u64 = 60;

/// The generic resources of a node.
pub const RESOURCES: [&str; 3] = ["gpu", "shard", "divvy_compute"];

impl Wanted {
    /// How many of a resource the node has.
    #[must_use]
    pub fn count(&self, resource: &str) -> u64 {
        let devices = u64::try_from(self.devices.len()).unwrap_or(u64::MAX);
        match resource {
            "gpu" => devices,
            "shard" => self.devices.iter().map(|device| device.shards).sum(),
            _ => devices.saturating_mul(100),
        }
    }
}

/// The words of a line without its comment: `NodeName=n[1-2] CPUs=4` has two.
pub fn words(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let line = line.split('#').next().unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.split_once('='))
}

/// The value of a key in one line.
#[must_use]
pub fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    words(line)
        .find(|(name, _)| name.eq_ignore_ascii_case(key))
        .map(|(_, value)| value)
}

/// The value of a key that stands by itself: the last one, as Slurm reads it.
#[must_use]
pub fn setting<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let starts = |line: &&str| {
        words(line)
            .next()
            .is_some_and(|(name, _)| name.eq_ignore_ascii_case(key))
    };
    text.lines().rfind(starts).and_then(|line| value(line, key))
}

/// Whether a list of words separated by commas has this one.
#[must_use]
pub fn lists(list: Option<&str>, word: &str) -> bool {
    let mut words = list.unwrap_or_default().split(',');
    words.any(|other| other.trim().eq_ignore_ascii_case(word))
}

/// How many of a resource a `Gres=` says: `gpu:tesla:2,shard:80` has 80 of `shard`; None where it names none.
#[must_use]
pub fn counted(gres: &str, resource: &str) -> Option<u64> {
    let mut found = None;
    for item in gres.split(',') {
        let mut parts = item.split('(').next().unwrap_or_default().split(':');
        if parts.next() != Some(resource) {
            continue;
        }
        let count = parts.next_back().and_then(number).unwrap_or(1);
        found = Some(found.unwrap_or(0) + count);
    }
    found
}

/// A count as Slurm writes them: `80`, `2K` for 2048.
pub(crate) fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The line of slurm.conf that names the node.
#[must_use]
pub fn node_line<'a>(slurm: &'a str, node: &str) -> Option<&'a str> {
    slurm
        .lines()
        .find(|line| value(line, "NodeName").is_some_and(|list| contains(list, node)))
}

/// What the node's line says for a key; what it leaves out, the line `NodeName=DEFAULT` before it says.
#[must_use]
pub fn node_value(slurm: &str, node: &str, key: &str) -> Option<String> {
    let mut default = None;
    for line in slurm.lines() {
        let Some(list) = value(line, "NodeName") else {
            continue;
        };
        if list.eq_ignore_ascii_case("DEFAULT") {
            default = value(line, key).or(default);
        } else if contains(list, node) {
            return value(line, key).or(default).map(str::to_owned);
        }
    }
    None
}

/// The lines of gres.conf that are for the node and this resource.
pub fn gres_lines<'a>(gres: &'a Conf, node: &str, resource: &str) -> impl Iterator<Item = &'a Line> {
    gres.lines.iter().filter(move |line| {
        value(&line.text, "Name") == Some(resource)
            && value(&line.text, "NodeName").is_none_or(|list| contains(list, node))
    })
}

/// How many a line of gres.conf counts: its `Count`, else one for each file. Several files of one device are one.
#[must_use]
pub fn count_of(line: &str) -> u64 {
    let files = || value(line, "File").map_or(1, |list| u64::try_from(files(list).len()).unwrap_or(1));
    value(line, "Count").and_then(number).unwrap_or_else(files)
}

/// Whether slurmd runs its health check now and then.
#[must_use]
pub fn sweeps(slurm: &str) -> bool {
    setting(slurm, "HealthCheckInterval")
        .and_then(|seconds| seconds.parse::<u64>().ok())
        .is_some_and(|seconds| seconds > 0)
}

/// The mistakes in a configuration, the worst first.
#[must_use]
pub fn check(slurm: &str, gres: &Conf, wanted: &Wanted) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut error = |text: String| found.push(Finding { is_error: true, text });
    match setting(slurm, "SelectType") {
        Some("select/cons_tres") => {}
        other => error(format!(
            "SelectType is {}: only select/cons_tres counts shards",
            other.unwrap_or("not set")
        )),
    }
    let types = setting(slurm, "GresTypes");
    for resource in RESOURCES.iter().filter(|resource| !lists(types, resource)) {
        error(format!(
            "GresTypes does not name `{resource}`: no job can ask for it"
        ));
    }
    let flags = setting(slurm, "PrologFlags");
    if !["Alloc", "Contain", "X11"].iter().any(|flag| lists(flags, flag)) {
        error("PrologFlags has no Alloc: a job would start before its slice is made".into());
    }
    // docs/adr/0073: Slurm 22.05 began steps of one job in some dozens before their prologs had ended.
    if lists(flags, "NoHold") {
        error(
            "PrologFlags has NoHold: a job's first step may begin before its slice is made, and then fails"
                .into(),
        );
    }
    for (key, name) in PROGRAMS {
        let own = format!("{}/{name}", wanted.folder);
        match setting(slurm, key) {
            Some(path) if path == own => {}
            Some(path) => error(format!("{key} is {path}: Divvy's, {own}, is not run")),
            None => error(format!("{key} is not set: Divvy's, {own}, is not run")),
        }
    }
    if !sweeps(slurm) {
        error(
            "HealthCheckInterval is not set or 0: a slice whose job's epilog was lost with slurmd stays until a later job".into(),
        );
    }
    match node_line(slurm, &wanted.node) {
        None => error(format!("no NodeName line names {}", wanted.node)),
        Some(_) => {
            let list = node_value(slurm, &wanted.node, "Gres").unwrap_or_default();
            for resource in RESOURCES {
                let (there, needed) = (counted(&list, resource), wanted.count(resource));
                if there != Some(needed) {
                    let there = there.map_or_else(|| "none".into(), |there| there.to_string());
                    error(format!(
                        "the line of node {} has {there} of `{resource}` in Gres, and {needed} are there",
                        wanted.node
                    ));
                }
            }
        }
    }
    let resources = node_value(slurm, &wanted.node, "Gres").unwrap_or_default();
    for resource in RESOURCES {
        gres::mistakes(&resources, gres, wanted, resource)
            .into_iter()
            .for_each(&mut error);
    }
    let mut warning = |text: String| {
        found.push(Finding {
            is_error: false,
            text,
        });
    };
    if lists(setting(slurm, "SelectTypeParameters"), "MULTIPLE_SHARING_GRES_PJ") {
        warning(
            "SelectTypeParameters has MULTIPLE_SHARING_GRES_PJ: Slurm does not tell how a job's shards lie on several devices, \
             so a job has as many of each, and one whose number does not divide is held"
                .into(),
        );
    }
    for device in &wanted.devices {
        let rest = device.memory_bytes % device.shards.max(1);
        if rest != 0 {
            warning(format!(
                "{} shards do not divide the {} bytes of {}: a job's memory is rounded down to whole MiB",
                device.shards, device.memory_bytes, device.name
            ));
        }
    }
    if setting(slurm, "ProctrackType").is_some_and(|kind| kind == "proctrack/pgid") {
        warning(
            "ProctrackType is proctrack/pgid: a job's processes outside its session are found only where they use its slice; \
             proctrack/cgroup finds all"
                .into(),
        );
    }
    if wanted.comment && setting(slurm, "AccountingStorageType") != Some("accounting_storage/slurmdbd") {
        warning(
            "the node's file has `comment`, and AccountingStorageType is not accounting_storage/slurmdbd: jobs have comments in \
             Slurm's database only; `accounting` writes a file"
                .into(),
        );
    }
    for key in ["PrologEpilogTimeout", "PrologTimeout"] {
        let limit = setting(slurm, key).and_then(|limit| limit.parse::<u64>().ok());
        if let Some(limit) = limit.filter(|limit| *limit <= wanted.agent_timeout_s) {
            warning(format!(
                "{key} is {limit} s, and a prolog waits up to {} s for the agent: Slurm would drain the node first",
                wanted.agent_timeout_s
            ));
        }
    }
    for key in ["PrologEpilogTimeout", "EpilogTimeout"] {
        let limit = setting(slurm, key).and_then(|limit| limit.parse::<u64>().ok());
        let most = wanted.agent_timeout_s + PROGRAM_TIMEOUT_S;
        if let Some(limit) = limit.filter(|limit| wanted.comment && *limit <= most) {
            warning(format!(
                "{key} is {limit} s, and an epilog that writes comments waits up to {most} s where the agent and slurmdbd do not \
                 answer: Slurm would drain the node first"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_counts() {
        let line = "NodeName=n[1-2] gres=gpu:tesla:2,shard:160 # Gres=no";
        assert_eq!(value(line, "Gres"), Some("gpu:tesla:2,shard:160"));
        assert_eq!(counted("gpu:tesla:2,shard:160", "shard"), Some(160));
        assert_eq!(counted("gpu:tesla:2,gpu:v100:1", "gpu"), Some(3));
        assert_eq!(
            (counted("gpu", "gpu"), counted("gpu:1", "shard")),
            (Some(1), None)
        );
        assert_eq!(
            setting("Prolog=/a\n#Prolog=/b\nprolog=/c # x\n", "Prolog"),
            Some("/c")
        );
        assert_eq!(setting("NodeName=a Prolog=/x\n", "Prolog"), None);
        let slurm = "NodeName=DEFAULT Gres=gpu:1\nNodeName=a,b[1-2]\nNodeName=c Gres=gpu:2\n";
        for (node, gres) in [("b2", Some("gpu:1")), ("c", Some("gpu:2")), ("d", None)] {
            assert_eq!(node_value(slurm, node, "Gres").as_deref(), gres, "{node}");
        }
        for (line, count) in [
            ("Name=gpu File=/dev/nvidia[0-3]", 4),
            ("Name=gpu File=/dev/nvidia[0,2-3]", 3),
            ("Name=shard Count=80 File=/dev/nvidia0", 80),
            ("Name=gpu File=/dev/nvidia0", 1),
            (
                "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21",
                1,
            ),
            ("Name=shard Count=2K", 2048),
        ] {
            assert_eq!(count_of(line), count, "{line}");
        }
    }
}
