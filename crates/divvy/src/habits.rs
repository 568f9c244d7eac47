//! Words that people bring from docker, kubectl, Slurm and nvidia-smi, and what to type here in their place. Those that
//! mean the same here are aliases in the grammar.

/// Verbs.
const VERBS: [(&str, &str); 22] = [
    ("apply", CREATE),
    ("create", CREATE),
    ("start", CREATE),
    ("describe", "`divvy inspect NAME` shows everything about a slice"),
    (
        "delete",
        "`divvy slice delete NAME` deletes a lasting slice, `divvy kill NAME` ends what runs in one",
    ),
    (
        "exec",
        "`divvy run --slice NAME PROGRAM` runs one more program in a lasting slice",
    ),
    (
        "get",
        "`divvy ps` lists the slices, `divvy devices` the devices, `divvy config show` the settings",
    ),
    (
        "images",
        "Divvy has no images; `divvy podman run IMAGE` gives an engine's container a slice",
    ),
    (
        "info",
        "`divvy doctor` checks this machine, `divvy devices` lists its devices",
    ),
    (
        "install",
        "`divvy doctor` says what is missing; docs/install.md says how Divvy is installed",
    ),
    (
        "logs",
        "a program's output goes where it was started; `divvy events` tells what happened to its slice",
    ),
    (
        "nvidia-smi",
        "`divvy run --observe nvidia-smi` shows the whole devices, `divvy devices` lists them",
    ),
    (
        "pause",
        "`divvy kill NAME --signal STOP` stops its programs, and `--signal CONT` lets them go on",
    ),
    (
        "queue",
        "`divvy ps` shows what waits beside what runs; `divvy run --wait` waits for space on a device",
    ),
    ("restart", CREATE),
    (
        "set",
        "settings are lines of a file, which `divvy config show --origin` names; `divvy resize NAME --memory 8GiB` \
         changes a slice",
    ),
    (
        "smi",
        "`divvy devices` lists the devices, `divvy top` shows who uses them",
    ),
    (
        "squeue",
        "`divvy ps` lists the slices, those of Slurm's jobs among them",
    ),
    (
        "status",
        "`divvy ps` lists the slices, `divvy doctor` checks this machine",
    ),
    (
        "update",
        "`divvy resize NAME --memory 8GiB` changes a running slice",
    ),
    ("version", "`divvy --version` prints it"),
    (
        "wait",
        "`divvy run` ends when its program does; `divvy run --wait` waits for space on a device",
    ),
];

const CREATE: &str = "`divvy run --memory 4GiB PROGRAM` makes a slice for a program, \
                      `divvy slice create NAME --memory 4GiB` one that stays";

/// Flags. Several verbs have none of them.
const FLAGS: [(&str, &str); 29] = [
    (
        "--all",
        "`divvy ps` lists all slices that live, and `divvy kill $(divvy ps -q)` ends them all",
    ),
    (
        "--cpus",
        "Divvy divides GPUs; `taskset` or a cgroup bounds processors",
    ),
    (
        "--detach",
        "`divvy run ... &` runs in the background; `divvy slice create` makes a slice that stays",
    ),
    ("--env", DOCKER),
    (
        "--fix",
        "`divvy doctor` changes nothing; what it finds has the command that helps beside it",
    ),
    ("--format", OUTPUT),
    ("--gpu", DEVICE),
    ("--gpus", DEVICE),
    ("--gpus-per-task", DEVICE),
    ("--gres", DEVICE),
    ("--id", DEVICE),
    ("--json", OUTPUT),
    (
        "--loop",
        "`divvy ps --watch` prints again and again; `divvy top` is a screen",
    ),
    (
        "--mem",
        "`--memory 4GiB` is the slice's part of the device's memory",
    ),
    (
        "--no-stream",
        "`divvy top -n 1` prints once, and so does each list",
    ),
    ("--rm", DOCKER),
    ("--tail", "`--last 5` prints the newest five"),
    ("--time", TIME),
    ("--timeout", TIME),
    ("--volume", DOCKER),
    (
        "-L",
        "`divvy devices` lists the devices without a flag, `divvy devices -o wide` with their UUIDs",
    ),
    (
        "-a",
        "`divvy ps` lists all slices that live, `divvy history` those that have ended",
    ),
    ("-b", "`divvy top -n 1` prints once, as it does into a pipe"),
    ("-c", "`--compute 30%` is the slice's part of the device's time"),
    ("-e", DOCKER),
    (
        "-i",
        "`--device 0` chooses a device; a program has this terminal without a flag",
    ),
    (
        "-l",
        "`divvy ps --watch` prints again and again; `divvy top` is a screen",
    ),
    ("-t", TIME),
    ("-v", DOCKER),
];

const OUTPUT: &str =
    "`-o json` prints a document, as do `-o yaml`, `-o wide` and `-o name`; `jq` selects from it";
const DEVICE: &str = "`--device 0,1` chooses devices, and `--memory 4GiB --compute 30%` how much of each";
const TIME: &str = "`--ttl 10m` is how long a slice lives; a program has this terminal without a flag";
const DOCKER: &str = "`divvy podman run` and `divvy docker run` take an engine's flags; `divvy run` starts a program \
                      in the environment it has";

/// What to type in the place of a verb that there is not.
pub fn verb(word: &str) -> Option<&'static str> {
    find(&VERBS, word)
}

/// What to type in the place of a flag that there is not.
pub fn flag(word: &str) -> Option<&'static str> {
    find(&FLAGS, word.split('=').next().unwrap_or(word))
}

fn find(list: &[(&'static str, &'static str)], word: &str) -> Option<&'static str> {
    list.iter()
        .find(|(known, _)| *known == word)
        .map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;
    use crate::cli::Cli;

    fn kind(line: &str) -> Option<ErrorKind> {
        let words = line.split_whitespace().map(Into::into);
        Cli::read(words).err().map(|error| error.kind())
    }

    #[test]
    fn each_is_a_word_that_the_grammar_has_not() {
        for (word, _) in VERBS {
            assert_eq!(
                kind(&format!("divvy {word} x")),
                Some(ErrorKind::InvalidSubcommand),
                "{word}"
            );
        }
        for (flag, _) in FLAGS {
            assert_eq!(
                kind(&format!("divvy run {flag} x")),
                Some(ErrorKind::UnknownArgument),
                "{flag}"
            );
        }
    }

    #[test]
    fn what_they_teach_is_understood() {
        let hints = VERBS.iter().chain(&FLAGS).map(|(_, hint)| *hint);
        let quoted = hints.flat_map(|hint| hint.split('`').skip(1).step_by(2));
        for line in quoted.filter(|text| text.starts_with("divvy ")) {
            let line = line.replace("$(divvy ps -q)", "NAME").replace("... &", "PROGRAM");
            let whole = match line.as_str() {
                "divvy podman run" | "divvy docker run" => format!("{line} image"),
                "divvy slice create" => format!("{line} a --memory 1GiB"),
                "divvy run" | "divvy run --wait" => format!("{line} PROGRAM"),
                _ => line,
            };
            let read = kind(&whole);
            assert!(
                matches!(read, None | Some(ErrorKind::DisplayVersion)),
                "{whole}: {read:?}"
            );
        }
    }

    #[test]
    fn a_flag_is_known_with_its_value() {
        assert_eq!(flag("--gres=gpu:1"), Some(DEVICE));
        assert_eq!(flag("--memory"), None);
        assert_eq!(verb("logs").map(|hint| hint.contains("events")), Some(true));
    }
}
