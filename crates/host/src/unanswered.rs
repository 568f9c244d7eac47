//! GPUs that are in the machine and cannot be used: on the bus, as a device node, or known to NVIDIA's library alone. Where
//! there is one, nothing is emulated in its place: a program would run on the CPU, and report success.

use divvy_model::{Code, Fault, Vendor};

use crate::machine::{PciFunction, Sysroot, functions};
use crate::nvidia::NvidiaReport;

/// Asks for an emulated device in so many words.
const BY_NAME: &str = "`--device emulated:h100` asks for an emulated device";

/// Why this machine's GPUs cannot be used, though there are some. None where there are none, or all answer.
///
/// The failure says what is there, why it does not answer, and what to load.
#[must_use]
pub fn unanswered(root: &Sysroot, report: &NvidiaReport) -> Option<Fault> {
    let functions = functions(root);
    let answers = |function: &PciFunction| {
        let mut devices = report.devices.iter();
        devices.any(|device| device.pci_address == function.address)
    };
    // Beside a GPU that answers, one may be kept for virtual machines.
    let kept = |one: &PciFunction| !report.devices.is_empty() && one.driver.as_deref() == Some("vfio-pci");
    let silent = functions.iter().filter(|one| !answers(one) && !kept(one));
    let silent: Vec<&PciFunction> = silent.collect();
    let of = |vendor: Vendor| silent.iter().find(|one| one.vendor == vendor).copied();
    if let Some(function) = of(Vendor::Nvidia) {
        return Some(nvidia(root, function, report));
    }
    if report.devices.is_empty() {
        if let Some(node) = nvidia_node(root) {
            return Some(no_driver(root, &format!("/dev/{node} is there"), report));
        }
        if report.failure.is_some() {
            return Some(no_driver(root, "NVIDIA's libraries are installed", report));
        }
        let amd = of(Vendor::Amd).map(amd);
        return amd.or_else(|| root.has("dev/kfd").then(kfd));
    }
    None
}

/// A function of NVIDIA's that NVML does not list.
fn nvidia(root: &Sysroot, function: &PciFunction, report: &NvidiaReport) -> Fault {
    let what = format!("{} is on the PCI bus at {}", function.name(), function.address);
    match function.driver.as_deref() {
        None => no_driver(root, &what, report),
        Some("nvidia") => cannot_use(&what, report.notes.first().map(String::as_str)).hint(format!(
            "`nvidia-smi` has to answer: reinstall the driver's libraries (libnvidia-ml.so.1 and libcuda.so.1) in the \
             version of its kernel module, or `reboot` after an upgrade; {BY_NAME}"
        )),
        Some("vfio-pci") => cannot_use(&what, Some("vfio-pci holds it, for a virtual machine")).hint(format!(
            "`driverctl unset-override {}` gives it back to NVIDIA's driver; {BY_NAME}",
            function.address
        )),
        Some(driver) => cannot_use(&what, Some(&format!("{driver} holds it, not NVIDIA's driver"))).hint(
            format!("`modprobe -r {driver} && modprobe nvidia` gives it to NVIDIA's driver; {BY_NAME}"),
        ),
    }
}

fn no_driver(root: &Sysroot, what: &str, report: &NvidiaReport) -> Fault {
    let why = report.failure.as_deref();
    let fault = cannot_use(what, why.or(report.notes.first().map(String::as_str)));
    // Loaded, and it shows nothing: loading it again is no advice.
    let fix = match root.has("proc/driver/nvidia/version") {
        true => {
            "`nvidia-smi` has to answer: look at the kernel's log (`dmesg`) for NVRM and Xid, then `reboot`"
        }
        false => {
            "`modprobe nvidia` loads the driver; where that finds no module, as after a kernel upgrade, reinstall the \
             driver for this kernel (`dkms autoinstall`)"
        }
    };
    fault.hint(format!("{fix}; {BY_NAME}"))
}

/// A function of AMD's: CUDA programs cannot use it, whatever its driver says.
fn amd(function: &PciFunction) -> Fault {
    let what = format!("{} is on the PCI bus at {}", function.name(), function.address);
    let fault = cannot_use(&what, Some("CUDA programs do not run on AMD's devices"));
    match function.driver.as_deref() {
        Some("amdgpu") => fault.hint(BY_NAME),
        _ => fault.hint(format!(
            "`modprobe amdgpu` loads its driver for ROCm programs; {BY_NAME}"
        )),
    }
}

fn kfd() -> Fault {
    let fault = cannot_use(
        "/dev/kfd is there",
        Some("CUDA programs do not run on AMD's devices"),
    );
    fault.hint(BY_NAME)
}

fn cannot_use(what: &str, why: Option<&str>) -> Fault {
    let fault = Fault::new(Code::NoDevice, format!("{what}, and no program can use it"));
    match why {
        Some(why) => fault.cause(why),
        None => fault,
    }
}

/// `nvidia0`, as NVIDIA's driver or its container tools make it.
fn nvidia_node(root: &Sysroot) -> Option<String> {
    let numbered = |name: &String| {
        let number = name.strip_prefix("nvidia");
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    root.names("dev").into_iter().find(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::built::{Built, Function};

    fn missing() -> NvidiaReport {
        NvidiaReport {
            notes: vec!["libnvidia-ml.so.1 is not installed".into()],
            ..NvidiaReport::default()
        }
    }

    fn of(built: &Built, report: &NvidiaReport) -> Option<Fault> {
        unanswered(&Sysroot::at(built.root()), report)
    }

    fn told(built: &Built, report: &NvidiaReport) -> (String, String) {
        let fault = of(built, report).expect("it does not answer");
        assert_eq!(fault.code, Code::NoDevice);
        (fault.message, fault.hint.expect("what to do"))
    }

    fn add(built: &Built, id: &str, driver: &str) {
        built.function(Function {
            address: "0000:65:00.0",
            id,
            class: "0x030200",
            driver,
            port: "0000:64:01.0",
            numa: 0,
            group: 1,
        });
    }

    #[test]
    fn a_card_without_its_driver_is_told_of_with_what_to_load() {
        let base = tempfile::tempdir().expect("a folder");
        for (driver, fix) in [
            ("", "modprobe nvidia"),
            ("nouveau", "modprobe -r nouveau"),
            ("vfio-pci", "driverctl"),
            ("nvidia", "nvidia-smi"),
        ] {
            let built = Built::at(base.path().join(format!("of-{driver}")));
            add(&built, "10de:2330", driver);
            let (message, hint) = told(&built, &missing());
            assert!(
                message.contains("NVIDIA H100 80GB HBM3") && message.contains("65:00.0"),
                "{message}"
            );
            assert!(
                hint.contains(fix) && hint.contains("--device emulated:h100"),
                "{hint}"
            );
        }
    }

    #[test]
    fn nodes_and_libraries_alone_are_signs_too() {
        let base = tempfile::tempdir().expect("a folder");
        let node = Built::at(base.path().join("node"));
        node.file("dev/nvidia0", "");
        assert!(told(&node, &missing()).0.contains("/dev/nvidia0"));
        let accelerator = Built::at(base.path().join("kfd"));
        accelerator.file("dev/kfd", "");
        assert!(told(&accelerator, &missing()).0.contains("/dev/kfd"));
        let nothing = Built::at(base.path().join("nothing"));
        nothing.file("dev/nvidiactl", "");
        assert_eq!(of(&nothing, &missing()), None);
        let failed = NvidiaReport {
            failure: Some("NVIDIA's kernel module is not loaded".into()),
            ..NvidiaReport::default()
        };
        let (message, hint) = told(&nothing, &failed);
        assert!(message.contains("libraries"), "{message}");
        assert!(hint.contains("modprobe nvidia"), "{hint}");
    }

    #[test]
    fn a_machine_with_a_screen_only_has_no_gpu() {
        let base = tempfile::tempdir().expect("a folder");
        let laptop = Built::at(base.path().join("intel"));
        add(&laptop, "8086:a780", "i915");
        assert_eq!(of(&laptop, &missing()), None);
        let server = Built::at(base.path().join("aspeed"));
        add(&server, "1a03:2000", "ast");
        assert_eq!(of(&server, &missing()), None);
        let amd = Built::at(base.path().join("amd"));
        add(&amd, "1002:74a1", "");
        assert!(told(&amd, &missing()).1.contains("modprobe amdgpu"));
    }
}
