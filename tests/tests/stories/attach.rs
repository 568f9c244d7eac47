//! How programs come into their slice, and what they notice of it: nothing.

use std::process::Stdio;

use divvy_tests::clients::{probe, python, required_file};
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::{GIB, MIB};

#[test]
fn a_late_grandchild_attaches_though_its_parents_closed_everything() {
    let host = Host::new();
    // Two shells, each closing all descriptors that it could have inherited, and leaving the session.
    let script = "for fd in 3 4 5 6 7 8 9; do eval \"exec $fd>&-\"; done; exec setsid --wait \"$@\"";
    let mut command = host.divvy([
        "run", "--name", "late", "--memory", "1GiB", "--", "sh", "-c", script, "sh",
    ]);
    command.args(["sh", "-c", script, "sh"]).arg(probe());
    let mut tenant = Tenant::start(command);
    assert_eq!(tenant.memory().1, GIB);
    assert_eq!(tenant.allocate(800 * MIB), Ok(()));
    assert!(tenant.allocate(300 * MIB).is_err());
    assert_eq!(host.slice("late").memory_used_bytes, 800 * MIB);
}

#[test]
fn a_child_of_python_attaches_though_subprocess_closes_descriptors() {
    let Some(python) = python() else { return };
    let host = Host::new();
    let script = "import os, subprocess, sys; os.closerange(3, 4096); \
                  sys.exit(subprocess.run(sys.argv[1:], close_fds=True).returncode)";
    let mut command = host.run("1GiB", python);
    command.args(["-c", script]).arg(probe());
    let mut tenant = Tenant::start(command);
    assert_eq!(tenant.memory().1, GIB);
    assert!(tenant.end().success());
}

#[test]
fn a_program_holds_no_descriptor_of_ours() {
    let host = Host::new();
    let mut tenant = host.probe("clean", "1GiB");
    assert_eq!(tenant.allocate(100 * MIB), Ok(()));
    let answer = tenant.ask("descriptors");
    let descriptors: Vec<&str> = answer["descriptors"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(serde_json::Value::as_str)
        .collect();
    let run = host.run_directory();
    // The emulated driver below keeps one of its device's memory and one of each of its pages, as NVIDIA's keeps those of its
    // device nodes. It looks whether they are still its own before each use (docs/adr/0019, 0035). The limiter keeps none.
    let of_driver = |name: &&str| {
        let known = ["device-memory", "emulated"].map(|name| format!("/memfd:divvy-{name} (deleted)"));
        known.iter().any(|known| known == name)
    };
    assert!(
        descriptors.iter().filter(|name| of_driver(name)).count() <= 3,
        "{descriptors:?}"
    );
    for descriptor in descriptors.into_iter().filter(|name| !of_driver(name)) {
        let ours = descriptor.starts_with(&*run.to_string_lossy())
            || descriptor.starts_with("socket:")
            || descriptor.contains("memfd:")
            || descriptor.contains("divvy");
        assert!(!ours, "the program holds {descriptor}");
    }
}

#[test]
fn the_environment_is_the_users_own_but_for_the_drop_in() {
    let host = Host::new();
    let plain = succeeded(&finish(host.command("env").env("OWN", "value with = and space")));
    let within = succeeded(&finish(
        host.run("1GiB", "env").env("OWN", "value with = and space"),
    ));
    // The drop-in, where it finds its slice, and the one device that the slice is a share of.
    let of_divvy = |line: &&str| {
        [
            "LD_PRELOAD=",
            "LD_LIBRARY_PATH=",
            "DIVVY_",
            "CUDA_VISIBLE_DEVICES=",
            "CUDA_DEVICE_ORDER=",
            "OPENCL_LAYERS=",
        ]
        .iter()
        .any(|prefix| line.starts_with(prefix))
    };
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| !of_divvy(line))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&within), sorted(&plain));
    assert!(within.contains("OWN=value with = and space"));
}

#[test]
fn the_users_own_preloads_and_library_path_are_kept() {
    let host = Host::new();
    let mut command = host.divvy(["run", "--memory", "1GiB", "--"]);
    command
        .arg(probe())
        .env("LD_PRELOAD", "libm.so.6")
        .env("LD_LIBRARY_PATH", "/usr/local/lib");
    let mut tenant = Tenant::start(command);
    let preload = tenant.ask("environment LD_PRELOAD")["value"]
        .as_str()
        .map(str::to_owned);
    assert!(
        preload
            .as_deref()
            .is_some_and(|value| value.split([':', ' ']).any(|name| name == "libm.so.6")),
        "{preload:?}"
    );
    let path = tenant.ask("environment LD_LIBRARY_PATH")["value"]
        .as_str()
        .map(str::to_owned);
    assert!(
        path.as_deref()
            .is_some_and(|value| value.split(':').any(|folder| folder == "/usr/local/lib")),
        "{path:?}"
    );
    // And the limit holds beside them.
    assert_eq!(tenant.memory().1, GIB);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", tenant.pid())).expect("the tenant's map");
    assert!(maps.contains("libm.so.6"));
}

/// What `divvy run` itself says on standard error, with a program that says nothing.
fn quiet(host: &Host) -> String {
    stderr(&finish(&mut host.run("1GiB", "true")))
}

#[test]
fn a_child_of_another_word_size_prints_nothing_odd() {
    let Some(program) = required_file("/lib32/libc.so.6", "32-bit libc (libc6-i386)") else {
        return;
    };
    let host = Host::new();
    let expected = quiet(&host);
    let output = finish(&mut host.run("1GiB", &program));
    assert!(succeeded(&output).contains("GNU C Library"));
    assert_eq!(stderr(&output), expected);
    // And as a grandchild of a 64-bit program.
    let output = finish(
        host.run("1GiB", "sh")
            .args(["-c", "\"$0\" >/dev/null"])
            .arg(&program),
    );
    succeeded(&output);
    assert_eq!(stderr(&output), expected);
}

#[test]
fn a_statically_linked_child_prints_nothing_odd() {
    // Debian's ldconfig is linked statically: it must work when no library does.
    let Some(program) = required_file("/sbin/ldconfig", "statically linked program") else {
        return;
    };
    let host = Host::new();
    let expected = quiet(&host);
    // As the program itself it is refused; the programs that a dynamic program starts are not checked.
    let mut command = host.run("1GiB", "sh");
    let output = finish(command.args(["-c", "\"$1\" --version", "sh"]).arg(&program));
    assert!(succeeded(&output).contains("ldconfig"));
    assert_eq!(stderr(&output), expected);
}

#[test]
fn a_program_that_uses_no_gpu_is_not_disturbed() {
    let host = Host::new();
    let expected = quiet(&host);
    let output = finish(
        host.run("1GiB", "sh")
            .args(["-c", "echo out; echo err >&2"])
            .stdin(Stdio::null()),
    );
    assert_eq!(succeeded(&output), "out\n");
    assert_eq!(stderr(&output), format!("{expected}err\n"));
}
