//! `divvy run`: a program in a slice of its own, or in a lasting one.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use divvy_agent::api::Standing;
use divvy_agent::launch::{self, Helpers, Launch, Plan, Used};
use divvy_model::{
    Bytes, Code, ComputeTerms, DeviceKind, DeviceShare, Fault, Isolation, MemoryAmount, ModeTerms, Policy,
    Selector, SliceRequest,
};

use crate::config::{Config, parse_duration};
use crate::context::{Context, enter_command, in_background};
use crate::flags::{self, Seconds, or_setting, parse, seconds, sharing, terms, usage};
use crate::output::{self, Format};
use crate::report::remark;
use crate::share_words;
use crate::verbs::{accelerators, remote};

/// Flags of `divvy run`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy run --memory 4GiB -- python train.py
  divvy run --memory 25% --compute 30% --name trainer -- ./train --epochs 3
  divvy run --memory 8GiB --compute 20% --class latency -- python serve.py
  divvy run --memory 1GiB --device emulated:l4 -- ./saxpy
  divvy run --memory 20GiB --device 0,1 -- python train.py
  divvy run --slice alice -- python train.py
  divvy run --memory 4GiB --device tcp://gpu7:4815/0 -- python train.py
  divvy run --observe -- nvitop
  divvy run --memory 1GiB --driver ./libcuda.so.1 --dry-run -- ./saxpy")]
pub struct Args {
    /// Memory of the slice: 4GiB, 4096MiB, 4GB, 50% (of the device) [default: the whole device]
    #[arg(short, long, value_name = "SIZE", value_parser = parse::<MemoryAmount>, allow_hyphen_values = true)]
    memory: Option<MemoryAmount>,
    #[command(flatten)]
    terms: terms::Flags,
    #[command(flatten)]
    sharing: sharing::Flags,
    /// Join this lasting slice, by name or id, which `divvy slice create` made: its limit holds over all that runs in it
    #[arg(long, value_name = "SLICE", conflicts_with_all = ["memory", "compute", "cap", "class", "weight", "share", "replicas", "time_slice", "device", "name", "isolation", "on_overuse", "policy", "on_oom", "oversubscribe", "ttl"])]
    slice: Option<String>,
    /// How long the slice lives: 90m, 4h. Then its programs are ended, with TERM and after 10 s with KILL, and a lasting
    /// slice is deleted [default: without an end, or what the agent's `user_ttl` says]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    ttl: Option<Seconds>,
    /// Name of the slice [default: made of the program's]
    #[arg(long)]
    name: Option<String>,
    /// The driver below the limiter: a libcuda.so.1 [default: NVIDIA's, or the emulated one]
    #[arg(long, value_name = "PATH")]
    driver: Option<PathBuf>,
    /// No slice: run a tool such as nvitop, nvtop or gpustat that is to see the whole devices, emulated ones too, and
    /// every process on them
    #[arg(long, conflicts_with_all = ["memory", "compute", "cap", "class", "weight", "share", "replicas", "time_slice", "slice", "name", "driver", "isolation", "on_overuse", "policy"])]
    observe: bool,
    /// Where there is no space: wait in the queue, for so long at most, as 10m [default: for as long as it takes].
    /// First come, first served: no run overtakes another, however small. Ctrl-C leaves the queue
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = wait)]
    wait: Option<Wait>,
    /// Take a whole device for this program alone, with no limiter in its process
    #[arg(long, conflicts_with_all = ["memory", "slice", "compute", "cap", "class", "weight", "share", "replicas", "time_slice", "isolation", "on_overuse", "on_oom", "oversubscribe"])]
    whole: bool,
    /// With `--isolation vm`: the folder with the files of the program's system, or the image of a disk with them
    #[arg(long, value_name = "DIR|IMAGE")]
    root: Option<PathBuf>,
    /// Print what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// The program and its arguments: all that follows the first word that is no flag. `--` may stand before it
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the program.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let config = &context.config;
    if let Some((variable, right)) = divvy_tunnel::misunderstood_network() {
        return Err(Fault::new(Code::Usage, format!("`{variable}` is not understood"))
            .hint(format!("it looks like {right}; or unset it")));
    }
    if let Some(place) = on_another_host(args, config)? {
        return on(&place, args, context);
    }
    if args.observe {
        return observe(args, context);
    }
    if let Some(level) =
        or_setting(args.terms.isolation, config, "isolation")?.filter(|level| in_a_machine(*level, args))
    {
        return in_machine(level, args, context);
    }
    let launch = Launch {
        request: request(args, config)?,
        join: args.slice.clone(),
        wait: args.wait.map(|wait| wait.0),
        command: args.command.clone(),
        driver: args
            .driver
            .clone()
            .or_else(|| config.text("driver").map(PathBuf::from)),
        emulated: config.text("emulated").map(str::to_owned),
    };
    if let Some(variables) = of_accelerators(&launch, context)? {
        return show_or_become(args, context.format, &variables);
    }
    let run = context.run_dir()?;
    let json = context.format == Format::Json;
    let helpers = Helpers {
        serve: &|| in_background(&run),
        enter: &enter_command,
        waiting: &|standing| remark(&in_line(standing)),
        ended: &|why| crate::report::fault(why, json),
        used: &|used| {
            if used.slice.expires_unix_s.is_some_and(|at| at <= now_unix_s()) && !json {
                remark(&format!(
                    "the {} s of this slice are over: its programs were ended",
                    used.slice.terms.ttl_s
                ));
            }
            // For the person at the terminal; a log of a program's own does not change.
            if std::io::stderr().is_terminal() && !json {
                remark(&in_short(used));
            }
        },
    };
    if let Some(flag) = misplaced(&args.command, std::env::args_os().any(|word| word == "--")) {
        remark(&format!(
            "`{flag}` stands behind the program, so the program gets it and Divvy does not; a `--` before the program \
             says that this is meant"
        ));
    }
    // A setting with which the agent would not start is better reported here than in its log.
    config.agent_settings()?;
    if args.dry_run {
        let plan = launch::plan(&run, &launch, &helpers)?;
        show(context.format, &plan)?;
        return Ok(0);
    }
    let outcome = launch::run(&run, &launch, &helpers, |plan| {
        for line in remarks(&launch, plan) {
            remark(&line);
        }
    });
    let is_sized = launch.request.memory.is_some() || launch.request.terms.whole || launch.join.is_some();
    outcome.map_err(|fault| {
        if is_sized {
            fault
        } else {
            flags::unsized_request(fault)
        }
    })
}

/// Whether the program is to run in a virtual machine. `--policy best-effort` goes on without one.
fn in_a_machine(level: Isolation, args: &Args) -> bool {
    let is_strict = args.terms.policy.unwrap_or_default() == Policy::Strict;
    args.root.is_some() || (level == Isolation::Vm && is_strict)
}

/// Runs the program in a machine that has a whole GPU.
fn in_machine(level: Isolation, args: &Args, context: &Context) -> Result<u8, Fault> {
    if level != Isolation::Vm {
        return Err(Fault::new(Code::Usage, "--root is for `--isolation vm` alone")
            .hint("`divvy container` gives slices to containers, which have files of their own"));
    }
    let (compute, sharing) = (&args.terms.compute, &args.sharing);
    let without_effect = [
        ("--memory", args.memory.is_some()),
        ("--compute", compute.compute.is_some()),
        ("--cap", compute.cap.is_some()),
        ("--class", compute.class.is_some()),
        ("--weight", compute.weight.is_some()),
        ("--share", sharing.share.is_some()),
        ("--replicas", sharing.replicas.is_some()),
        ("--time-slice", sharing.time_slice.is_some()),
        ("--oversubscribe", args.terms.oversubscribe.is_some()),
        ("--on-oom", args.terms.on_oom.is_some()),
        ("--driver", args.driver.is_some()),
        ("--ttl", args.ttl.is_some()),
    ];
    if let Some((flag, _)) = without_effect.iter().find(|(_, is_given)| *is_given) {
        return Err(Fault::new(
            Code::Usage,
            format!("{flag} has no effect on a virtual machine, which has a whole GPU"),
        )
        .hint("leave it out, or choose another level: `divvy explain isolation` compares them"));
    }
    let selectors = flags::devices_or_setting(&args.terms.device, &context.config)?;
    let gpu = match selectors.as_slice() {
        [] => None,
        [Selector::Pci(address)] => Some(address.clone()),
        [one] => {
            let devices = context.survey(None)?.devices;
            let device = one.choose(&devices).map_err(|error| {
                Fault::new(Code::UnknownDevice, error.to_string()).hint("`divvy devices` lists them")
            })?;
            Some(device.pci_address.clone())
        }
        _ => {
            return Err(
                Fault::new(Code::Usage, "`--isolation vm` runs a program with one GPU")
                    .hint("`divvy vm run` takes several"),
            );
        }
    };
    let program = super::vm::Program {
        root: args.root.as_deref(),
        gpu,
        command: &args.command,
        dry_run: args.dry_run,
    };
    super::vm::program(&program, context)
}

/// The place of the device that is asked for, where that is another host.
fn on_another_host(args: &Args, config: &Config) -> Result<Option<String>, Fault> {
    // A run that joins a slice, or only looks, asks for no device by a setting.
    if args.terms.device.is_empty() && (args.observe || args.slice.is_some()) {
        return Ok(None);
    }
    let devices = flags::devices_or_setting(&args.terms.device, config)?;
    let mut places = devices.iter().filter_map(|device| match device {
        Selector::Remote(place) => Some(place.clone()),
        _ => None,
    });
    let place = places.next();
    if place.is_some() && devices.len() > 1 {
        return Err(Fault::new(
            Code::Usage,
            "a program on another host's device has that device alone",
        ));
    }
    Ok(place)
}

/// Runs the program on a device of another host, whose agent holds the limits.
fn on(place: &str, args: &Args, context: &Context) -> Result<u8, Fault> {
    let terms = &args.terms;
    let (compute, sharing) = (&terms.compute, &args.sharing);
    let elsewhere = [
        ("--observe", args.observe),
        ("--driver", args.driver.is_some()),
        ("--slice", args.slice.is_some()),
        ("--name", args.name.is_some()),
        ("--whole", args.whole),
        ("--dry-run", args.dry_run),
        ("--cap", compute.cap.is_some()),
        ("--class", compute.class.is_some()),
        ("--weight", compute.weight.is_some()),
        ("--share", sharing.share.is_some()),
        ("--replicas", sharing.replicas.is_some()),
        ("--time-slice", sharing.time_slice.is_some()),
        ("--isolation", terms.isolation.is_some()),
        ("--policy", terms.policy.is_some()),
        ("--oversubscribe", terms.oversubscribe.is_some()),
        ("--on-oom", terms.on_oom.is_some()),
        ("--on-overuse", terms.on_overuse.is_some()),
        ("--ttl", args.ttl.is_some()),
    ];
    if let Some((flag, _)) = elsewhere.iter().find(|(_, is_given)| *is_given) {
        return Err(Fault::new(
            Code::Usage,
            format!("{flag} has no effect on a device of another host: only --memory, --compute and --wait have one"),
        )
        .hint("the server decides the rest: see `divvy remote serve --help` there"));
    }
    remote::run_program(
        &remote::Asked {
            place,
            memory: args.memory.map(|memory| memory.to_string()),
            compute: terms.compute.compute.map(|compute| compute.to_string()),
            wait: args.wait.map(|wait| wait.0),
            command: &args.command,
        },
        context,
    )
}

/// The variables of a program on AMD's devices; None for every other program.
fn of_accelerators(launch: &Launch, context: &Context) -> Result<Option<Vec<(String, OsString)>>, Fault> {
    let elsewhere = launch.join.is_some() || launch.driver.is_some() || launch.emulated.is_some();
    if elsewhere || !accelerators::are_here() {
        return Ok(None);
    }
    let request = &launch.request;
    let selectors: Vec<Selector> = request.selectors().cloned().collect();
    let devices = context.survey(None)?.devices;
    let told = accelerators::variables(
        &devices,
        &selectors,
        request.terms.isolation,
        request.terms.compute.share,
    )?;
    if told.is_some() && request.memory.is_some() && request.terms.policy == Policy::Strict {
        return Err(Fault::new(
            Code::NotEnforceable,
            "the `env` isolation enforces no memory limit",
        )
        .hint("leave --memory out; `--policy best-effort` runs the program without it"));
    }
    let text = |(name, value): (&str, String)| (name.to_owned(), value.into());
    Ok(told.map(|variables| variables.into_iter().map(text).collect()))
}

fn show_or_become(args: &Args, format: Format, variables: &[(String, OsString)]) -> Result<u8, Fault> {
    if !args.dry_run {
        remark("variables choose what a program is shown; they are no isolation: it can change them");
        return Err(launch::become_program(&args.command, variables));
    }
    show_environment(args, format, variables)
}

fn observe(args: &Args, context: &Context) -> Result<u8, Fault> {
    // The device that is asked for may be emulated on demand: naming it shows it.
    let emulated = match args.terms.device.first() {
        Some(Selector::Emulated(product)) => Some(product.clone()),
        _ => {
            let inventory = context.inventory()?;
            inventory.emulated.first().map(|device| device.spec.clone())
        }
    };
    let run = context.run_dir()?;
    if !args.dry_run {
        return Err(launch::observe(&run, emulated.as_deref(), &args.command));
    }
    let environment = launch::observation(&run, emulated.as_deref())?;
    show_environment(args, context.format, &environment)
}

/// A flag of ours among the program's words. Behind `--` all of them are surely the program's.
fn misplaced(command: &[OsString], is_marked: bool) -> Option<&str> {
    const OURS: [&str; 5] = ["--memory", "--compute", "--device", "--slice", "--isolation"];
    let words = command.iter().skip(1).filter_map(|word| word.to_str());
    let mut flags = words.filter(|word| OURS.contains(&word.split('=').next().unwrap_or(word)));
    flags.next().filter(|_| !is_marked)
}

/// What `--dry-run` tells of a program that runs without a slice.
fn show_environment(args: &Args, format: Format, environment: &[(String, OsString)]) -> Result<u8, Fault> {
    if output::document(format, "Environment", Observation::of(environment))? {
        return Ok(0);
    }
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let mut text = format!("would run    {} without a slice\n", words.join(" "));
    for (name, value) in environment {
        text.push_str(&format!("environment  {name}={}\n", value.to_string_lossy()));
    }
    output::print(&text)?;
    Ok(0)
}

/// The variables that `--dry-run` tells of a program without a slice.
#[derive(serde::Serialize)]
struct Observation<'a> {
    environment: std::collections::BTreeMap<&'a str, String>,
}

impl<'a> Observation<'a> {
    fn of(environment: &'a [(String, OsString)]) -> Self {
        let environment = environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_string_lossy().into_owned()))
            .collect();
        Self { environment }
    }
}

fn request(args: &Args, config: &Config) -> Result<SliceRequest, Fault> {
    let mut request = args.terms.request(config, args.sharing.terms(config)?)?;
    request.name.clone_from(&args.name);
    request.terms.ttl_s = args.ttl.map_or(0, |time| time.0);
    let isolation = or_setting(args.terms.isolation, config, "isolation")?;
    request.terms.isolation = isolation.unwrap_or_default();
    request.isolation_unasked = isolation.is_none();
    if args.whole {
        request.terms.whole = true;
        request.terms.compute = ComputeTerms::default();
        request.terms.sharing = ModeTerms::default();
    } else {
        request.memory = or_setting(args.memory, config, "memory")?;
    }
    Ok(request)
}

/// Seconds since 1970.
fn now_unix_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// `peak 3.1 GiB of 4 GiB, 2 allocations refused, 41 s of the device`.
fn in_short(used: &Used) -> String {
    let share =
        |share: &DeviceShare| format!("peak {} of {}", share.memory_peak_bytes, share.memory_limit_bytes);
    let mut parts: Vec<String> = used.slice.shares.iter().map(share).collect();
    let refused = used.slice.shares.iter();
    match refused.fold(0_u64, |sum, share| sum.saturating_add(share.refused_allocations)) {
        0 => {}
        1 => parts.push("1 allocation refused".into()),
        count => parts.push(format!("{count} allocations refused")),
    }
    if let Some(time) = used.device_time {
        parts.push(format!("{:.1} s of the device", time.as_secs_f64()));
    }
    parts.join(", ")
}

/// Where one stands, in words.
fn in_line(standing: &Standing) -> String {
    let why = match &standing.why {
        None => String::new(),
        Some(why) => {
            let mut text = format!(": {why}");
            for cause in &why.causes {
                text.push_str(&format!("; {cause}"));
            }
            text
        }
    };
    format!(
        "waiting for room, place {} of {}{why}",
        standing.place, standing.count
    )
}

/// For how long to wait in the queue; None for as long as it takes.
#[derive(Clone, Copy, Debug)]
struct Wait(Option<Duration>);

fn wait(text: &str) -> Result<Wait, Fault> {
    if text.is_empty() {
        return Ok(Wait(None));
    }
    parse_duration(text).map(|limit| Wait(Some(limit))).map_err(usage)
}

/// What the user should know and did not ask for.
fn remarks(launch: &Launch, plan: &Plan) -> Vec<String> {
    let mut remarks = plan.remarks.clone();
    let chosen = launch.request.device.is_some() || launch.emulated.is_some() || launch.join.is_some();
    if plan.device.kind == DeviceKind::Emulated && !chosen {
        remarks.push(format!(
            "no GPU here: this runs on an emulated {}, on the CPU",
            plan.device
                .profile
                .as_deref()
                .unwrap_or("GPU")
                .to_ascii_uppercase()
        ));
    }
    for bypass in &plan.slice.bypasses {
        remarks.push(format!("not enforced: {bypass}"));
    }
    remarks
}

fn show(format: Format, plan: &Plan) -> Result<(), Fault> {
    #[derive(serde::Serialize)]
    struct Shown<'a> {
        slice: &'a divvy_model::SliceRecord,
        device: &'a divvy_model::DeviceRecord,
        devices: &'a [divvy_model::DeviceRecord],
        driver: String,
        environment: std::collections::BTreeMap<&'a str, String>,
    }
    let environment = plan
        .environment
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_string_lossy().into_owned()))
        .collect();
    let shown = Shown {
        slice: &plan.slice,
        device: &plan.device,
        devices: &plan.devices,
        driver: plan.driver.path.display().to_string(),
        environment,
    };
    if output::document(format, "RunPlan", &shown)? {
        return Ok(());
    }
    let slice = &plan.slice;
    let context = match slice.shares.first.context_bytes {
        Bytes(0) => String::new(),
        bytes => format!(", of which each context takes {bytes}"),
    };
    let memory: Vec<String> = slice
        .shares
        .iter()
        .map(|share| share.memory_limit_bytes.to_string())
        .collect();
    let terms = slice.terms.compute;
    let mut compute = match terms.is_default() {
        true => String::new(),
        false => format!("compute      {terms}\n"),
    };
    if let Some(words) = share_words::in_words(slice) {
        compute.push_str(&format!("sharing      {words}\n"));
    }
    let devices: String = plan
        .devices
        .iter()
        .map(|device| format!("device       {} ({})\n", device.name, device.uuid))
        .collect();
    let mut text = format!(
        "would run    {}\nslice        {}\n{devices}memory       {}{context}\n{compute}isolation    {}: not \
         protected against {}\ndriver       {} ({})\n",
        slice.command.join(" "),
        slice.name,
        memory.join(" and "),
        slice.terms.isolation,
        slice.terms.isolation.not_protected(),
        shown.driver,
        plan.driver.origin,
    );
    for (name, value) in &shown.environment {
        text.push_str(&format!("environment  {name}={value}\n"));
    }
    for bypass in &slice.bypasses {
        text.push_str(&format!("not enforced {bypass}\n"));
    }
    output::print(&text)
}
