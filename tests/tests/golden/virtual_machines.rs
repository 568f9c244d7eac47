//! What `divvy vm args` writes, held to programs that know better: libvirt's schema and its test driver, and QEMU.
//! `pinning` holds its processors to hwloc.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use divvy_host::machine::Sysroot;
use divvy_model::Bytes;
use divvy_tests::build::workspace;
use divvy_tests::clients::{nova_parsers, required_file};
use divvy_vm::machine::{Machine, Pages, Request};
use divvy_vm::openstack::conf::{self, Form};
use divvy_vm::openstack::products;
use divvy_vm::output::{cloud_hypervisor, kubevirt, libvirt, qemu, vmware, xen};

const LEFT: &str = "0000:65:00.0";
const RIGHT: &str = "0000:b3:00.0";
const SCHEMA: &str = "/usr/share/libvirt/schemas/domain.rng";

fn request(gpus: &[&str], vcpus: u32) -> Request {
    Request {
        name: "trainer".to_owned(),
        gpus: gpus.iter().map(|gpu| (*gpu).to_owned()).collect(),
        vcpus,
        memory: Bytes(32 << 30),
        pages: Pages::Huge,
        iommufd: false,
        windows: false,
        disk: Some("/var/lib/images/trainer.qcow2".to_owned()),
        vgpus: Vec::new(),
    }
}

/// A machine on the host of the pages.
fn machine(request: Request) -> Machine {
    let tree = workspace().join("examples/hosts/passthrough");
    Machine::plan(&Sysroot::at(tree), request).expect("it fits")
}

fn virsh() -> Option<PathBuf> {
    required_file("/usr/bin/xmllint", "xmllint (cargo xtask setup)")?;
    required_file(SCHEMA, "libvirt's schema (cargo xtask setup)")?;
    required_file("/usr/bin/virsh", "virsh (cargo xtask setup)")
}

/// Holds a domain to the schema, and lets libvirt's test driver define it and give it back.
fn defined(virsh: &Path, folder: &Path, xml: &str) -> String {
    let file = folder.join("domain.xml");
    std::fs::write(&file, xml).expect("written");
    let run = |program: &Path, words: &[&str]| {
        let output = Command::new(program)
            .args(words)
            .stdin(Stdio::null())
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{words:?}: {output:?}\n{xml}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let path = file.to_str().expect("a path");
    run(
        Path::new("/usr/bin/xmllint"),
        &["--noout", "--relaxng", SCHEMA, path],
    );
    run(
        virsh,
        &[
            "-c",
            "test:///default",
            &format!("define {path} --validate; dumpxml trainer"),
        ],
    )
}

#[test]
fn domains_are_as_libvirt_wants_them() {
    let Some(virsh) = virsh() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let windows = Request {
        windows: true,
        pages: Pages::Large,
        ..request(&[LEFT], 4)
    };
    for request in [request(&[LEFT], 6), request(&[LEFT, RIGHT], 8), windows] {
        let several = request.gpus.len() > 1;
        let kept = defined(
            &virsh,
            folder.path(),
            &libvirt::domain(&machine(request)).written(),
        );
        assert!(kept.contains("<vcpupin vcpu='0' cpuset='1'/>"), "{kept}");
        assert!(
            kept.contains("multifunction='on'") && kept.contains("bus='0x65'"),
            "{kept}"
        );
        assert_eq!(kept.contains("pcie-expander-bus"), several, "{kept}");
    }
    // AMD's processors tell of threads where they are told to.
    let mut amd = machine(request(&[LEFT], 6));
    amd.is_amd = true;
    let kept = defined(&virsh, folder.path(), &libvirt::domain(&amd).written());
    assert!(kept.contains("name='topoext'"), "{kept}");
    assert!(qemu::words(&amd).contains(&"host,host-phys-bits=on,topoext=on".to_owned()));
}

#[test]
fn a_domain_that_is_changed_keeps_the_rest() {
    let Some(virsh) = virsh() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let before = "<?xml version='1.0'?>
<domain type='kvm'>
  <name>trainer</name>
  <description>Ada &amp; Grace</description>
  <memory unit='KiB'>4194304</memory>
  <currentMemory unit='KiB'>4194304</currentMemory>
  <vcpu>2</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <features><acpi/></features>
  <cpu mode='custom'><model>Skylake-Server</model></cpu>
  <devices>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='7' model='pcie-root-port'/>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source><address domain='0' bus='0x65' slot='0' function='0'/></source>
    </hostdev>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source><address domain='0' bus='0x99' slot='0' function='0'/></source>
    </hostdev>
    <interface type='network'><mac address='52:54:00:00:00:01'/><source network='default'/></interface>
  </devices>
</domain>";
    let planned = machine(request(&[LEFT], 6));
    let merged = libvirt::merge(before, &planned).expect("a domain").written();
    let kept = defined(&virsh, folder.path(), &merged);
    for wanted in [
        "Ada &amp; Grace",
        "52:54:00:00:00:01",
        "bus='0x99'",
        "index='8' model='pcie-root-port'",
    ] {
        assert!(kept.contains(wanted), "{wanted}: {kept}");
    }
    assert_eq!(
        kept.matches("bus='0x65'").count(),
        2,
        "the GPU and its sound once each: {kept}"
    );
    // Again changes nothing but the place.
    let again = libvirt::merge(&merged, &planned).expect("a domain").written();
    assert_eq!(
        again.matches("<hostdev").count(),
        merged.matches("<hostdev").count()
    );
    for broken in ["", "<network/>", "<domain>", "<!DOCTYPE domain []><domain/>"] {
        libvirt::merge(broken, &planned).expect_err(broken);
    }
}

/// Nova reads what is written for it, and refuses what it would refuse on a host.
#[test]
fn nova_reads_its_files() {
    let Some((python, program)) = nova_parsers() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let parse = |text: &str| {
        let file = folder.path().join("nova.conf");
        std::fs::write(&file, text).expect("written");
        let output = Command::new(&python)
            .arg(&program)
            .arg(&file)
            .output()
            .expect("Python starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.success() {
            true => Ok(serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")),
            false => Err(said),
        }
    };
    let tree = workspace().join("examples/hosts/passthrough");
    let products = products(&Sysroot::at(tree), &[]).expect("GPUs");
    for form in [Form::Now, Form::Old] {
        let compute = conf::compute(&products, form);
        let read = parse(&compute).expect("Nova takes it");
        let devices = serde_json::json!([
            ["10de", "1eb8", "0000:17:00.0"],
            ["10de", "26b9", "0000:65:00.0"],
            ["10de", "26b9", "0000:b3:00.0"],
        ]);
        assert_eq!(read["devices"], devices);
        assert_eq!(read["report_in_placement"], form == Form::Now);
        assert_eq!(read["aliases"]["gpu-10de-26b9"][0]["dev_type"], "type-PF");
        let api = parse(&conf::api(&products, form)).expect("Nova takes it");
        assert_eq!(api["aliases"], read["aliases"], "both sides have the same");
        assert_eq!(api["pci_in_placement"], form == Form::Now);
        let filters = api["filters"].as_array().expect("a list");
        assert!(filters.contains(&"PciPassthroughFilter".into()), "{api}");
        for (from, to, wanted) in [
            ("type-PF", "type-GPU", "is not one of"),
            (
                "\"vendor_id\": \"10de\", \"product_id\": \"26b9\", \"device",
                "\"resource_class\": \"X\", \"device",
                "vendor_id",
            ),
            ("0000:65:00.0", "0000:65.00.0", "does not parse"),
        ] {
            let said = parse(&compute.replace(from, to)).expect_err(to);
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
    }
}

/// The words of a command line that begin with this.
fn with<'a>(words: &'a [String], begin: &str) -> Vec<&'a str> {
    let words = words.iter().map(String::as_str);
    words.filter(|word| word.starts_with(begin)).collect()
}

#[test]
fn command_lines_name_each_function_once_and_in_its_place() {
    let words = qemu::words(&machine(request(&[LEFT], 6)));
    assert_eq!(
        with(&words, "vfio-pci"),
        [
            "vfio-pci,host=0000:65:00.0,bus=gpu0,addr=0.0,multifunction=on",
            "vfio-pci,host=0000:65:00.1,bus=gpu0,addr=0.1"
        ]
    );
    assert!(
        words.contains(&"6,sockets=1,cores=3,threads=2".to_owned()),
        "{words:?}"
    );
    assert_eq!(
        with(&words, "name=opt/ovmf"),
        ["name=opt/ovmf/X-PciMmio64Mb,string=262144"]
    );
    let both = Request {
        iommufd: true,
        ..request(&[RIGHT, LEFT], 8)
    };
    let words = qemu::words(&machine(both));
    assert_eq!(with(&words, "iommufd"), ["iommufd,id=iommufd0"]);
    assert!(
        with(&words, "vfio-pci")
            .iter()
            .all(|word| word.ends_with(",iommufd=iommufd0"))
    );
    assert_eq!(
        with(&words, "pxb-pcie"),
        [
            "pxb-pcie,id=pxb0,bus=pcie.0,bus_nr=64,numa_node=0",
            "pxb-pcie,id=pxb1,bus=pcie.0,bus_nr=96,numa_node=1"
        ]
    );
    // The card that was named first is on the second node.
    assert_eq!(
        with(&words, "pcie-root-port,id=gpu0"),
        ["pcie-root-port,id=gpu0,bus=pxb1,chassis=1,slot=1"]
    );
    let one = machine(request(&[LEFT], 6));
    let words = cloud_hypervisor::words(&one);
    assert!(
        words.contains(&"path=/sys/bus/pci/devices/0000:65:00.1/".to_owned()),
        "{words:?}"
    );
    assert!(
        words.contains(&"boot=6,affinity=[0@[1],1@[9],2@[2],3@[10],4@[3],5@[11]]".to_owned()),
        "{words:?}"
    );
    let lines = vmware::lines(&one);
    assert!(lines.contains("pciPassthru0.id = \"00000:101:00.0\""), "{lines}");
    let lines = xen::lines(&one);
    for wanted in [
        "# xl pci-assignable-add 0000:65:00.1\n",
        "cpus = [\"1\", \"9\", \"2\", \"10\", \"3\", \"11\"]\n",
        "bios = \"ovmf\"\n",
        "pci = [\"0000:65:00.0,permissive=0\", \"0000:65:00.1,permissive=0\"]\n",
    ] {
        assert!(lines.contains(wanted), "{wanted}: {lines}");
    }
    let yaml = kubevirt::yaml(&one);
    assert!(
        yaml.contains("pciVendorSelector: \"10DE:26B9\"") && yaml.contains("pageSize: 1Gi"),
        "{yaml}"
    );
    for document in yaml.split("---\n") {
        let _is_yaml: serde_json::Value = serde_saphyr::from_str(document).expect("YAML");
    }
}

/// QEMU itself reads the words: it comes as far as the device, which is not on this host.
#[test]
fn qemu_understands_the_words() {
    let Some(qemu) = required_file("/usr/bin/qemu-system-x86_64", "QEMU (cargo xtask setup)") else {
        return;
    };
    let settings = "/usr/share/OVMF/OVMF_VARS_4M.fd";
    let Some(settings) = required_file(settings, "UEFI for machines (cargo xtask setup)") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    // As the command says: its own settings of UEFI are a copy.
    std::fs::copy(settings, folder.path().join("trainer_VARS.fd")).expect("copied");
    for gpus in [&[LEFT][..], &[LEFT, RIGHT]] {
        let small = Request {
            memory: Bytes(256 << 20),
            pages: Pages::Ordinary,
            disk: None,
            ..request(gpus, 4)
        };
        // This host has neither KVM nor, perhaps, several nodes.
        let words: Vec<String> = qemu::words(&machine(small))
            .iter()
            .map(|word| {
                word.replace("accel=kvm", "accel=tcg")
                    .replace("host,host-phys-bits=on", "max")
            })
            .map(|word| word.replace("host-nodes=1", "host-nodes=0"))
            .collect();
        let output = Command::new(qemu.as_path())
            .args(&words[1..])
            .args(["-nodefaults", "-display", "none", "-S"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output()
            .expect("QEMU starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("vfio-pci,host=0000:65:00.0") && said.contains("no such host device"),
            "{said}"
        );
    }
}
