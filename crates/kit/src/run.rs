//! Runs the parts one after the other, each as a process of its own that is ended when its time is up. What one part leaves,
//! or how it dies, is nothing to the next.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};

use crate::finding::Failure;
use crate::folder::{Ending, Folder, Outcome};
use crate::kit::{Kit, OWN_WORDS, last_words};
use crate::part::{PARTS, Part};
use crate::place::Place;
use crate::report;

/// What is to be run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// These parts, whether they have run or not; none: all that have not.
    pub parts: Vec<String>,
    /// How long all of it may take.
    pub budget: Option<Duration>,
    /// How long one part may take at most, where that is less than it usually may.
    pub limit: Option<Duration>,
    /// Which device; none: the machine's first one.
    pub device: Option<String>,
    /// The short form.
    pub is_short: bool,
}

/// A part with less time than this is not begun.
const LEAST: Duration = Duration::from_secs(5);
/// How long a driver may take until it has a context. On a machine of eight GPUs that were asleep it takes half of this.
const TRY: Duration = Duration::from_secs(60);

/// Runs them. `tell` is told of each part as it begins and as it ends.
///
/// # Errors
/// The system's reason why no results can be kept.
pub fn run(results: &Folder, options: &Options, mut tell: impl FnMut(&str)) -> io::Result<()> {
    // What a part leaves behind becomes our child, and is ended with it.
    let _older_kernel = set_child_subreaper(Some(rustix::process::getpid()));
    let begin = Instant::now();
    for part in chosen(results, options) {
        let left = options
            .budget
            .map(|budget| budget.saturating_sub(begin.elapsed()));
        let usual = match options.is_short {
            true => part.short.unwrap_or(part.limit),
            false => part.limit,
        };
        let longest = options.limit.map_or(usual, |limit| usual.min(limit));
        let limit = left.map_or(longest, |left| longest.min(left));
        if limit < LEAST {
            tell(&format!("{}: no time is left for it", part.name));
            continue;
        }
        tell(&format!("{}: {}", part.name, part.about));
        results.begin(part.name)?;
        let begun = Instant::now();
        let (ending, why) = run_one(results, part, options, limit);
        let outcome = Outcome {
            ending,
            seconds: begun.elapsed().as_secs_f64(),
            why,
        };
        results.end(part.name, &outcome)?;
        report::write(results, options.device.as_deref())?;
        tell(&format!("  {}", report::line(results, part.name)));
    }
    report::write(results, options.device.as_deref())
}

/// Finds out whether there is a device to ask at all, before any part does.
///
/// # Errors
/// Why not, in a sentence.
pub fn try_device(device: Option<&str>) -> Result<(), Failure> {
    // What is left behind becomes our child, and is ended.
    let _older_kernel = set_child_subreaper(Some(rustix::process::getpid()));
    let place = Place::new(device)
        .map_err(|error| format!("no temporary folder can be had: {error}; TMPDIR names another"))?;
    let mut sliced = Kit::slice_of(device, &["--memory", "64MiB"]);
    place.enter(sliced.arg("true"));
    let mut bare = Kit::bare_tenant("look");
    place.enter(&mut bare);
    // An emulated device is named wrongly, or a card's driver does not load: each says it best itself.
    let (first, second) = match device {
        Some(_) => (sliced, bare),
        None => (bare, sliced),
    };
    let tried = [first, second]
        .iter_mut()
        .try_for_each(|command| try_one(command, &place));
    end_descendants();
    tried
}

/// Runs a command to its end, for a while. It may leave programs behind that have its streams, so nothing waits for those.
fn try_one(command: &mut Command, place: &Place) -> Result<(), Failure> {
    let cannot = |error: io::Error| error.to_string();
    let said = place.file("said");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&said).map_err(cannot)?);
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command
        .spawn()
        .map_err(|error| format!("{name} does not start: {error}"))?;
    match wait(child, TRY) {
        (Ending::Done, _) => Ok(()),
        (Ending::TimedOut, _) => Err(format!("the driver does not answer within {} s", TRY.as_secs())),
        (_, why) => {
            let words = last_words(&fs::read(&said).unwrap_or_default());
            Err(match (words.is_empty(), why) {
                (true, Some(why)) => why,
                _ => words,
            })
        }
    }
}

fn chosen(results: &Folder, options: &Options) -> Vec<&'static Part> {
    let wanted = |part: &&Part| match options.parts.is_empty() {
        true => {
            let belongs = !options.is_short || part.short.is_some();
            belongs && results.outcome(part.name).ending == Ending::Missing
        }
        false => options.parts.iter().any(|name| name == part.name),
    };
    PARTS.iter().filter(wanted).collect()
}

fn run_one(results: &Folder, part: &Part, options: &Options, limit: Duration) -> (Ending, Option<String>) {
    let place = match Place::new(options.device.as_deref()) {
        Ok(place) => place,
        Err(error) => {
            return (
                Ending::Failed,
                Some(format!("no temporary folder can be had: {error}")),
            );
        }
    };
    let child = command(results, part, options, limit, &place).spawn();
    let outcome = match child {
        Ok(child) => wait(child, limit),
        Err(error) => (Ending::Failed, Some(format!("it does not start: {error}"))),
    };
    end_descendants();
    outcome
}

/// The part as a process: this program once more.
fn command(results: &Folder, part: &Part, options: &Options, limit: Duration, place: &Place) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "divvy-kit".into()));
    command
        .args(OWN_WORDS.get().into_iter().flatten())
        .args(["part", part.name, "--out"])
        .arg(results.path())
        .arg("--limit")
        .arg(limit.as_secs().to_string());
    if let Some(device) = &options.device {
        command.args(["--device", device]);
    }
    if options.is_short {
        command.arg("--short");
    }
    place.enter(&mut command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(
            std::fs::File::create(results.path().join(format!("{}.log", part.name)))
                .map_or_else(|_| Stdio::null(), Stdio::from),
        )
        .process_group(0);
    command
}

fn wait(mut child: Child, limit: Duration) -> (Ending, Option<String>) {
    // The part itself stops before its time is up, if it can.
    const GRACE: Duration = Duration::from_secs(2);
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return ending(status),
            Ok(None) if begin.elapsed() < limit + GRACE => sleep(Duration::from_millis(20)),
            Ok(None) => {
                let _ended = child.kill();
                let _reaped = child.wait();
                return (
                    Ending::TimedOut,
                    Some(format!("it was ended after {} s", limit.as_secs())),
                );
            }
            Err(error) => return (Ending::Failed, Some(error.to_string())),
        }
    }
}

fn ending(status: ExitStatus) -> (Ending, Option<String>) {
    match (status.success(), status.signal()) {
        (true, _) => (Ending::Done, None),
        (false, Some(signal)) => (Ending::Crashed, Some(format!("signal {signal} ended it"))),
        (false, None) => (Ending::Failed, None),
    }
}

/// Ends all that a part has left: its agent, its tenants, and theirs.
fn end_descendants() {
    for _ in 0..100 {
        let left = descendants();
        if left.is_empty() {
            return;
        }
        for pid in left {
            let _gone = kill_process(pid, Signal::KILL);
            // What was not ours by birth is by now: the kernel gives orphans to the subreaper.
            let _not_ours = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
        }
        sleep(Duration::from_millis(10));
    }
}

fn descendants() -> Vec<Pid> {
    let mut parents: HashMap<i32, i32> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent: Option<i32> = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let is_below = |mut pid: i32| {
        // A chain of parents is no longer than there are processes.
        for _ in 0..parents.len() {
            match parents.get(&pid) {
                Some(parent) if *parent == own => return true,
                Some(parent) => pid = *parent,
                None => return false,
            }
        }
        false
    };
    let below = parents.keys().copied().filter(|pid| is_below(*pid));
    below.filter_map(Pid::from_raw).collect()
}
