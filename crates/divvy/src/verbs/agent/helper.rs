//! `divvy agent helper`: the process that stays root. It serves standard input, and nothing else.

use divvy_model::{Code, Fault};
use divvy_privileged::{Rules, confine_helper, serve, user};

use super::{split, start_log};
use crate::context::Context;

/// Flags of `divvy agent helper`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The agent's user, by number
    #[arg(long)]
    uid: Option<u32>,
}

/// Serves until the agent hangs up, or without end where standard input listens.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    if !rustix::process::geteuid().is_root() {
        return Err(Fault::new(
            Code::Privilege,
            "the helper does what needs root, and this is not root",
        )
        .hint("`divvy agent serve` starts it, or systemd does: `divvy agent install`"));
    }
    start_log();
    let uid = match args.uid {
        Some(uid) if uid != 0 => uid,
        _ => {
            let name = context.config.text("agent_user").unwrap_or(split::USER);
            user::find(name)?.uid.as_raw()
        }
    };
    let cannot =
        |error: &std::io::Error| Fault::new(Code::AgentStart, "the helper cannot serve").because(error);
    let run = context.peek();
    let run = std::fs::canonicalize(run.path()).unwrap_or_else(|_| run.path().to_owned());
    let rules = Rules::of_helper(uid, &run).map_err(|error| cannot(&error))?;
    confine_helper()?;
    tracing::info!(uid, run_dir = %run.display(), "helper serves");
    serve::serve(&rules).map_err(|error| {
        cannot(&error)
            .hint("its standard input is the agent's channel, or a socket of systemd's that listens")
    })?;
    tracing::info!("helper ends: its agent has");
    Ok(0)
}
