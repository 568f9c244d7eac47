//! Runs the parts one after the other, each as a process of its own that is ended when its time is up. What one part leaves,
//! or how it dies, is nothing to the next.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::set_child_subreaper;

use crate::card;
use crate::finding::Failure;
use crate::folder::{Ending, Folder, Outcome};
use crate::full;
use crate::kit::ended_with;
use crate::kit::{Kit, OWN_WORDS, ROOM, last_words};
use crate::machine::Machine;
use crate::part::{PARTS, Part};
use crate::place::{Place, clear_stale};
use crate::processes::{end_descendants, end_tree};
use crate::report;
use crate::signals::Signals;

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
/// Nor with less than this part of its usual time, where the run's own time is what it lacks: the next run has more.
const FAIR: u32 = 3;
/// A part ends with this status where it left things out because no time was left.
pub(crate) const CUT: u8 = 3;
/// How long a driver may take until it has a context. On a machine of eight GPUs that were asleep it takes half of this.
const TRY: Duration = Duration::from_secs(60);

/// Runs them. `tell` is told of each part as it begins and as it ends. After one of `signals` no other part is begun.
///
/// # Errors
/// The system's reason why no results can be kept, that another run is at work there, or that they are of another machine.
pub fn run(
    results: &Folder,
    options: &Options,
    signals: &Signals,
    mut tell: impl FnMut(&str),
) -> io::Result<()> {
    let _lock = results.lock()?;
    clear_stale();
    // What a part leaves behind becomes our child, and is ended with it.
    let _older_kernel = set_child_subreaper(Some(rustix::process::getpid()));
    let options = &Options {
        device: card::one(options.device.as_deref()),
        ..options.clone()
    };
    results.belong_to(&Machine::here(options.device.as_deref()))?;
    let begin = Instant::now();
    for part in chosen(results, options) {
        if signals.told().is_some() {
            break;
        }
        let left = options
            .budget
            .map(|budget| budget.saturating_sub(begin.elapsed()));
        let Some(time) = Time::of(part, options, left) else {
            tell(&format!("{}: no time is left for it", part.name));
            continue;
        };
        tell(&format!("{}: {}", part.name, part.about));
        results.begin(part.name)?;
        let begun = Instant::now();
        let (ending, why) = run_one(results, part, options, &time, signals);
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

/// How long a part may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Time {
    limit: Duration,
    /// Whether it usually may take longer.
    is_less: bool,
    /// Whether that is because the run's own time is up then.
    is_the_runs: bool,
}

impl Time {
    /// None where what is left is not worth its begin.
    fn of(part: &Part, options: &Options, left: Option<Duration>) -> Option<Self> {
        let usual = match options.is_short {
            true => part.short.unwrap_or(part.limit),
            false => part.limit,
        };
        let longest = options.limit.map_or(usual, |limit| usual.min(limit));
        let limit = left.map_or(longest, |left| longest.min(left));
        let is_fair = limit >= LEAST.min(longest) && limit >= longest / FAIR;
        is_fair.then_some(Self {
            limit,
            is_less: limit < usual,
            is_the_runs: limit < longest,
        })
    }

    /// How a part has ended that ended like this within this time.
    fn judge(self, (ending, why): (Ending, Option<String>)) -> (Ending, Option<String>) {
        match ending {
            // A signal ended the run.
            Ending::Cut if why.is_some() => (ending, why),
            Ending::Cut if !self.is_less => (Ending::Done, None),
            Ending::Cut => (ending, Some("no time was left for all of it".to_owned())),
            Ending::TimedOut if self.is_the_runs => (Ending::Cut, why),
            _ => (ending, why),
        }
    }
}

/// Finds out whether there is a device to ask at all, before any part does.
///
/// # Errors
/// Why not, in a sentence.
pub fn try_device(device: Option<&str>, signals: &Signals) -> Result<(), Failure> {
    // What is left behind becomes our child, and is ended.
    let _older_kernel = set_child_subreaper(Some(rustix::process::getpid()));
    let place = Place::new(device).map_err(|error| no_place(&error))?;
    let mut sliced = Kit::slice_of(device, &["--memory", ROOM]);
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
        .try_for_each(|command| try_one(command, &place, signals));
    end_descendants();
    tried.map_err(|why| full::with_reason(&why))
}

fn no_place(error: &io::Error) -> Failure {
    format!("no temporary folder can be had: {error}; TMPDIR names another")
}

/// Runs a command to its end, for a while. It may leave programs behind that have its streams, so nothing waits for those.
fn try_one(command: &mut Command, place: &Place, signals: &Signals) -> Result<(), Failure> {
    let cannot = |error: io::Error| format!("no file can be made in the temporary folder: {error}");
    let said = place.file("said");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&said).map_err(cannot)?);
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command
        .spawn()
        .map_err(|error| format!("{name} does not start: {error}"))?;
    match wait(child, TRY, signals) {
        (Ending::Done, _) => Ok(()),
        (Ending::TimedOut, _) => Err(format!("the driver does not answer within {} s", TRY.as_secs())),
        (_, why) => {
            let words = last_words(&fs::read(&said).unwrap_or_default());
            Err(match (words.is_empty(), why) {
                (true, Some(why)) => why,
                (true, None) => format!("{name} ended with an error, and it said nothing"),
                (false, _) => words,
            })
        }
    }
}

fn chosen(results: &Folder, options: &Options) -> Vec<&'static Part> {
    let wanted = |part: &&Part| match options.parts.is_empty() {
        true => {
            let belongs = !options.is_short || part.short.is_some();
            let ending = results.outcome(part.name).ending;
            belongs && matches!(ending, Ending::Missing | Ending::Cut)
        }
        false => options.parts.iter().any(|name| name == part.name),
    };
    PARTS.iter().filter(wanted).collect()
}

fn run_one(
    results: &Folder,
    part: &Part,
    options: &Options,
    time: &Time,
    signals: &Signals,
) -> (Ending, Option<String>) {
    let place = match Place::new(options.device.as_deref()) {
        Ok(place) => place,
        Err(error) => {
            return (Ending::Failed, Some(no_place(&error)));
        }
    };
    let child = command(results, part, options, time.limit, &place).spawn();
    let outcome = match child {
        Ok(child) => time.judge(wait(child, time.limit, signals)),
        Err(error) => (Ending::Failed, Some(format!("it does not start: {error}"))),
    };
    end_descendants();
    match outcome {
        // What it found may say why, but not where it could not write it down.
        (Ending::Failed, why) => {
            let why = why.unwrap_or_else(|| why_failed(results, part.name));
            (Ending::Failed, Some(full::with_reason(&why)))
        }
        outcome => outcome,
    }
}

/// Why a part has failed: its last finding says so, or its log, where it could write no finding down.
fn why_failed(results: &Folder, part: &str) -> Failure {
    let ended = format!("{part}.ended");
    match results
        .findings(part)
        .iter()
        .any(|finding| finding.check == ended)
    {
        true => format!("`{ended}` says why"),
        false => {
            let log = fs::read(results.path().join(log_of(part))).unwrap_or_default();
            ended_with("it ended with an error", &log)
        }
    }
}

/// What a part and its programs say goes here.
fn log_of(part: &str) -> String {
    format!("{part}.log")
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
        // Its end tells the part that this process has ended: see `follow_runner`.
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(
            results
                .create(&log_of(part.name))
                .map_or_else(|_| Stdio::null(), Stdio::from),
        )
        .process_group(0);
    command
}

fn wait(mut child: Child, limit: Duration, signals: &Signals) -> (Ending, Option<String>) {
    // The part itself stops before its time is up, if it can.
    const GRACE: Duration = Duration::from_secs(2);
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return ending(status),
            Err(error) => return (Ending::Failed, Some(error.to_string())),
            Ok(None) => {}
        }
        if let Some(signal) = signals.told() {
            end_tree(&mut child);
            return (Ending::Cut, Some(format!("signal {signal} ended the run")));
        }
        if begin.elapsed() >= limit + GRACE {
            end_tree(&mut child);
            let why = format!("it was ended after {} s", limit.as_secs());
            return (Ending::TimedOut, Some(why));
        }
        sleep(Duration::from_millis(20));
    }
}

fn ending(status: ExitStatus) -> (Ending, Option<String>) {
    match (status.code(), status.signal()) {
        (Some(0), _) => (Ending::Done, None),
        (Some(code), _) if code == i32::from(CUT) => (Ending::Cut, None),
        (_, Some(signal)) => (Ending::Crashed, Some(format!("signal {signal} ended it"))),
        (_, None) => (Ending::Failed, None),
    }
}

/// Whether the runner has ended, and this part is about to.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Waits for the end, where the runner has ended: what the part's programs do now tells nothing.
pub(crate) fn wait_if_ended() {
    while ENDS.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(100));
    }
}

/// In a part: when the runner ends, however it does, the part ends with all that it started, and does `last`. Its standard
/// input is a pipe that the runner alone holds open.
pub(crate) fn follow_runner(last: impl FnOnce() + Send + 'static) {
    // What loses its parent stays below this part.
    let _older_kernel = set_child_subreaper(Some(rustix::process::getpid()));
    std::thread::spawn(|| {
        let mut byte = [0_u8; 1];
        while matches!(io::stdin().lock().read(&mut byte), Ok(read) if read > 0) {}
        ENDS.store(true, Ordering::Relaxed);
        end_descendants();
        // The part may just have started another program: it starts no more once it has something to write down.
        sleep(Duration::from_millis(300));
        end_descendants();
        last();
        crate::place::remove_own();
        std::process::exit(i32::from(CUT));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_begun_with_a_fair_part_of_its_time_and_cut_off_only_by_the_runs() {
        let part = &PARTS[0];
        let of = |left: Option<u64>, limit: Option<u64>| {
            let options = Options {
                limit: limit.map(Duration::from_secs),
                ..Options::default()
            };
            Time::of(part, &options, left.map(Duration::from_secs))
        };
        let usual = part.limit.as_secs();
        let whole = of(None, None).expect("all of its time");
        assert!(!whole.is_less && !whole.is_the_runs && whole.limit == part.limit);
        assert_eq!(of(Some(usual / 3 - 1), None), None);
        assert_eq!(of(Some(0), Some(1)), None);
        let less = of(Some(usual / 2), None).expect("enough");
        assert!(less.is_less && less.is_the_runs);
        let told = of(Some(usual), Some(6)).expect("as told");
        assert!(told.is_less && !told.is_the_runs);

        let late = || (Ending::TimedOut, Some("late".to_owned()));
        assert_eq!(less.judge(late()).0, Ending::Cut);
        assert_eq!(told.judge(late()).0, Ending::TimedOut);
        assert_eq!(whole.judge((Ending::Cut, None)).0, Ending::Done);
        assert_eq!(told.judge((Ending::Cut, None)).0, Ending::Cut);
        let signal = (Ending::Cut, Some("signal 15 ended the run".to_owned()));
        assert_eq!(whole.judge(signal.clone()), signal);
        assert_eq!(told.judge((Ending::Crashed, None)).0, Ending::Crashed);
    }
}
