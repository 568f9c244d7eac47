//! `divvy agent`: the host's daemon.

mod helper;
mod install;
pub(crate) mod metrics;
pub mod split;
pub(super) mod units;

use std::os::unix::process::CommandExt;

use clap::Subcommand;
use divvy_agent::{RunDir, close_inherited, let_go, privilege, serve_agent};
use divvy_model::{Code, Fault};
use divvy_privileged::{Remote, confine_agent};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, Sources};
use crate::context::{Context, keep_command, serve_command};
use crate::output;
use split::Role;

/// Flags of `divvy agent`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy agent status
  divvy agent serve
  divvy agent serve --quantum 10ms
  divvy agent stop
  divvy agent metrics --listen 127.0.0.1:9445
  divvy agent install --dry-run")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve in the foreground; `divvy run` does so in the background by itself. SIGHUP has it read its settings again
    Serve {
        /// How long a slice runs before the next may, where several want a device: 1ms to 30ms
        #[arg(long, value_name = "DURATION")]
        quantum: Option<String>,
        /// Leave the terminal's session
        #[arg(long, hide = true)]
        background: bool,
    },
    /// Do as root what the agent of several users asks for
    #[command(hide = true)]
    Helper(helper::Args),
    /// Make this machine's agent a service: its user, its units and its configuration
    Install(install::Args),
    /// Take away what `install` put there
    Uninstall(install::Args),
    /// Serve the agent's figures to Prometheus over TCP, to callers with a token
    Metrics(metrics::Args),
    /// Show the agent
    Status,
    /// End the agent; slices keep their limits, and the next agent takes them back
    Stop {
        /// Print what would happen, and end nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// Does it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::Serve { quantum, background } => serve(context, quantum.as_deref(), *background),
        Verb::Helper(args) => helper::run(args, context),
        Verb::Install(args) => install::install(args),
        Verb::Uninstall(args) => install::uninstall(args),
        Verb::Metrics(args) => metrics::run(args, context),
        Verb::Status => status(context),
        Verb::Stop { dry_run } => stop(context, *dry_run),
    }
}

fn serve(context: &Context, quantum: Option<&str>, background: bool) -> Result<u8, Fault> {
    if background {
        close_inherited();
        // Fails only for a leader of a group, which needs no new session to be safe from the terminal's signals.
        let _session = rustix::process::setsid();
        let_go()?;
    }
    start_log();
    let mut config = context.config.clone();
    if let Some(quantum) = quantum {
        config.set("quantum", quantum);
    }
    let settings = config.agent_settings()?;
    let helper = match split::role(&config)? {
        Role::Single => None,
        Role::Split(user) => return split::into_two(context.peek().path(), &config, &user),
        Role::Helped(remote) => Some(remote),
    };
    let run = context.run_dir()?;
    // Emulated devices are accounted for in the run directory, which their driver takes from the environment.
    if std::env::var_os("DIVVY_RUN_DIR").as_deref() != Some(run.path().as_os_str()) {
        let mut again = serve_command(&run);
        again.args(quantum.iter().flat_map(|quantum| ["--quantum", quantum]));
        let error = again.exec();
        return Err(Fault::new(Code::AgentStart, "the agent cannot start itself again").because(&error));
    }
    if let Some(helper) = helper {
        be_helped(helper)?;
        stage_for_others(&run);
    }
    let quantum = quantum.map(str::to_owned);
    let read = move || {
        let mut config = Config::read(&Sources::of_process(false))?;
        if let Some(quantum) = &quantum {
            config.set("quantum", quantum);
        }
        config.agent_settings()
    };
    serve_agent(&run, settings, keep_command, Box::new(read))?;
    Ok(0)
}

fn be_helped(helper: Remote) -> Result<(), Fault> {
    privilege::set_helper(Box::new(helper));
    confine_agent()
}

/// Puts the drop-ins where other users' programs load them from: only the agent writes there.
fn stage_for_others(run: &RunDir) {
    let staged = divvy_agent::stage_for_others(run);
    if let Err(fault) = staged {
        tracing::warn!(code = %fault.code, "{fault}: {}", fault.causes.join(": "));
    }
}

fn start_log() {
    let filter = EnvFilter::try_from_env("DIVVY_AGENT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_target(false);
    log.with_writer(std::io::stderr).init();
}

fn unreachable(run: &RunDir) -> Fault {
    Fault::new(
        Code::AgentUnreachable,
        format!("no agent listens on `{}`", run.socket().display()),
    )
    .hint("`divvy run` starts one by itself")
}

fn status(context: &Context) -> Result<u8, Fault> {
    let agent = context
        .agent_if_any()
        .ok_or_else(|| unreachable(&context.peek()))?;
    let status = agent.status()?;
    if !output::document(context.format, "AgentStatus", &status)? {
        output::print(&format!(
            "agent        process {} of user {}, version {}\nrun_dir      {}\nstarted      {}\nslices       {}\n\
             bypasses     {}\noverstayed   {} leases, {} expired\nuncharged    {} ms\nhelper       {}",
            status.pid,
            status.uid,
            status.version,
            status.run_dir.display(),
            status.started_at,
            status.slice_count,
            status.bypass_total,
            status.overdue_total,
            status.expired_total,
            status.uncharged_ns_total / 1_000_000,
            status.helper.in_words()
        ))?;
    }
    Ok(0)
}

fn stop(context: &Context, dry_run: bool) -> Result<u8, Fault> {
    let agent = context
        .agent_if_any()
        .ok_or_else(|| unreachable(&context.peek()))?;
    let pid = agent.status()?.pid;
    if dry_run {
        output::print(&format!("would end the agent, process {pid}"))?;
        return Ok(0);
    }
    agent.stop()?;
    divvy_agent::wait_for_end(&context.peek());
    output::print(&format!("ended the agent, process {pid}"))?;
    Ok(0)
}
