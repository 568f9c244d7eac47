//! What `divvy doctor` says of the machine's devices: health, rungs of the ladder, versions that go together.

use divvy_host::ladder::reach;
use divvy_host::tool::HostTools;
use divvy_host::versions::{Match, compare, toolkit};
use divvy_host::{Nvidia, mps, vgpu};
use divvy_model::{Code, DeviceKind, Fault};

use super::Check;
use crate::context::Context;

/// Everything.
pub fn checks(context: &Context) -> Vec<Check> {
    let survey = match context.survey(None) {
        Ok(survey) => survey,
        Err(fault) => return vec![Check::fail("machine", "survey", &fault)],
    };
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
            reach.rung,
            reach.rung.not_protected()
        );
        if let Some((rung, command)) = reach.next {
            detail.push_str(&format!("; `{rung}` is opened by: {command}"));
        }
        checks.push(Check::ok("isolation", "ladder", detail));
    }
    let emulated = survey
        .devices
        .iter()
        .all(|device| device.kind == DeviceKind::Emulated);
    if !emulated {
        checks.extend(versions(survey.driver_version.as_deref()));
        checks.push(daemons(context, &survey.devices));
        let virtuals = vgpu::types(&divvy_host::machine::Sysroot::default());
        if !virtuals.is_empty() {
            let detail = format!("{} types; `divvy vgpu list` shows them", virtuals.len());
            checks.push(Check::ok("isolation", "vGPU", detail));
        }
    }
    checks
}

fn versions(driver: Option<&str>) -> Option<Check> {
    let driver = driver?;
    let cuda = Nvidia::open().cuda_version()?;
    let mut tools = HostTools {
        limit: std::time::Duration::from_secs(5),
        ..HostTools::default()
    };
    let found = match toolkit(&mut tools) {
        Ok(Some(found)) => found,
        Ok(None) => {
            let detail = format!(
                "driver {driver} offers CUDA {}.{}; no toolkit is on PATH",
                cuda.0, cuda.1
            );
            return Some(Check::ok("versions", "toolkit", detail));
        }
        Err(fault) => {
            return Some(Check::ok("versions", "toolkit", fault.message).warn("is the right nvcc on PATH?"));
        }
    };
    let detail = format!(
        "driver {driver} offers CUDA {}.{}, the toolkit is {}.{}",
        cuda.0, cuda.1, found.0, found.1
    );
    Some(match compare(driver, cuda, found) {
        Match::Good => Check::ok("versions", "toolkit", detail),
        Match::NoPtx(why) => Check::ok("versions", "toolkit", detail).warn(why),
        Match::NoRuntime(why) => {
            let fault = Fault::new(Code::Driver, detail).cause(why);
            Check::fail(
                "versions",
                "toolkit",
                &fault.hint("install a newer driver, or an older toolkit"),
            )
        }
    })
}

fn daemons(context: &Context, devices: &[divvy_model::DeviceRecord]) -> Check {
    let mut tools = HostTools::default();
    let mut running = 0;
    for device in devices.iter().filter(|device| device.uuid.starts_with("GPU-")) {
        match mps::Mps::of(&device.uuid, context.peek().path()).state(&mut tools) {
            Ok(state) => running += u32::from(state.running),
            Err(fault) => return Check::fail("isolation", "MPS", &fault),
        }
    }
    Check::ok("isolation", "MPS", format!("{running} daemons of ours run"))
}
