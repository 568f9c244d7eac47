//! What each GPU has to have: a group of its own, no user, a way to be reset, room for its memory.

use divvy_host::machine::Sysroot;

use super::Examined;
use crate::bind::{Consent, Plan};
use crate::function::{Function, Kind};
use crate::group::Group;
use crate::holders::holders;

/// The checks in order.
pub fn checks(root: &Sysroot, gpu: &Function, is_root: bool) -> Vec<Examined> {
    let mut checks = vec![driver(gpu)];
    let group = gpu.group.map(|number| Group::read(root, number));
    if let Some(group) = &group {
        checks.push(members(gpu, group));
    }
    checks.extend(display(root, gpu));
    let functions = group
        .as_ref()
        .map_or_else(|| vec![gpu.clone()], |group| group.functions.clone());
    checks.extend(users(root, gpu, &functions, is_root));
    checks.push(reset(gpu));
    checks.extend(bars(root, gpu));
    checks.extend(memory(root, gpu));
    checks.extend(group.as_ref().and_then(|group| foreign(root, gpu, group)));
    for check in &mut checks {
        check.gpu = Some(gpu.address.clone());
    }
    checks
}

fn driver(gpu: &Function) -> Examined {
    let what = format!("{} (class {:04x})", gpu.id(), gpu.class >> 8);
    match gpu.driver.as_deref() {
        Some(_) if gpu.is_on_vfio() => Examined::ok(
            "driver",
            format!("{what} is on VFIO: a virtual machine can have it"),
        ),
        Some(driver) => Examined::ok("driver", format!("{what} is on the host's {driver}")),
        None => Examined::ok("driver", format!("{what} has no driver")),
    }
}

fn members(gpu: &Function, group: &Group) -> Examined {
    let host = group.on_host_drivers();
    let vfio = group.functions.iter().filter(|one| one.is_on_vfio()).count();
    let others: Vec<String> = group
        .functions
        .iter()
        .filter(|one| one.address != gpu.address)
        .map(|one| format!("{} ({})", one.address, one.kind().name()))
        .collect();
    let with = match others.is_empty() {
        true => "the GPU alone".to_owned(),
        false => format!("the GPU with {}", others.join(", ")),
    };
    let detail = format!("group {}: {with}", group.number);
    if vfio > 0 && !host.is_empty() {
        let names: Vec<&str> = host.iter().map(|one| one.address.as_str()).collect();
        return Examined::warn(
            "group",
            format!(
                "{detail}; half of it is on VFIO, and {} is not: it cannot be given away so",
                names.join(", ")
            ),
            format!("divvy vm bind {}", gpu.address),
        );
    }
    Examined::ok("group", detail)
}

fn display(root: &Sysroot, gpu: &Function) -> Option<Examined> {
    if !gpu.boot_display || gpu.is_on_vfio() {
        return None;
    }
    let console = root
        .names("sys/class/vtconsole")
        .iter()
        .any(|name| root.text(&format!("sys/class/vtconsole/{name}/bind")).as_deref() == Some("1"));
    let what = match console {
        true => "it shows this machine's console",
        false => "the firmware shows its messages on it",
    };
    Some(Examined::warn(
        "display",
        what,
        format!(
            "make another GPU the primary one in the firmware's setup, or agree with `divvy vm bind {} --boot-display`",
            gpu.address
        ),
    ))
}

fn users(root: &Sysroot, gpu: &Function, functions: &[Function], is_root: bool) -> Vec<Examined> {
    let used: Vec<_> = holders(root, functions)
        .into_iter()
        // Those of other cards are told by the last check.
        .collect();
    if used.is_empty() {
        let detail = match is_root {
            true => "nothing uses it",
            false => "nothing of this user's uses it; root sees the programs of all users",
        };
        return vec![Examined::ok("users", detail)];
    }
    let shown = used.iter().take(5).map(|holder| match gpu.is_on_vfio() {
        // A machine that runs on it is what it is for.
        true => Examined::ok("users", holder.to_string()),
        false => Examined::fail("users", holder.to_string(), holder.hint()),
    });
    shown.collect()
}

fn reset(gpu: &Function) -> Examined {
    match &gpu.resets {
        Some(ways) if !ways.is_empty() => Examined::ok("reset", format!("by {}", ways.join(", "))),
        Some(_) => Examined::warn(
            "reset",
            "the kernel knows no way to reset it: a second machine may find it in the state that the first one left",
            "load the vendor-reset module for AMD's cards that it lists; otherwise start the host again between machines",
        ),
        None => Examined::ok("reset", "the kernel does not say how it is reset (before 5.15)"),
    }
}

/// What machines without more settings have room for: the window of QEMU's older firmware for 64-bit BARs.
const WINDOW: u64 = 32 << 30;

fn bars(root: &Sysroot, gpu: &Function) -> Option<Examined> {
    let largest = gpu.bars.iter().copied().max().filter(|size| *size > 0)?;
    let total: u64 = gpu.bars.iter().fold(0, |total, size| total.saturating_add(*size));
    let gib = |bytes: u64| match bytes >> 30 {
        0 => format!("{} MiB", bytes >> 20),
        whole => format!("{whole} GiB"),
    };
    let text = root.text("proc/cpuinfo").unwrap_or_default();
    let bits: Option<u32> = text.lines().find_map(|line| {
        let sizes = line.strip_prefix("address sizes")?.split_once(':')?.1.trim();
        sizes.split(' ').next()?.parse().ok()
    });
    let detail = format!("the largest is {}", gib(largest));
    if let Some(bits) = bits.filter(|bits| *bits < 64 && total > (1 << bits) / 4) {
        return Some(Examined::fail(
            "BARs",
            format!("{detail}, and the processor addresses {bits} bits: a machine has no room for it"),
            "turn Resizable BAR off in the firmware's setup",
        ));
    }
    Some(match total > WINDOW {
        true => Examined::warn(
            "BARs",
            format!("{detail}: more than firmware gives a machine by itself"),
            "give the machine the host's address width (host-phys-bits=on, maxphysaddr mode='passthrough'); `divvy vm args` does",
        ),
        false => Examined::ok("BARs", detail),
    })
}

fn memory(root: &Sysroot, gpu: &Function) -> Vec<Examined> {
    let mut checks = Vec::new();
    let node = gpu.numa.unwrap_or(0);
    let near = match (gpu.numa, gpu.cpus.as_deref()) {
        (Some(node), Some(cpus)) => format!("node {node}, CPUs {cpus}"),
        (Some(node), None) => format!("node {node}"),
        (None, _) => "the machine has one node".to_owned(),
    };
    let folder = format!("sys/devices/system/node/node{node}/hugepages");
    let free = |kib: u64| root.number::<u64>(&format!("{folder}/hugepages-{kib}kB/free_hugepages"));
    checks.push(match (free(1 << 20), free(2 << 10)) {
        (Some(large), _) if large > 0 => Examined::ok("memory", format!("{near}; {large} huge pages of 1 GiB are free")),
        (_, Some(small)) if small > 0 => Examined::ok("memory", format!("{near}; {small} huge pages of 2 MiB are free")),
        (None, None) => Examined::ok("memory", near),
        _ => Examined::warn(
            "memory",
            format!("{near}; no huge page is free there, so memory is slower to pin and to reach"),
            format!(
                "echo 16 > /sys/devices/system/node/node{node}/hugepages/hugepages-1048576kB/nr_hugepages, or at the start \
                 of the kernel: hugepagesz=1G hugepages=16"
            ),
        ),
    });
    let limits = root.text("proc/self/limits").unwrap_or_default();
    let locked = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"));
    let soft: Option<u64> = locked.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    if let Some(bytes) = soft.filter(|bytes| *bytes < 1 << 30) {
        checks.push(Examined::warn(
            "locked memory",
            format!(
                "a machine's memory is pinned, and this user may lock {} MiB",
                bytes >> 20
            ),
            "start the machine as root or by libvirt, or raise `memlock` in /etc/security/limits.d",
        ));
    }
    checks
}

fn foreign(root: &Sysroot, gpu: &Function, group: &Group) -> Option<Examined> {
    let foreign = group.foreign(&gpu.address);
    if foreign.is_empty() {
        return None;
    }
    let names: Vec<String> = foreign
        .iter()
        .map(|one| format!("{} ({})", one.address, one.kind().name()))
        .collect();
    let flags: Vec<String> = foreign
        .iter()
        .map(|one| format!("--with {}", one.address))
        .collect();
    let all = Consent {
        with: foreign.iter().map(|one| one.address.clone()).collect(),
        boot_display: true,
    };
    let needed = foreign
        .iter()
        .any(|one| matches!(one.kind(), Kind::Network | Kind::Storage));
    let detail = format!("its group has functions of other cards: {}", names.join(", "));
    let agree = format!(
        "put the GPU in another slot, or agree that they go along: divvy vm bind {} {}",
        gpu.address,
        flags.join(" ")
    );
    let could = Plan::make(root, &gpu.address, &all).is_ok();
    Some(match needed && !could {
        true => Examined::fail(
            "foreign",
            detail,
            "put the GPU in another slot: the host uses them",
        ),
        false => Examined::warn("foreign", detail, agree),
    })
}
