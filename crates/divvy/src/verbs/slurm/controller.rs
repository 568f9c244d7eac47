//! What is asked of Slurm's controller: by Slurm's own programs, so that no version of Slurm is needed here.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use divvy_jobs::configuration::PROGRAM_TIMEOUT_S;
use divvy_jobs::{Granted, Refusal, Remedy, details, plugin, shows_several, task_of};
use divvy_model::Fault;

use super::job::Job;

/// How long one of its programs may take.
const TIMEOUT: Duration = Duration::from_secs(PROGRAM_TIMEOUT_S);

/// Where packages and administrators put Slurm's programs, beside slurmd's own folder.
const FOLDERS: [&str; 4] = ["/usr", "/usr/local", "/opt/slurm", "/usr/local/slurm"];

/// What the job has on this node.
///
/// # Errors
/// Where the controller does not answer the job may start later; [`details`] has the others.
pub fn granted(job: &Job) -> Result<Granted, Refusal> {
    let mut text = ask("scontrol", &["show", "job", "--details", &job.id.to_string()])?;
    if shows_several(&text) {
        let tasks = ask(
            "squeue",
            &[
                "--noheader",
                "--array",
                "--states=all",
                "--format=%A %i",
                "--jobs",
                &job.id.to_string(),
            ],
        )?;
        if let Some(task) = task_of(&tasks, job.id) {
            text = ask("scontrol", &["show", "job", "--details", &task])?;
        }
    }
    details(&text, job.id, &job.node)
}

/// A job that the controller has on a node.
#[derive(Debug, PartialEq, Eq)]
pub struct OnNode {
    /// Its number.
    pub id: String,
    /// Whether it starts nothing more there: the controller waits for the end of its steps and its epilog.
    pub is_completing: bool,
}

/// The jobs that are on a node: what is not among them has left it. Nothing where the controller does not say.
pub fn on_node(node: &str) -> Option<Vec<OnNode>> {
    let states = "--states=CONFIGURING,RUNNING,SUSPENDED,COMPLETING,STOPPED,SIGNALING,STAGE_OUT";
    let text = ask(
        "squeue",
        &[
            "--noheader",
            "--array",
            states,
            "--format=%A %T",
            "--nodelist",
            node,
        ],
    )
    .ok()?;
    Some(jobs_of(&text))
}

fn jobs_of(text: &str) -> Vec<OnNode> {
    let job = |line: &str| {
        let (id, state) = line.trim().split_once(' ')?;
        Some(OnNode {
            id: id.to_owned(),
            is_completing: state.trim() == "COMPLETING",
        })
    };
    text.lines().filter_map(job).collect()
}

/// Puts a job that does not start back into the queue, or holds it, and says why; a job that cannot be put back is ended.
pub fn send_back(job: &Job, refusal: &Refusal) {
    /// A job that was put back so often is held.
    const MOST: u32 = 5;
    /// Seconds until it is tried again.
    const PAUSE_S: u32 = 30;
    let id = job.id.to_string();
    let words = sentence(&refusal.fault);
    let _unheard = ask("scontrol", &["notify", &id, &words]);
    let _unheard = ask(
        "scontrol",
        &["update", &format!("JobId={id}"), &format!("AdminComment={words}")],
    );
    let how = match refusal.remedy {
        Remedy::Requeue if job.restarts < MOST => "requeue",
        _ => "requeuehold",
    };
    match ask("scontrol", &[how, &id]) {
        Ok(_) if how == "requeue" => {
            let _unheard = ask(
                "scontrol",
                &[
                    "update",
                    &format!("JobId={id}"),
                    &format!("StartTime=now+{PAUSE_S}"),
                ],
            );
        }
        Ok(_) => {}
        // Only what runs is ended: the job may wait again because its user put it back.
        Err(_) => drop(ask("scancel", &["--state=RUNNING", &id])),
    }
}

/// Drains this node with a reason that `sinfo --list-reasons` shows. slurmd drains it too, and says less.
pub fn drain(node: &str, fault: &Fault) {
    let words = sentence(fault);
    let _unheard = ask(
        "scontrol",
        &[
            "update",
            &format!("NodeName={node}"),
            "State=DRAIN",
            &format!("Reason={words}"),
        ],
    );
}

/// Writes a job's use into its comment for administrators, in the accounting database: the controller takes no comment for a job
/// that has ended, as seen with 22.05, and an epilog runs when it has.
///
/// # Errors
/// A cluster without a database, or one that does not answer.
pub fn comment(job: &Job, words: &str) -> Result<(), Refusal> {
    static DATABASE: Asked = Asked(AtomicBool::new(false));
    /// It refuses sooner.
    const TIME_LIMIT: Duration = Duration::from_secs(10);
    let (id, comment) = (format!("JobID={}", job.id), format!("AdminComment={words}"));
    let change = [
        "--immediate",
        "--quiet",
        "modify",
        "job",
        "where",
        &id,
        "set",
        &comment,
    ];
    DATABASE.ask(TIME_LIMIT, || ask("sacctmgr", &change).map(drop))
}

/// Whether the database let this process wait for nothing. With several jobs that left, each would wait again, and Slurm drains the
/// node meanwhile.
struct Asked(AtomicBool);

impl Asked {
    fn ask<T>(&self, time_limit: Duration, once: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Refusal::new(
                Remedy::Requeue,
                "Slurm's accounting database did not answer a moment ago",
            )
            .hint("`sacctmgr show cluster` on the node says more"));
        }
        let begin = Instant::now();
        let answer = once();
        self.0.store(
            answer.is_err() && begin.elapsed() >= time_limit,
            Ordering::Relaxed,
        );
        answer
    }
}

/// One line that no program of Slurm's takes for more than a value.
fn sentence(fault: &Fault) -> String {
    let hint = fault
        .hint
        .as_ref()
        .map_or_else(String::new, |hint| format!("; {hint}"));
    let words = format!("divvy {}: {fault}{hint}", fault.code);
    words
        .chars()
        .map(|c| if c.is_control() || c == '"' { ' ' } else { c })
        .take(400)
        .collect()
}

/// The version of this node's Slurm, as its headers number it. `conf` is its slurm.conf, which most of its programs read first.
pub fn version(conf: &Path) -> Option<u32> {
    let told = |program| ask_with(program, &["-V"], Some(conf)).ok();
    let told = ["slurmd", "sinfo"].into_iter().filter_map(told);
    told.filter_map(|text| plugin::number_of(&text)).next()
}

/// What a program of Slurm's prints.
fn ask(program: &str, words: &[&str]) -> Result<String, Refusal> {
    let conf = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    ask_with(program, words, conf.as_deref())
}

/// The same with this slurm.conf.
fn ask_with(program: &str, words: &[&str], conf: Option<&Path>) -> Result<String, Refusal> {
    let (asked, look) = match program {
        "sacctmgr" => ("accounting database", "sacctmgr show cluster"),
        _ => ("controller", "scontrol ping"),
    };
    let silent = |why: &str| {
        let mut refusal = Refusal::new(
            Remedy::Requeue,
            format!("Slurm's {asked} does not answer `{program}`"),
        );
        refusal.fault = refusal.fault.cause(why);
        refusal.hint(format!("`{look}` on the node says more"))
    };
    let path = find(program).ok_or_else(|| {
        Refusal::new(Remedy::Repair, format!("there is no `{program}` on this node"))
            .hint("install Slurm's client programs (slurm-client) beside slurmd")
    })?;
    let mut command = Command::new(path);
    // What slurmd was started with, and nothing of a user's.
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C");
    if let Some(conf) = conf {
        command.env("SLURM_CONF", conf);
    }
    let mut child = command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| silent(&error.to_string()))?;
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let reading = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _broken = out.as_mut().map(|out| out.read_to_end(&mut text));
        text
    });
    let begin = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begin.elapsed() < TIMEOUT => std::thread::sleep(Duration::from_millis(1)),
            _ => {
                let _ended = child.kill();
                let _reaped = child.wait();
                return Err(silent("it did not answer in time"));
            }
        }
    };
    let text = reading.join().unwrap_or_default();
    if !status.success() {
        let mut why = String::new();
        let _broken = err.as_mut().map(|err| err.take(400).read_to_string(&mut why));
        return Err(silent(why.trim()));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// One of Slurm's programs: beside the slurmd that started this process, else in the usual places.
fn find(program: &str) -> Option<PathBuf> {
    let beside = beside_slurmd().into_iter();
    let folders = FOLDERS.map(|folder| ["bin", "sbin"].map(|below| Path::new(folder).join(below)));
    beside
        .chain(folders.into_iter().flatten())
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// `/opt/slurm/bin` for a parent `/opt/slurm/sbin/slurmd`. Another user's program may bear that name, and start this one as
/// root by sudo.
fn beside_slurmd() -> Option<PathBuf> {
    let parent = std::os::unix::process::parent_id();
    if divvy_privileged::effective_user(parent).ok() != Some(rustix::process::geteuid().as_raw()) {
        return None;
    }
    let program = std::fs::read_link(format!("/proc/{parent}/exe")).ok()?;
    let is_slurmd = program.file_name().is_some_and(|name| name == "slurmd");
    is_slurmd.then(|| {
        program
            .parent()
            .and_then(Path::parent)
            .map(|folder| folder.join("bin"))
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_database_is_waited_for_once() {
        let database = Asked(AtomicBool::new(false));
        let mut count = 0;
        let mut ask = |time_limit: Duration, answer: Result<(), Refusal>| {
            let once = || {
                count += 1;
                answer
            };
            let _refused = database.ask(time_limit, once);
            count
        };
        let refused = || Err(Refusal::new(Remedy::Requeue, "no"));
        let long = Duration::from_secs(3600);
        assert_eq!(ask(Duration::ZERO, Ok(())), 1);
        assert_eq!(ask(long, refused()), 2);
        assert_eq!(
            ask(Duration::ZERO, refused()),
            3,
            "it refuses one job's, and at once"
        );
        assert_eq!(ask(long, Ok(())), 3, "it was silent");
    }

    #[test]
    fn jobs_of_a_node_are_told_from_those_that_end() {
        let found = jobs_of("7 RUNNING\n  8 COMPLETING \n\nodd\n");
        let as_pairs: Vec<(&str, bool)> = found
            .iter()
            .map(|job| (job.id.as_str(), job.is_completing))
            .collect();
        assert_eq!(as_pairs, [("7", false), ("8", true)]);
    }
}
