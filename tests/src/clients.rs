//! The real clients: programs that know nothing of Divvy.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{binaries, workspace};

/// The probe: a cudarc program that does what it is told line by line. See `src/bin/probe.rs`.
pub fn probe() -> PathBuf {
    binaries().join("probe")
}

/// The attacker: what a hostile user, or a hostile program in a container, does. See `src/bin/attacker`.
pub fn attacker() -> PathBuf {
    binaries().join("attacker")
}

/// The Rust client of the examples.
pub fn rust_client() -> PathBuf {
    binaries().join("rust-client")
}

/// A program that keeps its device busy. See `examples/rust-client/src/bin/spinner.rs`.
pub fn spinner() -> PathBuf {
    binaries().join("spinner")
}

/// The interpreter whose packages are exactly those of examples/python/requirements.txt, or nothing when it was not
/// set up and need not be.
pub fn python() -> Option<PathBuf> {
    let python = workspace().join(".venv/bin/python");
    require(python.exists(), "the Python packages (cargo xtask setup)").then_some(python)
}

/// The Python environment that has NVIDIA's nvcc, or nothing when it was not set up and need not be.
pub fn nvcc() -> Option<PathBuf> {
    let environment = workspace().join("target/nvcc-venv");
    let there = environment.join("divvy-requirements.txt").exists();
    require(there, "NVIDIA's nvcc (cargo xtask setup)").then_some(environment)
}

/// The CUDA programs that check themselves.
pub fn cuda_programs() -> PathBuf {
    workspace().join("examples/cuda/runtime")
}

/// The interpreter whose packages are those of tests/tools/requirements.txt, or nothing when it was not set up and need
/// not be. gpustat and nvitop lie beside it.
pub fn tools_python() -> Option<PathBuf> {
    let python = workspace().join("target/tools/bin/python");
    require(python.exists(), "the tools that watch GPUs (cargo xtask setup)").then_some(python)
}

/// The interpreter with Nova's own parsers, and the program that calls them, or nothing when they were not set up and need
/// not be.
pub fn nova_parsers() -> Option<(PathBuf, PathBuf)> {
    let python = workspace().join("target/nova/bin/python");
    let program = workspace().join("tests/nova/parsers.py");
    require(python.exists(), "Nova's parsers (cargo xtask setup)").then_some((python, program))
}

/// Captured trees of real machines, an archive each, or nothing when they were not set up and need not be.
pub fn hwloc_machines() -> Option<PathBuf> {
    let folder = workspace().join("target/debian/hwloc-machines");
    require(folder.exists(), "captured machines (cargo xtask setup)").then_some(folder)
}

/// The interpreter with JupyterHub and pytest-xdist, whose packages are those of tests/jobs/requirements.txt; nothing when it was
/// not set up and need not be.
pub fn jobs_python() -> Option<PathBuf> {
    let python = workspace().join("target/jobs/bin/python");
    require(python.exists(), "JupyterHub (cargo xtask setup)").then_some(python)
}

/// The interpreter with Ray, whose packages are those of tests/ray/requirements.txt; nothing when it was not set up and need not
/// be.
pub fn ray_python() -> Option<PathBuf> {
    let python = workspace().join("target/ray/bin/python");
    require(python.exists(), "Ray (cargo xtask setup)").then_some(python)
}

/// The same with the oldest Ray that the package is for, of tests/ray/oldest/requirements.txt.
pub fn oldest_ray_python() -> Option<PathBuf> {
    let python = workspace().join("target/ray-oldest/bin/python");
    require(python.exists(), "oldest Ray (DIVVY_TEST_RAY=1 cargo xtask setup)").then_some(python)
}

/// The interpreter with PyOpenCL, whose packages are those of tests/opencl/requirements.txt; nothing when it was not set up
/// and need not be.
pub fn opencl_python() -> Option<PathBuf> {
    let python = workspace().join("target/opencl/bin/python");
    require(
        python.exists() && has_pocl(),
        "PyOpenCL and PoCL (cargo xtask setup)",
    )
    .then_some(python)
}

/// An OpenCL program of the repository, compiled into a folder, or nothing where there is no PoCL and none need be.
pub fn opencl_program(source: &str, folder: &Path) -> Option<PathBuf> {
    let compiler = compiler()?;
    let has_headers = Path::new("/usr/include/CL/cl.h").exists();
    if !require(
        has_headers && has_pocl(),
        "PoCL and OpenCL's headers (cargo xtask setup)",
    ) {
        return None;
    }
    let source = workspace().join(source);
    let program = folder.join(source.file_stem().expect("a file"));
    let status = Command::new(compiler)
        .arg("-O1")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .args(["-l:libOpenCL.so.1", "-lm", "-lpthread"])
        .status()
        .expect("the compiler starts");
    assert!(status.success(), "it does not compile");
    Some(program)
}

/// clinfo, or nothing where there is none, or no PoCL, and none need be.
pub fn clinfo() -> Option<PathBuf> {
    let found = on_path("clinfo", "clinfo (cargo xtask setup)")?;
    require(has_pocl(), "PoCL (cargo xtask setup)").then_some(found)
}

fn has_pocl() -> bool {
    Path::new("/etc/OpenCL/vendors/pocl.icd").exists()
}

/// JupyterHub's proxy, a program for node; nothing when it was not set up and need not be.
pub fn hub_proxy() -> Option<PathBuf> {
    let proxy = workspace()
        .join("target/jobs-proxy/node_modules/configurable-http-proxy/bin/configurable-http-proxy");
    require(proxy.exists(), "JupyterHub's proxy (cargo xtask setup)").then_some(proxy)
}

/// GNU parallel.
pub fn parallel() -> Option<PathBuf> {
    // It is a script of Perl's by nature.
    found_on_path("parallel", "GNU parallel (cargo xtask setup)", |_| true)
}

/// nvtop, or nothing when it was not set up and need not be.
pub fn nvtop() -> Option<PathBuf> {
    let nvtop = workspace().join("target/debian/nvtop/usr/bin/nvtop");
    require(nvtop.exists(), "nvtop (cargo xtask setup)").then_some(nvtop)
}

/// Prometheus and promtool, or nothing when they were not set up and need not be.
pub fn prometheus() -> Option<(PathBuf, PathBuf)> {
    let folder = workspace().join("target/debian/prometheus/usr/bin");
    let (server, tool) = (folder.join("prometheus"), folder.join("promtool"));
    require(server.exists() && tool.exists(), "Prometheus (cargo xtask setup)").then_some((server, tool))
}

/// One of the programs beside the tools' requirements.
pub fn tool(name: &str) -> PathBuf {
    workspace().join("tests/tools").join(name)
}

/// Any Python 3: for programs that need nothing but the standard library.
pub fn system_python() -> Option<PathBuf> {
    on_path("python3", "Python 3")
}

/// The Python tenant of the scenarios. See `python/tenant.py`.
pub fn python_tenant() -> PathBuf {
    workspace().join("tests/python/tenant.py")
}

/// strace.
pub fn strace() -> Option<PathBuf> {
    on_path("strace", "strace (cargo xtask setup)")
}

/// A C compiler.
pub fn compiler() -> Option<PathBuf> {
    on_path("cc", "C compiler")
}

/// The file that a shell would run by this name. Programs that choose a version by themselves are followed to it.
pub(crate) fn on_path(name: &str, what: &str) -> Option<PathBuf> {
    found_on_path(name, what, |file| !is_script(file))
}

fn found_on_path(name: &str, what: &str, is_right: fn(&Path) -> bool) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file() && is_right(file));
    require(found.is_some(), what).then_some(found).flatten()
}

/// Whether the file is a script, such as a version manager puts in a program's place: it starts more than the program.
fn is_script(file: &Path) -> bool {
    std::fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"#!"))
}

/// One of the Python examples.
pub fn python_example(name: &str) -> PathBuf {
    workspace().join("examples/python").join(name)
}

/// A file outside the repository that a scenario needs, or nothing when it is missing and need not be there.
pub fn required_file(path: &str, what: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    require(path.exists(), what).then(|| path.to_owned())
}

/// Whether a scenario may go on. With DIVVY_REQUIRE_ALL set, as in CI, what is missing is a failure; otherwise the
/// scenario is skipped and says so.
pub fn require(present: bool, what: &str) -> bool {
    if !present {
        assert!(
            std::env::var_os("DIVVY_REQUIRE_ALL").is_none(),
            "DIVVY_REQUIRE_ALL is set and there is no {what}"
        );
        eprintln!("skipped: there is no {what}");
    }
    present
}
