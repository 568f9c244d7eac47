//! Commands as people type them who come from docker, kubectl, Slurm and nvidia-smi: each does what is meant, or says
//! what to type.

mod common;

use common::Host;
use serde_json::Value;

/// The memory of the slice that `divvy run` with these flags would make.
fn memory(host: &Host, words: &[&str]) -> Value {
    let plan = host.json(&[&["run", "--dry-run"], words].concat());
    plan["slice"]["memory_limit_bytes"].clone()
}

#[test]
fn a_program_needs_no_dashes_before_it() {
    let host = Host::new();
    let whole = [
        "run",
        "--memory",
        "1GiB",
        "sh",
        "-c",
        "echo $0 $1",
        "--memory",
        "-o",
    ];
    assert_eq!(host.text(&whole), "--memory -o\n");
    assert_eq!(
        host.text(&["run", "-m", "1GiB", "--", "echo", "--", "-d"]),
        "-- -d\n"
    );
    let plan = host.json(&["run", "--dry-run", "-m", "1GiB", "-d", "0", "python", "x.py"]);
    assert_eq!(plan["slice"]["command"], serde_json::json!(["python", "x.py"]));
}

#[test]
fn a_flag_that_there_is_not_is_no_program() {
    let host = Host::new();
    let (status, said) = host.refused(&["run", "--memroy", "1GiB", "true"]);
    assert_eq!(status, 125);
    assert!(
        said.contains("error[D0001]") && said.contains("--memory"),
        "{said}"
    );
}

#[test]
fn sizes_of_other_tools() {
    let host = Host::new();
    for size in ["4G", "4g", "4gb", "4GB", "4000m"] {
        assert_eq!(memory(&host, &["-m", size, "true"]), 4_000_000_000_u64, "{size}");
    }
    assert_eq!(memory(&host, &["-m", "4gi", "true"]), 4_u64 << 30);
}

#[test]
fn words_of_other_tools_say_what_to_type() {
    let host = Host::new();
    for (words, status, told) in [
        (&["run", "--gpus", "all", "true"][..], 125, "`--device 0,1`"),
        (&["run", "--gres=gpu:1", "true"], 125, "`--device 0,1`"),
        (&["logs", "train"], 2, "`divvy events`"),
        (&["wait", "train"], 2, "`divvy run --wait`"),
        (&["exec", "train", "sh"], 2, "`divvy run --slice NAME PROGRAM`"),
        (&["describe", "train"], 2, "`divvy inspect NAME`"),
        (&["ps", "-l", "1"], 2, "`divvy ps --watch`"),
        (&["ps", "-a"], 2, "`divvy history`"),
        (&["ps", "--format", "json"], 2, "`-o json`"),
        (&["devices", "--json"], 2, "`-o json`"),
        (&["top", "-b"], 2, "`divvy top -n 1`"),
        (&["events", "--tail", "5"], 2, "`--last 5`"),
        (&["doctor", "--fix"], 2, "changes nothing"),
        (&["queue"], 2, "`divvy ps`"),
        (&["config", "get", "memory"], 2, "`divvy config show`"),
        (
            &["config", "set", "memory", "1GiB"],
            2,
            "`divvy config show --origin`",
        ),
        (
            &["resize", "train", "6GiB"],
            2,
            "`divvy resize train --memory 6GiB`",
        ),
        (
            &["resize", "train", "30%"],
            2,
            "`divvy resize train --compute 30%`",
        ),
        (&["delete", "train"], 2, "`divvy slice delete NAME`"),
        (&["squeue"], 2, "`divvy ps`"),
        (&["images"], 2, "`divvy podman run IMAGE`"),
        (&["run", "-e", "A=1", "true"], 125, "`divvy podman run`"),
        (&["run", "--timeout", "5", "true"], 125, "`--ttl 10m`"),
        (&["./train.py"], 2, "`divvy run --memory 4GiB python ./train.py`"),
        (&["python", "train.py"], 2, "`divvy run --memory 4GiB python`"),
        (&["man", "run"], 2, "`divvy help run`"),
        (&["run", "-c", "30%", "true"], 125, "`--compute 30%`"),
        (&["run", "-m", "1GiB", "--compute", "0.3", "true"], 125, "`30%`"),
    ] {
        let (got, said) = host.refused(words);
        assert_eq!(got, status, "{words:?}: {said}");
        assert!(
            said.contains("hint: ") && said.contains(told),
            "{words:?}: {said}"
        );
    }
}

/// A misspelt word, by a flag and by a variable, is told the nearest one. A text that is near none gets the list alone.
#[test]
fn a_misspelt_word_says_the_nearest() {
    let host = Host::new();
    for (words, status, told) in [
        (&["run", "--isolation", "enforcd", "true"][..], 125, "`enforced`"),
        (&["run", "--cap", "hrad", "true"], 125, "`hard`"),
        (&["run", "--class", "latencie", "true"], 125, "`latency`"),
        (
            &["slice", "create", "a", "--policy", "best-efort"],
            2,
            "`best-effort`",
        ),
        (
            &[
                "remote",
                "serve",
                "--listen",
                "127.0.0.1:1",
                "--isolation",
                "enforcd",
            ],
            2,
            "`enforced`",
        ),
    ] {
        let (got, said) = host.refused(words);
        assert_eq!(got, status, "{words:?}: {said}");
        assert!(
            said.contains("error[D0001]") && said.contains(&format!("hint: write {told}")),
            "{words:?}: {said}"
        );
    }
    let mut run = host.divvy(&["run", "true"]);
    let output = run.env("DIVVY_ISOLATION", "enforcd").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("error[D0003]")
            && said.contains("DIVVY_ISOLATION")
            && said.contains("write `enforced`"),
        "{said}"
    );
    let (_, said) = host.refused(&["run", "--isolation", "strict", "true"]);
    assert!(
        said.contains("choose env, cooperative") && !said.contains("hint: "),
        "{said}"
    );
}

/// A hint of sizes can be typed as it stands there.
#[test]
fn a_hint_of_sizes_can_be_typed() {
    let host = Host::new();
    let (status, said) = host.refused(&["run", "--memory", "99999999PiB", "true"]);
    assert_eq!(status, 125, "{said}");
    let most = said
        .split('`')
        .rfind(|word| word.ends_with("PiB"))
        .expect("a size");
    let plan = host
        .divvy(&["run", "--dry-run", "--memory", most, "true"])
        .output();
    let again = String::from_utf8_lossy(&plan.expect("it starts").stderr).into_owned();
    // No device has so much, and it is no wrong size.
    assert!(
        most != "99999999PiB" && !again.contains("D0002") && again.contains("D00"),
        "{again}"
    );
}

#[test]
fn the_command_alone_shows_its_help() {
    let output = Host::new().divvy(&[]).output().expect("divvy starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("\nEvery day:\n"),
        "{output:?}"
    );
}

#[test]
fn a_flag_behind_the_program_is_the_programs_and_that_is_said() {
    let host = Host::new();
    for (words, is_told) in [
        (&["run", "true", "--memory", "1GiB"][..], true),
        (&["run", "true", "--compute=30%"], true),
        (&["run", "--", "true", "--memory", "1GiB"], false),
        (&["run", "true", "memory"], false),
    ] {
        let output = host.divvy(words).output().expect("divvy starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        assert_eq!(
            said.contains("stands behind the program"),
            is_told,
            "{words:?}: {said}"
        );
    }
}

#[test]
fn what_ends_nothing_says_what_would() {
    let host = Host::new();
    host.text(&["slice", "create", "lab", "--memory", "1GiB"]);
    let said = host.text(&["kill", "lab", "--yes"]);
    assert!(said.contains("`divvy slice delete lab` deletes it"), "{said}");
    host.text(&["slice", "delete", "lab"]);
    let _tenant = host.idle("greedy", "100%");
    let (_, said) = host.refused(&["run", "--memory", "4GiB", "true"]);
    assert!(
        said.contains("or `divvy resize greedy --memory SIZE` makes room"),
        "{said}"
    );
}

#[test]
fn ten_commands_of_habit_do_what_is_meant_or_say_what_to_type() {
    /// What a command does here.
    enum Does {
        /// It succeeds, and prints this.
        Prints(&'static str),
        /// It is refused, and the hint has this.
        Teaches(&'static str),
    }
    use Does::{Prints, Teaches};
    let host = Host::new();
    host.text(&["slice", "create", "spare", "-m", "1GiB"]);
    let _tenant = host.idle("train", "1GiB");
    for (from, line, does) in [
        (
            "docker",
            "run --rm --gpus all true",
            Teaches("`divvy podman run`"),
        ),
        ("docker", "stats --no-stream", Teaches("`divvy top -n 1`")),
        ("docker", "stop train", Prints("train")),
        ("docker", "rm spare", Prints("spare")),
        (
            "srun",
            "run --gres=gpu:1 --mem=4G python x.py",
            Teaches("`--device 0,1`"),
        ),
        ("srun", "run -m 1G -t 00:10:00 true", Teaches("`--ttl 10m`")),
        ("kubectl", "get pods", Teaches("`divvy ps`")),
        ("kubectl", "describe train", Teaches("`divvy inspect NAME`")),
        ("kubectl", "logs -f train", Teaches("`divvy events`")),
        ("nvidia-smi", "nvidia-smi -l 1", Teaches("`divvy devices`")),
        ("nvidia-smi", "devices -L", Teaches("`divvy devices`")),
        ("nvidia-smi", "ls -q", Prints("")),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        match does {
            Prints(text) => assert!(host.text(&words).contains(text), "{from}: {line}"),
            Teaches(text) => {
                let (status, said) = host.refused(&words);
                let usage = if words[0] == "run" { 125 } else { 2 };
                assert_eq!(status, usage, "{from}: {line}: {said}");
                assert!(
                    said.contains("hint: ") && said.contains(text),
                    "{from}: {line}: {said}"
                );
            }
        }
    }
}

#[test]
fn verbs_of_other_tools_do_what_they_do_there() {
    let host = Host::new();
    host.text(&["slice", "create", "kept", "-m", "2GiB"]);
    let mut tenant = host.idle("train", "1GiB");
    assert_eq!(host.json(&["ls"])["items"], host.json(&["ps"])["items"]);
    assert_eq!(host.text(&["stats", "-n", "1"]).lines().count(), 3);
    assert_eq!(
        host.text(&["stop", "train"]).lines().count(),
        1,
        "without a terminal nothing is asked"
    );
    tenant.child.wait().expect("it has ended");
    assert_eq!(host.text(&["slice", "ls", "-q"]), "kept\n");
    host.text(&["slice", "rm", "-y", "kept"]);
    assert_eq!(host.json(&["ps"])["items"], serde_json::json!([]));
    assert_eq!(host.text(&["events", "-n", "2"]).lines().count(), 2);
    assert_eq!(host.text(&["history", "-n", "1"]).lines().count(), 2);
    assert_eq!(host.text(&["explain", "12"]), host.text(&["explain", "D0012"]));
}

#[test]
fn all_of_a_device_that_is_not_free_is_said_to_have_been_assumed() {
    let host = Host::new();
    let _tenant = host.idle("train", "1GiB");
    let (status, said) = host.refused(&["run", "true"]);
    assert_eq!(status, 125);
    let cause = "because: no --memory was given, so all of the device was asked for";
    assert!(said.contains(cause) && said.contains("`--memory 4GiB`"), "{said}");
    let (_, asked) = host.refused(&["run", "-m", "79GiB", "true"]);
    assert!(!asked.contains("no --memory"), "{asked}");
}

#[test]
fn each_row_has_the_device_s_index() {
    let host = Host::new();
    let _tenant = host.idle("train", "1GiB");
    let table = host.text(&["ps"]);
    let row = table.lines().nth(1).expect("a slice");
    assert!(row.contains("  0 [emulated]  GPU-"), "{row}");
    let table = host.text(&["top", "--once"]);
    let row = table.lines().nth(1).expect("a slice");
    assert!(row.contains("  0 [emulated]  "), "{row}");
}
