//! Ray and Ray Serve, as they are published. docs/ray.md.

use std::path::PathBuf;
use std::process::Command;

use divvy_tests::clients::{self, oldest_ray_python, ray_python};
use divvy_tests::host::Host;

use crate::python;

/// A network of its own: Ray listens on the machine's address where it has one besides loopback. Processes of its own: none of
/// Ray's outlives the tests, however those end.
const APART: [&str; 6] = [
    "unshare",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

#[test]
fn tasks_and_actors_have_the_slices_that_ray_assigned() {
    tests(ray_python(), "test_ray.py");
}

/// Takes some dozens of Ray's workers, each of which imports Ray: two minutes on two processors.
#[test]
fn what_takes_many_workers_or_another_node() {
    if is_long() {
        tests(ray_python(), "test_ray_more.py");
    }
}

/// The oldest Ray that the package says it is for, with all of both files: four minutes on two processors.
#[test]
fn the_oldest_ray_is_served_too() {
    if is_long() {
        for file in ["test_ray.py", "test_ray_more.py"] {
            tests(oldest_ray_python(), file);
        }
    }
}

/// examples/jobs/ray_fractions.py. numba is in the examples' environment, which finds Ray in the other.
#[test]
fn the_example_of_fractions_runs() {
    let (Some(python), Some(ray)) = (clients::python(), ray_python()) else {
        return;
    };
    let packages = ray.ancestors().nth(2).expect("an environment").join("lib");
    let mut folders = std::fs::read_dir(&packages).expect("packages").flatten();
    let packages = folders.next().expect("a Python's").path().join("site-packages");
    tests_with(Some(python), "test_ray_example.py", |pytest| {
        // Without the tests' folder: a module there has the name of NVIDIA's package `cuda`.
        let paths = [python::folder(), packages];
        pytest.env(
            "PYTHONPATH",
            std::env::join_paths(paths).expect("no folder has a colon"),
        );
    });
}

/// Whether the long form was asked for. CI has the short one.
fn is_long() -> bool {
    let asked = std::env::var_os("DIVVY_TEST_RAY").is_some();
    if !asked {
        eprintln!("skipped: DIVVY_TEST_RAY is not set");
    }
    asked
}

fn tests(python: Option<PathBuf>, file: &str) {
    tests_with(python, file, |_| {});
}

fn tests_with(python: Option<PathBuf>, file: &str, prepare: impl FnOnce(&mut Command)) {
    let Some(python) = python else { return };
    let allowed = Command::new(APART[0]).args(&APART[1..]).arg("true").output();
    let allowed = allowed.is_ok_and(|output| output.status.success());
    if !clients::require(allowed, "namespaces of this process's own (root)") {
        return;
    }
    let host = Host::with_devices("h100*2,timing=model");
    python::tests_behind(&host, &python, &APART, file, prepare);
}
