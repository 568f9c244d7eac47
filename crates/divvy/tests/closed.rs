//! Where a GPU does not answer, and where something cannot be given: nothing is emulated, nothing is printed that resolves.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Host, until};
use divvy_host::built::{Built, Function};

/// A machine whose only GPU, an H100, has no driver.
fn without_driver(root: &Path) -> Built {
    let built = Built::at(root);
    built.function(Function {
        address: "0000:65:00.0",
        id: "10de:2330",
        class: "0x030200",
        driver: "",
        port: "0000:64:01.0",
        numa: 0,
        group: 1,
    });
    built
}

/// `divvy` on the machine below this folder, which configures no emulated device and has no NVML.
fn on(host: &Host, root: &Path, words: &[&str]) -> Command {
    let mut command = host.divvy(words);
    command
        .env_remove("DIVVY_EMULATED")
        .env("DIVVY_NVML", "/nonexistent/libnvidia-ml.so.1")
        .env("DIVVY_SYSROOT", root);
    command
}

struct Said {
    status: Option<i32>,
    out: String,
    err: String,
}

fn say(mut command: Command) -> Said {
    let output = command.output().expect("divvy starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Said {
        status: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

#[test]
fn a_gpu_without_its_driver_is_told_of_and_never_emulated() {
    let host = Host::new();
    let root = host.folder().join("machine");
    without_driver(&root);
    let run = |words: &[&str]| say(on(&host, &root, words));
    let program = ["--memory", "1GiB", "--", "true"];
    let any = [&["run"], &program[..]].concat();
    let numbered = [&["run", "--device", "0"], &program[..]].concat();
    for words in [&any, &numbered] {
        let said = run(words);
        assert_eq!(said.status, Some(5), "{words:?}: {}", said.err);
        for part in [
            "D0010",
            "NVIDIA H100 80GB HBM3",
            "0000:65:00.0",
            "modprobe nvidia",
        ] {
            assert!(said.err.contains(part), "{part}: {}", said.err);
        }
    }
    let said = run(&["slice", "create", "kept", "--memory", "1GiB"]);
    assert_eq!(said.status, Some(5), "{}", said.err);
    // The card is device 0, and nothing is beside it.
    let said = run(&["devices"]);
    assert!(
        said.out.contains("NVIDIA H100") && !said.out.contains("[emulated]"),
        "{}",
        said.out
    );
    let said = run(&["doctor"]);
    assert_eq!(said.status, Some(1), "{}", said.out);
    let row = said
        .out
        .lines()
        .find(|line| line.contains("0000:65:00.0"))
        .expect("a row");
    assert!(row.contains("FAIL"), "{}", said.out);
    assert!(said.out.contains("modprobe nvidia"), "{}", said.out);
    // In so many words it is another matter, and changes nothing for the others.
    let named = [&["run", "--device", "emulated:h100"], &program[..]].concat();
    let said = run(&named);
    assert_eq!((said.status, &*said.err), (Some(0), ""));
    assert_eq!(run(&any).status, Some(5));
    assert_eq!(run(&numbered).status, Some(5));
}

#[test]
fn a_machine_without_a_gpu_says_that_it_emulates_one() {
    let host = Host::new();
    let root = host.folder().join("machine");
    std::fs::create_dir(&root).expect("a folder");
    let run = |words: &[&str]| say(on(&host, &root, words));
    let said = run(&["run", "--memory", "1GiB", "--", "true"]);
    assert_eq!(said.status, Some(0), "{}", said.err);
    assert!(said.err.contains("no GPU here"), "{}", said.err);
    let said = run(&["slice", "create", "kept", "--memory", "1GiB"]);
    assert_eq!(said.status, Some(0), "{}", said.err);
    for words in [&["devices"][..], &["ps"], &["top", "--once"]] {
        let said = run(words);
        assert!(said.out.contains("[emulated]"), "{words:?}: {}", said.out);
    }
}

#[test]
fn what_cannot_be_given_resolves_to_nothing() {
    let host = Host::new();
    for (words, expected) in [
        (
            &["cdi", "slice", "--memory", "900GiB"][..],
            "divvy.dev/slice=refused\n",
        ),
        (&["cdi", "slice", "--memry", "1GiB"], "divvy.dev/slice=refused\n"),
        (&["env", "set", "--devices", "7"], "false\n"),
        (&["env", "set", "--what"], "false\n"),
    ] {
        let said = say(host.divvy(words));
        assert_ne!(said.status, Some(0), "{words:?}");
        assert_eq!(said.out, expected, "{words:?}: {}", said.err);
    }
    // Nor can a slice be made that the name resolves to.
    let (status, said) = host.refused(&["slice", "create", "refused", "--memory", "1GiB"]);
    assert!(status == 2 && said.contains("D0023"), "{said}");
}

#[test]
fn a_slice_that_no_container_takes_goes_again() {
    let host = Host::new();
    let directory = host.folder().join("cdi");
    let directory = directory.to_str().expect("a path");
    let words = [
        "cdi",
        "slice",
        "--memory",
        "20GiB",
        "--ttl",
        "1s",
        "--directory",
        directory,
    ];
    for _ in 0..3 {
        assert!(host.text(&words).starts_with("divvy.dev/slice="));
    }
    // All are promised, until then.
    let said = say(host.divvy(&words));
    assert_eq!(said.out, "divvy.dev/slice=refused\n", "{}", said.err);
    assert!(said.err.contains("D0012"), "{}", said.err);
    until("nothing is left", || host.slices().is_empty());
    let left = std::fs::read_dir(directory).expect("a folder").count();
    assert_eq!(left, 0, "nor their files");
    // A slice with a name is meant to be named again.
    host.text(&[
        "cdi",
        "slice",
        "--memory",
        "1GiB",
        "--name",
        "kept",
        "--directory",
        directory,
    ]);
    assert_eq!(host.slice("kept").get("lifetime_anchor"), None);
}
