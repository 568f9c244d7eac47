//! README.md and the pages of docs: their commands are run as they are written, and their links lead somewhere.
//! docs/testing.md says how a page is written.

mod block;
mod compare;
mod grammar;
mod links;
mod page;
mod session;
mod summary;

/// One test for each page, so that pages run beside each other and each can be named.
macro_rules! pages {
    ($($name:ident $path:literal)*) => {
        /// The pages that are run.
        const PAGES: &[&str] = &[$($path),*];
        $(
            #[test]
            fn $name() {
                page::run($path);
            }
        )*
    };
}

// Those that take longest come first.
pages! {
    quickstart "docs/quickstart.md"
    sharing "docs/sharing.md"
    tools "docs/tools.md"
    emulated_device "docs/emulated-device.md"
    students "docs/one-card-thirty-students.md"
    mig "docs/mig.md"
    enforced "docs/enforced.md"
    dividing "docs/dividing.md"
    troubleshooting "docs/troubleshooting.md"
    readme "README.md"
    adr "docs/adr/README.md"
    agent "docs/agent.md"
    architecture "docs/architecture.md"
    check "docs/check.md"
    compute "docs/compute.md"
    containers "docs/containers.md"
    driver_coverage "docs/driver-coverage.md"
    glossary "docs/glossary.md"
    gpu_kit "docs/gpu-kit.md"
    install "docs/install.md"
    jobs "docs/jobs.md"
    jupyterhub "docs/jupyterhub.md"
    kubernetes "docs/kubernetes.md"
    nvcc "docs/nvcc.md"
    nvml_coverage "docs/nvml-coverage.md"
    opencl "docs/opencl.md"
    openstack "docs/openstack.md"
    passthrough "docs/passthrough.md"
    plain_machines "docs/plain-machines.md"
    profile "docs/profile.md"
    ray "docs/ray.md"
    remote "docs/remote.md"
    remote_coverage "docs/remote-coverage.md"
    runtime_coverage "docs/runtime-coverage.md"
    slurm "docs/slurm.md"
    testing "docs/testing.md"
    threat_model "docs/threat-model.md"
    trace "docs/trace.md"
    virtual_machines "docs/virtual-machines.md"
    visible_devices "docs/visible-devices.md"
    which_isolation "docs/which-isolation.md"
}

#[test]
fn every_page_is_run() {
    let mut there = links::files("docs");
    there.retain(|path| {
        path != "docs/SUMMARY.md" && (!path.contains("/adr/") || path.ends_with("/README.md"))
    });
    there.push("README.md".to_owned());
    let mut known: Vec<&str> = PAGES.to_vec();
    known.sort_unstable();
    there.sort_unstable();
    assert_eq!(
        known, there,
        "tests/tests/pages/main.rs lists the pages that are run"
    );
}
