//! `divvy emulate check`: programs that were not written for it are clean, and a defect is named by its line.

use std::fs;

use divvy_tests::clients::{python, python_example};
use divvy_tests::host::{Host, finish, stderr, succeeded};
use serde_json::Value;

fn stdout(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The report of a program that is run under the check.
fn report(host: &Host, program: &std::path::Path, arguments: &[&str]) -> Value {
    let mut command = host.divvy(["emulate", "check", "-o", "json", "--"]);
    command
        .arg(program)
        .args(arguments)
        .env("HOME", host.folder())
        .env("XDG_CACHE_HOME", host.folder());
    let output = finish(&mut command);
    serde_json::from_str(&stdout(&output)).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
}

#[test]
fn the_examples_are_clean() {
    let Some(python) = python() else { return };
    let host = Host::new();
    for (name, arguments) in [
        ("black_scholes.py", &["--threads", "256"][..]),
        ("kmeans.py", &["--points", "1000"]),
        ("neural_net.py", &["--samples", "64", "--steps", "3"]),
        ("graphs.py", &["--steps", "5"]),
        ("render.py", &["--size", "16", "--steps", "3"]),
        ("tiny_net.py", &["--points", "32", "--steps", "2"]),
    ] {
        let example = python_example(name);
        let mut words = vec![example.to_str().expect("text")];
        words.extend(arguments);
        let report = report(&host, &python, &words);
        assert_eq!(report["processes"], 1, "{name}: {report:#}");
        assert_eq!(
            report["findings"].as_array().map(Vec::len),
            Some(0),
            "{name}: {report:#}"
        );
    }
}

/// A sum in shared memory, as it is often written, with one `syncthreads` forgotten.
const FORGOTTEN: &str = "import numpy as np
from numba import cuda, float32

@cuda.jit(lineinfo=True)
def total(values, sums):
    part = cuda.shared.array(128, float32)
    at = cuda.threadIdx.x
    part[at] = values[cuda.grid(1)]
    cuda.syncthreads()
    step = 64
    while step > 0:
        if at < step:
            part[at] += part[at + step]
        step //= 2
    if at == 0:
        sums[cuda.blockIdx.x] = part[0]

values = cuda.to_device(np.ones(256, np.float32))
sums = cuda.device_array(2, np.float32)
total[2, 128](values, sums)
cuda.synchronize()
";

#[test]
fn a_forgotten_barrier_of_a_numba_kernel_is_named_by_its_line() {
    let Some(python) = python() else { return };
    let host = Host::new();
    let program = host.folder().join("program.py");
    fs::write(&program, FORGOTTEN).expect("written");
    let found = report(&host, &python, &[program.to_str().expect("text")]);
    let findings = found["findings"].as_array().expect("findings");
    assert!(!findings.is_empty(), "{found:#}");
    for finding in findings {
        let source = finding["site"]["source"].as_str().unwrap_or_default();
        assert_eq!(finding["kind"], "race", "{found:#}");
        // The end reads what the last round wrote.
        assert!(
            ["program.py:13", "program.py:16"]
                .iter()
                .any(|line| source.ends_with(line)),
            "{found:#}"
        );
    }

    let output = finish(host.divvy(["emulate", "check", "--"]).arg(&python).arg(&program));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("two threads of a block, with no barrier between"),
        "{text}"
    );

    fs::write(
        &program,
        FORGOTTEN.replace(
            "        step //= 2",
            "        cuda.syncthreads()\n        step //= 2",
        ),
    )
    .expect("written");
    let output = finish(host.divvy(["emulate", "check", "--"]).arg(&python).arg(&program));
    assert!(succeeded(&output).contains("nothing wrong was found"));
}

#[test]
fn a_profile_names_the_line_that_reads_across_memory() {
    let Some(python) = python() else { return };
    let host = Host::new();
    let program = host.folder().join("program.py");
    fs::write(&program, ACROSS).expect("written");
    let picture = host.folder().join("flame.svg");
    let mut command = host.divvy(["emulate", "profile", "-o", "json", "--flame"]);
    let output = finish(command.arg(&picture).arg("--").arg(&python).arg(&program));
    let profile: Value = serde_json::from_str(&succeeded(&output)).expect("a document");
    let kernel = &profile["kernels"][0];
    assert_eq!(
        (&kernel["launches"], &kernel["blocks"]),
        (&2.into(), &8.into()),
        "{profile:#}"
    );
    // A warp's 32 words lie in 4 sectors where they are written, and in 32 where they are read.
    let lines = kernel["lines"].as_array().expect("lines");
    let of = |line: &str, starts: &str| {
        let found = lines.iter().find(|found| {
            found["source"]
                .as_str()
                .is_some_and(|source| source.ends_with(line))
                && found["instruction"]
                    .as_str()
                    .is_some_and(|text| text.contains(starts))
        });
        found.unwrap_or_else(|| panic!("{line} {starts}: {profile:#}"))["counts"].clone()
    };
    let (read, written) = (of("program.py:7", "ld.global"), of("program.py:7", "st.global"));
    assert_eq!(
        (&read["requests"], &read["sectors"], &read["ideal_sectors"]),
        (&8.into(), &256.into(), &32.into())
    );
    assert_eq!(
        (&written["requests"], &written["sectors"]),
        (&8.into(), &32.into())
    );
    let picture = fs::read_to_string(&picture).expect("a picture");
    assert!(
        picture.starts_with("<svg") && picture.contains("program.py:7"),
        "{picture}"
    );

    let output = finish(
        host.divvy(["emulate", "profile", "--"])
            .arg(&python)
            .arg(&program),
    );
    let text = succeeded(&output);
    assert!(
        text.contains("2 launches, 8 blocks") && text.contains("SECTORS"),
        "{text}"
    );
}

/// A column of a matrix becomes a row.
const ACROSS: &str = "import numpy as np
from numba import cuda

@cuda.jit(lineinfo=True)
def across(values, row):
    at = cuda.grid(1)
    row[at] = values[8 * at]

values = cuda.to_device(np.ones(1024, np.float32))
row = cuda.device_array(128, np.float32)
for _ in range(2):
    across[4, 32](values, row)
cuda.synchronize()
";

/// Runs a program under the trace; the exit status, what was printed, and the JSON's events.
fn traced(host: &Host, words: &[&str], program: &str) -> (Option<i32>, String, Vec<Value>) {
    let python = python().expect("asked for before");
    let file = host.folder().join("program.py");
    fs::write(&file, program).expect("written");
    let json = host.folder().join("trace.json");
    let mut command = host.divvy(["emulate", "trace", "--json"]);
    command.arg(&json).args(words).arg("--").arg(&python).arg(&file);
    let output = finish(&mut command);
    let text = fs::read_to_string(&json).expect("a trace");
    let events = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (
        output.status.code(),
        format!("{}{}", stdout(&output), stderr(&output)),
        events,
    )
}

fn of<'a>(events: &'a [Value], phase: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["ph"] == phase).collect()
}

/// Two streams and the default one, from two threads.
const STREAMS: &str = "import threading
import numpy as np
from numba import cuda

@cuda.jit
def saxpy(a, x, y):
    at = cuda.grid(1)
    if at < x.size:
        y[at] += a * x[at]

x = cuda.to_device(np.ones(1024, np.float32))
y = cuda.to_device(np.ones(1024, np.float32))
one, two = cuda.stream(), cuda.stream()
saxpy[4, 256, one](2.0, x, y)

def other():
    saxpy[4, 256, two](2.0, x, y)
    two.synchronize()

thread = threading.Thread(target=other)
thread.start()
thread.join()
saxpy[4, 256](2.0, x, y)
assert y.copy_to_host()[0] == 7
";

/// What the trace event format requires of each kind of event.
fn required(event: &Value) -> &'static [&'static str] {
    match event["ph"].as_str().unwrap_or_default() {
        "X" => &["name", "cat", "pid", "tid", "ts", "dur"],
        "s" | "f" => &["name", "cat", "id", "pid", "tid", "ts"],
        "C" => &["name", "pid", "ts", "args"],
        "M" => &["name", "pid", "tid", "args"],
        other => panic!("{other}: {event}"),
    }
}

#[test]
fn a_numba_program_is_traced_with_its_threads_streams_launches_and_memory() {
    let Some(_) = python() else { return };
    let host = Host::new();
    let lines = host.folder().join("lines");
    let words = ["--summary", "--file", lines.to_str().expect("text")];
    let (status, printed, events) = traced(&host, &words, STREAMS);
    assert_eq!(status, Some(0), "{printed}");
    for event in &events {
        for field in required(event) {
            assert!(!event[field].is_null(), "{field} of {event}");
        }
        let times = [&event["ts"], &event["dur"]];
        assert!(
            times
                .iter()
                .all(|time| time.as_f64().is_none_or(|time| time >= 0.0)),
            "{event}"
        );
    }
    let slices = of(&events, "X");
    let kernels: Vec<_> = slices.iter().filter(|slice| slice["cat"] == "kernel").collect();
    assert_eq!(kernels.len(), 3);
    let tracks: std::collections::BTreeSet<_> = kernels.iter().map(|kernel| kernel["tid"].as_u64()).collect();
    assert_eq!(tracks.len(), 3, "a track for each stream");
    let allocated = slices
        .iter()
        .find(|call| call["name"] == "cuMemAlloc_v2")
        .expect("an allocation");
    let address = allocated["args"]["dptr"].as_str().expect("its address");
    let address = address.trim_matches(['[', ']']);
    for kernel in &kernels {
        assert!(
            kernel["name"].as_str().is_some_and(|name| name.contains("saxpy")),
            "{kernel}"
        );
        assert_eq!(kernel["args"]["grid"], serde_json::json!([4, 1, 1]));
        let arguments = kernel["args"]["arguments"].to_string();
        assert!(
            arguments.contains("0x0000000000000400") && arguments.contains(&format!("{address}*")),
            "1,024 elements, at the address of an allocation: {arguments}"
        );
    }
    // An arrow leads from a launch, on its thread, to each kernel.
    let arrows: Vec<(&Value, &Value)> = of(&events, "s")
        .into_iter()
        .filter_map(|from| {
            let to = of(&events, "f").into_iter().find(|to| to["id"] == from["id"])?;
            Some((from, to))
        })
        .filter(|(_, to)| {
            kernels
                .iter()
                .any(|kernel| (&kernel["tid"], &kernel["ts"]) == (&to["tid"], &to["ts"]))
        })
        .collect();
    assert_eq!(arrows.len(), 3);
    for (from, _) in &arrows {
        let call = slices
            .iter()
            .find(|call| (&call["tid"], &call["ts"]) == (&from["tid"], &from["ts"]))
            .unwrap_or_else(|| panic!("{from}"));
        assert!(
            call["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("cuLaunchKernel")),
            "{call}"
        );
    }
    let threads: std::collections::BTreeSet<_> =
        arrows.iter().map(|(from, _)| from["tid"].as_u64()).collect();
    assert_eq!(threads.len(), 2, "two threads launched");
    let used = of(&events, "C");
    assert!(
        used.iter().any(|used| used["args"]["bytes"].as_u64() > Some(0)),
        "{used:?}"
    );
    assert_eq!(allocated["args"]["bytesize"], "4096");
    assert_eq!(allocated["args"]["result"], "CUDA_SUCCESS");

    let lines = fs::read_to_string(lines).expect("lines");
    assert!(lines.contains("bytesize=4096) = CUDA_SUCCESS <"), "{lines}");
    assert!(
        lines.contains("<<<(4,1,1), (256,1,1), 0>>>(") && lines.contains(") device 0, stream null <device "),
        "{lines}"
    );
    assert!(!lines.contains("cuGetProcAddress"), "{lines}");
    assert!(
        printed.contains("FUNCTION") && printed.contains("cuLaunchKernel"),
        "{printed}"
    );
}

/// The program is killed while it waits for a kernel that never ends.
const KILLED: &str = "import os, subprocess, numpy as np
from numba import cuda

@cuda.jit
def wait(flag):
    while flag[0] == 0:
        cuda.threadfence()

flag = cuda.to_device(np.zeros(1, np.int32))
wait[1, 1](flag)
subprocess.Popen(['sh', '-c', f'sleep 1; kill -9 {os.getpid()}'])
cuda.synchronize()
";

#[test]
fn a_killed_program_leaves_a_trace_with_the_call_that_it_was_in() {
    let Some(_) = python() else { return };
    let host = Host::new();
    let (status, printed, events) = traced(&host, &[], KILLED);
    assert_eq!(status, Some(128 + 9), "{printed}");
    let slices = of(&events, "X");
    let open: Vec<_> = slices
        .iter()
        .filter(|slice| slice["cat"] == "unfinished")
        .collect();
    assert!(
        open.iter().any(|call| call["name"] == "cuCtxSynchronize"),
        "{open:?}"
    );
    assert!(slices.iter().any(|slice| slice["name"] == "cuMemAlloc_v2"));
}

/// A program, a child that is another program, and a child that is not: CUDA refuses it.
const CHILDREN: &str = "import os, subprocess, sys, numpy as np
from numba import cuda
x = cuda.to_device(np.ones(1024, np.float32))
if len(sys.argv) == 1:
    subprocess.run([sys.executable, sys.argv[0], 'child'], check=True)
    if os.fork() == 0:
        from cuda.bindings import driver
        assert driver.cuMemGetInfo()[0] != 0
        os._exit(0)
    os.wait()
";

#[test]
fn children_are_traced_by_themselves() {
    let Some(_) = python() else { return };
    let host = Host::new();
    let (status, printed, events) = traced(&host, &["--only", "cuMem*"], CHILDREN);
    assert_eq!(status, Some(0), "{printed}");
    let slices = of(&events, "X");
    let allocated = slices.iter().filter(|call| call["name"] == "cuMemAlloc_v2");
    let owners: std::collections::BTreeSet<_> = allocated.map(|call| call["pid"].as_u64()).collect();
    assert_eq!(owners.len(), 2, "{slices:?}");
    let refused = slices.iter().find(|call| {
        call["name"] == "cuMemGetInfo_v2" && call["args"]["result"] == "CUDA_ERROR_NOT_INITIALIZED"
    });
    let refused = refused.unwrap_or_else(|| panic!("{slices:?}"));
    assert!(!owners.contains(&refused["pid"].as_u64()), "a process of its own");
    assert!(slices.iter().all(|call| {
        call["cat"] == "work"
            || call["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("cuMem"))
    }));
}

#[test]
fn a_full_disk_and_a_missing_folder_are_said_and_the_program_runs_to_its_end() {
    let host = Host::new();
    let output = finish(&mut host.divvy(["emulate", "trace", "--json", "/no/such/trace.json", "--", "true"]));
    assert!(
        stderr(&output).contains("mkdir -p /no/such"),
        "{}",
        stderr(&output)
    );
    let output = finish(&mut host.divvy(["emulate", "profile", "--flame", "/no/such/x.svg", "--", "true"]));
    assert!(
        stderr(&output).contains("mkdir -p /no/such"),
        "{}",
        stderr(&output)
    );
    let output = finish(&mut host.divvy(["emulate", "trace", "--only", "cuMemAllok", "--", "true"]));
    assert!(
        stderr(&output).contains("`cuMemAlloc` is one"),
        "{}",
        stderr(&output)
    );
    let output = finish(&mut host.divvy([
        "emulate",
        "trace",
        "--json",
        "/dev/full",
        "--",
        "echo",
        "to its end",
    ]));
    assert!(
        stdout(&output).contains("to its end") && stderr(&output).contains("the disk is full"),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    assert_ne!(output.status.code(), Some(0));
    let output = finish(&mut host.divvy(["emulate", "trace", "--", "true"]));
    assert!(
        stderr(&output).contains("nothing was traced"),
        "{}",
        stderr(&output)
    );
}
