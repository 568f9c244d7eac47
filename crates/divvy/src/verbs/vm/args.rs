//! `divvy vm args`: a machine with GPUs of this host, as QEMU, libvirt and others are told of it.

use std::io::Read;
use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::NonEmptyStringValueParser;
use divvy_model::{Bytes, Code, Fault};
use divvy_vm::machine::{Machine, Pages, Request};
use divvy_vm::output::{cloud_hypervisor, kubevirt, libvirt, qemu, vmware, xen};
use divvy_vm::status::status;

use super::{address, root};
use crate::context::Context;
use crate::flags::parse;
use crate::output;
use crate::report::remark;

/// Flags of `divvy vm args`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy vm args 65:00.0 --vcpus 6 --memory 32GiB
  divvy vm args 65:00.0 --for libvirt --name trainer --disk /var/lib/images/trainer.qcow2
  divvy vm args --vgpu c73f1fa6-489e-4834-9476-d70dabd98c40 --for libvirt --windows
  virsh dumpxml --inactive trainer | divvy vm args 65:00.0 --merge - --memory 32GiB")]
pub struct Args {
    /// The GPUs' PCI addresses
    #[arg(value_name = "ADDRESS", value_parser = address, required_unless_present = "vgpus")]
    gpus: Vec<String>,
    /// A virtual GPU that is there, by UUID or PCI address
    #[arg(long = "vgpu", value_name = "ID")]
    vgpus: Vec<String>,
    /// Which program is told
    #[arg(long = "for", value_name = "PROGRAM", value_enum, default_value = "qemu")]
    program: Program,
    /// The machine's name
    #[arg(long, value_name = "NAME", default_value = "divvy")]
    name: String,
    /// How many processors it has: on the GPUs' nodes, whole cores
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=1024))]
    vcpus: u32,
    /// How much memory it has, on the GPUs' nodes
    #[arg(long, value_name = "SIZE", value_parser = memory, default_value = "8GiB")]
    memory: Bytes,
    /// What its memory is made of: huge pages of 1GiB or 2MiB, or ordinary ones (4KiB)
    #[arg(long, value_name = "SIZE", value_parser = pages, default_value = "1GiB")]
    pages: Pages,
    /// By iommufd: QEMU 8.2 and later, on kernels of 6.6 and later
    #[arg(long)]
    iommufd: bool,
    /// For Windows: UEFI, and a hypervisor that does not show itself
    #[arg(long)]
    windows: bool,
    /// The file of its disk
    #[arg(long, value_name = "FILE", value_parser = NonEmptyStringValueParser::new())]
    disk: Option<String>,
    /// Change this libvirt domain in the place of making one; `-` is the standard input
    #[arg(long, value_name = "FILE")]
    merge: Option<PathBuf>,
    /// For the machine captured below this folder in the place of this one
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Program {
    /// QEMU's command line
    Qemu,
    /// A domain of libvirt's
    Libvirt,
    /// Cloud Hypervisor's command line
    CloudHypervisor,
    /// A machine of KubeVirt's
    Kubevirt,
    /// Lines of a VMware .vmx file
    Vmx,
    /// Lines for Xen's xl, and XenServer's commands for virtual GPUs
    Xen,
}

pub(super) fn pages(text: &str) -> Result<Pages, Fault> {
    match text.to_ascii_lowercase().as_str() {
        "1gib" | "1g" => Ok(Pages::Huge),
        "2mib" | "2m" => Ok(Pages::Large),
        "4kib" | "4k" => Ok(Pages::Ordinary),
        _ => Err(Fault::new(
            Code::Usage,
            format!("there are no pages of `{}`", text.escape_debug()),
        )
        .hint("choose 1GiB, 2MiB or 4KiB")),
    }
}

/// A machine's memory as people write it.
pub fn memory(text: &str) -> Result<Bytes, Fault> {
    parse::<Bytes>(text).map_err(|fault| {
        Fault::new(fault.code, format!("`{text}` is no memory of a machine"))
            .hint("an amount is like `8GiB`, `8192MiB` or `8GB`")
    })
}

/// Prints.
pub fn run(args: &Args, _context: &Context) -> Result<u8, Fault> {
    let (tree, base) = root(args.sysroot.as_deref())?;
    let request = Request {
        name: args.name.clone(),
        gpus: args.gpus.clone(),
        vcpus: args.vcpus,
        memory: args.memory,
        pages: args.pages,
        iommufd: args.iommufd,
        windows: args.windows,
        disk: args.disk.clone(),
        vgpus: args.vgpus.clone(),
    };
    let machine = Machine::plan(&tree, request)?;
    let text = match (&args.merge, args.program) {
        (Some(file), _) => libvirt::merge(&domain(file)?, &machine)?.written(),
        (None, Program::Qemu) => qemu::line(&qemu::words(&machine)),
        (None, Program::Libvirt) => libvirt::domain(&machine).written(),
        (None, Program::CloudHypervisor) => qemu::line(&cloud_hypervisor::words(&machine)),
        (None, Program::Kubevirt) => kubevirt::yaml(&machine),
        (None, Program::Vmx) => vmware::lines(&machine),
        (None, Program::Xen) => xen::lines(&machine),
    };
    output::print(&text)?;
    let has_vfio = !matches!(args.program, Program::Vmx | Program::Xen);
    if args.merge.is_none() && args.program == Program::Qemu && machine.has_uefi() {
        remark(&format!(
            "UEFI keeps this machine's settings in a file: `cp {} {}` once, before its first start",
            machine.firmware.settings,
            qemu::settings(&machine)
        ));
    }
    for group in status(&tree, &base) {
        let is_asked = group.functions.iter().any(|one| args.gpus.contains(&one.address));
        if is_asked && !group.viable && has_vfio {
            remark(&format!(
                "{} is not on VFIO yet: `divvy vm bind {}` before the machine starts",
                group.address, group.address
            ));
        }
    }
    Ok(0)
}

/// A domain's text.
fn domain(file: &std::path::Path) -> Result<String, Fault> {
    const LONGEST: u64 = 1 << 20;
    let failed = |error: &std::io::Error| {
        Fault::new(
            Code::Usage,
            format!("cannot read the domain `{}`", file.display()),
        )
        .because(error)
        .hint("`virsh dumpxml --inactive NAME` writes one")
    };
    let mut text = String::new();
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin().lock().take(LONGEST).read_to_string(&mut text),
        false => std::fs::File::open(file).and_then(|file| file.take(LONGEST).read_to_string(&mut text)),
    };
    read.map_err(|error| failed(&error))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machines_memory_is_no_slices() {
        assert_eq!(memory("8GiB").expect("an amount"), Bytes(8 << 30));
        for wrong in ["0", "0GiB", "12", "12parsecs", ""] {
            let fault = memory(wrong).expect_err(wrong);
            let said = format!("{} {}", fault.message, fault.hint.unwrap_or_default());
            assert!(
                said.contains(&format!("`{wrong}` is no memory of a machine")),
                "{said}"
            );
            assert!(!said.contains("slice") && !said.contains('%'), "{said}");
        }
    }
}
