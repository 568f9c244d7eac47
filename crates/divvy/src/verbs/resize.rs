//! `divvy resize`: the memory and the compute of a running slice.

use divvy_agent::api::Resize;
use divvy_model::{Code, Fault, MemoryAmount};

use crate::context::Context;
use crate::flags::compute;
use crate::flags::parse;
use crate::output::{self, Format};
use crate::report::remark;

/// Flags of `divvy resize`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy resize train --memory 8GiB
  divvy resize train --compute 40% --cap hard
  divvy resize train --memory 50% --dry-run")]
pub struct Args {
    /// The slice, by name, id or unique prefix of an id
    // Completion puts the argument behind the others, which would count it as the second.
    #[arg(index = 1)]
    slice: String,
    /// An amount without its flag, which is answered with what to type
    #[arg(hide = true, index = 2, value_name = "AMOUNT")]
    amount: Option<String>,
    /// Its new memory: 8GiB, 50% (of the device)
    #[arg(short, long, value_name = "SIZE", value_parser = parse::<MemoryAmount>, allow_hyphen_values = true)]
    memory: Option<MemoryAmount>,
    #[command(flatten)]
    compute: compute::Flags,
    /// Print what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Changes it. A program sees its new limit with its next allocation, its new share with its next lease.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    if let Some(amount) = &args.amount {
        let slice = &args.slice;
        // `3GiB` can only be memory; `30%` and `3` can be both.
        if amount.ends_with(['b', 'B', 'i', 'g', 'G', 'm', 'M']) {
            return Err(
                Fault::new(Code::Usage, format!("`{amount}` stands without its flag"))
                    .hint(format!("`divvy resize {slice} --memory {amount}`")),
            );
        }
        return Err(
            Fault::new(Code::Usage, format!("`{amount}` could be memory or compute")).hint(format!(
                "`divvy resize {slice} --memory {amount}`, or `divvy resize {slice} --compute {amount}`"
            )),
        );
    }
    if args.memory.is_none() && args.compute.is_empty() {
        return Err(Fault::new(Code::Usage, "nothing was said to change")
            .hint("`divvy resize NAME --memory 8GiB`, or `--compute 40%`"));
    }
    let agent = context.agent_for(&args.slice)?;
    let before = agent.slice(&args.slice)?;
    let ask = Resize {
        memory: args.memory,
        compute: args.compute.compute,
        weight: args.compute.weight,
        cap: args.compute.cap,
        class: args.compute.class,
        dry_run: args.dry_run,
    };
    let slice = agent.resize(&args.slice, &ask)?;
    let shares = &slice.shares;
    let on = |uuid: &str| match shares.count() {
        1 => String::new(),
        _ => format!(" on {uuid}"),
    };
    for share in shares.iter() {
        let (used, limit) = (share.memory_used_bytes, share.memory_limit_bytes);
        if used > limit {
            let on = on(&share.device_uuid);
            remark(&format!(
                "{} holds {used}{on}: it keeps that, and gets nothing more until it holds less than {limit}",
                slice.name
            ));
        }
    }
    if context.format == Format::Name {
        output::print(&slice.name)?;
    } else if !output::document(context.format, "Slice", &slice)? {
        let would = if args.dry_run { "would go" } else { "went" };
        if args.memory.is_some() {
            for (before, after) in before.shares.iter().zip(shares.iter()) {
                let on = on(&after.device_uuid);
                output::print(&format!(
                    "{} {would} from {} to {}{on}",
                    slice.name, before.memory_limit_bytes, after.memory_limit_bytes
                ))?;
            }
        }
        if !args.compute.is_empty() {
            let (before, after) = (before.terms.compute, slice.terms.compute);
            output::print(&format!(
                "{} {would} from compute {before} to {after}",
                slice.name
            ))?;
        }
    }
    Ok(0)
}
