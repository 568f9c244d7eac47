//! `divvy vm bind`, `unbind` and `restore`.

use std::path::{Path, PathBuf};

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault, SliceRecord};
use divvy_vm::bind::{Consent, Plan, target};
use divvy_vm::group::Group;
use divvy_vm::kernel::Running;
use divvy_vm::record::Store;
use divvy_vm::restore::Outcome;

use super::{address, root};
use crate::context::Context;
use crate::output;
use crate::report::remark;

/// Flags of `divvy vm bind`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy vm bind 65:00.0 --dry-run
  divvy vm bind 65:00.0
  divvy vm bind 65:00.0 --with 66:00.0")]
pub struct Args {
    /// The GPU's PCI address
    #[arg(value_name = "ADDRESS", value_parser = address)]
    gpu: String,
    /// A function of another card that may go along, where it is in the GPU's group
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    with: Vec<String>,
    /// Though the GPU shows this machine's console
    #[arg(long)]
    boot_display: bool,
    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: plan for the machine captured below this folder
    #[arg(long, value_name = "DIR", requires = "dry_run")]
    sysroot: Option<PathBuf>,
}

/// Flags of `divvy vm unbind`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy vm unbind 65:00.0")]
pub struct Unbind {
    /// The GPU's PCI address
    #[arg(value_name = "ADDRESS", value_parser = address)]
    gpu: String,
}

/// Gives a group to VFIO.
pub fn bind(args: &Args, context: &Context) -> Result<u8, Fault> {
    let (tree, _) = root(args.sysroot.as_deref())?;
    let consent = Consent {
        with: args.with.clone(),
        boot_display: args.boot_display,
    };
    if args.dry_run {
        let plan = Plan::make(&tree, &args.gpu, &consent)?;
        let mut text: String = plan
            .modules
            .iter()
            .map(|module| format!("modprobe {module}\n"))
            .collect();
        for step in plan.steps(|module| target(&tree, module)) {
            text.push_str(&format!("{}\n", step.as_shell()));
        }
        if text.is_empty() {
            text.push_str("nothing to change\n");
        }
        output::print(&text)?;
        return Ok(0);
    }
    let group = Group::of(&tree, &args.gpu)?;
    no_slices(context, &group)?;
    let store = super::store()?;
    let plan = divvy_vm::bind::bind(&tree, &mut Running::new(), &store, &args.gpu, &consent)?;
    if plan.changes.is_empty() {
        return output::print(&format!("{} is on VFIO already\n", args.gpu)).map(|()| 0);
    }
    // A slice may have been made meanwhile: nothing of it runs on a device that is on VFIO.
    if let Err(fault) = no_slices(context, &plan.group) {
        divvy_vm::bind::put_back_run(&tree, &mut Running::new(), &store, &args.gpu)?;
        return Err(fault);
    }
    let names: Vec<&str> = plan
        .changes
        .iter()
        .map(|(function, _)| function.address.as_str())
        .collect();
    output::print(&format!(
        "group {} is on VFIO: {}\n",
        plan.group.number,
        names.join(", ")
    ))?;
    if divvy_vm::prepare::at_start::is_lacking(&tree) {
        remark(
            "a restart of the machine ends this: `divvy vm prepare --apply` installs the unit that repeats it then",
        );
    }
    Ok(0)
}

/// Gives a group back.
pub fn unbind(args: &Unbind, _context: &Context) -> Result<u8, Fault> {
    let tree = Sysroot::at("/");
    let store = super::store()?;
    let group = divvy_vm::bind::unbind(&tree, &mut Running::new(), &store, &args.gpu)?;
    let mut text = String::new();
    for function in &group.functions {
        let driver = function.driver.as_deref().unwrap_or("no driver");
        text.push_str(&format!("{} is on {driver}\n", function.address));
    }
    output::print(&text)?;
    Ok(0)
}

/// Puts records right.
pub fn restore(_context: &Context) -> Result<u8, Fault> {
    let store = Store::open(Path::new("/"))?;
    let tree = Sysroot::at("/");
    let mut text = String::new();
    for file in divvy_vm::lent::give_back_left(&tree, &store)? {
        text.push_str(&format!("{file} has its first owner\n"));
    }
    let done = divvy_vm::restore::restore(&tree, &mut Running::new(), &store)?;
    for one in &done {
        let what = match one.outcome {
            Outcome::PutBack => "its functions are on their first drivers",
            Outcome::BoundAgain => "is on VFIO again",
            Outcome::Unchanged => "is as it should be",
            Outcome::Forgotten => "is no longer in this machine: forgotten",
            Outcome::Failed => {
                let why = one.trouble.as_deref().unwrap_or("it failed");
                remark(&format!("{}: {why}", one.address));
                continue;
            }
        };
        text.push_str(&format!("{} {what}\n", one.address));
    }
    if done.is_empty() && text.is_empty() {
        text.push_str("nothing to restore\n");
    }
    output::print(&text)?;
    let failed = done.iter().any(|one| one.outcome == Outcome::Failed);
    Ok(if failed { Code::VmBind.exit_status() } else { 0 })
}

/// Refuses a group in which the agent has slices, though nothing may run in them just now.
pub(super) fn no_slices(context: &Context, group: &Group) -> Result<(), Fault> {
    let Some(agent) = context.agent_if_any() else {
        return Ok(());
    };
    let slices = agent.slices()?.body.items;
    let devices = agent.devices()?.body.items;
    let devices = devices
        .iter()
        .map(|device| (device.uuid.as_str(), device.pci_address.as_str()));
    has_no_slices(devices, &slices, group)
}

/// `devices` are pairs of a UUID and a PCI address.
fn has_no_slices<'a>(
    devices: impl IntoIterator<Item = (&'a str, &'a str)>,
    slices: &[SliceRecord],
    group: &Group,
) -> Result<(), Fault> {
    for (uuid, address) in devices {
        let is_in_group = group
            .functions
            .iter()
            .any(|function| function.address.eq_ignore_ascii_case(address));
        if !is_in_group {
            continue;
        }
        let has_it = slices
            .iter()
            .find(|slice| slice.shares.iter().any(|share| share.device_uuid == uuid));
        if let Some(slice) = has_it {
            return Err(Fault::new(Code::VmHeld, "the device is in use")
                .cause(format!("slice {} has a share of it", slice.name))
                .hint(format!(
                    "end it with `divvy kill {}`, or `divvy slice delete`",
                    slice.name
                )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use divvy_host::built::{Built, Function};
    use divvy_model::{DeviceShare, Shares};

    use super::*;

    #[test]
    fn a_group_with_a_slice_stays_with_the_host() {
        let folder = tempfile::tempdir().expect("a folder");
        let built = Built::at(folder.path());
        for (address, class) in [("0000:0a:00.0", "0x030200"), ("0000:0a:00.1", "0x040300")] {
            built.function(Function {
                address,
                id: "10de:2330",
                class,
                driver: "nvidia",
                port: "0000:00:01.0",
                numa: 0,
                group: 7,
            });
        }
        let group = Group::of(&Sysroot::at(folder.path()), "0000:0a:00.0").expect("a group");
        // NVML writes addresses in capitals.
        let devices = [("GPU-a", "0000:0A:00.0"), ("GPU-b", "0000:0b:00.0")];
        let slice = |uuid: &str| SliceRecord {
            name: "kept".into(),
            shares: Shares {
                first: DeviceShare {
                    device_uuid: "GPU-b".into(),
                    ..DeviceShare::default()
                },
                further: vec![DeviceShare {
                    device_uuid: uuid.into(),
                    ..DeviceShare::default()
                }],
            },
            ..SliceRecord::default()
        };
        has_no_slices(devices, &[slice("GPU-b")], &group).expect("that one has another device");
        let fault = has_no_slices(devices, &[slice("GPU-a")], &group).expect_err("it is in use");
        assert_eq!(fault.code, Code::VmHeld);
        assert!(fault.causes[0].contains("slice kept"), "{fault:?}");
        assert!(
            fault.hint.is_some_and(|hint| hint.contains("divvy kill kept")),
            "the hint says what ends it"
        );
    }
}
