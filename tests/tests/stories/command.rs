//! `divvy run` as a command among commands: exit codes, signals, standard streams, refusals.

use std::io::Write;
use std::process::{Command, Stdio};

use divvy_tests::clients::probe;
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::processes;
use divvy_tests::wait::until;
use rustix::process::Signal;

fn code(command: &mut Command) -> Option<i32> {
    finish(command).status.code()
}

#[test]
fn the_exit_code_is_the_programs() {
    let host = Host::new();
    assert_eq!(code(&mut host.run("1GiB", "true")), Some(0));
    assert_eq!(code(host.run("1GiB", "sh").args(["-c", "exit 7"])), Some(7));
    assert_eq!(
        code(host.run("1GiB", "sh").args(["-c", "kill -TERM $$"])),
        Some(143)
    );
    assert_eq!(
        code(host.run("1GiB", "sh").args(["-c", "kill -KILL $$"])),
        Some(137)
    );
}

#[test]
fn a_program_that_cannot_run_is_told_as_a_shell_tells_it() {
    let host = Host::new();
    for (program, expected) in [
        ("/no/such/program", 127),
        ("no-such-program-anywhere", 127),
        ("/tmp", 126),
        ("/etc/passwd", 126),
    ] {
        let output = finish(&mut host.run("1GiB", program));
        assert_eq!(
            output.status.code(),
            Some(expected),
            "{program}: {}",
            stderr(&output)
        );
        assert!(stderr(&output).contains("error[D00"), "{}", stderr(&output));
    }
    until("no slice is left", || host.slices().is_empty().then_some(()));
}

#[test]
fn what_divvy_itself_refuses_ends_with_125_and_a_hint() {
    let host = Host::new();
    for memory in ["0GiB", "4096", "-1GiB", "1000GiB", "lots"] {
        let output = finish(&mut host.run(memory, "true"));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{memory}: {message}");
        assert!(message.contains("error[D00"), "{memory}: {message}");
        assert!(output.stdout.is_empty());
    }
    let unknown = finish(&mut host.divvy(["run", "--device", "GPU-ffff", "--memory", "1GiB", "--", "true"]));
    assert_eq!(unknown.status.code(), Some(125));
    assert!(stderr(&unknown).contains("GPU-ffff"), "{}", stderr(&unknown));
}

#[test]
fn a_signal_reaches_the_program() {
    let host = Host::new();
    let mut child = host
        .run("1GiB", "sh")
        .args([
            "-c",
            "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("divvy starts");
    let mut output = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).expect("a line");
    assert_eq!(line, "ready\n");
    processes::signal(child.id(), Signal::TERM);
    let status = until("divvy ends", || child.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(9));
    line.clear();
    std::io::BufRead::read_line(&mut output, &mut line).expect("a line");
    assert_eq!(line, "caught\n");
}

#[test]
fn standard_streams_and_the_folder_pass_through() {
    let host = Host::new();
    let mut child = host
        .run("1GiB", "cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("divvy starts");
    let bytes: Vec<u8> = (0..=255).collect();
    let mut input = child.stdin.take().expect("piped");
    input.write_all(&bytes).expect("written");
    drop(input);
    let output = child.wait_with_output().expect("divvy ends");
    assert_eq!(output.stdout, bytes);

    let output = finish(host.run("1GiB", "pwd").current_dir(host.folder()));
    assert_eq!(
        succeeded(&output).trim_end(),
        host.folder().canonicalize().expect("a folder").to_string_lossy()
    );
}

#[test]
fn a_stopped_program_is_seen_and_goes_on() {
    let host = Host::new();
    let mut tenant = host.probe("pausing", "1GiB");
    tenant.signal(Signal::STOP);
    // The lists answer while it stands still.
    assert_eq!(host.slice("pausing").processes.len(), 1);
    tenant.signal(Signal::CONT);
    assert!(tenant.copies());
}

#[test]
fn the_lists_are_one_json_document() {
    let host = Host::with_devices("h100*2");
    let devices = host.json(["devices"]);
    assert_eq!(devices["apiVersion"], "divvy/v1");
    assert_eq!(devices["kind"], "DeviceList");
    let items = devices["items"].as_array().expect("items");
    assert_eq!(items.len(), 2);
    let uuid = items[1]["uuid"].as_str().expect("a UUID");
    let total = items[1]["memory_total_bytes"].as_u64().expect("bytes");

    let mut command = host.divvy([
        "run", "--name", "second", "--device", uuid, "--memory", "50%", "--",
    ]);
    command.arg(probe());
    let _tenant = divvy_tests::tenant::Tenant::start(command);
    let slice = host.slice("second");
    assert_eq!(slice.device_uuid, uuid);
    assert_eq!(slice.memory_limit_bytes, total / 2);
}

#[test]
fn without_a_gpu_an_emulated_one_is_used_and_that_is_said_once() {
    let host = Host::new();
    let output = finish(
        host.run("1GiB", "sh")
            .args(["-c", "true"])
            .env_remove("DIVVY_EMULATED"),
    );
    if std::path::Path::new("/dev/nvidiactl").exists() {
        return;
    }
    succeeded(&output);
    assert_eq!(
        stderr(&output).matches("emulated").count(),
        1,
        "{}",
        stderr(&output)
    );
}

/// A shell that may write no files, and a `divvy run` in it.
fn without_files(host: &Host, program: &str) -> std::process::Output {
    let mut command = host.command("sh");
    command
        .args(["-c", "ulimit -f 0; exec \"$0\" run --memory 1GiB -- sh -c \"$1\""])
        .arg(divvy_tests::build::binaries().join("divvy"))
        .arg(program)
        .current_dir(host.folder());
    finish(&mut command)
}

#[test]
fn where_no_file_may_grow_it_is_said_and_no_process_dies_of_it_but_the_program() {
    let host = Host::new();
    // No agent: a program that is started now can write nothing.
    let output = without_files(&host, "true");
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("error[D"), "{}", stderr(&output));

    // With an agent that can, the run does not mind; its program has the signal as it always was.
    let host = Host::new();
    assert_eq!(code(&mut host.run("1GiB", "true")), Some(0));
    let output = without_files(&host, "exit 7");
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let output = without_files(&host, "echo text >file");
    assert_eq!(output.status.code(), Some(128 + 25), "{}", stderr(&output));
}
