//! `cargo xtask setup`: everything the demo and the tests need besides the Rust toolchain and a C linker. Idempotent,
//! and quick when there is nothing to do.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::cargo::{finish, workspace_root};
use crate::debian::Release;
use crate::{debian, python};

/// Arguments of `cargo xtask setup`.
#[derive(clap::Args)]
pub struct Args {}

/// A 32-bit program that is on no fresh machine: glibc's own libc.so.6 prints its version when run.
const LIBC_32_BIT: &str = "/lib32/libc.so.6";

/// Prepares what the demo needs, then what only the tests need.
pub fn run(_: &Args) -> anyhow::Result<()> {
    for_demo()?;
    for_tests()?;
    println!("setup: ready");
    Ok(())
}

/// The Python programs' packages.
pub fn for_demo() -> anyhow::Result<()> {
    python::examples()
}

/// Whether a program lies where Debian's packages put theirs.
pub(crate) fn is_installed(program: &str) -> bool {
    ["/usr/bin", "/usr/sbin"]
        .iter()
        .any(|folder| Path::new(folder).join(program).exists())
}

/// JupyterHub's proxy, into `target/jobs-proxy`: exactly what tests/jobs/package-lock.json lists, each with its hash. Nothing of
/// it is run.
fn proxy() -> anyhow::Result<()> {
    let (from, to) = (
        workspace_root().join("tests/jobs"),
        workspace_root().join("target/jobs-proxy"),
    );
    let lock = std::fs::read(from.join("package-lock.json")).context("Cannot read the proxy's list")?;
    let stamp = to.join("divvy-lock.json");
    if std::fs::read(&stamp).is_ok_and(|have| have == lock) {
        return Ok(());
    }
    if !["npm", "node"].iter().all(|program| is_installed(program)) {
        debian::install(&["nodejs", "npm"], "JupyterHub's proxy")?;
    }
    std::fs::create_dir_all(&to).with_context(|| format!("Cannot make {}", to.display()))?;
    for name in ["package.json", "package-lock.json"] {
        std::fs::copy(from.join(name), to.join(name)).with_context(|| format!("Cannot copy {name}"))?;
    }
    println!(
        "setup: installing JupyterHub's proxy from npm into {}",
        to.display()
    );
    finish(Command::new("npm").current_dir(&to).args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--silent",
    ]))?;
    std::fs::write(&stamp, lock).with_context(|| format!("Cannot write {}", stamp.display()))
}

/// The wide-character ncurses that nvtop is linked with.
const NCURSES: &str = "libncursesw.so.6";

/// What the suites need besides: a 32-bit libc to run a 32-bit child with, and NVIDIA's own libraries, which answer in
/// part on a machine without a GPU. And the tools that people watch GPUs with.
pub fn for_tests() -> anyhow::Result<()> {
    if cfg!(target_arch = "x86_64") && !Path::new(LIBC_32_BIT).exists() {
        debian::install(&["libc6-i386"], "the test with a 32-bit child")?;
    }
    let engines = ["podman", "runc", "crun", "containerd"];
    let missing = |program: &&&str| !is_installed(program);
    if engines.iter().find(missing).is_some() {
        debian::install(&engines, "the tests with containers")?;
    }
    // Suites look for them in target/debian.
    debian::unpack("libcuda1", Release::Own, "non-free")?;
    debian::unpack("libnvidia-ml1", Release::Own, "non-free")?;
    // The one of Debian 12 has no NRI.
    debian::unpack("containerd", Release::Trixie, "main")?;
    // Prometheus and promtool. Installed it would be a service.
    debian::unpack("prometheus", Release::Own, "main")?;
    // Debian's packages start services where systemd runs; the suite starts daemons of its own.
    if !["slurmctld", "slurmd", "munged", "squeue"]
        .iter()
        .all(|program| is_installed(program))
    {
        debian::install_without_services(&["slurm-wlm", "munge"], "the tests with jobs of Slurm")?;
    }
    // Slurm's accounting database, which a story starts in a folder of its own. Installed it would be two services.
    for package in [
        "slurmdbd",
        "slurm-wlm-mysql-plugin",
        "libmariadb3",
        "mariadb-server-core",
    ] {
        debian::unpack(package, Release::Own, "main")?;
    }
    if !is_installed("strace") {
        debian::install(&["strace"], "the tests that look at the agent's system calls")?;
    }
    if !is_installed("systemctl") {
        debian::install(&["systemd"], "the test with the agent's units")?;
    }
    if !is_installed("curl") {
        debian::install(&["curl"], "the tests that talk to containerd as a kubelet does")?;
    }
    if !is_installed("mmdebstrap") {
        debian::install(&["mmdebstrap"], "the kit's run in a bare Debian root")?;
    }
    if !is_installed("rpmbuild") {
        debian::install(&["rpm"], "the trial of the packages")?;
    }
    // Virtual machines: their programs, and the kernel that they boot, which is not installed.
    if cfg!(target_arch = "x86_64") {
        if !["qemu-system-x86_64", "busybox"]
            .iter()
            .all(|program| is_installed(program))
        {
            debian::install(
                &["qemu-system-x86", "busybox-static"],
                "the tests with virtual machines",
            )?;
        }
        // They hold what `divvy vm args` writes to libvirt's schema, and to another reading of the host's processors.
        if !["virsh", "xmllint", "hwloc-calc"]
            .iter()
            .all(|program| is_installed(program))
        {
            debian::install(
                &["libvirt-clients", "libxml2-utils", "hwloc-nox"],
                "the tests of what machines are told",
            )?;
        }
        // libvirt's daemon, whose package has no service, and UEFI for machines with large BARs: a suite starts its own.
        if !is_installed("libvirtd") || !Path::new("/usr/share/OVMF/OVMF_CODE_4M.fd").exists() {
            debian::install(
                &["libvirt-daemon", "libvirt-daemon-driver-qemu", "ovmf"],
                "the tests with libvirt's daemon",
            )?;
        }
        debian::machines()?;
        debian::kernel()?;
    }
    // NVIDIA's compiler, for programs of the suites: it needs no GPU.
    if !is_installed("g++") {
        debian::install(&["g++"], "the programs that nvcc makes")?;
    }
    // OpenCL on this machine's processors, its loader, and the headers of the programs that the suites compile.
    if !is_installed("clinfo")
        || !["/etc/OpenCL/vendors/pocl.icd", "/usr/include/CL/cl.h"]
            .iter()
            .all(|file| Path::new(file).exists())
    {
        debian::install(
            &[
                "pocl-opencl-icd",
                "ocl-icd-libopencl1",
                "clinfo",
                "opencl-c-headers",
            ],
            "the tests with OpenCL",
        )?;
    }
    python::opencl()?;
    python::compiler()?;
    python::nova()?;
    python::policies()?;
    // The index of Python packages has its sources only, which would have to be run to be installed.
    let gpustat = debian::unpack("gpustat", Release::Trixie, "contrib")?;
    python::tools(&gpustat.join("usr/lib/python3/dist-packages"))?;
    python::jobs()?;
    python::ray()?;
    python::oldest_ray()?;
    proxy()?;
    if !is_installed("parallel") {
        debian::install(&["parallel"], "the examples for GNU parallel")?;
    }
    let nvtop = debian::unpack("nvtop", Release::Own, "contrib")?.join("usr/bin/nvtop");
    let loads = Command::new("ldd")
        .arg(nvtop)
        .output()
        .context("Cannot start ldd")?;
    if String::from_utf8_lossy(&loads.stdout)
        .lines()
        .any(|line| line.contains(NCURSES) && line.contains("not found"))
    {
        debian::install(&["libncursesw6"], "the tests with nvtop")?;
    }
    Ok(())
}
