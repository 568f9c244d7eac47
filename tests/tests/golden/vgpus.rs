//! What machines with virtual GPUs are told: golden texts, held to libvirt's schema and to Nova's own parsers.

use std::process::{Command, Stdio};

use divvy_host::machine::Sysroot;
use divvy_host::vgpu::create;
use divvy_model::{Bytes, Code};
use divvy_tests::build::workspace;
use divvy_tests::clients::{nova_parsers, required_file};
use divvy_tests::golden::golden;
use divvy_vm::machine::{Machine, Pages, Request};
use divvy_vm::openstack::conf::Form;
use divvy_vm::openstack::vgpu;
use divvy_vm::output::{cloud_hypervisor, kubevirt, libvirt, qemu, vmware, xen};

const MEDIATED: &str = "5b6c3a52-0d0f-4d0a-9a47-2f2b1f6f2a10";
const FUNCTION: &str = "0000:41:00.4";

/// A copy of a host with a mediated device and a virtual function that has a type.
pub(super) fn host() -> (tempfile::TempDir, Sysroot) {
    let folder = tempfile::tempdir().expect("a folder");
    let copied = Command::new("cp")
        .arg("-r")
        .arg(workspace().join("examples/hosts/vgpu/."))
        .arg(folder.path())
        .status();
    assert!(copied.expect("cp starts").success());
    let root = Sysroot::at(folder.path());
    create(&root, FUNCTION, "1151", "", false).expect("it is offered");
    // Its processors, of which the captured host says nothing.
    let at = folder.path().join("sys/devices/system");
    for node in ["node0", "node1"] {
        std::fs::create_dir_all(at.join("node").join(node)).expect("a folder");
    }
    std::fs::write(at.join("node/node0/cpulist"), "0-7\n").expect("written");
    std::fs::write(at.join("node/node1/cpulist"), "8-15\n").expect("written");
    (folder, root)
}

fn request(vgpus: &[&str], windows: bool) -> Request {
    Request {
        name: "desktop".to_owned(),
        gpus: Vec::new(),
        vcpus: 4,
        memory: Bytes(8 << 30),
        pages: Pages::Huge,
        iommufd: false,
        windows,
        disk: Some("/var/lib/images/desktop.qcow2".to_owned()),
        vgpus: vgpus.iter().map(|id| (*id).to_owned()).collect(),
    }
}

#[test]
fn each_program_is_told_in_its_words() {
    let (_folder, root) = host();
    for (name, vgpus, windows) in [
        ("mediated", &[MEDIATED][..], false),
        ("windows", &[MEDIATED], true),
        ("function", &[FUNCTION], false),
    ] {
        let machine = Machine::plan(&root, request(vgpus, windows)).expect("it fits");
        let mut text = String::new();
        for (program, said) in [
            ("qemu", qemu::line(&qemu::words(&machine))),
            ("libvirt", libvirt::domain(&machine).written()),
            ("cloud-hypervisor", qemu::line(&cloud_hypervisor::words(&machine))),
            ("kubevirt", kubevirt::yaml(&machine)),
            ("vmx", vmware::lines(&machine)),
            ("xen", xen::lines(&machine)),
        ] {
            text.push_str(&format!("== {program}\n{said}"));
        }
        golden(&format!("vgpus/{name}.txt"), &text);
        for document in kubevirt::yaml(&machine).split("---\n") {
            let _is_yaml: serde_json::Value = serde_saphyr::from_str(document).expect("YAML");
        }
    }
    // One that is not there, one that a machine has, and what is no name of one.
    let refused = |id: &str, code: Code, wanted: &str| {
        let fault = Machine::plan(&root, request(&[id], false)).expect_err(id);
        assert!(fault.code == code && fault.message.contains(wanted), "{fault:?}");
    };
    refused("0000:3b:00.0", Code::Vgpu, "there is no virtual GPU");
    refused("a40,host=x", Code::Usage, "is neither a UUID nor a PCI address");
}

#[test]
fn libvirt_takes_domains_with_virtual_gpus() {
    let schema = "/usr/share/libvirt/schemas/domain.rng";
    if required_file("/usr/bin/xmllint", "xmllint (cargo xtask setup)").is_none()
        || required_file(schema, "libvirt's schema (cargo xtask setup)").is_none()
    {
        return;
    }
    let (folder, root) = host();
    let file = folder.path().join("domain.xml");
    for (vgpus, windows) in [(&[MEDIATED][..], false), (&[MEDIATED, FUNCTION], true)] {
        let machine = Machine::plan(&root, request(vgpus, windows)).expect("it fits");
        let domain = libvirt::domain(&machine).written();
        std::fs::write(&file, &domain).expect("written");
        let output = Command::new("/usr/bin/xmllint")
            .args(["--noout", "--relaxng", schema])
            .arg(&file)
            .stdin(Stdio::null())
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{output:?}\n{domain}");
        // Put into the same domain again, they are there once.
        let again = libvirt::merge(&domain, &machine).expect("a domain").written();
        assert_eq!(again.matches("<hostdev").count(), vgpus.len(), "{again}");
    }
}

#[test]
fn nova_reads_what_it_is_told_of_virtual_gpus() {
    let (folder, root) = host();
    let offers = |types: &[&str]| {
        let types: Vec<String> = types.iter().map(|name| (*name).to_owned()).collect();
        vgpu::offers(&root, &types)
    };
    let both = offers(&["nvidia-558", "NVIDIA L40S-4Q"]).expect("they are offered");
    let mediated = offers(&["NVIDIA A40-4Q"]).expect("it is offered");
    let compute = vgpu::compute(&both, Form::Now).expect("lines");
    let text = format!(
        "== compute\n{compute}== api\n{}== compute, before Zed\n{}",
        vgpu::api(&both, Form::Now).expect("lines"),
        vgpu::compute(&mediated, Form::Old).expect("lines"),
    );
    golden("vgpus/nova.txt", &text);
    let fault = vgpu::compute(&both, Form::Old).expect_err("older releases cannot");
    assert_eq!(fault.code, Code::Usage);
    assert_eq!(offers(&["nvidia-1"]).expect_err("none").code, Code::Vgpu);

    let Some((python, program)) = nova_parsers() else {
        return;
    };
    let file = folder.path().join("nova.conf");
    std::fs::write(&file, &compute).expect("written");
    let output = Command::new(python)
        .arg(program)
        .arg(&file)
        .output()
        .expect("Python starts");
    assert!(output.status.success(), "{output:?}\n{compute}");
    let read: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        read["aliases"]["vgpu-l40s-4q"][0]["dev_type"], "type-VF",
        "{read}"
    );
}
