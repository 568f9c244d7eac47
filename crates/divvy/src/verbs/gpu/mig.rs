//! `divvy gpu mig`: what devices are divided into, what it would take to divide them otherwise, and doing it.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use clap::Subcommand;
use divvy_agent::Client;
use divvy_host::mig::{
    Alone, DevicePlan, Geometry, GpuInstance, MigDevice, MigDriver, MigFile, MigWithTimeout, NvmlMig,
    Occupancy, Shapes, Strategy, Target, Tenant, Wanted, apply, fill, occupancy, parse_list, part_name,
    plan_devices, plan_pool, resources, targets,
};
use divvy_model::{Bytes, Code, Fault, MIG_PRODUCTS, MigProduct};
use serde::Serialize;

use crate::context::{Context, with_timeout};
use crate::flags::word;
use crate::output::{self, Format};
use crate::report::remark;

/// Flags of `divvy gpu mig`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy gpu mig list
  divvy gpu mig plan --want 3g.40gb,1g.10gb,1g.10gb
  divvy gpu mig apply --device 0 --instances 3g.40gb,2g.20gb,1g.10gb:6 --dry-run
  divvy gpu mig apply --file mig.yaml --config all-balanced --yes
  divvy gpu mig watch --file mig.yaml --config all-balanced --yes")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what each device holds, as a map, and what it offers
    List(List),
    /// Find layouts that hold instances over several devices, with the fewest changes
    Plan(Plan),
    /// Bring devices to what a file or a list asks for
    Apply(Apply),
    /// Keep devices as a file asks for: apply it now, and again whenever it changes
    Watch(Watch),
}

/// Flags of `divvy gpu mig list`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy gpu mig list
  divvy gpu mig list --strategy mixed
  divvy gpu mig list --product a30")]
struct List {
    /// Also show the resources that a scheduler is offered: none, single or mixed
    #[arg(long, value_name = "STRATEGY", value_parser = word::<Strategy>)]
    strategy: Option<Strategy>,
    /// Show a product's table in the place of this machine: a30, a100-40gb, a100-80gb, h100, h200
    #[arg(long, value_name = "NAME")]
    product: Option<String>,
}

/// Flags of `divvy gpu mig plan`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy gpu mig plan --want 3g.40gb,1g.10gb
  divvy gpu mig plan --want 14,14,14,14 --product a30
  divvy gpu mig plan --want 7g.80gb,7g.80gb --product h100 --count 2")]
struct Plan {
    /// The instances, by name or id, beside those in use
    #[arg(long, value_name = "LIST")]
    want: String,
    /// Plan for empty devices of this product in the place of this machine's
    #[arg(long, value_name = "NAME")]
    product: Option<String>,
    /// How many of them
    #[arg(long, value_name = "N", default_value_t = 1, requires = "product", value_parser = clap::value_parser!(u32).range(1..=1024))]
    count: u32,
}

/// What devices are to become.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Layout {
    /// A file in mig-parted's format
    #[arg(long, short, value_name = "PATH", conflicts_with_all = ["device", "instances"])]
    file: Option<PathBuf>,
    /// Which of its configurations [default: the only one]
    #[arg(long, short, value_name = "NAME", requires = "file")]
    config: Option<String>,
    /// One device, by its index
    #[arg(long, value_name = "INDEX", requires = "instances")]
    device: Option<u32>,
    /// All that the device is to hold, by name or id, `:N` for the memory slice it begins at, `1c.` before a name for a
    /// compute instance smaller than its GPU instance; `none` turns MIG off
    #[arg(long, value_name = "LIST", requires = "device")]
    instances: Option<String>,
}

/// Flags of `divvy gpu mig apply`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy gpu mig apply --device 0 --instances 19,19,14,9 --dry-run
  divvy gpu mig apply --device 0 --instances 1g.6gb,1g.6gb,2g.12gb:2 --yes
  divvy gpu mig apply --device 0 --instances 1c.3g.40gb,2c.3g.40gb,3g.40gb --yes
  divvy gpu mig apply --file mig.yaml --config all-balanced --yes")]
struct Apply {
    #[command(flatten)]
    layout: Layout,
    /// Print the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove instances without asking
    #[arg(long, short)]
    yes: bool,
}

/// Flags of `divvy gpu mig watch`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy gpu mig watch --file /etc/divvy/mig.yaml --config all-balanced --yes")]
struct Watch {
    /// A file in mig-parted's format
    #[arg(long, short, value_name = "PATH")]
    file: PathBuf,
    /// Which of its configurations [default: the only one]
    #[arg(long, short, value_name = "NAME")]
    config: Option<String>,
    /// Seconds between looks
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: u64,
    /// Remove instances without asking
    #[arg(long, short)]
    yes: bool,
}

/// Lists, plans, applies or watches.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::List(args) => list(args, context),
        Verb::Plan(args) => plan(args, context),
        Verb::Apply(args) => change(args, context),
        Verb::Watch(args) => watch(args, context),
    }
}

impl Args {
    /// Whether this changes devices.
    pub fn changes(&self) -> bool {
        matches!(&self.verb, Verb::Apply(args) if !args.dry_run)
    }
}

fn product(name: &str) -> Result<&'static MigProduct, Fault> {
    MigProduct::of_key(name).ok_or_else(|| {
        let known: Vec<&str> = MIG_PRODUCTS.iter().map(|product| product.key).collect();
        Fault::new(Code::MigRequest, format!("`{name}` is no product with MIG"))
            .hint(format!("choose {}", known.join(", ")))
    })
}

/// An empty device of a product, for plans away from the machine.
fn empty(product: &MigProduct, index: u32) -> MigDevice {
    MigDevice {
        index,
        uuid: String::new(),
        name: product.key.to_ascii_uppercase(),
        pci_device: product.pci_devices[0],
        mode: Some(true),
        geometry: Geometry::from(product),
        instances: Vec::new(),
        tenants: Vec::new(),
    }
}

#[derive(Serialize)]
struct ShownProfile<'a> {
    name: &'a str,
    id: u32,
    max: u8,
    memory_bytes: Bytes,
    sm_count: u32,
    memory_slices: u8,
    starts: &'a [u8],
}

#[derive(Serialize)]
struct ShownInstance<'a> {
    id: u32,
    profile: String,
    start: u8,
    tenants: Vec<String>,
    compute: Vec<ShownCompute<'a>>,
}

#[derive(Serialize)]
struct ShownCompute<'a> {
    id: u32,
    profile: String,
    uuid: Option<&'a str>,
    tenants: Vec<String>,
}

#[derive(Serialize)]
struct ShownDevice<'a> {
    index: u32,
    uuid: &'a str,
    name: &'a str,
    mig_mode: Option<bool>,
    map: String,
    instances: Vec<ShownInstance<'a>>,
    profiles: Vec<ShownProfile<'a>>,
}

fn shown(device: &MigDevice) -> ShownDevice<'_> {
    let shapes = Shapes::new(device.geometry.clone());
    ShownDevice {
        index: device.index,
        uuid: &device.uuid,
        name: &device.name,
        mig_mode: device.mode,
        map: shapes.map(occupancy(&shapes, device).current),
        instances: device
            .instances
            .iter()
            .map(|instance| shown_instance(&device.geometry, instance))
            .collect(),
        profiles: device
            .geometry
            .profiles
            .iter()
            .map(|profile| ShownProfile {
                name: &profile.name,
                id: profile.id,
                max: profile.max,
                memory_bytes: Bytes(profile.memory_bytes),
                sm_count: profile.sm_count,
                memory_slices: profile.size,
                starts: &profile.starts,
            })
            .collect(),
    }
}

fn shown_instance<'a>(geometry: &Geometry, instance: &'a GpuInstance) -> ShownInstance<'a> {
    let mut profiles = geometry.profiles.iter();
    let kind = profiles.find(|profile| profile.id == instance.profile_id);
    let profile = kind.map_or_else(|| instance.profile_id.to_string(), |kind| kind.name.clone());
    let whole = kind.map_or(0, |kind| kind.compute_slices);
    let compute = instance.compute.iter().map(|compute| ShownCompute {
        id: compute.id,
        profile: part_name(&profile, compute.slices, whole),
        uuid: compute.uuid.as_deref(),
        tenants: compute.tenants.iter().map(ToString::to_string).collect(),
    });
    ShownInstance {
        id: instance.id,
        start: instance.start,
        tenants: instance.tenants().map(ToString::to_string).collect(),
        compute: compute.collect(),
        profile,
    }
}

/// What changes MIG here: NVIDIA's driver, or that of the emulated devices where they stand in its place.
fn driver(context: &Context) -> Result<MigWithTimeout, Fault> {
    let run = context.peek();
    let driver = match context.config.text("emulated") {
        Some(spec) => NvmlMig::emulated(spec, run.path()),
        None => with_timeout(NvmlMig::open),
    }?;
    Ok(MigWithTimeout::over(
        driver,
        MigWithTimeout::LOOK,
        MigWithTimeout::CHANGE,
    ))
}

/// Waits until no other process changes the devices that [`driver`] changes.
fn alone(context: &Context) -> Result<Alone, Fault> {
    match context.config.text("emulated") {
        Some(_) => {
            // Made where it is missing, and looked at whose it is: the devices' own state is about to lie there.
            let run = context.run_dir()?;
            Alone::wait(&run.path().join(Alone::NAME), Alone::TIMEOUT)
        }
        None => Alone::wait(Path::new(Alone::OF_MACHINE), Alone::TIMEOUT),
    }
}

/// The devices, with the users of each: programs, as the driver tells, and slices, as the agent does, in which nothing
/// need run just now.
fn devices(driver: &mut dyn MigDriver, agent: Option<Client>) -> Result<Vec<MigDevice>, Fault> {
    let mut devices = driver.devices()?;
    let slices = match agent {
        Some(agent) => agent.slices()?.body.items,
        None => Vec::new(),
    };
    for slice in &slices {
        for share in slice.shares.iter() {
            let tenant = Tenant {
                pid: None,
                name: slice.name.clone(),
            };
            for device in &mut devices {
                let mut compute = device
                    .instances
                    .iter_mut()
                    .flat_map(|instance| &mut instance.compute);
                if device.uuid == share.device_uuid {
                    device.tenants.push(tenant.clone());
                } else if let Some(compute) =
                    compute.find(|compute| compute.uuid.as_ref() == Some(&share.device_uuid))
                {
                    compute.tenants.push(tenant.clone());
                }
            }
        }
    }
    Ok(devices)
}

fn list(args: &List, context: &Context) -> Result<u8, Fault> {
    let devices = match &args.product {
        Some(name) => vec![empty(product(name)?, 0)],
        None => devices(&mut driver(context)?, context.agent_if_any())?,
    };
    let offered = args
        .strategy
        .map(|strategy| resources(&devices, strategy))
        .transpose()?;
    #[derive(Serialize)]
    struct Body<'a> {
        items: Vec<ShownDevice<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        resources: Option<std::collections::BTreeMap<String, u32>>,
    }
    let format = context.format;
    let body = Body {
        items: devices.iter().map(shown).collect(),
        resources: offered,
    };
    if output::document(format, "MigDeviceList", &body)? {
        return Ok(0);
    }
    let mut text = String::new();
    for device in &body.items {
        let mode = match device.mig_mode {
            Some(true) => "MIG on",
            Some(false) => "MIG off",
            None => "no MIG",
        };
        text.push_str(&format!(
            "{} {}  {}  {mode}\n",
            device.index, device.name, device.uuid
        ));
        if device.mig_mode.is_none() || format == Format::Name {
            continue;
        }
        text.push_str(&format!("  {}\n", device.map));
        for instance in &device.instances {
            text.push_str(&format!(
                "  instance {:<3} {:<12} at {}  {}\n",
                instance.id,
                instance.profile,
                instance.start,
                users(&instance.tenants)
            ));
            let filled = matches!(instance.compute.as_slice(), [one] if one.profile == instance.profile);
            if instance.compute.is_empty() {
                text.push_str("    no compute instance: no program can run here\n");
            }
            for compute in instance.compute.iter().filter(|_| !filled) {
                text.push_str(&format!(
                    "    compute {:<3} {:<15} {}\n",
                    compute.id,
                    compute.profile,
                    users(&compute.tenants)
                ));
            }
        }
        for profile in &device.profiles {
            let starts: Vec<String> = profile.starts.iter().map(u8::to_string).collect();
            text.push_str(&format!(
                "  offers {:<12} id {:<3} {:>9}  {:>3} SMs  at most {}, {} slices at {}\n",
                profile.name,
                profile.id,
                profile.memory_bytes.to_string(),
                profile.sm_count,
                profile.max,
                profile.memory_slices,
                starts.join(" ")
            ));
        }
    }
    for (resource, count) in body.resources.iter().flatten() {
        text.push_str(&format!("{resource}: {count}\n"));
    }
    print(&text)?;
    Ok(0)
}

/// For people: a program chooses its own name, and a terminal obeys what is in it.
fn print(text: &str) -> Result<(), Fault> {
    output::print(&text.replace(|c: char| c.is_control() && c != '\n', "?"))
}

fn users(tenants: &[String]) -> String {
    match tenants {
        [] => "free".into(),
        some => some.join(", "),
    }
}

/// The instances that hold what is wanted; parts of one profile share some. The first device with such a profile tells
/// how many parts it holds.
fn whole_instances(wanted: &[Wanted], devices: &[&MigDevice]) -> Result<Vec<String>, Fault> {
    let mut names: Vec<String> = Vec::new();
    let parts = wanted.iter().filter(|one| one.part.is_some());
    let mut parts: Vec<Wanted> = parts.cloned().collect();
    for device in devices {
        let (here, elsewhere): (Vec<Wanted>, _) = parts
            .into_iter()
            .partition(|one| device.geometry.profile(&one.profile).is_some());
        parts = elsewhere;
        let filled = fill(&device.geometry, &here, &format!("GPU {}", device.index))?;
        let profiles = filled
            .iter()
            .map(|one| device.geometry.profiles[one.profile].name.clone());
        names.extend(profiles);
    }
    let others = wanted.iter().filter(|one| one.part.is_none());
    let rest = others.chain(&parts).map(|one| one.profile.clone());
    Ok(rest.chain(names).collect())
}

fn plan(args: &Plan, context: &Context) -> Result<u8, Fault> {
    let devices = match &args.product {
        Some(name) => {
            let product = product(name)?;
            (0..args.count).map(|index| empty(product, index)).collect()
        }
        None => devices(&mut driver(context)?, context.agent_if_any())?,
    };
    let wanted = parse_list(&args.want)?;
    if let Some(placed) = wanted.iter().find(|one| one.start.is_some()) {
        return Err(Fault::new(
            Code::MigRequest,
            format!("a plan chooses the place of {} itself", placed.profile),
        )
        .hint("leave out the colon and what follows; `divvy gpu mig apply` takes places"));
    }
    let divisible: Vec<&MigDevice> = devices
        .iter()
        .filter(|device| device.mode == Some(true))
        .collect();
    if divisible.is_empty() {
        return Err(Fault::new(Code::NoMig, "no device here has MIG turned on").hint(
            "`divvy gpu mig apply` turns it on; `--product h100 --count 8` plans for devices that are elsewhere",
        ));
    }
    let pool: Vec<(Rc<Shapes>, Occupancy)> = divisible
        .iter()
        .map(|device| {
            let shapes = Rc::new(Shapes::new(device.geometry.clone()));
            let now = occupancy(&shapes, device);
            (shapes, now)
        })
        .collect();
    let names = whole_instances(&wanted, &divisible)?;
    let plan = plan_pool(&pool, &names);
    #[derive(Serialize)]
    struct Item<'a> {
        index: u32,
        uuid: &'a str,
        before: String,
        after: String,
        destroyed: u32,
    }
    #[derive(Serialize)]
    struct Missing {
        profile: String,
        because: String,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        items: Vec<Item<'a>>,
        cannot_fit: Vec<Missing>,
    }
    let items = divisible.iter().zip(&plan.devices).map(|(device, placed)| Item {
        index: device.index,
        uuid: &device.uuid,
        before: placed.shapes.map(placed.now.current),
        after: placed.shapes.map(placed.layout),
        destroyed: placed.destroyed,
    });
    let missing = plan.unplaced.iter().map(|unplaced| Missing {
        profile: unplaced.profile.clone(),
        because: match unplaced.blocked_by {
            _ if !unplaced.known => "no device here has such a profile".into(),
            Some((at, places)) => {
                let shapes = &pool[at].0;
                let held = shapes.held(places);
                let names: Vec<String> = held
                    .map(|place| format!("{}:{}", shapes.geometry.profiles[place.profile].name, place.start))
                    .collect();
                let tenants: Vec<String> = divisible[at]
                    .instances
                    .iter()
                    .flat_map(|instance| instance.tenants().map(ToString::to_string))
                    .collect();
                format!(
                    "it would fit on GPU {} were {} free (in use there: {})",
                    divisible[at].index,
                    names.join(" and "),
                    tenants.join(", ")
                )
            }
            None => "the devices are full: it would fit on one device more".into(),
        },
    });
    let body = Body {
        cannot_fit: missing.collect(),
        items: items.collect(),
    };
    let failed = !body.cannot_fit.is_empty();
    if !output::document(context.format, "MigPlan", &body)? {
        let mut text = String::new();
        for item in &body.items {
            text.push_str(&format!(
                "{} before {}\n{} after  {}\n",
                item.index, item.before, item.index, item.after
            ));
            if item.destroyed > 0 {
                text.push_str(&format!("  removes {} free instances\n", item.destroyed));
            }
        }
        for missing in &body.cannot_fit {
            text.push_str(&format!("cannot fit {}: {}\n", missing.profile, missing.because));
        }
        print(&text)?;
    }
    Ok(u8::from(failed))
}

fn change(args: &Apply, context: &Context) -> Result<u8, Fault> {
    // Errors of the request are reported before errors of the machine.
    let file = args.layout.file.as_deref().map(MigFile::read).transpose()?;
    let list = args
        .layout
        .instances
        .as_deref()
        .filter(|text| *text != "none")
        .map(parse_list)
        .transpose()?;
    let mut driver = driver(context)?;
    let _alone = (!args.dry_run).then(|| alone(context)).transpose()?;
    let devices = devices(&mut driver, context.agent_of_slices()?)?;
    let targets = match (&file, args.layout.device) {
        (Some(file), _) => targets(file.config(args.layout.config.as_deref())?, &devices)?,
        (None, Some(device)) => vec![Target {
            device,
            enabled: list.is_some(),
            wanted: list.unwrap_or_default(),
        }],
        (None, None) => Vec::new(),
    };
    let plans = plan_devices(&devices, &targets)?;
    perform(&mut driver, &plans, args.dry_run, args.yes, context.format)?;
    Ok(0)
}

#[derive(Serialize)]
struct ShownStep {
    device: u32,
    change: String,
}

/// Shows the plan and, where it may, does it.
fn perform(
    driver: &mut dyn MigDriver,
    plans: &[DevicePlan],
    dry_run: bool,
    yes: bool,
    format: Format,
) -> Result<(), Fault> {
    let steps: Vec<_> = plans.iter().flat_map(|plan| &plan.steps).collect();
    let removes = steps.iter().any(|step| step.change.removes());
    if removes && !yes && !dry_run {
        return Err(Fault::new(Code::Usage, "this removes MIG instances")
            .hint("look at it with --dry-run, and add --yes to do it"));
    }
    let outcome = match dry_run {
        true => None,
        false => Some(apply(driver, plans)?),
    };
    let items: Vec<ShownStep> = steps
        .iter()
        .map(|step| ShownStep {
            device: step.device,
            change: step.change.to_string(),
        })
        .collect();
    #[derive(Serialize)]
    struct Body {
        applied: bool,
        items: Vec<ShownStep>,
    }
    let word = if dry_run { "would " } else { "" };
    let mut text = String::new();
    for item in &items {
        text.push_str(&format!("GPU {}: {word}{}\n", item.device, item.change));
    }
    if items.is_empty() {
        text.push_str("nothing to change\n");
    }
    let body = Body {
        applied: !dry_run,
        items,
    };
    if !output::document(format, "MigChanges", &body)? {
        for plan in plans {
            text.push_str(&format!(
                "{} {}\n",
                plan.device.index,
                plan.shapes.map(plan.after)
            ));
        }
        print(&text)?;
    }
    for uuid in outcome.iter().flat_map(|outcome| &outcome.waiting) {
        remark(&format!(
            "{uuid}: the mode changes with the next reset of the device; apply again after it"
        ));
    }
    Ok(())
}

fn watch(args: &Watch, context: &Context) -> Result<u8, Fault> {
    let mut driver = driver(context)?;
    let mut last: Option<String> = None;
    loop {
        // A tenant may leave, a device may come back from a reset: looked at again whether or not the file changed.
        let told = match once(&mut driver, args, context) {
            Ok(()) => None,
            Err(fault) => Some(fault.message),
        };
        if told != last {
            if let Some(message) = &told {
                remark(&format!("{message}; trying again every {} s", args.interval));
            }
            last = told;
        }
        std::thread::sleep(Duration::from_secs(args.interval));
    }
}

fn once(driver: &mut dyn MigDriver, args: &Watch, context: &Context) -> Result<(), Fault> {
    let file = MigFile::read(&args.file)?;
    let _alone = alone(context)?;
    let devices = devices(driver, context.agent_of_slices()?)?;
    let plans = plan_devices(
        &devices,
        &targets(file.config(args.config.as_deref())?, &devices)?,
    )?;
    if plans.iter().all(|plan| plan.steps.is_empty()) {
        return Ok(());
    }
    perform(driver, &plans, false, args.yes, context.format)
}
