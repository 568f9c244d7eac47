//! The inventory of machines that are not here, from built trees.

use divvy_host::built::{Built, Function};
use divvy_host::machine::{self, Machine, Sysroot};
use divvy_host::visible::{Environment, Runtime, Seen, Target, explain, settings};
use divvy_host::{Link, Nvlinks, Sources, links, survey};
use divvy_model::{Bytes, DeviceKind, DeviceRecord, Hardware, Selector, Vendor};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn read(built: &Built) -> Machine {
    machine::read(&Sysroot::at(built.root()))
}

fn facts(device: &DeviceRecord) -> &Hardware {
    device.hardware.as_deref().expect("the kernel told something")
}

#[test]
fn eight_mi300x_whole() {
    let folder = folder();
    let built = Built::mi300x(folder.path(), 1);
    let machine = read(&built);
    assert_eq!(machine.notes, [""; 0]);
    assert_eq!(machine.devices.len(), 8);
    let first = &machine.devices[0];
    assert_eq!(first.uuid, "GPU-5a3f000000001000");
    assert_eq!(first.name, "AMD Instinct MI300X");
    assert_eq!(
        (first.sm_count, first.compute_capability.as_str()),
        (304, "gfx942")
    );
    assert_eq!(first.memory_total_bytes, Bytes(206_141_652_992));
    assert_eq!(first.memory_used_bytes, Bytes(297_263_104));
    assert_eq!(first.pci_address, "0000:05:00.0");
    assert_eq!(first.kind, DeviceKind::Gpu);
    let facts = facts(first);
    assert_eq!(
        (facts.vendor, facts.driver.as_deref()),
        (Vendor::Amd, Some("amdgpu"))
    );
    assert_eq!(
        (facts.kfd_node, facts.numa_node, facts.iommu_group),
        (Some(2), Some(0), Some(40))
    );
    assert_eq!(facts.cpu_list.as_deref(), Some("0-47"));
    assert_eq!(facts.pcie_root.as_deref(), Some("pci0000:04"));
    let link = facts.pcie.as_ref().expect("a link");
    assert_eq!((link.width, link.megatransfers), (16, 32_000));
    let partition = facts.partition.as_ref().expect("a partition mode");
    assert_eq!(
        (
            partition.compute.as_str(),
            partition.memory.as_str(),
            partition.count
        ),
        ("SPX", "NPS1", 1)
    );
    let links = links(
        &Sysroot::at(built.root()),
        &machine,
        &Nvlinks::new(),
        &machine.devices,
    );
    assert_eq!((links[0][0], links[0][7]), (Link::Same, Link::Xgmi));
}

#[test]
fn eight_mi300x_in_64_partitions() {
    let folder = folder();
    let machine = read(&Built::mi300x(folder.path(), 8));
    assert_eq!(machine.devices.len(), 64);
    let ninth = &machine.devices[8];
    assert_eq!(ninth.kind, DeviceKind::Partition);
    assert_eq!(
        (ninth.sm_count, ninth.memory_total_bytes),
        (38, Bytes(206_141_652_992 / 8))
    );
    assert_eq!(ninth.uuid, "GPU-5a3f000000001001/0");
    let uuids: std::collections::HashSet<&str> = machine
        .devices
        .iter()
        .map(|device| device.uuid.as_str())
        .collect();
    assert_eq!(uuids.len(), 64, "each has a name of its own");
    // Partitions share the UUID that ROCr knows: it is told by number.
    let seen = Seen::of(&machine.devices);
    let variables = settings(&seen, &[63, 9], Target::All).expect("variables");
    assert_eq!(variables[0], ("ROCR_VISIBLE_DEVICES", "63,9".to_owned()));
    let environment: Environment = variables
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let explained = explain(&environment, &seen);
    for runtime in [Runtime::Rocm, Runtime::Hip, Runtime::OpenCl, Runtime::OpenMp] {
        assert_eq!(
            explained.of(runtime).expect("a view").visible,
            [63, 9],
            "{runtime}"
        );
    }
    assert_eq!(explained.of(Runtime::Cuda).expect("a view").visible, [0_u32; 0]);
}

#[test]
fn eight_h100_some_in_mig_mode() {
    let folder = folder();
    let built = Built::h100(folder.path(), 8);
    let survey = survey(&Sources::default(), Some(&Sysroot::at(built.root()))).expect("a survey");
    assert_eq!(survey.driver_version.as_deref(), Some("550.54.15"));
    let kinds = |kind| survey.devices.iter().filter(|device| device.kind == kind).count();
    assert_eq!((kinds(DeviceKind::Gpu), kinds(DeviceKind::Mig)), (8, 8));
    let gpu = &survey.devices[0];
    assert_eq!((gpu.name.as_str(), gpu.sm_count), ("NVIDIA H100 80GB HBM3", 132));
    assert_eq!(facts(gpu).mig_mode, None);
    let (parent, instance) = (&survey.devices[1], &survey.devices[3]);
    assert_eq!(facts(parent).mig_mode, Some(true));
    assert_eq!(instance.uuid, format!("MIG-{}/5/0", parent.uuid));
    let place = facts(instance).mig_instance.as_ref().expect("a place");
    assert_eq!((place.gpu_instance, place.compute_instance), (5, 0));
    let seen = Seen::of(&survey.devices);
    let variables = settings(&seen, &[3], Target::All).expect("one instance");
    let environment: Environment = variables
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    assert_eq!(
        explain(&environment, &seen)
            .of(Runtime::Cuda)
            .expect("a view")
            .visible,
        [3]
    );
    let several = settings(&seen, &[2, 3], Target::All).expect_err("two instances");
    assert!(several.message.contains("one MIG device"), "{several:?}");
    let links = links(
        &Sysroot::at(built.root()),
        &survey.machine,
        &Nvlinks::new(),
        &survey.devices,
    );
    let at = |index: usize, other: usize| links[index][other];
    assert_eq!(at(0, 1), Link::Switch, "two to a switch");
    assert_eq!(at(0, 4), Link::Node);
    assert_eq!(at(0, 14), Link::System);
}

#[test]
fn a_desktop_has_an_integrated_and_a_discrete_one() {
    let folder = folder();
    let machine = read(&Built::desktop(folder.path()));
    let names: Vec<&str> = machine
        .devices
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    assert_eq!(names, ["Intel device 8086:a780", "NVIDIA GeForce RTX 4090"]);
    let (integrated, discrete) = (facts(&machine.devices[0]), facts(&machine.devices[1]));
    assert!(integrated.boot_display && !discrete.boot_display);
    assert_eq!(
        (integrated.numa_node, discrete.driver.as_deref()),
        (None, Some("nouveau"))
    );
    assert_eq!(
        discrete.iommu_peers,
        ["0000:01:00.1"],
        "the bridge does not count"
    );
}

#[test]
fn gpus_on_vfio_are_shown_and_seen_by_no_runtime() {
    let folder = folder();
    let machine = read(&Built::passed_through(folder.path()));
    assert_eq!(machine.devices.len(), 2);
    assert_eq!(facts(&machine.devices[0]).driver.as_deref(), Some("vfio-pci"));
    assert_eq!(facts(&machine.devices[1]).iommu_peers, ["0000:c1:00.1"]);
    for view in explain(&Environment::new(), &Seen::of(&machine.devices)).views {
        assert_eq!(view.visible, [0_u32; 0], "{}", view.runtime);
    }
    let chosen = Selector::Pci("0000:c1:00.0".into())
        .choose(&machine.devices)
        .expect("by address");
    assert_eq!(chosen.index, 1);
}

#[test]
fn no_gpu_at_all() {
    let folder = folder();
    let built = Built::at(folder.path());
    assert_eq!(read(&built), Machine::default());
    built.function(Function {
        address: "0000:00:1f.2",
        id: "8086:2922",
        class: "0x010601",
        driver: "ahci",
        port: "0000:00:00.0",
        numa: -1,
        group: 5,
    });
    assert_eq!(read(&built), Machine::default(), "a disk controller is no GPU");
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_shown() {
    let folder = folder();
    let built = Built::mi300x(folder.path(), 1);
    let nodes = "sys/class/kfd/kfd/topology/nodes";
    built.unreadable(&format!("{nodes}/4/gpu_id"));
    built.unreadable(&format!("{nodes}/5/properties"));
    built.unreadable("sys/devices/pci0000:84/0000:84:01.0/0000:85:00.0/class");
    built.file(
        &format!("{nodes}/7/properties"),
        "simd_count banana\nunique_id -1\n\0\u{1}\nlocation_id\n",
    );
    let machine = read(&built);
    let told = machine.notes.join("\n");
    assert!(told.contains("KFD node 4 is not permitted"), "{told}");
    assert!(told.contains("KFD node 5 cannot be read"), "{told}");
    assert!(told.contains("0000:85:00.0: its class cannot be read"), "{told}");
    let with_node = machine
        .devices
        .iter()
        .filter(|device| facts(device).kfd_node.is_some())
        .count();
    // Of eight, nodes 4, 5 and 7 are not there; 6 has lost its PCI function.
    assert_eq!(with_node, 5);
    // Those that KFD does not name are still PCI functions.
    assert_eq!(machine.devices.len(), 8);
}

#[test]
fn half_a_hot_unplug() {
    let folder = folder();
    let built = Built::mi300x(folder.path(), 1);
    // PCI has dropped the function, KFD still lists the node.
    built.remove("sys/bus/pci/devices/0000:05:00.0");
    // PCI still lists the function and its files are gone.
    built.remove("sys/devices/pci0000:25/0000:25:01.0/0000:26:00.0");
    built.function_file("0000:46:00.0", "aer_dev_fatal", "DLP 1\nTOTAL_ERR_FATAL 3\n");
    built.function_file("0000:65:00.0", "ras/umc_err_count", "ue: 2\nce: 70\n");
    let machine = read(&built);
    let told = machine.notes.join("\n");
    assert!(
        told.contains("KFD node 2 is at 0000:05:00.0, where PCI has no such function"),
        "{told}"
    );
    assert!(
        told.contains("0000:26:00.0: PCI lists it and tells nothing"),
        "{told}"
    );
    let sick = |address: &str| {
        let device = machine
            .devices
            .iter()
            .find(|device| device.pci_address == address);
        facts(device.expect("listed")).health.join("; ")
    };
    assert!(
        sick("0000:05:00.0").contains("unplugged"),
        "{}",
        sick("0000:05:00.0")
    );
    assert_eq!(sick("0000:46:00.0"), "3 fatal PCIe errors");
    assert_eq!(sick("0000:65:00.0"), "2 uncorrectable memory errors");
    assert_eq!(sick("0000:85:00.0"), "");

    let other = tempfile::tempdir().expect("a folder");
    let built = Built::h100(other.path(), 2);
    built.remove("sys/bus/pci/devices/0000:10:00.0");
    built.remove("proc/driver/nvidia/gpus/0000:18:00.0/information");
    built.file(
        "dev/kmsg",
        "6,1,1,-;x\n3,2,2,-;NVRM: Xid (PCI:0000:18:00): 79, pid=7, GPU has fallen off the bus.\n",
    );
    let machine = read(&built);
    assert!(
        machine
            .notes
            .join("\n")
            .contains("0000:10:00.0: the nvidia driver lists it")
    );
    let health = facts(&machine.devices[0]).health.join("; ");
    assert!(
        health.contains("did not start") && health.contains("Xid 79"),
        "{health}"
    );
}

#[test]
fn who_holds_memory_of_an_accelerator() {
    let folder = folder();
    let built = Built::mi300x(folder.path(), 1);
    built.file("sys/class/kfd/kfd/proc/4711/vram_10003", "1073741824\n");
    built.file("sys/class/kfd/kfd/proc/4711/vram_10002", "0\n");
    let machine = read(&built);
    let holder = &facts(&machine.devices[1]).processes[0];
    assert_eq!((holder.pid, holder.memory_bytes), (4711, Some(Bytes(1 << 30))));
}

#[test]
fn where_each_stands_on_the_ladder_and_what_opens_the_next_level() {
    use divvy_host::ladder::reach;
    use divvy_model::Isolation;
    let reached = |built: &Built, index: usize| reach(&read(built).devices[index]);
    let one = folder();
    let amd = reached(&Built::mi300x(one.path(), 1), 0);
    assert_eq!(amd.level, Isolation::Env);
    assert!(
        amd.next
            .is_some_and(|(level, command)| level == Isolation::Hardware && command.contains("CPX/NPS4"))
    );
    let two = folder();
    let h100 = Built::h100(two.path(), 2);
    let (gpu, instance) = (reached(&h100, 0), reached(&h100, 2));
    assert_eq!(
        (gpu.level, instance.level),
        (Isolation::Cooperative, Isolation::Hardware)
    );
    let command = gpu.next.expect("MIG").1;
    assert!(
        command.starts_with("divvy gpu mig apply --device 0 --instances 1g.10gb,1g.10gb"),
        "{command}"
    );
    let three = folder();
    let vfio = reached(&Built::passed_through(three.path()), 0);
    assert_eq!((vfio.level, vfio.next), (Isolation::Vm, None));
    let four = folder();
    let desktop = Built::desktop(four.path());
    assert_eq!(reached(&desktop, 1).level, Isolation::Env, "nouveau runs no CUDA");
    desktop.remove("sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/iommu_group");
    let command = reached(&desktop, 1).next.expect("a virtual machine").1;
    assert_eq!(
        command, "divvy vm doctor",
        "it tells what to add to the boot configuration"
    );
}

#[test]
fn of_a_gpu_in_mig_mode_without_instances_no_program_sees_anything() {
    let folder = folder();
    let mut machine = read(&Built::h100(folder.path(), 2));
    machine.devices.truncate(2);
    machine.devices[1].hardware.as_mut().expect("facts").mig_mode = Some(true);
    let visible = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        let environment: Environment = pairs
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        let explained = explain(&environment, &Seen::of(&machine.devices));
        explained.of(Runtime::Cuda).expect("a view").visible.clone()
    };
    assert_eq!(visible(&[]), [0]);
    assert_eq!(
        visible(&[("CUDA_VISIBLE_DEVICES", "1")]),
        [0_u32; 0],
        "there is one device only"
    );
    let refusal =
        settings(&Seen::of(&machine.devices), &[1], Target::One(Runtime::Cuda)).expect_err("nothing to see");
    assert!(
        refusal.message.contains("cuda does not see device 1"),
        "{refusal:?}"
    );
}
