//! `divvy container cdi generate`: this machine's devices.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use divvy_agent::api::ShareDevices;
use divvy_container::cdi::{self, Capabilities, Emulated, Generated, Options};
use divvy_host::machine::Sysroot;
use divvy_model::{Code, DeviceRecord, Fault, Vendor};
use serde::Serialize;

use super::directories::{capabilities, check_free, directories};
use crate::context::Context;
use crate::output;
use crate::report::remark;

/// Flags of `divvy container cdi generate`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy container cdi generate
  divvy container cdi generate --capabilities compute,utility,video
  divvy container cdi generate --vendor nvidia --kind divvy.dev/nvidia
  divvy container cdi generate --watch")]
pub struct Args {
    /// Only this vendor's devices
    #[arg(long, value_enum)]
    vendor: Option<Of>,
    /// Where the files go
    #[arg(long, value_name = "DIR", default_value = cdi::DYNAMIC)]
    directory: PathBuf,
    /// The parts of NVIDIA's driver: compute, utility, video, graphics, display, ngx, all
    #[arg(long, value_name = "LIST", default_value = "utility,compute", value_parser = capabilities)]
    capabilities: Capabilities,
    /// The devices' kind, beside the vendor's own: for where another tool's file has the names already
    #[arg(long, value_name = "VENDOR/CLASS", requires = "vendor")]
    kind: Option<String>,
    /// Look at the machine captured below this folder (its `sys`, `proc` and `dev`) in the place of this one
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
    /// Stay, and write the files again when devices come, go or are divided otherwise
    #[arg(long, conflicts_with = "dry_run")]
    watch: bool,
    /// Print the files, and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// A vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Of {
    Nvidia,
    Amd,
    Emulated,
}

#[derive(Serialize)]
struct Written<'a> {
    file: String,
    spec: &'a cdi::Spec,
}

/// Writes the files.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    const LOOK: Duration = Duration::from_secs(2);
    if let Some(kind) = args.kind.as_deref().filter(|kind| !cdi::is_kind(kind)) {
        return Err(
            Fault::new(Code::Usage, format!("`{kind}` is no kind of CDI devices"))
                .hint("write it as vendor.com/class, each with a letter first"),
        );
    }
    let mut before = plan(args, context)?;
    if before.is_empty() && !args.watch {
        return Err(
            Fault::new(Code::NoDevice, "there is no device to write a CDI file of")
                .hint("`divvy devices` lists those there are; --vendor chooses among them"),
        );
    }
    write_all(args, context, &before)?;
    if !args.watch {
        return Ok(0);
    }
    loop {
        std::thread::sleep(LOOK);
        let now = plan(args, context)?;
        if now != before {
            write_all(args, context, &now)?;
            before = now;
        }
    }
}

/// What is to be written.
fn plan(args: &Args, context: &Context) -> Result<Vec<Generated>, Fault> {
    let survey = context.survey(args.sysroot.as_deref())?;
    for note in &survey.machine.notes {
        remark(note);
    }
    let vendor = args.vendor.map(|of| match of {
        Of::Nvidia => Vendor::Nvidia,
        Of::Amd => Vendor::Amd,
        Of::Emulated => Vendor::Emulated,
    });
    let mut options = Options {
        capabilities: args.capabilities.clone(),
        vendor,
        kind: args.kind.clone(),
        ..Options::default()
    };
    if args.sysroot.is_none() && vendor.is_none_or(|vendor| vendor == Vendor::Emulated) {
        emulated(context, &survey.devices, &mut options)?;
    }
    let root = args.sysroot.as_ref().map_or_else(Sysroot::default, |path| {
        Sysroot::at(path.canonicalize().unwrap_or_else(|_| path.clone()))
    });
    // The kernel's own view: only it knows a MIG instance's place.
    let mut devices = survey.machine.devices;
    devices.extend(survey.devices.into_iter().filter(is_emulated));
    Ok(cdi::generate(&root, &devices, &options))
}

fn is_emulated(device: &DeviceRecord) -> bool {
    device
        .hardware
        .as_ref()
        .is_some_and(|facts| facts.vendor == Vendor::Emulated)
}

/// Has the emulated devices' pages ready: each by itself, and all together.
fn emulated(context: &Context, devices: &[DeviceRecord], options: &mut Options) -> Result<(), Fault> {
    let emulated: Vec<&DeviceRecord> = devices.iter().filter(|device| is_emulated(device)).collect();
    if emulated.is_empty() {
        return Ok(());
    }
    let inventory = context.inventory()?;
    let agent = context.agent()?;
    let mut add = |name: &str, uuid: Option<&str>, uuids: &[&str]| -> Result<(), Fault> {
        let spec = uuids.first().and_then(|uuid| inventory.emulated_spec(uuid));
        let shared = agent.share_devices(&ShareDevices {
            name: name.into(),
            spec: spec.unwrap_or_default().into(),
            uuids: uuids.iter().map(|uuid| (*uuid).to_owned()).collect(),
        })?;
        options.emulated_driver = shared.driver;
        options.emulated.push(Emulated {
            name: name.into(),
            uuid: uuid.map(str::to_owned),
            grant: shared.grant,
        });
        Ok(())
    };
    let mut all: Vec<&str> = Vec::new();
    for (index, device) in emulated.iter().enumerate() {
        add(&index.to_string(), Some(&device.uuid), &[&device.uuid])?;
        all.push(&device.uuid);
    }
    add("all", None, &all)
}

fn write_all(args: &Args, context: &Context, files: &[Generated]) -> Result<(), Fault> {
    let path = |file: &str| args.directory.join(file);
    if args.dry_run {
        let all: Vec<Written<'_>> = files
            .iter()
            .map(|generated| Written {
                file: path(generated.file).display().to_string(),
                spec: &generated.spec,
            })
            .collect();
        if output::document(context.format, "CdiFileList", output_items(&all))? {
            return Ok(());
        }
        let texts = all
            .iter()
            .map(|written| format!("would write {}:\n{}", written.file, written.spec.to_json()));
        return output::print(&texts.collect::<String>());
    }
    // All are looked at before the first is written.
    for generated in files {
        check_free(&args.directory, generated.file, &generated.spec)?;
    }
    for generated in files {
        let written = cdi::write(&args.directory, generated.file, &generated.spec)?;
        let names: Vec<String> = generated
            .spec
            .devices
            .iter()
            .map(|device| format!("  {}={}\n", generated.spec.kind, device.name))
            .collect();
        output::print(&format!("wrote {}:\n{}", written.display(), names.concat()))?;
    }
    // A vendor's devices that are all gone leave no file behind.
    if args.vendor.is_none() && args.sysroot.is_none() {
        for file in ["divvy-nvidia.json", "divvy-amd.json", "divvy-emulated.json"] {
            if files.iter().all(|generated| generated.file != file) {
                cdi::remove(&path(file))?;
            }
        }
    }
    Ok(())
}

fn output_items<T: Serialize>(items: &[T]) -> impl Serialize + '_ {
    #[derive(Serialize)]
    struct Items<'a, T> {
        items: &'a [T],
    }
    Items { items }
}

/// Writes our files again where there are any, after devices were divided otherwise. What containers have of the driver
/// stays as it was.
pub fn refresh(context: &Context) {
    for directory in directories(&[]) {
        if let Err(fault) = refresh_in(&directory, context) {
            remark(&format!(
                "the CDI files in {} are out of date: {fault}",
                directory.display()
            ));
        }
    }
}

fn refresh_in(directory: &Path, context: &Context) -> Result<(), Fault> {
    let found = cdi::read_all(&[directory.to_owned()]).unwrap_or_default();
    let ours = |file: &str| {
        let named = |found: &&cdi::Found| found.path.file_name().is_some_and(|name| name == file);
        found.iter().find(named)?.spec.as_ref().ok()
    };
    if ["divvy-nvidia.json", "divvy-amd.json"]
        .into_iter()
        .all(|file| ours(file).is_none())
    {
        return Ok(());
    }
    let devices = context.survey(None)?.machine.devices;
    for generated in cdi::generate(&Sysroot::default(), &devices, &Options::default()) {
        if let Some(before) = ours(generated.file) {
            let edits = before.container_edits.clone();
            let spec = cdi::Spec::new(&before.kind, generated.spec.devices, edits);
            cdi::write(directory, generated.file, &spec)?;
        }
    }
    Ok(())
}
