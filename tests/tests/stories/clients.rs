//! Unmodified CUDA programs in slices: numba-cuda from PyPI, cudarc from crates.io.

use std::process::{Command, Stdio};

use divvy_tests::clients::{python, python_example, rust_client};
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::{GIB, MIB};
use serde_json::Value;

const OUT_OF_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in: {line}")))
        .collect()
}

fn run_example(name: &str, arguments: &[&str]) {
    let Some(python) = python() else { return };
    let host = Host::new();
    let output = finish(host.run("1GiB", python).arg(python_example(name)).args(arguments));
    let text = succeeded(&output);
    assert!(text.contains("right") && !text.contains("WRONG"), "{text}");
}

#[test]
fn a_numba_program_prices_an_option() {
    run_example("black_scholes.py", &["--threads", "1024"]);
}

#[test]
fn a_numba_program_finds_clusters() {
    run_example("kmeans.py", &["--points", "5000"]);
}

#[test]
fn a_numba_program_trains_a_network() {
    run_example("neural_net.py", &["--samples", "512", "--steps", "150"]);
}

#[test]
fn graphs_of_numba_and_cuda_core_compute_what_plain_launches_do() {
    run_example("graphs.py", &["--steps", "50"]);
}

#[test]
fn a_numba_program_sees_its_slice_and_is_refused_more_as_its_own_exception() {
    let Some(python) = python() else { return };
    let host = Host::new();
    let output = finish(
        host.run("1GiB", python)
            .arg(python_example("memory.py"))
            .args(["--json", "--try", "2048", "--try", "512"]),
    );
    let told = lines(&succeeded(&output));

    assert_eq!(told[0]["total_bytes"], GIB);
    assert!(
        told[0]["free_bytes"]
            .as_u64()
            .is_some_and(|free| (600 * MIB..=GIB).contains(&free)),
        "{}",
        told[0]
    );
    assert_eq!(told[1]["given"], false);
    assert_eq!(told[1]["exception"], "CudaAPIError");
    assert!(
        told[1]["message"]
            .as_str()
            .is_some_and(|message| message.contains(OUT_OF_MEMORY)),
        "{}",
        told[1]
    );
    assert_eq!(told[2]["given"], true);
    assert_eq!(told[3]["still_right"], true);
}

#[test]
fn the_neighbour_goes_on_while_a_program_is_refused() {
    let Some(python) = python() else { return };
    let host = Host::new();
    let mut neighbour = host
        .run("2GiB", rust_client())
        .args(["--json", "--repeat", "5"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the neighbour starts");
    let greedy = finish(
        host.run("1GiB", python)
            .arg(python_example("memory.py"))
            .args(["--try", "2048"]),
    );
    succeeded(&greedy);
    let neighbour_status = neighbour.wait().expect("the neighbour ends");
    assert!(neighbour_status.success(), "{neighbour_status}");
}

#[test]
fn a_cudarc_program_computes_in_its_slice_and_is_refused_more() {
    let host = Host::new();
    let output = finish(
        host.run("1GiB", rust_client())
            .args(["--json", "--allocate", "2GiB"]),
    );
    let report: Value = serde_json::from_str(&succeeded(&output)).expect("a report");

    assert_eq!(report["memory_total_bytes"], GIB);
    assert_eq!(report["allocation"]["error"], OUT_OF_MEMORY);
    let jobs = report["jobs"].as_array().expect("jobs");
    assert_eq!(jobs.len(), 7);
    for job in jobs {
        assert_eq!(job["correct"], true, "{job}");
    }
}

#[test]
fn a_cudarc_program_is_given_what_fits() {
    let host = Host::new();
    let output =
        finish(
            host.run("1GiB", rust_client())
                .args(["--json", "--allocate", "900MiB", "--job", "saxpy"]),
        );
    let report: Value = serde_json::from_str(&succeeded(&output)).expect("a report");
    assert_eq!(report["allocation"]["error"], Value::Null, "{report}");
    assert!(
        report["memory_free_at_end_bytes"]
            .as_u64()
            .is_some_and(|free| free <= 124 * MIB),
        "{report}"
    );
}

/// The reference the other scenarios are measured against: with no limiter in front, the emulated device itself.
#[test]
fn without_a_slice_the_same_program_sees_the_whole_emulated_device() {
    let host = Host::new();
    let folder = host.folder().join("driver");
    std::fs::create_dir(&folder).expect("a folder");
    let driver = divvy_tests::build::binaries().join("libdivvy_emulated_cuda.so");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(&driver, folder.join(name)).expect("a link");
    }
    let mut bare: Command = host.command(rust_client());
    let output = finish(bare.env("LD_LIBRARY_PATH", &folder).args([
        "--json",
        "--allocate",
        "2GiB",
        "--job",
        "matmul",
    ]));
    let report: Value = serde_json::from_str(&succeeded(&output)).expect("a report");
    assert!(
        report["memory_total_bytes"]
            .as_u64()
            .is_some_and(|total| total > 70 * GIB),
        "{report}"
    );
    assert_eq!(report["allocation"]["error"], Value::Null);
    assert_eq!(report["jobs"][0]["correct"], true);
}
