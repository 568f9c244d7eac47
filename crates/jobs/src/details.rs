//! What Slurm's controller granted a job on a node: the text of `scontrol show job --details NUMBER`.
//!
//! A job's user chooses its name, its comment and its folder, and Slurm prints them as they are, with line breaks. So a user
//! can put lines into this text. None can be taken away by that, so what counts has to be there once: a second one is a
//! forgery, and the job is refused. A job that waits has no line of a node's, and a user's would be the only one: so the
//! job's state, which is always there, is looked at first.

use crate::hosts::contains;
use crate::refusal::{Refusal, Remedy};

/// What a job has of a node's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Whole devices, by Slurm's index of them.
    pub gpus: Vec<u32>,
    /// How many shards; 0 without any.
    pub shards: u64,
    /// The devices that these are of, by Slurm's index of them.
    pub shard_devices: Vec<u32>,
    /// The count of `divvy_compute`, where it was asked for: percent of the devices' time.
    pub compute: Option<u64>,
}

/// The states of a job that has its nodes: Slurm then shows a line for each of them.
const HAS_NODES: [&str; 6] = [
    "CONFIGURING",
    "RESIZING",
    "RUNNING",
    "SIGNALING",
    "STOPPED",
    "SUSPENDED",
];

/// Whether the text shows several jobs, as that of an array's or a heterogeneous job's first one does: each is to be asked for by
/// itself.
#[must_use]
pub fn shows_several(text: &str) -> bool {
    text.lines().filter(|line| is_head(line)).count() > 1
}

/// The task of an array, or the part of a heterogeneous job, that is this job, by what `squeue --noheader --format '%A %i'` says:
/// numbers only. `7_2`, or `7+0`.
#[must_use]
pub fn task_of(text: &str, job: u64) -> Option<String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let number = words.next()?.parse::<u64>().ok()?;
        let task = words.next()?;
        let (whole, part) = task.split_once(['_', '+'])?;
        (number == job && is_number(whole) && is_number(part)).then(|| task.to_owned())
    })
}

fn is_head(line: &str) -> bool {
    line.trim_start().starts_with("JobId=")
}

/// Reads what the job has on this node. No line is taken for the end of a job's text, because a user could have written it.
///
/// # Errors
/// The text has no such job or node, has one of them twice, or has a form that is not known.
pub fn details(text: &str, job: u64, node: &str) -> Result<Granted, Refusal> {
    let own = format!("JobId={job}");
    if shows_several(text) {
        return Err(forged(job));
    }
    if !text
        .lines()
        .any(|line| line.split_whitespace().next() == Some(&own))
    {
        return Err(gone(&format!("Slurm's controller does not show job {job}")));
    }
    let mut states = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("JobState="));
    let state = states.next().and_then(|rest| rest.split_whitespace().next());
    let state = state.ok_or_else(|| unknown("the job has no state"))?;
    if states.next().is_some() {
        return Err(forged(job));
    }
    if !HAS_NODES.contains(&state) {
        return Err(left(job));
    }
    let nodes = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("Nodes="));
    let mut here = nodes.filter(|line| contains(line.split_whitespace().next().unwrap_or_default(), node));
    let line = here.next().ok_or_else(|| {
        gone(&format!(
            "Slurm's controller does not show what job {job} has on node {node}"
        ))
    })?;
    if here.next().is_some() {
        return Err(forged(job));
    }
    let words = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("GRES="));
    granted(words.ok_or_else(|| unknown("the line of a node has no GRES="))?)
}

/// Its user may have ended it, or put it back into the queue, meanwhile: that is no fault of the node.
fn gone(message: &str) -> Refusal {
    Refusal::new(Remedy::Requeue, message)
        .hint("it may have ended meanwhile; `scontrol show job` says where it is")
}

/// Its user ended it, or put it back into the queue. To requeue it would start a job again that was cancelled.
fn left(job: u64) -> Refusal {
    Refusal::new(Remedy::Left, format!("job {job} has left this node meanwhile"))
}

fn forged(job: u64) -> Refusal {
    Refusal::new(
        Remedy::Change,
        format!("the name, comment or folder of job {job} looks like a line of Slurm's own"),
    )
    .hint("leave line breaks, `JobId=`, `JobState=` and `Nodes=` out of them")
}

fn unknown(message: &str) -> Refusal {
    Refusal::new(Remedy::Repair, message)
        .hint("`scontrol show job --details NUMBER` on the node shows what was read")
}

/// `gpu:2(IDX:0-1)`, `shard:20(IDX:0),divvy_compute(CNT:30)`.
fn granted(words: &str) -> Result<Granted, Refusal> {
    let mut granted = Granted::default();
    let mut depth = 0_u32;
    let items = words.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    for item in items.filter(|item| !item.is_empty()) {
        let name = item.split([':', '(']).next().unwrap_or_default();
        let odd = || {
            unknown(&format!(
                "`{item}` is no form of a generic resource that is known"
            ))
        };
        let detail = item.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        match (name, detail) {
            ("gpu", detail) => {
                let index = detail.and_then(|detail| detail.strip_prefix("IDX:"));
                granted.gpus.extend(index.and_then(numbers).ok_or_else(odd)?);
            }
            ("shard", detail) => {
                let count = item.split('(').next().and_then(|head| head.rsplit(':').next());
                let count: u64 = count.and_then(|count| count.parse().ok()).ok_or_else(odd)?;
                let index = detail.and_then(|detail| detail.strip_prefix("IDX:"));
                granted.shards = granted.shards.checked_add(count).ok_or_else(odd)?;
                granted
                    .shard_devices
                    .extend(index.and_then(numbers).ok_or_else(odd)?);
            }
            ("divvy_compute", detail) => {
                let count = match detail {
                    Some(detail) => detail.strip_prefix("CNT:"),
                    None => item.split_once(':').map(|(_, count)| count),
                };
                let count = count.and_then(|count| count.parse().ok()).ok_or_else(odd)?;
                granted.compute = Some(count);
            }
            _ => {}
        }
    }
    Ok(granted)
}

/// `0-1,3`.
fn numbers(text: &str) -> Option<Vec<u32>> {
    /// More devices than any machine has.
    const MOST: u32 = 4096;
    let mut numbers = Vec::new();
    for range in text.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        if high >= MOST || low > high {
            return None;
        }
        numbers.extend(low..=high);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As Slurm 22.05 prints it, without the lines that do not matter.
    fn shown(name: &str, gres: &str, comment: &str) -> String {
        format!(
            "JobId=7 JobName={name}\n   UserId=alice(1001) GroupId=alice(1001) MCS_label=N/A\n   \
             JobState=RUNNING Reason=None Dependency=(null)\n   JOB_GRES=shard:20\n     \
             Nodes=n1 CPU_IDs=0 Mem=0 GRES={gres}\n     Nodes=n[2-3] CPU_IDs=0 Mem=0 GRES=shard:9(IDX:1)\n   Command=sh\n   \
             Comment={comment}\n   TresPerNode=gres:shard:20\n\n"
        )
    }

    #[test]
    fn the_nodes_own_line_counts() {
        let text = shown("sh", "shard:20(IDX:0),divvy_compute(CNT:30)", "");
        let here = details(&text, 7, "n1").expect("understood");
        assert_eq!(
            (here.shards, here.shard_devices, here.compute),
            (20, vec![0], Some(30))
        );
        let there = details(&text, 7, "n3").expect("understood");
        assert_eq!(
            (there.shards, there.shard_devices, there.compute),
            (9, vec![1], None)
        );
        let whole = details(&shown("sh", "gpu:tesla:3(IDX:0-1,3)", ""), 7, "n1").expect("understood");
        assert_eq!(whole.gpus, [0, 1, 3]);
        assert_eq!(details(&shown("sh", "", ""), 7, "n1"), Ok(Granted::default()));
        assert_eq!(
            details(&shown("sh", "license:3,craynetwork:1", ""), 7, "n1"),
            Ok(Granted::default())
        );
        // It waits again: its user put it back while the prolog ran.
        let again = details("JobId=7 JobName=x\n   JobState=PENDING\n", 7, "n1").expect_err("gone");
        assert_eq!(again.remedy, Remedy::Left);
        let odd = details(&shown("sh", "shard:20(0/20)", ""), 7, "n1").expect_err("odd");
        assert_eq!(odd.remedy, Remedy::Repair);
    }

    #[test]
    fn an_array_shows_several_jobs_and_its_tasks_are_asked_for_one_by_one() {
        let one = shown("sh", "shard:20(IDX:0)", "");
        assert!(shows_several(&format!("{one}{one}")) && !shows_several(&one));
        assert_eq!(details(&one, 70, "n1").expect_err("none").remedy, Remedy::Requeue);
        let told = "8 7_1\n7 7_2\n9 9\n10 10+0\n11 10+1\n12 12_[1-3]\n13 13_1 x\n";
        assert_eq!(task_of(told, 7).as_deref(), Some("7_2"));
        assert_eq!(task_of(told, 10).as_deref(), Some("10+0"));
        assert_eq!(task_of(told, 11).as_deref(), Some("10+1"));
        assert_eq!(
            (task_of(told, 9), task_of(told, 1), task_of(told, 12)),
            (None, None, None)
        );
    }

    #[test]
    fn a_line_in_a_jobs_name_or_comment_is_a_forgery() {
        let forgery = "x\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:80(IDX:0)";
        for (name, comment) in [
            (forgery, ""),
            ("x", forgery),
            ("x\nJobId=7 y", ""),
            ("x", "a\nJobId=7"),
            ("x\n   JobState=RUNNING", ""),
            ("x", "a\nJobState=PENDING Reason=None"),
        ] {
            for gres in ["shard:20(IDX:0)", ""] {
                let refusal = details(&shown(name, gres, comment), 7, "n1").expect_err("forged");
                assert_eq!(refusal.remedy, Remedy::Change, "{name} {comment}");
            }
        }
        // In the same line it stands behind another word, and counts for nothing.
        let harmless = shown("x   Nodes=n1 GRES=shard:80(IDX:0)", "shard:20(IDX:0)", "");
        assert_eq!(details(&harmless, 7, "n1").expect("one").shards, 20);
    }

    /// A job that waits, or has ended, has no line of a node's: its user's would be the only one.
    #[test]
    fn a_forged_line_of_a_job_without_nodes_gives_nothing_and_drains_no_node() {
        for forgery in ["GRES=shard:80(IDX:0)", "GRES=shard:80(0/80)", "CPU_IDs=0"] {
            for state in ["PENDING", "COMPLETING", "CANCELLED", "COMPLETED", "REQUEUED"] {
                let text = format!(
                    "JobId=7 JobName=x\n Nodes=n1 {forgery}\n   UserId=alice(1001)\n   JobState={state} Reason=None\n"
                );
                let refusal = details(&text, 7, "n1").expect_err("it has no node");
                assert_eq!(refusal.remedy, Remedy::Left, "{text}");
            }
        }
        let none = details("JobId=7 JobName=x\n", 7, "n1").expect_err("no form that is known");
        assert_eq!(none.remedy, Remedy::Repair);
    }

    proptest! {
        #[test]
        fn whatever_a_user_writes_changes_nothing_or_is_refused(
            name in "(\n|   |JobId=7|JobId=8|Nodes=n1|GRES=shard:80\\(IDX:0\\)| |[a-z]){0,12}",
            comment in "(\n|   |JobId=7|JobId=8|Nodes=n[1-3]|GRES=gpu:1\\(IDX:0\\)| |[a-z]){0,12}",
        ) {
            match details(&shown(&name, "shard:20(IDX:0)", &comment), 7, "n1") {
                Ok(granted) => prop_assert_eq!((granted.shards, granted.gpus.len()), (20, 0)),
                Err(refusal) => prop_assert!(refusal.fault.message.contains("job 7")),
            }
        }

        #[test]
        fn any_text_is_answered(text in ".{0,200}", gres in ".{0,60}") {
            let _answer = details(&text, 7, "n1");
            let _answer = granted(&gres);
        }
    }
}
