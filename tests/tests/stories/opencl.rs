//! OpenCL programs in slices: on PoCL, this machine's processors as a device, through the real loader.
//!
//! The programs are ours in C (tests/opencl/tenant.c), an example like clpeak, clinfo, and PyOpenCL from PyPI; none of them
//! knows of Divvy.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use divvy_tests::build::workspace;
use divvy_tests::clients::{self, clinfo, opencl_program, opencl_python};
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};

const TENANT: &str = "tests/opencl/tenant.c";
/// Levels that a suite may ask for cannot be had on PoCL's device.
const COOPERATIVE: [&str; 2] = ["--isolation", "cooperative"];

fn pocl() -> Host {
    Host::with_devices("pocl")
}

/// A command on a host, which keeps what PoCL compiles there.
fn on(host: &Host, mut command: Command) -> Command {
    command
        .env("POCL_CACHE_DIR", host.folder().join("pocl"))
        .env_remove("OCL_ICD_VENDORS")
        .env_remove("OPENCL_LAYERS");
    command
}

fn in_slice(host: &Host, terms: &[&str], program: &Path) -> Command {
    let mut command = host.divvy(
        ["run"]
            .into_iter()
            .chain(COOPERATIVE)
            .chain(terms.iter().copied()),
    );
    command.arg("--").arg(program);
    on(host, command)
}

/// What the program said of each thing that it tried.
fn said(text: &str) -> HashMap<&str, i64> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(what, number)| (what, number.parse().expect("a number")))
        .collect()
}

/// `CL_MEM_OBJECT_ALLOCATION_FAILURE`.
const REFUSED: i64 = -4;

#[test]
fn a_slice_of_1_gib_refuses_2_gib_by_every_call_that_allocates() {
    let host = pocl();
    let Some(program) = opencl_program(TENANT, host.folder()) else {
        return;
    };
    let output = finish(in_slice(&host, &["--memory", "1GiB"], &program).args(["limits", "2048"]));
    let text = succeeded(&output);
    let said = said(&text);
    assert_eq!([said["global"], said["most"]], [GIB as i64; 2], "{text}");
    for call in [
        "clCreateBuffer",
        "clCreateBuffer,USE_HOST_PTR",
        "clCreateBuffer,ALLOC_HOST_PTR",
        "clCreateBufferWithProperties",
        "clCreateImage",
        "clCreateImageWithProperties",
        "clCreateImage2D",
        "clCreateImage3D",
        "clCreatePipe",
        "hostile",
        "hostile,image",
    ] {
        assert_eq!(said[call], REFUSED, "{call}: {text}");
    }
    assert_eq!(said["clSVMAlloc"], 0, "{text}");
    // Wrong handles and sizes are the driver's and the loader's to refuse.
    assert_eq!(
        [said["no,context"], said["no,queue"], said["empty"]],
        [-34, -36, -61],
        "{text}"
    );
    assert_eq!(said["after,all"], 1, "{text}");

    // Without a slice the layer is not there, and most of these calls would be granted.
    let bare = finish(on(&host, host.command(&program)).args(["limits", "2048"]));
    let text = succeeded(&bare);
    assert_eq!(self::said(&text)["clCreateBuffer"], 0, "{text}");
}

#[test]
fn memory_is_charged_for_as_long_as_its_object_lives() {
    let host = pocl();
    let Some(program) = opencl_program(TENANT, host.folder()) else {
        return;
    };
    let output = finish(in_slice(&host, &["--memory", "1GiB"], &program).args(["lifetimes", "1024"]));
    let text = succeeded(&output);
    let said = said(&text);
    for (what, expected) in [
        ("beside", 0),
        ("retained", 0),
        ("part,costs", 0),
        ("part,keeps", 1),
        ("part,gone", 1),
        ("command,keeps", 1),
        ("command,done", 1),
        ("image", 0),
        ("image,charged", 1),
        ("image,gone", 1),
        ("svm", 1),
        ("svm,charged", 1),
        ("svm,other", 1),
        ("svm,gone", 1),
        ("svm,freed", 1),
        ("child", 7),
        ("parent,keeps", 1),
        ("parent", 1),
        ("again", 1),
    ] {
        assert_eq!(said[what], expected, "{what}: {text}");
    }
}

/// A program that launches kernels until its standard input ends.
struct Spinner {
    child: Child,
    input: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Spinner {
    fn start(command: Command, words: &[&str]) -> Self {
        Self::begin(command, &[&["spin", "4"], words].concat())
    }

    fn begin(mut command: Command, words: &[&str]) -> Self {
        let mut child = command
            .args(words)
            // As many in each kernel of both: some milliseconds.
            .env("ROUNDS", "1000")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = child.stdout.take().expect("piped");
        let mut spinner = Self {
            input: child.stdin.take(),
            lines: BufReader::new(output).lines(),
            child,
        };
        assert!(spinner.line().starts_with("rounds "), "it is ready");
        spinner
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("it runs").expect("text")
    }

    /// Kernels that are over.
    fn done(&mut self) -> u64 {
        self.input
            .as_mut()
            .expect("open")
            .write_all(b"\n")
            .expect("it listens");
        let line = self.line();
        let number = line.strip_prefix("done ").expect("an answer");
        number.parse().expect("a number")
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ended = self.child.wait();
    }
}

fn share_of_30_beside_70(words: &[&str]) -> Option<f64> {
    let host = pocl();
    let program = opencl_program(TENANT, host.folder())?;
    let start = |name: &str, share: &str| {
        let terms = ["--memory", "256MiB", "--name", name, "--compute", share];
        Spinner::start(in_slice(&host, &terms, &program), words)
    };
    let (mut small, mut large) = (start("small", "30%"), start("large", "70%"));
    let from = until("both run", || {
        let now = (small.done(), large.done());
        (now.0 > 10 && now.1 > 10).then_some(now)
    });
    let (small, large) = until("they have run some hundred kernels", || {
        let now = (small.done() - from.0, large.done() - from.1);
        (now.0 + now.1 > 600).then_some(now)
    });
    let share = small as f64 * 100.0 / (small + large) as f64;
    println!("30 % beside 70 %: {share:.2} %, {small} and {large} kernels");
    Some(share)
}

#[test]
fn two_programs_have_30_and_70_percent() {
    let Some(share) = share_of_30_beside_70(&["2"]) else {
        return;
    };
    // The machine has other work: docs/opencl.md has what was read in the quiet.
    assert!((24.0..=36.0).contains(&share), "{share}");
}

#[test]
fn queues_out_of_order_are_held_to_their_share() {
    let Some(share) = share_of_30_beside_70(&["2", "out-of-order"]) else {
        return;
    };
    assert!((22.0..=38.0).contains(&share), "{share}");
}

/// A driver calls the program back in a thread of its own, which waits at the gate with the launch.
#[test]
fn a_program_that_launches_in_its_callbacks_goes_on_beside_another() {
    let host = pocl();
    let Some(program) = opencl_program(TENANT, host.folder()) else {
        return;
    };
    let terms = ["--memory", "256MiB", "--compute", "40%"];
    let _other = Spinner::start(in_slice(&host, &terms, &program), &["1"]);
    let mut chain = Spinner::begin(in_slice(&host, &terms, &program), &["chain"]);
    until("it has launched some kernels", || {
        (chain.done() > 60).then_some(())
    });
}

#[test]
fn queues_come_and_go_while_the_device_is_shared() {
    let host = pocl();
    let Some(program) = opencl_program(TENANT, host.folder()) else {
        return;
    };
    let terms = ["--memory", "256MiB", "--compute", "40%"];
    let _other = Spinner::start(in_slice(&host, &terms, &program), &["1"]);
    let output = finish(in_slice(&host, &terms, &program).arg("churn"));
    assert_eq!(succeeded(&output), "churned 240\n");
}

#[test]
fn programs_that_know_nothing_of_divvy_run_in_a_slice() {
    let host = pocl();
    let terms = ["--memory", "1GiB"];
    if let Some(program) = opencl_program("examples/opencl/peak.c", host.folder()) {
        let text = succeeded(&finish(&mut in_slice(&host, &terms, &program)));
        assert!(
            text.contains(", 1024 MiB\n") && text.ends_with("right\n"),
            "{text}"
        );
    }
    if let Some(clinfo) = clinfo() {
        let text = succeeded(&finish(&mut in_slice(&host, &terms, &clinfo)));
        let line = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
        };
        assert!(line("Global memory size").contains(&GIB.to_string()), "{text}");
        assert!(line("Device Available").ends_with("Yes"), "{text}");
    }
    if let Some(python) = opencl_python() {
        let mut command = in_slice(&host, &terms, &python);
        command.arg(workspace().join("examples/opencl/twice.py"));
        let text = succeeded(&finish(&mut command));
        assert!(
            text.contains("right\n") && text.contains("2 GiB: refused"),
            "{text}"
        );
    }
}

#[test]
fn pocl_is_listed_as_what_it_is_and_refuses_what_it_cannot_do() {
    let host = pocl();
    let devices = host.json(["devices"]);
    let device = &devices["items"][0];
    assert_eq!(
        (&device["kind"], &device["profile"]),
        (&"emulated".into(), &"pocl".into())
    );
    assert_eq!(device["name"], "PoCL (OpenCL, no CUDA)");
    assert_eq!(device["compute_capability"], "");
    let memory = device["memory_total_bytes"].as_u64().expect("a number");
    assert!(memory > 512 * MIB, "{memory}");
    for terms in [
        ["--isolation", "enforced"],
        ["--isolation", "supervised"],
        ["--share", "mps"],
    ] {
        let mut command = host.divvy(["run", "--memory", "1GiB"].into_iter().chain(terms));
        let refused = finish(command.args(["--", "true"]));
        assert!(!refused.status.success(), "{terms:?}");
        assert!(stderr(&refused).contains("D0022"), "{}", stderr(&refused));
    }
    // It is no CUDA device.
    let mut command = in_slice(&host, &["--memory", "1GiB"], &clients::probe());
    let output = finish(&mut command);
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn the_layer_alone_limits_nothing_and_one_whose_agent_is_gone_grants_nothing() {
    let host = pocl();
    let Some(program) = opencl_program(TENANT, host.folder()) else {
        return;
    };
    let layer = divvy_tests::build::binaries().join("libdivvy_limit_opencl.so");
    let run = |slice: Option<&str>| {
        let mut command = on(&host, host.command(&program));
        command.env("OPENCL_LAYERS", &layer).args(["lifetimes", "1024"]);
        if let Some(slice) = slice {
            command.env("DIVVY_SLICE", host.folder().join(slice));
        }
        finish(&mut command)
    };
    let alone = succeeded(&run(None));
    let said = said(&alone);
    assert_eq!((said["beside"], said["again"]), (1, 1), "{alone}");

    // No slice is behind this socket. The processors are none of Divvy's devices there, and a program without a slice may
    // not think that it has one.
    let gone = run(Some("nowhere.sock"));
    assert_eq!(gone.status.code(), Some(3), "{gone:?}");
    assert_eq!(String::from_utf8_lossy(&gone.stdout), "context -2\n", "{gone:?}");
}

#[test]
fn in_a_slice_of_a_gpu_processors_are_free_as_they_always_were() {
    let host = Host::new();
    let Some(program) = opencl_program(TENANT, host.folder()) else {
        return;
    };
    let output = finish(in_slice(&host, &["--memory", "1GiB"], &program).args(["lifetimes", "1024"]));
    let text = succeeded(&output);
    assert_eq!(said(&text)["beside"], 1, "{text}");
}
