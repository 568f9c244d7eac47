//! `divvy slice`: lasting slices, which stay while nothing runs in them.

use std::time::Duration;

use clap::Subcommand;
use divvy_agent::RunDir;
use divvy_agent::api::CreateSlice;
use divvy_agent::bypass::containers::members as container_members;
use divvy_container::running::Processes;
use divvy_model::{
    ANY_POD, Code, DeviceRecord, DeviceShare, Fault, LifetimeAnchor, MemoryAmount, SliceRecord, SliceRequest,
};

use crate::config::parse_duration;
use crate::context::Context;
use crate::flags::{Seconds, parse, seconds, sharing, terms};
use crate::output::{self, Format};
use crate::report::remark;
use crate::verbs::kill::end_all;
use crate::verbs::ps;

/// Flags of `divvy slice`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy slice create alice --memory 8GiB
  divvy slice create bob --memory 8GiB --compute 25% --cap hard
  divvy slice create shared --memory 8GiB --pods=train,serve
  divvy slice create lesson --memory 2GiB --ttl 90m --idle-ttl 15m
  divvy run --slice alice -- python train.py
  divvy slice list
  divvy slice delete alice")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a slice that stays until it is deleted; `divvy run --slice NAME` runs programs in it
    Create(Create),
    /// List the lasting slices
    #[command(alias = "ls")]
    List(List),
    /// Delete lasting slices
    #[command(alias = "rm")]
    Delete(Delete),
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Its name: 1 to 63 letters, digits, `-`, `_` or `.`
    name: String,
    /// Its memory: 8GiB, 8192MiB, 8GB, 50% (of the device)
    #[arg(short, long, value_name = "SIZE", value_parser = parse::<MemoryAmount>, allow_hyphen_values = true)]
    memory: MemoryAmount,
    #[command(flatten)]
    terms: terms::Flags,
    #[command(flatten)]
    sharing: sharing::Flags,
    /// How long the slice lives: 90m, 4h. Then its programs are ended, with TERM and after 10 s with KILL, and a lasting
    /// slice is deleted [default: without an end, or what the agent's `user_ttl` says]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    ttl: Option<Seconds>,
    /// How long it stays while nothing runs in it: 30m [default: until it is deleted, or what the agent's `idle_ttl` says]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    idle_ttl: Option<Seconds>,
    /// Let pods and containers join it that name it in the annotation divvy.dev/slice: those of pods in these namespaces, or
    /// all where none is given [default: none may]
    #[arg(long, value_name = "NAMESPACES", num_args = 0..=1, require_equals = true, default_missing_value = ANY_POD)]
    pods: Option<String>,
    /// Print what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct List {
    /// Print only the names
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, clap::Args)]
pub struct Delete {
    /// Slices, by name, id or unique prefix of an id
    #[arg(required = true, value_name = "SLICE")]
    slices: Vec<String>,
    /// End the programs that run in them first; without it, a slice in use is not deleted
    #[arg(short = 'f', long, visible_alias = "force", short_alias = 'y')]
    yes: bool,
    /// How long programs may take to end after TERM
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    grace: Duration,
    /// Print what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Does it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::Create(create) => make(create, context),
        Verb::List(list) => show_all(list, context),
        Verb::Delete(delete) => remove(delete, context),
    }
}

fn make(args: &Create, context: &Context) -> Result<u8, Fault> {
    let config = &context.config;
    let mut request = SliceRequest {
        name: Some(args.name.clone()),
        memory: Some(args.memory),
        ..args.terms.request(config, args.sharing.terms(config)?)?
    };
    request.terms.ttl_s = args.ttl.map_or(0, |time| time.0);
    request.terms.idle_ttl_s = args.idle_ttl.map_or(0, |time| time.0);
    let ask = CreateSlice {
        request,
        emulated: config.text("emulated").map(str::to_owned),
        visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        lasting: true,
        pods: pods(args.pods.as_deref())?,
        dry_run: args.dry_run,
        ..CreateSlice::default()
    };
    let created = context.agent()?.create(&ask)?;
    let slice = &created.slice;
    for bypass in &slice.bypasses {
        remark(&format!("not enforced: {bypass}"));
    }
    if context.format == Format::Name {
        output::print(&slice.name)?;
    } else if !output::document(context.format, "Slice", slice)? {
        let would = if args.dry_run { "would create" } else { "created" };
        let of = |(share, device): (&DeviceShare, &DeviceRecord)| {
            format!(
                "{} of {} ({})",
                share.memory_limit_bytes, device.name, device.uuid
            )
        };
        let parts: Vec<String> = slice.shares.iter().zip(&created.devices).map(of).collect();
        output::print(&format!("{would} {}: {}", slice.name, parts.join(" and ")))?;
    }
    Ok(0)
}

/// The namespaces of `--pods=train,serve`; `*` for the flag alone.
fn pods(words: Option<&str>) -> Result<Vec<String>, Fault> {
    let label = |word: &&str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        *word == ANY_POD || ((1..=63).contains(&word.len()) && word.bytes().all(plain))
    };
    let words: Vec<&str> = words.map_or_else(Vec::new, |words| words.split(',').collect());
    match words.iter().find(|word| !label(word)) {
        Some(word) => Err(
            Fault::new(Code::Usage, format!("`{word}` is no namespace of pods"))
                .hint("write --pods=train,serve for two namespaces, or --pods for all"),
        ),
        None => Ok(words.into_iter().map(str::to_owned).collect()),
    }
}

fn show_all(args: &List, context: &Context) -> Result<u8, Fault> {
    let format = if args.quiet { Format::Name } else { context.format };
    let (mut slices, devices) = match context.agent_of_slices()? {
        Some(agent) => (agent.slices()?.body.items, agent.devices()?.body.items),
        None => (Vec::new(), Vec::new()),
    };
    slices.retain(|slice| slice.lasting);
    let indexes = ps::Indexes::of(&devices);
    let table = |slices: &[SliceRecord], wide| ps::table(slices, &indexes, wide);
    output::list(format, "SliceList", slices, |slice| &slice.name, table)?;
    Ok(0)
}

/// Deletes them.
///
/// # Errors
/// What the agent refuses.
pub fn remove(args: &Delete, context: &Context) -> Result<u8, Fault> {
    // All are looked up before the first goes: a wrong name among them changes nothing.
    let mut found = Vec::new();
    for which in &args.slices {
        let agent = context.agent_for(which)?;
        let slice = agent.slice(which)?;
        slice.require_lasting("it ends with its program; `divvy kill` ends it")?;
        found.push((agent, slice));
    }
    let mut deleted = Vec::new();
    for (agent, slice) in found {
        if args.dry_run {
            describe(&agent, &slice, args.yes, context.format)?;
            continue;
        }
        if args.yes {
            end_all(&agent, &slice.id, args.grace)?;
        }
        containers(&context.peek(), &slice, args.yes)?;
        agent.end(&slice.id)?;
        deleted.push(slice);
    }
    match context.format {
        _ if args.dry_run => {}
        Format::Table | Format::Wide => {
            for slice in &deleted {
                output::print(&format!("deleted {}", slice.name))?;
            }
        }
        format => {
            let table = |slices: &[SliceRecord], wide| ps::table(slices, &ps::Indexes::default(), wide);
            output::list(format, "SliceList", deleted, |slice| &slice.name, table)?;
        }
    }
    Ok(0)
}

/// A container has its slice's parts mounted, whether it uses the device now or not: without the slice it has no device, and
/// cannot be started again.
fn containers(run: &RunDir, slice: &SliceRecord, force: bool) -> Result<(), Fault> {
    let processes = Processes::default();
    let mut names: Vec<String> = container_members(run, slice)
        .into_iter()
        .filter_map(|pid| processes.container(pid))
        .map(|container| format!("{}:{}", container.engine, container.name.unwrap_or(container.id)))
        .collect();
    names.sort();
    names.dedup();
    match (names.is_empty(), force) {
        (false, false) => {
            return Err(Fault::new(
                Code::SliceBusy,
                format!(
                    "slice `{}` is {}'s, which runs",
                    slice.name,
                    names.join("'s and ")
                ),
            )
            .hint("stop the container first; `divvy slice delete --yes` leaves it without a device"));
        }
        (false, true) => remark(&format!("{} is left without its slice", names.join(", "))),
        (true, _) => {}
    }
    if let Some(LifetimeAnchor::Path(folder)) = &slice.lifetime_anchor
        && names.is_empty()
        && folder.exists()
    {
        remark(&format!(
            "the container of slice `{}` cannot be started again",
            slice.name
        ));
    }
    Ok(())
}

/// What deleting would do.
fn describe(
    agent: &divvy_agent::Client,
    slice: &SliceRecord,
    force: bool,
    format: Format,
) -> Result<(), Fault> {
    use divvy_agent::api::Kill;
    let ask = Kill {
        signal: 15,
        dry_run: true,
    };
    let killed = agent.kill(&slice.id, &ask)?;
    if format == Format::Name {
        return output::print(&slice.name);
    }
    if output::document(format, "Killed", &killed)? {
        return Ok(());
    }
    let pids: Vec<String> = killed.pids.iter().map(u32::to_string).collect();
    output::print(&match (pids.as_slice(), force) {
        ([], _) => format!("would delete {}", slice.name),
        (pids, true) => format!("would end {}, then delete {}", pids.join(", "), slice.name),
        (pids, false) => format!("would refuse: {} live in {}", pids.join(", "), slice.name),
    })
}
