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
