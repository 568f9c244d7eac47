//! `divvy container cdi slice`: a slice for containers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_agent::Client;
use divvy_agent::api::{CreateSlice, Share};

use divvy_container::cdi::{self, Capabilities};
use divvy_container::inject;
use divvy_host::machine::Sysroot;
use divvy_model::{
    Code, DeviceKind, DeviceRecord, Fault, MemoryAmount, ModeTerms, SliceRecord, SliceRequest, Vendor,
};
use serde::Serialize;

use super::directories::{capabilities, check_free};
use crate::config::a_second_at_least;
use crate::context::Context;
use crate::flags::{or_setting, parse, terms, unsized_request};
use crate::output;
use crate::report::remark;

/// Flags of `divvy container cdi slice`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy container cdi slice --memory 4GiB --compute 30%
  podman run --device \"$(divvy container cdi slice --memory 4GiB)\" image python train.py
  divvy container cdi slice --memory 4GiB --ttl 1h
  docker run --device divvy.dev/slice=alice image nvidia-smi
  divvy slice delete alice")]
pub struct Args {
    #[command(flatten)]
    wanted: Wanted,
    /// Let containers into this lasting slice, which `divvy slice create` made, in the place of a new one
    #[arg(long, value_name = "SLICE", conflicts_with_all = ["memory", "compute", "cap", "class", "weight", "device", "name", "policy", "on_oom", "oversubscribe"])]
    slice: Option<String>,
    /// How long it waits for its first container, as 60s or 1h; it ends with its last one [default: 60s; with --name it
    /// stays until it is deleted]
    #[arg(long, value_name = "TIME", value_parser = a_second_at_least, conflicts_with = "slice")]
    ttl: Option<Duration>,
    /// Where the CDI file goes
    #[arg(long, value_name = "DIR", default_value = cdi::DYNAMIC)]
    directory: PathBuf,
    /// Print what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// The slice that is asked for.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Wanted {
    /// Its memory: 8GiB, 8192MiB, 8GB, 50% (of the device) [default: the whole device]
    #[arg(long, value_name = "SIZE", value_parser = parse::<MemoryAmount>, allow_hyphen_values = true)]
    pub memory: Option<MemoryAmount>,
    #[command(flatten)]
    pub terms: terms::Flags,
    /// Its name [default: one is made up]
    #[arg(long)]
    pub name: Option<String>,
    /// The parts of NVIDIA's driver: compute, utility, video, graphics, display, ngx, all
    #[arg(long, value_name = "LIST", default_value = "utility,compute", value_parser = capabilities)]
    pub capabilities: Option<Capabilities>,
    /// Whether it ends with this process, until it is told what else it ends with.
    #[arg(skip)]
    pub attended: bool,
    /// It goes with its containers, the first of which has to come within this time.
    #[arg(skip)]
    pub within: Option<Duration>,
}

/// A slice that an engine can give to containers.
#[derive(Clone, Debug, Serialize)]
pub struct Made {
    /// What an engine's `--device` takes.
    pub device: String,
    /// The CDI file.
    pub file: PathBuf,
    /// The slice.
    pub slice: SliceRecord,
}

/// Makes the slice and its file.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    /// A container is made within seconds of its slice, if at all.
    const TTL: Duration = Duration::from_secs(60);
    let wanted = Wanted {
        // A slice with a name is meant to be named again.
        within: args.ttl.or(args.wanted.name.is_none().then_some(TTL)),
        ..args.wanted.clone()
    };
    let made = make(
        &wanted,
        args.slice.as_deref(),
        &args.directory,
        args.dry_run,
        context,
    )?;
    if output::document(context.format, "CdiSlice", &made)? {
        return Ok(0);
    }
    // The name alone, dry or not: it is made for `--device "$(…)"`.
    if args.dry_run {
        remark(&format!("would write {}", made.file.display()));
    }
    output::print(&made.device)?;
    Ok(0)
}

/// Makes a slice, or takes one that is there, and writes its CDI file into `directory`.
///
/// # Errors
/// What keeps the slice from being made or its file from being written; then nothing is left of either.
pub fn make(
    wanted: &Wanted,
    join: Option<&str>,
    directory: &Path,
    dry_run: bool,
    context: &Context,
) -> Result<Made, Fault> {
    let (slice, devices) = find(wanted, join, dry_run, context)?;
    let file = cdi::slice_file(&slice);
    let made = Made {
        device: format!("{}={}", cdi::SLICE_KIND, cdi::slice_name(&slice)),
        file: directory.join(&file),
        slice,
    };
    if dry_run {
        return Ok(made);
    }
    let write = || -> Result<(), Fault> {
        let spec = describe(&made.slice, &devices, wanted, context)?;
        check_free(directory, &file, &spec)?;
        let path = cdi::write(directory, &file, &spec)?;
        let path = std::path::absolute(&path).unwrap_or(path);
        context.agent()?.described(&made.slice.id, &path).map(drop)
    };
    undone(write(), &made.slice, join, context)?;
    Ok(made)
}

/// Writes the CDI file of a slice that is there, unless it is there too. The device, as an engine's `--device` takes it.
///
/// # Errors
/// What keeps the file from being written.
pub fn described(slice: &SliceRecord, directory: &Path, context: &Context) -> Result<String, Fault> {
    let device = format!("{}={}", cdi::SLICE_KIND, cdi::slice_name(slice));
    let file = cdi::slice_file(slice);
    if directory.join(&file).exists() {
        return Ok(device);
    }
    let client = context.agent()?;
    let (_, devices) = existing(&client, &slice.id)?;
    let spec = describe(slice, &devices, &Wanted::default(), context)?;
    check_free(directory, &file, &spec)?;
    let path = cdi::write(directory, &file, &spec)?;
    let path = std::path::absolute(&path).unwrap_or(path);
    client.described(&slice.id, &path)?;
    Ok(device)
}

/// The same for one container, whose configuration gets what the file would say.
///
/// # Errors
/// What keeps the slice from being made; then nothing is left of it.
pub fn for_one(
    wanted: &Wanted,
    join: Option<&str>,
    context: &Context,
) -> Result<(SliceRecord, cdi::Edits), Fault> {
    let (slice, devices) = find(wanted, join, false, context)?;
    let spec = undone(describe(&slice, &devices, wanted, context), &slice, join, context)?;
    let device = spec.devices.into_iter().next();
    Ok((
        slice,
        device.map(|device| device.container_edits).unwrap_or_default(),
    ))
}

/// Passes an outcome on. After a failure a slice that was made goes again.
fn undone<T>(
    outcome: Result<T, Fault>,
    slice: &SliceRecord,
    join: Option<&str>,
    context: &Context,
) -> Result<T, Fault> {
    if outcome.is_err() && join.is_none() {
        let _gone = context.agent().and_then(|client| client.end(&slice.id));
    }
    outcome
}

fn find(
    wanted: &Wanted,
    join: Option<&str>,
    dry_run: bool,
    context: &Context,
) -> Result<(SliceRecord, Vec<DeviceRecord>), Fault> {
    let client = context.agent()?;
    match join {
        Some(which) => existing(&client, which),
        None => created(&client, wanted, dry_run, context),
    }
}

/// The slice as a CDI device, with what containers have of it made ready.
fn describe(
    slice: &SliceRecord,
    devices: &[DeviceRecord],
    wanted: &Wanted,
    context: &Context,
) -> Result<cdi::Spec, Fault> {
    let survey = context.survey(None)?;
    let known = |device: &DeviceRecord| located(device, &survey.devices);
    let capabilities = wanted.capabilities.clone().unwrap_or_default();
    let nodes = cdi::nodes_of(
        &Sysroot::default(),
        &devices.iter().map(known).collect::<Vec<_>>(),
        &capabilities,
    )?;
    let share = Share {
        lib: inject::LIMITER.into(),
        preloads: preloads(context)?,
    };
    let parts = context.agent()?.share(&slice.id, &share)?;
    Ok(cdi::slice_spec(slice, &nodes, &parts))
}

fn created(
    client: &Client,
    wanted: &Wanted,
    dry_run: bool,
    context: &Context,
) -> Result<(SliceRecord, Vec<DeviceRecord>), Fault> {
    let config = &context.config;
    let ask = CreateSlice {
        request: SliceRequest {
            name: wanted.name.clone(),
            memory: or_setting(wanted.memory, config, "memory")?,
            ..wanted.terms.request(config, ModeTerms::default())?
        },
        // Names are made of programs' names.
        command: vec!["container".into()],
        emulated: config.text("emulated").map(str::to_owned),
        visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        lasting: true,
        attended: wanted.attended,
        container_within_ms: wanted
            .within
            .map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX)),
        dry_run,
        ..CreateSlice::default()
    };
    let is_sized = ask.request.memory.is_some();
    let created = client
        .create(&ask)
        .map_err(|fault| if is_sized { fault } else { unsized_request(fault) })?;
    for bypass in &created.slice.bypasses {
        remark(&format!("not enforced: {bypass}"));
    }
    Ok((created.slice, created.devices))
}

fn existing(client: &Client, which: &str) -> Result<(SliceRecord, Vec<DeviceRecord>), Fault> {
    let slice = client.slice(which)?;
    slice.require_lasting("`divvy slice create` makes slices that containers can join")?;
    let devices = client.devices()?.body.items;
    let found: Option<Vec<DeviceRecord>> = slice
        .shares
        .iter()
        .map(|share| {
            let device = devices.iter().find(|device| device.uuid == share.device_uuid);
            device.cloned()
        })
        .collect();
    let found = found.ok_or_else(|| {
        Fault::new(
            Code::UnknownDevice,
            format!("a device of slice `{which}` is gone"),
        )
        .hint("`divvy devices` lists those there are")
    })?;
    Ok((slice, found))
}

/// The device as the kernel shows it, whose nodes are known.
fn located(device: &DeviceRecord, all: &[DeviceRecord]) -> DeviceRecord {
    let mut found = all
        .iter()
        .find(|known| known.uuid == device.uuid)
        .unwrap_or(device)
        .clone();
    if device.kind == DeviceKind::Emulated {
        found.hardware.get_or_insert_default().vendor = Vendor::Emulated;
    }
    found
}

/// Libraries that the image is to load before the limiter, from the configuration: ld.so takes the file's words apart.
fn preloads(context: &Context) -> Result<Vec<String>, Fault> {
    let text = context.config.text("container_preload").unwrap_or_default();
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    if let Some(word) = words
        .iter()
        .find(|word| !word.starts_with('/') || word.contains(':'))
    {
        return Err(Fault::new(
            Code::Config,
            format!("`{word}` cannot be preloaded in containers"),
        )
        .cause("`container_preload` holds absolute paths in the image, with spaces between them"));
    }
    Ok(words)
}
