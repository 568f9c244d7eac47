//! What a shell offers while a line is typed: verbs, flags, and the names that are there now.

mod common;

use std::process::{Command, Stdio};

use common::Host;

/// What the script of `shell` gets for these words, the last of which is being typed.
fn offered(host: &Host, shell: &str, words: &[&str]) -> Vec<String> {
    let output = host
        .divvy(&[&["--", "divvy"], words].concat())
        .env("DIVVY_COMPLETE", shell)
        .env("_CLAP_COMPLETE_INDEX", words.len().to_string())
        .env("_CLAP_IFS", "\n")
        .output()
        .expect("divvy starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    // zsh and fish get a word about each beside it.
    let name = |line: &str| line.split([':', '\t']).next().unwrap_or_default().to_owned();
    text.lines().map(name).collect()
}

#[test]
fn names_of_slices_and_devices_are_those_that_are_there() {
    let host = Host::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(offered(&host, shell, &["kill", "a"]).is_empty(), "no agent runs");
        assert_eq!(offered(&host, shell, &["run", "--device", ""]), ["0"]);
    }
    assert_eq!(host.refused(&["agent", "status"]).0, 3, "none was started for it");
    host.text(&["slice", "create", "alice", "--memory", "1GiB"]);
    let _tenant = host.idle("train", "1GiB");
    for shell in ["bash", "zsh", "fish"] {
        for (words, wanted) in [
            (&["kill", ""][..], &["alice", "train"][..]),
            (&["kill", "tr"], &["train"]),
            (&["inspect", "train", "al"], &["alice"]),
            (&["resize", "t"], &["train"]),
            // Only a lasting slice can be joined and deleted.
            (&["run", "--slice", ""], &["alice"]),
            (&["slice", "delete", ""], &["alice"]),
            (&["run", "-d", ""], &["0"]),
            (&["run", "--device", "0,"], &["0,0"]),
        ] {
            let mut found = offered(&host, shell, words);
            found.retain(|name| !name.starts_with('-'));
            found.sort();
            assert_eq!(found, wanted, "{shell}: {words:?}");
        }
        let of_other = ["--run-dir", "/nonexistent/run", "kill", "t"];
        assert!(
            offered(&host, shell, &of_other).is_empty(),
            "another agent is asked"
        );
    }
}

#[test]
fn what_fails_is_silent_and_the_variable_alone_does_nothing() {
    let host = Host::new();
    let folder = host.folder().join("config/divvy");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("config.toml"), "memory = [").expect("written");
    assert!(
        offered(&host, "bash", &["kill", ""])
            .iter()
            .all(|word| word.starts_with('-'))
    );
    assert!(offered(&host, "no-shell", &["kill", ""]).is_empty());
    std::fs::remove_file(folder.join("config.toml")).expect("removed");
    let output = host
        .divvy(&["run", "--memory", "1GiB", "--", "echo", "ran"])
        .env("DIVVY_COMPLETE", "bash")
        .output()
        .expect("divvy starts");
    assert_eq!(output.stdout, b"ran\n", "{output:?}");
}

#[test]
fn bash_completes_by_the_script_that_is_printed() {
    let host = Host::new();
    host.text(&["slice", "create", "alice", "--memory", "1GiB"]);
    let script = host.folder().join("divvy.bash");
    std::fs::write(&script, host.text(&["completions", "bash"])).expect("written");
    let bin = common::divvy().parent().expect("a folder").display().to_string();
    // The line is `divvy kill a`, with the cursor at its end.
    let press = "source $0; COMP_WORDS=(divvy kill a); COMP_CWORD=2; COMP_TYPE=9
        _clap_complete_divvy divvy a kill; printf '%s\\n' \"${COMPREPLY[@]}\"; complete -p divvy";
    let output = Command::new("bash")
        .args(["--norc", "-c", press])
        .arg(&script)
        .env("PATH", format!("{bin}:/usr/bin:/bin"))
        .env("DIVVY_RUN_DIR", host.run_dir())
        .env("XDG_CONFIG_HOME", host.folder().join("config"))
        .env("DIVVY_EMULATED", "h100")
        .stdin(Stdio::null())
        .output()
        .expect("bash starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.starts_with("alice\n") && said.contains("-F _clap_complete_divvy divvy"),
        "{output:?}"
    );
}

#[test]
fn scripts_of_zsh_and_fish_ask_this_command() {
    let host = Host::new();
    let zsh = host.text(&["completions", "zsh"]);
    assert!(
        zsh.starts_with("#compdef divvy\n") && zsh.contains("DIVVY_COMPLETE=\"zsh\""),
        "{zsh}"
    );
    // As a function of the path, which is called as soon as it is read.
    assert!(zsh.contains("\"$funcstack[1]\" = \"_divvy\""), "{zsh}");
    let fish = host.text(&["completions", "fish"]);
    assert!(fish.contains("DIVVY_COMPLETE=fish divvy --"), "{fish}");
}
