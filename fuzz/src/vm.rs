//! What is read of hosts and of their administrators' files to give GPUs to virtual machines, out of any bytes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path};

use divvy_host::machine::Sysroot;
use divvy_host::vgpu;
use divvy_model::Bytes;
use divvy_vm::bind::{self, Consent};
use divvy_vm::cpus::Pinning;
use divvy_vm::doctor::examine;
use divvy_vm::function::{Function, address};
use divvy_vm::machine::{Card, Firmware, Machine, Pages, Request};
use divvy_vm::openstack::conf::{Form, api, compute};
use divvy_vm::openstack::{Product, check, ini, products};
use divvy_vm::output::{cloud_hypervisor, kubevirt, libvirt, qemu, vmware};
use divvy_vm::prepare::edit;
use divvy_vm::prepare::plan::Plan;
use divvy_vm::status::status;
use divvy_vm::xml::Element;

/// No mistake is told of at greater length.
const LONGEST: usize = 1 << 16;

/// Files of a boot loader and lists of modules: only what was lacking is added, once, and no other line changes. Whether it was text.
///
/// # Panics
/// Where something that must hold does not.
pub fn loader(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let words = ["intel_iommu=on", "iommu=pt"].map(str::to_owned);
    let name = "GRUB_CMDLINE_LINUX_DEFAULT";
    let ends = |text: &str| format!("{}\n", text.strip_suffix('\n').unwrap_or(text));
    if let Some(after) = edit::grub(text, name, &words) {
        assert_eq!(
            edit::grub(&after, name, &words).as_deref(),
            Some(after.as_str()),
            "again"
        );
        let differ = differing(&ends(text), &after);
        assert!(differ.len() <= 1, "{differ:?}");
        for line in differ {
            assert!(line.trim_start().starts_with(name), "{line:?}");
            // A shell that reads it runs nothing that was not there.
            assert!(!line.contains(['`', '$', '\\']), "{line:?}");
        }
    }
    let after = edit::entry(text, &words);
    assert_eq!(edit::entry(&after, &words), after, "again");
    assert!(differing(&ends(text), &after).len() <= 1);
    assert!(
        after
            .lines()
            .any(|line| line.starts_with("options") && edit::lacking(line, &words).is_empty())
    );
    let after = edit::list(text, "vfio-pci");
    assert!(after.starts_with(text) && edit::list(&after, "vfio-pci") == after);
    let one = text.lines().next().unwrap_or_default();
    let after = edit::line(one, &words);
    assert!(edit::lacking(&after, &words).is_empty() && edit::line(&after, &words) == after);
    true
}

/// The lines of the second text that are not the first one's at the same place.
fn differing<'a>(before: &str, after: &'a str) -> Vec<&'a str> {
    let before: Vec<&str> = before.split('\n').collect();
    let after = after.split('\n').enumerate();
    let new = after.filter(|(at, line)| !line.is_empty() && before.get(*at) != Some(line));
    new.map(|(_, line)| line).collect()
}

/// Two `nova.conf` files, split at a line of `---`. Whether they were text.
///
/// # Panics
/// Where something that must hold does not.
pub fn nova(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let (api, compute) = text.split_once("\n---\n").unwrap_or((text, text));
    let product = Product {
        vendor: 0x10de,
        device: 0x26b9,
        alias: "gpu-10de-26b9".into(),
        trait_name: "CUSTOM_GPU_10DE_26B9".into(),
        is_sriov: true,
        addresses: vec!["0000:65:00.0".into()],
    };
    for products in [&[][..], &[product]] {
        let (most, found) = (text.lines().count(), check::check(api, compute, products));
        for one in found {
            assert!(one.line <= most && !one.fix.is_empty(), "{one:?}");
            assert!(
                one.mistake.len() < LONGEST.max(text.len() + 256),
                "{} bytes",
                one.mistake.len()
            );
        }
    }
    for setting in ini::read(text).0 {
        assert!(setting.line >= 1 && !setting.name.contains('\n') && !setting.value.contains('\n'));
    }
    true
}

/// A domain that the machine's cards are put into. Whether it was one.
///
/// # Panics
/// Where something that must hold does not.
pub fn domain(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let machine = machine();
    let Ok(merged) = libvirt::merge(text, &machine) else {
        return false;
    };
    // What was written is read, and to put the same into it again changes no more.
    let written = merged.written();
    let read = Element::read(&written).unwrap_or_else(|fault| panic!("{fault:?}: {written}"));
    let again = libvirt::merge(&written, &machine).expect("our own");
    let count = |domain: &Element| {
        let devices = domain.find("devices").expect("devices");
        devices
            .elements()
            .filter(|element| element.name == "hostdev")
            .count()
    };
    assert_eq!(count(&again), count(&read), "{written}");
    true
}

/// A machine with a card of two functions.
fn machine() -> Machine {
    let function = |address: &str| Function {
        address: address.to_owned(),
        vendor: 0x10de,
        device: 0x26b9,
        class: 0x03_0200,
        bars: vec![16 << 20, 64 << 30],
        ..Function::default()
    };
    Machine {
        request: request(&["0000:65:00.0".to_owned()]),
        cards: vec![Card {
            functions: vec![function("0000:65:00.0"), function("0000:65:00.1")],
            node: 0,
        }],
        pinning: Pinning {
            threads: 1,
            vcpus: vec![(1, 0)],
            nodes: vec![0],
            emulator: vec![0],
        },
        vgpus: Vec::new(),
        firmware: Firmware {
            code: "/code",
            settings: "/settings",
        },
        bars: 64 << 30,
        is_amd: false,
    }
}

fn request(gpus: &[String]) -> Request {
    Request {
        name: "trainer".into(),
        gpus: gpus.to_vec(),
        vcpus: 1,
        memory: Bytes(64 << 20),
        pages: Pages::Ordinary,
        iommufd: false,
        windows: true,
        disk: None,
        vgpus: Vec::new(),
    }
}

/// A captured host: a line `=PATH` begins a file and `>PATH` a link, and the lines below are what is in it. How many GPUs it has.
///
/// # Panics
/// Where something that must hold does not.
pub fn tree(bytes: &[u8], folder: &Path) -> usize {
    build(&String::from_utf8_lossy(bytes), folder);
    let root = Sysroot::at(folder);
    let _devices = divvy_host::machine::read(&root);
    let _types = (vgpu::types(&root), vgpu::list(&root));
    let _report = examine(&root, None, true);
    for blacklist in [false, true] {
        if let Ok(plan) = Plan::make(&root, blacklist) {
            let _text = plan.text();
        }
    }
    let groups = status(&root, folder);
    for group in &groups {
        assert_eq!(address(&group.address).as_deref(), Ok(group.address.as_str()));
        let consent = Consent {
            with: group
                .functions
                .iter()
                .map(|one| one.address.clone())
                .filter(|one| *one != group.address)
                .collect(),
            boot_display: true,
        };
        if let Ok(plan) = bind::Plan::make(&root, &group.address, &consent) {
            for step in plan.steps(|module| bind::target(&root, module)) {
                assert!(
                    step.path.starts_with("sys/bus/pci/") && !step.path.contains(".."),
                    "{step:?}"
                );
                assert!(
                    !step.text.contains('/') && !step.text.trim().contains('\n'),
                    "{step:?}"
                );
            }
        }
    }
    let gpus: Vec<String> = groups.iter().map(|group| group.address.clone()).collect();
    if let Ok(machine) = Machine::plan(&root, request(&gpus)) {
        let words = [qemu::words(&machine), cloud_hypervisor::words(&machine)].concat();
        assert!(
            words.iter().all(|word| !word.contains(char::is_control)),
            "{words:?}"
        );
        let written = libvirt::domain(&machine).written();
        Element::read(&written).unwrap_or_else(|fault| panic!("{fault:?}: {written}"));
        let _texts = (kubevirt::yaml(&machine), vmware::lines(&machine));
    }
    if let Ok(products) = products(&root, &[]) {
        for form in [Form::Now, Form::Old] {
            let found = check::check(&api(&products, form), &compute(&products, form), &products);
            assert_eq!(found, [], "our own files");
        }
    }
    gpus.len()
}

fn build(text: &str, folder: &Path) {
    const MOST: usize = 200;
    let mut open: Option<(&str, bool, String)> = None;
    let mut made = 0;
    let mut make = |open: &mut Option<(&str, bool, String)>| {
        let Some((path, is_link, text)) = open.take() else {
            return;
        };
        let plain = Path::new(path)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        made += 1;
        if !plain || path.is_empty() || path.contains('\0') || made > MOST {
            return;
        }
        let to = folder.join(path);
        // A file may be where a folder should be: that is a host as well.
        let _made = to.parent().map(fs::create_dir_all);
        let target = text.trim();
        // A link that leads out of the tree leads there on a captured host too.
        let _written = match is_link {
            true => symlink(target, to),
            false => fs::write(to, text),
        };
    };
    for line in text.lines() {
        match line.split_at_checked(1) {
            Some((mark @ ("=" | ">"), path)) => {
                make(&mut open);
                open = Some((path, mark == ">", String::new()));
            }
            _ => {
                if let Some((_, _, text)) = &mut open {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
    }
    make(&mut open);
}
