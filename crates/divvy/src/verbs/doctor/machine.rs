//! What `divvy doctor` says of the machine's devices: health, isolation levels, versions that go together.

use std::path::Path;

use divvy_host::ladder::reach;
use divvy_host::machine::Sysroot;
use divvy_host::tool::{HostTools, Tools};
use divvy_host::versions::{Loads, Match, codes, compare, loads, toolkit};
use divvy_host::{Nvidia, Survey, mps, vgpu};
use divvy_model::{Code, DeviceKind, Fault, Isolation, Vendor};

use super::Check;
use crate::context::Context;

/// Longer than any honest tool takes, and short enough to wait for.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Everything that this machine's devices tell.
pub fn checks(context: &Context) -> Vec<Check> {
    let survey = match context.survey(None) {
        Ok(survey) => survey,
        Err(fault) => return vec![Check::fail("machine", "survey", &fault)],
    };
    let mut checks = of_devices(&survey);
    let emulated = survey
        .devices
        .iter()
        .all(|device| device.kind == DeviceKind::Emulated);
    if !emulated {
        let mut tools = HostTools {
            limit: TIMEOUT,
            ..HostTools::default()
        };
        checks.extend(versions(&survey, &mut tools));
        checks.push(daemons(context, &survey.devices, &mut tools));
        checks.extend(virtual_gpus(&Sysroot::default()));
    }
    checks
}

/// The same of a captured machine, as far as files tell.
///
/// # Errors
/// As [`Context::survey`].
pub fn captured(context: &Context, root: &Path) -> Result<Vec<Check>, Fault> {
    let survey = context.survey(Some(root))?;
    let driver = match &survey.driver_version {
        Some(version) => Check::ok("devices", "NVIDIA", format!("driver {version}")),
        None => Check::ok("devices", "NVIDIA", "no driver is loaded there"),
    };
    let mut checks = vec![driver];
    checks.extend(of_devices(&survey));
    checks.extend(virtual_gpus(&Sysroot::at(root)));
    Ok(checks)
}

fn of_devices(survey: &Survey) -> Vec<Check> {
    let mut checks = Vec::new();
    for note in &survey.machine.notes {
        checks
            .push(Check::ok("machine", "reading", note.clone()).warn("look again: `divvy devices -o wide`"));
    }
    for device in &survey.devices {
        let health = device.hardware.iter().flat_map(|facts| &facts.health);
        for finding in health {
            checks.push(
                Check::ok(
                    "machine",
                    "health",
                    format!("{} {}: {finding}", device.uuid, device.name),
                )
                .warn("keep programs off it until it was reset: `divvy devices -o wide` shows its state"),
            );
        }
        let reach = reach(device);
        let mut detail = format!(
            "device {} reaches `{}`: not protected against {}",
            device.index,
            reach.level,
            reach.level.not_protected()
        );
        // Levels that the agent gives, whatever the device is.
        if reach.level == Isolation::Cooperative {
            detail
                .push_str("; `divvy run --isolation supervised` and `enforced` hold programs that bypass it");
        }
        if let Some((level, command)) = reach.next {
            detail.push_str(&format!("; `{level}` is opened by: {command}"));
        }
        checks.push(Check::ok("isolation", "ladder", detail));
    }
    checks
}

fn virtual_gpus(root: &Sysroot) -> Option<Check> {
    let types = vgpu::types(root);
    let detail = format!("{} types; `divvy gpu vgpu list` shows them", types.len());
    (!types.is_empty()).then(|| Check::ok("isolation", "vGPU", detail))
}

/// Whether the driver runs what the toolkit makes: its runtime, its PTX, its machine code on these devices.
fn versions(survey: &Survey, tools: &mut dyn Tools) -> Vec<Check> {
    let cuda = Nvidia::open().cuda_version();
    let (Some(driver), Some(cuda)) = (survey.driver_version.as_deref(), cuda) else {
        return Vec::new();
    };
    let offers = format!("driver {driver} offers CUDA {}.{}", cuda.0, cuda.1);
    let found = match toolkit(tools) {
        Ok(Some(found)) => found,
        Ok(None) => {
            let detail = format!("{offers}; no toolkit is on PATH");
            return vec![Check::ok("versions", "toolkit", detail)];
        }
        Err(fault) => return vec![unclear(&fault)],
    };
    let detail = format!("{offers}, the toolkit is {}.{}", found.0, found.1);
    let matched = compare(driver, cuda, found);
    let mut checks = vec![Check::ok("versions", "toolkit", detail.clone())];
    checks.push(match &matched {
        Match::NoRuntime(why) => {
            let fault = Fault::new(Code::Driver, detail).cause(why);
            let fault = fault.hint("install a newer driver, or an older toolkit");
            Check::fail("versions", "runtime", &fault)
        }
        Match::Good | Match::NoPtx(_) => {
            let detail = "programs that are linked with the toolkit's runtime start on this driver";
            Check::ok("versions", "runtime", detail)
        }
    });
    let reads = matched == Match::Good;
    checks.push(match matched {
        Match::Good => Check::ok("versions", "PTX", "the driver compiles the toolkit's PTX"),
        Match::NoPtx(why) | Match::NoRuntime(why) => {
            Check::ok("versions", "PTX", "the driver is too old for the toolkit's PTX").warn(why)
        }
    });
    match codes(tools) {
        Ok(codes) => checks.extend(cubins(survey, &codes, reads)),
        Err(fault) => checks.push(unclear(&fault)),
    }
    checks
}

fn unclear(fault: &Fault) -> Check {
    let mut detail = fault.message.clone();
    for cause in &fault.causes {
        detail.push_str(": ");
        detail.push_str(cause);
    }
    Check::ok("versions", "toolkit", detail).warn("is the right nvcc on PATH?")
}

/// One line for each kind of device.
fn cubins(survey: &Survey, codes: &[((u32, u32), bool)], reads_ptx: bool) -> Vec<Check> {
    let mut kinds: Vec<(u32, u32)> = Vec::new();
    for device in &survey.devices {
        let nvidia = device
            .hardware
            .as_ref()
            .is_none_or(|facts| facts.vendor == Vendor::Nvidia);
        let number = device.compute_capability.split_once('.');
        let kind = number.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        kinds.extend(kind.filter(|kind| nvidia && !kinds.contains(kind)));
    }
    let check = |kind: (u32, u32)| {
        let called = format!("devices of {}.{}", kind.0, kind.1);
        let flag = format!("-arch=sm_{}{}", kind.0, kind.1);
        match loads(codes, reads_ptx, kind) {
            Loads::Cubin => {
                let detail = format!("{called} run machine code that the toolkit compiles with {flag}");
                Check::ok("versions", "cubin", detail)
            }
            Loads::Ptx => Check::ok(
                "versions",
                "cubin",
                format!("the toolkit has no machine code for {called}; the driver compiles its PTX"),
            )
            .warn("programs start slowly the first time: install a newer toolkit"),
            Loads::Never => Check::ok(
                "versions",
                "cubin",
                format!("nothing that the toolkit compiles runs on {called}"),
            )
            .warn("install a toolkit that compiles for them, of the driver's version or older"),
        }
    };
    kinds.into_iter().map(check).collect()
}

fn daemons(context: &Context, devices: &[divvy_model::DeviceRecord], tools: &mut dyn Tools) -> Check {
    let mut running = 0;
    for device in devices.iter().filter(|device| device.uuid.starts_with("GPU-")) {
        match mps::Mps::of(&device.uuid, context.peek().path()).state(tools) {
            Ok(state) => running += u32::from(state.running),
            Err(fault) => return Check::fail("isolation", "MPS", &fault),
        }
    }
    Check::ok("isolation", "MPS", format!("{running} daemons of ours run"))
}
