//! What the machine has to have: virtualisation, an IOMMU, VFIO.

use divvy_host::machine::Sysroot;

use super::Examined;
use crate::distribution::Family;
use crate::function::{Function, Kind};
use crate::group::GROUPS;

/// The checks in order.
pub fn checks(root: &Sysroot, family: Family, gpus: &[Function]) -> Vec<Examined> {
    let mut checks = vec![cpu(root), iommu(root, family), vfio(root)];
    checks.extend(lockdown(root));
    checks.extend(switches(root));
    if gpus.is_empty() {
        checks.push(Examined::fail(
            "GPUs",
            "PCI shows no GPU",
            "is it plugged in and powered? `lspci` lists what the bus has",
        ));
    }
    checks
}

fn flags(root: &Sysroot) -> Vec<String> {
    let text = root.text("proc/cpuinfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    line.map_or_else(Vec::new, |(_, flags)| {
        flags.split_whitespace().map(str::to_owned).collect()
    })
}

fn is_intel(root: &Sysroot) -> bool {
    let text = root.text("proc/cpuinfo").unwrap_or_default();
    text.contains("GenuineIntel")
}

fn cpu(root: &Sysroot) -> Examined {
    let flags = flags(root);
    let has = |flag: &str| flags.iter().any(|known| known == flag);
    let kvm = root.has("dev/kvm");
    let module = if has("svm") { "kvm_amd" } else { "kvm_intel" };
    match () {
        () if flags.is_empty() && kvm => Examined::ok("processor", "KVM is there"),
        () if flags.is_empty() => Examined::warn(
            "processor",
            "the processor's flags are not shown, and /dev/kvm is not there",
            "modprobe kvm",
        ),
        () if !has("vmx") && !has("svm") && has("hypervisor") => Examined::fail(
            "processor",
            "this is a virtual machine without nested virtualisation",
            "turn nested virtualisation on at its host, or use the host itself",
        ),
        () if !has("vmx") && !has("svm") => Examined::fail(
            "processor",
            "the processor shows neither vmx nor svm",
            "turn VT-x (Intel) or SVM (AMD) on in the firmware's setup",
        ),
        () if !kvm => Examined::warn(
            "processor",
            "virtualisation is on, and /dev/kvm is not there",
            format!("modprobe {module}"),
        ),
        () => Examined::ok("processor", "virtualisation is on, and KVM is there"),
    }
}

fn iommu(root: &Sysroot, family: Family) -> Examined {
    let groups = root.names(GROUPS).len();
    if groups > 0 {
        return Examined::ok("IOMMU", format!("{groups} groups"));
    }
    let detail = "there are no IOMMU groups: the IOMMU is off";
    let asked = root.text("proc/cmdline").unwrap_or_default();
    let firmware = "turn VT-d (Intel) or IOMMU (AMD) on in the firmware's setup";
    let has_tables = root.has("sys/firmware/acpi/tables/DMAR") || root.has("sys/firmware/acpi/tables/IVRS");
    match is_intel(root) {
        true if asked.split_whitespace().any(|word| word == "intel_iommu=on") => Examined::fail(
            "IOMMU",
            detail,
            format!("the kernel was told intel_iommu=on already: {firmware}"),
        ),
        true if has_tables => {
            Examined::fail("IOMMU", detail, family.add_arguments("intel_iommu=on iommu=pt"))
        }
        true => Examined::fail(
            "IOMMU",
            detail,
            format!(
                "{firmware}; then {}",
                family.add_arguments("intel_iommu=on iommu=pt")
            ),
        ),
        false => Examined::fail(
            "IOMMU",
            detail,
            format!("{firmware}; the kernel needs no argument on AMD"),
        ),
    }
}

fn vfio(root: &Sysroot) -> Examined {
    if root.has("sys/bus/pci/drivers/vfio-pci") {
        let cdev = match root.has("dev/iommu") {
            true => ", with iommufd",
            false => "",
        };
        return Examined::ok("VFIO", format!("vfio-pci is loaded{cdev}"));
    }
    let release = root.text("proc/sys/kernel/osrelease").unwrap_or_default();
    let folder = format!("lib/modules/{release}");
    if release.is_empty() || release.contains('/') || !root.has(&folder) {
        return Examined::warn("VFIO", "vfio-pci is not loaded", "modprobe vfio-pci");
    }
    let list = |file: &str| root.long_text(&format!("{folder}/{file}")).unwrap_or_default();
    let known = list("modules.dep") + &list("modules.builtin");
    match known.contains("/vfio-pci.ko") || known.contains("/vfio_pci.ko") {
        true => Examined::ok("VFIO", "vfio-pci is there, and is loaded by `divvy vm bind`"),
        false => Examined::fail(
            "VFIO",
            format!("the kernel {release} has no vfio-pci"),
            "start a kernel with CONFIG_VFIO_PCI, as distributions' usual kernels have it",
        ),
    }
}

fn lockdown(root: &Sysroot) -> Option<Examined> {
    let text = root.text("sys/kernel/security/lockdown")?;
    let mode = text.split_once('[')?.1.split_once(']')?.0.to_owned();
    (mode != "none").then(|| {
        Examined::warn(
            "Secure Boot",
            format!("the kernel is locked down ({mode}): modules without a signature do not load"),
            "use the distribution's signed vfio modules, or sign your own with a key that `mokutil --import` enrolled",
        )
    })
}

fn switches(root: &Sysroot) -> Option<Examined> {
    let count = Function::all(root)
        .iter()
        .filter(|function| function.kind() == Kind::Switch)
        .count();
    (count > 0).then(|| {
        Examined::warn(
            "NVSwitch",
            format!("{count} NVSwitches join the GPUs"),
            "Fabric Manager has to activate a partition with these GPUs before the machine starts (FABRIC_MODE=1 in \
             fabricmanager.cfg); all eight GPUs together need the switches passed too (FABRIC_MODE=0)",
        )
    })
}
