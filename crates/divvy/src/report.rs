//! Failures as the user sees them: on stderr, with a code, the causes, and what to do.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use divvy_agent::REFUSED;
use divvy_agent::api::Document;
use divvy_model::{Code, Fault};

use crate::habits;

/// `divvy run` ends with this when Divvy itself failed, as `docker run` does.
const RUN_FAILED: u8 = 125;

/// The exit status a failure ends with.
pub fn exit_status(code: Code, is_run: bool) -> u8 {
    match code {
        Code::ProgramNotFound if is_run => 127,
        Code::ProgramCannotRun if is_run => 126,
        // A machine whose GPU does not answer is distinguished from a program that failed.
        Code::NoDevice => code.exit_status(),
        _ if is_run => RUN_FAILED,
        _ => code.exit_status(),
    }
}

/// Prints on stdout what a shell gets in the place of a missing answer. From an empty answer an engine would make a
/// container without a slice, and `eval` would go on.
pub fn stand_in() {
    let words: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if let Some(text) = in_place_of(&words) {
        let _unheard = writeln!(std::io::stdout(), "{text}");
    }
}

/// slurmstepd reads what a task prolog prints, and passes on what is behind `print` to the job's output. The rest is lost: its log
/// has the exit status and no sentence.
pub fn in_the_jobs_output(fault: &Fault) {
    let hint = fault
        .hint
        .as_ref()
        .map_or_else(String::new, |hint| format!("; {hint}"));
    let words = format!("divvy {}: {fault}{hint}", fault.code).replace('\n', " ");
    let _unheard = writeln!(std::io::stdout(), "print {words}");
}

/// What `$(divvy container cdi slice ...)` and `eval "$(divvy env set ...)"` have where those failed.
fn in_place_of(words: &[String]) -> Option<String> {
    let (_, json) = glance(words);
    let mut verbs = Vec::new();
    let mut words = words.iter().skip(1).map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--" => break,
            "-o" | "--output" | "--run-dir" => drop(words.next()),
            word if word.starts_with('-') => {}
            word => verbs.push(word),
        }
    }
    match verbs.as_slice() {
        _ if json => None,
        ["cdi", "slice", ..] | ["container", "cdi", "slice", ..] => {
            Some(format!("{}={REFUSED}", divvy_container::cdi::SLICE_KIND))
        }
        ["env", "set", ..] => Some("false".into()),
        _ => None,
    }
}

/// Prints a failure.
pub fn fault(fault: &Fault, json: bool) {
    let text = if json {
        serde_json::to_string_pretty(&Document::new("Error", fault.clone()))
            .unwrap_or_else(|_| fault.message.clone())
    } else {
        in_words(fault, colours())
    };
    // There is no reader when stderr is closed.
    let _unheard = writeln!(std::io::stderr(), "{text}");
}

fn in_words(fault: &Fault, coloured: bool) -> String {
    let (red, bold, plain) = if coloured {
        ("\x1b[1;31m", "\x1b[1m", "\x1b[0m")
    } else {
        ("", "", "")
    };
    let mut text = format!("{red}error[{}]{plain}: {}", fault.code, shown(&fault.message));
    for cause in &fault.causes {
        text.push_str("\n  because: ");
        text.push_str(&shown(cause));
    }
    if let Some(hint) = &fault.hint {
        text.push_str(&format!("\n\n{bold}hint{plain}: {}", shown(hint)));
    }
    text
}

/// Whether remarks are left out.
static HUSHED: AtomicBool = AtomicBool::new(false);

/// Leaves out all remarks from now on: a shell completes a line, and shows what is said in the middle of it.
pub fn hush() {
    HUSHED.store(true, Ordering::Relaxed);
}

/// A remark on stderr that stops nothing.
pub fn remark(text: &str) {
    if HUSHED.load(Ordering::Relaxed) {
        return;
    }
    let _unheard = writeln!(std::io::stderr(), "divvy: {}", shown(text));
}

/// A failure in one line, for where others show it: an engine, a pod's status.
pub fn line(fault: &Fault) -> String {
    let mut text = format!("divvy[{}]: {}", fault.code, fault.message);
    for part in fault.causes.iter().chain(&fault.hint) {
        text.push_str(": ");
        text.push_str(part);
    }
    shown(&text).replace('\n', " ")
}

/// Words that may hold text of another user's file: without characters that would move the terminal's cursor.
fn shown(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "?")
}

fn colours() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let forced =
        set("CLICOLOR_FORCE") && std::env::var_os("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    forced || (std::io::stderr().is_terminal() && !set("NO_COLOR"))
}

/// What clap says: help and version as it prints them, a bad value as the failure its parser gave, and the rest in
/// its own words under our code.
pub fn usage(error: &clap::Error) -> ExitCode {
    // `divvy` alone asks what there is, and that is its answer.
    let is_bare =
        error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && std::env::args_os().len() == 1;
    if is_bare {
        let _unheard = write!(std::io::stdout(), "{}", error.render());
        return ExitCode::SUCCESS;
    }
    if !error.use_stderr() {
        // A reader that has closed the pipe, as `head` does, is no failure.
        return match error.print() {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        };
    }
    let words: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let (is_run, json) = glance(&words);
    let parsers = of_parser(error)
        .or_else(|| of_habit(error))
        .or_else(|| of_program(error))
        .or_else(|| of_no_flag(error, is_run));
    // Messages of our parsers have a hint; the rest clap says better.
    let as_ours = json || parsers.is_some();
    let told = parsers.unwrap_or_else(|| of_clap(error));
    if as_ours {
        fault(&told, json);
    } else {
        let text = error.render().to_string();
        let _unheard = write!(
            std::io::stderr(),
            "{}",
            text.replacen("error:", "error[D0001]:", 1)
        );
    }
    ExitCode::from(exit_status(told.code, is_run))
}

/// What clap says of words that are not the whole command line, as a failure.
pub fn words(error: &clap::Error) -> Fault {
    of_parser(error).unwrap_or_else(|| of_clap(error))
}

/// A value's parser fails with a [`Fault`] of its own.
fn of_parser(error: &clap::Error) -> Option<Fault> {
    use std::error::Error;
    if error.kind() != ErrorKind::ValueValidation {
        return None;
    }
    let fault = error.source()?.downcast_ref::<Fault>()?.clone();
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => Some(fault.cause(format!("it was given for {argument}"))),
        _ => Some(fault),
    }
}

/// A word of another tool's, and what to type here.
fn of_habit(error: &clap::Error) -> Option<Fault> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let (word, hint) = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = word(ContextKind::InvalidSubcommand)?;
            (word, habits::verb(word)?)
        }
        ErrorKind::UnknownArgument => {
            let word = word(ContextKind::InvalidArg)?;
            (word, habits::flag(word)?)
        }
        _ => return None,
    };
    Some(Fault::new(Code::Usage, format!("there is no `{word}` here")).hint(hint))
}

/// A program where a verb should stand: its file is there, or its name is one that people run on a GPU.
fn of_program(error: &clap::Error) -> Option<Fault> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let is_file = std::path::Path::new(word).is_file();
    if !is_file && !word.starts_with("python") && !word.contains('/') {
        return None;
    }
    let program = match word.ends_with(".py") {
        true => format!("python {word}"),
        false => word.clone(),
    };
    let fault = Fault::new(Code::Usage, format!("`{word}` is no verb"));
    Some(fault.hint(format!("`divvy run --memory 4GiB {program}` runs it in a slice")))
}

/// A flag that `run` has not. Clap would say how to have it as the program.
fn of_no_flag(error: &clap::Error, is_run: bool) -> Option<Fault> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    if !is_run || error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let near = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(near)) => format!("a similar one is `{near}`; "),
        _ => String::new(),
    };
    let fault = Fault::new(Code::Usage, format!("there is no flag `{flag}`"));
    Some(fault.hint(format!(
        "{near}`divvy run --help` lists the flags, which stand before the program"
    )))
}

fn of_clap(error: &clap::Error) -> Fault {
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    let message = first.strip_prefix("error: ").unwrap_or(first);
    Fault::new(Code::Usage, message).hint("`divvy help` and `divvy help VERB` show how")
}

/// Whether the words that were not understood are a `run`, and whether they ask for JSON. The words after `--` are
/// another program's.
fn glance(words: &[String]) -> (bool, bool) {
    let ours: Vec<&str> = words
        .iter()
        .skip(1)
        .map(String::as_str)
        .take_while(|word| *word != "--")
        .collect();
    let json = ours
        .iter()
        .any(|word| matches!(*word, "-ojson" | "-o=json" | "--output=json"))
        || ours
            .windows(2)
            .any(|pair| matches!(pair, ["-o" | "--output", "json"]));
    (ours.contains(&"run"), json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_in_words() {
        let fault = Fault::new(Code::DeviceFull, "cannot reserve 4 GiB on GPU-1a2b")
            .cause("slice train holds 78 GiB")
            .hint("2 GiB is free; see divvy ps");
        assert_eq!(
            in_words(&fault, false),
            "error[D0012]: cannot reserve 4 GiB on GPU-1a2b\n  because: slice train holds 78 GiB\n\n\
             hint: 2 GiB is free; see divvy ps"
        );
        assert!(in_words(&fault, true).contains("\x1b[1;31merror[D0012]\x1b[0m"));
    }

    #[test]
    fn a_glance_at_words_that_were_not_understood() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            glance(&words("divvy run --memory 4 -- ps -o json")),
            (true, false)
        );
        assert_eq!(glance(&words("divvy ps -o json --what")), (false, true));
    }

    #[test]
    fn a_shell_gets_what_resolves_to_nothing() {
        let of = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            in_place_of(&words)
        };
        let refused = Some("divvy.dev/slice=refused".to_owned());
        assert_eq!(of("divvy cdi slice --memory 1TiB"), refused);
        assert_eq!(of("divvy container cdi slice --memory 1TiB"), refused);
        assert_eq!(of("divvy -o name container --run-dir /r cdi slice"), refused);
        assert_eq!(of("divvy --run-dir /r -o name cdi slice --what"), refused);
        assert_eq!(
            of("divvy container cdi slice -o json"),
            None,
            "a document, or none"
        );
        assert_eq!(of("divvy env set --devices 9"), Some("false".into()));
        for other in [
            "divvy container cdi list",
            "divvy run -- cdi slice",
            "divvy slice create a",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn exit_statuses() {
        assert_eq!(exit_status(Code::NoDevice, true), 5);
        assert_eq!(exit_status(Code::ProgramNotFound, true), 127);
        assert_eq!(exit_status(Code::ProgramCannotRun, true), 126);
        assert_eq!(exit_status(Code::Quantity, true), 125);
        assert_eq!(exit_status(Code::Quantity, false), 2);
        assert_eq!(exit_status(Code::AgentUnreachable, false), 3);
    }
}
