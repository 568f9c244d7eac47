//! Frameworks that make PTX by themselves, from PyPI and unmodified, compute right in a slice.
//!
//! Taichi and Halide are examples only: their wheels are 56 and 69 MB. Dr.Jit's and tinygrad's are 5 and 3 MB.

use divvy_tests::clients::{python, python_example};
use divvy_tests::host::{Host, finish, succeeded};

fn run_example(name: &str, arguments: &[&str]) {
    let Some(python) = python() else { return };
    let host = Host::new();
    // Both keep what they compiled in the home folder: a run that finds it there would compile nothing.
    let output = finish(
        host.run("1GiB", python)
            .arg(python_example(name))
            .args(arguments)
            .env("HOME", host.folder())
            .env("XDG_CACHE_HOME", host.folder()),
    );
    let text = succeeded(&output);
    assert!(text.contains("right") && !text.contains("WRONG"), "{text}");
}

#[test]
fn a_dr_jit_program_renders_and_follows_the_gradient() {
    run_example("render.py", &["--size", "96", "--steps", "120"]);
}

#[test]
fn a_tinygrad_program_trains_a_net() {
    run_example("tiny_net.py", &["--points", "128", "--steps", "60"]);
}
