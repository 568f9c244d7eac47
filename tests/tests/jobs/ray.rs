//! Ray and Ray Serve, as they are published. docs/ray.md.

use std::process::Command;

use divvy_tests::clients::ray_python;
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
    tests("test_ray.py");
}

/// Takes some dozens of Ray's workers, each of which imports Ray: two minutes on two processors.
#[test]
fn what_takes_many_workers_or_another_node() {
    if std::env::var_os("DIVVY_TEST_RAY").is_none() {
        eprintln!("skipped: DIVVY_TEST_RAY is not set");
        return;
    }
    tests("test_ray_more.py");
}

fn tests(file: &str) {
    let Some(python) = ray_python() else { return };
    let allowed = Command::new(APART[0]).args(&APART[1..]).arg("true").output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no namespaces can be made here");
        return;
    }
    let host = Host::with_devices("h100*2,timing=model");
    python::tests_behind(&host, &python, &APART, file, |_| {});
}
