//! What the doctor says of machines that are not here.

use divvy_host::built::Built;
use divvy_host::machine::Sysroot;
use divvy_vm::doctor::{Report, Verdict, examine};

const GPU: &str = "0000:65:00.0";

/// The machine of the pages, copied so that it can be changed.
fn machine() -> (tempfile::TempDir, Built) {
    let folder = tempfile::tempdir().expect("a folder");
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/hosts/passthrough/.");
    let copied = std::process::Command::new("cp")
        .args(["-a", from])
        .arg(folder.path())
        .status();
    assert!(copied.expect("cp starts").success());
    let built = Built::at(folder.path());
    (folder, built)
}

fn report(built: &Built) -> Report {
    examine(&Sysroot::at(built.root()), Some(GPU), true)
}

/// What a check said: its verdict, what was found, what fixes it.
fn said(report: &Report, check: &str) -> (Verdict, String, String) {
    let found = report.checks.iter().find(|examined| examined.check == check);
    let found = found.unwrap_or_else(|| panic!("no check {check}: {report:?}"));
    (
        found.verdict,
        found.detail.clone(),
        found.fix.clone().unwrap_or_default(),
    )
}

#[test]
fn a_machine_that_can_is_told_so() {
    let (_folder, built) = machine();
    let report = report(&built);
    assert!(report.reach[0].vm, "{report:?}");
    assert_eq!(
        said(&report, "group").1,
        "group 20: the GPU with 0000:65:00.1 (audio)"
    );
    assert_eq!(said(&report, "reset").1, "by flr, bus");
    assert_eq!(
        said(&report, "memory").1,
        "node 0, CPUs 0-3,8-11; 64 huge pages of 1 GiB are free"
    );
    let bars = said(&report, "BARs");
    assert!(bars.0 == Verdict::Warn && bars.1.contains("64 GiB"), "{bars:?}");
    let names: Vec<&str> = report.checks.iter().map(|examined| examined.check).collect();
    assert_eq!(
        names,
        [
            "processor",
            "IOMMU",
            "VFIO",
            "driver",
            "group",
            "users",
            "reset",
            "BARs",
            "memory"
        ],
        "in the order in which they are to be fixed"
    );
}

#[test]
fn each_lack_has_its_fix() {
    let change = |change: &dyn Fn(&Built)| {
        let (_folder, built) = machine();
        change(&built);
        report(&built)
    };
    let fails = |report: &Report, check: &str, fix: &str| {
        let (verdict, detail, told) = said(report, check);
        assert!(
            verdict == Verdict::Fail && told.contains(fix),
            "{check}: {detail}: {told}"
        );
        assert!(!report.reach[0].vm && report.reach[0].why_not.contains(&detail));
    };
    let cpu = |flags: &str, vendor: &str| format!("vendor_id\t: {vendor}\nflags\t\t: {flags}\n");
    let off = change(&|built| built.file("proc/cpuinfo", &cpu("fpu lm", "GenuineIntel")));
    fails(&off, "processor", "firmware");
    let inside = change(&|built| built.file("proc/cpuinfo", &cpu("fpu hypervisor", "GenuineIntel")));
    fails(&inside, "processor", "nested");
    let none = |release: &'static str, grub: bool| {
        change(&move |built| {
            built.remove("sys/kernel/iommu_groups");
            built.file("sys/firmware/acpi/tables/DMAR", "");
            built.file("proc/cmdline", "quiet\n");
            built.file("etc/os-release", release);
            if !grub {
                built.remove("etc/default/grub");
                built.file("boot/loader/entries/a.conf", "");
            }
        })
    };
    fails(&none("ID=debian\n", true), "IOMMU", "update-grub");
    fails(
        &none("ID=anolis\nID_LIKE=\"rhel\"\n", true),
        "IOMMU",
        "grubby --update-kernel=ALL --args=\"intel_iommu=on iommu=pt\"",
    );
    fails(&none("ID=arch\n", false), "IOMMU", "/etc/kernel/cmdline");
    let told = change(&|built| built.remove("sys/kernel/iommu_groups"));
    fails(&told, "IOMMU", "firmware");
    let amd = change(&|built| {
        built.remove("sys/kernel/iommu_groups");
        built.file("proc/cpuinfo", &cpu("fpu svm", "AuthenticAMD"));
    });
    fails(&amd, "IOMMU", "no argument on AMD");
    let no_vfio = change(&|built| built.file("lib/modules/6.1.0-25-amd64/modules.dep", "kernel/a.ko:\n"));
    fails(&no_vfio, "VFIO", "CONFIG_VFIO_PCI");
    let used = change(&|built| {
        built.file(
            "proc/driver/nvidia/gpus/0000:65:00.0/information",
            "Device Minor: \t 3\n",
        );
        built.file("proc/77/comm", "Xorg\n");
        built.link("proc/77/fd/12", "/dev/nvidia3");
    });
    fails(&used, "users", "multi-user.target");
    let small = change(&|built| {
        built.file(
            "proc/cpuinfo",
            "vendor_id\t: GenuineIntel\nflags\t\t: vmx\naddress sizes\t: 38 bits physical, 48 bits virtual\n",
        );
    });
    fails(&small, "BARs", "Resizable BAR");
}

#[test]
fn warnings_do_not_close_the_level() {
    let (_folder, built) = machine();
    built.function_file(GPU, "reset_method", "\n");
    built.function_file(GPU, "boot_vga", "1\n");
    built.file("sys/class/vtconsole/vtcon0/bind", "1\n");
    built.file(
        "sys/kernel/security/lockdown",
        "none [integrity] confidentiality\n",
    );
    built.file(
        "proc/self/limits",
        "Max locked memory         8388608              8388608              bytes\n",
    );
    built.file(
        "sys/devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages",
        "0\n",
    );
    let report = report(&built);
    for (check, fix) in [
        ("reset", "vendor-reset"),
        ("display", "--boot-display"),
        ("Secure Boot", "mokutil"),
        ("locked memory", "memlock"),
        ("memory", "nr_hugepages"),
    ] {
        let (verdict, detail, told) = said(&report, check);
        assert!(
            verdict == Verdict::Warn && told.contains(fix),
            "{check}: {detail}: {told}"
        );
    }
    assert!(report.reach[0].vm);
}

#[test]
fn a_network_card_in_the_group_that_the_host_uses_closes_it() {
    let (_folder, built) = machine();
    let root = Sysroot::at(built.root());
    let report = examine(&root, Some("0000:17:00.0"), true);
    let (verdict, detail, _) = said(&report, "foreign");
    assert!(
        verdict == Verdict::Fail && detail.contains("0000:18:00.0 (network card)"),
        "{detail}"
    );
    // Once its link is down it can go along.
    built.function_file("0000:18:00.0", "net/enp24s0/flags", "0x1002\n");
    let report = examine(&root, Some("0000:17:00.0"), true);
    let (verdict, _, fix) = said(&report, "foreign");
    assert!(
        verdict == Verdict::Warn && fix.contains("--with 0000:18:00.0"),
        "{fix}"
    );
}
