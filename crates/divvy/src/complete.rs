//! Live completion. A shell's script calls this command at each press of the key, and gets what may stand there: verbs
//! and flags, by clap's engine, and the names of slices and devices that are there now. Where something fails it gets
//! less, never a message: that would stand in the middle of a line being typed.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::ValueHint;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use divvy_model::{DeviceRecord, SliceRecord};

use crate::context::{Context, Options};
use crate::report;

/// The variable with which a script says for which shell it asks.
const VARIABLE: &str = "DIVVY_COMPLETE";
/// Names that come later are left out: a person waits for the line.
const TIME_LIMIT: Duration = Duration::from_millis(500);

/// The script that asks us, for a shell that has one.
pub fn script(shell: &str) -> Option<String> {
    let shells = Shells::builtins();
    let mut text = Vec::new();
    shells
        .completer(shell)?
        .write_registration(VARIABLE, "divvy", "divvy", "divvy", &mut text)
        .ok()?;
    let mut text = String::from_utf8(text).ok()?;
    if shell == "zsh" {
        // A script from the path of functions is the function itself, once: the first press is answered too.
        text.push_str(
            "\nif [ \"$funcstack[1]\" = \"_divvy\" ]; then\n    _clap_dynamic_completer_divvy \"$@\"\nfi\n",
        );
    }
    Some(text)
}

/// Answers a script, if it is one that asks: with the variable set, and `--` before the words typed so far.
pub fn answer(grammar: impl FnOnce() -> clap::Command) -> bool {
    let Some(shell) = std::env::var_os(VARIABLE) else {
        return false;
    };
    let mut words = std::env::args_os().skip(1);
    if words.next().as_deref() != Some(OsStr::new("--")) {
        return false;
    }
    report::hush();
    let words: Vec<OsString> = words.collect();
    let shells = Shells::builtins();
    if let Some(shell) = shell.to_str().and_then(|shell| shells.completer(shell))
        && !words.is_empty()
    {
        let mut text = Vec::new();
        let folder = std::env::current_dir().ok();
        let mut grammar = with_names(grammar(), run_dir(&words).as_ref());
        if shell
            .write_complete(&mut grammar, words, folder.as_deref(), &mut text)
            .is_ok()
        {
            let _shell_is_gone = std::io::stdout().write_all(&text);
        }
    }
    true
}

/// The run directory of the line being typed.
fn run_dir(words: &[OsString]) -> Option<PathBuf> {
    let at = words.iter().position(|word| word == "--run-dir");
    let next = at.and_then(|at| words.get(at + 1)).map(PathBuf::from);
    next.or_else(|| {
        let mut given = words
            .iter()
            .filter_map(|word| word.to_str()?.strip_prefix("--run-dir="));
        given.next().map(PathBuf::from)
    })
}

/// The grammar, in which arguments that name slices and devices know which there are.
fn with_names(grammar: clap::Command, run_dir: Option<&PathBuf>) -> clap::Command {
    let joins = matches!(
        grammar.get_name(),
        "run" | "delete" | "rm" | "slice" | "podman" | "docker"
    );
    let names: Vec<(clap::Id, Kind)> = grammar
        .get_arguments()
        .filter_map(|argument| {
            let kind = match (argument.get_id().as_str(), joins) {
                ("slice" | "slices", true) => Kind::LastingSlices,
                ("slice" | "slices", false) => Kind::Slices,
                ("device", _) => Kind::Devices,
                ("command", _) => Kind::Program,
                _ => return None,
            };
            Some((argument.get_id().clone(), kind))
        })
        .collect();
    let mut grammar = grammar;
    for (id, kind) in names {
        let run_dir = run_dir.cloned();
        grammar = grammar.mut_arg(id, |argument| match kind {
            Kind::Program => argument.value_hint(ValueHint::AnyPath),
            _ => argument.add(ArgValueCompleter::new(move |typed: &OsStr| {
                candidates(kind, run_dir.clone(), typed)
            })),
        });
    }
    let run_dir = run_dir.cloned();
    grammar.mut_subcommands(move |verb| with_names(verb, run_dir.as_ref()))
}

/// What an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Slices,
    LastingSlices,
    Devices,
    Program,
}

fn candidates(kind: Kind, run_dir: Option<PathBuf>, typed: &OsStr) -> Vec<CompletionCandidate> {
    let (sender, receiver) = channel();
    // An agent or a driver that hangs holds up this thread only.
    std::thread::spawn(move || {
        let _too_late = sender.send(names(kind, run_dir).unwrap_or_default());
    });
    let mut names = receiver.recv_timeout(TIME_LIMIT).unwrap_or_default();
    let typed = typed.to_string_lossy();
    names.retain(|(name, _)| name.starts_with(&*typed));
    let candidate = |(name, about): (String, String)| CompletionCandidate::new(name).help(Some(about.into()));
    names.into_iter().map(candidate).collect()
}

/// The names with a word about each. No agent is started for them.
fn names(kind: Kind, run_dir: Option<PathBuf>) -> Option<Vec<(String, String)>> {
    let context = Context::new(&Options {
        run_dir,
        ..Options::default()
    })
    .ok()?;
    let agent = context.agent_if_any();
    if kind == Kind::Devices {
        let devices = match agent {
            Some(agent) => agent.devices().ok()?.body.items,
            None => context.inventory().ok()?.devices,
        };
        return Some(devices.iter().map(of_device).collect());
    }
    let slices = agent?.slices().ok()?.body.items;
    let own = rustix::process::geteuid().as_raw();
    let of_slice = |slice: &SliceRecord| {
        (
            slice.name.clone(),
            format!("{}, {:?}", slice.shares.first.memory_limit_bytes, slice.state).to_lowercase(),
        )
    };
    let is_meant =
        |slice: &&SliceRecord| (own == 0 || slice.uid == own) && (kind == Kind::Slices || slice.lasting);
    Some(slices.iter().filter(is_meant).map(of_slice).collect())
}

fn of_device(device: &DeviceRecord) -> (String, String) {
    (device.index.to_string(), device.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::grammar;

    /// What may stand at the end of these words.
    fn offered(words: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        let mut grammar = with_names(grammar(), Some(&"/nonexistent".into()));
        let at = words.len() - 1;
        let found = clap_complete::engine::complete(&mut grammar, words, at, None).expect("an answer");
        let found = found
            .iter()
            .map(|one| one.get_value().to_string_lossy().into_owned());
        found.collect()
    }

    #[test]
    fn verbs_and_flags_are_offered_without_an_agent() {
        assert_eq!(offered(&["divvy", "inspe"]), ["inspect"]);
        assert!(offered(&["divvy", "run", "--mem"]).contains(&"--memory".to_owned()));
        assert!(
            offered(&["divvy", "kill", "x"]).is_empty(),
            "there is no slice, and no message"
        );
    }

    #[test]
    fn a_line_says_which_agent_is_asked() {
        let of = |words: &[&str]| run_dir(&words.iter().map(Into::into).collect::<Vec<_>>());
        assert_eq!(of(&["divvy", "--run-dir", "/a", "kill", ""]), Some("/a".into()));
        assert_eq!(of(&["divvy", "--run-dir=/b", "kill", ""]), Some("/b".into()));
        assert_eq!(of(&["divvy", "kill", ""]), None);
    }
}
