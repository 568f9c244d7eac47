//! `divvy inspect`: everything about slices.

use divvy_model::{Fault, LifetimeAnchor, SliceRecord};

use crate::context::Context;
use crate::output::{self, Format};
use crate::verbs::ps::standing;

/// Flags of `divvy inspect`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy inspect train
  divvy inspect train -o json")]
pub struct Args {
    /// Slices, by name, id or unique prefix of an id
    #[arg(required = true, value_name = "SLICE")]
    slices: Vec<String>,
}

/// Shows them.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let mut slices = Vec::new();
    for which in &args.slices {
        slices.push(context.agent_for(which)?.slice(which)?);
    }
    match (context.format, slices.as_slice()) {
        (Format::Table | Format::Wide, _) => {
            let texts: Vec<String> = slices.iter().map(in_words).collect();
            output::print(&texts.join("\n"))?;
        }
        (Format::Json | Format::Yaml, [one]) => {
            output::document(context.format, "Slice", one)?;
        }
        _ => output::print(&output::list_text(
            context.format,
            "SliceList",
            slices,
            |slice| &slice.name,
            |_, _| crate::table::Table::new(Vec::new()),
        )?)?,
    }
    Ok(0)
}

fn in_words(slice: &SliceRecord) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| text.push_str(&format!("{name:<12} {value}\n"));
    line("name", slice.name.clone());
    line("id", slice.id.clone());
    line("state", standing(slice));
    if slice.lasting {
        let until = match &slice.lifetime_anchor {
            None => "until it is deleted".into(),
            Some(LifetimeAnchor::Process { pid, .. }) => format!("until process {pid} has ended"),
            Some(LifetimeAnchor::Path(path)) => format!("until {} is gone", path.display()),
            Some(LifetimeAnchor::Containers { taken: true, .. }) => "until its last container is gone".into(),
            Some(LifetimeAnchor::Containers { taken: false, .. }) => {
                "until its last container is gone; none has come yet".into()
            }
        };
        line("lasting", until);
        if !slice.pods.is_empty() {
            line("pods", slice.pods.join(", "));
        }
    }
    line("user", slice.uid.to_string());
    for share in slice.shares.iter() {
        line("device", share.device_uuid.clone());
        line(
            "memory",
            if slice.usage_unknown {
                format!("{}, use not known", share.memory_limit_bytes)
            } else {
                format!("{} of {} used", share.memory_used_bytes, share.memory_limit_bytes)
            },
        );
        if !share.memory_lent_bytes.is_zero() {
            line("lent", format!("{} to slices inside it", share.memory_lent_bytes));
        }
        if !share.memory_overhead_bytes.is_zero() {
            let bytes = share.memory_overhead_bytes;
            line(
                "overhead",
                format!("{bytes} held by the driver that no call showed"),
            );
        }
        if !share.spill_limit_bytes.is_zero() {
            let bytes = share.spill_limit_bytes;
            line(
                "oversubscribe",
                format!("{bytes} more, in managed memory that the host backs"),
            );
            if !slice.usage_unknown {
                line(
                    "spilled",
                    format!("{} of that is used", share.memory_spilled_bytes),
                );
            }
        }
    }
    if let Some(parent) = &slice.parent_id {
        line("inside", format!("slice {parent}"));
    }
    if slice.terms.on_oom_wait_ns > 0 {
        let seconds = slice.terms.on_oom_wait_ns as f64 / 1e9;
        line("on-oom", format!("an allocation waits {seconds} s for room"));
    }
    line(
        "context",
        format!("{} each, inside the limit", slice.shares.first.context_bytes),
    );
    let terms = slice.terms.compute;
    if !terms.is_default() {
        line("compute", terms.to_string());
    }
    line("policy", slice.terms.policy.name().into());
    if let Some(words) = crate::share_words::in_words(slice) {
        line("sharing", words);
    }
    if let Some(name) = &slice.mps_partition {
        line("partition", name.clone());
    }
    line(
        "isolation",
        format!(
            "{}: not protected against {}",
            slice.terms.isolation,
            slice.terms.isolation.not_protected()
        ),
    );
    line("created", slice.created_at.clone());
    if let Some(at) = slice.expires_unix_s {
        line("ends", divvy_agent::clock::of_unix_seconds(at));
    }
    if slice.terms.idle_ttl_s > 0 {
        line(
            "idle-ttl",
            format!("{} s without a program", slice.terms.idle_ttl_s),
        );
    }
    if !slice.command.is_empty() {
        line("command", slice.command.join(" "));
    }
    for run in &slice.runs {
        line("run", format!("{} {}", run.pid, run.command.join(" ")));
    }
    if let Some(page_server) = slice.page_server_pid {
        line("page server", format!("process {page_server}"));
    }
    for bypass in &slice.bypasses {
        line("not enforced", bypass.clone());
    }
    if !slice.copied.is_none() {
        let paths = slice.copied.by_path().into_iter();
        let moved: Vec<String> = paths
            .filter(|(_, bytes, _)| !bytes.is_zero())
            .map(|(path, bytes, _)| format!("{bytes} {path}"))
            .collect();
        line(
            "copies",
            format!(
                "{:.2} of each byte: {}",
                slice.copied.copies_per_byte(),
                moved.join(", ")
            ),
        );
    }
    let trouble = slice.trouble.as_ref();
    for warning in &slice.warnings {
        // Of the words of one and the same failure, the code comes once.
        let code = trouble
            .filter(|trouble| warning.starts_with(&trouble.message))
            .map_or_else(String::new, |trouble| format!("{}: ", trouble.code));
        line("warning", format!("{code}{warning}"));
    }
    if let Some(hint) = trouble.and_then(|trouble| trouble.hint.as_ref()) {
        line("hint", hint.clone());
    }
    for process in &slice.processes {
        line(
            "process",
            format!(
                "{} {} holds {}{}",
                process.pid,
                process.command,
                process.memory_used_bytes,
                match process.memory_spilled_bytes.is_zero() {
                    true => String::new(),
                    false => format!(", and {} beyond the share", process.memory_spilled_bytes),
                }
            ),
        );
    }
    text
}
