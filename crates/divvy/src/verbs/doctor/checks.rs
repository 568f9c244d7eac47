//! What is looked at, one function per check. Looked at: nothing is made, written or started, but for the trial.

use divvy_agent::api::HelperState;
use divvy_agent::{DropIns, Owner, RunDir, owner, stage, system_owner, system_run_dir};
use divvy_host::{Inventory, Silence, find_driver};
use divvy_model::{Code, DeviceKind, Fault};

use super::{Check, machine, trial};
use crate::context::Context;
use crate::verbs::accelerators;

/// Every check, in the order a program would meet them.
pub fn all(context: &Context, with_trial: bool) -> Vec<Check> {
    let mut checks = Vec::new();
    let inventory = match context.inventory() {
        Ok(inventory) => {
            checks.extend(devices(&inventory));
            inventory
        }
        Err(fault) => {
            checks.push(Check::fail("devices", "inventory", &fault));
            Inventory::default()
        }
    };
    checks.extend(machine::checks(context));
    let drop_ins = DropIns::find();
    checks.push(match &drop_ins {
        Ok(found) => Check::ok("drop-ins", "files", found.limiter.cuda.display().to_string()),
        Err(fault) => Check::fail("drop-ins", "files", fault),
    });
    checks.push(driver(context, &inventory, drop_ins.as_ref().ok()));
    checks.push(run_dir(context));
    checks.push(shared_memory());
    checks.push(callers());
    checks.push(agent(context));
    if with_trial && let (Ok(run), Ok(found)) = (context.run_dir(), &drop_ins) {
        checks.push(match stage(&run, &found.limiter.links()) {
            Ok(stage) => Check::ok("drop-ins", "stage", stage.folder.display().to_string()),
            Err(fault) => Check::fail("drop-ins", "stage", &fault),
        });
        checks.push(trial::check(&run));
    }
    checks.push(Check::ok(
        "limits",
        "reach",
        "statically linked and setuid programs ignore LD_PRELOAD: `divvy run` refuses them, and runs them without \
         the limiter under `--policy best-effort`; 32-bit ones run as if Divvy were not there",
    ));
    checks
}

fn devices(inventory: &Inventory) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(fault) = &inventory.unanswered {
        checks.push(Check::fail("devices", "GPU", fault));
    }
    let nvidia = match (&inventory.driver_version, inventory.notes.first()) {
        (Some(version), _) => Check::ok("devices", "NVIDIA", format!("driver {version}")),
        (None, Some(note)) => Check::ok("devices", "NVIDIA", note.clone()),
        (None, None) => Check::ok(
            "devices",
            "NVIDIA",
            "not looked for: emulated devices are configured",
        ),
    };
    checks.push(nvidia);
    for device in &inventory.devices {
        let detail = format!("{} {}, {}", device.uuid, device.name, device.memory_total_bytes);
        let check = match device.kind {
            DeviceKind::Emulated => Check::ok("devices", "emulated", detail),
            DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Partition => Check::ok("devices", "GPU", detail),
        };
        checks.push(if inventory.stand_in {
            check.warn(match accelerators::are_here() {
                true => "of AMD's devices no slices can be had: CUDA programs run on this emulated one, on the CPU",
                false => "there is no GPU here: programs run on this emulated one, on the CPU",
            })
        } else {
            check
        });
        checks.extend(owner_of(&device.uuid));
    }
    checks
}

/// Which agent has a device. Any user can bind a name, so the system agent is asked itself.
fn owner_of(uuid: &str) -> Option<Check> {
    let system = system_run_dir();
    let (named, asked) = (owner(uuid), system_owner(&system, uuid));
    let row = |owner: &Owner| {
        let found = format!("agent {} of user {}", owner.pid, owner.uid);
        Check::ok("devices", "owner", found)
    };
    match (named, asked) {
        (Some(named), Some(asked)) if named.uid != asked.uid && named.uid != 0 => Some(row(&asked).warn(format!(
            "process {} of user {} claims the device as well, and keeps users' own agents from it: `kill {}`",
            named.pid, named.uid, named.pid
        ))),
        (_, Some(owner)) | (Some(owner), None) => Some(row(&owner)),
        (None, None) => None,
    }
}

fn driver(context: &Context, inventory: &Inventory, drop_ins: Option<&DropIns>) -> Check {
    let named = context.config.text("driver").map(std::path::Path::new);
    let ours: Vec<_> = drop_ins.iter().map(|found| found.limiter.cuda.clone()).collect();
    let emulated = inventory.unanswered.is_none()
        && inventory
            .devices
            .iter()
            .all(|device| device.kind == DeviceKind::Emulated);
    match (named, drop_ins) {
        (None, Some(found)) if emulated => Check::ok(
            "driver",
            "below",
            format!("{} (emulated)", found.emulated.cuda.display()),
        ),
        _ => match find_driver(named, &ours) {
            Ok(driver) => Check::ok(
                "driver",
                "below",
                format!("{} ({})", driver.path.display(), driver.origin),
            ),
            Err(fault) => Check::fail("driver", "below", &fault),
        },
    }
}

fn run_dir(context: &Context) -> Check {
    let shown = |run: &RunDir| run.path().display().to_string();
    match RunDir::examine(context.peek().path()) {
        Ok(run) if run.path().exists() => Check::ok("run directory", "access", shown(&run)),
        Ok(run) => Check::ok(
            "run directory",
            "access",
            format!("{}, not made yet", shown(&run)),
        ),
        Err(fault) => Check::fail("run directory", "access", &fault),
    }
}

/// What every slice's pages rest on, and emulated devices too.
fn shared_memory() -> Check {
    match divvy_ledger::check_system() {
        Ok(()) => Check::ok("shared memory", "pages", "memory files and their locks"),
        Err(error) => Check::fail(
            "shared memory",
            "pages",
            &Fault::new(Code::SharedMemory, "the kernel does not serve a slice's pages")
                .because(&error)
                .hint("slices need Linux's memory files (memfd_create) and locks of open file descriptions (F_OFD_SETLK), which gVisor lacks"),
        ),
    }
}

/// How the agent tells who calls. A kernel before 6.5 pins no caller.
fn callers() -> Check {
    match divvy_agent::callers_are_pinned() {
        Ok(()) => Check::ok(
            "kernel",
            "callers",
            "the kernel pins a caller's process (SO_PEERPIDFD)",
        ),
        Err(why) => Check::ok(
            "kernel",
            "callers",
            format!(
                "a caller is known by its number and start time, for the kernel has no SO_PEERPIDFD: {why}"
            ),
        )
        .warn("Linux 6.5 and later have it; it only matters where several users share the agent"),
    }
}

fn agent(context: &Context) -> Check {
    let Some(agent) = context.agent_if_any() else {
        return Check::ok("agent", "reach", "none runs; `divvy run` starts one by itself");
    };
    match agent.status() {
        Ok(status) if status.helper == HelperState::Silent => Check::ok("agent", "helper", "it does not answer").warn(
            "other users' programs cannot be ended, nor MPS and MIG changed: `systemctl restart divvy-helper`, or start the agent again",
        ),
        Ok(status) if status.driver_silent => Check::fail("agent", "NVIDIA", &Silence::Still.into()),
        Ok(status) if status.version == env!("CARGO_PKG_VERSION") => Check::ok(
            "agent",
            "reach",
            format!(
                "process {}, {} slice{}",
                status.pid,
                status.slice_count,
                if status.slice_count == 1 { "" } else { "s" }
            ),
        ),
        Ok(status) => Check::ok(
            "agent",
            "reach",
            format!("process {}, version {}", status.pid, status.version),
        )
        .warn("it is another version's: `divvy agent stop` ends it, and its slices keep their limits"),
        Err(fault) => Check::fail("agent", "reach", &fault),
    }
}
