//! `divvy env`: variables that show a program some of the devices, and what variables would show it.

use std::ffi::OsString;
use std::str::FromStr;

use clap::{Subcommand, ValueEnum};
use divvy_host::amd::unit_masks;
use divvy_host::visible::{Environment, Explained, Runtime, Seen, Target, explain, settings};
use divvy_model::{Code, Compute, DeviceRecord, Fault, Selector};
use serde::Serialize;

use crate::context::Context;
use crate::output::{self, Format};
use crate::report::remark;

/// Flags of `divvy env`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy env set --devices 0,2 --for all
  eval \"$(divvy env set --devices 1 --for cuda)\"
  divvy env explain
  divvy env explain ROCR_VISIBLE_DEVICES=1,0 HIP_VISIBLE_DEVICES=1")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print variables that show exactly these devices, in this order
    Set(Set),
    /// Tell, per runtime and step by step, what a program with an environment would see
    Explain(Explain),
}

/// Flags of `divvy env set`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy env set --devices 0,2 --for rocm
  divvy env set --devices GPU-1a2b --for cuda --format docker
  divvy env set --devices none --for all --format systemd")]
struct Set {
    /// The devices, in the order the program is to see them: indices, UUIDs, PCI addresses; `all` or `none`
    #[arg(long, value_name = "LIST")]
    devices: String,
    /// Whose variables: rocm, hip, opencl, openmp, cuda or all
    #[arg(long = "for", value_name = "RUNTIME", default_value = "all", value_parser = target)]
    runtime: Target,
    /// How they are printed [default: shell, or json with `-o json`]
    #[arg(long, value_enum)]
    format: Option<SetFormat>,
    /// Also keep programs on AMD devices to this share of the compute units, by masks
    #[arg(long, value_name = "SHARE", value_parser = crate::flags::parse::<Compute>)]
    compute: Option<Compute>,
    #[command(flatten)]
    list: List,
}

/// Flags of `divvy env explain`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy env explain
  divvy env explain --pid 4711
  divvy env explain CUDA_VISIBLE_DEVICES=1,0 -o json
  divvy env explain --count 8 ROCR_VISIBLE_DEVICES=010")]
struct Explain {
    /// Explain the environment that a process was started with
    #[arg(long, value_name = "PID", conflicts_with = "pairs")]
    pid: Option<u32>,
    /// Explain exactly these variables [default: those of this shell]
    #[arg(value_name = "KEY=VALUE")]
    pairs: Vec<String>,
    #[command(flatten)]
    list: List,
}

/// Which devices there are.
#[derive(Debug, clap::Args)]
struct List {
    /// Suppose this many devices that are alike, in the place of this machine's own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    count: Option<u32>,
    /// Take the devices of the machine captured below this folder
    #[arg(long, value_name = "DIR", conflicts_with = "count")]
    sysroot: Option<std::path::PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SetFormat {
    /// `export` lines for a shell
    Shell,
    /// Flags for `docker run`
    Docker,
    /// One JSON object
    Json,
    /// `Environment=` lines for a unit
    Systemd,
}

fn target(text: &str) -> Result<Target, Fault> {
    if text == "all" {
        return Ok(Target::All);
    }
    Runtime::from_str(text)
        .map(Target::One)
        .map_err(|message| Fault::new(Code::Usage, message))
}

/// Sets or explains.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::Set(args) => set(args, context),
        Verb::Explain(args) => tell(args, context),
    }
}

impl List {
    fn take(&self, context: &Context) -> Result<(Seen, Vec<DeviceRecord>), Fault> {
        if let Some(count) = self.count {
            return Ok((Seen::alike(count), Vec::new()));
        }
        let records = context.survey(self.sysroot.as_deref())?.devices;
        Ok((Seen::of(&records), records))
    }
}

fn set(args: &Set, context: &Context) -> Result<u8, Fault> {
    let (seen, records) = args.list.take(context)?;
    let places = places(&args.devices, &seen, &records)?;
    let mut variables = settings(&seen, &places, args.runtime)?;
    if let Some(share) = args.compute {
        variables.extend(masks(&places, &records, share)?);
    }
    remark("variables choose what a program is shown; they are no isolation: it can change them");
    let format = args.format.unwrap_or(match context.format {
        Format::Json => SetFormat::Json,
        _ => SetFormat::Shell,
    });
    output::print(&written(&variables, format)?)?;
    Ok(0)
}

/// Masks of compute units for the chosen devices, which ROCr numbers from 0 in their order.
///
/// # Errors
/// [`Code::Partition`] where one of them is not AMD's.
pub fn masks(
    places: &[usize],
    records: &[DeviceRecord],
    share: Compute,
) -> Result<Vec<(&'static str, String)>, Fault> {
    let units = places.iter().map(|place| {
        let device = records.get(*place)?;
        let amd = device
            .hardware
            .as_ref()
            .is_some_and(|facts| facts.kfd_node.is_some());
        (amd && device.sm_count > 0).then_some(device.sm_count)
    });
    let units: Vec<u32> = units
        .collect::<Option<_>>()
        .filter(|units: &Vec<u32>| !units.is_empty())
        .ok_or_else(|| {
            Fault::new(
                Code::Partition,
                "masks of compute units are for AMD's devices only",
            )
            .hint("on NVIDIA's, `divvy gpu mps limit --compute 30%`")
        })?;
    let each: Vec<_> = (0..)
        .zip(&units)
        .map(|(place, units)| unit_masks(place, *units, share))
        .collect();
    let driver: Vec<&str> = each.iter().map(|masks| masks[0].1.as_str()).collect();
    let smallest = each.iter().map(|masks| &masks[1].1).min_by_key(|mask| mask.len());
    let mut variables = vec![("HSA_CU_MASK", driver.join(";"))];
    variables.extend(smallest.map(|mask| ("ROC_GLOBAL_CU_MASK", mask.clone())));
    Ok(variables)
}

/// Places in the list that a user's words name.
fn places(words: &str, seen: &Seen, records: &[DeviceRecord]) -> Result<Vec<usize>, Fault> {
    match words.trim() {
        "all" => return Ok((0..seen.devices.len()).collect()),
        "none" => return Ok(Vec::new()),
        _ => {}
    }
    let mut places = Vec::new();
    for word in words.split(',').map(str::trim) {
        let selector: Selector = word.parse().map_err(Fault::from)?;
        let index = match (&selector, records) {
            (Selector::Index(index), _) => *index,
            _ => selector.choose(records)?.index,
        };
        let place = seen
            .devices
            .iter()
            .position(|device| device.index == index)
            .ok_or_else(|| Fault::from(divvy_model::SelectorError::Unknown(word.into())))?;
        if places.contains(&place) {
            return Err(Fault::new(
                Code::Selector,
                format!("device {index} is named twice in `{words}`"),
            )
            .hint("name each device once"));
        }
        places.push(place);
    }
    Ok(places)
}

fn written(variables: &[(&str, String)], format: SetFormat) -> Result<String, Fault> {
    let lines = variables.iter().map(|(name, value)| match format {
        SetFormat::Shell => format!("export {name}='{value}'\n"),
        SetFormat::Docker => format!("--env {name}={value}\n"),
        SetFormat::Systemd => format!("Environment=\"{name}={value}\"\n"),
        SetFormat::Json => String::new(),
    });
    if format != SetFormat::Json {
        return Ok(lines.collect());
    }
    let object: serde_json::Map<String, serde_json::Value> = variables
        .iter()
        .map(|(name, value)| ((*name).into(), value.clone().into()))
        .collect();
    serde_json::to_string_pretty(&object)
        .map_err(|error| Fault::new(Code::Internal, "cannot write JSON").because(&error))
}

fn tell(args: &Explain, context: &Context) -> Result<u8, Fault> {
    let environment = match args.pid {
        Some(pid) => of_process(pid)?,
        None if args.pairs.is_empty() => of_pairs(std::env::vars_os()),
        None => parsed(&args.pairs)?,
    };
    let (seen, _) = args.list.take(context)?;
    let explained = explain(&environment, &seen);
    show(context.format, &explained)?;
    Ok(0)
}

fn parsed(pairs: &[String]) -> Result<Environment, Fault> {
    let pair = |pair: &String| match pair.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Fault::new(Code::Usage, format!("`{pair}` is no variable"))
            .hint("write KEY=VALUE, as in ROCR_VISIBLE_DEVICES=0,2")),
    };
    pairs.iter().map(pair).collect()
}

fn of_pairs(pairs: impl Iterator<Item = (OsString, OsString)>) -> Environment {
    let text = |text: OsString| text.to_string_lossy().into_owned();
    pairs.map(|(name, value)| (text(name), text(value))).collect()
}

fn of_process(pid: u32) -> Result<Environment, Fault> {
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).map_err(|error| {
        let fault = match error.kind() {
            std::io::ErrorKind::NotFound => Fault::new(Code::Usage, format!("there is no process {pid}")),
            std::io::ErrorKind::PermissionDenied => {
                Fault::new(Code::Privilege, format!("process {pid} is another user's"))
                    .hint("only its user and root may read its environment")
            }
            _ => Fault::new(
                Code::Internal,
                format!("cannot read the environment of process {pid}"),
            ),
        };
        fault.because(&error)
    })?;
    let entries = bytes.split(|byte| *byte == 0).filter_map(|entry| {
        let entry = String::from_utf8_lossy(entry);
        let (name, value) = entry.split_once('=')?;
        // The first of a name is the one that `getenv` finds.
        Some((name.to_owned(), value.to_owned()))
    });
    let mut environment = Environment::new();
    for (name, value) in entries {
        environment.entry(name).or_insert(value);
    }
    Ok(environment)
}

#[derive(Serialize)]
struct Item<'a> {
    runtime: &'static str,
    visible: &'a [u32],
    steps: &'a [String],
}

#[derive(Serialize)]
struct Shown<'a> {
    items: Vec<Item<'a>>,
    warnings: &'a [String],
}

fn show(format: Format, explained: &Explained) -> Result<(), Fault> {
    let items = explained.views.iter().map(|view| Item {
        runtime: view.runtime.name(),
        visible: &view.visible,
        steps: &view.steps,
    });
    let shown = Shown {
        items: items.collect(),
        warnings: &explained.warnings,
    };
    if output::document(format, "VisibleDevices", &shown)? {
        return Ok(());
    }
    let mut text = String::new();
    for item in &shown.items {
        let list: Vec<String> = item.visible.iter().map(u32::to_string).collect();
        let list = if list.is_empty() {
            "no devices".into()
        } else {
            list.join(",")
        };
        text.push_str(&format!("{:<8}{list}\n", item.runtime));
        if format != Format::Name {
            for step in item.steps {
                text.push_str(&format!("        {}\n", step.replace(char::is_control, "?")));
            }
        }
    }
    for warning in shown.warnings {
        text.push_str(&format!("warning: {}\n", warning.replace(char::is_control, "?")));
    }
    if format != Format::Name {
        text.push_str("variables are no isolation: a program can change them before it starts a runtime\n");
    }
    output::print(&text)
}
